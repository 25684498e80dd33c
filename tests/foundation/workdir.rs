//! Where a command starts: where it says, else where its sandbox says, else where its caller stands.

use crate::harness::{Lab, for_both};
use serde_json::{Value, json};

fn pwd(lab: &Lab, name: &str) -> String {
    lab.skep(["exec", name, "--", "pwd"]).run().ok().text()
}

#[test]
fn a_sandbox_has_a_directory_of_its_own_to_start_in() {
    for_both(|lab| {
        lab.directory("sub/dir");
        // So that it is found from below, too.
        lab.write("skep.toml", "");
        let at = |path: &str| lab.project.join(path).to_str().unwrap().to_owned();
        lab.skep(["create", "s", "--workdir", "sub/dir"]).run().ok();
        // The second time it is asked of the keeper alone.
        for _ in 0..2 {
            assert_eq!(pwd(lab, "s"), at("sub/dir"));
        }
        // It counts more than where the caller stands, and less than what the command names.
        let from_sub = |line: &[&str]| lab.skep(line).directory(lab.project.join("sub")).run();
        assert_eq!(from_sub(&["exec", "s", "--", "pwd"]).ok().text(), at("sub/dir"));
        let named = ["exec", "s", "--workdir", ".", "--", "pwd"];
        assert_eq!(from_sub(&named).ok().text(), at("sub"));
        let shown: Value = lab.skep(["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["workdir"], at("sub/dir").as_str());
        let page = lab.skep(["show", "s"]).run().ok().text();
        assert!(page.contains(&at("sub/dir")), "{page}");
        // It stays through a restart and goes along with forks, snapshots and templates.
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(pwd(lab, "s"), at("sub/dir"));
        lab.skep(["fork", "s", "--name", "forked"]).run().ok();
        assert_eq!(pwd(lab, "forked"), at("sub/dir"));
        lab.skep(["snapshot", "s", "one"]).run().ok();
        lab.skep(["template", "save", "s", "mould"]).run().ok();
        for (name, from) in [("a", "s:one"), ("b", "mould")] {
            lab.skep(["create", name, "--from", from]).run().ok();
            assert_eq!(pwd(lab, name), at("sub/dir"));
        }
        assert_eq!(from_sub(&["run", "--from", "mould", "--", "pwd"]).ok().text(), at("sub/dir"));
        let typed = ["run", "--from", "mould", "--workdir", "/tmp", "--", "pwd"];
        assert_eq!(from_sub(&typed).ok().text(), "/tmp");
    });
}

#[test]
fn without_one_a_command_starts_where_its_caller_stands() {
    for_both(|lab| {
        let sub = lab.directory("sub");
        lab.create("s");
        for _ in 0..2 {
            let here = lab.skep(["exec", "s", "--", "pwd"]).directory(&sub).run().ok();
            assert_eq!(here.text(), sub.to_str().unwrap());
        }
        let away = lab.skep(["exec", "s", "--", "pwd"]).directory(&lab.root).run().ok();
        assert_eq!(away.text(), lab.project.to_str().unwrap());
        assert_eq!(lab.sandbox("s")["workdir"], Value::Null);
        // A run names it for its sandbox too.
        let line = ["run", "--name", "r", "--keep", "--workdir", "sub", "--", "pwd"];
        assert_eq!(lab.skep(line).run().ok().text(), sub.to_str().unwrap());
        assert_eq!(pwd(lab, "r"), sub.to_str().unwrap());
    });
}

#[test]
fn a_directory_that_is_not_there_is_named_by_the_command_that_needs_it() {
    for_both(|lab| {
        lab.write("file", "x");
        for (name, place) in [("a", "/nowhere"), ("b", "file"), ("c", "/proc/1/root/root")] {
            lab.skep(["create", name, "--workdir", place]).run().ok();
            for _ in 0..2 {
                let ran = lab.skep(["exec", name, "--", "true"]).run().exits(125);
                ran.says("working directory").says(place);
            }
            // The sandbox is not lost for it.
            lab.skep(["exec", name, "--workdir", "/", "--", "true"]).run().ok();
        }
        lab.skep(["run", "--workdir", "/nowhere", "--", "true"]).run().exits(125).says("/nowhere");
        // Made inside, it can be used.
        lab.skep(["create", "d", "--workdir", "later"]).run().ok();
        lab.skep(["exec", "d", "--workdir", ".", "--", "mkdir", "later"]).run().ok();
        assert_eq!(pwd(lab, "d"), lab.project.join("later").to_str().unwrap());
        // What skep itself does inside needs no such directory.
        lab.skep(["reject", "d"]).run().ok();
        lab.exec_script("d", "true").run().exits(125);
        lab.skep(["exec", "d", "--workdir", ".", "--", "touch", "new"]).run().ok();
        lab.skep(["approve", "d", "--check", "test -e new"]).run().ok();
    });
}

/// It is entered with the rights of the command, not with those of whoever starts it.
#[test]
fn a_directory_that_is_shut_to_the_commands_own_user_is_not_entered() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "mkdir -p shut/below").run().ok();
        let enter = |place| lab.skep(["exec", "s", "--workdir", place, "--", "pwd"]).run();
        for place in ["shut", "shut/below"] {
            enter(place).ok();
        }
        lab.exec_script("s", "chmod 0 shut").run().ok();
        for place in ["shut", "shut/below"] {
            let refused = enter(place).exits(125);
            refused.says("enter the working directory").says(place).says("Permission denied");
            // As the command itself would find.
            lab.exec_script("s", &format!("cd {place}")).run().exits(2);
        }
        lab.exec_script("s", "chmod 700 shut").run().ok();
        enter("shut/below").ok();
    });
}

#[test]
fn over_http_a_sandbox_and_a_command_name_their_directories() {
    for_both(|lab| {
        let sub = lab.directory("sub");
        let server = lab.serve(&[]);
        let project = lab.project.to_str().unwrap();
        let body = |name: &str, workdir: &str| json!({ "project": project, "name": name, "workdir": workdir });
        let bad = server.post("/v1/sandboxes", &body("bad", "sub")).is(400).json();
        assert_eq!(bad["code"], "usage", "{bad}");
        let made = server.post("/v1/sandboxes", &body("s", sub.to_str().unwrap())).is(201).json();
        assert_eq!(made["policy"]["workdir"], sub.to_str().unwrap(), "{made}");
        assert_eq!(server.script("s", "pwd")["stdout"], format!("{}\n", sub.display()));
        let exec = json!({ "command": ["pwd"], "workdir": "/tmp", "wait": true });
        let ran = server.post("/v1/sandboxes/s/execs", &exec).json();
        assert_eq!(ran["stdout"], "/tmp\n", "{ran}");
        // Through the command line's own client.
        let hosted =
            |line: &[&str]| lab.skep(line).env("SKEP_HOST", server.socket()).run().ok().text();
        hosted(&["create", "t", "--workdir", "sub"]);
        assert_eq!(hosted(&["exec", "t", "--", "pwd"]), sub.to_str().unwrap());
        assert_eq!(hosted(&["exec", "t", "--workdir", "/", "--", "pwd"]), "/");
        assert_eq!(hosted(&["run", "--workdir", "sub", "--", "pwd"]), sub.to_str().unwrap());
    });
}
