//! Runs that do not open the store, and how they get into it.
//!
//! That the store was not opened is proven by its files: not a byte of them, and no time, is another one
//! afterwards; and by the record that lies beside it.

use crate::harness::{Held, Lab, entries, for_both, outside, wait_for, wait_for_empty};
use serde_json::Value;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Nothing here holds for calls through a server, which has the store open.
fn for_both_here(test: impl Fn(&Lab)) {
    if std::env::var_os("SKEP_TEST_HOST").is_none() {
        for_both(test);
    }
}

/// A state directory in which somebody has looked at everything.
fn begun(lab: &Lab) {
    lab.write("a", "a\n");
    lab.skep(["ls"]).run().ok();
}

fn records(lab: &Lab) -> Vec<PathBuf> {
    entries(&lab.state.join("runs"))
}

/// How the files of the store look.
fn store(lab: &Lab) -> Vec<(u64, u64, i64, i64, i64, i64)> {
    let look = |name: &str| {
        let found = std::fs::metadata(lab.state.join(name)).unwrap();
        let (modified, changed) = (found.mtime(), found.ctime());
        (found.ino(), found.size(), modified, found.mtime_nsec(), changed, found.ctime_nsec())
    };
    ["skep.db", "skep.db-wal"].map(look).into()
}

fn events(lab: &Lab) -> Vec<Value> {
    lab.skep(["events", "--json"]).run().ok().json_lines()
}

fn kinds(events: &[Value], sandbox: &str) -> Vec<String> {
    let own = events.iter().filter(|event| event["sandbox"] == sandbox);
    own.map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

const STORY: [&str; 5] =
    ["sandbox.creating", "sandbox.ready", "exec.started", "exec.ended", "sandbox.deleted"];

/// The name of a record is the id of its sandbox.
fn id_of(record: &std::path::Path) -> String {
    record.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_run_that_changes_nothing_opens_no_store_and_is_remembered_like_any_other() {
    for_both_here(|lab| {
        begun(lab);
        let before = store(lab);
        let ran = lab.run_script("echo out; exit 3").run().exits(3);
        assert_eq!(ran.text(), "out");
        assert_eq!(store(lab), before, "the store was opened");
        let record = records(lab).pop().expect("there is no record");
        let id = id_of(&record);
        let events = events(lab);
        assert_eq!(kinds(&events, &id), STORY);
        assert_eq!(records(lab), Vec::<PathBuf>::new());
        let exec = events.iter().find(|event| event["kind"] == "exec.ended").unwrap();
        assert_eq!(exec["data"]["exit_code"], 3);
        let numbers: Vec<u64> =
            events.iter().map(|one| one["sequence"].as_u64().unwrap()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        // Asked again, nothing is doubled; and the next run is as the first.
        assert_eq!(self::events(lab), events);
        let before = store(lab);
        lab.run_script("true").run().ok();
        assert_eq!(store(lab), before);
        lab.audit_leftovers();
    });
}

#[test]
fn a_run_without_the_store_is_seen_by_others_and_can_be_stopped_by_them() {
    for_both_here(|lab| {
        begun(lab);
        let mut run = lab.run_script("echo up; exec sleep 66662").spawn();
        let mut said = [0; 3];
        use std::io::Read as _;
        run.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(records(lab).len(), 1);
        let row = lab.sandboxes().pop().expect("nobody sees it");
        assert_eq!(row["state"], "ready");
        assert_eq!(records(lab), Vec::<PathBuf>::new());
        let name = row["name"].as_str().unwrap();
        assert_eq!(lab.exec_script(name, "cat a").run().ok().text(), "a");
        lab.exec_script(name, "echo b > b").run().ok();
        lab.skep(["stop", name]).run().ok();
        assert_eq!(run.wait().unwrap().code(), Some(137));
        // What the other command changed is kept, whatever the run itself would have thought.
        let row = lab.sandbox(name);
        assert_eq!(row["state"], "stopped");
        assert_eq!(lab.diff(name)["changes"][0]["path"], "b");
        lab.skep(["rm", "--discard", name]).run().ok();
        lab.audit_leftovers();
    });
}

#[test]
fn a_run_that_changes_something_is_in_the_store_when_it_ends() {
    for_both_here(|lab| {
        begun(lab);
        lab.run_script("echo b > b").run().ok();
        assert_eq!(records(lab), Vec::<PathBuf>::new());
        let row = lab.sandboxes().pop().unwrap();
        assert_eq!(row["state"], "stopped");
        let (id, name) = (row["id"].as_str().unwrap(), row["name"].as_str().unwrap());
        assert_eq!(lab.diff(name)["totals"]["files"], 1);
        let kinds = kinds(&events(lab), id);
        let whole = ["sandbox.creating", "sandbox.ready", "exec.started", "exec.ended"];
        assert_eq!(kinds[..4], whole, "{kinds:?}");
        lab.skep(["approve", name]).run().ok();
        assert_eq!(std::fs::read_to_string(lab.project.join("b")).unwrap(), "b\n");
    });
}

#[test]
fn whatever_is_done_to_the_store_sends_the_next_run_there() {
    for_both_here(|lab| {
        begun(lab);
        lab.run_script("true").run().ok();
        assert_eq!(records(lab).len(), 1, "the control: this run did not open it");
        lab.skep(["ls"]).run().ok();
        // As a copy that was put back: the same bytes, another file.
        let (path, copy) = (lab.state.join("skep.db"), lab.state.join("copy"));
        std::fs::copy(&path, &copy).unwrap();
        lab.own_below(&lab.state);
        std::fs::rename(&copy, &path).unwrap();
        lab.run_script("true").run().ok();
        assert_eq!(records(lab), Vec::<PathBuf>::new(), "it was not opened");
        // Without its log it is an older state, and refused.
        let (log, away) = (lab.state.join("skep.db-wal"), lab.root.join("log"));
        std::fs::rename(&log, &away).unwrap();
        let refused = lab.run_script("true").run().exits(125);
        assert!(refused.errors().contains("log"), "{}", refused.describe());
        assert_eq!(records(lab), Vec::<PathBuf>::new());
        let _ = std::fs::remove_file(&log);
        std::fs::rename(&away, &log).unwrap();
        lab.run_script("true").run().ok();
        // Shut by its mode it is shut for a run too, also for root.
        let mode = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
        };
        mode(0o000);
        lab.run_script("true").run().exits(125);
        mode(0o600);
        lab.run_script("true").run().ok();
        lab.audit_leftovers();
    });
}

#[test]
fn whoever_dies_while_taking_in_leaves_nothing_twice() {
    for_both_here(|lab| {
        begun(lab);
        for _ in 0..3 {
            lab.run_script("true").run().ok();
        }
        let ids: Vec<String> = records(lab).iter().map(|record| id_of(record)).collect();
        assert_eq!(ids.len(), 3);
        let died = lab.skep(["ls"]).env("SKEP_FAILPOINT", "runs.rows=kill").run();
        assert_ne!(died.code(), 0, "the failpoint is not met");
        assert_eq!(records(lab).len(), 3, "they were to be left");
        let events = events(lab);
        for id in ids {
            assert_eq!(kinds(&events, &id), STORY);
        }
        assert_eq!(records(lab), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_run_that_is_killed_at_any_step_leaves_nothing_that_nobody_knows() {
    const STEPS: [&str; 9] = [
        "create.row",
        "create.directories",
        "create.fork",
        "create.ready",
        "exec.row",
        "exec.started",
        "delete.ends",
        "delete.row",
        "remove.judged",
    ];
    for_both_here(|lab| {
        begun(lab);
        for step in STEPS {
            let ran = lab.run_script("true").env("SKEP_FAILPOINT", format!("{step}=kill")).run();
            // Whoever was killed, the next command settles it.
            for row in lab.sandboxes() {
                let state = row["state"].as_str().unwrap();
                assert!(matches!(state, "ready" | "stopped" | "error"), "{step}: {row}");
                lab.skep(["rm", row["name"].as_str().unwrap()]).run().ok();
            }
            wait_for_empty(step, 10, || outside::processes_of(&lab.root));
            assert_eq!(records(lab), Vec::<PathBuf>::new(), "{step}: {}", ran.describe());
            assert_eq!(entries(&lab.state.join("sandboxes")), Vec::<PathBuf>::new(), "{step}");
            assert_eq!(lab.run_script("cat a").run().ok().text(), "a", "{step}");
            lab.skep(["ls"]).run().ok();
        }
        lab.audit_leftovers();
    });
}

#[test]
fn a_record_that_cannot_be_read_stays_and_is_named() {
    for_both_here(|lab| {
        begun(lab);
        lab.run_script("true").run().ok();
        lab.run_script("true").run().ok();
        let damaged = records(lab).remove(0);
        let mut bytes = std::fs::read(&damaged).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&damaged, &bytes).unwrap();
        lab.skep(["ls"]).run().ok();
        assert_eq!(records(lab), std::slice::from_ref(&damaged));
        let decisions = lab.skep(["gc", "--json"]).run().ok().json();
        let named = decisions.as_array().unwrap().iter().find(|one| one["what"] == "record");
        assert_eq!(named.unwrap()["action"], "keep", "{decisions:#}");
        assert_eq!(std::fs::read(&damaged).unwrap(), bytes);
        lab.run_script("true").run().ok();
    });
}

#[test]
fn records_do_not_pile_up() {
    for_both_here(|lab| {
        begun(lab);
        let mut most = 0;
        for _ in 0..70 {
            lab.skep(["run", "--", "true"]).run().ok();
            most = most.max(records(lab).len());
        }
        assert_eq!(most, 64);
        let ended = events(lab).iter().filter(|one| one["kind"] == "exec.ended").count();
        assert_eq!(ended, 70);
        lab.audit_leftovers();
    });
}

#[test]
fn directories_that_were_made_ahead_are_new_and_nobody_needs_them() {
    for_both_here(|lab| {
        begun(lab);
        let spare = || entries(&lab.state.join("spare"));
        lab.run_script("sleep 0.5").run().ok();
        let upper = |of: &Path| std::fs::metadata(of.join("upper")).unwrap().ino();
        let ahead: Vec<u64> = spare().iter().map(|spare| upper(spare)).collect();
        assert!(ahead.len() > 1, "a command that takes its time leaves a stock");
        lab.create("s");
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let taken = upper(&lab.state.join("sandboxes").join(&id));
        assert!(ahead.contains(&taken), "what was made ahead was not taken");
        assert_eq!(spare().len(), ahead.len() - 1);
        // One that is not whole, as after a loss of power, is made whole.
        for spare in spare() {
            std::fs::remove_dir(spare.join("work")).unwrap();
        }
        lab.create("t");
        assert_eq!(lab.exec_script("t", "echo x > x; cat x").run().ok().text(), "x");
        for name in ["s", "t"] {
            lab.skep(["rm", "--discard", name]).run().ok();
        }
        lab.audit_leftovers();
    });
}

/// Runs that are over at once use up what others made, and one in a few makes more.
#[test]
fn short_runs_leave_the_chores_to_those_that_have_time() {
    for_both_here(|lab| {
        begun(lab);
        let stock = || entries(&lab.state.join("spare")).len();
        lab.run_script("sleep 0.5").run().ok();
        let full = stock();
        for _ in 0..3 * full {
            lab.skep(["run", "--", "true"]).run().ok();
            assert!((1..=full).contains(&stock()), "{}", stock());
            let waste = entries(&lab.state.join("waste")).len();
            assert!(waste <= 64, "{waste}");
        }
        lab.run_script("sleep 0.5").run().ok();
        assert_eq!(stock(), full);
        lab.audit_leftovers();
    });
}

/// To make a file takes the longer, the more were removed beside it lately: it is made ahead, where nothing was.
#[test]
fn the_record_of_a_run_is_a_file_that_was_made_ahead() {
    for_both_here(|lab| {
        begun(lab);
        lab.run_script("sleep 0.5").run().ok();
        let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
        let ahead = entries(&lab.state.join("spare")).into_iter().map(|spare| spare.join("record"));
        let ahead: Vec<u64> = ahead.map(|record| inode(&record)).collect();
        let before = records(lab);
        lab.skep(["run", "--", "true"]).run().ok();
        let new = |path: &PathBuf| !before.contains(path);
        let record = records(lab).into_iter().find(new).unwrap();
        assert!(ahead.contains(&inode(&record)));
        // Where it is gone, one is made.
        lab.run_script("sleep 0.5").run().ok();
        let ahead = entries(&lab.state.join("spare")).pop().unwrap().join("record");
        std::fs::remove_file(&ahead).unwrap();
        assert_eq!(lab.run_script("exit 3").run().code(), 3);
        let ended = events(lab).iter().filter(|one| one["kind"] == "exec.ended").count();
        assert_eq!(ended, 4);
        lab.audit_leftovers();
    });
}

/// Nobody vouches for what somebody else is at: who dies over an approval is heard of by the next run, whoever
/// looked at the store in between.
#[test]
fn a_run_hears_of_an_approval_that_somebody_died_over_while_others_looked() {
    for_both_here(|lab| {
        begun(lab);
        lab.create("s");
        lab.exec_script("s", "echo changed > a; echo b > b").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        let mut approval =
            lab.skep(["approve", "s"]).env("SKEP_FAILPOINT", "apply.publish=stop").spawn();
        wait_for("the approval to stand still", 20, || {
            (outside::state_of(approval.id()) == Some('T')).then_some(())
        });
        // Everything is settled as far as this one can see, and it has only looked.
        lab.skep(["ls"]).run().ok();
        approval.kill().unwrap();
        approval.wait().unwrap();
        let seen = lab.run_script("cat a b").run().ok().text();
        assert_eq!(seen, "changed\nb", "the run saw a project between two states");
        assert_eq!(std::fs::read_to_string(lab.project.join("a")).unwrap(), "changed\n");
        lab.skep(["rm", "s"]).run().ok();
        lab.audit_leftovers();
    });
}

/// Whoever dies while it has a sandbox paused is heard of by the next run: the processes go on.
#[test]
fn a_run_lets_those_go_on_whom_somebody_died_over() {
    for_both_here(|lab| {
        begun(lab);
        lab.create("s");
        let ticks = "while :; do date +%s%N > tick; sleep 0.05; done";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", ticks]).run().ok();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let tick = lab.state.join("sandboxes").join(id).join("upper/tick");
        let read = || std::fs::read_to_string(&tick).unwrap_or_default();
        let goes_on = || {
            let before = read();
            wait_for("another tick", 10, || (read() != before).then_some(()));
        };
        goes_on();
        lab.skep(["ls"]).run().ok();
        let died = lab.skep(["diff", "s"]).env("SKEP_FAILPOINT", "look.still=kill").run();
        assert_ne!(died.code(), 0, "the failpoint is not met");
        lab.run_script("true").run().ok();
        goes_on();
        lab.skep(["rm", "--discard", "s"]).run().ok();
        lab.audit_leftovers();
    });
}

/// What somebody is at takes several steps, and of some of them the store knows nothing. Whoever looks meanwhile
/// vouches for nothing: should the other die, the next run looks at everything.
#[test]
fn a_run_hears_of_whatever_somebody_died_over_while_others_looked() {
    let at: [(&[&str], &str); 6] = [
        (&["reject", "s", "b"], "settle.written"),
        (&["freeze", "s"], "freeze.still"),
        (&["diff", "s"], "look.still"),
        (&["snapshot", "at-rest"], "freeze.intent"),
        (&["rm", "--discard", "gone"], "delete.row"),
        (&["create", "t"], "create.directories"),
    ];
    for_both_here(|lab| {
        begun(lab);
        for name in ["s", "at-rest", "gone"] {
            lab.create(name);
            lab.exec_script(name, "echo b > b; echo c > c").run().ok();
        }
        lab.skep(["stop", "at-rest"]).run().ok();
        for (words, point) in at {
            lab.skep(["ls"]).run().ok();
            lab.run_script("true").run().ok();
            assert_eq!(records(lab).len(), 1, "the control, before {point}");
            let held = Held::at(lab.skep(words), &[point]);
            // Everything is settled as far as this one can see, and it has only looked.
            lab.skep(["ls"]).run().ok();
            drop(held);
            lab.run_script("true").run().ok();
            assert_eq!(records(lab), Vec::<PathBuf>::new(), "{point}: it was vouched for");
        }
        let mut left: Vec<String> =
            lab.sandboxes().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect();
        left.sort();
        assert_eq!(left, ["at-rest", "s"]);
        for name in left {
            lab.skep(["rm", "--discard", &name]).run().ok();
        }
        lab.audit_leftovers();
    });
}

/// Whatever failed may be half done: whoever failed vouches for nothing.
#[test]
fn a_command_that_failed_vouches_for_nothing() {
    for_both_here(|lab| {
        begun(lab);
        lab.create("s");
        lab.exec_script("s", "echo b > b").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        let failed = ["rm", "--discard", "s"];
        lab.skep(failed).env("SKEP_FAILPOINT", "delete.row=eio").run().exits(1);
        let waste = || entries(&lab.state.join("sandboxes"));
        assert_eq!(waste().len(), 1, "the control: it is half removed");
        lab.run_script("true").run().ok();
        assert_eq!(records(lab), Vec::<PathBuf>::new(), "it was vouched for");
        assert_eq!(waste(), Vec::<PathBuf>::new());
        lab.audit_leftovers();
    });
}
