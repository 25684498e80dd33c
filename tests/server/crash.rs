//! What survives: the server's end, the keeper's, and both.

use crate::harness::{Held, Lab, Who, entries, for_both, for_each, outside, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn crash_7_an_orderly_end_finishes_what_was_begun() {
    for_each([Who::user()], |lab| {
        lab.write("a.txt", "one\n");
        let server = lab.serve(&[]);
        server.create("s");
        let body = json!({ "command": ["sh", "-c", "echo begun; sleep 600"] });
        let exec = server.post("/v1/sandboxes/s/execs", &body).is(201).json();
        server.create("t");
        server.script("t", "echo two > b.txt");
        // Under way while it is told to end.
        let asked = lab
            .program("curl")
            .args(["-s", "-X", "POST", "-H", "Content-Type: application/json", "-d", "{}", "-H"])
            .arg(format!("Authorization: Bearer {}", crate::harness::TOKEN))
            .arg(server.url("/v1/sandboxes/t/approve"))
            .spawn();
        server.stop();
        asked.wait_with_output().unwrap();
        // All of it, or nothing.
        let pending = lab.diff("t")["changes"].as_array().unwrap().len();
        assert_eq!(lab.tree().get("b.txt").is_some(), pending == 0);
        assert!(!lab.state.join("skep.sock").exists());
        let server = lab.serve(&[]);
        let id = exec["id"].as_str().unwrap();
        assert_eq!(server.get(&format!("/v1/execs/{id}")).is(200).json()["running"], true);
        server.stop();
    });
}

/// An upload of which half has come: its head, and that half.
fn half_an_upload(port: u16, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "PUT /v1/sandboxes/s/files?path={name} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\
         Authorization: Bearer {}\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        crate::harness::TOKEN,
        2 * HALF
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b'x'; HALF]).unwrap();
    stream
}

const HALF: usize = 500_000;

#[test]
fn crash_7_an_upload_under_way_is_finished_or_leaves_nothing() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let mut whole = half_an_upload(server.port, "whole");
        let half = half_an_upload(server.port, "half");
        // Both are being read: a body is kept in a file without a name.
        wait_for("the bodies", 20, || {
            let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().flatten();
            let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            let bodies = links.filter(|link| {
                link.starts_with(&lab.state) && link.to_string_lossy().ends_with("(deleted)")
            });
            (bodies.count() == 2).then_some(())
        });
        kill_process(Pid::from_raw(server.pid()).unwrap(), Signal::TERM).unwrap();
        wait_for("it to be told", 20, || lab.server_log().contains("stopping").then_some(()));
        whole.write_all(&vec![b'x'; HALF]).unwrap();
        let mut answer = String::new();
        whole.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // The other one never comes: the end does not wait for it.
        server.stop();
        drop(half);
        let found = lab.exec_script("s", "wc -c < whole; ls").run().ok().text();
        assert_eq!(found, format!("{}\nwhole", 2 * HALF));
        assert!(!lab.server_log().contains("panic"), "{}", lab.server_log());
    });
}

#[test]
fn crash_7_a_worker_that_dies_costs_one_request() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let workers: Vec<i32> = children(server.pid());
        assert!(!workers.is_empty());
        workers.into_iter().for_each(kill);
        let failed = (0..20).filter(|_| server.get("/v1/sandboxes/s").status != 200).count();
        assert!(failed <= 4, "{failed} requests failed");
        assert_eq!(server.script("s", "echo fine")["stdout"], "fine\n");
        server.stop();
    });
}

/// A bug in a handler is one 500, and nobody else's.
#[test]
fn crash_7_a_panic_costs_one_request_and_poisons_nothing() {
    for_each([Who::user()], |lab| {
        let variables = [("SKEP_FAILPOINT", "request.exec:2=panic")];
        let server = lab.serve_in(&lab.state, &variables, &[]);
        server.create("s");
        let body = json!({ "command": ["sh", "-c", "echo ran"], "wait": true });
        let exec = || server.post("/v1/sandboxes/s/execs", &body);
        exec().is(200);
        let failed = exec().is(500);
        assert_eq!(failed.json()["code"], "internal");
        assert_eq!(failed.json()["request_id"], failed.header("x-request-id").unwrap());
        for _ in 0..3 {
            assert_eq!(exec().is(200).json()["stdout"], "ran\n");
        }
        server.get("/health/ready").is(200);
        let asked = server.get("/metrics").is(200);
        let asked = String::from_utf8_lossy(&asked.body).into_owned();
        let failures = asked.lines().filter(|line| line.contains("status=\"500\""));
        let failures: Vec<_> = failures.filter(|line| line.contains("_total")).collect();
        assert!(failures.len() == 1 && failures[0].ends_with(" 1"), "{failures:?}");
        server.stop();
    });
}

/// What a server does by itself goes on after a bug that it met once.
#[test]
fn crash_7_a_panic_does_not_end_what_a_server_does_by_itself() {
    for_each([Who::user()], |lab| {
        let variables = [("SKEP_FAILPOINT", "settle.begins:2=panic")];
        let server = lab.serve_in(&lab.state, &variables, &[]);
        let keeper = server.create("s")["keeper"]["pid"].as_i64().unwrap() as i32;
        wait_for("the bug", 20, || lab.server_log().contains("begins anew").then_some(()));
        kill(keeper);
        // Read from the database: whoever asks skep would notice by asking.
        let look = "import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute('SELECT state FROM sandboxes').fetchall()[0][0])";
        wait_for("the death to be noticed", 20, || {
            let call = lab.program("python3").args(["-c", look]).arg(lab.state.join("skep.db"));
            (call.run().ok().text() == "stopped").then_some(())
        });
        server.stop();
    });
}

pub(super) fn children(of: i32) -> Vec<i32> {
    let found = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent: i32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (parent == of).then_some(pid)
    });
    found.collect()
}

#[test]
fn crash_8_execs_outlive_the_server() {
    for_both(|lab| {
        lab.create("s");
        an_exec_outlives_the_server(lab);
    });
}

/// In the sandbox `s`, which runs: nothing of an exec's output or end is lost when the server is killed.
pub(crate) fn an_exec_outlives_the_server(lab: &Lab) {
    let server = lab.serve(&[]);
    let script = "i=0; while [ ! -e stop ]; do echo line $i; i=$((i+1)); sleep 0.02; done; exit 7";
    let body = json!({ "command": ["sh", "-c", script] });
    let exec = server.post("/v1/sandboxes/s/execs", &body).is(201).json();
    let id = exec["id"].as_str().unwrap().to_owned();
    server.kill();
    let server = lab.serve(&[]);
    server.script("s", "touch stop");
    let end = || server.get(&format!("/v1/execs/{id}")).is(200).json();
    wait_for("the end", 30, || (end()["running"] == false).then_some(()));
    assert_eq!((&end()["exit_code"], &end()["reason"]), (&json!(7), &json!("exited")));
    let mut text = String::new();
    loop {
        let from = text.len();
        let logs = server.get(&format!("/v1/execs/{id}/logs?from={from}")).is(200).json();
        let chunks = logs["chunks"].as_array().unwrap().clone();
        if chunks.is_empty() {
            break;
        }
        chunks.iter().for_each(|chunk| text.push_str(chunk["text"].as_str().unwrap()));
    }
    let expected: String = (0..text.lines().count()).map(|n| format!("line {n}\n")).collect();
    assert_eq!(text, expected, "the output has a hole");
    server.stop();
}

#[test]
fn crash_8_a_killed_keeper_is_noticed_while_the_server_lives() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        let sandbox = server.create("s");
        let exec = server.post("/v1/sandboxes/s/execs", &json!({ "command": ["sleep", "601"] }));
        let id = exec.is(201).json()["id"].as_str().unwrap().to_owned();
        let keepers = lab.keepers();
        // The server and its workers have children too; the keeper is the one that leads a session
        // of its own.
        let keeper = sandbox["keeper"]["pid"].as_i64().unwrap() as i32;
        assert!(keepers.contains(&keeper), "{keepers:?} {keeper}");
        kill(keeper);
        wait_for("the loss to be noticed", 15, || {
            let reason = &server.get(&format!("/v1/execs/{id}")).json()["reason"];
            (reason == "lost").then_some(())
        });
        assert_eq!(server.get("/v1/sandboxes/s").json()["state"], "stopped");
        let ids = [sandbox["id"].as_str().unwrap().to_owned()].into();
        crate::harness::wait_for_empty("cgroups", 10, || outside::cgroups_of(&ids));
        assert_eq!(server.script("s", "echo again")["stdout"], "again\n");
        server.stop();
    });
}

/// A lock is its holder's descriptor and nothing else: not a number in a file that may be another process by now, and
/// not what a child has. Whoever dies has let go of it, whatever it was at; and of many who start a sandbox
/// at once one does.
#[test]
fn crash_9_a_lock_dies_with_its_holder_and_there_are_never_two_keepers() {
    for_both(|lab| {
        let mut server = lab.serve(&[]);
        server.create("s");
        let exec = server.post("/v1/sandboxes/s/execs", &json!({ "command": ["sleep", "66664"] }));
        exec.is(201);
        let keeper = lab.keepers();
        server.kill_now();
        // Whatever number is in a lock file is nobody's.
        for lock in entries(&lab.state).into_iter().chain(entries(&lab.state.join("locks"))) {
            let name = lock.file_name().unwrap().to_string_lossy().into_owned();
            if name.contains("lock") && lock.is_file() {
                std::fs::write(&lock, std::process::id().to_string()).unwrap();
            }
        }
        let server = lab.serve(&[]);
        assert_eq!(lab.keepers(), keeper, "the one who holds it is the same");
        // Killed with the lock of a sandbox in its hands.
        for point in ["look.still", "freeze.still"] {
            let words = if point == "look.still" { ["diff", "s"] } else { ["freeze", "s"] };
            drop(Held::at(lab.skep(words), &[point]));
            lab.skep(["diff", "s"]).within(10).run().ok();
        }
        server.post("/v1/sandboxes/s/stop", &json!({})).is(200);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (lab, server) = (&lab, &server);
                scope.spawn(move || match number % 2 {
                    0 => drop(lab.skep(["start", "s"]).run().ok()),
                    _ => drop(server.post("/v1/sandboxes/s/start", &json!({})).is(200)),
                });
            }
        });
        assert_eq!(lab.keepers().len(), 1, "two hold it");
        server.stop();
        lab.skep(["rm", "--discard", "s"]).run().ok();
        lab.audit_leftovers();
    });
}

#[test]
fn crash_9_one_server_per_state_directory() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let second = lab.skep(["serve", "--listen", "127.0.0.1:0", "--token-file"]);
        second.arg(lab.token_file()).within(20).run().exits(4).says("another server");
        server.create("s");
        // The keeper, and whatever it started, hold no lock of the server's.
        server.kill();
        let server = lab.serve(&[]);
        server.create("t");
        for name in ["s", "t"] {
            let sandbox = server.get(&format!("/v1/sandboxes/{name}")).json();
            let keeper = sandbox["keeper"]["pid"].as_i64().unwrap() as i32;
            assert!(lab.keepers().contains(&keeper), "{sandbox}");
        }
        server.stop();
    });
}
