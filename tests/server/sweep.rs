//! Every failpoint on the way of a request, passed through a server: its worker dies there, or meets an
//! error, and lives on. Afterwards, on a server that nothing is wrong with, the same request can be sent
//! again; nothing is lost, nothing is half there, nothing is left over.

use crate::harness::{Lab, Reply, Server, TOKEN, Who, entries, for_both, for_each, long, wait_for};
use serde_json::{Value, json};

/// What is asked, and the failpoints on its way. In every run the first of the first two is passed; in the long
/// one all of all.
const WAYS: [(&str, &[&str]); 6] = [
    (
        "create",
        &[
            "create.row",
            "create.ready",
            "create.directories",
            "create.fork",
            "create.keeper",
            "create.socket",
            "create.cgroup",
            "create.init",
        ],
    ),
    ("exec", &["exec.row", "exec.begins", "exec.started"]),
    (
        "approve",
        &[
            "approve.committed",
            "apply.published",
            "apply.staging_made",
            "apply.staged",
            "apply.synced",
            "apply.journal_unsynced",
            "apply.journal_synced",
            "apply.journal_written",
            "apply.publish",
            "apply.looked",
            "apply.publish_sync",
            "apply.done",
            "apply.backups",
            "apply.backups_copied",
            "approve.published",
            "approve.settled",
        ],
    ),
    ("rm", &["delete.row", "remove.judged", "delete.ends"]),
    ("fork", &["fork.made"]),
    ("restore", &["restore.kept"]),
];

struct Way<'a> {
    lab: &'a Lab,
    /// What is asked.
    what: &'a str,
    /// Unique among all that are tried.
    name: String,
}

impl Way<'_> {
    /// Everything that comes before.
    fn prepare(&self, server: &Server<'_>) {
        let name = &self.name;
        if self.what == "create" {
            return;
        }
        server.create(name);
        server.script(name, &format!("echo work > {name}.txt"));
        if self.what == "restore" {
            let path = format!("/v1/sandboxes/{name}/snapshots");
            server.post(&path, &json!({ "label": "before" })).is(200);
            server.script(name, "echo more > more");
        }
    }

    fn ask(&self, server: &Server<'_>) -> Reply {
        let name = &self.name;
        let key = format!("Idempotency-Key: {name}");
        let of = |word: &str| format!("/v1/sandboxes/{name}/{word}");
        let post = |path: &str, body: Value| server.send("POST", path, &body, &["-H", &key]);
        match self.what {
            "create" => post("/v1/sandboxes", json!({ "name": name, "project": self.lab.project })),
            "exec" => {
                let script = format!("echo once >> {name}.ran");
                post(&of("execs"), json!({ "command": ["sh", "-c", script], "wait": true }))
            }
            "approve" => post(&of("approve"), json!({})),
            "fork" => post(&of("fork"), json!({ "count": 1, "name": format!("{name}-f") })),
            "restore" => post(&of("restore"), json!({ "label": "before" })),
            _ => {
                let path = format!("/v1/sandboxes/{name}?discard=true");
                server.with(TOKEN, &["-X", "DELETE", "-H", &key], &path)
            }
        }
    }

    /// What must be true once it was asked for again, on a server that nothing is wrong with. `again` is
    /// the answer to that: done, or not known whether the first one was.
    fn check(&self, server: &Server<'_>, again: &Reply, at: &str) {
        let (lab, name) = (self.lab, &self.name);
        let unknown = again.status == 409 && again.json()["code"] == "conflict";
        let gone = self.what == "rm" && again.status == 404;
        // Who forked cannot tell whether there was a fork: its name is taken.
        let taken = again.status == 409 && again.json()["code"] == "already_exists";
        let done = (200..300).contains(&again.status);
        assert!(done || unknown || gone || taken && self.what == "fork", "{at}: {again:?}");
        wait_for("no row to be half made", 30, || {
            let list = server.get("/v1/sandboxes?state=creating").is(200).json();
            (list["items"] == json!([])).then_some(())
        });
        match self.what {
            "create" => assert_eq!(server.script(name, "echo fine")["stdout"], "fine\n", "{at}"),
            "exec" => {
                wait_for("every exec to have an end", 30, || {
                    let execs = server.get(&format!("/v1/sandboxes/{name}/execs")).is(200).json();
                    let all = execs.as_array().unwrap().iter();
                    all.clone().all(|exec| exec["running"] == false).then_some(())
                });
                let ran = server.script(name, &format!("cat {name}.ran 2> /dev/null; true"));
                let ran = ran["stdout"].as_str().unwrap().to_owned();
                assert!(ran == "once\n" || unknown && ran.is_empty(), "{at}: it ran {ran:?}");
            }
            "approve" => {
                // Whoever is not told asks anew, and gets all of it; what was there is not there twice.
                if unknown {
                    server.post(&format!("/v1/sandboxes/{name}/approve"), &json!({})).is(200);
                }
                let file = lab.project.join(format!("{name}.txt"));
                assert_eq!(std::fs::read(file).unwrap(), b"work\n", "{at}");
                let left = server.get(&format!("/v1/sandboxes/{name}/changes")).is(200).json();
                assert_eq!(left["changes"], json!([]), "{at}");
                let path = format!("/v1/approvals?project={}", lab.project.display());
                let all = server.get(&path).is(200).json();
                let over = ["applied", "aborted"];
                for one in all.as_array().unwrap() {
                    assert!(over.contains(&one["state"].as_str().unwrap()), "{at}: {one}");
                }
            }
            "rm" => {
                // Not known: it is whole, or it is gone.
                let left = server.get(&format!("/v1/sandboxes/{name}"));
                if left.status == 200 {
                    assert!(unknown, "{at}");
                    let work = format!("/v1/sandboxes/{name}/files?path={name}.txt");
                    assert_eq!(server.get(&work).is(200).body, b"work\n", "{at}");
                }
            }
            _ => {
                let work = format!("/v1/sandboxes/{name}/files?path={name}.txt");
                assert_eq!(server.get(&work).is(200).body, b"work\n", "{at}");
                let more = server.get(&format!("/v1/sandboxes/{name}/files?path=more"));
                // A restore is done or not: the work of before is there in any case.
                assert!(self.what == "fork" || done != (more.status == 200), "{at}: {more:?}");
            }
        }
    }
}

/// Rows, directories and keepers say the same.
fn nothing_is_left_over(lab: &Lab, server: &Server<'_>, at: &str) {
    let list = server.get("/v1/sandboxes?limit=1000").is(200).json();
    let all = list["items"].as_array().unwrap();
    let mut ids: Vec<_> = all.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    wait_for("directories to be those of the rows", 30, || {
        let there = entries(&lab.state.join("sandboxes"));
        let there = there.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
        there.eq(ids.iter().map(String::as_str)).then_some(())
    });
    let held = |one: &&Value| one["state"] == "ready" || one["state"] == "approved";
    let mut wanted: Vec<_> = all
        .iter()
        .filter(held)
        .filter_map(|one| one["keeper"]["pid"].as_i64().map(|pid| pid as i32))
        .collect();
    wanted.sort();
    wait_for(&format!("{at}: keepers to be those of the rows"), 30, || {
        let mut there = lab.keepers();
        there.sort();
        (there == wanted).then_some(())
    });
}

fn pass(lab: &Lab, what: &str, point: &str, action: &str) {
    let at = format!("{point}={action}");
    let name = format!("{}-{action}", point.replace(['.', '_'], "-"));
    let way = Way { lab, what, name };
    // What comes before passes some of these too.
    let clean = lab.serve(&[]);
    way.prepare(&clean);
    clean.stop();
    let mut armed = lab.serve_in(&lab.state, &[("SKEP_FAILPOINT", &at)], &[]);
    let first = way.ask(&armed);
    println!("{at}: {}", first.status);
    // The worker that failed lives on where it did not die, and is asked again. (What a new process passes,
    // a keeper, fails again.)
    if action != "kill" {
        let again = way.ask(&armed);
        println!("{at}, again: {}", again.status);
        assert_ne!(again.status, 0, "{at}: no answer");
    }
    armed.kill_now();
    let server = lab.serve(&[]);
    let again = way.ask(&server);
    way.check(&server, &again, &at);
    nothing_is_left_over(lab, &server, &at);
    for one in server.get("/v1/sandboxes?limit=1000").json()["items"].as_array().unwrap() {
        let path = format!("/v1/sandboxes/{}?discard=true", one["id"].as_str().unwrap());
        server.with(TOKEN, &["-X", "DELETE"], &path).is(204);
    }
    server.stop();
}

#[test]
fn crash_1_failpoints_through_a_server_lose_nothing_and_leave_nothing() {
    let actions: &[&str] = if long() { &["kill", "eio", "enospc"] } else { &["kill", "eio"] };
    for (what, points) in WAYS.into_iter().take(if long() { WAYS.len() } else { 2 }) {
        let passing = |lab: &Lab| {
            for point in &points[..if long() { points.len() } else { 1 }] {
                actions.iter().for_each(|action| pass(lab, what, point, action));
            }
        };
        match long() {
            true => for_both(passing),
            false => for_each([Who::user()], passing),
        }
    }
}

/// Passed by a chain of two hundred snapshots, and by finishing an approval that a person had to decide on.
const UNTRIED: [&str; 2] = ["flatten.built", "resolve.start"];

/// What each failpoint in the sources is for: some test passes it.
#[test]
fn every_failpoint_is_passed_by_some_test() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let texts = |start: &str| {
        let mut texts = Vec::new();
        let mut open = vec![root.join(start)];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|end| end == "rs") {
                texts.push(std::fs::read_to_string(&path).unwrap());
            }
        }
        texts
    };
    let (sources, tests) = (texts("crates"), texts("tests"));
    for text in &sources {
        for rest in text.split("failpoint::hit(\"").skip(1) {
            let name = rest.split('"').next().unwrap();
            let named =
                |text: &&String| text.contains(name) && !text.contains(&format!("hit(\"{name}"));
            if UNTRIED.contains(&name) {
                continue;
            }
            let passed = tests.iter().chain(&sources).any(|text| named(&text));
            assert!(passed, "no test names the failpoint `{name}`");
        }
    }
}
