//! Commits made inside come back as references, and nothing else does.

use crate::harness::{Lab, for_both};
use serde_json::Value;
use std::fs;

/// Git of the host on the project.
#[track_caller]
fn git(lab: &Lab, line: &[&str]) -> String {
    let who = ["-c", "user.name=Host", "-c", "user.email=host@example"];
    lab.program("git").args(who).args(line).run().ok().text()
}

/// A repository with one commit, and a sandbox of it that is up.
fn scene(lab: &Lab) {
    lab.write("f", "one\n");
    git(lab, &["init", "-q", "-b", "main", "."]);
    git(lab, &["add", "f"]);
    git(lab, &["commit", "-qm", "one"]);
    git(lab, &["branch", "side"]);
    lab.up("s");
}

const ME: &str = "git config user.name Agent; git config user.email agent@example; ";

#[track_caller]
fn work(lab: &Lab, script: &str) {
    lab.inside("s", &format!("{ME}{script}"));
}

#[track_caller]
fn pull(lab: &Lab, line: &[&str]) -> Value {
    lab.skep(["pull", "s", "--json"]).args(line).run().ok().json()
}

#[test]
fn a_pull_without_a_new_commit_says_so() {
    for_both(|lab| {
        scene(lab);
        lab.skep(["pull", "s"]).run().ok().says("the project had their commits already");
        lab.skep(["pull", "s"]).run().ok().says("nothing new");
        work(lab, "echo two > f; git commit -qam two");
        let ran = lab.skep(["pull", "s"]).run().ok();
        assert!(!ran.errors().contains("already"), "{}", ran.describe());
    });
}

#[test]
fn commits_made_inside_arrive_as_references() {
    for_both(|lab| {
        scene(lab);
        let head = git(lab, &["rev-parse", "HEAD"]);
        work(
            lab,
            "echo two > f; git commit -qam two; git checkout -qb feat; echo n > n; git add n; git commit -qm feat",
        );
        let report = pull(lab, &[]);
        assert_eq!(report["refs"].as_array().unwrap().len(), 4, "{report}");
        let log = |name: &str| git(lab, &["log", "--format=%s", name]);
        assert_eq!(log("refs/skep/s/main"), "two\none");
        assert_eq!(log("refs/skep/s/feat"), "feat\ntwo\none");
        assert_eq!(log("refs/skep/s/HEAD"), "feat\ntwo\none");
        git(lab, &["fsck", "--strict", "--connectivity-only"]);
        // Nothing else moved: not the branch, not the files, not the index.
        assert_eq!(git(lab, &["rev-parse", "HEAD"]), head);
        assert_eq!(lab.bytes("f"), b"one\n");
        assert_eq!(git(lab, &["status", "--porcelain"]), "");
        // Again there is nothing new; later only what is new comes.
        assert_eq!(pull(lab, &[])["objects"], 0);
        work(lab, "echo more >> n; git commit -qam more");
        let report = pull(lab, &[]);
        assert!(report["objects"].as_u64().unwrap() < 5, "{report}");
        assert_eq!(log("refs/skep/s/feat"), "more\nfeat\ntwo\none");
        // What arrived can be worked on as its owner.
        git(lab, &["update-ref", "-d", "refs/skep/s/feat"]);
        // Also from a sandbox at rest, which is at rest again afterwards.
        lab.skep(["stop", "s"]).run().ok();
        pull(lab, &[]);
        assert_eq!(lab.sandbox("s")["state"], "stopped");
        assert!(lab.keepers().is_empty());
    });
}

#[test]
fn a_branch_moves_forward_or_not_at_all() {
    for_both(|lab| {
        scene(lab);
        work(lab, "git checkout -q side; echo two > f; git commit -qam two; git checkout -qb feat");
        let refs = || git(lab, &["for-each-ref", "--format=%(refname) %(objectname)"]);
        let before = refs();
        // The one that is checked out would leave the files behind.
        let ran = lab.skep(["pull", "s", "--branch", "main"]).run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        let ran = lab.skep(["pull", "s", "--branch", "none"]).run();
        assert_eq!(ran.code(), 3, "{}", ran.describe());
        assert_eq!(refs(), before);
        // Diverged: nothing is changed, not even skep's own references.
        git(lab, &["checkout", "-q", "side"]);
        lab.write("host", "host\n");
        git(lab, &["add", "host"]);
        git(lab, &["commit", "-qm", "host"]);
        git(lab, &["checkout", "-q", "main"]);
        let before = refs();
        let ran = lab.skep(["pull", "s", "--branch", "side"]).run();
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        assert_eq!(refs(), before);
        // Forward, and one that was not there.
        git(lab, &["branch", "-qf", "side", "side~1"]);
        pull(lab, &["--branch", "side"]);
        assert_eq!(git(lab, &["log", "--format=%s", "side"]), "two\none");
        pull(lab, &["--branch", "feat"]);
        assert_eq!(git(lab, &["log", "--format=%s", "feat"]), "two\none");
        assert_eq!(git(lab, &["status", "--porcelain"]), "");
    });
}

/// A repository made hostile inside: what it names is run where it was made, or nowhere.
#[test]
fn pulling_from_a_hostile_repository_runs_nothing_outside() {
    for_both(|lab| {
        scene(lab);
        let marker = lab.root.join("marker");
        lab.tool("evil", format!("#!/bin/sh\ntouch {}\n", marker.display()));
        work(
            lab,
            "echo two > f; git commit -qam two; cp /tools/evil .git/evil; chmod +x .git/evil; \
             for key in core.fsmonitor core.sshCommand core.hooksPath uploadpack.packObjectsHook \
               filter.x.clean filter.x.smudge diff.external core.pager core.alternateRefsCommand; do \
               git config $key $PWD/.git/evil; done; \
             for hook in post-checkout post-merge reference-transaction pre-receive update \
               post-update proc-receive; do \
               mkdir -p .git/hooks; cp .git/evil .git/hooks/$hook; done; \
             printf '* filter=x\\n' > .git/info/attributes; git config core.hooksPath .git/hooks",
        );
        let config = fs::read(lab.project.join(".git/config")).unwrap();
        pull(lab, &[]);
        assert_eq!(git(lab, &["log", "--format=%s", "refs/skep/s/main"]), "two\none");
        assert!(!marker.exists(), "something chosen inside was run outside");
        assert_eq!(fs::read(lab.project.join(".git/config")).unwrap(), config);
        assert!(!lab.project.join(".git/evil").exists());
    });
}

/// Trees that would write into `.git` on a checkout, and objects that are not there.
#[test]
fn bad_objects_do_not_come_out() {
    for_both(|lab| {
        scene(lab);
        let before = git(lab, &["for-each-ref"]);
        let tree = "blob=$(echo x | git hash-object -w --stdin); \
                    printf '100644 config\\0' > /tmp/t; printf $blob | xxd -r -p >> /tmp/t; \
                    inner=$(git hash-object --literally -t tree -w /tmp/t); \
                    printf '40000 %s\\0' \"$name\" > /tmp/t2; printf $inner | xxd -r -p >> /tmp/t2; \
                    outer=$(git hash-object --literally -t tree -w /tmp/t2); \
                    git update-ref refs/heads/bad $(git commit-tree -m bad $outer)";
        for name in [".git", ".GIT", "..", "git~1"] {
            work(lab, &format!("name='{name}'; {tree}"));
            let ran = lab.skep(["pull", "s"]).run();
            assert_eq!(ran.code(), 5, "{name}: {}", ran.describe());
            assert_eq!(git(lab, &["for-each-ref"]), before, "{name}");
        }
        // Control: the same tree with a harmless name comes.
        work(lab, &format!("name=fine; {tree}"));
        pull(lab, &[]);
        assert_eq!(git(lab, &["show", "refs/skep/s/bad:fine/config"]), "x");
        // A branch with a name that means something to git or a shell is a name.
        work(lab, "git update-ref 'refs/heads/-x;$(id)' HEAD");
        pull(lab, &[]);
        git(lab, &["rev-parse", "--verify", "refs/skep/s/-x;$(id)"]);
    });
}

#[test]
fn a_pull_without_a_repository_says_so() {
    for_both(|lab| {
        lab.write("f", "x\n");
        lab.up("s");
        let ran = lab.without_effect(lab.skep(["pull", "s"]));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        git(lab, &["init", "-q", "."]);
        lab.inside("s", "rm -rf .git");
        let ran = lab.skep(["pull", "s"]).run();
        assert_eq!(ran.code(), 1, "{}", ran.describe());
        assert!(ran.errors().contains("git inside"), "{}", ran.describe());
    });
}

/// A tracked file that is hidden looks deleted to git inside, and `git commit -a` says so.
#[test]
fn a_hidden_file_committed_as_deleted_is_said_and_moves_no_branch() {
    for_both(|lab| {
        lab.write("f", "one\n");
        lab.write(".env", "TOKEN=tracked\n");
        lab.write("deep/.env", "TOKEN=deep\n");
        git(lab, &["init", "-q", "-b", "main", "."]);
        git(lab, &["add", "-f", "."]);
        git(lab, &["commit", "-qm", "one"]);
        git(lab, &["branch", "side"]);
        git(lab, &["branch", "other"]);
        lab.up("s");
        // What git inside thinks is its own matter: the review shows no deletion.
        assert!(lab.inside("s", "git status --porcelain").text().contains(" D .env"));
        assert_eq!(super::desk::paths(&lab.diff("s")), [""; 0]);
        work(lab, "git checkout -q side; echo two > f; git commit -qam two; git checkout -qb feat");
        // One who names what is committed deletes nothing.
        let other = "git symbolic-ref HEAD refs/heads/other; git read-tree other; echo three > f; ";
        work(lab, &format!("{other} git commit -qm three f"));
        let shown = super::desk::paths(&lab.diff("s"));
        assert!(!shown.iter().any(|path| path.ends_with(".env")), "{shown:?}");
        // A branch of the project is not moved to it.
        let before = git(lab, &["for-each-ref"]);
        let ran = lab.skep(["pull", "s", "--branch", "side"]).run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        assert!(ran.errors().contains("`.env`, `deep/.env`"), "{}", ran.describe());
        assert_eq!(git(lab, &["for-each-ref"]), before);
        // Without it the references come, and it is said for those that delete; twice, if need be.
        for _ in 0..2 {
            let ran = lab.skep(["pull", "s"]).run().ok();
            let said: Vec<String> = ran
                .errors()
                .lines()
                .filter(|line| line.contains("deletes"))
                .map(Into::into)
                .collect();
            assert_eq!(said.len(), 2, "{}", ran.describe());
            assert!(said.iter().all(|line| line.contains("`.env`, `deep/.env`")), "{said:?}");
            assert!(said[0].contains("refs/skep/s/feat") && said[1].contains("refs/skep/s/side"));
        }
        let report = pull(lab, &["--branch", "other"]);
        let lost = |name: &str| {
            let refs = report["refs"].as_array().unwrap();
            refs.iter().find(|entry| entry["name"] == name).unwrap()["deletes_hidden"].clone()
        };
        assert_eq!(lost("refs/skep/s/side"), serde_json::json!([".env", "deep/.env"]));
        assert_eq!(lost("refs/heads/other"), Value::Null, "{report}");
        // The remedy that is named keeps the files and takes the rest.
        git(lab, &["merge", "-q", "--no-commit", "--no-ff", "refs/skep/s/side"]);
        git(lab, &["restore", "-SW", "--", ".env", "deep/.env"]);
        assert_eq!(lab.bytes(".env"), b"TOKEN=tracked\n");
        assert_eq!(lab.bytes("deep/.env"), b"TOKEN=deep\n");
        assert_eq!(lab.bytes("f"), b"two\n");
    });
}
