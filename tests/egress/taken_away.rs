//! What was taken away is gone, and what went out is in the log, whatever happens to the process between.

use super::RAW;
use super::faults::egress;
use super::origin::Origin;
use super::world::{ORIGIN, in_world, in_world_as};
use crate::harness::{Lab, Who, for_both, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn reach(lab: &Lab, port: u16) -> String {
    let words = ["exec", "s", "--", "/usr/bin/python3", "-c", RAW, "127.0.0.1", &port.to_string()];
    lab.skep(words).run().text()
}

/// The process is dead, and comes back in a moment: with what was left, not with what was before.
#[test]
fn what_is_taken_away_stays_so_when_the_process_does_not_answer() {
    for_both(|lab| {
        let origin = Origin::start("the-origin");
        let rule = format!("127.0.0.1:{}", origin.port());
        let line = ["create", "s", "--allow", &rule, "--allow", "a.example"];
        let create = lab.skep(line).args(["--secret", "KEY@a.example"]);
        create.env("KEY", "sk-some-value-0123456789").run().ok();
        assert!(reach(lab, origin.port()).contains("the-origin"));
        for words in [&["net", "deny", "s", &rule][..], &["net", "revoke", "s", "KEY"]] {
            let before = wait_for("the egress process", 10, || egress(lab));
            kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
            lab.skep(words).run().ok();
            wait_for("another one", 10, || egress(lab).filter(|now| *now != before));
        }
        assert!(!reach(lab, origin.port()).contains("the-origin"));
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["network"]["secrets"].as_array().unwrap().len(), 0, "{shown}");
        assert_eq!(lab.exec_script("s", "echo x$KEY").run().ok().text(), "x");
        lab.skep(["net", "allow", "s", &rule]).run().ok();
        assert!(reach(lab, origin.port()).contains("the-origin"));
    });
}

/// Whoever changes the rules and dies over it leaves a sandbox that reaches no more than is written of it, and
/// the same command again does the rest.
#[test]
fn crash_3_a_change_of_rules_that_dies_reaches_no_more_than_is_written() {
    for_both(|lab| {
        let origin = Origin::start("the-origin");
        let rule = format!("127.0.0.1:{}", origin.port());
        lab.skep(["create", "s", "--allow", "a.example"]).run().ok();
        let dies = |verb: &str, point: &str| {
            let call = lab.skep(["net", verb, "s", &rule]);
            let died = call.env("SKEP_FAILPOINT", format!("{point}=kill")).run();
            assert_ne!(died.code(), 0, "{point} is not met");
            let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
            let written = shown["network"]["allow"].as_array().unwrap().len() == 2;
            (written, reach(lab, origin.port()).contains("the-origin"))
        };
        assert_eq!(dies("allow", "egress.narrowed"), (false, false));
        assert_eq!(dies("allow", "egress.written"), (true, false));
        lab.skep(["net", "allow", "s", &rule]).run().ok();
        assert!(reach(lab, origin.port()).contains("the-origin"));
        assert_eq!(dies("deny", "egress.narrowed"), (true, false));
        lab.skep(["net", "deny", "s", &rule]).run().ok();
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["network"]["allow"].as_array().unwrap().len(), 1, "{shown}");
        lab.skep(["rm", "s"]).run().ok();
        lab.audit_leftovers();
    });
}

/// Sends, and is gone before anybody has looked.
const BYE: &str = "import os,socket,sys
held=[]
for n in range(int(sys.argv[2])):
    s=socket.create_connection(('127.0.0.1',int(sys.argv[1])),15); s.sendall(b'x'*20000); held.append(s)
os._exit(0)";

#[test]
fn what_is_sent_just_before_the_end_is_in_the_log() {
    for_both(|lab| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (came, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, sums) = (came.clone(), bytes.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (counted, sums) = (counted.clone(), sums.clone());
                std::thread::spawn(move || {
                    let mut all = Vec::new();
                    let _ = stream.read_to_end(&mut all);
                    if !all.is_empty() {
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                    sums.lock().unwrap().push(all.len() as u64);
                });
            }
        });
        let rule = format!("tcp://127.0.0.1:{port}");
        let run = ["run", "--keep", "--name", "bye", "--allow", &rule, "--", "/usr/bin/python3"];
        lab.skep(run).args(["-c", BYE, &port.to_string(), "60"]).run().ok();
        let log = lab.skep(["net", "bye", "--json"]).run().ok().json_lines();
        let lines: Vec<_> = log.iter().filter(|line| line["verdict"] == "allow").collect();
        let arrived = came.load(Ordering::SeqCst);
        assert!(arrived > 0 && lines.len() >= arrived, "{arrived} came, {} lines", lines.len());
        let logged: u64 = lines.iter().map(|line| line["bytes_out"].as_u64().unwrap()).sum();
        let taken: u64 = bytes.lock().unwrap().iter().sum();
        assert!(logged >= taken, "{taken} bytes came, {logged} in the log");
    });
}

/// By name, by address and by network; direct and by the proxy; and what is refused of IPv4 is of IPv6.
#[test]
fn ipv6_is_handled_like_ipv4() {
    in_world(&[], |world| {
        let script = r#"ask() { label=$1; shift; echo "$label: $(curl -g -sS -m 20 "$@" 2>&1 | tail -n 1)"; }
direct="--noproxy *"
for host in six.test both.test '[2606:2800:220:1::34]' '[2606:2800:220:1::35]' denied.test; do
set -f; ask "direct $host" $direct http://$host/; ask "proxy $host" http://$host/; set +f
done
ask "tls six.test" --noproxy '*' --cacert ca.crt https://six.test/
ask "only-six both.test" -6 --noproxy '*' http://both.test/
ask "socks six.test" --proxy socks5h://${HTTP_PROXY#http://} http://six.test/
for host in half.test private6.test mapped.test metadata6.test '[fd00:ec2::254]' '[::1]' '[fe80::1]' '[::ffff:10.0.0.1]'; do
ask "never $host" http://$host/
ask "nor $host" --noproxy '*' http://$host/
done"#;
        let names = ["six.test", "both.test", "half.test", "private6.test", "mapped.test"];
        let mut rules = names.to_vec();
        rules.extend(["metadata6.test", "[2606:2800:220:1::34]"]);
        let ran = world.run(&rules, script);
        let text = ran.text();
        let line = |label: &str| {
            let found = text.lines().find(|line| line.starts_with(&format!("{label}: ")));
            found.unwrap_or_else(|| panic!("no `{label}`: {}", ran.describe())).to_owned()
        };
        for host in ["six.test", "both.test", "[2606:2800:220:1::34]"] {
            for way in ["direct", "proxy"] {
                let label = format!("{way} {host}");
                assert_eq!(line(&label), format!("{label}: origin {host}"), "{}", ran.describe());
            }
        }
        for label in ["tls six.test", "only-six both.test", "socks six.test"] {
            assert!(line(label).contains("origin "), "{}", ran.describe());
        }
        for line in
            text.lines().filter(|line| line.starts_with("never ") || line.starts_with("nor "))
        {
            assert!(!line.contains(": origin"), "{line}");
        }
        assert!(line("proxy [2606:2800:220:1::35]").contains("not-allowed"), "{text}");
        assert!(line("never half.test").contains("bad-answer"), "{text}");
        assert!(line("never metadata6.test").contains("\"metadata\""), "{text}");
        let told = ran.errors();
        for said in ["private6.test", "metadata6.test", "--allow [fd00::1]:"] {
            assert!(told.contains(said), "no `{said}`: {told}");
        }
        // What left: to the origin, by both families, and to the name server.
        let packets = world.packets();
        for packet in &packets {
            let meant = packet.starts_with("udp ")
                || packet.starts_with(&format!("tcp {ORIGIN}:"))
                || packet.starts_with("tcp [2606:2800:220:1::34]:");
            assert!(meant, "{packets:?}");
        }
        assert!(packets.iter().any(|packet| packet.contains("[2606:")), "{packets:?}");
    });
}

/// Requests of one connection may be for several hosts; each of them is remembered.
#[test]
fn net_16_each_request_of_http2_is_cut_by_its_own_rule() {
    in_world_as([Who::user()], &["http2"], |world| {
        let script = "const s=require('http2').connect('http://a.origin.test:8080');s.on('error',()=>{});
const a=s.request({':method':'POST',':path':'/',':authority':'a.origin.test:8080'});let t='';
a.on('data',d=>t+=d);a.on('error',()=>{});a.on('close',()=>{console.log('A closed',t);process.exit(0)});a.write('before ');
const b=s.request({':path':'/',':authority':'b.a.origin.test:8080'});b.on('data',()=>{});b.on('end',()=>console.log('B answered'));
setTimeout(()=>a.end('AFTER'),20000);";
        world.lab.write("both.js", script);
        let (one, two) = ("a.origin.test:8080", "b.a.origin.test:8080");
        world.skep(["create", "s", "--allow", one, "--allow", two]).run().ok();
        let exec = world.skep(["exec", "-d", "s", "--", "node", "both.js"]).run().ok().text();
        let said = |what: &str| {
            let logs = world.skep(["logs", &exec]).run().text();
            logs.contains(what).then_some(logs)
        };
        wait_for("the second request", 30, || said("B answered"));
        let changed = world.skep(["net", "deny", "s", one, "--json"]).run().ok().json();
        assert_eq!(changed["cut"], 1, "{changed}");
        let logs = wait_for("the end of the first", 15, || said("A closed"));
        assert!(!logs.contains("AFTER"), "{logs}");
    });
}
