//! Many at once: streams, bodies, sandboxes in a list; nobody pays for the others.

use super::crash::children;
use crate::harness::{Lab, Server, TOKEN, Who, for_each, wait_for};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

fn agent(lab: &Lab, sandbox: &str) -> String {
    lab.skep(["token", "create", "--role", "agent", "--sandbox", sandbox]).run().ok().text()
}

fn stream(server: &Server<'_>, token: &str, path: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let host = format!("Host: 127.0.0.1:{}", server.port);
    write!(stream, "GET {path} HTTP/1.1\r\n{host}\r\nAuthorization: Bearer {token}\r\n\r\n")
        .unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    (String::from_utf8_lossy(&start[9..]).into_owned(), stream)
}

#[test]
fn api_13_one_agent_does_not_take_the_places_of_all_others() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let token = agent(lab, "s");
        let long = json!({ "command": ["sleep", "600"] });
        let exec = server.post("/v1/sandboxes/s/execs", &long).is(201).json();
        let path = format!("/v1/execs/{}/stream", exec["id"].as_str().unwrap());
        let open: Vec<_> = (0..40).map(|_| stream(&server, &token, &path)).collect();
        let count = |status: &str| open.iter().filter(|one| one.0 == status).count();
        assert_eq!((count("200"), count("429")), (32, 8));
        server.create("t");
        assert_eq!(server.script("t", "echo fine")["stdout"], "fine\n");
        // What is closed can be had again.
        drop(open);
        wait_for("a place", 10, || (stream(&server, &token, &path).0 == "200").then_some(()));
        server.stop();
    });
}

/// Processor time of the server and its workers, in ticks.
fn ticks(server: &Server<'_>) -> u64 {
    let of = |pid: i32| -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
    };
    children(server.pid()).into_iter().chain([server.pid()]).filter_map(of).sum()
}

#[test]
fn api_13_those_who_follow_events_cost_nothing_while_nothing_happens() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let mut open: Vec<_> =
            (0..200).map(|_| stream(&server, TOKEN, "/v1/events/stream?after=1000000").1).collect();
        // All of them have looked once, and stand behind what is there.
        std::thread::sleep(Duration::from_secs(1));
        let before = ticks(&server);
        std::thread::sleep(Duration::from_secs(3));
        let used = ticks(&server) - before;
        // A look by each four times a second was some forty ticks a second.
        assert!(used < 60, "{used} ticks in three seconds");
        drop(open.split_off(3));
        // Whoever follows from the start misses nothing that comes.
        let (status, mut follower) = stream(&server, TOKEN, "/v1/events/stream");
        assert_eq!(status, "200");
        server.create("later");
        let mut told = String::new();
        wait_for("the event", 10, || {
            let mut bytes = [0; 4096];
            let length = follower.read(&mut bytes).unwrap();
            told.push_str(&String::from_utf8_lossy(&bytes[..length]));
            told.contains("\"name\":\"later\"").then_some(())
        });
        server.stop();
    });
}

#[test]
fn api_13_a_large_file_is_not_held_in_memory() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let highest = || {
            let of = |pid: i32| {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
                line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
            };
            children(server.pid()).into_iter().chain([server.pid()]).map(of).max().unwrap()
        };
        let before = highest();
        let large = lab.root.join("large");
        let bytes: Vec<u8> = (0..40_u32 << 20).map(|at| (at >> 8) as u8 ^ at as u8).collect();
        std::fs::write(&large, &bytes).unwrap();
        let from = format!("@{}", large.display());
        let kind = "Content-Type: application/octet-stream";
        let path = "/v1/sandboxes/s/files?path=large";
        server.with(TOKEN, &["-X", "PUT", "-H", kind, "--data-binary", &from], path).is(200);
        assert!(server.get(path).is(200).body == bytes, "it came back otherwise");
        assert!(highest() < before + 30, "{before} MiB before, {} at most", highest());
        server.stop();
    });
}

fn names(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap().iter();
    items.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_page_of_the_list_looks_at_what_is_on_it_and_holds_when_others_go() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let old = server.create("old")["id"].as_str().unwrap().to_owned();
        for name in ["b", "c"] {
            server.create(name);
        }
        // Made in one moment.
        server.post("/v1/sandboxes/c/fork", &json!({ "count": 4, "name": "f" })).is(200);
        let new = server.create("new")["id"].as_str().unwrap().to_owned();
        let all = names(&server.get("/v1/sandboxes").is(200).json());
        assert_eq!((all.len(), all[0].as_str()), (8, "new"));
        let mut seen = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = server.get(&format!("/v1/sandboxes?limit=2{cursor}")).is(200).json();
            seen.extend(names(&page));
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!(
                "&cursor={}",
                next.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")
            );
            // The last one of each page goes before the next is asked for.
            let last = seen.last().unwrap();
            let gone = format!("/v1/sandboxes/{last}?discard=true");
            server.with(TOKEN, &["-X", "DELETE"], &gone).is(204);
        }
        assert_eq!(seen, all, "each once, in order");
        server.get("/v1/sandboxes?cursor=bm9uZQ==").is(400);
        // Only what is shown is walked through. (Of the others of its project it is looked at whether they
        // changed the same.)
        let walked = |id: &str| format!("{id}/upper\", O_RDONLY|O_NONBLOCK");
        let trace = lab.root.join("page.trace");
        let mut strace = std::process::Command::new("strace");
        strace
            .args(["-f", "-qq", "-e", "trace=openat,statx,openat2,open,newfstatat", "-o"])
            .arg(&trace);
        for pid in children(server.pid()) {
            strace.args(["-p", &pid.to_string()]);
        }
        let mut strace = strace.stderr(std::process::Stdio::null()).spawn().unwrap();
        let kept = server.create("newest")["id"].as_str().unwrap().to_owned();
        let traced = || std::fs::read_to_string(&trace).unwrap_or_default();
        wait_for("the trace", 20, || {
            server.get("/v1/sandboxes?limit=1").is(200);
            traced().contains(&walked(&kept)).then_some(())
        });
        let pid = rustix::process::Pid::from_child(&strace);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        strace.wait().unwrap();
        for other in [old, new] {
            assert!(!traced().contains(&walked(&other)), "{}", traced());
        }
        server.stop();
    });
}
