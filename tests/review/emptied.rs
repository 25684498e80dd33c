//! Directories that the user moved away, and in which the sandbox has something still; and decisions that cannot be
//! carried out to their end.

use super::desk::paths;
use super::gone::noted;
use crate::harness::{Held, Lab, for_both};
use std::fs;

/// Files of one line each, and a sandbox that is up with work in all of them, of which `d/settled` is approved.
fn worked_on(lab: &Lab) {
    let _ = fs::remove_dir_all(lab.root.join("away"));
    fs::remove_dir_all(&lab.project).unwrap();
    let files = ["a", "d/settled", "d/pending", "d/same", "d/x/y/below", "z"];
    files.iter().for_each(|file| drop(lab.write(file, "old\n")));
    lab.up("s");
    lab.inside("s", "for f in a d/settled d/pending d/x/y/below z; do echo new >> $f; done");
    lab.inside("s", "echo new > d/x/new; touch d/same");
    noted(lab, "s");
    lab.approve(&["s", "d/settled"]);
}

fn move_away(lab: &Lab, path: &str) {
    fs::rename(lab.project.join(path), lab.root.join("away")).unwrap();
}

/// The reasons that are readable inside, each with its paths.
fn reasons(lab: &Lab) -> Vec<(String, Vec<String>)> {
    let told = lab.inside("s", "cat /run/skep/feedback.json").json();
    let strings = |list: &serde_json::Value| -> Vec<String> {
        serde_json::from_value::<Vec<String>>(list.clone()).unwrap()
    };
    let rejections = told["rejections"].as_array().unwrap();
    rejections
        .iter()
        .map(|one| (one["reason"].as_str().unwrap_or("").to_owned(), strings(&one["paths"])))
        .collect()
}

/// Asserts that one rebase gives the sandbox what the project has, and nothing is left to be taken in or decided.
#[track_caller]
fn is_taken_in_by_one_rebase(lab: &Lab, what: &str) {
    lab.skep(["stop", "s"]).run().ok();
    lab.skep(["rebase", "s"]).run().ok();
    let again = lab.skep(["rebase", "s", "--json"]).run().ok().json();
    assert_eq!(again["merged"].to_string(), "[]", "{what}");
    assert_eq!(paths(&lab.diff("s")), [""; 0], "{what}");
    let project = lab.program("sh").args(["-c", "find . | sort"]).run().ok().text();
    assert_eq!(lab.inside("s", "find . | sort").text(), project, "{what}");
}

#[test]
fn a_rejection_in_a_directory_that_you_moved_away_is_carried_out_whole() {
    for_both(|lab| {
        for (stopped, path) in [(true, "d"), (false, "d"), (true, "d/x"), (false, "d/x")] {
            worked_on(lab);
            move_away(lab, path);
            if stopped {
                lab.skep(["stop", "s"]).run().ok();
            }
            lab.skep(["reject", "s", "d", "--reason", "some"]).run().ok();
            assert_eq!(paths(&lab.diff("s")), ["a", "z"], "{path}, {stopped}");
            lab.skep(["reject", "s", "--reason", "all"]).run().ok();
            assert_eq!(paths(&lab.diff("s")), [""; 0], "{path}, {stopped}");
            let told = reasons(lab);
            let both = ["a".to_owned(), "z".to_owned()].to_vec();
            assert_eq!(told.last(), Some(&("all".to_owned(), both)), "{path}, {stopped}");
            assert_eq!(told[0].0, "some", "{told:?}");
            is_taken_in_by_one_rebase(lab, &format!("{path}, {stopped}"));
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn directories_that_you_moved_away_beside_a_command_go_with_one_rebase() {
    for_both(|lab| {
        for path in ["d", "d/x", "d/x/y"] {
            worked_on(lab);
            lab.skep(["exec", "-d", "s", "--", "sleep", "1000"]).run().ok();
            move_away(lab, path);
            lab.skep(["reject", "s"]).run().ok();
            assert_eq!(paths(&lab.diff("s")), [""; 0], "{path}");
            is_taken_in_by_one_rebase(lab, path);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// The kernel shows whoever stands in a directory what was in it.
#[test]
fn a_directory_that_somebody_stands_in_keeps_no_rejection_from_being_done() {
    for_both(|lab| {
        lab.write("d/x/same", "old\n");
        lab.write("a", "old\n");
        lab.up("s");
        let script = "cd d/x; echo new > new; echo new > ../../a; touch /tmp/there; sleep 1000";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
        lab.inside("s", &super::insiders::after("/tmp/there"));
        noted(lab, "s");
        move_away(lab, "d");
        let report = lab.skep(["reject", "s", "--reason", "all", "--json"]).run().ok().json();
        assert_eq!(report["rejected"].to_string(), r#"["d/x/new","a"]"#, "{report}");
        assert_eq!(report["not_taken_in"].to_string(), r#"["d","d/x"]"#, "{report}");
        assert_eq!(paths(&lab.diff("s")), [""; 0]);
        assert_eq!(reasons(lab)[0].0, "all");
        is_taken_in_by_one_rebase(lab, "after the command");
    });
}

/// Some of it is done: then it is not said that nothing was changed, and the reason is kept.
#[test]
fn a_rejection_that_fails_half_way_says_what_was_done_and_keeps_its_reason() {
    for_both(|lab| {
        for (stopped, saved) in [(true, true), (true, false), (false, true), (false, false)] {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("f", "1\n2\n3\n");
            lab.up("s");
            lab.inside("s", "sed -i s/2/two/ f; echo new > new");
            if stopped {
                lab.skep(["stop", "s"]).run().ok();
            }
            let reject = lab.skep(["reject", "s", "--reason", "why", "--json"]);
            let (code, said) = if saved {
                let held = Held::at(reject, &["settle.opened"]);
                lab.write("f", "1\n2\n3\nUSER\n");
                let output = held.go_on();
                (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
            } else {
                let ran = reject.env("SKEP_FAILPOINT", "settle.opened=eio").run();
                (Some(ran.code()), ran.errors())
            };
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("1 path was written in `s` before that"), "{said}");
            assert!(said.contains(r#""written":["new"]"#), "{said}");
            assert_eq!(paths(&lab.diff("s")), ["f"], "{stopped}, {saved}");
            assert_eq!(reasons(lab), [("why".to_owned(), vec!["new".to_owned()])]);
            lab.skep(["reject", "s"]).run().ok();
            assert_eq!(paths(&lab.diff("s")), [""; 0]);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}
