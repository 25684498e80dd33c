//! The egress process dies: nothing passes meanwhile, it comes back, and at last it does not.

use super::RAW;
use super::origin::Origin;
use crate::harness::{Lab, Ran, Who, for_both, for_each, long, outside, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Instant;

/// The egress process of the lab's only sandbox, found by its command line.
pub(super) fn egress(lab: &Lab) -> Option<i32> {
    let all = outside::processes_of(&lab.root).into_iter();
    all.into_iter().find(|one| one.command.contains("__egress")).map(|one| one.pid)
}

#[test]
fn net_18_a_killed_egress_process_fails_closed_and_comes_back() {
    for_both(|lab| {
        let origin = Origin::start("origin");
        let (port, rule) = (origin.port().to_string(), format!("127.0.0.1:{}", origin.port()));
        lab.skep(["create", "s", "--allow", &rule]).run().ok();
        let fetch = || {
            lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", RAW, "127.0.0.1", &port]).run()
        };
        assert!(fetch().ok().text().contains("origin"));
        let first = wait_for("the egress process", 10, || egress(lab));
        outside::kill(first);
        let again =
            wait_for("another egress process", 20, || egress(lab).filter(|pid| *pid != first));
        assert!(fetch().ok().text().contains("origin"));
        assert!(lab.skep(["net", "s"]).run().ok().errors().contains("started again"));
        let shown = lab.skep(["show", "s"]).run().ok().text();
        assert!(shown.contains("the egress process died"), "{shown}");
        let told = || {
            let events = lab.skep(["events", "--json"]).run().ok().json_lines();
            let died = events.into_iter().filter(|event| event["kind"] == "egress.died");
            died.collect::<Vec<_>>()
        };
        assert_eq!(told().len(), 1, "once, however often somebody looks");
        // Killed as often as it comes: at last nobody listens, and connections are refused.
        let mut last = again;
        outside::kill(last);
        for _ in 0..4 {
            let before = last;
            last = wait_for("another one", 20, || egress(lab).filter(|pid| *pid != before));
            outside::kill(last);
        }
        let ran = wait_for("the doors to be closed", 20, || {
            Some(fetch()).filter(|ran| ran.errors().contains("refused"))
        });
        assert!(!ran.text().contains("origin"));
        assert_eq!(egress(lab), None);
        assert_eq!(told().last().unwrap()["data"]["again"], false, "{:?}", told());
        let shown = lab.skep(["show", "s"]).run().ok().text();
        assert!(shown.contains("everything is refused"), "{shown}");
        // The sandbox itself goes on, and a new start has a way out again.
        lab.skep(["exec", "s", "--", "true"]).run().ok();
        lab.skep(["stop", "s"]).run().ok();
        assert!(fetch().ok().text().contains("origin"));
    });
}

#[test]
fn net_18_nothing_of_it_outlives_the_keeper() {
    for_both(|lab| {
        lab.skep(["create", "s", "--allow", "a.test"]).run().ok();
        wait_for("the egress process", 10, || egress(lab));
        for keeper in lab.keepers() {
            outside::kill(keeper);
        }
        wait_for("its end", 10, || egress(lab).is_none().then_some(()));
        crate::harness::wait_for_empty("processes", 10, || outside::processes_of(&lab.root));
    });
}

/// The egress processes of a lab, and what each holds in memory, in KiB.
fn all_egress(lab: &Lab) -> Vec<(i32, u64)> {
    let all = outside::processes_of(&lab.root).into_iter();
    let all = all.filter(|one| one.command.contains("__egress"));
    let resident = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
        line.split_ascii_whitespace().next().unwrap().parse().unwrap()
    };
    all.map(|one| (one.pid, resident(one.pid))).collect()
}

fn fetch(lab: &Lab, name: &str, port: u16) -> Ran {
    let port = port.to_string();
    lab.skep(["exec", name, "--", "/usr/bin/python3", "-c", RAW, "127.0.0.1", &port]).run()
}

/// Opens so many connections, half to the proxy (or all) and half to where they are led by themselves, says
/// so, and holds them until its input ends. Each process has as many as its descriptors allow.
const HOLD: &str = "import os,resource,socket,sys
want,port,kind=int(sys.argv[1]),int(sys.argv[2]),sys.argv[3]
hard=resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE,(hard,hard))
each=min(500,hard-64); reader,writer=os.pipe(); done,told=os.pipe()
for start in range(0,want,each):
    if os.fork()==0:
        os.close(writer); held=[]
        proxy=int(os.environ['HTTP_PROXY'].rsplit(':',1)[1])
        for at in range(min(each,want-start)):
            s=socket.socket(); s.settimeout(10)
            try:
                s.connect(('127.0.0.1',proxy) if at%2 or kind=='proxy' else ('203.0.113.1',443))
                if kind=='slow': s.sendall(b'GET http://127.0.0.1:%d/ HTTP/1.1\\r\\nHost: 127' % port)
            except OSError: pass
            held.append(s)
        os.write(told,b'x'); os.read(reader,1); os._exit(0)
count=(want+each-1)//each
while count: count-=len(os.read(done,count))
print('held',flush=True); sys.stdin.read()";

#[test]
fn net_18_thousands_of_idle_and_slow_connections_hurt_only_their_own_sandbox() {
    // Descriptors and memory are the same for everybody; one caller shows it.
    for_each([Who::user()], |lab| {
        let origin = Origin::start("origin");
        let rule = format!("127.0.0.1:{}", origin.port());
        lab.skep(["create", "busy", "--allow", &rule]).run().ok();
        lab.skep(["create", "calm", "--allow", &rule]).run().ok();
        let (many, port) = (if long() { "10000" } else { "2000" }, origin.port().to_string());
        for kind in ["idle", "slow"] {
            let hold =
                ["exec", "-i", "busy", "--", "/usr/bin/python3", "-c", HOLD, many, &port, kind];
            let mut holder = lab.skep(hold).spawn();
            let mut line = String::new();
            let mut output = std::io::BufReader::new(holder.stdout.take().unwrap());
            std::io::BufRead::read_line(&mut output, &mut line).unwrap();
            assert_eq!(line, "held\n", "{kind}");
            let start = Instant::now();
            assert!(fetch(lab, "calm", origin.port()).ok().text().contains("origin"), "{kind}");
            assert!(start.elapsed().as_secs() < 10, "the other sandbox waits: {kind}");
            for (_, resident) in all_egress(lab) {
                assert!(resident < 200 << 10, "{resident} KiB while {kind}");
            }
            drop(holder.stdin.take());
            wait_for("the end of the holder", 30, || holder.try_wait().unwrap());
            // Those that are gone make room again.
            wait_for("room again", 30, || {
                Some(fetch(lab, "busy", origin.port())).filter(|ran| ran.text().contains("origin"))
            });
        }
        assert_eq!(all_egress(lab).len(), 2, "somebody died");
        let log = lab.skep(["net", "busy", "--json", "--denied"]).run().ok().json_lines();
        assert!(
            log.iter().any(|line| line["reason"] == "too-many-connections"),
            "nothing was beyond the limit"
        );
        lab.skep(["stop", "busy"]).run().ok();
        lab.skep(["stop", "calm"]).run().ok();
    });
}

/// A body without an end, in both directions, through a proxy that must not hold it.
const ENDLESS: &str = "import socket,sys,time
port=int(sys.argv[1])
out=socket.create_connection(('127.0.0.1',port)); out.settimeout(3)
out.sendall(b'POST / HTTP/1.1\\r\\nHost: 127.0.0.1:%d\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n' % port)
sent=0; block=b'10000\\r\\n'+b'x'*65536+b'\\r\\n'
try:
    while sent < int(sys.argv[2])<<20: out.sendall(block); sent+=65536
except OSError: pass
print('sent',sent>>20,flush=True); sys.stdin.read()";

#[test]
fn net_18_endless_bodies_are_not_held() {
    for_each([Who::user()], |lab| {
        // Takes connections and never reads from them.
        let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = deaf.local_addr().unwrap().port();
        let held = std::thread::spawn(move || deaf.accept());
        let rule = format!("http://127.0.0.1:{port}");
        lab.skep(["create", "s", "--allow", &rule]).run().ok();
        let (port, most) = (port.to_string(), if long() { "4096" } else { "256" });
        let endless = ["exec", "-i", "s", "--", "/usr/bin/python3", "-c", ENDLESS, &port, most];
        let mut sender = lab.skep(endless).spawn();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(sender.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let sent: u64 = line.trim().strip_prefix("sent ").unwrap().parse().unwrap();
        assert!(sent < 64, "{sent} MiB were taken that nobody has read");
        for (_, resident) in all_egress(lab) {
            assert!(resident < 150 << 10, "{resident} KiB");
        }
        drop(sender.stdin.take());
        wait_for("the end of the sender", 30, || sender.try_wait().unwrap());
        let _ = held.join();
        lab.skep(["stop", "s"]).run().ok();
    });
}

#[test]
fn net_18_without_descriptors_it_refuses_and_recovers() {
    for_each([Who::user()], |lab| {
        let origin = Origin::start("origin");
        let (port, rule) = (origin.port().to_string(), format!("127.0.0.1:{}", origin.port()));
        // 128 descriptors for skep and all it starts: room for some thirty connections. All are to the proxy, which
        // waits for a word; others that are denied end soon and make room.
        let call = lab.program("prlimit").arg("--nofile=128:128").arg(&lab.binary);
        call.args(["create", "s", "--allow", &rule]).run().ok();
        let hold = ["exec", "-i", "s", "--", "/usr/bin/python3", "-c", HOLD, "200", &port, "proxy"];
        let mut holder = lab.skep(hold).spawn();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(holder.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let ran = fetch(lab, "s", origin.port());
        assert!(!ran.text().contains("origin"), "there was room: {}", ran.describe());
        assert_eq!(origin.heard(), Vec::<String>::new());
        drop(holder.stdin.take());
        wait_for("the end of the holder", 30, || holder.try_wait().unwrap());
        wait_for("room again", 30, || {
            Some(fetch(lab, "s", origin.port())).filter(|ran| ran.text().contains("origin"))
        });
        lab.skep(["stop", "s"]).run().ok();
    });
}

#[test]
fn net_18_a_hung_egress_process_lets_nothing_through() {
    for_both(|lab| {
        let origin = Origin::start("origin");
        let rule = format!("127.0.0.1:{}", origin.port());
        lab.skep(["create", "hung", "--allow", &rule]).run().ok();
        let hung = wait_for("the egress process", 10, || egress(lab));
        let pid = Pid::from_raw(hung).unwrap();
        lab.skep(["create", "calm", "--allow", &rule]).run().ok();
        kill_process(pid, Signal::STOP).unwrap();
        let short = "import socket,sys
s=socket.create_connection(('127.0.0.1',int(sys.argv[1])),2); s.settimeout(2); s.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(s.recv(99))";
        let port = origin.port().to_string();
        let ran = lab.skep(["exec", "hung", "--", "/usr/bin/python3", "-c", short, &port]).run();
        assert!(ran.code() != 0 && ran.text().is_empty(), "{}", ran.describe());
        assert_eq!(origin.heard(), Vec::<String>::new());
        assert!(fetch(lab, "calm", origin.port()).ok().text().contains("origin"));
        if long() {
            // Asked for something, it does not answer: it is ended, and another one serves.
            lab.skep(["net", "allow", "hung", "b.example"]).run();
            wait_for("another egress process", 40, || {
                Some(fetch(lab, "hung", origin.port())).filter(|ran| ran.text().contains("origin"))
            });
        } else {
            kill_process(pid, Signal::CONT).unwrap();
            assert!(fetch(lab, "hung", origin.port()).ok().text().contains("origin"));
        }
        lab.skep(["stop", "hung"]).run().ok();
        lab.skep(["stop", "calm"]).run().ok();
    });
}

/// The egress process is counted in its sandbox's memory. When there is none left, somebody in that sandbox is
/// ended; whoever it is, the way out is there again afterwards, and others do not notice.
#[test]
fn net_18_a_sandbox_out_of_memory_hurts_only_itself() {
    // A limit for ordinary users needs a cgroup of theirs, which few hosts give.
    for_each([Who::root()], |lab| {
        let origin = Origin::start("origin");
        let rule = format!("127.0.0.1:{}", origin.port());
        lab.skep(["create", "busy", "--memory", "96M", "--allow", &rule]).run().ok();
        lab.skep(["create", "calm", "--allow", &rule]).run().ok();
        let hog = "held=[]
while True: held.append(bytearray(1<<20))";
        let ended =
            lab.skep(["exec", "busy", "--", "/usr/bin/python3", "-c", hog]).within(60).run();
        assert_eq!(ended.code(), 137, "{}", ended.describe());
        assert!(fetch(lab, "calm", origin.port()).ok().text().contains("origin"));
        wait_for("the way out of the busy one", 20, || {
            let ran = fetch(lab, "busy", origin.port());
            ran.text().contains("origin").then_some(())
        });
    });
}
