//! A removal takes nobody's unreviewed work along, whatever happens beside it, and leaves a whole story.

use crate::harness::{Held, Lab, entries, for_both, outside, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::PathBuf;

fn directory_of(lab: &Lab, name: &str) -> PathBuf {
    lab.state.join("sandboxes").join(lab.sandbox(name)["id"].as_str().unwrap())
}

fn events(lab: &Lab) -> Vec<Value> {
    lab.skep(["events", "--json"]).run().ok().json_lines()
}

/// Kinds of the events of an exec, in order.
fn story<'a>(events: &'a [Value], exec: &str) -> Vec<&'a str> {
    let of_it = events.iter().filter(|event| event["exec"] == exec);
    of_it.map(|event| event["kind"].as_str().unwrap()).collect()
}

/// A command that changes its first file when it is told to; gives its pid.
fn late_writer(lab: &Lab, name: &str) -> Pid {
    let mark = format!("{name}-{}", lab.root.file_name().unwrap().display());
    let script = "trap 'echo precious > late' USR1; echo up; while :; do sleep 0.1; done";
    let exec = lab.skep(["exec", "-d", name, "--", "sh", "-c", script, &mark]).run().ok().text();
    let up = || lab.skep(["logs", &exec]).run().ok().text() == "up";
    wait_for("the trap", 20, || up().then_some(()));
    let found = outside::processes_with(&mark);
    Pid::from_raw(found.into_iter().map(|one| one.pid).max().unwrap()).unwrap()
}

/// The removal stands still after its look, while the sandbox changes its first file. Before, it went on
/// to mark the row (the second point) and lost what was written.
#[test]
fn clean_5_what_is_written_while_it_is_removed_is_kept() {
    for_both(|lab| {
        for call in [&["rm", "s"][..], &["create", "s", "--fresh"]] {
            lab.create("s");
            let late = directory_of(lab, "s").join("upper/late");
            let writer = late_writer(lab, "s");
            let removing = Held::at(lab.skep(call), &["remove.judged", "delete.row"]);
            kill_process(writer, Signal::USR1).unwrap();
            wait_for("the late byte", 20, || late.exists().then_some(()));
            let ended = removing.go_on();
            assert_eq!(ended.status.code(), Some(4), "{call:?}: {ended:?}");
            assert_eq!(lab.sandbox("s")["state"], "stopped");
            assert_eq!(lab.diff("s")["changes"][0]["path"], "late");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
        // Nothing is written: the same call removes.
        lab.create("s");
        late_writer(lab, "s");
        assert!(Held::at(lab.skep(["rm", "s"]), &["remove.judged"]).go_on().status.success());
        assert_eq!(lab.sandboxes(), Vec::<Value>::new());
    });
}

/// A fork makes a layer of the upper while the removal waits for the lock: what was read of the sandbox
/// before is from before that, and its upper looks empty.
#[test]
fn clean_5_work_that_became_a_layer_while_the_removal_waited_is_seen() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo precious > work").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        let directory = directory_of(lab, "s");
        let forking = Held::at(lab.skep(["fork", "s"]), &["freeze.intent"]);
        let removing = Held::waiting_for(lab.skep(["rm", "s"]), &directory);
        assert!(forking.go_on().status.success());
        let ended = removing.go_on();
        assert_eq!(ended.status.code(), Some(4), "{ended:?}");
        assert_eq!(lab.diff("s")["changes"][0]["path"], "work");
    });
}

#[test]
fn clean_5_snapshots_with_unreviewed_work_go_only_when_asked() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["snapshot", "s", "empty"]).run().ok();
        // A snapshot of nothing keeps nothing from going.
        lab.skep(["rm", "s"]).run().ok();
        lab.create("s");
        lab.skep(["snapshot", "s", "empty"]).run().ok();
        lab.exec_script("s", "echo precious > work").run().ok();
        lab.skep(["snapshot", "s", "full"]).run().ok();
        lab.skep(["restore", "s", "empty"]).run().ok();
        assert_eq!(lab.diff("s")["changes"], Value::Array(Vec::new()));
        for call in [&["rm", "s"][..], &["create", "s", "--fresh"]] {
            lab.skep(call).run().exits(4).says("that may hold unreviewed work");
        }
        lab.skep(["restore", "s", "full"]).run().ok();
        assert_eq!(lab.exec_script("s", "cat work").run().ok().text(), "precious");
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}

/// The same at the end of a run, which removes what has no changes.
#[test]
fn clean_5_a_run_without_changes_keeps_a_snapshot_that_was_taken_of_it() {
    for_both(|lab| {
        let script = "echo precious > work; while [ ! -e go ]; do sleep 0.05; done; rm work go";
        let run = lab.skep(["run", "--name", "s", "--", "sh", "-c", script]).spawn();
        let written = || {
            let found = lab.sandboxes().into_iter().find(|one| one["name"] == "s")?;
            let id = found["id"].as_str()?.to_owned();
            lab.state.join("sandboxes").join(id).join("upper/work").exists().then_some(())
        };
        wait_for("the work", 20, written);
        lab.skep(["snapshot", "s", "full"]).run().ok();
        lab.exec_script("s", "touch go").run().ok();
        let ended = run.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        lab.skep(["restore", "s", "full"]).run().ok();
        assert_eq!(lab.exec_script("s", "cat work").run().ok().text(), "precious");
    });
}

/// One exec runs when its sandbox is removed, one was asked of the keeper alone while the removal was
/// under way: both have a beginning and an end.
#[test]
fn execs_of_a_removed_sandbox_have_a_whole_story() {
    for_both(|lab| {
        lab.create("s");
        let running = lab.skep(["exec", "-d", "s", "--", "sleep", "600"]).run().ok().text();
        let removing = lab.skep(["rm", "--discard", "s"]);
        let removing = Held::at(removing, &["remove.judged", "delete.row"]);
        // Asked of a server it would wait for the removal, which has the lock.
        let late = (std::env::var_os("SKEP_TEST_HOST").is_none())
            .then(|| lab.skep(["exec", "s", "--json", "--", "true"]).run().ok().json());
        assert!(removing.go_on().status.success());
        let events = events(lab);
        assert_eq!(story(&events, &running), ["exec.started", "exec.ended"]);
        if let Some(late) = late {
            let late = late["exec"].as_str().unwrap();
            assert_eq!(story(&events, late), ["exec.started", "exec.ended"], "{late}");
        }
        assert_eq!(lab.skep(["stats", "--json"]).run().ok().json()["execs"], 0);
        lab.skep(["kill", &running]).run().ok();
        for place in ["locks", "ways"] {
            let left = entries(&lab.state.join(place));
            assert!(left.is_empty(), "{left:?}");
        }
    });
}

/// Whoever writes the row of an exec after the removal has asked for them, and dies: the next who looks
/// says that it is lost, and the sums go on.
#[test]
fn an_exec_that_came_between_is_lost_and_spoils_no_sum() {
    for_both(|lab| {
        lab.create("s");
        let call = lab.skep(["exec", "s", "--", "true"]);
        let call = call.env("SKEP_FAILPOINT", "exec.begins=stop;exec.row=kill");
        let mut exec = call.spawn();
        let stat = format!("/proc/{}/stat", exec.id());
        wait_for("the exec to stand still", 20, || {
            std::fs::read_to_string(&stat).ok()?.contains(") T ").then_some(())
        });
        let removing = Held::at(lab.skep(["rm", "--discard", "s"]), &["delete.ends"]);
        kill_process(Pid::from_raw(exec.id() as i32).unwrap(), Signal::CONT).unwrap();
        exec.wait().unwrap();
        assert!(removing.go_on().status.success());
        assert_eq!(lab.skep(["stats", "--json"]).run().ok().json()["execs"], 0);
        let events = events(lab);
        let begun = events.iter().find(|event| event["kind"] == "exec.started").unwrap();
        let exec = begun["exec"].as_str().unwrap();
        assert_eq!(story(&events, exec), ["exec.started", "exec.ended"]);
        lab.skep(["kill", exec]).run().ok();
    });
}

/// What lies in layers goes with the last one who stands on them, and counts as freed with that one.
#[test]
fn freed_layers_are_counted_with_the_last_one_who_stands_on_them() {
    for_both(|lab| {
        lab.create("first");
        lab.exec_script("first", "head -c 1000000 /dev/urandom > large").run().ok();
        lab.skep(["stop", "first"]).run().ok();
        for name in ["second", "third"] {
            lab.skep(["fork", "first", "--name", name]).run().ok();
        }
        lab.skep(["rm", "first", "--discard"]).run().ok();
        let freed = |name: &str| {
            lab.skep(["reject", name]).run().ok();
            let decided = lab.skep(["gc", "--older-than", "1ms", "--json"]).run().ok().json();
            let all = decided.as_array().unwrap().clone();
            let gone = all.into_iter().find(|one| one["name"] == name).unwrap();
            assert_eq!(gone["action"], "remove", "{gone}");
            gone["bytes"].as_u64().unwrap()
        };
        let (one, last) = (freed("second"), freed("third"));
        assert!(one < 500_000, "{one}: somebody stands on it");
        assert!(last >= 1_000_000, "{last}");
    });
}
