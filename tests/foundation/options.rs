//! Options of `run` and `create` that change what is seen inside.

use crate::harness::{Tree, for_both};
use std::fs;

#[test]
fn mounts_are_read_only_unless_said_otherwise() {
    for_both(|lab| {
        let outside = lab.root.join("data");
        lab.write(outside.join("file"), "data\n");
        let at = outside.to_str().unwrap();
        let script = "cat /mnt/x/file; echo changed > /mnt/x/file; touch /mnt/x/new; true";
        for suffix in ["", ":ro"] {
            let mount = format!("{at}:/mnt/x{suffix}");
            let ran = lab.skep(["run", "--mount", &mount, "--", "sh", "-c", script]).run().ok();
            assert_eq!(ran.text(), "data", "{}", ran.describe());
            assert_eq!(Tree::read(&outside).nodes.len(), 2);
            assert_eq!(fs::read(outside.join("file")).unwrap(), b"data\n");
        }
        let mount = format!("{at}:/mnt/x:rw");
        lab.skep(["run", "--mount", &mount, "--", "sh", "-c", script]).run().ok();
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"changed\n");
        assert!(outside.join("new").exists());
        // What was made inside belongs to the caller.
        assert_eq!(Tree::read(&outside).get("new").unwrap().uid, lab.who.ids().0);
        // A single file too, and several at once.
        let file = format!("{at}/file:/mnt/one-file");
        let both = ["--mount", &file, "--mount", &mount];
        let script = "cat /mnt/one-file /mnt/x/file";
        let ran = lab.skep(["run"]).args(both).args(["--", "sh", "-c", script]).run().ok();
        assert_eq!(ran.text(), "changed\nchanged");
        // Whoever looks at the sandbox sees what is open to the host.
        lab.skep(["create", "m"]).args(both).run().ok();
        let shown = lab.skep(["show", "--json", "m"]).run().ok().json()["mounts"].clone();
        let one = serde_json::json!({ "source": format!("{at}/file"), "target": "/mnt/one-file", "mode": "ro" });
        let two = serde_json::json!({ "source": at, "target": "/mnt/x", "mode": "rw" });
        assert_eq!(shown, serde_json::json!([one, two]));
        let text = lab.skep(["show", "m"]).run().ok().text();
        assert!(text.contains(&format!("{at} at /mnt/x, writable")), "{text}");
    });
}

#[test]
fn archives_and_datasets_are_read_only_at_their_places() {
    for_both(|lab| {
        let archive = lab.write(lab.root.join("in/archive.tar"), "archive");
        lab.write(lab.root.join("sets/one/a"), "one");
        lab.write(lab.root.join("sets/two/b"), "two");
        let sets = lab.root.join("sets");
        let datasets = ["one", "two"].map(|name| format!("{name}={}", sets.join(name).display()));
        let script = "cat /candidate /datasets/one/a /datasets/two/b; echo x > /candidate; \
            echo x > /datasets/one/a; touch /datasets/new; true";
        let line = ["run", "--archive", archive.to_str().unwrap(), "--dataset", &datasets[0]];
        let line = lab.skep(line).args(["--dataset", &datasets[1], "--", "sh", "-c", script]);
        assert_eq!(line.run().ok().text(), "archiveonetwo");
        assert_eq!(fs::read(archive).unwrap(), b"archive");
        assert_eq!(fs::read(sets.join("one/a")).unwrap(), b"one");
    });
}

#[test]
fn env_and_workdir_are_what_was_said() {
    for_both(|lab| {
        lab.directory("sub/dir");
        let file = lab.write(lab.root.join("env"), "# comment\nFROM_FILE=a b\nOTHER=x=y\n");
        let line = ["run", "--env", "TYPED=1", "--env-file", file.to_str().unwrap()];
        let script = "echo $TYPED,$FROM_FILE,$OTHER; pwd";
        let line = lab.skep(line).args(["--workdir", "sub/dir", "--", "sh", "-c", script]);
        let expected = format!("1,a b,x=y\n{}", lab.project.join("sub/dir").display());
        assert_eq!(line.run().ok().text(), expected);
        // Without it: the current directory, as seen inside.
        let here = lab.project.join("sub");
        let line = ["run", "--project", lab.project.to_str().unwrap(), "--", "pwd"];
        assert_eq!(lab.skep(line).directory(&here).run().ok().text(), here.to_str().unwrap());
    });
}

#[test]
fn secrets_of_the_project_are_hidden_and_can_be_shown() {
    for_both(|lab| {
        for path in [".env", ".env.local", "conf/.env", "id_rsa", "deploy/server.pem"] {
            lab.write(path, &lab.canary.text);
        }
        lab.write("readme", "text\n");
        let before = lab.tree();
        let read = "find . -type f -exec cat {} + 2>/dev/null; true";
        let hidden = lab.skep(["run", "--name", "h", "--keep", "--", "sh", "-c", read]).run().ok();
        assert!(!lab.canary.is_in(&hidden.stdout), "{}", hidden.describe());
        assert!(hidden.text().contains("text"));
        // What is hidden is no deletion, and cannot be deleted from inside.
        assert_eq!(lab.diff("h")["changes"], serde_json::json!([]));
        let line = [
            "run",
            "--name",
            "d",
            "--keep",
            "--",
            "sh",
            "-c",
            "rm -rf .env* conf deploy id_rsa; true",
        ];
        lab.skep(line).run().ok();
        lab.skep(["approve", "d", "--json"]).run();
        for path in [".env", "conf/.env", "id_rsa", "deploy/server.pem"] {
            assert_eq!(lab.tree().get(path), before.get(path), "{path}");
        }
        let shown = lab.skep(["run", "--show", ".env", "--", "cat", ".env"]).run().ok();
        assert!(lab.canary.is_in(&shown.stdout));
        let also = lab.skep(["run", "--hide", "read*", "--", "cat", "readme"]).run();
        assert_ne!(also.text(), "text");
        // The canary is the project's here: it may be in what skep keeps of the shown run.
        for sandbox in lab.sandboxes() {
            lab.skep(["rm", "--discard", sandbox["id"].as_str().unwrap()]).run().ok();
        }
    });
}

#[test]
fn fresh_recreates_under_the_same_name() {
    for_both(|lab| {
        lab.create("s");
        let first = lab.sandbox("s")["id"].clone();
        lab.skep(["create", "s", "--fresh"]).run().ok();
        assert_ne!(lab.sandbox("s")["id"], first);
        lab.exec_script("s", "echo x > x").run().ok();
        lab.skep(["create", "s", "--fresh"]).run().exits(4);
        lab.skep(["create", "s", "--fresh", "--discard"]).run().ok();
        assert_eq!(lab.sandboxes().len(), 1);
        assert_eq!(lab.keepers().len(), 1);
        let ran = lab.skep(["run", "--name", "s", "--fresh", "--", "ls"]).run().ok();
        assert_eq!(ran.text(), "");
    });
}

#[test]
fn only_the_scope_can_be_written() {
    for_both(|lab| {
        lab.write("src/a", "a\n");
        lab.write("docs/b", "b\n");
        lab.write("top", "t\n");
        let script = "echo x > src/a; mkdir src/new; echo n > src/new/n; (echo x > docs/b); \
            (echo x > top); (rm docs/b); (touch y); cat docs/b top";
        let ran =
            lab.skep(["run", "--name", "s", "--scope", "src", "--", "sh", "-c", script]).run();
        assert_eq!(ran.text(), "b\nt", "{}", ran.describe());
        let diff = lab.diff("s");
        let paths: Vec<_> =
            diff["changes"].as_array().unwrap().iter().map(|row| row["path"].clone()).collect();
        assert_eq!(paths, ["src/a", "src/new/n"], "{diff}");
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(lab.tree().get("src/a").unwrap().bytes, b"x\n");
    });
}

#[test]
fn projects_below_tmp_and_with_links_work() {
    for_both(|lab| {
        // The lab itself lies below /tmp; the private /tmp inside must not hide the project.
        lab.write("a", "a\n");
        let script = "cat a; ls /tmp | wc -l; echo x > /tmp/x; ls /tmp";
        let ran = lab.run_script(script).run().ok();
        let root = lab.root.file_name().unwrap().to_str().unwrap();
        assert_eq!(ran.text(), format!("a\n1\n{root}\nx"));
        assert!(!fs::exists("/tmp/x").unwrap_or(false));
    });
}
