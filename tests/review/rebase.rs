//! `skep rebase` takes the project's newer state in.

use super::desk::{drift, paths};
use crate::harness::{Lab, for_both};
use std::fs;

fn numbered(edits: &[(usize, &str)]) -> String {
    let line = |n: usize| match edits.iter().find(|(at, _)| *at == n) {
        Some((_, text)) => format!("{text}\n"),
        None => format!("{n}\n"),
    };
    (1..=60).map(line).collect()
}

fn read_inside(lab: &Lab, path: &str) -> String {
    lab.skep(["exec", "s", "--", "cat", path]).run().ok().text() + "\n"
}

#[test]
fn rebase_merges_and_lists_what_does_not() {
    for_both(|lab| {
        for up in [false, true] {
            fs::remove_dir_all(&lab.project).unwrap();
            for name in ["merges", "collides", "untouched", "theirs"] {
                lab.write(name, numbered(&[]));
            }
            let work = "sed -i 's/^10$/ten/' merges collides; echo mine > mine";
            if up {
                lab.up("s");
                lab.inside("s", work);
            } else {
                lab.worked("s", work);
            }
            lab.write("merges", numbered(&[(50, "user")]));
            lab.write("collides", numbered(&[(10, "user")]));
            lab.write("theirs", numbered(&[(20, "user")]));
            lab.write("new", "new\n");
            let before = lab.tree();
            let ran = lab.skep(["rebase", "s", "--json"]).run();
            assert_eq!(ran.code(), 4, "{}", ran.describe());
            let report = ran.json();
            assert_eq!(report["conflicts"][0]["path"], "collides", "{report}");
            assert_eq!(report["merged"].to_string(), "[\"merges\"]", "{report}");
            lab.tree().assert_equals(&before, "a rebase changes the sandbox, not the project");
            // Inside is the merge; the diff is the sandbox's own work and nothing else.
            assert_eq!(read_inside(lab, "merges"), numbered(&[(10, "ten"), (50, "user")]));
            assert_eq!(read_inside(lab, "collides"), numbered(&[(10, "ten")]), "left alone");
            assert_eq!(read_inside(lab, "theirs"), numbered(&[(20, "user")]));
            assert_eq!(read_inside(lab, "new"), "new\n");
            let diff = lab.diff("s");
            assert_eq!(paths(&diff), ["collides", "merges", "mine"]);
            assert_eq!(drift(&diff), [("collides".to_owned(), false)]);
            let merges = super::desk::change(&diff, "merges");
            assert!(!merges.to_string().contains("user"), "{merges}");
            lab.approve(&["s", "merges", "mine"]);
            assert_eq!(lab.bytes("merges"), numbered(&[(10, "ten"), (50, "user")]).as_bytes());
            lab.conflicts(&["s"]);
            // Settled inside, by hand: now it is an ordinary change.
            lab.tool("solved", numbered(&[(10, "both")]));
            lab.inside("s", "cat /tools/solved > collides");
            let again = lab.skep(["rebase", "s"]).run();
            println!("{}", again.describe());
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn rebase_twice_is_the_same_as_once() {
    for_both(|lab| {
        lab.write("f", numbered(&[]));
        lab.worked("s", "sed -i 's/^10$/ten/' f");
        lab.write("f", numbered(&[(50, "user")]));
        lab.skep(["rebase", "s"]).run().ok();
        let digest = lab.diff("s")["digest"].clone();
        lab.skep(["rebase", "s"]).run().ok();
        assert_eq!(lab.diff("s")["digest"], digest);
        // And again after the user went on.
        lab.write("f", numbered(&[(30, "more"), (50, "user")]));
        lab.skep(["rebase", "s"]).run().ok();
        assert_eq!(read_inside(lab, "f"), numbered(&[(10, "ten"), (30, "more"), (50, "user")]));
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[(10, "ten"), (30, "more"), (50, "user")]).as_bytes());
    });
}

#[test]
fn rebase_without_drift_changes_nothing() {
    for_both(|lab| {
        lab.write("f", numbered(&[]));
        lab.worked("s", "sed -i 's/^10$/ten/' f; rm -f none; mkdir d; ln -s f l");
        let digest = lab.diff("s")["digest"].clone();
        lab.skep(["rebase", "s"]).run().ok();
        assert_eq!(lab.diff("s")["digest"], digest);
    });
}
