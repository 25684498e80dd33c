//! The user goes on working: nothing of the user's is reverted, whatever the sandbox did.

use super::desk::{drift, hunks, paths};
use crate::harness::{Lab, Tree, for_both, wait_for};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

pub(super) fn numbered(count: usize) -> String {
    (1..=count).map(|n| format!("{n}\n")).collect()
}

/// The numbered text with some lines replaced.
pub(super) fn with(count: usize, edits: &[(usize, &str)]) -> String {
    let line = |n: usize| match edits.iter().find(|(at, _)| *at == n) {
        Some((_, text)) => format!("{text}\n"),
        None => format!("{n}\n"),
    };
    (1..=count).map(line).collect()
}

fn git(lab: &Lab, arguments: &[&str]) {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"];
    lab.program("git").args(identity).args(arguments).run().ok();
}

pub(super) const KINDS: [&str; 5] = ["no-git", "clean", "dirty", "untracked", "staged"];

/// Makes a repository of the project, as far as one of that kind is one.
pub(super) fn known_to_git(lab: &Lab, kind: &str) {
    if kind != "no-git" {
        git(lab, &["init", "-q", "."]);
        git(lab, &["add", if kind == "untracked" { "keep" } else { "." }]);
        if kind != "staged" {
            git(lab, &["commit", "-qm", "first"]);
        }
    }
}

/// Every way in which a project can be: without git, clean, dirty, untracked.
fn each_project(lab: &Lab, test: impl Fn(&str)) {
    for kind in KINDS {
        fs::remove_dir_all(&lab.project).unwrap();
        lab.directory("");
        lab.write("f", if kind == "dirty" { "committed\n".to_owned() } else { numbered(60) });
        lab.write("keep", "keep\n");
        known_to_git(lab, kind);
        if kind == "dirty" {
            lab.write("f", numbered(60));
        }
        println!("{kind}");
        test(kind);
        for sandbox in lab.sandboxes() {
            let id = sandbox["id"].as_str().unwrap();
            lab.skep(["rm", "--discard", id]).run().ok();
        }
    }
}

#[test]
fn diff_7_both_sides_of_one_file_are_merged_or_refused() {
    for_both(|lab| {
        each_project(lab, |kind| {
            lab.worked("s", "sed -i 's/^10$/ten/' f; sed -i 's/^50$/fifty/' f");
            lab.write("f", with(60, &[(30, "the user's")]));
            let diff = lab.diff("s");
            assert_eq!(drift(&diff), [("f".to_owned(), true)], "{kind}: {diff}");
            // What is shown is the sandbox's work, not the user's reverted.
            let shown = diff["changes"].to_string();
            assert!(!shown.contains("the user's"), "{kind}: {shown}");
            let report = lab.approve(&["s"]);
            let merged = with(60, &[(10, "ten"), (30, "the user's"), (50, "fifty")]);
            assert_eq!(String::from_utf8(lab.bytes("f")).unwrap(), merged, "{kind}: {report}");
            lab.skep(["undo"]).run().ok();
            let before = with(60, &[(30, "the user's")]);
            assert_eq!(String::from_utf8(lab.bytes("f")).unwrap(), before, "{kind}");
            // The same line on both sides.
            lab.write("f", with(60, &[(10, "the user's ten")]));
            lab.conflicts(&["s"]);
            lab.conflicts(&["s", "f"]);
            let list = lab.skep(["conflicts", "s", "--json"]).run().ok().json();
            assert_eq!(list[0]["path"], "f", "{list}");
            assert_eq!(list[0]["merges"], false, "{list}");
            let side =
                |side: &str| lab.skep(["conflicts", "s", "f", "--side", side]).run().ok().stdout;
            assert_eq!(side("base"), numbered(60).as_bytes());
            assert_eq!(side("project"), lab.bytes("f"));
            assert_eq!(side("sandbox"), with(60, &[(10, "ten"), (50, "fifty")]).as_bytes());
        });
    });
}

#[test]
fn diff_6_a_host_edit_before_the_stale_write_is_not_reverted() {
    for_both(|lab| {
        each_project(lab, |kind| {
            lab.up("s");
            // The agent has read the file; the user saves; the agent writes what it had read.
            lab.inside("s", "cp f /tmp/read; sed -i 's/^10$/ten/' /tmp/read");
            lab.write("f", with(60, &[(30, "the user's")]));
            lab.inside("s", "cat /tmp/read > f");
            let ran = lab.skep(["approve", "s", "--json"]).run();
            let text = String::from_utf8(lab.bytes("f")).unwrap();
            assert!(text.contains("the user's"), "{kind}: {}", ran.describe());
            match ran.code() {
                0 => assert_eq!(text, with(60, &[(10, "ten"), (30, "the user's")]), "{kind}"),
                4 => assert_eq!(text, with(60, &[(30, "the user's")]), "{kind}"),
                _ => panic!("{kind}: {}", ran.describe()),
            }
        });
    });
}

#[test]
fn diff_6_a_host_edit_seen_before_any_write_inside_is_no_change_of_the_agent() {
    for_both(|lab| {
        each_project(lab, |kind| {
            lab.up("s");
            lab.inside("s", "echo mine > mine");
            lab.write("f", with(60, &[(30, "the user's")]));
            fs::remove_file(lab.project.join("keep")).unwrap();
            lab.write("added", "added\n");
            lab.write("deep/added", "added\n");
            let diff = lab.diff("s");
            assert_eq!(paths(&diff), ["mine"], "{kind}: foreign changes are not the agent's");
            let mut expected = lab.tree();
            lab.approve(&["s"]);
            let mut after = lab.tree();
            assert!(after.nodes.remove(Path::new("mine")).is_some());
            expected.nodes.remove(Path::new("mine"));
            after.assert_equals(&expected, kind);
        });
    });
}

#[test]
fn diff_6_a_parent_swapped_by_mv_is_seen() {
    for_both(|lab| {
        for git_project in [false, true] {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("dir/sub/f", numbered(60));
            // Older than the sandbox, with bytes of its own.
            lab.write("spare/f", with(60, &[(30, "the other's")]));
            if git_project {
                git(lab, &["init", "-q", "."]);
                git(lab, &["add", "."]);
                git(lab, &["commit", "-qm", "first"]);
            }
            lab.worked("s", "sed -i 's/^10$/ten/' dir/sub/f");
            let swap = |from: &str, to: &str| {
                fs::rename(lab.project.join(from), lab.project.join(to)).unwrap();
            };
            swap("dir/sub", "away");
            swap("spare", "dir/sub");
            let ran = lab.skep(["approve", "s", "--json"]).run();
            let text = String::from_utf8(lab.bytes("dir/sub/f")).unwrap();
            assert!(text.contains("the other's"), "{}", ran.describe());
            match ran.code() {
                0 => assert_eq!(text, with(60, &[(10, "ten"), (30, "the other's")])),
                4 => assert_eq!(text, with(60, &[(30, "the other's")])),
                _ => panic!("{}", ran.describe()),
            }
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn diff_6_a_parent_swapped_before_the_write_inside_is_seen() {
    for_both(|lab| {
        lab.write("dir/sub/f", numbered(60));
        lab.write("spare/f", with(60, &[(30, "the other's")]));
        lab.up("s");
        lab.inside("s", "cp dir/sub/f /tmp/read");
        fs::rename(lab.project.join("dir/sub"), lab.project.join("away")).unwrap();
        fs::rename(lab.project.join("spare"), lab.project.join("dir/sub")).unwrap();
        lab.inside(
            "s",
            "sed -i 's/^10$/ten/' /tmp/read; mkdir -p dir/sub; cat /tmp/read > dir/sub/f || true",
        );
        let before = lab.tree();
        let ran = lab.skep(["approve", "s", "--json"]).run();
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        lab.tree().assert_equals(&before, "nothing changed");
    });
}

#[test]
fn diff_6_a_forged_modification_time_does_not_make_a_new_file_old() {
    for_both(|lab| {
        lab.write("f", numbered(60));
        lab.worked("s", "sed -i 's/^10$/ten/' f");
        // The modification time says 2001; the change time cannot be forged without the clock.
        lab.write("f", with(60, &[(10, "the user's ten")]));
        lab.program("touch").args(["-d", "2001-01-01", "f"]).run().ok();
        lab.conflicts(&["s"]);
    });
}

#[test]
fn diff_7_the_user_deletes_renames_or_replaces() {
    for_both(|lab| {
        let cases: [(&str, &str, &str); 7] = [
            ("deleted by the user, edited inside", "rm f", "echo x >> f"),
            ("renamed by the user, edited inside", "mv f g", "echo x >> f"),
            ("replaced by a directory", "rm f; mkdir f; echo y > f/y", "echo x >> f"),
            ("replaced by a link", "rm f; ln -s keep f", "echo x >> f"),
            ("edited by the user, deleted inside", "echo y >> f", "rm f"),
            (
                "edited by the user, replaced by a directory inside",
                "echo y >> f",
                "rm f; mkdir f; echo x > f/x",
            ),
            ("added on both sides", "echo y > new", "echo x > new"),
        ];
        for (what, host, inside) in cases {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("f", numbered(60));
            lab.write("keep", "keep\n");
            lab.worked("s", inside);
            lab.program("sh").args(["-ec", host]).run().ok();
            println!("{what}");
            lab.conflicts(&["s"]);
            let diff = lab.diff("s");
            assert!(!diff["conflicts"].as_array().unwrap().is_empty(), "{what}: {diff}");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn diff_7_the_same_on_both_sides_is_no_conflict() {
    for_both(|lab| {
        let cases: [&str; 5] =
            ["echo same > f", "rm f", "echo same > new", "rm f; ln -s keep f", "chmod 600 f"];
        for work in cases {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("f", numbered(60));
            lab.write("keep", "keep\n");
            lab.worked("s", work);
            lab.program("sh").args(["-ec", work]).run().ok();
            let before = lab.tree();
            println!("{work}");
            assert!(paths(&lab.diff("s")).is_empty(), "{work}");
            lab.skep(["approve", "s"]).run().ok();
            lab.tree().assert_equals(&before, work);
            lab.skep(["rm", "s"]).run().ok();
        }
    });
}

#[test]
fn diff_7_a_directory_deleted_inside_keeps_what_the_user_added() {
    for_both(|lab| {
        let cases: [(&str, &str, i32); 4] = [
            ("rm -r d", "echo mine > d/mine", 4),
            ("rm -r d", "mkdir -p d/sub/deep; echo mine > d/sub/deep/mine", 4),
            // The directory is there on both sides: what was in it goes, what was added stays.
            ("rm -r d; mkdir d; echo n > d/n", "echo mine > d/mine", 0),
            ("rm -r d; echo file > d", "echo mine > d/sub/mine", 4),
        ];
        for (inside, host, code) in cases {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("d/a", "a\n");
            lab.write("d/sub/b", "b\n");
            lab.worked("s", inside);
            lab.program("sh").args(["-ec", host]).run().ok();
            println!("{inside} / {host}");
            let mine = lab.tree();
            let (path, node) = mine.nodes.iter().find(|(path, _)| path.ends_with("mine")).unwrap();
            let before = lab.tree();
            let ran = lab.skep(["approve", "s", "--json"]).run();
            assert_eq!(lab.tree().get(path), Some(node), "{}", ran.describe());
            assert_eq!(ran.code(), code, "{}", ran.describe());
            if code == 4 {
                lab.tree().assert_equals(&before, "nothing changed");
            }
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn diff_7_two_sandboxes_of_one_file_merge_or_conflict() {
    for_both(|lab| {
        lab.write("f", numbered(60));
        lab.write("only", "only\n");
        lab.worked("one", "sed -i 's/^10$/ten/' f; echo one > from-one");
        lab.worked("two", "sed -i 's/^50$/fifty/' f; echo two > from-two; rm only");
        lab.worked("three", "sed -i 's/^10$/TEN/' f; echo three > from-three; echo x > only");
        let warnings = lab.diff("two")["warnings"].to_string();
        assert!(warnings.contains("one") && warnings.contains("three"), "{warnings}");
        lab.approve(&["one"]);
        lab.approve(&["two"]);
        let both = with(60, &[(10, "ten"), (50, "fifty")]);
        assert_eq!(lab.bytes("f"), both.as_bytes());
        lab.conflicts(&["three"]);
        assert_eq!(lab.bytes("f"), both.as_bytes());
        // What does not collide can still be taken.
        lab.approve(&["three", "from-three"]);
        lab.conflicts(&["three", "only"]);
        for name in ["from-one", "from-two", "from-three"] {
            assert!(lab.project.join(name).exists(), "{name}");
        }
    });
}

#[test]
fn diff_7_modes_drift_too() {
    for_both(|lab| {
        lab.write("f", numbered(60));
        lab.write("g", numbered(60));
        lab.program("chmod").args(["644", "f", "g"]).run().ok();
        lab.worked("s", "sed -i 's/^10$/ten/' f; chmod 755 g");
        lab.program("sh").args(["-ec", "chmod 600 f; sed -i 's/^50$/fifty/' g"]).run().ok();
        lab.approve(&["s"]);
        let tree = lab.tree();
        let (f, g) = (tree.get("f").unwrap(), tree.get("g").unwrap());
        assert_eq!((f.mode, &f.bytes[..]), (0o600, with(60, &[(10, "ten")]).as_bytes()));
        assert_eq!((g.mode, &g.bytes[..]), (0o755, with(60, &[(50, "fifty")]).as_bytes()));
    });
}

#[test]
fn diff_7_binaries_changed_on_both_sides_conflict() {
    for_both(|lab| {
        lab.write("b", b"\0one");
        lab.worked("s", "printf '\\000two' > b");
        lab.write("b", b"\0three");
        lab.conflicts(&["s"]);
        assert_eq!(lab.bytes("b"), b"\0three");
    });
}

#[test]
fn diff_6_a_checkout_of_another_branch_is_merged_or_refused() {
    for_both(|lab| {
        lab.write("f", numbered(60));
        lab.write("gone", "gone\n");
        git(lab, &["init", "-q", "-b", "main", "."]);
        git(lab, &["add", "."]);
        git(lab, &["commit", "-qm", "first"]);
        git(lab, &["checkout", "-qb", "other"]);
        lab.write("f", with(60, &[(30, "other branch")]));
        lab.write("new", "new\n");
        git(lab, &["rm", "-q", "gone"]);
        git(lab, &["add", "."]);
        git(lab, &["commit", "-qm", "second"]);
        git(lab, &["checkout", "-q", "main"]);
        lab.worked("s", "sed -i 's/^10$/ten/' f; echo x >> gone");
        git(lab, &["checkout", "-q", "other"]);
        assert_eq!(paths(&lab.diff("s")), ["f", "gone"]);
        lab.conflicts(&["s"]);
        lab.approve(&["s", "f"]);
        assert_eq!(lab.bytes("f"), with(60, &[(10, "ten"), (30, "other branch")]).as_bytes());
        assert!(!lab.project.join("gone").exists());
    });
}

#[test]
fn a_project_that_was_emptied_is_no_set_of_deletions() {
    for_both(|lab| {
        lab.write("d/f", "x\n");
        lab.worked("s", "echo y > d/f");
        Command::new("sh").args(["-c", "rm -r d"]).current_dir(&lab.project).status().unwrap();
        lab.conflicts(&["s"]);
        let before = Tree::read(&lab.project);
        assert!(before.get("d").is_none());
    });
}

/// A page that is dirty already is written without a fault: no time of the file moves.
#[test]
fn a_write_through_a_mapping_is_not_reverted() {
    const MAPPED: &str = r#"
import mmap, os, sys, time
file = open(sys.argv[1], "r+b")
m = mmap.mmap(file.fileno(), 0)
m[0:4] = b"LINE"
open(sys.argv[2] + "/mapped", "w").close()
while not os.path.exists(sys.argv[2] + "/go"):
    time.sleep(0.01)
m[5:6] = b"X"
os.rename(sys.argv[2] + "/go", sys.argv[2] + "/done")
time.sleep(60)
"#;
    for_both(|lab| {
        let text: String = (0..40).map(|n| format!("line {n}\n")).collect();
        let file = lab.write("f", &text);
        let room = lab.directory(lab.root.join("room"));
        let script = lab.write(lab.root.join("mapped.py"), MAPPED);
        let mut python = lab.program("python3").arg(&script).arg(&file).arg(&room).spawn();
        let there = |name: &str| room.join(name).exists().then_some(());
        wait_for("the mapping", 20, || there("mapped"));
        lab.up("s");
        lab.inside("s", "sed -i 's/line 39$/AGENT/' f");
        // Renamed as soon as it is there: it is given to nobody.
        fs::write(room.join("go"), "").unwrap();
        wait_for("the write", 20, || there("done"));
        assert_eq!(drift(&lab.diff("s")), [("f".to_owned(), true)]);
        lab.approve(&["s"]);
        let expected = text.replace("line 0\n", "LINE X\n").replace("line 39", "AGENT");
        assert_eq!(String::from_utf8(lab.bytes("f")).unwrap(), expected);
        python.kill().unwrap();
        python.wait().unwrap();
    });
}

/// A copy does not show what comes into the project later: that it is not there is nobody's removal.
#[test]
fn directories_that_come_later_are_no_conflict_in_a_copy() {
    for_both(|lab| {
        lab.write("f", "1\n2\n3\n");
        lab.write("d/old", "old\n");
        lab.skep(["create", "s"]).env("SKEP_DRIVER", "copy").run().ok();
        lab.inside("s", "echo 4 >> f; mkdir made; echo m > made/m");
        let reviewed = lab.diff("s")["digest"].clone();
        lab.write("new/deep/x", "user\n");
        lab.directory(lab.project.join("new/empty"));
        let diff = lab.diff("s");
        assert_eq!(paths(&diff), ["f", "made/m"], "{diff}");
        assert_eq!(diff["conflicts"], serde_json::json!([]));
        assert_eq!(diff["digest"], reviewed, "the sandbox's work is the same");
        lab.approve(&["s", "made"]);
        lab.skep(["rebase", "s"]).run().ok();
        lab.inside("s", "test \"$(cat new/deep/x)\" = user; test -d new/empty");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), b"1\n2\n3\n4\n");
        assert_eq!(lab.bytes("new/deep/x"), b"user\n");
        // What came with an approval and goes inside goes; what the user adds there meets a removal.
        lab.inside("s", "rm -r made d");
        assert_eq!(paths(&lab.diff("s")), ["d/old", "made/m"]);
        lab.write("d/more/x", "user\n");
        let ran = lab.conflicts(&["s"]);
        assert!(ran.errors().contains("d/more/x"), "{}", ran.describe());
        lab.approve(&["s", "made"]);
        assert!(!lab.project.join("made").exists());
        assert_eq!(lab.bytes("d/more/x"), b"user\n");
    });
}

/// Without git, too: of what is changed in a copy the bytes that it began with are kept, as long as the
/// project has them. One that the user edited first has an unknown text before it, and is a conflict.
#[test]
fn a_copy_merges_what_it_kept() {
    let lines = |edits: &[(usize, &str)]| -> String {
        let line =
            |n: usize| edits.iter().find(|(at, _)| *at == n).map_or(n.to_string(), |e| e.1.into());
        (1..=40).map(|n| line(n) + "\n").collect()
    };
    for_both(|lab| {
        for (name, edits) in [("f", &[][..]), ("late", &[(1, "late")]), ("mode", &[])] {
            lab.write(name, lines(edits));
        }
        lab.skep(["create", "s"]).env("SKEP_DRIVER", "copy").run().ok();
        lab.write("late", lines(&[(1, "late"), (5, "user")]));
        // Its bytes are those of the base, whatever its mode.
        let shut = fs::Permissions::from_mode(0o600);
        fs::set_permissions(lab.project.join("mode"), shut).unwrap();
        lab.inside("s", "sed -i 's/^30$/agent/' f late mode");
        lab.skep(["stop", "s"]).run().ok();
        lab.write("f", lines(&[(5, "user")]));
        let diff = lab.diff("s");
        let moved = [("f", true), ("late", false), ("mode", true)];
        assert_eq!(drift(&diff), moved.map(|(path, merges)| (path.to_owned(), merges)));
        assert_eq!(hunks(&diff, Some("mode")).len(), 1, "{diff}");
        lab.approve(&["s", "f", "mode"]);
        assert_eq!(lab.bytes("f"), lines(&[(5, "user"), (30, "agent")]).as_bytes());
        assert_eq!(lab.bytes("mode"), lines(&[(30, "agent")]).as_bytes());
        lab.conflicts(&["s", "late"]);
    });
}

/// What was removed inside and is made there again later is merged with what the user did meanwhile.
#[test]
fn a_copy_merges_what_was_removed_and_made_again() {
    let lines = |edits: &[(usize, &str)]| -> String {
        let line =
            |n: usize| edits.iter().find(|(at, _)| *at == n).map_or(n.to_string(), |e| e.1.into());
        (1..=40).map(|n| line(n) + "\n").collect()
    };
    for_both(|lab| {
        for driver in ["copy", ""] {
            let _ = fs::remove_dir_all(&lab.project);
            let files = ["f", "d/g", "d/deep/h"];
            for name in files {
                lab.write(name, lines(&[]));
            }
            let create = lab.skep(["create", "s"]);
            match driver {
                "" => create,
                driver => create.env("SKEP_DRIVER", driver),
            }
            .run()
            .ok();
            lab.inside("s", "rm -r f d");
            for name in files {
                lab.write(name, lines(&[(5, "user")]));
            }
            let made = lines(&[(30, "agent")]);
            let script = "mkdir -p d/deep; cat > f; cp f d/g; cp f d/deep/h";
            lab.skep(["exec", "-i", "s", "--", "sh", "-ec", script]).input(made).run().ok();
            // The overlay keeps no bytes of what is below a directory that was removed.
            let merged: &[&str] = if driver == "copy" { &files } else { &files[..1] };
            lab.approve(&[&["s"], merged].concat());
            for name in merged {
                let both = lines(&[(5, "user"), (30, "agent")]);
                assert_eq!(lab.bytes(name), both.as_bytes(), "{driver} {name}");
            }
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}
