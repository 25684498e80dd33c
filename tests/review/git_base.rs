//! What git had clean at create is a base, also when nothing else tells it; what it had not is none.

use super::desk::drift;
use crate::harness::{Lab, for_both, wait_for};
use std::fs;

fn lines(edits: &[(usize, &str)]) -> String {
    let line = |n: usize| match edits.iter().find(|(at, _)| *at == n) {
        Some((_, text)) => format!("{text}\n"),
        None => format!("{n}\n"),
    };
    (1..=40).map(line).collect()
}

fn git(lab: &Lab, line: &[&str]) {
    let who = ["-c", "user.name=t", "-c", "user.email=t@t"];
    lab.program("git").args(who).args(line).run().ok();
}

/// A sandbox in which something runs for as long as it takes to note what git had clean.
fn noted(lab: &Lab) {
    lab.up("s");
    lab.skep(["exec", "-d", "s", "--", "sleep", "600"]).run().ok();
    let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
    let list = lab.state.join("sandboxes").join(id).join("base/tracked");
    wait_for("the list of clean files", 30, || list.exists().then_some(()));
}

/// The user edits line 5; then the agent writes a file it read long before, with line 30 changed.
fn stale_write(lab: &Lab, base: &[(usize, &str)]) {
    lab.write("f", lines(&[base, &[(5, "user")]].concat()));
    lab.tool("stale", lines(&[base, &[(30, "agent")]].concat()));
    lab.inside("s", "cat /tools/stale > f");
}

#[test]
fn diff_6_a_clean_file_is_merged_after_a_host_edit_before_the_stale_write() {
    for_both(|lab| {
        lab.write("f", lines(&[]));
        git(lab, &["init", "-q", "."]);
        git(lab, &["add", "f"]);
        git(lab, &["commit", "-qm", "one"]);
        noted(lab);
        stale_write(lab, &[]);
        assert_eq!(drift(&lab.diff("s")), [("f".to_owned(), true)]);
        lab.approve(&["s"]);
        assert_eq!(
            String::from_utf8(lab.bytes("f")).unwrap(),
            lines(&[(5, "user"), (30, "agent")])
        );
        lab.skep(["undo"]).run().ok();
        assert_eq!(String::from_utf8(lab.bytes("f")).unwrap(), lines(&[(5, "user")]));
        // The same lines on both sides stay a conflict, with all three sides to look at.
        lab.write("f", lines(&[(30, "user too")]));
        lab.conflicts(&["s"]);
        assert_eq!(String::from_utf8(lab.bytes("f")).unwrap(), lines(&[(30, "user too")]));
        // And the user's deletion is seen as one.
        fs::remove_file(lab.project.join("f")).unwrap();
        lab.conflicts(&["s"]);
    });
}

/// The commit's version is not what the sandbox started from: as a base it would revert the user.
#[test]
fn diff_6_a_file_dirty_at_create_never_takes_the_blob_for_its_base() {
    for_both(|lab| {
        lab.write("f", lines(&[(30, "agent"), (5, "user")]));
        lab.write("clean", "x\n");
        git(lab, &["init", "-q", "."]);
        git(lab, &["add", "."]);
        git(lab, &["commit", "-qm", "one"]);
        // Edited and not added; of the same size, too, and with an old time.
        lab.write("f", lines(&[(30, "AGENT"), (5, "USER")]));
        lab.program("touch").args(["-d", "2020-01-01", "f"]).run().ok();
        noted(lab);
        // The user goes back to the commit's line 5, the agent writes its stale file: with the blob
        // for a base nobody but the agent would have changed line 5.
        lab.write("f", lines(&[(30, "AGENT"), (5, "user")]));
        lab.tool("stale", lines(&[(30, "AGENT"), (5, "USER"), (20, "new")]));
        lab.inside("s", "cat /tools/stale > f");
        lab.conflicts(&["s"]);
        assert_eq!(
            String::from_utf8(lab.bytes("f")).unwrap(),
            lines(&[(30, "AGENT"), (5, "user")])
        );
    });
}

#[test]
fn diff_6_without_git_the_same_is_a_conflict() {
    for_both(|lab| {
        lab.write("f", lines(&[]));
        lab.up("s");
        stale_write(lab, &[]);
        lab.conflicts(&["s"]);
        assert_eq!(String::from_utf8(lab.bytes("f")).unwrap(), lines(&[(5, "user")]));
    });
}

/// Of a copy only hashes are kept at first. What the user edits before the sandbox does is gone from the
/// project by then: where the commit has the bytes with that hash, both sides are merged.
#[test]
fn a_copy_merges_what_the_commit_has() {
    for_both(|lab| {
        lab.write("f", lines(&[]));
        lab.write("dirty", lines(&[]));
        git(lab, &["init", "-q", "."]);
        git(lab, &["add", "f", "dirty"]);
        git(lab, &["commit", "-qm", "one"]);
        lab.write("dirty", lines(&[(1, "mine")]));
        lab.skep(["create", "s"]).env("SKEP_DRIVER", "copy").run().ok();
        lab.write("f", lines(&[(5, "user")]));
        lab.write("dirty", lines(&[(1, "mine"), (5, "user")]));
        lab.inside("s", "sed -i 's/^30$/agent/' f dirty");
        let expected = [("dirty".to_owned(), false), ("f".to_owned(), true)];
        assert_eq!(drift(&lab.diff("s")), expected);
        lab.approve(&["s", "f"]);
        let merged = lines(&[(5, "user"), (30, "agent")]);
        assert_eq!(String::from_utf8(lab.bytes("f")).unwrap(), merged);
        lab.conflicts(&["s", "dirty"]);
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}
