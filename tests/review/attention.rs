//! An approval that an outage left half done and that meets the user's own edits: a person decides, and
//! whichever way it goes, both versions are kept.

use crate::harness::{Lab, for_both, wait_for};
use std::fs;
use std::path::{Path, PathBuf};

/// Killed after `a` was replaced and before `b` was; then the user edits both. Gives the approval.
fn half_done(lab: &Lab) -> String {
    lab.write("a", "a1\n");
    lab.write("b", "b1\n");
    lab.write("before", "1\n");
    lab.worked("first", "echo 2 > before");
    lab.approve(&["first"]);
    lab.worked("s", "echo a2 > a; echo b2 > b");
    let ran = lab.skep(["approve", "s"]).env("SKEP_FAILPOINT", "apply.published:1=kill").run();
    assert_ne!(ran.code(), 0, "{}", ran.describe());
    edit(lab);
    newest(lab, "needs_attention")
}

fn edit(lab: &Lab) {
    assert_eq!((lab.bytes("a"), lab.bytes("b")), (b"a2\n".to_vec(), b"b1\n".to_vec()));
    lab.write("a", "a2\nmine\n");
    lab.write("b", "b1\nmine\n");
}

#[track_caller]
fn newest(lab: &Lab, state: &str) -> String {
    let history = lab.skep(["history", "--json"]).run().ok().json();
    assert_eq!(history[0]["state"], state, "{history}");
    history[0]["approval"].as_str().unwrap().to_owned()
}

/// Where a note says that something is kept.
fn kept(notes: &str, path: &str) -> PathBuf {
    let mark = format!("what stood at `{path}` before the approval is kept: `");
    let at = notes.split_once(&mark).unwrap_or_else(|| panic!("no {mark}: {notes}")).1;
    Path::new(at.split_once('`').unwrap().0).to_owned()
}

#[test]
fn a_revert_keeps_what_stood_there_before() {
    for_both(|lab| {
        let id = half_done(lab);
        let told = lab.skep(["diff", "s"]).run().ok();
        assert!(told.text().contains(&format!("skep undo {id} --finish")), "{}", told.describe());
        // Nothing else is applied before it is settled.
        lab.inside("s", "echo more > c");
        for line in [&["approve", "s", "c"][..], &["approve", "s"]] {
            let ran = lab.without_effect(lab.skep(line));
            assert_eq!(ran.code(), 4, "{}", ran.describe());
            assert!(ran.errors().contains(&format!("skep undo {id}")), "{}", ran.describe());
        }
        // The newest is the one that is half done, not the one before it.
        let ran = lab.skep(["undo"]).run().ok();
        // Nothing was undone, so nothing is offered to be done again.
        assert!(!ran.errors().contains("undo the undo"), "{}", ran.describe());
        assert_eq!(lab.bytes("a"), b"a2\nmine\n");
        assert_eq!(lab.bytes("b"), b"b1\nmine\n");
        let kept = kept(&ran.errors(), "a");
        assert_eq!(fs::read(&kept).unwrap(), b"a1\n");
        assert_eq!(ran.errors().matches("is kept").count(), 1, "{}", ran.describe());
        assert!(!ran.errors().contains("0 paths"), "{}", ran.describe());
        assert_eq!(lab.bytes("before"), b"2\n");
        // It outlives the sandbox and its own row's end, as an undo's backups do.
        lab.skep(["rm", "--discard", "s"]).run().ok();
        lab.skep(["gc"]).run().ok();
        newest(lab, "aborted");
        assert_eq!(fs::read(&kept).unwrap(), b"a1\n");
    });
}

/// A revert that dies on its way is ended by the next, with the same result.
#[test]
fn a_revert_that_dies_keeps_what_stood_there_before() {
    for_both(|lab| {
        let id = half_done(lab);
        for point in ["apply.revert:1", "apply.publish_sync", "apply.backups"] {
            let fault = format!("{point}=kill");
            let ran = lab.skep(["undo", &id]).env("SKEP_FAILPOINT", fault).run();
            assert_ne!(ran.code(), 0, "{point}: {}", ran.describe());
            newest(lab, "needs_attention");
        }
        // What was decided stands, whatever is asked for now.
        let ran = lab.skep(["undo", &id, "--finish"]).run().ok();
        assert!(ran.errors().contains("taken back"), "{}", ran.describe());
        assert_eq!(lab.bytes("a"), b"a2\nmine\n");
        assert_eq!(fs::read(kept(&ran.errors(), "a")).unwrap(), b"a1\n");
        newest(lab, "aborted");
    });
}

#[test]
fn finishing_keeps_the_users_versions() {
    for_both(|lab| {
        let id = half_done(lab);
        let ran = lab.skep(["undo", &id, "--finish"]).run().ok();
        assert!(ran.errors().contains("is kept as the backup"), "{}", ran.describe());
        assert_eq!(lab.bytes("b"), b"b2\n");
        newest(lab, "applied");
        let backups = lab.state.join("approvals").join(&id).join("backups");
        let found = fs::read_dir(backups).unwrap().map(|entry| fs::read(entry.unwrap().path()));
        let found: Vec<Vec<u8>> = found.map(Result::unwrap).collect();
        for bytes in [b"a1\n".to_vec(), b"b1\nmine\n".to_vec()] {
            assert!(found.contains(&bytes), "{found:?}");
        }
    });
}

/// The database is brought back from a copy that was made before the commit point: it never heard of
/// the step that was made. The journal knows.
#[test]
fn a_database_that_is_behind_its_journal_asks_too() {
    for_both(|lab| {
        lab.write("a", "a1\n");
        lab.write("b", "b1\n");
        lab.worked("s", "echo a2 > a; echo b2 > b");
        let points = "apply.journal_written=stop;apply.published:1=kill";
        let mut child = lab.skep(["approve", "s"]).env("SKEP_FAILPOINT", points).spawn();
        let stopped = || crate::harness::outside::state_of(child.id()) == Some('T');
        wait_for("the stop before the commit point", 20, || stopped().then_some(()));
        let names = ["skep.db", "skep.db-wal"];
        let copies = names.map(|name| fs::read(lab.state.join(name)).ok());
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        drop(child.stdin.take());
        assert!(!child.wait().unwrap().success());
        for (name, copy) in names.iter().zip(copies) {
            let path = lab.state.join(name);
            match copy {
                // The same file: its owner and mode are not this test's to choose.
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => drop(fs::remove_file(path)),
            }
        }
        let _ = fs::remove_file(lab.state.join("skep.db-shm"));
        edit(lab);
        let id = newest(lab, "needs_attention");
        let ran = lab.skep(["undo", &id]).run().ok();
        assert_eq!((lab.bytes("a"), lab.bytes("b")), (b"a2\nmine\n".into(), b"b1\nmine\n".into()));
        assert_eq!(fs::read(kept(&ran.errors(), "a")).unwrap(), b"a1\n");
        newest(lab, "aborted");
    });
}
