//! Going back to a snapshot: what the user did since is the user's, in whatever state the sandbox is.

use super::desk::{drift, paths};
use crate::harness::{Lab, for_both};
use std::fs;

/// Sixty lines, some of them edited.
fn numbered(edits: &[(usize, &str)]) -> String {
    let line = |n: usize| match edits.iter().find(|(at, _)| *at == n) {
        Some((_, text)) => format!("{text}\n"),
        None => format!("{n}\n"),
    };
    (1..=60).map(line).collect()
}

const AGENTS: (usize, &str) = (10, "agent");
const USERS: (usize, &str) = (50, "USER");

/// A sandbox with a snapshot `first`: `f` was edited inside, `touched` only written as it was. Then the
/// user edits as well, and the sandbox takes that in.
fn taken_in(lab: &Lab, verb: &[&str], driver: Option<&str>, running: bool) {
    let _ = fs::remove_dir_all(&lab.project);
    for name in ["f", "touched"] {
        lab.write(name, numbered(&[]));
    }
    let create = lab.skep(["create", "s"]);
    match driver {
        Some(driver) => create.env("SKEP_DRIVER", driver),
        None => create,
    }
    .run()
    .ok();
    lab.inside("s", "sed -i 's/^10$/agent/' f; cat touched > t; cat t > touched; rm t");
    if !running {
        lab.skep(["stop", "s"]).run().ok();
    }
    lab.skep(["snapshot", "s", "first"]).run().ok();
    for name in ["f", "touched"] {
        lab.write(name, numbered(&[USERS]));
    }
    lab.skep(verb).run().ok();
}

/// Both sides are in the project when everything is approved, and nothing else was ever shown.
fn both_sides_land(lab: &Lab, name: &str, what: &str) {
    let diff = lab.diff(name);
    assert_eq!(paths(&diff), ["f"], "{what}: {diff}");
    assert!(!diff["changes"].to_string().contains("USER"), "{what}: {diff}");
    lab.approve(&[name]);
    assert_eq!(lab.bytes("f"), numbered(&[AGENTS, USERS]).as_bytes(), "{what}");
    assert_eq!(lab.bytes("touched"), numbered(&[USERS]).as_bytes(), "{what}");
}

fn drop_all(lab: &Lab, names: &[&str]) {
    for name in names {
        lab.skep(["rm", "--discard", name]).run().ok();
    }
}

#[test]
fn a_state_from_before_a_rebase_reverts_nothing_of_the_users() {
    for_both(|lab| {
        for verb in [&["rebase", "s"][..], &["reject", "s", "f"]] {
            for (driver, running) in [(None, false), (None, true), (Some("copy"), false)] {
                let what = format!("{verb:?} {driver:?} {running}");
                taken_in(lab, verb, driver, running);
                lab.skep(["restore", "s", "first"]).run().ok();
                both_sides_land(lab, "s", &what);
                drop_all(lab, &["s"]);
            }
        }
    });
}

/// The other way: back to the state that has the user's lines, which the user then takes back.
#[test]
fn a_state_from_after_a_rebase_brings_nothing_back_that_the_user_took_back() {
    for_both(|lab| {
        for driver in [None, Some("copy")] {
            taken_in(lab, &["rebase", "s"], driver, false);
            lab.skep(["snapshot", "s", "second"]).run().ok();
            for name in ["f", "touched"] {
                lab.write(name, numbered(&[]));
            }
            lab.skep(["rebase", "s"]).run().ok();
            for _ in 0..2 {
                for label in ["second", "first", "second"] {
                    lab.skep(["restore", "s", label]).run().ok();
                    let diff = lab.diff("s");
                    assert_eq!(paths(&diff), ["f"], "{driver:?} {label}: {diff}");
                    let shown = diff["changes"].to_string();
                    assert!(!shown.contains("USER"), "{driver:?} {label}: {diff}");
                }
            }
            lab.approve(&["s"]);
            assert_eq!(lab.bytes("f"), numbered(&[AGENTS]).as_bytes(), "{driver:?}");
            assert_eq!(lab.bytes("touched"), numbered(&[]).as_bytes(), "{driver:?}");
            drop_all(lab, &["s"]);
        }
    });
}

/// A new sandbox from that snapshot, and one from a template of that time.
#[test]
fn a_sandbox_from_an_older_state_reverts_nothing_of_the_users() {
    for_both(|lab| {
        taken_in(lab, &["rebase", "s"], None, false);
        lab.skep(["create", "t", "--from", "s:first"]).run().ok();
        // What it comes from has its own.
        assert_eq!(drift(&lab.diff("s")), []);
        both_sides_land(lab, "t", "--from");
        lab.skep(["undo"]).run().ok();
        both_sides_land(lab, "s", "where it came from");
        drop_all(lab, &["t", "s"]);
    });
}

/// State and bases go back together, wherever a restore dies.
#[test]
fn crash_3_a_restore_that_dies_leaves_the_user_nothing_to_lose() {
    for_both(|lab| {
        for (driver, running) in [(None, false), (None, true), (Some("copy"), false)] {
            for point in ["restore.kept", "restore.noted", "restore.moved"] {
                if driver.is_some() && point == "restore.kept" {
                    continue;
                }
                for next in [&["diff", "s"][..], &["exec", "s", "--", "true"]] {
                    let what = format!("{driver:?} {running} {point} {next:?}");
                    taken_in(lab, &["rebase", "s"], driver, running);
                    let fault = format!("{point}=kill");
                    let ran =
                        lab.skep(["restore", "s", "first"]).env("SKEP_FAILPOINT", fault).run();
                    assert_ne!(ran.code(), 0, "{what}: {}", ran.describe());
                    lab.skep(next).run().ok();
                    both_sides_land(lab, "s", &what);
                    drop_all(lab, &["s"]);
                }
            }
        }
    });
}

/// An undo takes its own change out of the base, and leaves what a rebase brought in since.
#[test]
fn an_undo_after_a_rebase_makes_nothing_of_the_users_the_agents() {
    for_both(|lab| {
        lab.write("f", numbered(&[]));
        lab.worked("s", "sed -i 's/^10$/agent/' f");
        lab.approve(&["s"]);
        lab.write("f", numbered(&[AGENTS, USERS]));
        lab.skep(["rebase", "s"]).run().ok();
        // The user takes the edit back, and then the approval.
        lab.write("f", numbered(&[AGENTS]));
        lab.skep(["undo"]).run().ok();
        assert_eq!(lab.bytes("f"), numbered(&[]).as_bytes());
        let diff = lab.diff("s");
        assert_eq!(paths(&diff), ["f"]);
        assert!(!diff["changes"].to_string().contains("USER"), "{diff}");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[AGENTS]).as_bytes());
    });
}

/// An approval that is in a snapshot is undone, and then the project's newer state taken in: in the state
/// of the snapshot what was undone is pending, whatever it was.
#[test]
fn what_was_undone_before_a_rebase_is_pending_in_an_older_state() {
    for_both(|lab| {
        for driver in [None, Some("copy")] {
            let _ = fs::remove_dir_all(&lab.project);
            for name in ["f", "gone", "mode"] {
                lab.write(name, numbered(&[]));
            }
            lab.write("binary", b"\0old");
            let create = lab.skep(["create", "s"]);
            driver
                .into_iter()
                .fold(create, |call, driver| call.env("SKEP_DRIVER", driver))
                .run()
                .ok();
            lab.inside(
                "s",
                "sed -i 's/^10$/agent/' f; rm gone; chmod 755 mode; printf '\\0new' > binary; \
                 echo new > new",
            );
            let all = ["binary", "f", "gone", "mode", "new"];
            lab.approve(&["s"]);
            let approved = lab.tree();
            lab.skep(["snapshot", "s", "approved"]).run().ok();
            lab.skep(["undo"]).run().ok();
            for name in ["f", "mode"] {
                lab.write(name, numbered(&[USERS]));
            }
            lab.skep(["rebase", "s"]).run().ok();
            lab.skep(["restore", "s", "approved"]).run().ok();
            let diff = lab.diff("s");
            assert_eq!(paths(&diff), all, "{driver:?}: {diff}");
            assert!(!diff["changes"].to_string().contains("USER"), "{driver:?}: {diff}");
            lab.approve(&["s"]);
            assert_eq!(paths(&lab.diff("s")), [""; 0], "{driver:?}");
            assert_eq!(lab.bytes("f"), numbered(&[AGENTS, USERS]).as_bytes());
            lab.write("f", numbered(&[AGENTS]));
            assert_eq!(lab.bytes("mode"), numbered(&[USERS]).as_bytes());
            lab.write("mode", numbered(&[]));
            lab.tree().assert_equals(&approved, "what was approved first");
            drop_all(lab, &["s"]);
        }
    });
}

/// The same where the rebase came before the undo, and the base has the user's lines since.
#[test]
fn what_was_undone_after_a_rebase_is_pending_in_an_older_state() {
    for_both(|lab| {
        for redone in [false, true] {
            let _ = fs::remove_dir_all(&lab.project);
            lab.write("f", numbered(&[]));
            lab.create("s");
            lab.inside("s", "sed -i 's/^10$/agent/' f");
            lab.approve(&["s"]);
            lab.skep(["snapshot", "s", "approved"]).run().ok();
            lab.write("f", numbered(&[AGENTS, USERS]));
            lab.skep(["rebase", "s"]).run().ok();
            lab.write("f", numbered(&[AGENTS]));
            let undo = lab.skep(["undo", "--json"]).run().ok().json();
            if redone {
                lab.skep(["undo", undo["approval"].as_str().unwrap()]).run().ok();
            }
            lab.skep(["restore", "s", "approved"]).run().ok();
            let pending: &[&str] = if redone { &[] } else { &["f"] };
            let diff = lab.diff("s");
            assert_eq!(paths(&diff), pending, "{diff}");
            assert!(!diff["changes"].to_string().contains("USER"), "{diff}");
            lab.approve(&["s"]);
            assert_eq!(lab.bytes("f"), numbered(&[AGENTS]).as_bytes());
            drop_all(lab, &["s"]);
        }
    });
}

/// Back before a rebase and an approval, and then the approval is undone: the state of then has its base.
#[test]
fn an_undo_in_an_older_state_leaves_its_base_alone() {
    for_both(|lab| {
        for redone in [false, true] {
            taken_in(lab, &["rebase", "s"], None, false);
            lab.inside("s", "sed -i 's/^20$/more/' touched");
            let id = lab.approve(&["s", "touched"])["approval"].as_str().unwrap().to_owned();
            lab.skep(["restore", "s", "first"]).run().ok();
            let undo = lab.skep(["undo", &id, "--json"]).run().ok().json();
            let mut touched = vec![USERS];
            if redone {
                lab.skep(["undo", undo["approval"].as_str().unwrap()]).run().ok();
                touched.push((20, "more"));
            }
            let diff = lab.diff("s");
            assert_eq!(paths(&diff), ["f"], "{redone}: {diff}");
            lab.approve(&["s"]);
            assert_eq!(lab.bytes("touched"), numbered(&touched).as_bytes(), "{redone}");
            assert_eq!(lab.bytes("f"), numbered(&[AGENTS, USERS]).as_bytes(), "{redone}");
            drop_all(lab, &["s"]);
        }
    });
}

/// An approval is undone while the sandbox is in a state that has nothing of it: in the state that has it, it
/// is pending, and after the undo of the undo it is not.
#[test]
fn what_was_undone_in_another_state_is_pending_where_it_was_approved() {
    for_both(|lab| {
        for (redone, later) in [(false, false), (true, false), (false, true), (true, true)] {
            let what = format!("redone {redone}, rebased once more {later}");
            taken_in(lab, &["rebase", "s"], None, false);
            lab.skep(["snapshot", "s", "second"]).run().ok();
            let id = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
            let mut users = vec![USERS];
            if later {
                users.push((30, "MORE"));
                lab.write("f", numbered(&[&users[..], &[AGENTS]].concat()));
                lab.skep(["rebase", "s"]).run().ok();
                lab.skep(["snapshot", "s", "third"]).run().ok();
                lab.write("f", numbered(&[AGENTS, USERS]));
            }
            lab.skep(["restore", "s", "first"]).run().ok();
            let undo = lab.skep(["undo", &id, "--json"]).run().ok().json();
            if redone {
                lab.skep(["undo", undo["approval"].as_str().unwrap()]).run().ok();
            }
            lab.skep(["restore", "s", if later { "third" } else { "second" }]).run().ok();
            let diff = lab.diff("s");
            let pending: &[&str] = if redone { &[] } else { &["f"] };
            assert_eq!(paths(&diff), pending, "{what}: {diff}");
            let shown = diff["changes"].to_string();
            assert!(!shown.contains("USER") && !shown.contains("MORE"), "{what}: {diff}");
            lab.approve(&["s"]);
            assert_eq!(lab.bytes("f"), numbered(&[AGENTS, USERS]).as_bytes(), "{what}");
            drop_all(lab, &["s"]);
        }
    });
}

/// Back in a state that never had the change: neither the undo nor its undo give it something to remove.
#[test]
fn an_undo_of_an_undo_gives_an_older_state_nothing_to_remove() {
    for_both(|lab| {
        lab.write("f", numbered(&[]));
        lab.create("s");
        lab.inside("s", "sed -i 's/^10$/agent/' f");
        lab.approve(&["s"]);
        lab.skep(["snapshot", "s", "first"]).run().ok();
        lab.write("f", numbered(&[AGENTS, USERS]));
        lab.skep(["rebase", "s"]).run().ok();
        lab.inside("s", "sed -i 's/^30$/more/' f");
        let id = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        lab.skep(["restore", "s", "first"]).run().ok();
        assert_eq!(paths(&lab.diff("s")), [""; 0]);
        let undo = lab.skep(["undo", &id, "--json"]).run().ok().json();
        assert_eq!(paths(&lab.diff("s")), [""; 0]);
        lab.skep(["undo", undo["approval"].as_str().unwrap()]).run().ok();
        let diff = lab.diff("s");
        assert_eq!(paths(&diff), [""; 0], "{diff}");
        assert_eq!(lab.bytes("f"), numbered(&[AGENTS, (30, "more"), USERS]).as_bytes());
    });
}

/// A deletion that was approved on top of the user's lines is undone in a state without them.
#[test]
fn an_undone_deletion_gives_an_older_state_nothing_of_the_users_to_remove() {
    for_both(|lab| {
        taken_in(lab, &["rebase", "s"], None, false);
        lab.skep(["restore", "s", "first"]).run().ok();
        // The base of that state is settled.
        lab.approve(&["s"]);
        lab.skep(["snapshot", "s", "second"]).run().ok();
        let more = (30, "MORE");
        lab.write("f", numbered(&[AGENTS, more, USERS]));
        lab.skep(["rebase", "s"]).run().ok();
        lab.inside("s", "rm f");
        let id = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        lab.skep(["restore", "s", "second"]).run().ok();
        lab.skep(["undo", &id]).run().ok();
        let diff = lab.diff("s");
        assert!(!diff["changes"].to_string().contains("MORE"), "{diff}");
        lab.skep(["approve", "s"]).run();
        assert_eq!(lab.bytes("f"), numbered(&[AGENTS, more, USERS]).as_bytes());
    });
}

/// The user made the same change, and more: approved, it is no change any more.
#[test]
fn a_change_that_the_project_has_is_none_once_it_is_approved() {
    for_both(|lab| {
        for name in ["f", "g"] {
            lab.write(name, numbered(&[]));
        }
        lab.worked("s", "sed -i 's/^10$/agent/' f g");
        for name in ["f", "g"] {
            lab.write(name, numbered(&[AGENTS, USERS]));
        }
        let before = lab.tree();
        let report = lab.approve(&["s", "f"]);
        assert!(report["notes"].to_string().contains("has that change already"), "{report}");
        assert_eq!(paths(&lab.diff("s")), ["g"]);
        lab.approve(&["s"]);
        assert_eq!(paths(&lab.diff("s")), [""; 0]);
        lab.tree().assert_equals(&before, "nothing was written");
        // It goes on from there.
        lab.inside("s", "sed -i 's/^20$/more/' f");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[AGENTS, (20, "more"), USERS]).as_bytes());
    });
}
