//! What an attacker inside would try, in a world where every packet is counted.

use super::world::{Method, NAMES, ORIGIN, OTHER, World, in_world, in_world_as};
use crate::harness::{Ran, Who, outside};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Command, Stdio};

const ATTEMPTS: &str = include_str!("attempts.py");

/// Label and outcome of each attempt.
fn outcomes(ran: &Ran) -> BTreeMap<String, String> {
    let text = ran.text();
    let pairs = text.lines().filter_map(|line| line.split_once(" -> "));
    pairs.map(|(label, outcome)| (label.to_owned(), outcome.to_owned())).collect()
}

#[test]
fn net_4_net_5_net_6_net_7_net_14_net_15_nothing_gets_out_by_odd_requests() {
    in_world(&[], odd_requests);
}

/// The same where the kernel has no NAT.
#[test]
fn net_4_net_5_net_6_net_7_net_14_net_15_nor_by_an_interface() {
    in_world_as([Who::user()], &[], |world| {
        world.method.set(Method::Tun);
        let shown = world.skep(["create", "s", "--allow", "origin.test"]).run().ok();
        let report = world.lab.sandbox("s")["enforcement"]["network"]["how"].to_string();
        assert!(report.contains("TUN"), "{report}: {}", shown.describe());
        world.skep(["rm", "s", "--discard"]).run();
        odd_requests(world);
    });
}

fn odd_requests(world: &World<'_>) {
    world.lab.write("attempts.py", ATTEMPTS);
    let script = "/usr/bin/python3 attempts.py";
    let ran = world.call(&["origin.test"], script).within(120).run().ok();
    let found = outcomes(&ran);
    assert!(found.len() > 60, "{}", ran.describe());
    for (label, outcome) in &found {
        let told = format!("{label}: {outcome}\n{}", ran.describe());
        assert!(!outcome.contains("LEAK") && !outcome.contains("hangs"), "{told}");
        if label.starts_with("yes") {
            let good = outcome.contains("200") || outcome == "reply 0";
            assert!(good, "{told}");
        } else if label.starts_with("connect") {
            assert!(outcome == "403" || outcome == "400", "{told}");
        } else if label.starts_with("odd after") || label.starts_with("odd upgrade") {
            // One good request, and the end before anything else is read.
            assert!(!outcome.contains(' ') || outcome == "200 origin", "{told}");
        } else if label.starts_with("odd chunk") {
            assert!(
                outcome.starts_with("400") || outcome.starts_with("502") || outcome == "closed",
                "{told}"
            );
        } else if label.starts_with("odd") {
            assert_eq!(outcome, "400", "{told}");
        } else if label.starts_with("socks") {
            assert!(outcome == "reply 2" || outcome == "reply 7" || outcome == "closed", "{told}");
        } else if label.starts_with("pipelined") || label.starts_with("kept") {
            assert_eq!(outcome, "200 403 origin", "{told}");
        } else {
            assert!(!outcome.contains("origin") && !outcome.contains("ANSWERED"), "{told}");
        }
    }
    assert!(ran.text().contains("seen []"), "{}", ran.describe());
    // Oracles outside: who was spoken to, by which name, and where packets went.
    for request in world.requests() {
        let host = request["host"].as_str().unwrap().to_ascii_lowercase();
        assert!(request["at"] == ORIGIN && host.starts_with("origin.test"), "{request}");
        // What a program says to its proxy is not for the host.
        assert!(!request.to_string().contains("c2VjcmV0"), "{request}");
    }
    let expected =
        [format!("tcp {ORIGIN}:443"), format!("tcp {ORIGIN}:80"), format!("udp {NAMES}:53")];
    assert_eq!(world.packets(), expected);
    let heard = world.heard();
    let names = heard["names"].as_array().unwrap();
    assert!(names.iter().all(|name| name == "origin.test"), "{names:?}");
}

/// Prints where each packet of its namespace was going, until its input ends.
const CAPTURE: &str = "import socket,sys,threading,os
s=socket.socket(socket.AF_PACKET,socket.SOCK_DGRAM,socket.htons(3)); print('ready',flush=True)
def go():
    while True:
        p,a=s.recvfrom(65535)
        to=socket.inet_ntoa(p[16:20]) if a[1]==0x800 else socket.inet_ntop(10,p[24:40]) if a[1]==0x86dd else p.hex()
        print(a[0],to,flush=True)
threading.Thread(target=go,daemon=True).start(); sys.stdin.read(); os._exit(0)";

/// What a program does to send something, anything, to somebody: all addresses are public.
const SEND: &str = r#"
import socket
def quiet(f):
    try: f()
    except OSError: pass
for family,address in ((socket.AF_INET,'93.184.216.35'),(socket.AF_INET6,'2606:4700::1')):
    for port in (22,53,80,443):
        def tcp():
            s=socket.socket(family); s.settimeout(2); s.connect((address,port)); s.sendall(b'x\n'); s.recv(1)
        quiet(tcp)
        quiet(lambda: socket.socket(family,socket.SOCK_DGRAM).sendto(b'x',(address,port)))
    quiet(lambda: socket.socket(family,socket.SOCK_DGRAM,socket.IPPROTO_ICMP if family==socket.AF_INET else 58).sendto(b'\x08\0\0\0\0\0\0\0',(address,0)))
    quiet(lambda: socket.socket(family,socket.SOCK_RAW,255).sendto(b'x'*40,(address,0)))
quiet(lambda: socket.socket(socket.AF_PACKET,socket.SOCK_RAW,0))
quiet(lambda: socket.getaddrinfo('denied.test',80))
"#;

/// Runs something while the packets in the network namespace of a process are looked at.
fn captured(pid: i32, work: impl FnOnce()) -> Vec<String> {
    let mut capture = Command::new("nsenter")
        .arg(format!("--net=/proc/{pid}/ns/net"))
        .args(["/usr/bin/python3", "-c", CAPTURE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = capture.stdout.take().unwrap();
    let mut ready = [0; 6];
    output.read_exact(&mut ready).unwrap();
    work();
    drop(capture.stdin.take());
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    capture.wait().unwrap();
    text.lines().map(str::to_owned).collect()
}

/// A process inside the lab's only sandbox.
fn somebody_inside(world: &World<'_>) -> i32 {
    let own = std::fs::read_link(format!("/proc/{}/ns/net", world.pid())).unwrap();
    let all = outside::processes_of(&world.lab.root).into_iter();
    let other = |pid: &i32| {
        let found = std::fs::read_link(format!("/proc/{pid}/ns/net"));
        found.is_ok_and(|found| {
            found != own && found != std::fs::read_link("/proc/self/ns/net").unwrap()
        })
    };
    all.map(|process| process.pid).find(other).unwrap()
}

#[test]
fn net_2_a_capture_shows_that_nothing_leaves_but_what_is_allowed() {
    in_world(&[], |world| {
        let inside = |name: &str| {
            captured(somebody_inside(world), || {
                world.skep(["exec", name, "--", "/usr/bin/python3", "-c", SEND]).run();
            })
        };
        let local = |line: &String| {
            ["lo 127.", "lo 192.0.0.8", "lo ::1", "lo fd73:6b65:7000::1"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        world.skep(["create", "none"]).run().ok();
        // A resolver without a server tries the loopback; nothing else has anywhere to go.
        let packets = inside("none");
        assert!(packets.iter().all(local), "{packets:?}");
        world.skep(["rm", "none", "--discard"]).run();
        assert_eq!(world.packets(), Vec::<String>::new());
        world.skep(["create", "some", "--allow", "origin.test"]).run().ok();
        let packets = inside("some");
        assert!(!packets.is_empty(), "the capture sees nothing");
        assert!(packets.iter().all(local), "{packets:?}");
        assert_eq!(world.packets(), Vec::<String>::new(), "something not allowed left");
        let fetch = "curl -sS --noproxy '*' http://origin.test/";
        let ran = world.skep(["exec", "some", "--", "sh", "-c", fetch]).run().ok();
        assert!(ran.text().contains("origin origin.test"));
        assert_eq!(world.packets(), [format!("tcp {ORIGIN}:80"), format!("udp {NAMES}:53")]);
        // Control: with the host's network, the same program is seen to send.
        world.skep(["run", "--net", "host", "--", "/usr/bin/python3", "-c", SEND]).run();
        let packets = world.packets();
        assert!(packets.contains(&format!("tcp {OTHER}:80")), "{packets:?}");
        assert!(packets.contains(&format!("udp {OTHER}:443")), "{packets:?}");
    });
}

#[test]
fn net_8_net_10_net_15_names_that_lead_elsewhere() {
    in_world_as([Who::user()], &[], |world| {
        let get = "get() { curl -sS --noproxy '*' -m 30 \"$@\" 2>&1 | head -c 300 | tr '\\n' ' '; echo \"= $*\"; }\n";
        // Sub-domains at any depth, and not the apex.
        let script = format!(
            "{get}for h in a.origin.test b.a.origin.test origin.test evilorigin.test origin.test.evil.test; do get http://$h/; done"
        );
        let text = world.run(&["*.origin.test"], &script).ok().text();
        for (host, reached) in [
            ("a.origin.test", true),
            ("b.a.origin.test", true),
            ("origin.test", false),
            ("evilorigin.test", false),
        ] {
            assert_eq!(text.contains(&format!("origin {host}")), reached, "{text}");
        }
        // Answers that are not public refuse the name, also one among good ones.
        let rules = ["private.test", "mixed.test", "metadata.test", "zero.test", "flip.test"];
        let script = format!(
            "{get}for h in private.test mixed.test metadata.test zero.test; do get http://$h/; done; get http://flip.test/; get http://flip.test/; get -x $HTTP_PROXY --noproxy none http://flip.test/"
        );
        let text = world.run(&rules, &script).ok().text();
        for host in ["private.test", "mixed.test", "metadata.test", "zero.test"] {
            assert!(!text.contains(&format!("origin {host}")), "{text}");
        }
        // What was checked is what is dialled: the second answer of `flip.test` is the host's loopback.
        assert_eq!(text.matches("origin flip.test").count(), 3, "{text}");
        // A redirect is an answer: whoever follows it is judged anew.
        let script = format!(
            "{get}get -L http://origin.test/redirect/http:__denied.test_; get -L http://origin.test/redirect/http:__169.254.169.254_; get -L -x $HTTP_PROXY --noproxy none http://origin.test/redirect/http:__denied.test_"
        );
        let text = world.run(&["origin.test"], &script).ok().text();
        assert!(!text.contains("origin denied.test"), "{text}");
        assert!(text.contains("not-allowed") && text.contains("metadata"), "{text}");
        let allowed = [format!("tcp {ORIGIN}:80"), format!("udp {NAMES}:53")];
        assert_eq!(world.packets(), allowed);
    });
}

#[test]
fn net_12_names_under_a_wildcard_are_few_short_and_logged() {
    in_world_as([Who::user()], &[], |world| {
        let script = "import socket
long='x'*60+'.'+'y'*60+'.'+'z'*20
for name in [long+'.wild.test']+['n%d.wild.test'%i for i in range(400)]:
    try: socket.getaddrinfo(name,80,socket.AF_INET)
    except OSError: pass";
        let call = world.skep(["run", "--keep", "--name", "s", "--allow", "*.wild.test", "--"]);
        call.args(["/usr/bin/python3", "-c", script]).within(120).run().ok();
        let heard = world.heard();
        let mut names: Vec<&str> =
            heard["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        names.sort_unstable();
        names.dedup();
        assert!((100..=120).contains(&names.len()), "{} names left", names.len());
        assert!(names.iter().all(|name| name.len() < 100), "{names:?}");
        let log = world.skep(["net", "s", "--json", "--denied"]).run().ok().json_lines();
        // More of them in a second than are written are counted.
        let missing: u64 = log.iter().filter_map(|line| line["missing"].as_u64()).sum();
        let written = log.iter().filter(|line| line["reason"] == "rate").count() as u64;
        assert!(written > 100 && written + missing > 280, "{written} {missing} {:?}", log.last());
    });
}

/// A server of HTTP/2 speaks first. That makes it no raw protocol, however long the client waits.
#[test]
fn net_5_http2_after_the_servers_first_word_is_not_raw() {
    in_world_as([Who::user()], &["http2"], |world| {
        let script = "import socket,time
s=socket.create_connection(('origin.test',8080)); s.settimeout(5)
print('first', len(s.recv(100))>0)
try:
    s.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n'+bytes([0,0,0,4,0,0,0,0,0]))
    s.sendall(bytes([0,0,8,6,0,0,0,0,0])+b'pingpong')
    heard=b''
    while b'pingpong' not in heard:
        more=s.recv(100)
        if not more: raise OSError
        heard+=more
    print('answered')
except OSError: print('cut')";
        let call = world.skep(["run", "--allow", "origin.test:8080", "--"]);
        let ran = call.args(["/usr/bin/python3", "-c", script]).within(60).run().ok();
        assert_eq!(ran.text().trim(), "first True\ncut", "{}", ran.describe());
    });
}

#[test]
fn net_5_each_stream_of_http2_is_judged_alone() {
    in_world_as([Who::user()], &["http2"], |world| {
        let script = "const s=require('http2').connect('http://origin.test:8080');
const ask=(authority)=>new Promise(done=>{const r=s.request({':path':'/',':authority':authority});let t='';r.on('response',h=>t+=h[':status']+' ');r.on('data',d=>t+=d);r.on('end',()=>done(t.trim()));r.on('error',e=>done('error'))});
(async()=>{for(const a of ['origin.test:8080','denied.test:8080','other.test:8080','origin.test:8080','origin.test'])console.log(a,'->',(await ask(a)).slice(0,60));s.close()})()";
        world.lab.write("two.js", script);
        let ran = world.run(&["origin.test:8080"], "node two.js");
        let text = ran.text();
        assert_eq!(
            text.matches("origin.test:8080 -> 200 http2 origin.test:8080").count(),
            2,
            "{}",
            ran.describe()
        );
        assert!(
            text.contains("denied.test:8080 -> 403") && text.contains("other.test:8080 -> 403"),
            "{}",
            ran.describe()
        );
        let packets = world.packets();
        assert!(!packets.iter().any(|to| to.contains(OTHER)), "{packets:?}");
    });
}
