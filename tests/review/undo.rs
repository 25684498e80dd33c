//! Undo: exactly, or not at all.

use super::desk::paths;
use crate::harness::{Lab, Who, for_both, for_each};
use std::fs;

/// A tree with one of everything.
fn furnish(lab: &Lab) {
    lab.write("text", (0..40).map(|n| format!("{n}\n")).collect::<String>());
    lab.write("binary", b"\0\x01\x02");
    lab.write("deleted", "deleted\n");
    lab.write("dir/deleted/a", "a\n");
    lab.write("dir/deleted/b", "b\n");
    lab.write("dir/kept", "kept\n");
    lab.write("becomes-dir", "file\n");
    lab.write("becomes-file/x", "x\n");
    lab.write("becomes-link", "file\n");
    lab.write("moved", (0..40).map(|n| format!("moved {n}\n")).collect::<String>());
    lab.write("secret-mode", "x\n");
    lab.directory("empty");
    std::os::unix::fs::symlink("text", lab.project.join("link")).unwrap();
    std::os::unix::fs::symlink("gone", lab.project.join("link-becomes-file")).unwrap();
    lab.own_below(&lab.project);
    lab.program("chmod").args(["600", "secret-mode"]).run().ok();
}

const WORK: &str = "sed -i 's/^5$/five/; s/^35$/x/' text; printf '\\000\\003' > binary; rm deleted; \
    rm -r dir/deleted; rm becomes-dir; mkdir becomes-dir; echo y > becomes-dir/y; \
    rm -r becomes-file; echo z > becomes-file; ln -sf text becomes-link; mv moved moved-away; \
    chmod 755 secret-mode; rmdir empty; ln -sfn elsewhere link; rm link-becomes-file; \
    echo q > link-becomes-file; mkdir -p new/deep; echo n > new/deep/n; mkdir new-empty; chmod 711 dir";

#[test]
fn undo_restores_everything_exactly_and_can_be_undone() {
    for_both(|lab| {
        furnish(lab);
        let before = lab.tree();
        lab.worked("s", WORK);
        let (digest, changed) = (lab.diff("s")["digest"].clone(), paths(&lab.diff("s")));
        lab.approve(&["s"]);
        let after = lab.tree();
        assert!(paths(&lab.diff("s")).is_empty());
        let first = lab.skep(["undo", "--json"]).run().ok().json();
        lab.tree().assert_equals(&before, "undone");
        assert_eq!(paths(&lab.diff("s")), changed, "pending again");
        assert_eq!(lab.diff("s")["digest"], digest, "the same change set");
        lab.skep(["undo", first["approval"].as_str().unwrap()]).run().ok();
        lab.tree().assert_equals(&after, "the undo undone");
        assert!(paths(&lab.diff("s")).is_empty());
        lab.skep(["undo"]).run().ok();
        lab.tree().assert_equals(&before, "and again");
        lab.approve(&["s"]);
        lab.tree().assert_equals(&after, "approved again");
    });
}

/// A command in a running sandbox is asked of its keeper, and nobody opens the store for it.
#[test]
fn crash_3_a_command_after_a_killed_undo_sees_all_of_it_or_nothing() {
    for_both(|lab| {
        let files = || ["f1", "f2", "f3", "f4"].into_iter();
        for name in files() {
            lab.write(name, "before\n");
        }
        lab.create("s");
        lab.exec_script("s", "for f in f1 f2 f3 f4; do echo after > $f; done").run().ok();
        lab.approve(&["s"]);
        lab.exec_script("s", "true").run().ok();
        let undo = lab.skep(["undo"]).env("SKEP_FAILPOINT", "apply.published:1=kill");
        assert_ne!(undo.run().code(), 0);
        let undone = || files().filter(|name| lab.bytes(name) == b"before\n").count();
        assert!((1..4).contains(&undone()), "the control: it is half done");
        lab.exec_script("s", "true").run().ok();
        assert_eq!(undone(), 4);
        assert!(!lab.state.join("applying").exists(), "the next command asks the keeper again");
    });
}

#[test]
fn undo_works_when_the_sandbox_is_gone() {
    for_both(|lab| {
        furnish(lab);
        let before = lab.tree();
        lab.worked("s", WORK);
        lab.approve(&["s"]);
        lab.skep(["rm", "s"]).run().ok();
        lab.skep(["undo"]).run().ok();
        lab.tree().assert_equals(&before, "undone without the sandbox");
    });
}

#[test]
fn undo_refuses_and_names_what_the_user_changed_since() {
    for_both(|lab| {
        furnish(lab);
        lab.worked("s", WORK);
        lab.approve(&["s"]);
        let after = lab.root.join("after");
        lab.program("cp").args(["-a", "--"]).args([&lab.project, &after]).run().ok();
        let edits: [(&str, &str); 11] = [
            ("text", "echo more >> text"),
            ("text", "rm text; mkdir text"),
            ("binary", "rm binary"),
            ("deleted", "echo mine > deleted"),
            ("becomes-dir", "echo mine > becomes-dir/mine"),
            ("becomes-file", "chmod 600 becomes-file"),
            ("becomes-link", "ln -sfn other becomes-link"),
            ("new/deep", "echo mine > new/deep/mine"),
            ("new-empty", "echo mine > new-empty/mine"),
            ("moved", "echo mine > moved"),
            ("moved-away", "mv moved-away further"),
        ];
        for (name, edit) in edits {
            println!("{edit}");
            lab.program("sh").args(["-ec", edit]).run().ok();
            let ran = lab.without_effect(lab.skep(["undo", "--json"]));
            assert_eq!(ran.code(), 4, "{edit}: {}", ran.describe());
            assert!(ran.errors().contains(name), "{edit}: {}", ran.describe());
            // As it was: the refusal has left the approval as undoable as before.
            let restore = "find . -mindepth 1 -delete; cp -a \"$0\"/. .";
            lab.program("sh").args(["-ec", restore]).arg(&after).run().ok();
        }
        // A change elsewhere is in nobody's way.
        lab.write("unrelated", "unrelated\n");
        lab.write("dir/unrelated", "unrelated\n");
        lab.skep(["undo"]).run().ok();
        assert_eq!(lab.bytes("unrelated"), b"unrelated\n");
        assert_eq!(lab.bytes("dir/unrelated"), b"unrelated\n");
        assert_eq!(lab.bytes("deleted"), b"deleted\n");
        fs::remove_dir_all(after).unwrap();
    });
}

/// Nothing came of it: the history tells what was done to the project, the events that it was tried.
#[test]
fn a_refused_undo_is_in_the_events_and_not_in_the_history() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.worked("s", "echo new > f");
        let approval = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        let history = || lab.skep(["history", "--json"]).run().ok().json();
        let before = history();
        lab.write("f", "mine\n");
        for line in [&["undo"][..], &["undo", &approval]] {
            lab.without_effect(lab.skep(line)).exits(4).says("nothing was changed");
        }
        assert_eq!(history(), before);
        assert_eq!(lab.skep(["history", "f", "--json"]).run().ok().json(), before);
        let events = lab.skep(["events", "--json"]).run().ok().json_lines();
        let refused = events.iter().filter(|event| event["kind"] == "approval.refused");
        assert_eq!(refused.count(), 2, "{events:?}");
        assert_eq!(fs::read_dir(lab.state.join("approvals")).unwrap().count(), 1);
        // Control: one that is not refused is there.
        lab.write("f", "new\n");
        lab.skep(["undo"]).run().ok();
        assert_eq!(history()[0]["undoes"], approval.as_str());
        assert_eq!(history().as_array().unwrap().len(), 2);
    });
}

#[test]
fn undo_of_an_older_approval_is_exact_or_refused() {
    for_both(|lab| {
        lab.write("a", "one\n");
        lab.write("b", "one\n");
        lab.up("s");
        let step = |script: &str| {
            lab.inside("s", script);
            lab.approve(&["s"])["approval"].as_str().unwrap().to_owned()
        };
        let first = step("echo two > a");
        let second = step("echo two > b");
        let third = step("echo three > a");
        let ran = lab.without_effect(lab.skep(["undo", &first]));
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        lab.skep(["undo", &second]).run().ok();
        assert_eq!((lab.bytes("a"), lab.bytes("b")), (b"three\n".to_vec(), b"one\n".to_vec()));
        lab.skep(["undo", &third]).run().ok();
        lab.skep(["undo", &first]).run().ok();
        assert_eq!((lab.bytes("a"), lab.bytes("b")), (b"one\n".to_vec(), b"one\n".to_vec()));
        // Done is done.
        assert_eq!(lab.without_effect(lab.skep(["undo", &first])).code(), 4);
        assert_eq!(lab.skep(["undo", "zzzz"]).run().code(), 3);
        assert_eq!(paths(&lab.diff("s")), ["a", "b"], "all of it is pending again");
    });
}

#[test]
fn undo_of_a_partial_approval_makes_its_hunks_pending() {
    for_both(|lab| {
        let text: String = (0..100).map(|n| format!("{n}\n")).collect();
        lab.write("f", &text);
        lab.worked("s", "sed -i 's/^10$/a/; s/^50$/b/; s/^90$/c/' f");
        let all = super::desk::hunks(&lab.diff("s"), None);
        lab.approve(&["s", "--hunk", &all[1].id]);
        lab.approve(&["s", "--hunk", &all[0].id]);
        lab.skep(["undo"]).run().ok();
        assert_eq!(lab.bytes("f"), text.replace("\n50\n", "\nb\n").as_bytes());
        let left: Vec<_> =
            super::desk::hunks(&lab.diff("s"), None).into_iter().map(|hunk| hunk.id).collect();
        assert_eq!(left, [all[0].id.clone(), all[2].id.clone()]);
        lab.skep(["undo"]).run().ok();
        assert_eq!(lab.bytes("f"), text.as_bytes());
        assert_eq!(super::desk::hunks(&lab.diff("s"), None), all);
    });
}

#[test]
fn an_approval_after_a_merge_is_undone_to_the_users_version() {
    for_both(|lab| {
        let text: String = (0..100).map(|n| format!("{n}\n")).collect();
        lab.write("f", &text);
        lab.worked("s", "sed -i 's/^10$/a/' f");
        let users = text.replace("\n90\n", "\nuser\n");
        lab.write("f", &users);
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), users.replace("\n10\n", "\na\n").as_bytes());
        lab.skep(["undo"]).run().ok();
        assert_eq!(lab.bytes("f"), users.as_bytes());
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), users.replace("\n10\n", "\na\n").as_bytes());
    });
}

/// A directory that its owner closed is not written because a file elsewhere had to be read.
#[test]
fn a_directory_that_the_user_closed_is_refused_and_what_came_closed_can_be_undone() {
    use std::os::unix::fs::PermissionsExt as _;
    for_each([Who::user()], |lab| {
        for mode in [0o000, 0o600, 0o555] {
            lab.write("f", "old\n");
            lab.write("d/a", "old\n");
            lab.write("d/sub/b", "old\n");
            lab.worked("s", "echo 1 >> f; echo 2 >> d/a; echo 3 >> d/sub/b");
            let shut = |mode| {
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(lab.project.join("d"), mode).unwrap();
            };
            shut(mode);
            let ran = lab.skep(["approve", "s"]).run();
            assert_eq!(ran.code(), 5, "{mode:o}: {}", ran.describe());
            shut(0o755);
            assert_eq!(lab.bytes("d/a"), b"old\n", "{mode:o}");
            assert_eq!(lab.bytes("f"), b"old\n", "{mode:o}");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
        lab.worked("s", "mkdir closed; echo 1 > closed/1; chmod 000 closed; echo x > x");
        lab.approve(&["s"]);
        assert!(lab.project.join("closed").exists());
        lab.skep(["undo"]).run().ok();
        assert!(!lab.project.join("closed").exists());
    });
}

/// A rename put back by hand is undone; one that was only moved on is for the user to say.
#[test]
fn a_rename_that_the_user_put_back_is_undone_already() {
    for_both(|lab| {
        let text: String = (0..40).map(|n| format!("{n}\n")).collect();
        lab.write("a", &text);
        lab.write("d/one", "one\n");
        lab.worked("s", "mv a b; mv d e; echo n > n");
        let before = lab.tree();
        let id = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        fs::rename(lab.project.join("b"), lab.project.join("elsewhere")).unwrap();
        let ran = lab.without_effect(lab.skep(["undo", &id]));
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        assert!(ran.errors().contains("`b`"), "{}", ran.describe());
        fs::rename(lab.project.join("elsewhere"), lab.project.join("a")).unwrap();
        lab.skep(["undo", &id]).run().ok();
        lab.tree().assert_equals(&before, "all is as it was");
    });
}

/// Put back by hand, by `git checkout` or an editor: that is what an undo is for, and no conflict.
#[test]
fn what_the_user_put_back_is_undone_already() {
    for_both(|lab| {
        for name in ["a", "b", "gone"] {
            lab.write(name, "old\n");
        }
        lab.worked("s", "echo new > a; echo new > b; rm gone; echo n > n");
        let before = lab.tree();
        let id = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        lab.write("a", "old\n");
        lab.write("gone", "old\n");
        fs::remove_file(lab.project.join("n")).unwrap();
        lab.skep(["undo", &id]).run().ok();
        lab.tree().assert_equals(&before, "all is as it was");
        assert_eq!(super::desk::paths(&lab.diff("s")), ["a", "b", "gone", "n"]);
        // All of it by hand: the undo has nothing to write, and is made.
        let id = lab.approve(&["s", "a"])["approval"].as_str().unwrap().to_owned();
        lab.write("a", "old\n");
        lab.skep(["undo", &id]).run().ok();
        assert_eq!(super::desk::paths(&lab.diff("s")), ["a", "b", "gone", "n"]);
        // Anything else is the user's.
        let id = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        lab.write("a", "mine\n");
        lab.write("b", "old\n");
        let ran = lab.without_effect(lab.skep(["undo", &id]));
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        assert!(ran.errors().contains("`a`"), "{}", ran.describe());
    });
}

/// A fork that was made after an approval has its work. What is undone is pending there again, and settled when
/// the undo is undone; also where the sandbox it came from is gone.
#[test]
fn what_is_undone_is_pending_in_forks_too() {
    for_both(|lab| {
        for gone in [false, true] {
            lab.write("f", "1\n2\n3\n");
            lab.worked("s", "sed -i s/2/two/ f; echo n > n");
            lab.approve(&["s"]);
            lab.skep(["fork", "s", "--name", "t"]).run().ok();
            assert!(lab.diff("t")["changes"].as_array().unwrap().is_empty());
            if gone {
                lab.skep(["rm", "s"]).run().ok();
            }
            let undo = lab.skep(["undo", "--json"]).run().ok().json();
            assert_eq!(lab.bytes("f"), b"1\n2\n3\n");
            for name in if gone { &["t"][..] } else { &["s", "t"] } {
                let diff = lab.diff(name);
                assert_eq!(super::desk::paths(&diff), ["f", "n"], "{name}, gone {gone}");
                assert_eq!(super::desk::drift(&diff), [], "{name}, gone {gone}");
            }
            lab.skep(["undo", undo["approval"].as_str().unwrap()]).run().ok();
            assert_eq!(lab.bytes("f"), b"1\ntwo\n3\n");
            assert!(lab.diff("t")["changes"].as_array().unwrap().is_empty(), "gone {gone}");
            lab.skep(["undo"]).run().ok();
            lab.approve(&["t"]);
            assert_eq!(lab.bytes("f"), b"1\ntwo\n3\n");
            for name in ["s", "t"] {
                let _ = lab.skep(["rm", "--discard", name]).run();
            }
            std::fs::remove_file(lab.project.join("n")).unwrap();
        }
    });
}

/// A sandbox that took an approval of another in by a rebase did not write it: undone, it is not its change.
#[test]
fn what_is_undone_is_not_the_work_of_who_took_it_in() {
    for_both(|lab| {
        let text = |edits: &[(usize, &str)]| -> String {
            let find = |n: usize| edits.iter().find(|(at, _)| *at == n).map(|(_, text)| *text);
            (1..=40).map(|n| find(n).map_or(format!("{n}\n"), |text| format!("{text}\n"))).collect()
        };
        lab.write("f", text(&[]));
        lab.worked("s", "sed -i 's/^5$/five/' f");
        lab.worked("t", "sed -i 's/^30$/thirty/' f");
        lab.approve(&["s"]);
        lab.skep(["rebase", "t"]).run().ok();
        lab.skep(["undo"]).run().ok();
        let diff = lab.diff("t");
        assert!(!diff["changes"].to_string().contains("five"), "{diff}");
        lab.approve(&["t"]);
        assert_eq!(lab.bytes("f"), text(&[(30, "thirty")]).as_bytes());
    });
}

/// Whoever is in the way is named, and what is told to do works.
#[test]
fn an_undo_that_is_refused_says_what_to_undo_first() {
    for_both(|lab| {
        lab.write("f", (0..40).map(|n| format!("{n}\n")).collect::<String>());
        let before = lab.tree();
        lab.worked("s", "sed -i 's/^5$/five/; s/^35$/x/' f");
        let hunks = lab.diff("s")["changes"][0]["hunks"].clone();
        let approve = |hunk: usize| {
            let id = hunks[hunk]["id"].as_str().unwrap();
            let report = lab.skep(["approve", "s", "--hunk", id, "--json"]).run().ok().json();
            report["approval"].as_str().unwrap().to_owned()
        };
        let (first, second) = (approve(0), approve(1));
        let refused = lab.skep(["undo", &first]).run().exits(4);
        refused.says(&format!("`skep undo {second}` first"));
        let approved = lab.bytes("f");
        lab.write("f", "mine\n");
        lab.skep(["undo", &second]).run().exits(4).says("take your own edits out");
        lab.write("f", approved);
        lab.skep(["undo", &second]).run().ok();
        lab.skep(["undo", &first]).run().ok();
        lab.tree().assert_equals(&before, "both undone");
    });
}
