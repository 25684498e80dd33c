//! `approve --commit` where git itself would commit other bytes than lie in the work tree, or none.

use super::desk::{git, repository};
use crate::harness::{Lab, for_both};

fn named_repository(lab: &Lab) {
    repository(lab);
    git(lab, &["config", "user.name", "Ada"]);
    git(lab, &["config", "user.email", "ada@example.org"]);
}

/// The apply stands, there is no commit, and the reason names the path.
#[track_caller]
fn no_commit(lab: &Lab, line: &[&str], reason: &str) {
    let head = git(lab, &["rev-parse", "HEAD"]);
    let ran = lab.skep(["approve", "s"]).args(line).args(["--commit", "-m", "m"]).run();
    assert_eq!(ran.code(), 1, "{}", ran.describe());
    assert!(ran.errors().contains(reason), "{reason}: {}", ran.describe());
    assert!(!ran.errors().contains("had edits"), "{}", ran.describe());
    assert_eq!(git(lab, &["rev-parse", "HEAD"]), head);
}

/// What the user keeps encrypted is not committed in the clear.
#[test]
fn paths_that_git_converts_are_not_committed_as_they_lie() {
    for_both(|lab| {
        lab.write(".gitattributes", "secret* filter=crypt\n*.crlf text eol=crlf\n*.raw -text\n");
        lab.write("sub/.gitattributes", "/here filter=crypt\n[attr]own filter=x\n");
        lab.write("plain", "old\n");
        named_repository(lab);
        git(lab, &["config", "filter.crypt.clean", "tr a-z n-za-m"]);
        git(lab, &["config", "filter.crypt.smudge", "tr a-z n-za-m"]);
        lab.write("secret", "password\n");
        lab.write("x.crlf", "a\r\nb\r\n");
        git(lab, &["add", "-A"]);
        git(lab, &["commit", "-qm", "second"]);
        assert_eq!(git(lab, &["cat-file", "-p", "HEAD:secret"]), "cnffjbeq");
        let work = "echo top >> secret; echo n > secret2; printf 'c\\r\\n' >> x.crlf; echo new > plain; \
                    printf 'c\\r\\n' > x.raw; mkdir -p sub; echo h > sub/here; echo h > sub/there; \
                    mkdir sub/in; echo h > sub/in/here";
        lab.worked("s", work);
        // With a word: nothing is applied either.
        let line = ["approve", "s", "secret", "--commit", "-m", "m", "--or-undo"];
        let ran = lab.without_effect(lab.skep(line));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        for (path, reason) in [
            ("secret", "filter"),
            ("secret2", "filter"),
            ("x.crlf", "line ends"),
            ("sub/here", "filter"),
        ] {
            no_commit(lab, &[path], reason);
        }
        let line = ["s", "plain", "x.raw", "sub/there", "sub/in/here", "--commit", "-m", "m"];
        assert!(lab.approve(&line)["commit"].is_string());
        assert_eq!(git(lab, &["cat-file", "-p", "HEAD:secret"]), "cnffjbeq");
        assert_eq!(git(lab, &["cat-file", "-p", "HEAD:plain"]), "new");
        let status = git(lab, &["status", "--porcelain"]);
        let mut left: Vec<&str> = status.lines().map(|line| &line[3..]).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            ["secret", "secret2", "sub/here", "x.crlf"].map(str::to_owned),
            "{status}"
        );
    });
}

#[test]
fn line_ends_that_settings_convert_are_not_committed_as_they_lie() {
    for_both(|lab| {
        lab.write("plain", "old\n");
        named_repository(lab);
        git(lab, &["config", "core.autocrlf", "input"]);
        lab.worked("s", "printf 'a\\r\\n' > windows; echo new > plain");
        no_commit(lab, &["windows"], "line ends");
        assert!(lab.approve(&["s", "plain", "--commit", "-m", "m"])["commit"].is_string());
    });
}

/// In the middle of a merge, a pick or a rebase, git commits no single paths; nor does skep.
#[test]
fn nothing_is_committed_in_the_middle_of_a_merge() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.write("o", "old\n");
        named_repository(lab);
        git(lab, &["checkout", "-q", "-b", "other"]);
        lab.write("f", "theirs\n");
        git(lab, &["commit", "-qam", "theirs"]);
        git(lab, &["checkout", "-q", "main"]);
        lab.write("f", "ours\n");
        git(lab, &["commit", "-qam", "ours"]);
        for (line, word) in [
            (["merge", "other"], "merge"),
            (["cherry-pick", "other"], "cherry-pick"),
            (["rebase", "other"], "rebase"),
        ] {
            assert_ne!(lab.program("git").args(line).run().code(), 0, "{line:?} stops");
            lab.worked("s", "echo new >> o");
            no_commit(lab, &["o"], &format!("a {word} is going on"));
            lab.skep(["undo"]).run().ok();
            lab.skep(["rm", "--discard", "s"]).run().ok();
            git(lab, &[line[0], "--abort"]);
        }
    });
}

/// git reads attributes from the index where the work tree has none.
#[test]
fn attributes_that_only_the_index_has_count() {
    for_both(|lab| {
        lab.write(".gitattributes", "secret* filter=crypt\n");
        named_repository(lab);
        git(lab, &["config", "filter.crypt.clean", "tr a-z n-za-m"]);
        git(lab, &["config", "filter.crypt.smudge", "tr a-z n-za-m"]);
        lab.write("secret", "password\n");
        lab.write("secret2", "password\n");
        git(lab, &["add", "-A"]);
        git(lab, &["commit", "-qm", "second"]);
        git(lab, &["update-index", "--skip-worktree", ".gitattributes"]);
        std::fs::remove_file(lab.project.join(".gitattributes")).unwrap();
        lab.worked("s", "echo top >> secret; rm secret2");
        no_commit(lab, &["secret"], "filter");
        // What is removed has no bytes to be converted, and no edits.
        let ran = lab.skep(["approve", "s", "secret2", "--commit", "-m", "m"]).run().ok();
        assert!(!ran.errors().contains("had edits"), "{}", ran.describe());
        assert_eq!(git(lab, &["ls-tree", "--name-only", "HEAD", "secret2"]), "");
    });
}
