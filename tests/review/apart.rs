//! What is set apart in a review, ignored paths and git's own changes, never stands in the way of the
//! rest, is never applied unasked, and never goes without a word.

use super::desk::{git, repository};
use crate::harness::{Lab, for_both};

fn state(lab: &Lab, name: &str) -> String {
    let shown = lab.skep(["show", name, "--json"]).run().ok().json();
    shown["state"].as_str().unwrap().to_owned()
}

#[test]
fn ignored_paths_that_are_left_do_not_hold_an_approved_sandbox() {
    for_both(|lab| {
        lab.write(".gitignore", "*.log\n");
        lab.write("a", "old\n");
        lab.worked("s", "echo new > a; echo built > x.log; echo built > y.log");
        lab.skep(["rm", "s"]).run().exits(4).says("1 unreviewed change, 2 ignored paths");
        let ran = lab.skep(["approve", "s", "a"]).run().ok();
        ran.says("applied 1 change").says("left in s: 2 ignored paths");
        assert_eq!(state(lab, "s"), "approved");
        let ran = lab.skep(["gc", "--dry-run"]).run().ok();
        assert!(ran.text().contains("approved"), "{}", ran.describe());
        assert!(ran.text().contains("2 paths left that are ignored"), "{}", ran.describe());
        // A later write is work again.
        lab.skep(["exec", "s", "--", "sh", "-c", "echo more > z.log"]).run().ok();
        lab.skep(["stop", "s"]).run().ok();
        let ran = lab.skep(["rm", "s"]).run().exits(4);
        ran.says("only 3 ignored paths left")
            .says("skep rm --discard s")
            .says("skep approve --ignored s");
        // Each way that was named leads on.
        let ran = lab.skep(["approve", "s"]).run().ok();
        ran.says("there was nothing to apply").says("left in s: 3 ignored paths");
        lab.skep(["rm", "s"]).run().ok().says("with 3 paths that were set apart");
        assert!(!lab.project.join("x.log").exists());
    });
}

/// Everybody counts as `diff` does, and what is set apart is told apart.
#[test]
fn one_sandbox_is_counted_one_way() {
    for_both(|lab| {
        lab.write(".gitignore", "out/\n");
        for name in ["f", "src/a", "src/b"] {
            lab.write(name, format!("{name}\n"));
        }
        repository(lab);
        lab.worked(
            "s",
            "echo z >> f; git mv src/a src/moved; mkdir -p out d/e; echo o > out/o; echo p > out/p; \
             echo x > d/e/x; rm src/b",
        );
        let seen = lab.skep(["diff", "s", "--stat"]).run().ok();
        seen.says("4 files changed").says("1 inside .git").says("2 ignored");
        let refused = lab.skep(["rm", "s"]).run().exits(4);
        refused.says("has 4 unreviewed changes, 1 inside .git, 2 ignored paths");
        let dropped = lab.skep(["reject", "s", "d"]).run().ok();
        let dropped = dropped.says("1 change was dropped from s");
        let dropped = dropped.says("left in s: 3 changes, 1 inside .git, 2 ignored paths");
        assert!(!dropped.errors().contains("dropped  d/e\n"), "{}", dropped.describe());
        let dropped = lab.skep(["reject", "s", "src/moved", "src/b"]).run().ok();
        dropped.says("2 changes were dropped from s");
        let applied = lab.skep(["approve", "s", "f", "--dry-run"]).run().ok();
        applied.says("1 change would be applied").says("left in s: 1 inside .git, 2 ignored paths");
        let line = ["reject", "s", "f", ".git/index"];
        lab.skep(line).run().ok().says("left in s: 2 ignored paths");
        let refused = lab.skep(["rm", "s"]).run().exits(4);
        refused.says("has only 2 ignored paths left").says("skep rm --discard s");
        lab.skep(["reject", "s"]).run().ok().says("nothing is left in s");
    });
}

#[test]
fn what_git_wrote_for_itself_is_left_out_of_everything() {
    for_both(|lab| {
        lab.write("a", "old\n");
        repository(lab);
        let index = lab.bytes(".git/index");
        lab.worked("s", "echo new > a; git add -A");
        for line in [&["approve", "s", "--dry-run"][..], &["approve", "s", ".", "--dry-run"]] {
            lab.skep(line).run().ok().says("1 change would be applied");
        }
        // By name it is still refused, and with what else can run it is never left out.
        lab.skep(["approve", "s", ".git/index"]).run().exits(5);
        let ran = lab.skep(["approve", "s"]).run().ok();
        ran.says("applied 1 change").says("git's own changes in `.git` are left out");
        assert_eq!(lab.bytes("a"), b"new\n");
        assert_eq!(lab.bytes(".git/index"), index);
        assert_eq!(state(lab, "s"), "approved");
        lab.skep(["rm", "s"]).run().ok();

        lab.worked("hook", "echo newer > a; git add -A; echo x > .git/hooks/pre-commit");
        lab.skep(["approve", "hook"]).run().exits(5).says("skep reject hook PATH");
        lab.skep(["reject", "hook", ".git/hooks/pre-commit"]).run().ok();
        lab.skep(["approve", "hook"]).run().ok();
        assert_eq!(lab.bytes("a"), b"newer\n");
        assert!(!lab.project.join(".git/hooks/pre-commit").exists());
    });
}

/// Git tidies up by itself, and a merge may be half done: neither is in anybody's way.
#[test]
fn what_git_gc_and_an_unfinished_merge_leave_holds_nothing_up() {
    for_both(|lab| {
        lab.write("a", "old\n");
        repository(lab);
        let script = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a \
                      GIT_COMMITTER_EMAIL=a@b; \
                      echo n > n; git add n; git commit -qm n; git gc -q; git branch side; \
                      echo one > a; git commit -qam one; git checkout -q side; \
                      echo two > a; git commit -qam two; git merge -q @{-1} || true; echo done > b";
        lab.worked("s", script);
        let ran = lab.skep(["approve", "s", "b"]).run().ok();
        ran.says("applied 1 change");
        let ran = lab.skep(["approve", "s"]).run().ok();
        ran.says("git's own changes in `.git` are left out");
        assert_eq!(lab.bytes("b"), b"done\n");
        assert!(!lab.project.join(".git/MERGE_HEAD").exists());
        // Another repository's objects, and what a rebase would run, never pass as such.
        let script = "mkdir -p .git/objects/info .git/rebase-merge; \
                      echo /elsewhere > .git/objects/info/alternates; \
                      echo 'exec touch x' > .git/rebase-merge/git-rebase-todo";
        lab.worked("t", script);
        lab.skep(["approve", "t"]).run().exits(5);
    });
}

#[test]
fn commits_wait_until_they_were_pulled() {
    for_both(|lab| {
        lab.write("a", "old\n");
        repository(lab);
        let commit = "git -c user.name=B -c user.email=b@example.org commit -qam";
        lab.worked("s", &format!("echo new > a; {commit} second"));
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(state(lab, "s"), "stopped", "the commit is only inside");
        lab.skep(["rm", "s"])
            .run()
            .exits(4)
            .says("commits that were not pulled")
            .says("skep pull s");
        lab.skep(["pull", "s"]).run().ok();
        // Another commit after the pull waits again.
        lab.skep(["exec", "s", "--", "sh", "-c", &format!("{commit} third --allow-empty")])
            .run()
            .ok();
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["rm", "s"]).run().exits(4).says("commits that were not pulled");
        lab.skep(["pull", "s"]).run().ok();
        lab.skep(["rm", "s"]).run().ok();

        // As documented: pull, merge, done.
        lab.skep(["undo"]).run().ok();
        git(lab, &["checkout", "-q", "-f", "main"]);
        lab.worked("t", &format!("echo newest > a; {commit} fourth"));
        lab.skep(["pull", "t"]).run().ok();
        git(lab, &["merge", "-q", "--ff-only", "refs/skep/t/main"]);
        let diff = lab.skep(["diff", "t"]).run().ok();
        assert!(!diff.text().contains("! conflict"), "{}", diff.describe());
        lab.skep(["rm", "t"]).run().ok();
        assert_eq!(lab.bytes("a"), b"newest\n");

        // A stash is no commit that a pull brings.
        lab.worked("u", "echo stashed > a; git -c user.name=B -c user.email=b@x.org stash -q");
        lab.skep(["pull", "u"]).run().ok();
        lab.skep(["rm", "u"]).run().exits(4);
    });
}

#[test]
fn a_repository_made_inside_is_one_line_and_has_a_way_out() {
    for_both(|lab| {
        let commit = "git -c user.name=B -c user.email=b@example.org commit -qm first";
        let line = format!("echo new > a; git init -q -b main .; git add -A; {commit}");
        let ran = lab.skep(["run", "--name", "s", "--", "sh", "-c", &line]).run().ok();
        assert_eq!(ran.errors().matches("! block").count(), 1, "{}", ran.describe());
        ran.says("a repository made inside");
        lab.skep(["approve", "s"]).run().ok().says("`git init` here, then `skep pull s`");
        assert_eq!(lab.bytes("a"), b"new\n");
        assert!(!lab.project.join(".git").exists());
        // The way that was named.
        git(lab, &["init", "-q", "-b", "main", "."]);
        lab.skep(["pull", "s"]).run().ok();
        assert!(git(lab, &["log", "--oneline", "refs/skep/s/main"]).contains("first"));
        lab.skep(["rm", "s"]).run().ok();
    });
}

#[test]
fn an_approval_says_what_it_applies_and_nothing_else() {
    for_both(|lab| {
        let lines: String = (1..=40).map(|number| format!("{number}\n")).collect();
        lab.write(".gitignore", "*.pyc\n");
        lab.write("many", &lines);
        lab.worked(
            "s",
            "sed -i '3s/.*/THREE/; 33s/.*/MORE/' many; mkdir -p t/deep; echo t > t/deep/one; \
             echo b > t/x.pyc; echo all: > Makefile; echo o > other",
        );
        let diff = lab.diff("s");
        let many = diff["changes"].as_array().unwrap().iter().find(|one| one["path"] == "many");
        let hunk = many.unwrap()["hunks"][0]["id"].as_str().unwrap().to_owned();
        let ran = lab.skep(["approve", "s", "--dry-run", "--hunk", &hunk]).run().ok();
        let ran = ran.says("modified many  +1 -1").says("1 change to apply, +1 -1");
        for other in ["other", "Makefile", "t/deep"] {
            assert!(!ran.errors().contains(other), "{other}: {}", ran.describe());
        }
        let ran = lab.skep(["approve", "s", "t/**", "other"]).run().ok();
        let ran = ran.says("2 changes to apply").says("applied 2 changes");
        for other in ["x.pyc", "Makefile", "many"] {
            assert!(!ran.errors().contains(other), "{other}: {}", ran.describe());
        }
        assert!(!lab.project.join("t/x.pyc").exists());
        lab.skep(["diff", "s", "many"]).run().ok().says("1 change shown, +2 -2; in all 2 files");
    });
}

#[test]
fn what_is_kept_by_name_is_not_collected() {
    for_both(|lab| {
        lab.skep(["run", "--name", "kept", "--keep", "--", "true"]).run().ok();
        lab.create("empty");
        lab.skep(["stop", "empty"]).run().ok();
        let ran = lab.skep(["gc"]).run().ok();
        assert!(ran.text().contains("was kept by `--keep`"), "{}", ran.describe());
        lab.skep(["show", "kept"]).run().ok();
        lab.skep(["show", "empty"]).run().exits(3);
    });
}

#[test]
fn the_kind_of_terminal_is_the_callers() {
    for_both(|lab| {
        lab.skep(["create", "s"]).env("TERM", "xterm").run().ok();
        let line = ["exec", "-t", "s", "--", "sh", "-c", "echo is:$TERM:"];
        let ran = lab.skep(line).env("TERM", "tmux-256color").run().ok();
        assert!(ran.text().contains("is:tmux-256color:"), "{}", ran.describe());
        let line = ["exec", "-t", "--env", "TERM=vt100", "s", "--", "sh", "-c", "echo is:$TERM:"];
        let ran = lab.skep(line).env("TERM", "tmux-256color").run().ok();
        assert!(ran.text().contains("is:vt100:"), "{}", ran.describe());
    });
}

#[test]
fn a_state_directory_that_depends_on_where_one_stands_is_refused() {
    for_both(|lab| {
        lab.skep(["ls"]).env("SKEP_HOME", "state").run().exits(2).says("SKEP_HOME is not absolute");
        assert!(!lab.project.join("state").exists());
    });
}

/// A stash is no commit that a pull brings, however git keeps it.
#[test]
fn a_stash_that_was_packed_waits_like_any_other() {
    for_both(|lab| {
        lab.write("a", "one\n");
        repository(lab);
        lab.worked(
            "p",
            "git config user.name B; git config user.email b@x.org; git checkout -q -b w
             echo x > n; git add n; git commit -qm w; echo stashed >> a; git stash -q
             git pack-refs --all; git config --unset user.name; git config --unset user.email",
        );
        lab.skep(["pull", "p"]).run().ok();
        lab.skep(["approve", "p"]).run();
        assert_ne!(lab.skep(["rm", "p"]).run().code(), 0, "the stash was removed");
    });
}

/// What a command that still runs adds to the ignored paths, nobody has seen.
#[test]
fn ignored_work_written_after_the_approval_is_kept() {
    for_both(|lab| {
        lab.write(".gitignore", "*.o\n");
        lab.write("a", "one\n");
        repository(lab);
        lab.create("i");
        lab.exec_script("i", "echo two >> a; echo early > early.o").run().ok();
        lab.skep(["exec", "-d", "i", "--", "sleep", "600"]).run().ok();
        lab.skep(["approve", "i"]).run().ok();
        assert_ne!(state(lab, "i"), "approved");
        assert_ne!(lab.skep(["rm", "i"]).run().code(), 0);
    });
}

/// A directory of ignored files that gives way to something else would take them along, unshown.
#[test]
fn ignored_files_below_what_takes_their_place_are_not_lost_unsaid() {
    for_both(|lab| {
        lab.write(".gitignore", "data/\n*.log\n");
        lab.write("data/db", "the user's\n");
        lab.write("data/sub/db2", "the user's\n");
        lab.write("t/a", "a\n");
        lab.write("t/x.log", "the user's\n");
        lab.write("f", "old\n");
        super::desk::repository(lab);
        for (work, path, lost) in [
            ("rm -r data; echo file > data", "data", "data/db"),
            ("rm -r t; ln -s f t", "t", "t/x.log"),
        ] {
            lab.worked("s", &format!("{work}; echo new > f"));
            for line in [&["approve", "s"][..], &["approve", "s", "--json"]] {
                let ran = lab.without_effect(lab.skep(line));
                assert_eq!(ran.code(), 4, "{}", ran.describe());
                assert!(ran.errors().contains(lost), "{}", ran.describe());
            }
            lab.approve(&["s", "f"]);
            // With a word they are shown, and go.
            let ran = lab.skep(["approve", "s", "--ignored"]).run().ok();
            assert!(ran.errors().contains(lost), "{}", ran.describe());
            let shown = ran.errors().lines().filter(|line| line.starts_with("  ")).count();
            assert!(
                ran.errors().contains(&format!("applied {shown} changes")),
                "{}",
                ran.describe()
            );
            assert!(!lab.project.join(lost).exists());
            lab.skep(["undo"]).run().ok();
            assert!(lab.project.join(lost).exists() && lab.project.join(path).is_dir());
            lab.skep(["rm", "--discard", "s"]).run().ok();
            lab.write("f", "old\n");
        }
    });
}
