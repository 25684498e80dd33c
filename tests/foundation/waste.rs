//! Directories of removed sandboxes that wait until somebody has time to remove them.

use crate::harness::{Lab, entries, for_both};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

fn waiting(lab: &Lab) -> Vec<PathBuf> {
    entries(&lab.state.join("waste"))
}

/// What a run has left for the next one. On a slow day a run finds the time to clear away after itself.
#[track_caller]
fn left_waiting(lab: &Lab) -> Vec<PathBuf> {
    for _ in 0..10 {
        lab.run_script("true").run().ok();
        let left = waiting(lab);
        if !left.is_empty() {
            assert_eq!(left.len(), 1);
            return left;
        }
    }
    panic!("nothing waits");
}

#[test]
fn the_directory_of_a_run_without_changes_goes_when_there_is_time_and_serves_nobody() {
    for_both(|lab| {
        lab.write("a", "a\n");
        let first = left_waiting(lab);
        let inode = |path: &PathBuf| fs::metadata(path).unwrap().ino();
        let upper = inode(&first[0].join("upper"));
        // Held, so that no new directory can have its number.
        let _held = fs::File::open(first[0].join("upper")).unwrap();
        lab.create("s");
        assert_eq!(waiting(lab), first, "nobody has had the time");
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        assert_ne!(inode(&lab.state.join("sandboxes").join(id).join("upper")), upper);
        lab.exec_script("s", "echo b > b").run().ok();
        // With changes in it, it goes at once.
        lab.skep(["rm", "--discard", "s"]).run().ok();
        assert_eq!(waiting(lab), first);
        // The first run after other commands asks the store; the next one that takes its time has chores.
        let gone = |_| {
            lab.run_script("sleep 0.5").run().ok();
            !first[0].exists()
        };
        assert!((0..3).any(gone), "{:?}", waiting(lab));
        lab.audit_leftovers();
    });
}

#[test]
fn what_was_printed_does_not_wait_with_it() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.run_script("echo canary-of-the-output").run().ok();
        for directory in waiting(lab) {
            let kept = entries(&directory.join("execs"));
            assert!(kept.iter().all(|path| path.extension().is_some_and(|end| end == "end")));
        }
        lab.audit_leftovers();
    });
}

#[test]
fn what_waits_is_in_nobodys_way() {
    for_both(|lab| {
        for number in 0..11 {
            lab.create(&format!("s{number}"));
        }
        for number in 0..11 {
            lab.skep(["rm".to_owned(), format!("s{number}")]).run().ok();
        }
        assert_eq!(waiting(lab).len(), 11);
        // Whoever removes the state directory by hand does not stop at it.
        let plain = lab.program("rm").args(["-r"]).arg(lab.state.join("waste"));
        plain.run().ok();
        lab.audit_leftovers();
    });
}
