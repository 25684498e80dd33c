//! Files that left the sandbox with a restore and came again, and those that came after the user had edited
//! them: their copies have the user's newer lines, which are not the agent's.

use super::desk::{drift, paths, repository};
use crate::harness::{Lab, for_both, wait_for};
use std::fs;

/// Sixty lines, some of them edited.
fn numbered(edits: &[(usize, &str)]) -> String {
    let line = |n: usize| match edits.iter().find(|(at, _)| *at == n) {
        Some((_, text)) => format!("{text}\n"),
        None => format!("{n}\n"),
    };
    (1..=60).map(line).collect()
}

const FIRST: (usize, &str) = (25, "first");
const USERS: (usize, &str) = (35, "USER");
const AGENTS: (usize, &str) = (45, "agent");

/// A sandbox that is back at its snapshot `before`, in which `f` was not edited yet; and with `approved`, what
/// was edited since is in the project.
fn gone_back(lab: &Lab, approved: bool) {
    let _ = fs::remove_dir_all(&lab.project);
    lab.write("f", numbered(&[]));
    lab.create("s");
    lab.skep(["snapshot", "s", "before"]).run().ok();
    lab.inside("s", "sed -i 's/^25$/first/' f");
    if approved {
        lab.approve(&["s"]);
    }
    lab.skep(["snapshot", "s", "after"]).run().ok();
    lab.skep(["restore", "s", "before"]).run().ok();
}

/// Only this of `f` is shown as changed, and whatever is approved lands beside it.
fn shows_only(lab: &Lab, line: (usize, &str), what: &str) {
    let diff = lab.diff("s");
    assert_eq!(paths(&diff), ["f"], "{what}: {diff}");
    let added: Vec<_> = super::desk::hunks(&diff, Some("f"))
        .into_iter()
        .flat_map(|hunk| hunk.lines)
        .filter(|line| line.starts_with('+'))
        .collect();
    assert_eq!(added.len(), 1, "{what}: {diff}");
    assert!(added[0].contains(line.1), "{what}: {diff}");
}

/// The line that the user took back does not come back, whatever was known of the file before.
#[test]
fn a_file_that_comes_again_after_a_restore_brings_nothing_of_the_users_back() {
    for_both(|lab| {
        for approved in [false, true] {
            for rebase in [false, true] {
                let what = format!("approved {approved}, rebase {rebase}");
                let mut there = Vec::from_iter(approved.then_some(FIRST));
                gone_back(lab, approved);
                there.push(USERS);
                lab.write("f", numbered(&there));
                if rebase {
                    lab.skep(["rebase", "s"]).run().ok();
                }
                lab.inside("s", "sed -i 's/^45$/agent/' f");
                shows_only(lab, AGENTS, &what);
                there.pop();
                lab.write("f", numbered(&there));
                shows_only(lab, AGENTS, &what);
                lab.approve(&["s"]);
                there.push(AGENTS);
                assert_eq!(lab.bytes("f"), numbered(&there).as_bytes(), "{what}");
                lab.skep(["rm", "--discard", "s"]).run().ok();
            }
        }
    });
}

/// Forth again: the state that has the file has its base, and what is edited there is merged.
#[test]
fn a_file_that_is_back_with_a_later_state_has_the_base_of_that_state() {
    for_both(|lab| {
        for approved in [false, true] {
            for from in [&["restore", "s", "after"][..], &["create", "t", "--from", "s:after"]] {
                gone_back(lab, approved);
                let mut there = Vec::from_iter(approved.then_some(FIRST));
                there.push(USERS);
                lab.write("f", numbered(&there));
                lab.inside("s", "sed -i 's/^45$/agent/' f");
                lab.skep(from).run().ok();
                let name = from[1];
                let diff = lab.diff(name);
                let pending: &[&str] = if approved { &[] } else { &["f"] };
                assert_eq!(paths(&diff), pending, "{from:?}: {diff}");
                assert!(!diff["changes"].to_string().contains("USER"), "{from:?}: {diff}");
                lab.approve(&[name]);
                assert_eq!(lab.bytes("f"), numbered(&[FIRST, USERS]).as_bytes(), "{from:?}");
                for name in ["s", "t"] {
                    lab.skep(["rm", "--discard", name]).run();
                }
            }
        }
    });
}

/// Who read the file before the user edited it, and writes what it knew, takes nothing of the user's away.
#[test]
fn a_stale_write_after_a_restore_reverts_nothing_of_the_users() {
    for_both(|lab| {
        gone_back(lab, false);
        lab.write("f", numbered(&[USERS]));
        let stale = numbered(&[AGENTS]);
        let call = lab.skep(["exec", "-i", "s", "--", "sh", "-c", "cat > f"]);
        call.input(stale).run().ok();
        shows_only(lab, AGENTS, "stale");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[USERS, AGENTS]).as_bytes());
    });
}

/// What is merged by nobody stays a conflict when the user takes the own side away.
#[test]
fn a_file_of_the_users_under_a_name_that_left_is_never_the_agents() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["snapshot", "s", "before"]).run().ok();
        lab.inside("s", "echo agents > new");
        lab.skep(["restore", "s", "before"]).run().ok();
        lab.write("new", numbered(&[USERS]));
        lab.inside("s", "sed -i 's/^45$/agent/' new");
        lab.conflicts(&["s"]);
        fs::remove_file(lab.project.join("new")).unwrap();
        assert_eq!(drift(&lab.diff("s")), [("new".to_owned(), false)]);
        lab.conflicts(&["s"]);
    });
}

/// Without any restore, where git knows the file as it was at create.
#[test]
fn a_file_that_git_knew_and_the_user_edited_first_brings_nothing_of_the_users_back() {
    for_both(|lab| {
        lab.write("f", numbered(&[]));
        repository(lab);
        // Git holds a file for clean only if it is older than the list of them.
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "100"]).run().ok();
        let noted = || {
            let found = fs::read_dir(lab.state.join("sandboxes")).unwrap();
            found.flatten().find(|one| one.path().join("base/tracked").exists())
        };
        wait_for("the list of clean files", 30, noted);
        lab.write("f", numbered(&[USERS]));
        lab.inside("s", "sed -i 's/^45$/agent/' f");
        let diff = lab.diff("s");
        if drift(&diff).iter().any(|(_, merges)| !merges) {
            // Not noted as clean: a conflict, which reverts nothing either.
            return;
        }
        shows_only(lab, AGENTS, "as it came");
        lab.write("f", numbered(&[]));
        shows_only(lab, AGENTS, "taken back");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[AGENTS]).as_bytes());
    });
}
