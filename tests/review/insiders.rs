//! Whoever is inside may know the project as it was earlier; and what a sandbox had once tells nothing of what it has
//! now.

use super::desk::{git, hunks, paths, repository};
use crate::harness::{Lab, for_both, wait_for};

pub(super) const LINES: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";

/// A script that goes on when a file is there.
pub(super) fn after(file: &str) -> String {
    format!("until test -e {file}; do sleep 0.02; done")
}

/// Long enough that the next command sees the project as it is.
pub(super) fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(300));
}

/// Asserts that approving everything is refused, and that the project stays as it is.
#[track_caller]
pub(super) fn is_refused(lab: &Lab) {
    let before = lab.tree();
    let refused = lab.skep(["approve", "s"]).run().exits(4);
    assert!(refused.errors().contains("conflict"), "{}", refused.describe());
    lab.tree().assert_equals(&before, "refused");
}

/// Starts somebody who reads `f` now, and writes it without what came since when told; then it does `more`. Its exec.
fn reader(lab: &Lab, more: &str) -> String {
    let script = format!(
        "cat f > /tmp/old; touch /tmp/read; {}; cat /tmp/old > f; {more}",
        after("/tmp/write")
    );
    let exec = lab.skep(["exec", "-d", "s", "--", "sh", "-c", &script]).run().ok().text();
    lab.inside("s", &after("/tmp/read"));
    exec.trim().to_owned()
}

/// The same, where git's list of clean files is made before the user goes on.
fn somebody_who_read(lab: &Lab) -> String {
    let stays = format!("echo A_2 >> f; touch /tmp/written; {}", after("/tmp/leave"));
    let exec = reader(lab, &stays);
    clean_files_are_listed(lab);
    exec
}

fn tell_to_write(lab: &Lab) {
    lab.inside("s", &format!("touch /tmp/write; {}", after("/tmp/written")));
}

/// Waits until it is noted which files git had clean.
pub(super) fn clean_files_are_listed(lab: &Lab) {
    let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
    let list = lab.state.join("sandboxes").join(id).join("base/tracked");
    wait_for("the list of clean files", 30, || list.exists().then_some(()));
}

#[test]
fn what_somebody_inside_knew_from_before_takes_no_line_of_yours_away() {
    for_both(|lab| {
        // What touches the file in between without changing it: a formatter, `skep cp`, a removal that is rejected.
        for between in ["formatter", "copy", "rejection"] {
            lab.write("f", LINES);
            lab.up("s");
            reader(lab, "echo A_1 >> f; touch /tmp/written; sleep 600");
            lab.write("f", format!("H_1\n{LINES}"));
            match between {
                "formatter" => drop(lab.inside("s", "sed -i s/nomatch/x/ f")),
                "copy" => drop(lab.skep(["cp", "f", "s:f"]).run().ok()),
                _ => {
                    lab.inside("s", "rm f");
                    lab.skep(["reject", "s", "f"]).run().ok();
                }
            }
            lab.inside("s", "true");
            assert!(lab.diff("s")["changes"].as_array().unwrap().is_empty(), "{between}");
            tell_to_write(lab);
            is_refused(lab);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn what_was_made_and_removed_inside_tells_nothing_of_what_you_make_there() {
    for_both(|lab| {
        lab.write("k", "k\n");
        lab.up("s");
        // A file, and a directory with one.
        lab.inside("s", "echo A_0 > f; mkdir n; echo A_0 > n/a");
        lab.inside("s", "rm -r f n");
        lab.write("f", "H_1\n");
        lab.write("n/b", "H_2\n");
        pause();
        lab.inside("s", "cat f n/b; echo A_1 >> f; echo A_1 >> n/b");
        assert_eq!(paths(&lab.diff("s")), ["f", "n/b"]);
        std::fs::remove_file(lab.project.join("f")).unwrap();
        std::fs::remove_dir_all(lab.project.join("n")).unwrap();
        is_refused(lab);
        lab.skep(["rm", "--discard", "s"]).run().ok();
        // Made again inside where you have nothing, it is as new as it was.
        lab.up("s");
        lab.inside("s", "echo A_0 > g");
        lab.inside("s", "rm g");
        lab.inside("s", "echo A_1 > g");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("g"), b"A_1\n");
    });
}

/// Nothing is left in the sandbox, and who looked is gone.
#[test]
fn what_was_made_and_removed_by_an_earlier_keeper_tells_no_more() {
    for_both(|lab| {
        lab.write("k", "k\n");
        lab.up("s");
        lab.inside("s", "echo A_0 > f; sleep 0.1");
        lab.inside("s", "rm f");
        lab.skep(["stop", "s"]).run().ok();
        lab.write("f", "H_1\n");
        lab.skep(["start", "s"]).run().ok();
        lab.inside("s", "grep -q H_1 f && echo A_1 >> f");
        std::fs::remove_file(lab.project.join("f")).unwrap();
        is_refused(lab);
    });
}

#[test]
fn an_approved_file_that_was_removed_on_both_sides_and_made_anew_by_you_is_yours() {
    for_both(|lab| {
        lab.up("s");
        lab.inside("s", "printf 'A_0\\n1\\n2\\n3\\n4\\n5\\n' > f");
        lab.approve(&["s"]);
        let approved = lab.bytes("f");
        std::fs::remove_file(lab.project.join("f")).unwrap();
        pause();
        lab.inside("s", "rm f");
        lab.write("f", "H_1\n1\n2\n3\n4\n5\n");
        pause();
        lab.inside("s", "grep -q H_1 f && echo A_1 >> f");
        // And back to what was approved.
        lab.write("f", approved);
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), b"A_0\n1\n2\n3\n4\n5\nA_1\n");
    });
}

/// Both build into a directory of the same name, and the user clears theirs away.
#[test]
fn what_the_sandbox_made_first_stays_its_own() {
    for_both(|lab| {
        for theirs in ["H_1\n", "A_1\n"] {
            lab.up("s");
            lab.inside("s", "mkdir n; echo A_1 > n/a");
            pause();
            lab.write("n/a", theirs);
            lab.inside("s", "echo A_2 > n/b");
            std::fs::remove_dir_all(lab.project.join("n")).unwrap();
            assert_eq!(paths(&lab.diff("s")), ["n/a", "n/b"]);
            lab.approve(&["s"]);
            assert_eq!((lab.bytes("n/a"), lab.bytes("n/b")), (b"A_1\n".into(), b"A_2\n".into()));
            std::fs::remove_dir_all(lab.project.join("n")).unwrap();
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn a_file_that_was_removed_on_both_sides_and_made_anew_by_you_is_yours() {
    for_both(|lab| {
        lab.write("f", format!("H_1\n{LINES}"));
        lab.up("s");
        lab.inside("s", "echo A_0 >> f");
        std::fs::remove_file(lab.project.join("f")).unwrap();
        pause();
        lab.inside("s", "rm f");
        lab.write("f", format!("H_2\n{LINES}"));
        pause();
        lab.inside("s", "grep -q H_2 f && echo A_1 >> f");
        // And back to the first.
        lab.write("f", format!("H_1\n{LINES}"));
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), format!("H_1\n{LINES}A_1\n").as_bytes());
    });
}

#[test]
fn what_you_make_among_a_thousand_new_files_is_yours() {
    for_both(|lab| {
        lab.write("d/x", "x\n");
        lab.up("s");
        lab.inside("s", "i=0; while [ $i -lt 1100 ]; do : > d/n$i; i=$((i+1)); done");
        lab.write("d/f", "H_1\n");
        pause();
        lab.inside("s", "cat d/f; echo A_1 >> d/f");
        std::fs::remove_file(lab.project.join("d/f")).unwrap();
        lab.skep(["approve", "s", "d/f"]).run().exits(4);
        assert!(!lab.project.join("d/f").exists());
        lab.approve(&["s", "d/n1", "d/n2"]);
    });
}

#[test]
fn a_rejection_beside_a_running_command_removes_nothing_of_yours_and_brings_nothing_back() {
    for_both(|lab| {
        for base in ["nothing", "unknown"] {
            lab.up("s");
            lab.skep(["exec", "-d", "s", "--", "sleep", "600"]).run().ok();
            lab.inside("s", "true");
            if base == "unknown" {
                lab.write("a", "H_0\n");
                pause();
                lab.inside("s", "echo A_1 >> a");
            } else {
                lab.inside("s", "echo A_1 > a");
            }
            lab.write("a", "H_1\n");
            lab.skep(["reject", "s", "a"]).run().ok().says("nothing is left in s");
            let diff = lab.diff("s");
            assert!(
                paths(&diff).is_empty() && diff["conflicts"].as_array().unwrap().is_empty(),
                "{diff}"
            );
            // What you do there is no change of the sandbox's.
            lab.write("a", "H_2\n");
            assert!(paths(&lab.diff("s")).is_empty(), "{base}: edited");
            std::fs::remove_file(lab.project.join("a")).unwrap();
            assert!(paths(&lab.diff("s")).is_empty(), "{base}: removed");
            lab.skep(["rm", "s"]).run().ok();
        }
    });
}

#[test]
fn what_a_command_has_just_changed_is_looked_at_when_it_is_made_to_stand() {
    for_both(|lab| {
        for still in ["freeze", "diff"] {
            lab.write("f", LINES);
            lab.up("s");
            let script = "sleep 0.1; echo A_1 >> f; sleep 600";
            lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
            // Seen from outside, before the keeper looks by itself.
            let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
            let copy = lab.state.join("sandboxes").join(id).join("upper/f");
            wait_for("the change", 20, || {
                std::fs::read_to_string(&copy).ok().filter(|text| text.contains("A_1"))
            });
            lab.skep([still, "s"]).run().ok();
            lab.write("f", format!("H_1\n{LINES}"));
            if still == "freeze" {
                lab.skep(["thaw", "s"]).run().ok();
            }
            lab.approve(&["s", "f"]);
            assert_eq!(lab.bytes("f"), format!("H_1\n{LINES}A_1\n").as_bytes());
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn an_approval_teaches_nobody_inside_what_you_wrote() {
    for_both(|lab| {
        lab.write("f", LINES);
        repository(lab);
        for since in ["approved", "in part", "undone", "again"] {
            lab.write("f", LINES);
            // Older than git's list, or it is not taken for clean.
            pause();
            git(lab, &["add", "f"]);
            lab.up("s");
            somebody_who_read(lab);
            lab.write("f", format!("H_1\n{LINES}"));
            lab.inside("s", "sed -i s/3/A_3/ f; echo A_1 >> f");
            match since {
                "in part" => {
                    let hunk = hunks(&lab.diff("s"), None)[0].id.clone();
                    lab.approve(&["s", "--hunk", &hunk]);
                }
                _ => drop(lab.approve(&["s"])),
            }
            if since == "undone" || since == "again" {
                let undo = lab.skep(["undo", "--json"]).run().ok().json();
                let undo = undo["approval"].as_str().unwrap();
                if since == "again" {
                    lab.skep(["undo", undo]).run().ok();
                }
            }
            // What the sandbox goes on with is as good as before.
            lab.inside("s", "sed -i s/7/A_7/ f");
            lab.approve(&["s"]);
            let approved = "H_1\n1\n2\nA_3\n4\n5\n6\nA_7\n8\n9\nA_1\n";
            assert_eq!(lab.bytes("f"), approved.as_bytes(), "{since}");
            tell_to_write(lab);
            is_refused(lab);
            // That whoever wrote it is gone makes it no better.
            lab.inside("s", "touch /tmp/leave");
            pause();
            lab.inside("s", "true");
            is_refused(lab);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn when_nobody_is_inside_who_may_not_know_your_line_to_remove_it_is_a_change() {
    for_both(|lab| {
        lab.write("f", LINES);
        repository(lab);
        for approved in [false, true] {
            lab.write("f", LINES);
            // Older than git's list, or it is not taken for clean.
            pause();
            git(lab, &["add", "f"]);
            lab.up("s");
            let exec = somebody_who_read(lab);
            lab.write("f", format!("H_1\n{LINES}"));
            lab.inside("s", "echo A_1 >> f");
            if approved {
                lab.approve(&["s"]);
            }
            // As long as it is there, nobody can tell.
            lab.inside("s", "sed -i /H_1/d f");
            is_refused(lab);
            lab.inside("s", "sed -i '1i H_1' f");
            lab.skep(["kill", &exec]).run().ok();
            pause();
            lab.inside("s", "sed -i /H_1/d f");
            lab.approve(&["s"]);
            assert_eq!(lab.bytes("f"), format!("{LINES}A_1\n").as_bytes(), "approved: {approved}");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// A rebase finds somebody inside, and takes nothing in.
#[test]
fn a_rebase_teaches_nobody_inside_what_you_wrote() {
    for_both(|lab| {
        lab.write("f", LINES);
        pause();
        repository(lab);
        lab.up("s");
        somebody_who_read(lab);
        lab.write("f", format!("H_1\n{LINES}"));
        lab.inside("s", "echo A_1 >> f");
        lab.skep(["rebase", "s"]).run().ok();
        tell_to_write(lab);
        is_refused(lab);
    });
}

/// Where the base is known, your line comes into the sandbox from outside, or is written there as well.
#[test]
fn a_line_that_both_have_is_yours_after_an_approval() {
    for_both(|lab| {
        for way in ["copied", "written"] {
            lab.write("f", LINES);
            lab.up("s");
            lab.inside("s", "echo A_0 >> f");
            reader(lab, "touch /tmp/written; sleep 600");
            lab.write("f", format!("H_1\n{LINES}"));
            match way {
                "copied" => drop(lab.skep(["cp", "f", "s:f"]).run().ok()),
                _ => drop(lab.inside("s", "sed -i '1i H_1' f")),
            }
            lab.inside("s", "echo A_1 >> f");
            lab.approve(&["s"]);
            lab.inside("s", "sed -i s/5/A_5/ f");
            lab.approve(&["s"]);
            tell_to_write(lab);
            is_refused(lab);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn what_is_moved_over_your_file_inside_is_not_the_sandboxs_own() {
    for_both(|lab| {
        lab.write("k", "k\n");
        lab.up("s");
        lab.inside("s", "mkdir n; echo A_0 > n/tmp");
        pause();
        lab.write("n/f", "H_1\n");
        pause();
        lab.inside("s", "cat n/f > n/tmp; echo A_1 >> n/tmp; mv n/tmp n/f");
        std::fs::remove_dir_all(lab.project.join("n")).unwrap();
        is_refused(lab);
    });
}

#[test]
fn what_a_rejection_gave_is_added_to_like_any_file() {
    for_both(|lab| {
        lab.up("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "600"]).run().ok();
        lab.inside("s", "true");
        lab.inside("s", "echo A_1 > a");
        lab.write("a", "H_1\nH_2\n");
        lab.skep(["reject", "s", "a"]).run().ok();
        lab.inside("s", "echo A_2 >> a");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("a"), b"H_1\nH_2\nA_2\n");
        // But not without your lines.
        lab.inside("s", "sed -i /H_1/d a");
        is_refused(lab);
    });
}

#[test]
fn a_line_that_you_took_back_is_nobodys_to_keep() {
    for_both(|lab| {
        lab.write("f", LINES);
        pause();
        repository(lab);
        lab.up("s");
        let exec = somebody_who_read(lab);
        lab.write("f", format!("H_1\n{LINES}"));
        lab.inside("s", "echo A_1 >> f");
        lab.approve(&["s"]);
        tell_to_write(lab);
        is_refused(lab);
        lab.write("f", format!("{LINES}A_1\n"));
        assert!(lab.diff("s")["conflicts"].as_array().unwrap().is_empty());
        // Whoever leaves teaches nobody what the sandbox lacks.
        lab.skep(["kill", &exec]).run().ok();
        pause();
        lab.inside("s", "true");
        lab.write("f", format!("H_1\n{LINES}A_1\n"));
        is_refused(lab);
        lab.write("f", format!("{LINES}A_1\n"));
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), format!("{LINES}A_2\n").as_bytes());
    });
}

#[test]
fn a_removal_that_was_undone_and_done_again_is_decided() {
    for_both(|lab| {
        lab.write("f", LINES);
        lab.up("s");
        lab.inside("s", "rm f");
        lab.approve(&["s"]);
        let undo = lab.skep(["undo", "--json"]).run().ok().json();
        lab.skep(["undo", undo["approval"].as_str().unwrap()]).run().ok();
        assert!(!lab.project.join("f").exists());
        lab.write("f", "H_1\n");
        let diff = lab.diff("s");
        assert!(
            paths(&diff).is_empty() && diff["conflicts"].as_array().unwrap().is_empty(),
            "{diff}"
        );
    });
}

/// That the sandbox had your line again, and nobody was inside, tells nothing of a state in which it had not.
#[test]
fn a_state_without_your_line_is_no_better_for_one_that_had_it_later() {
    for_both(|lab| {
        lab.write("f", LINES);
        pause();
        repository(lab);
        lab.up("s");
        let exec = somebody_who_read(lab);
        lab.write("f", format!("H_1\n{LINES}"));
        lab.inside("s", "echo A_1 >> f");
        lab.approve(&["s"]);
        tell_to_write(lab);
        lab.skep(["snapshot", "s", "stale"]).run().ok();
        is_refused(lab);
        lab.inside("s", "sed -i '1i H_1' f");
        lab.skep(["kill", &exec]).run().ok();
        pause();
        lab.inside("s", "true");
        assert_eq!(paths(&lab.diff("s")), ["f"]);
        lab.skep(["restore", "s", "stale"]).run().ok();
        is_refused(lab);
    });
}
