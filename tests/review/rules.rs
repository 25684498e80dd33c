//! Acceptance rules: which changes may be approved at all, by settings and for one sandbox.

use super::desk::{change, hunks};
use crate::harness::{Lab, for_both};
use serde_json::{Value, json};

/// Whether each of the paths may be approved, as the diff says.
#[track_caller]
fn verdicts(lab: &Lab, name: &str, paths: &[&str]) -> Vec<bool> {
    let diff = lab.diff(name);
    let one = |path: &&str| change(&diff, path)["verdict"]["allowed"].as_bool().unwrap();
    paths.iter().map(one).collect()
}

/// An approval that the rules refuse; nothing is changed.
#[track_caller]
fn refused(lab: &Lab, line: &[&str], says: &str) {
    let ran = lab.without_effect(lab.skep(["approve"]).args(line));
    assert_eq!(ran.code(), 5, "{}", ran.describe());
    ran.says(says);
}

#[test]
fn rules_of_the_project_file_and_the_user_decide_path_by_path() {
    for_both(|lab| {
        lab.write(
            "skep.toml",
            "[changes]\nallow = [\"src/**\", \"*.md\"]\ndeny = [\"src/secret/**\"]\n",
        );
        lab.write("src/a", "old\n");
        lab.worked("s", "echo new > src/a; mkdir src/secret; echo x > src/secret/k; echo m > r.md; echo o > other");
        let diff = lab.diff("s");
        let allowed = |path: &str| change(&diff, path)["verdict"]["allowed"].clone();
        assert_eq!(allowed("src/a"), true, "{diff}");
        assert_eq!(allowed("r.md"), true);
        assert_eq!(allowed("src/secret/k"), false);
        assert_eq!(allowed("other"), false);
        assert!(change(&diff, "other")["verdict"]["reason"].as_str().unwrap().len() > 5);
        for refused in [&["s"][..], &["s", "other"], &["s", "src/a", "src/secret/k"]] {
            let ran = lab.without_effect(lab.skep(["approve"]).args(refused));
            assert_eq!(ran.code(), 5, "{}", ran.describe());
        }
        lab.approve(&["s", "src/a", "r.md"]);
        assert_eq!(lab.bytes("src/a"), b"new\n");
        // A hunk of a denied path is denied too.
        let id = hunks(&lab.diff("s"), Some("other"))[0].id.clone();
        assert_eq!(lab.skep(["approve", "s", "--hunk", &id]).run().code(), 5);
    });
}

const WORK: &str =
    "mkdir -p src doc; echo n > src/a; echo n > src/x.lock; echo n > doc/b; echo n > top";
const PATHS: [&str; 4] = ["doc/b", "src/a", "src/x.lock", "top"];

#[test]
fn rules_typed_for_one_sandbox_decide_are_shown_and_go_along() {
    for_both(|lab| {
        lab.write("keep", "keep\n");
        let rules =
            ["--allow-changes", "src/**", "--allow-changes", "doc/**", "--deny-changes", "*.lock"];
        let run = |name: &str, more: &[&str]| {
            lab.skep(["run", "--keep", "--name", name])
                .args(more)
                .args(["--", "sh", "-c", WORK])
                .run()
                .ok();
        };
        run("s", &rules);
        run("free", &[]);
        let expected = [true, true, false, false];
        assert_eq!(verdicts(lab, "s", &PATHS), expected);
        // A sandbox without rules has no verdicts, and everything may be approved.
        assert_eq!(change(&lab.diff("free"), "top")["verdict"], Value::Null);
        let diff = lab.diff("s");
        let reason =
            |path: &str| change(&diff, path)["verdict"]["reason"].as_str().unwrap().to_owned();
        assert!(reason("src/x.lock").contains("`*.lock`"), "{}", reason("src/x.lock"));
        assert!(reason("src/a").contains("`src/**`"), "{}", reason("src/a"));
        assert!(reason("top").contains("`top` matches no rule"), "{}", reason("top"));
        let text = lab.skep(["diff", "s"]).run().ok().text();
        assert!(text.contains("! denied    src/x.lock: denied by rule `*.lock`"), "{text}");
        let shown = lab.skep(["show", "s"]).run().ok().text();
        assert!(shown.contains("only of `src/**`, `doc/**` may be approved"), "{shown}");
        assert!(shown.contains("of `*.lock` may not be approved"), "{shown}");
        let shown = json!({ "allow": ["src/**", "doc/**"], "deny": ["*.lock"] });
        assert_eq!(lab.sandbox("s")["changes"], shown);
        refused(lab, &["s"], "may not be approved");
        refused(lab, &["s", "top"], "`top` matches no rule");
        refused(lab, &["s", "src/x.lock"], "denied by rule `*.lock`");
        // Forks, snapshots and templates take them along.
        lab.skep(["fork", "s", "--name", "f"]).run().ok();
        assert_eq!(verdicts(lab, "f", &PATHS), expected);
        refused(lab, &["f", "top"], "`top` matches no rule");
        lab.skep(["snapshot", "s", "one"]).run().ok();
        lab.skep(["template", "save", "s", "t"]).run().ok();
        for (name, from) in [("of-snapshot", "s:one"), ("of-template", "t")] {
            lab.skep(["create", name, "--from", from]).run().ok();
            assert_eq!(verdicts(lab, name, &PATHS), expected, "{from}");
            refused(lab, &[name, "src/x.lock"], "denied by rule");
        }
        // What is typed beside them is denied too, and an allow list that is typed holds alone.
        lab.skep(["create", "more", "--from", "t", "--deny-changes", "doc"]).run().ok();
        assert_eq!(verdicts(lab, "more", &PATHS), [false, true, false, false]);
        lab.skep(["create", "other", "--from", "t", "--allow-changes", "top"]).run().ok();
        assert_eq!(verdicts(lab, "other", &PATHS), [false, false, false, true]);
        lab.skep(["template", "rm", "t"]).run().ok();
        // What may be approved is.
        lab.approve(&["s", "src/a", "doc/b"]);
        assert_eq!(lab.bytes("src/a"), b"n\n");
        assert!(!lab.project.join("top").exists() && !lab.project.join("src/x.lock").exists());
        for (bad, line) in [("a[", "--allow-changes"), ("../x", "--deny-changes")] {
            lab.skep(["create", "bad", line, bad]).run().exits(2).says(bad);
        }
    });
}

#[test]
fn rules_typed_stand_beside_those_of_the_settings_and_a_project_only_narrows() {
    for_both(|lab| {
        lab.write("keep", "keep\n");
        let config = lab.home.join(".config/skep/config.toml");
        lab.write(&config, "[changes]\nallow = [\"src/**\", \"doc/**\"]\ndeny = [\"*.lock\"]\n");
        let run = |name: &str, more: &[&str]| {
            lab.skep(["run", "--keep", "--name", name])
                .args(more)
                .args(["--", "sh", "-c", WORK])
                .run()
                .ok();
        };
        run("plain", &[]);
        assert_eq!(verdicts(lab, "plain", &PATHS), [true, true, false, false]);
        // An allow list is what was typed and nothing else; what is denied stays denied.
        run("typed", &["--allow-changes", "src/**"]);
        assert_eq!(verdicts(lab, "typed", &PATHS), [false, true, false, false]);
        run("less", &["--deny-changes", "doc"]);
        assert_eq!(verdicts(lab, "less", &PATHS), [false, true, false, false]);
        // A project takes away, and gives nothing.
        lab.write("skep.toml", "[changes]\nallow = [\"doc/**\"]\n");
        run("narrowed", &[]);
        assert_eq!(verdicts(lab, "narrowed", &PATHS), [true, false, false, false]);
        // A state whose rules have nothing in common with the settings could not be approved at all.
        lab.skep(["template", "save", "typed", "t"]).run().ok();
        let apart = lab.skep(["create", "x", "--from", "t"]).run().exits(5);
        apart.says("no change could be approved").says("--allow-changes");
        for wide in ["allow = [\"top\"]", "allow = [\"**\"]", "allow = []"] {
            lab.write("skep.toml", format!("[changes]\n{wide}\n"));
            let ran = lab.skep(["create", "x"]).run().exits(2);
            ran.says("may only narrow");
        }
        lab.skep(["template", "rm", "t"]).run().ok();
        // The home is compared with what it was.
        std::fs::remove_dir_all(lab.home.join(".config/skep")).unwrap();
    });
}

#[test]
fn rules_of_a_sandbox_change_through_a_server_and_only_by_an_approver() {
    for_both(|lab| {
        lab.write("keep", "keep\n");
        let server = lab.serve(&[]);
        let body = json!({
            "project": lab.project, "name": "s", "allow_changes": ["src/**"], "deny_changes": ["*.lock"],
        });
        server.post("/v1/sandboxes", &body).is(201);
        let exec = json!({ "command": ["sh", "-c", WORK], "wait": true });
        server.post("/v1/sandboxes/s/execs", &exec).is(200);
        assert_eq!(verdicts(lab, "s", &PATHS), [false, true, false, false]);
        let approve = |path: &str| {
            let body = json!({ "selection": { "paths": [path] } });
            server.post("/v1/sandboxes/s/approve", &body).status
        };
        assert_eq!((approve("top"), approve("src/x.lock")), (403, 403));
        let operator = lab.skep(["token", "create", "--role", "operator"]).run().ok().text();
        let patch = |body: &Value| server.send("PATCH", "/v1/sandboxes/s", body, &[]);
        for wide in [json!({ "deny_changes": [] }), json!({ "allow_changes": ["**"] })] {
            let text = wide.to_string();
            let line = ["-X", "PATCH", "-H", "Content-Type: application/json", "-d", &text];
            assert_eq!(server.with(&operator, &line, "/v1/sandboxes/s").status, 403, "{wide}");
        }
        assert_eq!(verdicts(lab, "s", &PATHS), [false, true, false, false]);
        patch(&json!({ "allow_changes": ["a["] })).is(400);
        // While it runs; each list as a whole, the other stays.
        let changed = patch(&json!({ "allow_changes": [] })).is(200).json();
        assert_eq!(changed["policy"]["allow_changes"], json!([]));
        assert_eq!(verdicts(lab, "s", &PATHS), [true, true, false, true]);
        patch(&json!({ "deny_changes": ["doc"] })).is(200);
        assert_eq!(verdicts(lab, "s", &PATHS), [false, true, true, true]);
        assert_eq!(approve("top"), 200);
        assert_eq!(lab.bytes("top"), b"n\n");
        server.stop();
    });
}

/// What was denied is, by whatever name it was written.
#[test]
fn rules_hold_for_absolute_paths_and_through_links() {
    for_both(|lab| {
        lab.write("d/keep", "x\n");
        lab.write("src/s", "x\n");
        lab.write("free", "x\n");
        std::os::unix::fs::symlink("src", lab.project.join("lnk")).unwrap();
        lab.own_below(&lab.project);
        let keep = lab.project.join("d/keep").display().to_string();
        lab.skep(["create", "s", "--deny-changes", &keep, "--deny-changes", "lnk/**"]).run().ok();
        lab.exec_script("s", "echo y >> d/keep; echo y >> lnk/s; echo y >> free").run().ok();
        assert_eq!(verdicts(lab, "s", &["d/keep", "src/s", "free"]), [false, false, true]);
        refused(lab, &["s", "d/keep"], "d/keep");
    });
}
