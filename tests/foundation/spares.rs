//! Directories that one sandbox leaves to the next: as new, or not at all.

use crate::harness::{Lab, entries, for_both};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Inodes of the directories that wait.
fn waiting(lab: &Lab) -> Vec<u64> {
    entries(&lab.state.join("spares"))
        .iter()
        .map(|path| fs::metadata(path).unwrap().ino())
        .collect()
}

#[test]
fn the_directories_of_a_run_without_changes_serve_the_next_one() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.run_script("true").run().ok();
        let first = waiting(lab);
        assert_eq!(first.len(), 1, "nothing was kept");
        // Taken by the next one, which has its own id, and left to the one after it.
        lab.create("s");
        assert_eq!(waiting(lab), [0_u64; 0]);
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        assert_eq!(fs::metadata(lab.state.join("sandboxes").join(id)).unwrap().ino(), first[0]);
        lab.exec_script("s", "echo b > b").run().ok();
        assert_eq!(lab.skep(["diff", "s", "--name-only"]).run().ok().text(), "b");
        // With changes in it, it goes.
        lab.skep(["rm", "--discard", "s"]).run().ok();
        assert_eq!(waiting(lab), [0_u64; 0]);
        lab.run_script("true").run().ok();
        assert_eq!(waiting(lab).len(), 1);
        lab.audit_leftovers();
    });
}

#[test]
fn what_somebody_left_on_the_directories_reaches_nobody_else() {
    for_both(|lab| {
        lab.write("a", "a\n");
        let marks = [
            "setfattr -n user.mark -v canary .",
            "setfacl -d -m u:0:rwx . || setfattr -n user.mark -v canary .",
            "chmod 0700 . && chmod 2755 . && chmod 0755 .",
            "mkdir d && rmdir d",
            "touch -d 2001-01-01 .",
        ];
        let look = "stat -c %a:%u .; [ $(stat -c %Y .) -gt 1700000000 ] || echo old; getfattr -m - -d . 2>/dev/null; lsattr -d . 2>/dev/null; ls -A . /run/skep";
        let unmarked = lab.run_script(look).run().ok().text();
        for mark in marks {
            lab.run_script(mark).run().ok();
            assert_eq!(lab.run_script(look).run().ok().text(), unmarked, "after `{mark}`");
            for sandbox in lab.sandboxes() {
                lab.skep(["rm", "--discard", sandbox["id"].as_str().unwrap()]).run().ok();
            }
        }
        lab.audit_leftovers();
    });
}

#[test]
fn only_a_few_directories_wait() {
    for_both(|lab| {
        for number in 0..7 {
            lab.create(&format!("s{number}"));
        }
        for number in 0..7 {
            lab.skep(["rm".to_owned(), format!("s{number}")]).run().ok();
        }
        assert_eq!(waiting(lab).len(), 4);
        lab.audit_leftovers();
    });
}
