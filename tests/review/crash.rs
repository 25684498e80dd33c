//! Killed, out of space or out of luck at any point: the project is as before or as after, never a
//! mix; nothing approved and nothing unreviewed is lost; the next command settles what was left.

use super::desk::paths;
use crate::harness::{Call, Lab, Ran, Tree, for_both, long, wait_for};
use serde_json::Value;
use std::fs;

/// Every failpoint that an approval or an undo passes. `every_failpoint_is_swept` holds it to the
/// source.
const APPLY: [&str; 15] = [
    "apply.staging_made",
    "apply.staged",
    "apply.synced",
    "apply.journal_unsynced",
    "apply.journal_synced",
    "apply.journal_written",
    "approve.committed",
    "apply.publish",
    "apply.looked",
    "apply.published",
    "apply.publish_sync",
    "apply.done",
    "apply.backups",
    "apply.backups_copied",
    "approve.published",
];

/// After the project and the bases are changed, before the row says so.
const LATE: [&str; 1] = ["approve.settled"];

const RECOVERY: [&str; 6] = [
    "recover.start",
    "recover.removed",
    "recover.finish",
    "recover.clean",
    "recover.take_back",
    "recover.forward",
];

/// A project, a sandbox that changed everything about it, and both states.
pub(super) struct Scene<'a> {
    pub(super) lab: &'a Lab,
    pub(super) before: Tree,
    pub(super) after: Tree,
    digest: Value,
}

impl<'a> Scene<'a> {
    pub(super) fn new(lab: &'a Lab) -> Self {
        lab.write("text", (0..40).map(|n| format!("{n}\n")).collect::<String>());
        lab.write("deleted", "deleted\n");
        lab.write("dir/deleted/a", "a\n");
        lab.write("becomes-dir", "file\n");
        lab.write("becomes-link", "file\n");
        lab.write("mode", "x\n");
        lab.directory("empty");
        lab.worked(
            "s",
            "sed -i 's/^5$/five/' text; rm deleted; rm -r dir/deleted; rm becomes-dir; \
             mkdir becomes-dir; echo y > becomes-dir/y; ln -sf text becomes-link; chmod 755 mode; \
             rmdir empty; mkdir -p new/deep; echo n > new/deep/n",
        );
        let (before, digest) = (lab.tree(), lab.diff("s")["digest"].clone());
        lab.approve(&["s"]);
        let after = lab.tree();
        let scene = Self { lab, before, after, digest };
        lab.skep(["undo"]).run().ok();
        scene.settled("the scene");
        scene
    }

    pub(super) fn approve(&self) -> Call {
        self.lab.skep(["approve", "s", "--json"])
    }

    /// Directly after a call that was not killed.
    #[track_caller]
    pub(super) fn whole(&self, ran: &Ran, goal: &Tree, what: &str) {
        let now = self.lab.tree();
        if ran.code() == 0 {
            now.assert_equals(goal, &format!("{what}: success was reported"));
        } else if now != self.before && now != self.after {
            now.assert_equals(&self.before, &format!("{what}: {}", ran.describe()));
        }
    }

    /// After the next command: one of both states, nothing beside the project, a change set that
    /// fits, a history without loose ends. Gives whether it is the state after.
    #[track_caller]
    pub(super) fn settled(&self, what: &str) -> bool {
        let lab = self.lab;
        let diff = lab.diff("s");
        let now = lab.tree();
        if now != self.before && now != self.after {
            panic!(
                "{what}: neither before nor after.\nagainst before:\n{}\nagainst after:\n{}",
                now.differences(&self.before).join("\n"),
                now.differences(&self.after).join("\n"),
            );
        }
        let is_after = now == self.after;
        if is_after {
            assert_eq!(paths(&diff), [""; 0], "{what}: approved, and yet pending");
        } else {
            assert_eq!(diff["digest"], self.digest, "{what}: unreviewed work was lost");
        }
        let beside: Vec<_> = fs::read_dir(&lab.root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_string_lossy().starts_with(".skep"))
            .collect();
        // Backups of what can still be undone may stay, staging may not.
        assert!(
            beside.iter().all(|name| !name.to_string_lossy().contains("stag")),
            "{what}: left beside the project: {beside:?}"
        );
        is_after
    }

    /// Back to the start for the next fault.
    #[track_caller]
    pub(super) fn rewind(&self, what: &str) {
        if self.settled(what) {
            let ran = self.lab.skep(["undo"]).run();
            assert_eq!(ran.code(), 0, "{what}: {}", ran.describe());
            self.lab.tree().assert_equals(&self.before, &format!("{what}: undone"));
        }
    }

    /// At the end: no approval is left half way.
    #[track_caller]
    pub(super) fn closed(&self) {
        let history = self.lab.skep(["history", "--json"]).run().ok().json();
        for row in history.as_array().unwrap() {
            let state = row["state"].as_str().unwrap();
            assert!(["applied", "aborted", "undone"].contains(&state), "{row}");
        }
    }
}

/// Each passing of each point, with each action, on the way there (an approval) or back (an undo).
/// The first passings only in the short run.
fn sweep(scene: &Scene<'_>, back: bool) -> usize {
    let mut faults = 0;
    let actions: &[(&str, usize)] = if long() {
        &[("kill", usize::MAX), ("eio", usize::MAX), ("enospc", usize::MAX)]
    } else {
        &[("kill", 3), ("eio", 2)]
    };
    for (action, most) in actions {
        for name in APPLY.into_iter().chain(LATE) {
            for nth in 1..=*most {
                let what = format!("{name}:{nth}={action} (back: {back})");
                if back {
                    scene.approve().run().ok();
                }
                let call = if back { scene.lab.skep(["undo", "--json"]) } else { scene.approve() };
                let ran = call.env("SKEP_FAILPOINT", format!("{name}:{nth}={action}")).run();
                let goal = if back { &scene.before } else { &scene.after };
                if *action != "kill" {
                    scene.whole(&ran, goal, &what);
                }
                scene.rewind(&what);
                // Success: the point is not passed that often.
                if ran.code() == 0 {
                    break;
                }
                faults += 1;
            }
        }
    }
    scene.closed();
    faults
}

#[test]
fn heavy_crash_2_approve_is_all_or_nothing_at_every_failpoint() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        let faults = sweep(&scene, false);
        println!("{faults} faults");
        assert!(faults > 30, "{faults}: the sweep does not reach what it names");
    });
}

#[test]
fn heavy_crash_3_undo_is_all_or_nothing_at_every_failpoint() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        let faults = sweep(&scene, true);
        println!("{faults} faults");
        assert!(faults > 30, "{faults}: the sweep does not reach what it names");
    });
}

#[test]
fn heavy_crash_4_recovery_survives_its_own_death() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        let mut deaths = 0;
        let short: &[(&str, usize)] = &[
            ("apply.staged", 3),
            ("approve.committed", 1),
            ("apply.published", 4),
            ("approve.published", 1),
        ];
        let all: &[(&str, usize)] = &[
            ("apply.staging_made", 1),
            ("apply.staged", 3),
            ("apply.journal_unsynced", 1),
            ("apply.journal_written", 1),
            ("approve.committed", 1),
            ("apply.publish", 1),
            ("apply.published", 4),
            ("apply.publish_sync", 1),
            ("apply.done", 1),
            ("apply.backups", 1),
            ("approve.published", 1),
            ("approve.settled", 1),
        ];
        let (points, more) = if long() { (all, APPLY.len()) } else { (short, 0) };
        let actions: &[&str] = if long() { &["kill", "eio"] } else { &["kill"] };
        let again = ["apply.publish", "apply.published", "apply.done", "approve.settled"];
        let steps = RECOVERY.into_iter().chain(again).chain(APPLY.into_iter().take(more));
        for (name, nth) in points {
            for recovery in steps.clone() {
                for action in actions {
                    let what = format!("{name}:{nth}=kill, then {recovery}={action} three times");
                    let fault = format!("{name}:{nth}=kill");
                    assert_ne!(scene.approve().env("SKEP_FAILPOINT", fault).run().code(), 0);
                    for round in 1..=3 {
                        let fault =
                            format!("{recovery}:{}={action}", if long() { round } else { 1 });
                        let ran = lab.skep(["ls"]).env("SKEP_FAILPOINT", fault).run();
                        if ran.code() == 0 {
                            break;
                        }
                        deaths += 1;
                    }
                    scene.rewind(&what);
                }
            }
        }
        println!("{deaths} recoveries ended before their end");
        scene.closed();
        assert!(deaths > 10, "{deaths}");
    });
}

#[test]
fn crash_4_a_damaged_journal_is_not_believed() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        for point in ["apply.journal_written", "approve.committed"] {
            for damage in ["truncate", "flip", "empty"] {
                let what = format!("{point}, {damage}");
                let fault = format!("{point}=kill");
                assert_ne!(scene.approve().env("SKEP_FAILPOINT", fault).run().code(), 0);
                let journals = newest_journals(lab);
                assert!(!journals.is_empty(), "{what}");
                for journal in &journals {
                    let mut bytes = fs::read(journal).unwrap();
                    match damage {
                        "truncate" => bytes.truncate(bytes.len() / 2),
                        "flip" => {
                            let at = bytes.len() / 3;
                            bytes[at] ^= 0x41;
                        }
                        _ => bytes.clear(),
                    }
                    fs::write(journal, bytes).unwrap();
                }
                // Nothing was published: whatever is decided, the project is as before, and skep
                // goes on working for everything else.
                let ran = lab.skep(["ls"]).run();
                lab.tree().assert_equals(&scene.before, &what);
                assert_eq!(ran.code(), 0, "{what}: {}", ran.describe());
                let other = lab.skep(["run", "--", "true"]).run();
                assert_eq!(other.code(), 0, "{what}: {}", other.describe());
                lab.tree().assert_equals(&scene.before, &what);
                assert_eq!(lab.diff("s")["digest"], scene.digest, "{what}");
                let history = lab.skep(["history", "--json"]).run().ok().json();
                if history[0]["state"] == "needs_attention" {
                    // Neither way can be gone by a journal that says nothing; the third can.
                    let id = history[0]["approval"].as_str().unwrap();
                    let ran = lab.skep(["undo", id]).run();
                    assert_eq!(ran.code(), 1, "{what}: {}", ran.describe());
                    assert!(ran.errors().contains("--abandon"), "{}", ran.describe());
                    let ran = lab.skep(["undo", id, "--abandon"]).run().ok();
                    assert!(ran.errors().contains("kept:"), "{}", ran.describe());
                    lab.tree().assert_equals(&scene.before, &what);
                    let again = lab.skep(["undo", id, "--abandon"]).run();
                    assert_eq!(again.code(), 4, "{}", again.describe());
                }
                let ran = scene.approve().run();
                assert_eq!(ran.code(), 0, "{what}: {}", ran.describe());
                lab.tree().assert_equals(&scene.after, &what);
                lab.skep(["undo"]).run().ok();
            }
        }
    });
}

/// The journal files of the newest approval.
fn newest_journals(lab: &Lab) -> Vec<std::path::PathBuf> {
    let newest = fs::read_dir(lab.state.join("approvals"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .max_by_key(|entry| entry.metadata().unwrap().modified().unwrap())
        .unwrap();
    fs::read_dir(newest.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && path.to_string_lossy().contains("journal"))
        .collect()
}

#[test]
fn crash_2_processes_inside_go_on_after_a_killed_approve() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.up("s");
        lab.inside("s", "echo new > f");
        let count = "n=0; while :; do n=$((n+1)); echo $n > /tmp/count.new; mv /tmp/count.new /tmp/count; done";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", count]).run().ok();
        for point in ["apply.staged", "apply.published", "approve.settled"] {
            let fault = format!("{point}=kill");
            let ran = lab.skep(["approve", "s"]).env("SKEP_FAILPOINT", fault).run();
            assert_ne!(ran.code(), 0, "{}", ran.describe());
            lab.skep(["ls"]).run().ok();
            let look = || lab.skep(["exec", "s", "--", "cat", "/tmp/count"]).run().ok().text();
            let first =
                wait_for("the first count", 10, || Some(look()).filter(|text| !text.is_empty()));
            wait_for(&format!("work to go on after {point}"), 10, || {
                (look() != first).then_some(())
            });
            let _ = lab.skep(["undo"]).run();
        }
    });
}

#[test]
fn diff_8_a_save_between_look_and_publish_is_kept() {
    for_both(|lab| {
        lab.write("a", "old\n");
        lab.write("f", "old\n");
        lab.worked("s", "echo new > a; echo new > f");
        let before = lab.tree();
        for round in 1..=2 {
            for point in [format!("apply.looked:{round}"), format!("apply.publish:{round}")] {
                for edit in ["edit", "replace", "delete"] {
                    let fault = format!("{point}=stop");
                    let call = lab.skep(["approve", "s", "--json"]).env("SKEP_FAILPOINT", fault);
                    let mut child = call.spawn();
                    let pid = child.id();
                    wait_for("the stop", 10, || is_stopped(pid).then_some(()));
                    match edit {
                        "edit" => drop(lab.write("f", "the user's\n")),
                        "replace" => {
                            lab.write("f.new", "the user's\n");
                            fs::rename(lab.project.join("f.new"), lab.project.join("f")).unwrap();
                        }
                        _ => fs::remove_file(lab.project.join("f")).unwrap(),
                    }
                    rustix::process::kill_process(
                        rustix::process::Pid::from_raw(pid as i32).unwrap(),
                        rustix::process::Signal::CONT,
                    )
                    .unwrap();
                    drop(child.stdin.take());
                    let output = child.wait_with_output().unwrap();
                    let what = format!(
                        "{point}, {edit}: {:?} {}",
                        output.status,
                        String::from_utf8_lossy(&output.stderr)
                    );
                    let now = fs::read_to_string(lab.project.join("f")).ok();
                    let users = (edit != "delete").then(|| "the user's\n".to_owned());
                    if output.status.success() {
                        // The edit came after the exchange: then it is the user's last word, or it
                        // hit the old file and is in the backup, which is said.
                        let said = String::from_utf8_lossy(&output.stdout).contains("backup");
                        assert!(now == users || said, "{what}: {now:?}");
                    } else {
                        assert_eq!(output.status.code(), Some(4), "{what}");
                        assert_eq!(now, users, "{what}");
                        let text = fs::read_to_string(lab.project.join("a")).unwrap();
                        assert_eq!(text, "old\n", "{what}: all or nothing");
                    }
                    if output.status.success() {
                        let _ = lab.skep(["undo"]).run();
                    }
                    lab.write("a", "old\n");
                    lab.write("f", "old\n");
                    lab.tree().assert_equals(&before, &what);
                }
            }
        }
    });
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[test]
fn every_failpoint_is_swept() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for rest in text.split("failpoint::hit(\"").skip(1) {
                found.push(rest.split('"').next().unwrap().to_owned());
            }
        }
    }
    let ours = ["apply.", "approve.", "recover."];
    // Only reached when a revert or a repair goes on, which the faults above lead to.
    let indirect = ["apply.revert"];
    for name in found.iter().filter(|name| ours.iter().any(|start| name.starts_with(start))) {
        let swept = APPLY.iter().chain(&LATE).chain(&RECOVERY).chain(&indirect);
        assert!(swept.clone().any(|one| one == name), "`{name}` is not swept");
    }
}
