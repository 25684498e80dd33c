//! A repository that wants to run something: skep never gives it the chance.

use crate::harness::{Lab, for_both};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// Everything in git's configuration that names a program.
fn hostile_config(program: &str) -> String {
    format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = {program}\n\
         \thooksPath = hooks\n\tsshCommand = {program}\n\tpager = {program}\n\
         \teditor = {program}\n\tattributesFile = .hostile-attributes\n\
         \tgitProxy = {program}\n\
         [filter \"x\"]\n\tclean = {program}\n\tsmudge = {program}\n\tprocess = {program}\n\
         \trequired = true\n\
         [diff]\n\texternal = {program}\n[diff \"x\"]\n\ttextconv = {program}\n\tcommand = {program}\n\
         [merge \"x\"]\n\tdriver = {program} %A\n[merge]\n\ttool = x\n[mergetool \"x\"]\n\tcmd = {program}\n\
         [credential]\n\thelper = {program}\n[gpg]\n\tprogram = {program}\n\
         [commit]\n\tgpgSign = true\n[include]\n\tpath = more\n\
         [alias]\n\tstatus = !{program}\n[uploadpack]\n\tpackObjectsHook = {program}\n\
         [user]\n\tname = Somebody\n\temail = somebody@example.org\n"
    )
}

const HOOKS: [&str; 12] = [
    "pre-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "post-checkout",
    "post-merge",
    "pre-push",
    "post-index-change",
    "reference-transaction",
    "fsmonitor-watchman",
    "pre-auto-gc",
    "post-rewrite",
];

/// Makes the project such a repository. Gives the marker that its programs leave.
fn hostile_project(lab: &Lab) -> PathBuf {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"];
    lab.write("f", "one\ntwo\nthree\n");
    lab.write("g", "g\n");
    lab.program("git").args(["init", "-q", "."]).run().ok();
    lab.program("git").args(["add", "."]).run().ok();
    lab.program("git").args(identity).args(["commit", "-qm", "first"]).run().ok();
    let marker = lab.root.join("marker");
    let script = format!("#!/bin/sh\necho \"$0 $*\" >> {}\n", marker.display());
    let program = lab.write(lab.root.join("evil"), &script);
    let executable = |path: &PathBuf| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    executable(&program);
    for hook in HOOKS {
        executable(&lab.write(format!(".git/hooks/{hook}"), &script));
        executable(&lab.write(format!("hooks/{hook}"), &script));
    }
    lab.write(".git/config", hostile_config(program.to_str().unwrap()));
    lab.write(".git/more", format!("[core]\n\tfsmonitor = {}\n", program.display()));
    lab.write(".git/info/attributes", "* filter=x diff=x merge=x\n");
    lab.write(".gitattributes", "* filter=x diff=x merge=x\n");
    marker
}

#[test]
fn diff_15_nothing_of_a_hostile_repository_is_run() {
    for_both(|lab| {
        let marker = hostile_project(lab);
        let quiet = |what: &str| {
            let said = std::fs::read_to_string(&marker).unwrap_or_default();
            assert!(said.is_empty(), "{what} ran {said}");
        };
        lab.worked("s", "sed -i s/two/2/ f; echo n > n; rm g; mkdir d; echo x > d/x");
        quiet("run");
        for line in [
            &["diff", "s"][..],
            &["diff", "s", "--json"],
            &["diff", "s", "--stat", "--ignored"],
            &["show", "s"],
            &["conflicts", "s"],
            &["approve", "s", "f", "--dry-run"],
            &["approve", "s", "f"],
            &["undo"],
            &["rebase", "s"],
            &["approve", "s", "f"],
            &["snapshot", "s", "label"],
            &["history"],
            &["history", "f"],
            &["reject", "s", "d"],
            &["ls"],
        ] {
            lab.skep(line).run().ok();
            quiet(&line.join(" "));
        }
        lab.write("f", "one\n2\nthree\nfour\n");
        lab.skep(["diff", "s"]).run().ok();
        let commit = lab.skep(["approve", "s", "n", "--commit", "-m", "taken over"]).run();
        println!("{}", commit.describe());
        quiet("approve --commit");
        lab.skep(["create", "t"]).run().ok();
        lab.skep(["rm", "--discard", "s", "t"]).run().ok();
        lab.skep(["gc"]).run().ok();
        quiet("rm");
        // Control: what a tool does that calls git here.
        let _ = lab.program("git").args(["status"]).run();
        assert!(marker.exists(), "the payload works");
    });
}

#[test]
fn diff_15_a_repository_made_hostile_inside_runs_nothing_outside() {
    for_both(|lab| {
        let marker = lab.root.join("marker");
        let program = lab
            .write(lab.root.join("evil"), format!("#!/bin/sh\necho x >> {}\n", marker.display()));
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        lab.write("f", "f\n");
        lab.program("git").args(["init", "-q", "."]).run().ok();
        lab.tool("config", hostile_config(program.to_str().unwrap()));
        lab.worked(
            "s",
            "cat /tools/config > .git/config; echo n > n; echo '* filter=x' > .gitattributes",
        );
        for line in
            [&["diff", "s"][..], &["approve", "s", "--", "n"], &["undo"], &["conflicts", "s"]]
        {
            lab.skep(line).run().ok();
        }
        let risky =
            ["approve", "s", "--allow-risky", ".git/config", "--allow-risky", ".gitattributes"];
        lab.skep(risky).run().ok();
        assert!(lab.project.join("n").exists());
        // It is the user's now, by a word of the user's; skep itself still runs nothing of it.
        for line in [&["diff", "s"][..], &["undo"], &["rm", "--discard", "s"]] {
            lab.skep(line).run().ok();
        }
        assert!(!marker.exists());
    });
}
