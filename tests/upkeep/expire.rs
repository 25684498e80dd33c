//! A time to live is kept without a daemon, and costs nobody's work.

use crate::harness::{Lab, for_both, outside, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// What `skep ls` shows of a sandbox, if it is there.
fn shown(lab: &Lab, name: &str) -> Option<Value> {
    lab.sandboxes().into_iter().find(|one| one["name"] == name)
}

/// Makes a sandbox with a time to live, and returns its directory.
fn create(lab: &Lab, name: &str, ttl: &str) -> PathBuf {
    let made = lab.skep(["create", name, "--ttl", ttl, "--json"]).run().ok().json();
    lab.state.join("sandboxes").join(made["id"].as_str().unwrap())
}

#[test]
fn a_sandbox_past_its_time_to_live_goes_at_the_next_command() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        lab.skep(["create", "stays"]).run().ok();
        let gone = create(lab, "empty", "2s");
        create(lab, "work", "5s");
        lab.exec_script("work", "echo two > b.txt").run().ok();
        let digest = lab.diff("work")["digest"].clone();
        // Any command will do: this one only lists.
        wait_for("the empty one to go", 20, || shown(lab, "empty").is_none().then_some(()));
        assert!(!gone.exists(), "its directory is left");
        wait_for("the other's end", 20, || {
            (lab.sandbox("work")["state"] == "stopped").then_some(())
        });
        assert_eq!(lab.diff("work")["digest"], digest, "unreviewed work is kept as it was");
        let reason = lab.skep(["show", "work"]).run().ok().text();
        assert!(reason.contains("its time to live is over"), "{reason}");
        // What has no time to live runs on; so does what is started again by hand.
        assert_eq!(lab.sandbox("stays")["state"], "ready");
        lab.exec_script("work", "cat b.txt").run().ok();
        assert_eq!(lab.sandbox("work")["state"], "ready");
        assert_eq!(lab.keepers().len(), 2);
    });
}

#[test]
fn work_past_its_time_to_live_is_archived_where_that_is_set() {
    for_both(|lab| {
        create(lab, "work", "4s");
        lab.exec_script("work", "echo two > b.txt").run().ok();
        let archived = || lab.skep(["ls", "--all"]).env("SKEP_GC_ARCHIVE_UNREVIEWED", "true").run();
        wait_for("the archive", 20, || {
            archived().ok();
            lab.state.join("archives").exists().then_some(())
        });
        assert!(shown(lab, "work").is_none());
        let names = crate::harness::entries(&lab.state.join("archives"));
        let name = names.iter().find_map(|path| path.to_str()?.strip_suffix(".json")).unwrap();
        let name = name.rsplit('/').next().unwrap();
        lab.skep(["create", "back", "--from", name]).run().ok();
        assert_eq!(lab.skep(["exec", "back", "--", "cat", "b.txt"]).run().ok().text(), "two");
    });
}

/// A command that ends what is past its time stands still between its look and the stop, while the
/// sandbox changes its first file.
#[test]
fn clean_5_what_is_written_while_its_time_ends_is_kept() {
    for_both(|lab| {
        let directory = create(lab, "s", "4s");
        let mark = format!("late-{}", lab.root.file_name().unwrap().display());
        let script = "trap 'echo late > late' USR1; echo up; while :; do sleep 0.1; done";
        let call = ["exec", "-d", "s", "--", "sh", "-c", script, &mark];
        let exec = lab.skep(call).run().ok().text();
        let up = || lab.skep(["logs", &exec]).run().ok().text() == "up";
        wait_for("the trap", 20, || up().then_some(()));
        let writer = outside::processes_with(&mark).into_iter().map(|one| one.pid).max().unwrap();
        let mut ending = wait_for("a command that ends it", 30, || {
            let stop = lab.skep(["ls", "--all"]).env("SKEP_FAILPOINT", "gc.judged=stop");
            let mut child = stop.spawn();
            let stands =
                wait_for("the look, or its end", 20, || match outside::state_of(child.id())? {
                    'T' => Some(true),
                    'Z' => Some(false),
                    _ => None,
                });
            if !stands {
                child.wait().unwrap();
            }
            stands.then_some(child)
        });
        outside::signal(writer, Signal::USR1);
        let late = directory.join("upper/late");
        wait_for("the late byte", 20, || late.exists().then_some(()));
        outside::signal(ending.id() as i32, Signal::CONT);
        assert!(ending.wait().unwrap().success());
        assert_eq!(lab.sandbox("s")["state"], "stopped");
        assert_eq!(lab.diff("s")["changes"][0]["path"], "late");
    });
}

/// Cleaning up, over and over, while sandboxes are made, worked in, reviewed and taken over.
#[test]
fn clean_5_gc_beside_create_diff_approve_and_undo_removes_nothing_of_theirs() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    lab.skep(["gc", "--older-than", "1ms", "--max-size", "1K"]).run().ok();
                }
            });
            let ended = EndFlag(&done);
            for round in 0..3 {
                let (name, file) = (format!("s{round}"), format!("f{round}"));
                let skep = |arguments: &[&str]| lab.skep(arguments).run().ok();
                skep(&["create", &name]);
                skep(&["exec", &name, "--", "sh", "-c", &format!("echo {round} > {file}")]);
                skep(&["stop", &name]);
                let digest = lab.diff(&name)["digest"].as_str().unwrap().to_owned();
                skep(&["start", &name]);
                skep(&["approve", &name, "--digest", &digest]);
                let text = std::fs::read_to_string(lab.project.join(&file)).unwrap();
                assert_eq!(text, format!("{round}\n"));
                skep(&["undo"]);
                assert!(!lab.project.join(&file).exists());
                // Undone is pending again, and stays.
                assert_eq!(lab.diff(&name)["changes"][0]["path"], file.as_str());
            }
            drop(ended);
        });
    });
}

/// Ends the other thread also when this one fails.
struct EndFlag<'a>(&'a AtomicBool);

impl Drop for EndFlag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A server does it by itself: nobody asks anything.
#[test]
fn a_server_ends_what_is_past_its_time_within_seconds() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        let body = json!({ "name": "s", "project": lab.project, "ttl": "1s" });
        server.post("/v1/sandboxes", &body).is(201);
        let began = std::time::Instant::now();
        let keepers = || lab.keepers().len();
        assert_eq!(keepers(), 1);
        wait_for("the end of its time", 20, || (keepers() == 0).then_some(()));
        let sandboxes = || crate::harness::entries(&lab.state.join("sandboxes"));
        wait_for("its directory to go", 20, || sandboxes().is_empty().then_some(()));
        println!("gone after {:?}", began.elapsed());
        server.get("/v1/sandboxes/s").is(404);
        server.stop();
    });
}
