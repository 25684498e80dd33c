//! Many at once, and many deaths.

use crate::harness::{Lab, TOKEN, Who, for_both, for_each, long, outside, wait_for};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// One request on a connection of its own.
pub(super) fn ask(port: u16, line: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer);
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// create → exec → diff → delete.
fn life(lab: &Lab, port: u16, number: usize) {
    let project = json!({ "name": format!("p{number}"), "project": lab.project });
    let (status, made) = ask(port, "POST /v1/sandboxes", &project);
    assert_eq!(status, 201, "{number}: {made}");
    let at = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let script = format!("echo {number} > made-{number}");
    let run = json!({ "command": ["sh", "-c", script], "wait": true });
    let (status, ran) = ask(port, &format!("POST {at}/execs"), &run);
    assert_eq!((status, &ran["exit_code"]), (200, &json!(0)), "{number}: {ran}");
    let (status, set) = ask(port, &format!("GET {at}/changes"), &Value::Null);
    assert_eq!(status, 200, "{number}: {set}");
    let paths: Vec<_> = set["changes"].as_array().unwrap().iter().map(|one| &one["path"]).collect();
    assert_eq!(paths, [&json!(format!("made-{number}"))], "{number}");
    let (status, gone) = ask(port, &format!("DELETE {at}?discard=true"), &Value::Null);
    assert_eq!(status, 204, "{number}: {gone}");
}

/// A hundred in the long run, forty otherwise; `benches/run.py --only api` has the figures.
#[test]
fn heavy_many_lives_at_once() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        let server = lab.serve(&["--keep-free", "16M"]);
        let count = if long() { 100 } else { 40 };
        std::thread::scope(|scope| {
            for number in 0..count {
                let port = server.port;
                scope.spawn(move || life(lab, port, number));
            }
        });
        assert_eq!(server.get("/v1/sandboxes").json()["items"], json!([]));
        server.stop();
    });
}

/// Memory of a process, in KiB.
fn resident(pid: i32) -> u64 {
    field(&std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap(), "VmRSS:")
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A thousand live ones in the long run, fifty otherwise: all there, each small, all gone.
#[test]
fn heavy_many_idle_sandboxes_are_small() {
    for_each([Who::root()], |lab| {
        let server = lab.serve(&["--keep-free", "16M"]);
        let count = if long() { 1000 } else { 50 };
        let port = server.port;
        let body = json!({ "project": lab.project });
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..count / 5 {
                        let (status, made) = ask(port, "POST /v1/sandboxes", &body);
                        assert_eq!(status, 201, "{made}");
                    }
                });
            }
        });
        let holders = outside::processes_of(&lab.root).into_iter().filter(|one| {
            let line = std::fs::read(format!("/proc/{}/cmdline", one.pid)).unwrap_or_default();
            !line.starts_with(b"skep: worker") && one.pid != server.pid()
        });
        let sizes = holders.map(|one| {
            let path = format!("/proc/{}/smaps_rollup", one.pid);
            field(&std::fs::read_to_string(path).unwrap_or_default(), "Pss:")
        });
        let (number, sum) = sizes.fold((0, 0), |(number, sum), size| (number + 1, sum + size));
        println!("{number} processes, {} KiB for each sandbox", sum / count);
        assert!(number >= 2 * count, "{number}");
        // The debug build is larger in text alone; the figure of a release is that of `benches/run.py --only idle`.
        assert!(sum / count < 8 << 10, "{} KiB for each", sum / count);
        let names: Vec<Value> = lab.sandboxes();
        assert_eq!(names.len() as u64, count);
        let last = names[0]["id"].as_str().unwrap();
        assert_eq!(server.script(last, "echo fine")["stdout"], "fine\n");
        server.stop();
    });
}

/// 10,000 in the long run, or as many as `SKEP_TEST_CYCLES` says.
fn cycles() -> usize {
    let said = std::env::var("SKEP_TEST_CYCLES").ok().and_then(|text| text.parse().ok());
    said.unwrap_or(if long() { 10_000 } else { 100 })
}

/// The server is killed and started again, over and over, while something runs and something is
/// being asked. The memory of the last is not more than that of the first.
#[test]
fn heavy_crash_8_a_hundred_deaths_of_the_server_cost_nothing() {
    for_each([Who::user()], |lab| {
        let mut server = lab.serve(&[]);
        server.create("s");
        let body = json!({ "command": ["sh", "-c", "echo begun; exec sleep 6000"] });
        let exec = server.post("/v1/sandboxes/s/execs", &body).is(201).json();
        let id = exec["id"].as_str().unwrap().to_owned();
        let began = Instant::now();
        let cycles = cycles();
        let before = (resident(server.pid()), resident(lab.keepers()[0]));
        for number in 0..cycles {
            let body = json!({ "command": ["true"] });
            // Whether this one is carried out, is not said: only that nothing breaks by it.
            std::thread::scope(|scope| {
                let (path, port) = ("POST /v1/sandboxes/s/execs", server.port);
                let asked = scope.spawn(move || {
                    let stream = TcpStream::connect(("127.0.0.1", port));
                    let text = body.to_string();
                    let request = format!(
                        "{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
                        text.len()
                    );
                    let _ = stream.and_then(|mut stream| stream.write_all(request.as_bytes()));
                });
                if number % 2 == 0 {
                    let _ = asked.join();
                }
                server.kill_now();
            });
            server = lab.serve(&[]);
        }
        println!("{cycles} cycles in {:?}", began.elapsed());
        let after = (resident(server.pid()), resident(lab.keepers()[0]));
        println!("resident KiB of server and keeper: {before:?}, then {after:?}");
        assert!(after.0 < before.0 * 3 / 2 + 1024, "the server: {before:?}, {after:?}");
        assert!(after.1 < before.1 * 3 / 2 + 1024, "the keeper: {before:?}, {after:?}");
        let shown = server.get(&format!("/v1/execs/{id}")).is(200).json();
        assert_eq!(shown["running"], true, "{shown}");
        assert_eq!(server.script("s", "echo fine")["stdout"], "fine\n");
        // Workers of dead servers have ended with them.
        wait_for("only the living are left", 20, || {
            let workers = outside::processes_of(&lab.root).into_iter().filter(|one| {
                let line = std::fs::read(format!("/proc/{}/cmdline", one.pid)).unwrap_or_default();
                line.starts_with(b"skep: worker")
            });
            (workers.count() <= super::crash::children(server.pid()).len()).then_some(())
        });
        let left: Vec<_> = crate::harness::entries(&lab.state)
            .into_iter()
            .filter(|path| path.to_string_lossy().contains("scratch-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        server.stop();
        assert_eq!(lab.keepers().len(), 1, "one keeper, whatever died");
    });
}
