//! After `skep rebase` a sandbox sees the project as it is, and what it has not touched comes from there.

use super::desk::{drift, paths};
use super::rebase::{numbered, read_inside};
use crate::harness::{Lab, for_both};
use std::fs;

/// As most editors save.
fn replace(lab: &Lab, path: &str, text: impl AsRef<[u8]>) {
    let new = lab.write(".saved", text);
    fs::rename(new, lab.project.join(path)).unwrap();
}

fn view_of(lab: &Lab) -> String {
    let report = lab.skep(["rebase", "s", "--json"]).run().ok().json();
    report["view"].as_str().unwrap().to_owned()
}

/// Files that the sandbox has not touched: their base moves with a rebase, so that what is done to them
/// inside later is the agent's alone, and merges with what the user does next.
#[test]
fn rebase_moves_the_base_of_what_the_sandbox_has_not_touched() {
    for_both(|lab| {
        for up in [true, false] {
            fs::remove_dir_all(&lab.project).unwrap();
            for name in ["f", "d/g", "mine"] {
                lab.write(name, numbered(&[]));
            }
            lab.up("s");
            lab.inside("s", "cat f d/g > /dev/null; sed -i 's/^5$/five/' mine");
            if !up {
                lab.skep(["stop", "s"]).run().ok();
            }
            lab.write("f", numbered(&[(10, "user")]));
            replace(lab, "d/g", numbered(&[(10, "user")]));
            lab.write("new", numbered(&[]));
            assert_eq!(view_of(lab), "as_it_is");
            lab.inside("s", "sed -i 's/^30$/agent/' f d/g new");
            let diff = lab.diff("s");
            assert_eq!(paths(&diff), ["d/g", "f", "mine", "new"]);
            assert_eq!(drift(&diff), [], "up {up}: {diff}");
            assert!(!diff["changes"].to_string().contains("user"), "{diff}");
            lab.write("f", numbered(&[(50, "later")]));
            let diff = lab.diff("s");
            assert_eq!(drift(&diff), [("f".to_owned(), true)], "up {up}: {diff}");
            lab.approve(&["s"]);
            assert_eq!(lab.bytes("f"), numbered(&[(30, "agent"), (50, "later")]).as_bytes());
            assert_eq!(lab.bytes("d/g"), numbered(&[(10, "user"), (30, "agent")]).as_bytes());
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// The kernel goes on showing what it has found under a name, and that there was nothing.
#[test]
fn rebase_shows_replaced_files_to_a_sandbox_that_runs() {
    for_both(|lab| {
        for name in ["f", "d/g", "swap/h", "stood/k"] {
            lab.write(name, "old\n");
        }
        lab.up("s");
        lab.inside("s", "cat f d/g swap/h stood/k > /dev/null; ! cat none 2> /dev/null");
        let everything_anew = || {
            for (name, text) in [("f", "new\n"), ("d/g", "new\n"), ("none", "new\n")] {
                replace(lab, name, text);
            }
            lab.write("swap2/h", "new\n");
            fs::rename(lab.project.join("swap"), lab.project.join("away")).unwrap();
            fs::rename(lab.project.join("swap2"), lab.project.join("swap")).unwrap();
        };
        everything_anew();
        assert_eq!(view_of(lab), "as_it_is");
        for name in ["f", "d/g", "none", "swap/h"] {
            assert_eq!(read_inside(lab, name), "new\n", "{name}");
        }
        // Somebody inside has something open: that stays, and the rest is seen.
        let stands =
            "exec 9< f; cd stood; touch /tmp/stands; while ! test -e /tmp/end; do sleep 0.05; done";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", stands]).run().ok();
        lab.inside("s", "while ! test -e /tmp/stands; do sleep 0.05; done; cat d/g > /dev/null");
        replace(lab, "f", "newer\n");
        replace(lab, "d/g", "newer\n");
        assert_eq!(view_of(lab), "but_for_what_is_open");
        assert_eq!(read_inside(lab, "d/g"), "newer\n");
        lab.skep(["rebase", "s"]).run().ok().says("commands in it may have read files before");
        lab.inside("s", "touch /tmp/end");
        crate::harness::wait_for("the end of a command", 20, || {
            (view_of(lab) == "as_it_is").then_some(())
        });
        assert_eq!(read_inside(lab, "f"), "newer\n");
    });
}

/// Somebody who goes on over a rebase has read a file before the user edited it, and writes what it knew: the
/// user's line is not taken away.
#[test]
fn a_stale_write_over_a_rebase_is_not_taken_for_a_change_of_the_users_line() {
    for_both(|lab| {
        lab.write("f", numbered(&[]));
        lab.up("s");
        let stale = "cat f > /tmp/known; touch /tmp/read; while ! test -e /tmp/go; do sleep 0.05; done; \
                     sed 's/^30$/agent/' /tmp/known > f; touch /tmp/written";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", stale]).run().ok();
        lab.inside("s", "while ! test -e /tmp/read; do sleep 0.05; done");
        lab.write("f", numbered(&[(10, "user")]));
        assert_eq!(view_of(lab), "but_for_what_is_open");
        lab.inside("s", "touch /tmp/go; while ! test -e /tmp/written; do sleep 0.05; done");
        lab.conflicts(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[(10, "user")]).as_bytes());
        // Nor does a later rebase, with nobody inside, make it one.
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["rebase", "s"]).run().exits(4);
        lab.conflicts(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[(10, "user")]).as_bytes());
    });
}

/// The same of a file that is in the sandbox already: neither a rebase nor a rejection moves its base under somebody
/// who has read it before. What the user edited is merged by the approval.
#[test]
fn a_stale_write_over_a_rebase_or_a_rejection_takes_no_line_of_the_users() {
    for_both(|lab| {
        for (name, call) in [
            ("a", &["rebase", "a"][..]),
            ("b", &["reject", "b", "--", "f"]),
            ("c", &["freeze", "c"]),
        ] {
            lab.write("f", numbered(&[]));
            lab.up(name);
            lab.inside(name, "sed -i 's/^5$/first/' f");
            let stale = "sed 's/^50$/agent/' f > /tmp/known; touch /tmp/read; \
                         while ! test -e /tmp/go; do sleep 0.05; done; cat /tmp/known > f; touch /tmp/written";
            lab.skep(["exec", "-d", name, "--", "sh", "-c", stale]).run().ok();
            lab.inside(name, "while ! test -e /tmp/read; do sleep 0.05; done");
            lab.write("f", numbered(&[(30, "user")]));
            match call[0] {
                "rebase" => {
                    let put_off = lab.skep(call).run().exits(4).errors();
                    assert!(put_off.contains("may have read it before"), "{put_off}");
                }
                "freeze" => {
                    lab.skep(call).run().ok();
                    lab.skep(["rebase", name]).run().exits(4);
                    lab.skep(["thaw", name]).run().ok();
                }
                _ => drop(lab.skep(call).run().ok()),
            }
            lab.inside(name, "touch /tmp/go; while ! test -e /tmp/written; do sleep 0.05; done");
            lab.approve(&[name]);
            let merged = numbered(&[(5, "first"), (30, "user"), (50, "agent")]);
            assert_eq!(lab.bytes("f"), merged.as_bytes(), "{name}");
            lab.skep(["rm", "--discard", name]).run().ok();
        }
    });
}

/// While somebody is inside, what is not taken in is said, and is no conflict: neither for a rebase nor for a
/// rejection.
#[test]
fn what_somebody_inside_keeps_from_being_taken_in_is_said() {
    for_both(|lab| {
        lab.write("f", numbered(&[]));
        lab.write("g", numbered(&[]));
        lab.up("s");
        lab.inside("s", "sed -i 's/^5$/agent/' f; cat g > /tmp/g; cat /tmp/g > g");
        lab.skep(["exec", "-d", "s", "--", "sleep", "1000"]).run().ok();
        lab.write("f", numbered(&[(30, "user")]));
        lab.write("g", numbered(&[(30, "user")]));
        let merges = lab.skep(["conflicts", "s", "--json"]).run().ok().json();
        assert_eq!(merges[0]["merges"], true, "{merges}");
        let report = lab.skep(["rebase", "s", "--json"]).run().exits(4).json();
        assert_eq!(report["conflicts"].to_string(), "[]", "{report}");
        let put_off = report["put_off"].as_array().unwrap();
        let put_off: Vec<_> = put_off.iter().map(|one| one["path"].as_str().unwrap()).collect();
        assert_eq!(put_off, ["f", "g"], "{report}");
        let said = lab.skep(["rebase", "s"]).run().exits(4).errors();
        assert!(said.contains("put off: f: ") && !said.contains("conflict"), "{said}");
        // A rejection says it, too.
        let said = lab.skep(["reject", "s", "f"]).run().ok().errors();
        assert!(said.contains("as it was  f") && said.contains("skep rebase s"), "{said}");
        assert_eq!(read_inside(lab, "f"), numbered(&[]));
        lab.inside("s", "sed -i 's/^5$/agent/' f");
        let report = lab.skep(["reject", "s", "f", "--json"]).run().ok().json();
        assert_eq!(report["not_taken_in"].to_string(), "[\"f\"]", "{report}");
        // With nobody inside there is nothing to say.
        lab.skep(["stop", "s"]).run().ok();
        let report = lab.skep(["rebase", "s", "--json"]).run().ok().json();
        assert_eq!(report["put_off"].to_string(), "[]", "{report}");
        lab.skep(["start", "s"]).run().ok();
        assert_eq!(read_inside(lab, "f"), numbered(&[(30, "user")]));
    });
}

/// What a command has left behind counts, too, whatever the driver.
#[test]
fn a_stale_write_by_what_a_command_left_behind_takes_no_line_of_the_users() {
    for_both(|lab| {
        for driver in ["overlay-userns", "copy"] {
            lab.write("f", numbered(&[]));
            lab.skep(["create", "s"]).env("SKEP_DRIVER", driver).run().ok();
            lab.inside("s", "sed -i 's/^5$/first/' f");
            let stale = "sed 's/^50$/agent/' f > /tmp/known; \
                         (while ! test -e /tmp/go; do sleep 0.05; done; cat /tmp/known > f; touch /tmp/written) \
                         > /dev/null 2>&1 < /dev/null &";
            lab.inside("s", stale);
            lab.write("f", numbered(&[(30, "user")]));
            lab.skep(["rebase", "s"]).run().exits(4);
            lab.inside("s", "touch /tmp/go; while ! test -e /tmp/written; do sleep 0.05; done");
            lab.approve(&["s"]);
            let merged = numbered(&[(5, "first"), (30, "user"), (50, "agent")]);
            assert_eq!(lab.bytes("f"), merged.as_bytes(), "{driver}");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// Dies before the moment is noted: everything is as without it, and the next rebase takes one.
#[test]
fn crash_3_a_rebase_that_dies_before_its_moment_loses_nothing() {
    for_both(|lab| {
        for name in ["f", "mine"] {
            lab.write(name, numbered(&[]));
        }
        lab.up("s");
        lab.inside("s", "cat f > /dev/null; sed -i 's/^5$/five/' mine");
        lab.write("f", numbered(&[(10, "user")]));
        lab.write("mine", numbered(&[(10, "user")]));
        let call = lab.skep(["rebase", "s"]).env("SKEP_FAILPOINT", "rebase.moment=kill");
        assert_ne!(call.run().code(), 0);
        assert_eq!(drift(&lab.diff("s")), [], "what was merged is settled");
        assert_eq!(view_of(lab), "as_it_is");
        lab.inside("s", "sed -i 's/^30$/agent/' f");
        assert_eq!(drift(&lab.diff("s")), []);
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[(10, "user"), (30, "agent")]).as_bytes());
        assert_eq!(lab.bytes("mine"), numbered(&[(5, "five"), (10, "user")]).as_bytes());
    });
}

/// A state from before a rebase has nothing of it; forks of one from after have.
#[test]
fn a_moment_belongs_to_a_state() {
    for_both(|lab| {
        for name in ["f", "g"] {
            lab.write(name, numbered(&[]));
        }
        lab.worked("s", "true; echo x > x");
        lab.skep(["snapshot", "s", "clean"]).run().ok();
        // Edited inside after the user did, without a look in between: nobody knows what it came from.
        lab.write("f", numbered(&[(10, "user")]));
        lab.inside("s", "seq 60 | sed 's/^30$/agent/' > f");
        lab.skep(["stop", "s"]).run().ok();
        lab.conflicts(&["s"]);
        lab.skep(["snapshot", "s", "stale"]).run().ok();
        lab.skep(["restore", "s", "clean"]).run().ok();
        lab.skep(["rebase", "s"]).run().ok();
        lab.skep(["fork", "s", "--name", "t"]).run().ok();
        lab.inside("t", "sed -i 's/^30$/fork/' f");
        assert_eq!(drift(&lab.diff("t")), []);
        assert_eq!(super::desk::change(&lab.diff("t"), "f")["hunks"].as_array().unwrap().len(), 1);
        lab.skep(["restore", "s", "stale"]).run().ok();
        lab.conflicts(&["s"]);
        assert_eq!(lab.bytes("f"), numbered(&[(10, "user")]).as_bytes());
    });
}
