//! A disk that does not keep what it is told: after a sync that failed nothing is changed any more, by no
//! worker, until the server is started again.

use crate::harness::{Lab, Reply, Server, TOKEN, for_both, skip, wait_for};
use serde_json::{Value, json};

/// The syncs of the database's log, on the way of an approval: that it was begun, that it is decided, and
/// that it is done. Of a transient failure the next one would go well.
const SYNCS: [(&str, &str); 4] =
    [("1", "begun"), ("2", "decided"), ("3", "done"), ("1+", "from then on")];

/// Of each kind one, all at once: with the one who met the failure none would be refused but its own.
fn changes(lab: &Lab, server: &Server<'_>) -> Vec<Reply> {
    let asked: [(&str, String, Value); 6] = [
        ("POST", "/v1/sandboxes".into(), json!({ "project": lab.project })),
        ("POST", "/v1/sandboxes/t/execs".into(), json!({ "command": ["true"], "wait": true })),
        ("POST", "/v1/sandboxes/t/snapshots".into(), json!({ "label": "one" })),
        ("PATCH", "/v1/sandboxes/t".into(), json!({ "labels": { "a": "b" } })),
        ("PUT", "/v1/sandboxes/t/files?path=new".into(), json!("text")),
        ("DELETE", "/v1/sandboxes/u?discard=true".into(), Value::Null),
    ];
    std::thread::scope(|scope| {
        let asked = asked.iter().map(|(method, path, body)| {
            scope.spawn(move || match *method {
                "PUT" => {
                    let octets = "Content-Type: application/octet-stream";
                    server.with(TOKEN, &["-X", "PUT", "-H", octets, "-d", "text"], path)
                }
                "DELETE" => server.with(TOKEN, &["-X", "DELETE"], path),
                _ => server.send(method, path, body, &[]),
            })
        });
        let asked: Vec<_> = asked.collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

fn prepare(lab: &Lab) -> String {
    lab.write("a.txt", "one\n");
    for name in ["s", "t", "u"] {
        lab.create(name);
    }
    lab.exec_script("s", "echo two >> a.txt; echo b > b.txt").run().ok();
    let script = "until [ -e /tmp/end ]; do sleep 0.1; done; echo went on";
    lab.skep(["exec", "-d", "u", "--", "sh", "-c", script]).run().ok().text()
}

/// Nothing is changed, everything can be looked at, what runs goes on, and the next start is whole.
fn nothing_is_changed(lab: &Lab, server: Server<'_>, exec: &str, at: &str) {
    let names = || server.get("/v1/sandboxes").is(200).json()["items"].as_array().unwrap().len();
    assert_eq!(names(), 3, "{at}");
    for refused in changes(lab, &server) {
        assert_eq!(refused.status, 500, "{at}: {refused:?}");
        assert_eq!(refused.json()["code"], "store", "{at}: {refused:?}");
        assert!(refused.json()["message"].as_str().unwrap().contains("started again"), "{at}");
    }
    assert_eq!(names(), 3, "{at}");
    assert_eq!(server.get("/health/ready").status, 503, "{at}");
    server.get("/health/live").is(200);
    server.get("/v1/sandboxes/s/changes").is(200);
    assert_eq!(server.get(&format!("/v1/execs/{exec}")).is(200).json()["running"], true, "{at}");
    server.stop();
    let server = lab.serve(&[]);
    for done in changes(lab, &server) {
        assert!((200..300).contains(&done.status) || done.status == 404, "{at}: {done:?}");
    }
    server.get("/health/ready").is(200);
    server.stop();
}

#[test]
fn store_5_after_a_failed_sync_no_worker_changes_anything() {
    for (nth, what) in SYNCS {
        for_both(|lab| {
            if lab.program("strace").args(["true"]).run().code() != 0 {
                return skip("strace is needed to let a sync fail");
            }
            let exec = prepare(lab);
            let before = lab.tree();
            let log = lab.state.join("skep.db-wal");
            let inject = format!("fsync,fdatasync:error=EIO:when={nth}");
            let server = lab.serve_meeting(&log, Some(&inject));
            let met = server.post("/v1/sandboxes/s/approve", &json!({}));
            assert_eq!((met.status, met.json()["code"].as_str()), (500, Some("store")), "{met:?}");
            assert!(std::fs::read_to_string(lab.root.join("trace")).unwrap().contains("INJECTED"));
            nothing_is_changed(lab, server, &exec, what);
            // It is in the project as a whole, and known to be, or not at all.
            let pending = lab.diff("s")["changes"].as_array().unwrap().len();
            match pending {
                0 => assert_eq!(lab.tree().get("a.txt").unwrap().bytes, b"one\ntwo\n"),
                _ => lab.tree().assert_equals(&before, "an approval got half way"),
            }
            assert_eq!(pending == 0, what == "done", "{what}: {pending}");
            lab.skep(["undo"]).run().exits(if pending == 0 { 0 } else { 3 });
            lab.skep(["exec", "u", "--", "touch", "/tmp/end"]).run();
        });
    }
}

/// The same of the journal of an approval, which is a file of its own.
#[test]
fn store_5_after_a_failed_sync_of_a_journal_no_worker_changes_anything() {
    for_both(|lab| {
        let exec = prepare(lab);
        let before = lab.tree();
        let variables = [("SKEP_FAILPOINT", "apply.journal_unsynced=eio")];
        let server = lab.serve_in(&lab.state, &variables, &[]);
        let met = server.post("/v1/sandboxes/s/approve", &json!({}));
        assert_eq!((met.status, met.json()["code"].as_str()), (500, Some("io")), "{met:?}");
        nothing_is_changed(lab, server, &exec, "journal");
        lab.tree().assert_equals(&before, "an approval got half way");
        lab.skep(["approve", "s"]).run().ok();
    });
}

/// The control, and what folds the log of a server that lives for months: its size is bounded.
#[test]
fn store_4_the_log_of_a_server_that_lives_is_folded() {
    for_both(|lab| {
        lab.create("t");
        let server = lab.serve_meeting(&lab.state.join("skep.db-wal"), None);
        let log =
            || std::fs::metadata(lab.state.join("skep.db-wal")).map_or(0, |found| found.len());
        let label = "x".repeat(1000);
        let mut most = 0;
        for number in 0..120 {
            let body = json!({ "labels": { format!("k{}", number % 40): label } });
            server.send("PATCH", "/v1/sandboxes/t", &body, &[]).is(200);
            most = most.max(log());
        }
        assert!(most > 1 << 20, "not enough was written: {most}");
        wait_for("the log to be folded", 20, || (log() < 1 << 20).then_some(()));
        for done in changes(lab, &server) {
            assert!((200..300).contains(&done.status) || done.status == 404, "{done:?}");
        }
        server.stop();
    });
}
