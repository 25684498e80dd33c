//! The end of the store's log is lost, with the power or by a flipped bit: what was committed last is not
//! known any more. The work is, and no command may take it away.

use crate::harness::{Lab, TOKEN, Tree, entries, for_both};
use serde_json::Value;
use std::fs;

/// Cuts the log behind the newest commit at which a question has the answer 1. The index of the log goes, as
/// it does with every loss of power.
const CUT: &str = "
import os, shutil, sqlite3, struct, sys, tempfile
path, question = sys.argv[1:]
log = open(path + '-wal', 'rb').read()
page = struct.unpack('>I', log[8:12])[0]
ends, at, salt = [], 32, log[16:24]
while at + 24 + page <= len(log) and log[at + 8:at + 16] == salt:
    commits = struct.unpack('>I', log[at + 4:at + 8])[0]
    at += 24 + page
    if commits: ends.append(at)
for end in reversed(ends):
    with tempfile.TemporaryDirectory() as place:
        copy = os.path.join(place, 'skep.db')
        shutil.copyfile(path, copy)
        open(copy + '-wal', 'wb').write(log[:end])
        base = sqlite3.connect(copy)
        answer = base.execute(question).fetchone()
        base.close()
    if answer == (1,):
        os.truncate(path + '-wal', end)
        os.remove(path + '-shm')
        sys.exit(0)
sys.exit('at no commit')
";

/// What was committed since `question` had the answer 1 is lost.
fn lose(lab: &Lab, question: &str) {
    let python = lab.program("python3").args(["-c", CUT]);
    python.arg(lab.state.join("skep.db")).arg(question).run().ok();
}

/// The question that was last answered with 1 now.
fn this_moment(lab: &Lab) -> String {
    let events = lab.skep(["events", "--json"]).run().ok().json_lines();
    format!("SELECT max(seq) = {} FROM events", events.last().unwrap()["sequence"])
}

fn lose_until_created(lab: &Lab, name: &str) {
    lose(lab, &format!("SELECT state = 'creating' FROM sandboxes WHERE name = '{name}'"));
}

fn paths(lab: &Lab, name: &str) -> Vec<String> {
    let changes = lab.diff(name)["changes"].as_array().unwrap().clone();
    changes.iter().map(|change| change["path"].as_str().unwrap().to_owned()).collect()
}

fn labels(lab: &Lab, name: &str) -> Vec<Value> {
    let shown = lab.skep(["show", name, "--json"]).run().ok().json();
    shown["snapshots"].as_array().unwrap().iter().map(|one| one["label"].clone()).collect()
}

/// What `gc` says, which takes no layer.
fn gc_takes_nothing(lab: &Lab) -> String {
    let before = Tree::read(&lab.state.join("layers"));
    let said = lab.skep(["gc", "--older-than", "1ms"]).run().ok().text();
    Tree::read(&lab.state.join("layers")).assert_equals(&before, "gc");
    said
}

#[test]
fn store_2_a_snapshot_whose_row_was_lost_is_found_again() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        lab.create("s");
        let work = |script: &str| {
            lab.exec_script("s", script).run().ok();
            lab.skep(["stop", "s"]).run().ok();
        };
        work("echo 1 > w1");
        let whole = lab.diff("s")["digest"].clone();
        lab.skep(["snapshot", "s"]).run().ok();
        lose(lab, "SELECT count(*) = 0 FROM layer_refs");
        assert_eq!(lab.diff("s")["digest"], whole, "{}", lab.sandbox("s"));
        let state = lab.skep(["show", "s"]).run().ok().text();
        assert!(state.contains("found again"), "{state}");
        // Nobody takes it for one without changes.
        lab.skep(["gc", "--older-than", "1ms"]).run().ok();
        lab.skep(["rm", "s"]).run().exits(4);
        // Several, each on the other, and work above them.
        let before = "SELECT count(*) = 1 FROM layer_refs";
        work("echo 2 > w2");
        lab.skep(["snapshot", "s"]).run().ok();
        work("echo 3 > w3");
        lab.skep(["snapshot", "s"]).run().ok();
        work("echo 4 > w4; rm w1");
        let whole = lab.diff("s")["digest"].clone();
        lose(lab, before);
        assert_eq!(lab.diff("s")["digest"], whole);
        assert_eq!(paths(lab, "s"), ["w2", "w3", "w4"]);
        gc_takes_nothing(lab);
        // Found once, it is found for good, and costs nobody anything.
        let listed = lab.sandbox("s")["version"].clone();
        assert_eq!(lab.sandbox("s")["version"], listed);
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(lab.tree().get("w3").unwrap().bytes, b"3\n");
    });
}

#[test]
fn store_2_what_a_restore_or_a_running_sandbox_kept_is_found_as_a_snapshot() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo 1 > w1").run().ok();
        // A keeper holds it: the snapshot is a copy.
        lab.skep(["snapshot", "s", "copy"]).run().ok();
        lab.exec_script("s", "rm w1; echo 2 > w2").run().ok();
        lose(lab, "SELECT count(*) = 0 FROM snapshots");
        assert_eq!(paths(lab, "s"), ["w2"]);
        assert_eq!(labels(lab, "s"), ["found-1"]);
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["restore", "s", "found-1"]).run().ok();
        assert_eq!(paths(lab, "s"), ["w1"]);
        // Back to a snapshot, and on from there: the sandbox has what was gone on with, and what was there
        // before has a label.
        lab.exec_script("s", "echo 3 > w3").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        let before = this_moment(lab);
        lab.skep(["restore", "s", "found-1"]).run().ok();
        lab.exec_script("s", "echo 4 > w4").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["snapshot", "s", "last"]).run().ok();
        lose(lab, &before);
        assert_eq!(paths(lab, "s"), ["w1", "w4"]);
        let found = labels(lab, "s");
        assert_eq!(found, ["found-1", "before-restore-1", "found-2"]);
        gc_takes_nothing(lab);
        lab.skep(["restore", "s", "found-2"]).run().ok();
        assert_eq!(paths(lab, "s"), ["w1", "w3"]);
    });
}

#[test]
fn store_2_a_fork_whose_row_was_lost_is_kept() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo 1 > w1").run().ok();
        lab.skep(["fork", "s", "--name", "f"]).run().ok();
        // What the fork stands on is nowhere else.
        lab.exec_script("s", "rm w1; echo 2 > w2").run().ok();
        lose_until_created(lab, "f");
        assert_eq!(paths(lab, "f"), ["w1"]);
        gc_takes_nothing(lab);
        // Of the next one not even a row is left: its directory stays, and what it stands on with it.
        lab.exec_script("s", "rm w2; echo 3 > w3").run().ok();
        lab.skep(["fork", "s", "--name", "g"]).run().ok();
        lab.exec_script("s", "rm w3").run().ok();
        lose(lab, "SELECT count(*) = 0 FROM sandboxes WHERE name = 'g'");
        let kept = entries(&lab.state.join("sandboxes")).len();
        gc_takes_nothing(lab);
        let layers = Tree::read(&lab.state.join("layers"));
        for name in ["s", "f"] {
            lab.skep(["rm", "--discard", name]).run().ok();
        }
        Tree::read(&lab.state.join("layers")).assert_equals(&layers, "a removal");
        let said = gc_takes_nothing(lab);
        assert!(said.contains("may stand on it"), "{said}");
        let left = entries(&lab.state.join("sandboxes"));
        assert_eq!((kept, left.len()), (3, 1), "{left:?}");
        // Whoever has looked at it removes it by hand; then layers go when they are an hour old.
        fs::remove_dir_all(&left[0]).unwrap();
        let said = gc_takes_nothing(lab);
        assert!(!said.contains("may stand on it") && said.contains("made just now"), "{said}");
    });
}

/// A fork that was never finished is no fork.
#[test]
fn a_fork_that_was_killed_before_its_row_is_torn_down() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo 1 > w1").run().ok();
        let fork = lab.skep(["fork", "s", "--name", "f"]);
        assert_ne!(fork.env("SKEP_FAILPOINT", "fork.made=kill").run().code(), 0);
        assert_eq!(lab.sandboxes().len(), 1);
        assert_eq!(entries(&lab.state.join("sandboxes")).len(), 1);
        assert_eq!(paths(lab, "s"), ["w1"]);
    });
}

#[test]
fn store_2_work_that_came_by_a_copy_or_an_upload_is_kept_with_a_row_of_before() {
    for_both(|lab| {
        let file = lab.write(lab.root.join("work"), "work\n");
        for driver in [None, Some("copy")] {
            let name = driver.unwrap_or("usual");
            let create = lab.skep(["create", name]);
            match driver {
                Some(driver) => create.env("SKEP_DRIVER", driver),
                None => create,
            }
            .run()
            .ok();
            lab.skep(["cp", file.to_str().unwrap(), &format!("{name}:by-copy")]).run().ok();
            lose_until_created(lab, name);
            assert_eq!(paths(lab, name), ["by-copy"], "{driver:?}");
            assert_eq!(lab.sandbox(name)["state"], "stopped");
        }
        let server = lab.serve(&[]);
        server.create("sent");
        let octets = "Content-Type: application/octet-stream";
        let put = ["-X", "PUT", "-H", octets, "-d", "work"];
        server.with(TOKEN, &put, "/v1/sandboxes/sent/files?path=by-upload").is(200);
        server.kill();
        lose_until_created(lab, "sent");
        assert_eq!(paths(lab, "sent"), ["by-upload"]);
        // The control: what nobody has put anything into is torn down.
        lab.create("empty");
        lose_until_created(lab, "empty");
        assert!(lab.sandboxes().iter().all(|one| one["name"] != "empty"));
    });
}
