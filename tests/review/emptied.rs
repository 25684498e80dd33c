//! Directories that the user moved away, and in which the sandbox has something still.

use super::desk::paths;
use super::gone::noted;
use crate::harness::{Lab, for_both};
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
