//! `skep rebase` takes the project's newer state in.

use super::desk::{drift, paths};
use crate::harness::{Lab, for_both};
use std::fs;

pub(super) fn numbered(edits: &[(usize, &str)]) -> String {
    let line = |n: usize| match edits.iter().find(|(at, _)| *at == n) {
        Some((_, text)) => format!("{text}\n"),
        None => format!("{n}\n"),
    };
    (1..=60).map(line).collect()
}

pub(super) fn read_inside(lab: &Lab, path: &str) -> String {
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

/// The user puts something else in the place of a directory in which the sandbox has work.
#[test]
fn a_directory_that_the_user_replaced_is_a_conflict_of_what_is_in_it() {
    for_both(|lab| {
        for (up, link) in [(true, false), (false, false), (true, true), (false, true)] {
            fs::remove_dir_all(&lab.project).unwrap();
            for name in ["d/a", "d/b", "d/sub/c", "f"] {
                lab.write(name, "old\n");
            }
            let work = "echo n > d/new; echo x >> f";
            if up {
                lab.up("s");
                lab.inside("s", work);
            } else {
                lab.worked("s", work);
            }
            let d = lab.project.join("d");
            if link {
                fs::rename(&d, lab.project.join("d2")).unwrap();
                std::os::unix::fs::symlink("d2", &d).unwrap();
            } else {
                fs::remove_dir_all(&d).unwrap();
                lab.write("d", "file\n");
            }
            assert_eq!(drift(&lab.diff("s")), [("d/new".to_owned(), false)]);
            lab.conflicts(&["s"]);
            lab.conflicts(&["s", "d/new"]);
            let ran = lab.skep(["rebase", "s", "--json"]).run();
            assert_eq!(ran.code(), 4, "{}", ran.describe());
            assert_eq!(ran.json()["conflicts"][0]["path"], "d/new", "{}", ran.describe());
            assert_eq!(
                paths(&lab.diff("s")),
                ["d/new", "f"],
                "nothing of ours is left in the view"
            );
            // What has nothing to do with it goes on, and the change can be dropped.
            lab.approve(&["s", "f"]);
            lab.skep(["reject", "s", "d/new"]).run().ok();
            assert_eq!(paths(&lab.diff("s")), [""; 0]);
            lab.skep(["stop", "s"]).run().ok();
            lab.skep(["rebase", "s"]).run().ok();
            assert_eq!(paths(&lab.diff("s")), [""; 0]);
            let kind = if link { "test -L d" } else { "test -f d && grep file d" };
            lab.skep(["start", "s"]).run().ok();
            lab.inside("s", kind);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// The user puts a directory where a file was, whatever the sandbox did to the file. With somebody inside or
/// not, the conflict can be dropped, and one rebase takes the directory in.
#[test]
fn a_directory_that_the_user_put_in_a_files_place_is_taken_in_at_once() {
    for_both(|lab| {
        for (work, conflict) in
            [("cat f > /tmp/f; cat /tmp/f > f", false), ("echo x >> f", true), ("rm f", true)]
        {
            for busy in [true, false] {
                fs::remove_dir_all(&lab.project).unwrap();
                lab.write("f", "old\n");
                lab.up("s");
                lab.inside("s", work);
                if busy {
                    lab.skep(["exec", "-d", "s", "--", "sleep", "1000"]).run().ok();
                }
                fs::remove_file(lab.project.join("f")).unwrap();
                lab.write("f/a", "a\n");
                lab.write("f/sub/b", "b\n");
                let expected = if conflict { vec![("f".to_owned(), false)] } else { Vec::new() };
                assert_eq!(drift(&lab.diff("s")), expected, "{work}");
                if conflict {
                    lab.skep(["reject", "s", "f"]).run().ok();
                }
                assert_eq!(drift(&lab.diff("s")), [], "{work}, {busy}");
                lab.skep(["stop", "s"]).run().ok();
                lab.skep(["rebase", "s"]).run().ok();
                lab.skep(["start", "s"]).run().ok();
                assert_eq!(read_inside(lab, "f/a") + &read_inside(lab, "f/sub/b"), "a\nb\n");
                assert_eq!(paths(&lab.diff("s")), [""; 0]);
                lab.skep(["rm", "--discard", "s"]).run().ok();
            }
        }
    });
}

/// The sandbox removed a directory, the user put another one there: the conflict has no change of its own.
#[test]
fn a_conflict_below_another_directory_of_the_users_can_be_rejected() {
    for_both(|lab| {
        for busy in [true, false] {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("d/x", "old\n");
            lab.up("s");
            lab.inside("s", "rm -r d");
            if busy {
                lab.skep(["exec", "-d", "s", "--", "sleep", "1000"]).run().ok();
            }
            fs::remove_dir_all(lab.project.join("d")).unwrap();
            lab.write("d/new", "new\n");
            assert_eq!(drift(&lab.diff("s")), [("d/new".to_owned(), false)]);
            lab.conflicts(&["s"]);
            let report = lab.skep(["reject", "s", "d/new", "--json"]).run().ok().json();
            let left = if busy { "[\"d/new\"]" } else { "[]" };
            assert_eq!(report["not_taken_in"].to_string(), left, "{report}");
            assert_eq!(drift(&lab.diff("s")), []);
            assert_eq!(paths(&lab.diff("s")), [""; 0]);
            lab.skep(["stop", "s"]).run().ok();
            lab.skep(["rebase", "s"]).run().ok();
            lab.skep(["start", "s"]).run().ok();
            assert_eq!(read_inside(lab, "d/new"), "new\n");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn rebase_takes_another_mode_of_a_changed_file_in() {
    use std::os::unix::fs::PermissionsExt as _;
    for_both(|lab| {
        for up in [true, false] {
            lab.write("f", "old\n");
            lab.write("g", numbered(&[]));
            let work = "echo x >> f; sed -i 's/^10$/ten/' g";
            if up {
                lab.up("s");
                lab.inside("s", work);
            } else {
                lab.worked("s", work);
            }
            fs::set_permissions(lab.project.join("f"), fs::Permissions::from_mode(0o700)).unwrap();
            lab.write("g", numbered(&[(50, "user")]));
            lab.skep(["rebase", "s"]).run().ok();
            assert_eq!(drift(&lab.diff("s")), []);
            let seen = lab.skep(["exec", "s", "--", "sh", "-c", "stat -c %a f; cat f"]).run().ok();
            assert_eq!(seen.text(), "700\nold\nx");
            assert_eq!(read_inside(lab, "g"), numbered(&[(10, "ten"), (50, "user")]));
            lab.approve(&["s"]);
            assert_eq!(lab.bytes("f"), b"old\nx\n");
            assert_eq!(lab.tree().get("f").unwrap().mode, 0o700);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// Its removal was approved; that the user makes it again later is nobody's conflict.
#[test]
fn a_directory_that_went_by_an_approval_is_the_users_again() {
    for_both(|lab| {
        lab.write("d/a", "old\n");
        lab.write("d/sub/b", "old\n");
        lab.write("f", "old\n");
        lab.up("s");
        lab.inside("s", "rm -r d");
        lab.approve(&["s"]);
        for name in ["d/a", "d/h", "d/sub/b", "d/other/c"] {
            lab.write(name, "the user's\n");
        }
        assert_eq!(drift(&lab.diff("s")), []);
        assert_eq!(lab.approve(&["s"])["approval"], serde_json::Value::Null);
        lab.inside("s", "echo x >> f");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), b"old\nx\n");
        for name in ["d/a", "d/h", "d/sub/b", "d/other/c"] {
            assert_eq!(lab.bytes(name), b"the user's\n", "{name}");
        }
        lab.skep(["rebase", "s"]).run().ok();
        assert_eq!(paths(&lab.diff("s")), [""; 0]);
        assert_eq!(read_inside(lab, "d/a"), "the user's\n");
    });
}

/// Exit 4 says that a person is needed, as often as it is asked and whatever else was merged; 0 that nothing is
/// left. What is in conflict, and the project, are as they were.
#[test]
fn a_rebase_exits_with_4_as_long_as_something_is_in_conflict() {
    for_both(|lab| {
        for name in ["merges", "collides"] {
            lab.write(name, numbered(&[]));
        }
        lab.worked("s", "sed -i 's/^10$/ten/' merges collides");
        lab.write("merges", numbered(&[(50, "user")]));
        lab.write("collides", numbered(&[(10, "user")]));
        let before = lab.tree();
        for merged in [&["merges"][..], &[]] {
            let ran = lab.skep(["rebase", "s", "--json"]).run().exits(4);
            assert_eq!(ran.json()["merged"], serde_json::json!(merged));
            assert_eq!(ran.json()["conflicts"][0]["path"], "collides");
            lab.tree().assert_equals(&before, "the project");
            assert_eq!(read_inside(lab, "collides"), numbered(&[(10, "ten")]));
        }
        let ran = lab.skep(["rebase", "s"]).run().exits(4);
        ran.says("1 path in conflict was left as before");
        lab.write("collides", numbered(&[(20, "user")]));
        let ran = lab.skep(["rebase", "s", "--json"]).run().ok();
        assert_eq!(ran.json()["merged"], serde_json::json!(["collides"]));
        let help = lab.skep(["rebase", "--help"]).run().ok().text();
        assert!(help.contains("Exits with 4 as long as paths are in conflict"), "{help}");
    });
}

/// A sandbox whose rebase or rejection died when everything was written and nothing settled: the agent
/// changed line 5 of `f`, the user line 30.
fn cut_short(lab: &Lab, verb: &[&str], running: bool) {
    lab.write("f", numbered(&[]));
    lab.up("s");
    lab.inside("s", "sed -i 's/^5$/AGENT/' f");
    if !running {
        lab.skep(["stop", "s"]).run().ok();
    }
    lab.write("f", numbered(&[(30, "USER")]));
    let ran = lab.skep(verb).env("SKEP_FAILPOINT", "settle.written=kill").run();
    assert_ne!(ran.code(), 0, "{}", ran.describe());
}

/// The agent has nothing of the user's: the user takes it back, and it stays so.
fn users_lines_stay_the_users(lab: &Lab, name: &str, what: &str) {
    let diff = lab.diff(name);
    assert!(!diff["changes"].to_string().contains("USER"), "{what}: {diff}");
    lab.write("f", numbered(&[]));
    let _ = lab.skep(["rebase", name]).run();
    let _ = lab.skep(["approve", name]).run();
    let text = String::from_utf8(lab.bytes("f")).unwrap();
    assert!(!text.contains("USER"), "{what}: {text}");
    for name in ["s", "t"] {
        let _ = lab.skep(["rm", "--discard", name]).run();
    }
}

/// What was written and not settled yet counts all the same: the user's lines do not become the agent's.
#[test]
fn crash_3_a_rebase_or_reject_that_dies_gives_the_agent_nothing_of_the_users() {
    for_both(|lab| {
        for verb in [&["rebase", "s"][..], &["reject", "s", "f"]] {
            for running in [true, false] {
                cut_short(lab, verb, running);
                users_lines_stay_the_users(lab, "s", &format!("{verb:?}"));
            }
        }
    });
}

/// Nor if the agent goes on, or its state is taken elsewhere, before anybody looks.
#[test]
fn crash_3_work_that_goes_on_after_a_rebase_that_died_is_the_agents_and_no_more() {
    let (rebase, reject) = (&["rebase", "s"][..], &["reject", "s", "f"][..]);
    let cases: &[(&[&str], bool, &[&str])] = &[
        (rebase, true, &[]),
        (rebase, true, &["stop", "s"]),
        (rebase, true, &["cp", "s:f", "../out"]),
        (rebase, true, &["fork", "s", "--name", "t"]),
        (rebase, true, &["snapshot", "s", "label"]),
        (rebase, false, &[]),
        (rebase, false, &["fork", "s", "--name", "t"]),
        (reject, true, &[]),
        (reject, false, &[]),
    ];
    for_both(|lab| {
        for (verb, running, next) in cases {
            let _ = fs::remove_file(lab.root.join("out"));
            cut_short(lab, verb, *running);
            if !next.is_empty() {
                lab.skep(*next).run().ok();
            }
            let name = if next.first() == Some(&"fork") { "t" } else { "s" };
            lab.inside(name, "sed -i 's/^15$/MORE/' f");
            users_lines_stay_the_users(lab, name, &format!("{verb:?} {running} {next:?}"));
        }
    });
}

/// The bytes that a rejection brings in are those whose base it notes, whoever saves at that moment.
#[test]
fn a_save_during_a_reject_does_not_become_the_agents() {
    for_both(|lab| {
        lab.write("f", "1\n2\n3\n");
        lab.up("s");
        lab.inside("s", "sed -i s/2/two/ f");
        let held = crate::harness::Held::at(lab.skep(["reject", "s", "f"]), &["settle.opened"]);
        // In place, as an editor that keeps the inode does.
        lab.write("f", "1\n2\n3\nUSER\n");
        let output = held.go_on();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("saved meanwhile"), "{said}");
        lab.skep(["reject", "s", "f"]).run().ok();
        let diff = lab.diff("s");
        assert!(diff["changes"].as_array().unwrap().is_empty(), "{diff}");
        lab.write("f", "1\n2\n3\n");
        assert!(lab.diff("s")["changes"].as_array().unwrap().is_empty());
    });
}
