//! Snapshots, forks, templates and comparisons.

use super::desk::paths;
use crate::harness::{Lab, for_both, long, wait_for};
use serde_json::Value;

#[track_caller]
fn read(lab: &Lab, name: &str, path: &str) -> String {
    lab.skep(["exec", name, "--", "cat", path]).run().ok().text()
}

#[track_caller]
fn digest(lab: &Lab, name: &str) -> Value {
    lab.diff(name)["digest"].clone()
}

#[test]
fn a_snapshot_of_a_running_sandbox_leaves_everything_inside_alone() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.up("s");
        lab.inside("s", "echo first > f; echo mine > /tmp/t; echo x > /dev/shm/x");
        let keepers = lab.keepers();
        assert_eq!(keepers.len(), 1);
        lab.skep(["snapshot", "s", "one"]).run().ok();
        lab.skep(["fork", "s", "--name", "t"]).run().ok();
        assert_eq!(lab.keepers(), keepers, "it was started anew");
        assert_eq!(read(lab, "s", "/tmp/t"), "mine");
        assert_eq!(read(lab, "s", "/dev/shm/x"), "x");
        assert_eq!(digest(lab, "s"), digest(lab, "t"));
        lab.inside("s", "echo second > f");
        assert_eq!(read(lab, "t", "f"), "first");
        lab.skep(["restore", "s", "one"]).run().ok();
        assert_eq!(read(lab, "s", "f"), "first");
    });
}

#[test]
fn a_snapshot_while_a_process_writes_is_a_cut() {
    for_both(|lab| {
        lab.up("s");
        let write = "n=0; while :; do n=$((n+1)); echo $n > a.new; mv a.new a; echo $n > b.new; mv b.new b; done";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", write]).run().ok();
        wait_for("the first round", 20, || (!paths(&lab.diff("s")).is_empty()).then_some(()));
        // A shell that starts a program (by vfork) is stopped as well as any other.
        for _ in 0..10 {
            lab.diff("s");
        }
        for at in 0..3 {
            let fork = format!("t{at}");
            lab.skep(["fork", "s", "--name", &fork]).run().ok();
            let number = |path: &str| read(lab, &fork, path).parse::<u64>().unwrap();
            let (a, b) = (number("a"), number("b"));
            assert!(a == b || a == b + 1, "{a} and {b} were never there together");
        }
        let before = read(lab, "s", "b").parse::<u64>().unwrap();
        wait_for("it to go on", 20, || {
            (read(lab, "s", "b").parse::<u64>().unwrap() > before).then_some(())
        });
    });
}

#[test]
fn what_the_agent_has_shut_by_its_mode_is_in_snapshots_forks_and_templates() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.write("d/x", "x\n");
        lab.up("s");
        lab.inside("s", "chmod 000 f; chmod 644 d; mkdir -p n/m; echo q > n/m/q; chmod 000 n/m");
        let whole = digest(lab, "s");
        lab.skep(["snapshot", "s", "live"]).run().ok();
        lab.skep(["fork", "s", "--name", "t"]).run().ok();
        lab.skep(["template", "save", "s", "kept"]).run().ok();
        lab.skep(["create", "--from", "kept", "u"]).run().ok();
        for other in ["t", "u"] {
            assert_eq!(digest(lab, other), whole, "{other}");
            // Somebody goes on with it, after the modes were looked past.
            lab.inside(other, "chmod 755 n/m d; cat n/m/q d/x");
        }
        // The root itself, of one that runs and of one that does not.
        lab.inside("s", "echo more > more; chmod 000 .");
        let shut = digest(lab, "s");
        assert_ne!(shut, whole);
        lab.skep(["snapshot", "s", "root"]).run().ok();
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(digest(lab, "s"), shut);
        lab.skep(["snapshot", "s", "idle"]).run().ok();
        assert_eq!(digest(lab, "s"), shut);
        // Back, with the root as open as it was.
        lab.skep(["restore", "s", "live"]).run().ok();
        assert_eq!(digest(lab, "s"), whole);
        lab.inside("s", "ls n && echo again > again");
        lab.skep(["restore", "s", "root"]).run().ok();
        assert_eq!(digest(lab, "s"), shut);
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}

#[test]
fn forks_share_and_do_not_hurt_each_other() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.write("gone", "x\n");
        lab.write("dir/a", "a\n");
        lab.worked(
            "s",
            "echo new > f; rm gone; rm -r dir; mkdir dir; echo b > dir/b; ln -s f link",
        );
        let whole = digest(lab, "s");
        lab.skep(["fork", "s", "-n", "3"]).run().ok();
        let forks = ["s-1", "s-2", "s-3"];
        for fork in forks {
            assert_eq!(digest(lab, fork), whole, "{fork}");
        }
        lab.skep(["exec", "s-1", "--", "sh", "-c", "echo one > f; echo 1 > own"]).run().ok();
        lab.skep(["exec", "s-2", "--", "sh", "-c", "echo two > f"]).run().ok();
        assert_eq!(read(lab, "s", "f"), "new");
        assert_eq!(read(lab, "s-3", "f"), "new");
        // Side by side.
        let shown = lab.skep(["compare", "s-1", "s-2", "s-3", "--json"]).run().ok().json();
        let row = |path: &str| {
            let rows = shown["paths"].as_array().unwrap().iter();
            rows.clone().find(|row| row["path"] == path).unwrap_or(&Value::Null).clone()
        };
        assert_eq!(row("f")["collides"], true, "{shown}");
        assert_eq!(row("own")["collides"], false, "{shown}");
        assert_eq!(row("gone")["collides"], false, "{shown}");
        // The parent and a sibling go; the others stay whole, and can be approved.
        lab.skep(["rm", "--discard", "s"]).run().ok();
        lab.skep(["rm", "--discard", "s-2"]).run().ok();
        lab.skep(["gc"]).run().ok();
        assert_eq!(digest(lab, "s-3"), whole);
        lab.approve(&["s-3"]);
        assert_eq!(lab.bytes("f"), b"new\n");
        assert_eq!(lab.bytes("dir/b"), b"b\n");
        assert!(!lab.project.join("dir/a").exists() && !lab.project.join("gone").exists());
        // The sibling's other version of the same line is a conflict, not a reversal.
        lab.conflicts(&["s-1", "f"]);
        assert_eq!(lab.bytes("f"), b"new\n");
    });
}

#[test]
fn a_restore_keeps_the_present_and_templates_outlive_their_sandbox() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.worked("s", "echo one > f");
        lab.skep(["snapshot", "s", "one"]).run().ok();
        lab.skep(["exec", "s", "--", "sh", "-c", "echo two > f; echo n > n"]).run().ok();
        lab.skep(["restore", "s", "one"]).run().ok();
        assert_eq!(read(lab, "s", "f"), "one");
        assert_eq!(paths(&lab.diff("s")), ["f"]);
        let ran = lab.skep(["restore", "s", "none"]).run();
        assert_eq!(ran.code(), 3, "{}", ran.describe());
        assert!(ran.errors().contains("before-restore"), "{}", ran.describe());
        lab.skep(["restore", "s", "before-restore-1"]).run().ok();
        assert_eq!(read(lab, "s", "f"), "two");
        assert_eq!(paths(&lab.diff("s")), ["f", "n"]);
        lab.skep(["template", "save", "s", "base"]).run().ok();
        lab.skep(["rm", "--discard", "s"]).run().ok();
        lab.skep(["gc"]).run().ok();
        lab.skep(["create", "u", "--from", "base"]).run().ok();
        assert_eq!(read(lab, "u", "f"), "two");
        assert_eq!(paths(&lab.diff("u")), ["f", "n"]);
        lab.skep(["template", "rm", "base"]).run().ok();
        lab.skep(["gc"]).run().ok();
        assert_eq!(read(lab, "u", "n"), "n");
        assert_eq!(lab.skep(["create", "v", "--from", "base"]).run().code(), 3);
    });
}

/// Killed anywhere, the sandbox has its work, and the same command works afterwards.
#[test]
fn crash_3_a_snapshot_killed_at_every_step_loses_nothing() {
    for_both(|lab| {
        lab.write("f", "old\n");
        for point in ["freeze.intent", "freeze.moved", "freeze.upper", "freeze.row"] {
            for what in ["snapshot", "fork", "restore"] {
                lab.worked("s", "echo new > f; echo n > n");
                let whole = digest(lab, "s");
                if what == "restore" {
                    lab.skep(["snapshot", "s", "label"]).run().ok();
                    lab.skep(["exec", "s", "--", "sh", "-c", "echo more > m"]).run().ok();
                    lab.skep(["stop", "s"]).run().ok();
                }
                let before = digest(lab, "s");
                let line: &[&str] = match what {
                    "snapshot" => &["snapshot", "s", "label"],
                    "fork" => &["fork", "s", "--name", "t"],
                    _ => &["restore", "s", "label"],
                };
                let killed = lab.skep(line).env("SKEP_FAILPOINT", format!("{point}=kill")).run();
                assert_ne!(killed.code(), 0, "{point}, {what}");
                assert_eq!(digest(lab, "s"), before, "{point}, {what}");
                let again = lab.skep(line).run();
                assert_eq!(again.code(), 0, "{point}, {what}: {}", again.describe());
                assert_eq!(
                    digest(lab, if what == "fork" { "t" } else { "s" }),
                    whole,
                    "{point}, {what}"
                );
                for sandbox in lab.sandboxes() {
                    lab.skep(["rm", "--discard", sandbox["id"].as_str().unwrap()]).run().ok();
                }
            }
        }
    });
}

/// The kernel stacks five hundred layers at most.
#[test]
fn heavy_long_chains_are_flattened_before_the_kernels_limit() {
    if !long() {
        return println!("skipped: SKEP_TEST_LONG=1 runs it");
    }
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.worked("s", "echo 0 > f");
        for at in 1..=450 {
            lab.skep([
                "exec",
                "s",
                "--",
                "sh",
                "-c",
                &format!("echo {at} > f; echo {at} > n{at}; rm -f n{}", at - 3),
            ])
            .run()
            .ok();
            lab.skep(["stop", "s"]).run().ok();
            lab.skep(["snapshot", "s"]).run().ok();
        }
        assert_eq!(read(lab, "s", "f"), "450");
        assert_eq!(paths(&lab.diff("s")), ["f", "n448", "n449", "n450"]);
        lab.skep(["restore", "s", "snapshot-100"]).run().ok();
        assert_eq!(read(lab, "s", "f"), "100");
    });
}

#[test]
fn two_sandboxes_on_one_path_are_warned_of_early() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.write("g", "old\n");
        lab.worked("one", "echo one > f");
        lab.worked("two", "echo two > f; echo two > g");
        lab.worked("three", "echo three > other");
        for line in [&["ls", "--json"][..], &["show", "one", "--json"], &["diff", "one", "--json"]]
        {
            let text = lab.skep(line).run().ok().text();
            assert!(text.contains("two") && text.contains("`f`"), "{line:?}: {text}");
        }
        let seen = lab.skep(["diff", "one"]).run().ok();
        assert!(seen.text().contains("also touched `f`"), "{}", seen.describe());
        let list = lab.skep(["ls"]).run().ok().text();
        let warned: Vec<&str> = list.lines().filter(|line| line.starts_with('!')).collect();
        assert!(
            matches!(warned[..], [one] if one.starts_with("! `f`: changed differently in ")),
            "{list}"
        );
        let alone = lab.diff("three");
        assert_eq!(alone["warnings"].as_array().unwrap().len(), 0, "{alone}");
    });
}

#[test]
fn who_moves_a_file_away_is_warned_of_whoever_edits_it() {
    for_both(|lab| {
        lab.write("f", "1\n2\n3\n4\n5\n");
        lab.worked("mover", "mv f elsewhere");
        lab.worked("editor", "echo 6 >> f");
        for name in ["mover", "editor"] {
            for said in warnings(lab, name) {
                assert!(said.contains("also touched `f`"), "{name}: {said}");
            }
        }
    });
}

/// The warnings that `diff`, `show` and `ls` have of a sandbox.
fn warnings(lab: &Lab, name: &str) -> [String; 3] {
    let show = lab.skep(["show", name, "--json"]).run().ok().json();
    let list = lab.skep(["ls", "--json"]).run().ok().json();
    let listed = list.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    [&lab.diff(name), &show, listed].map(|one| one["warnings"].to_string())
}

/// What two have in common, or one has no longer to be decided on, cannot collide.
#[test]
fn what_is_the_same_or_approved_is_no_reason_to_warn() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.write("gone", "old\n");
        lab.write(".gitignore", "built/\n");
        let quiet = |names: &[&str]| {
            for name in names {
                assert_eq!(warnings(lab, name), ["[]"; 3], "{name}");
            }
        };
        let work = "echo one > f; echo new > n; rm gone; mkdir built; date +%N > built/o";
        lab.create("one");
        lab.exec_script("one", work).run().ok();
        lab.skep(["fork", "one", "--name", "running"]).run().ok();
        lab.skep(["stop", "one"]).run().ok();
        lab.skep(["fork", "one", "--name", "stopped"]).run().ok();
        // By itself it came to the same.
        lab.worked("alike", work);
        quiet(&["one", "running", "stopped", "alike"]);
        // One that goes on where another one stands still is another change.
        lab.exec_script("stopped", "echo more >> f").run().ok();
        for seen in warnings(lab, "one") {
            assert!(seen.contains("`stopped` also touched `f`\""), "{seen}");
            assert!(!seen.contains("alike") && !seen.contains("running"), "{seen}");
        }
        for name in ["running", "stopped", "alike"] {
            lab.skep(["rm", name, "--discard"]).run().ok();
        }
        lab.skep(["approve", "one", "f"]).run().ok();
        lab.worked("later", "echo later > f");
        quiet(&["one", "later"]);
        lab.skep(["approve", "later"]).run().ok();
        lab.worked("last", "echo last > f; echo last > n");
        for seen in warnings(lab, "last") {
            assert!(seen.contains("`one` also touched `n`\""), "{seen}");
            assert!(!seen.contains("`later`"), "{seen}");
        }
    });
}

/// Whoever removes a directory is at odds with whoever works in it.
#[test]
fn a_directory_that_one_removes_and_another_works_in_is_warned_of() {
    for_both(|lab| {
        lab.write("d/f", "old\n");
        lab.worked("removes", "rm -r d");
        lab.worked("works", "echo new > d/f");
        lab.worked("anew", "rm -r d; mkdir d; echo > d/other");
        for name in ["removes", "works", "anew"] {
            for seen in warnings(lab, name) {
                assert!(seen.contains("also touched `d"), "{name}: {seen}");
            }
        }
    });
}

/// Also where both have the directory by now.
#[test]
fn a_directory_that_one_makes_anew_and_another_works_in_is_warned_of() {
    for_both(|lab| {
        lab.write("d/f", "old\n");
        lab.write("d/below/g", "old\n");
        lab.write("apart/f", "old\n");
        lab.worked("works", "echo new > d/f; echo new > d/below/g; echo new > apart/f");
        lab.worked("anew", "rm -r d; mkdir d; echo > d/other; echo > apart/other");
        for name in ["works", "anew"] {
            for seen in warnings(lab, name) {
                assert!(seen.contains("also touched `d/below/g`, `d/f`\""), "{name}: {seen}");
            }
        }
    });
}

/// Whoever starts a keeper searches for secrets first.
#[test]
fn a_secret_that_came_meanwhile_is_hidden_after_a_restore() {
    for_both(|lab| {
        lab.write(".env", "OLD");
        lab.write("sub/plain", "x");
        lab.create("q");
        lab.exec_script("q", "echo 1 > one").run().ok();
        lab.skep(["snapshot", "q", "s1"]).run().ok();
        lab.exec_script("q", "echo 2 > two").run().ok();
        lab.write("sub/.env", "NEW");
        lab.skep(["restore", "q", "s1"]).run().ok();
        let seen = lab.exec_script("q", "cat sub/.env .env; true").run().ok();
        assert_eq!(seen.text(), "");
        let shown = lab.skep(["show", "q"]).run().ok().text();
        assert!(shown.contains("2 paths hidden"), "{shown}");
    });
}
