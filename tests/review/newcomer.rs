//! What somebody meets who has only read the README: each refusal says what to do next, what was
//! shown can be typed, and nothing goes without a word.

use super::desk::{git, repository};
use crate::harness::{Ran, Terminal, for_both};
use std::fs;

#[track_caller]
fn said(ran: &Ran, text: &str) {
    assert!(ran.errors().contains(text), "`{text}`: {}", ran.describe());
}

#[test]
fn a_commit_that_was_asked_for_and_not_made_is_a_failure() {
    for_both(|lab| {
        lab.write("a", "old\n");
        lab.worked("s", "echo new > a");
        // No repository at all.
        let ran = lab.skep(["approve", "s", "--commit", "-m", "x"]).run().exits(1);
        said(&ran, "no commit was made");
        said(&ran, "the apply stands");
        said(&ran, "skep undo ");
        assert_eq!(lab.bytes("a"), b"new\n");
        lab.skep(["undo"]).run().ok();
        assert_eq!(lab.bytes("a"), b"old\n");
        // A repository, but nobody to commit as.
        repository(lab);
        let ran = lab.skep(["approve", "s", "--commit", "-m", "x", "--json"]).run().exits(1);
        assert!(ran.json()["commit"].is_null() && ran.json()["approval"].is_string());
        assert_eq!(lab.bytes("a"), b"new\n");
    });
}

#[test]
fn an_undo_says_that_the_commit_stays() {
    for_both(|lab| {
        lab.write("a", "old\n");
        repository(lab);
        git(lab, &["config", "user.name", "Ada"]);
        git(lab, &["config", "user.email", "ada@example.org"]);
        lab.worked("s", "echo new > a");
        let commit = lab.approve(&["s", "--commit", "-m", "x"])["commit"].clone();
        let commit = commit.as_str().unwrap();
        let ran = lab.skep(["undo"]).run().ok();
        let advice = format!("git reset {commit}^");
        said(&ran, &advice);
        // The advice holds.
        git(lab, &["reset", "-q", &format!("{commit}^")]);
        assert_eq!(git(lab, &["status", "--porcelain"]), "");
        assert_eq!(git(lab, &["log", "--format=%s"]), "first");
    });
}

#[test]
fn a_path_that_was_shown_can_be_typed_anywhere() {
    for_both(|lab| {
        lab.write("skep.toml", "");
        for path in ["src/in", "src/out", "src/both", "both", "src/moved"] {
            lab.write(path, "old\n");
        }
        lab.worked("s", "for f in src/in src/out src/both both src/moved; do echo new > $f; done");
        lab.write("src/moved", "user\n");
        let source = lab.project.join("src");
        let from = |line: &[&str]| lab.skep(line).directory(&source).run();
        let names = from(&["diff", "s", "--name-only"]).ok().text();
        assert!(names.contains("src/in"), "{names}");
        assert_eq!(from(&["diff", "s", "src/in", "--name-only"]).ok().text(), "src/in");
        assert_eq!(from(&["conflicts", "s", "src/moved", "--side", "base"]).ok().text(), "old");
        let listed = from(&["conflicts", "s", "src/moved", "--json"]).ok().json();
        assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
        from(&["approve", "s", "src/in"]).ok();
        assert_eq!(lab.bytes("src/in"), b"new\n");
        let digest = lab.diff("s")["digest"].as_str().unwrap().to_owned();
        // Where one stands comes first.
        from(&["approve", "s", "both", "--digest", &digest]).ok();
        assert_eq!((lab.bytes("src/both"), lab.bytes("both")), (b"new\n".into(), b"old\n".into()));
        let history = from(&["history", "src/in", "--json"]).ok().json();
        assert_eq!(history.as_array().unwrap().len(), 1, "{history}");
        from(&["reject", "s", "src/out"]).ok();
        assert!(!lab.diff("s")["changes"].to_string().contains("src/out"));
        from(&["diff", "s", "src/nosuch"]).exits(3);
    });
}

#[test]
fn a_conflict_has_a_way_out_and_it_works() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.up("s");
        lab.inside("s", "echo inside > f");
        lab.write("f", "outside\n");
        for command in ["approve", "rebase"] {
            let ran = lab.skep([command, "s"]).run().exits(4);
            said(&ran, "--side base|project|sandbox");
            said(&ran, "takes the project's version in");
            said(&ran, "skep cp s:PATH FILE");
        }
        said(&lab.skep(["conflicts", "s"]).run().ok(), "skep reject s PATH");
        let side = lab.skep(["conflicts", "s", "f", "--side", "sandbox"]).run().ok();
        assert_eq!(side.text(), "inside");
        lab.skep(["reject", "s", "f"]).run().ok();
        lab.inside("s", "grep -qx outside f; echo both > f");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), b"both\n");
    });
}

#[test]
fn what_git_wrote_on_both_sides_is_no_conflict_to_be_solved() {
    for_both(|lab| {
        lab.write("f", "one\n");
        repository(lab);
        lab.worked(
            "s",
            "git config user.name A; git config user.email a@b; git commit -q --allow-empty -m in",
        );
        let identity = ["-c", "user.name=U", "-c", "user.email=u@v"];
        let commit =
            lab.program("git").args(identity).args(["commit", "-q", "--allow-empty", "-m", "out"]);
        commit.run().ok();
        let ran = lab.skep(["conflicts", "s"]).run().ok();
        assert!(!ran.text().contains(".git/logs"), "{}", ran.describe());
        said(&ran, "nobody has to solve");
        said(&ran, "skep pull s");
        let all = lab.skep(["conflicts", "s", "--json"]).run().ok().json().to_string();
        assert!(all.contains(".git/logs"), "{all}");
    });
}

#[test]
fn a_diff_goes_through_the_pager_of_whoever_sits_at_a_terminal() {
    for_both(|lab| {
        lab.worked("s", "printf 'new\\033[2J\\n' > a");
        let paged = |pager: &str| {
            let call = lab.skep(["diff", "s"]).env("PAGER", pager);
            let mut terminal = Terminal::start(call, 24, 80);
            terminal.wait_to_show("1 file changed");
            assert_eq!(terminal.end().code(), Some(0));
            terminal.screen()
        };
        let seen = paged("sed 's/^/paged: /'");
        assert!(seen.contains("paged: ") && seen.contains("+new\\x1b[2J"), "{seen}");
        assert!(!paged("cat").contains("paged"));
        // One that reads nothing, and one that is not there, are no reason to fail.
        paged("true");
        paged("no-such-pager");
        let ran = lab.skep(["diff", "s"]).env("PAGER", "sed s/^/paged/").run().ok();
        assert!(!ran.text().contains("paged"), "{}", ran.describe());
    });
}

#[test]
fn rejecting_everything_is_asked_about_at_a_terminal_only() {
    for_both(|lab| {
        lab.worked("s", "echo new > a");
        let answer = |typed: &str| {
            let mut terminal = Terminal::start(lab.skep(["reject", "s"]), 24, 80);
            terminal.wait_to_show("drop 1 change from s? [y/N]");
            terminal.type_in(typed);
            terminal.end().code()
        };
        assert_eq!(answer("\n"), Some(5));
        assert_eq!(lab.diff("s")["changes"].as_array().unwrap().len(), 1);
        assert_eq!(answer("y\n"), Some(0));
        assert!(lab.diff("s")["changes"].as_array().unwrap().is_empty());
        lab.worked("t", "echo new > a");
        let ran = lab.skep(["reject", "t"]).run().ok();
        assert!(!ran.errors().contains("[y/N]"), "{}", ran.describe());
    });
}

#[test]
fn commits_made_inside_are_one_line_and_a_hook_is_its_own() {
    for_both(|lab| {
        lab.write("f", "one\n");
        repository(lab);
        let work = "git config user.name A; git config user.email a@b; echo two > f; \
                    git commit -qam two; mkdir -p .git/hooks; echo x > .git/hooks/pre-push";
        let ran = lab.worked("s", work);
        said(&ran, " inside .git (commits made inside: `skep pull s`");
        said(&ran, "! block     .git/hooks/pre-push");
        said(&ran, "! block     .git/config");
        let all = lab.skep(["diff", "s"]).run().ok().text();
        assert!(!all.contains(".git/objects/"), "{all}");
        assert!(all.contains(".git/hooks/pre-push"), "{all}");
        // Nothing is hidden: by name, as names and for programs they are all there.
        for line in
            [&["diff", "s", ".git"][..], &["diff", "s", "--name-only"], &["diff", "s", "--json"]]
        {
            let text = lab.skep(line).run().ok().text();
            assert!(text.contains(".git/objects/") && text.contains(".git/index"), "{text}");
        }
        let ran = lab.without_effect(lab.skep(["approve", "s"])).exits(5);
        said(&ran, "skep pull s");
        said(&ran, "skep approve s PATH");
        lab.skep(["pull", "s"]).run().ok();
        lab.skep(["approve", "s", "f"]).run().ok();
        assert_eq!(lab.bytes("f"), b"two\n");
        assert!(!lab.project.join(".git/hooks/pre-push").exists());
    });
}

#[test]
fn removing_a_sandbox_says_what_it_ends() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "1000"]).run().ok();
        said(&lab.skep(["rm", "s"]).run().ok(), "ended 1 running exec\n");
        lab.create("t");
        let ran = lab.skep(["rm", "t"]).run().ok();
        assert!(!ran.errors().contains("ended"), "{}", ran.describe());
        assert!(fs::exists(&lab.project).unwrap());
    });
}
