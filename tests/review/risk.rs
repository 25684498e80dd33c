//! What needs a word of its own: git's files, files that run when a directory is opened, links that
//! leave the project.

use super::desk::{change, git, paths, repository};
use crate::harness::{Kind, Lab, for_both};
use std::fs;

/// Things of git that an agent could leave behind, and how.
const GIT: [(&str, &str); 18] = [
    (".git/hooks/pre-commit", "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit"),
    (".git/config", "mkdir -p .git; echo x > .git/config"),
    (".git/config.worktree", "mkdir -p .git; echo x > .git/config.worktree"),
    (".git/info/attributes", "mkdir -p .git/info; echo x > .git/info/attributes"),
    (".git/modules/m/config", "mkdir -p .git/modules/m; echo x > .git/modules/m/config"),
    (".git/worktrees/w/gitdir", "mkdir -p .git/worktrees/w; echo x > .git/worktrees/w/gitdir"),
    (
        ".git/objects/info/alternates",
        "mkdir -p .git/objects/info; echo x > .git/objects/info/alternates",
    ),
    ("sub/.git", "mkdir -p sub; echo 'gitdir: ../elsewhere' > sub/.git"),
    (
        "a/b/c/d/e/.git/hooks/post-checkout",
        "mkdir -p a/b/c/d/e/.git/hooks; echo x > a/b/c/d/e/.git/hooks/post-checkout",
    ),
    (".GIT/config", "mkdir -p .GIT; echo x > .GIT/config"),
    (".Git/hooks/pre-push", "mkdir -p .Git/hooks; echo x > .Git/hooks/pre-push"),
    (".git./config", "mkdir -p .git.; echo x > .git./config"),
    (".git /config", "mkdir -p '.git '; echo x > '.git /config'"),
    ("git~1/config", "mkdir -p git~1; echo x > git~1/config"),
    (".g\u{200c}it/config", "mkdir -p .g\u{200c}it; echo x > .g\u{200c}it/config"),
    (".gi\u{feff}t/config", "mkdir -p .gi\u{feff}t; echo x > .gi\u{feff}t/config"),
    (".gitmodules", "echo '[submodule \"x\"]' > .gitmodules"),
    (".gitattributes", "echo '* filter=x' > .gitattributes"),
];

/// Things that run, with the class each must have at least.
const TOOLS: [(&str, &str); 20] = [
    (".claude/settings.json", "ask"),
    (".codex/config.toml", "ask"),
    (".cursor/mcp.json", "ask"),
    (".gemini/settings.json", "ask"),
    (".mcp.json", "ask"),
    ("CLAUDE.md", "note"),
    ("AGENTS.md", "note"),
    (".vscode/tasks.json", "ask"),
    (".idea/workspace.xml", "ask"),
    (".envrc", "ask"),
    (".husky/pre-commit", "ask"),
    (".githooks/pre-commit", "ask"),
    ("venv/pyvenv.cfg", "ask"),
    (".npmrc", "ask"),
    (".cargo/config.toml", "ask"),
    (".devcontainer/devcontainer.json", "ask"),
    (".pre-commit-config.yaml", "note"),
    ("build.rs", "note"),
    ("Makefile", "note"),
    (".github/workflows/ci.yml", "note"),
];

fn rank(risk: &str) -> usize {
    ["none", "note", "ask", "block"].iter().position(|one| *one == risk).unwrap()
}

#[track_caller]
fn refused(lab: &Lab, line: &[&str]) {
    let ran = lab.without_effect(lab.skep(["approve", "s", "--json"]).args(line));
    assert_eq!(ran.code(), 5, "{}", ran.describe());
    assert_eq!(ran.problem()["code"], "risky", "{}", ran.describe());
}

#[test]
fn diff_13_gits_own_files_need_a_word_of_their_own() {
    for_both(|lab| {
        for (path, work) in GIT {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("plain", "old\n");
            println!("{path:?}");
            lab.worked("s", &format!("{work}; echo new > plain"));
            let diff = lab.diff("s");
            let found = change(&diff, path);
            let least = if path.starts_with(".gitm") || path.starts_with(".gita") { 1 } else { 3 };
            assert!(rank(found["risk"].as_str().unwrap()) >= least, "{found}");
            assert!(!found["risk_reasons"].as_array().unwrap().is_empty(), "{found}");
            if least == 3 {
                // Listed before what is harmless.
                let shown = lab.skep(["diff", "s", "--stat"]).run().ok().text();
                let at = |name: &str| shown.find(name).unwrap_or_else(|| panic!("{name}: {shown}"));
                let top = path.split('/').find(|part| part.to_lowercase().contains('g')).unwrap();
                assert!(
                    path.contains('\u{200c}') || path.contains('\u{feff}') || at(top) < at("plain")
                );
                refused(lab, &[]);
                refused(lab, &["--", path]);
                // A word for something else is none for this, but a mistake.
                let line = ["approve", "s", "--allow-risky", "plain"];
                let ran = lab.without_effect(lab.skep(line));
                assert_eq!(ran.code(), 2, "{}", ran.describe());
                lab.approve(&["s", "--", "plain"]);
                assert_eq!(lab.bytes("plain"), b"new\n");
                lab.approve(&["s", "--allow-risky", path]);
                assert!(lab.project.join(path).exists());
            }
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn diff_13_a_repository_moved_edited_and_moved_back_is_seen() {
    for_both(|lab| {
        lab.write("f", "f\n");
        lab.program("git").args(["init", "-q", "."]).run().ok();
        let work = "mv .git x; printf '[core]\\n\\tfsmonitor = ./evil\\n' >> x/config; \
                    echo evil > x/hooks/post-merge; mv x .git";
        lab.worked("s", work);
        let diff = lab.diff("s");
        assert_eq!(change(&diff, ".git/config")["risk"], "block");
        assert_eq!(change(&diff, ".git/hooks/post-merge")["risk"], "block");
        refused(lab, &[]);
    });
}

#[test]
fn diff_14_files_that_run_are_classed_at_any_depth() {
    for_both(|lab| {
        let mut work = String::new();
        for prefix in ["", "a/b/c/d/e/"] {
            for (path, _) in TOOLS {
                let path = format!("{prefix}{path}");
                work += &format!("mkdir -p \"$(dirname {path})\"; echo x > {path}\n");
            }
        }
        lab.worked("s", &work);
        let diff = lab.diff("s");
        let mut wrong = Vec::new();
        for prefix in ["", "a/b/c/d/e/"] {
            for (path, least) in TOOLS {
                let found = change(&diff, &format!("{prefix}{path}"));
                if rank(found["risk"].as_str().unwrap()) < rank(least) {
                    wrong.push(format!("{prefix}{path} is {}, not {least}", found["risk"]));
                }
            }
        }
        // Continuous integration is read from the top of a repository only.
        wrong.retain(|line| !line.starts_with("a/b/c/d/e/.github"));
        assert!(wrong.is_empty(), "{wrong:#?}");
        refused(lab, &[]);
        refused(lab, &["--", ".envrc"]);
        lab.approve(&["s", "--", "Makefile", "build.rs"]);
        lab.approve(&["s", "--allow-risky", ".envrc", "--", ".envrc"]);
        assert!(!lab.project.join(".mcp.json").exists());
    });
}

#[test]
fn diff_10_links_are_applied_as_links_and_never_followed() {
    for_both(|lab| {
        lab.write("dir/inside", "inside\n");
        let secret = lab.write(lab.root.join("secret"), "secret\n");
        let links: [(&str, &str, bool); 7] = [
            ("absolute", secret.to_str().unwrap(), true),
            ("escaping", "../secret", true),
            ("dir/deep", "../../secret", true),
            ("winding", "dir/../../secret", true),
            ("proc", "/proc/self/fd/0", true),
            ("harmless", "dir/inside", false),
            ("dangling", "no/where", false),
        ];
        let work: String =
            links.iter().map(|(name, target, _)| format!("ln -s '{target}' {name}\n")).collect();
        lab.worked("s", &(work + "ln -s .git/hooks into-git"));
        let diff = lab.diff("s");
        for (name, target, leaves) in links {
            let found = change(&diff, name);
            assert_eq!(found["risk"] == "ask", leaves, "{found}");
            assert_eq!(found["new_target"], target, "{found}");
        }
        assert!(rank(change(&diff, "into-git")["risk"].as_str().unwrap()) >= 2, "{diff}");
        assert!(!diff.to_string().contains("secret\\n"), "the target was read");
        refused(lab, &[]);
        let mut line = vec!["s"];
        for (name, _, _) in links.iter().filter(|(_, _, leaves)| *leaves) {
            line.extend(["--allow-risky", name]);
        }
        line.extend(["--allow-risky", "into-git"]);
        lab.approve(&line);
        let tree = lab.tree();
        for (name, target, _) in links {
            let node = tree.get(name).unwrap();
            assert_eq!((node.kind, &node.bytes[..]), (Kind::Link, target.as_bytes()));
        }
        assert_eq!(fs::read(&secret).unwrap(), b"secret\n");
        // Later work through such a link stays inside, and is no write to its target.
        lab.skep(["rm", "--discard", "s"]).run().ok();
        lab.worked("t", "rm escaping; echo mine > escaping");
        lab.approve(&["t"]);
        assert_eq!(fs::read(&secret).unwrap(), b"secret\n");
        assert_eq!(lab.bytes("escaping"), b"mine\n");
    });
}

#[test]
fn set_uid_bits_are_asked_for_and_dropped() {
    for_both(|lab| {
        lab.write("old", "#!/bin/sh\n");
        lab.worked(
            "s",
            "cp old tool; chmod 6755 tool; chmod 4755 old; mkdir d; chmod 2755 d; echo x > d/x",
        );
        let diff = lab.diff("s");
        println!("{}", diff["changes"]);
        for line in [&["s"][..], &["s", "--allow-risky", "*", "--allow-risky", "d/*"]] {
            let _ = lab.skep(["approve", "--json"]).args(line).run();
        }
        let tree = lab.tree();
        for path in ["tool", "old"] {
            let node = tree.get(path).unwrap();
            assert_eq!(node.mode, 0o755, "{path:?}: {node:?}");
        }
    });
}

#[test]
fn diff_17_invisible_and_turning_characters_are_noted() {
    for_both(|lab| {
        lab.write("f", "let a = 1;\n");
        lab.tool(
            "evil",
            "let a = 1;\n/* \u{202e} } \u{2066}if admin\u{2069} \u{2066} */\nx\u{200b}y\n",
        );
        lab.worked("s", "cat /tools/evil > f; printf 'a\\033[2Jb\\n' > escapes");
        let diff = lab.diff("s");
        assert_ne!(change(&diff, "f")["risk"], "none", "{diff}");
        let ran = lab.skep(["diff", "s"]).run().ok();
        let shown = String::from_utf8(ran.stdout).unwrap();
        let raw = ['\u{202e}', '\u{2066}', '\u{2069}', '\u{200b}', '\x1b'];
        assert!(!shown.contains(raw), "{}", shown.escape_debug());
        assert_eq!(paths(&diff), ["escapes", "f"]);
    });
}

/// A repository need not be called `.git`, and need not be new.
#[test]
fn settings_of_a_repository_under_any_name_need_a_word() {
    for_both(|lab| {
        for name in ["HEAD", "objects/k", "refs/k", "config"] {
            lab.write(format!("fixtures/repo.git/{name}"), "x\n");
        }
        lab.worked(
            "s",
            "echo evil >> fixtures/repo.git/config; mkdir fixtures/repo.git/hooks
             echo evil > fixtures/repo.git/hooks/post-checkout
             mkdir -p w store/objects store/refs; echo ref > w/HEAD; echo ../store > w/commondir
             echo evil > store/config; echo evil > w/config.worktree
             echo k > store/objects/k; echo k > store/refs/k; echo plain > fixtures/repo.git/readme",
        );
        let diff = lab.diff("s");
        for path in [
            "fixtures/repo.git/config",
            "fixtures/repo.git/hooks/post-checkout",
            "store/config",
            "w/config.worktree",
            "w/commondir",
        ] {
            assert_eq!(change(&diff, path)["risk"], "block", "{path}");
        }
        assert_eq!(change(&diff, "fixtures/repo.git/readme")["risk"], "none");
        let tree = lab.tree();
        lab.skep(["approve", "s"]).run().exits(5);
        lab.tree().assert_equals(&tree, "the project");
    });
}

/// What is read through a link of the user's is judged by the name it is read under.
#[test]
fn a_file_behind_a_link_of_the_projects_is_judged_by_the_links_name() {
    for_both(|lab| {
        lab.write("editor/tasks.json", "{}\n");
        lab.write("env.sh", "x\n");
        lab.write("sub/hk/plain", "x\n");
        lab.write("githooks/readme", "x\n");
        lab.write("ci/readme", "x\n");
        lab.directory(".git");
        lab.directory(".github");
        let absolute = lab.project.join("editor").display().to_string();
        for (link, target) in [
            (".vscode", absolute.as_str()),
            (".envrc", "middle"),
            ("middle", "env.sh"),
            ("sub/.husky", "hk"),
            (".git/hooks", "../githooks"),
            (".github/workflows", "../ci"),
        ] {
            std::os::unix::fs::symlink(target, lab.project.join(link)).unwrap();
        }
        lab.own_below(&lab.project);
        lab.worked(
            "s",
            "echo evil > .vscode/tasks.json; echo evil >> .envrc; echo evil > sub/.husky/pre-commit
             echo evil > githooks/pre-commit; echo evil > ci/x.yml",
        );
        let diff = lab.diff("s");
        for (path, risk) in [
            ("editor/tasks.json", "ask"),
            ("env.sh", "ask"),
            ("sub/hk/pre-commit", "ask"),
            ("githooks/pre-commit", "block"),
            ("ci/x.yml", "note"),
        ] {
            let found = change(&diff, path);
            assert_eq!(found["risk"], risk, "{found}");
            assert!(found["risk_reasons"].to_string().contains("through a link or"), "{found}");
        }
        lab.skep(["approve", "s"]).run().exits(5);
    });
}

/// A glob or a directory says nothing of what lies there.
#[test]
fn diff_13_what_is_blocked_is_taken_only_by_its_own_path() {
    for_both(|lab| {
        lab.write("f", "old\n");
        super::desk::repository(lab);
        lab.worked(
            "s",
            "printf '#!/bin/sh\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; \
             git config core.fsmonitor /tmp/evil; echo x > .envrc; echo y >> f; \
             git -c user.name=a -c user.email=a@b commit -qam inside",
        );
        let before = lab.bytes(".git/refs/heads/main");
        for word in ["**", ".git", ".git/**", "*", ".", ".git/hooks", ".git/hooks/*"] {
            refused(lab, &["--allow-risky", word]);
        }
        lab.approve(&["s", "--allow-risky", ".env*", "--", ".envrc", "f"]);
        let both = ["--allow-risky", ".git/hooks/pre-commit", "--allow-risky", ".git/config"];
        lab.approve(&[&["s"][..], &both].concat());
        assert!(lab.project.join(".git/hooks/pre-commit").exists());
        assert_eq!(lab.bytes(".git/refs/heads/main"), before, "git's own is not taken along");
    });
}

/// A word for something risky that is not there is a mistake, and named.
#[test]
fn a_word_for_nothing_risky_is_an_error() {
    for_both(|lab| {
        lab.write("plain", "old\n");
        lab.worked("s", "echo 'echo hi' > .envrc; echo new > plain; mkdir d; echo n > d/n");
        for word in [".envcr", "plain", "d", "d/n"] {
            let line = ["approve", "s", "--allow-risky", ".envrc", "--allow-risky", word];
            let ran = lab.without_effect(lab.skep(line));
            assert_eq!(ran.code(), 2, "{word}: {}", ran.describe());
            assert!(ran.errors().contains(&format!("--allow-risky {word}`")), "{}", ran.describe());
        }
        // A glob speaks of whatever there is.
        lab.approve(&["s", "--allow-risky", ".env*", "--allow-risky", "d/*"]);
        assert_eq!(lab.bytes("plain"), b"new\n");
    });
}

/// Of changes of one class, those that hide something come first, in every output for people; a list
/// for programs says the risk beside it.
#[test]
fn what_hides_something_is_shown_first() {
    for_both(|lab| {
        lab.write("a.txt", "old\n");
        lab.tool("evil", "x\u{202e}y\n");
        lab.worked(
            "s",
            "echo new > a.txt; echo '{}' > package.json; echo 'all:' > Makefile; cat /tools/evil > z.txt; \
             echo 'echo hi' > zz.envrc; mv zz.envrc .envrc",
        );
        let order = |text: &str| {
            let at = |name: &str| text.find(name).unwrap_or_else(|| panic!("{name}: {text}"));
            let all = [".envrc", "z.txt", "Makefile", "package.json"].map(at);
            assert!(all.is_sorted(), "{text}");
        };
        for line in [&["diff", "s"][..], &["diff", "s", "--stat"]] {
            let text = lab.skep(line).run().ok().text();
            order(&text);
            // The list of changes below the risks has the same order, what is plain behind it.
            let (_, below) = text.rsplit_once("! note").unwrap();
            let (_, below) = below.split_once('\n').unwrap();
            order(below);
            assert!(below.find("a.txt") > below.find("package.json"), "{text}");
        }
        let listed = lab.skep(["diff", "s", "--name-only"]).run().ok();
        assert_eq!(listed.text(), ".envrc\nMakefile\na.txt\npackage.json\nz.txt");
        order(&listed.errors());
        let before = lab.skep(["approve", "s", "--dry-run", "--allow-risky", ".envrc"]).run().ok();
        order(&before.errors());
    });
}

/// What the project's own git settings lead to is judged as the hooks and settings that it is.
#[test]
fn what_git_settings_lead_to_is_judged_as_hooks_and_settings() {
    for_both(|lab| {
        lab.write("a", "old\n");
        repository(lab);
        lab.write("shared/gitinc", "[core]\n\thooksPath = hp\n");
        lab.write("hp/readme", "hooks\n");
        git(lab, &["config", "include.path", "../shared/gitinc"]);
        git(lab, &["config", "core.attributesFile", "shared/attributes"]);
        let script = "printf '#!/bin/sh\\n' > hp/pre-commit; chmod 755 hp/pre-commit; \
                      echo '[core] fsmonitor = x' >> shared/gitinc; echo '* filter=x' > shared/attributes; \
                      echo fine > shared/other";
        lab.worked("s", script);
        let diff = lab.diff("s");
        let risk = |path: &str| {
            let changes = diff["changes"].as_array().unwrap();
            let found = changes.iter().find(|change| change["path"] == path);
            found.unwrap_or_else(|| panic!("no {path}: {diff}"))["risk"].clone()
        };
        for path in ["hp/pre-commit", "shared/gitinc", "shared/attributes"] {
            assert_eq!(risk(path), "block", "{path}");
        }
        assert_eq!(risk("shared/other"), "none");
        lab.skep(["approve", "s"]).run().exits(5);
        assert_eq!(lab.bytes("shared/gitinc"), b"[core]\n\thooksPath = hp\n");
    });
}
