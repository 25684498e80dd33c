//! The command line through a server: `--host` and its own engine say the same.

use crate::harness::{Call, Lab, Server, Who, for_both, for_each};
use serde_json::Value;

fn through(lab: &Lab, server: &Server<'_>, arguments: &[&str]) -> Call {
    lab.skep(arguments).env("SKEP_HOST", server.socket())
}

#[test]
fn the_basics_pass_through_a_server() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        let server = lab.serve(&[]);
        let skep = |arguments: &[&str]| through(lab, &server, arguments);
        let ran = skep(&[
            "run",
            "--name",
            "s",
            "--",
            "sh",
            "-c",
            "cat; echo two > b.txt; echo e >&2; exit 3",
        ]);
        let ran = ran.input("given\n").run().exits(3);
        assert_eq!(ran.text(), "given");
        assert!(ran.errors().starts_with("e\n"), "{}", ran.describe());
        let diff = skep(&["diff", "s", "--json"]).run().ok().json();
        assert_eq!(diff, lab.diff("s"));
        let shown = skep(&["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["state"], "stopped");
        let names = |list: Value| -> Vec<String> {
            let all = list.as_array().unwrap().iter();
            all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(skep(&["ls", "--all", "--json"]).run().ok().json()), ["s"]);
        let digest = diff["digest"].as_str().unwrap();
        skep(&["approve", "s", "--digest", digest]).run().ok();
        assert_eq!(lab.tree().get("b.txt").unwrap().bytes, b"two\n");
        skep(&["undo"]).run().ok();
        assert!(lab.tree().get("b.txt").is_none());
        skep(&["exec", "s", "--", "sh", "-c", "kill -9 $$"]).run().exits(137);
        let json = skep(&["exec", "--json", "s", "--", "printf", "\\377"]).run().ok().json();
        assert!(json["stdout_b64"].is_string(), "{json}");
        let id = skep(&["exec", "-d", "s", "--", "sh", "-c", "echo kept"]).run().ok().text();
        assert_eq!(skep(&["logs", "-f", &id]).run().ok().text(), "kept");
        skep(&["snapshot", "s", "one"]).run().ok();
        skep(&["fork", "s", "--name", "t"]).run().ok();
        skep(&["compare", "s", "t"]).run().ok();
        skep(&["stop", "t"]).run().ok();
        skep(&["reject", "t", "b.txt"]).run().ok();
        skep(&["events", "--json"]).run().ok();
        skep(&["show", "nothing"]).run().exits(3);
        skep(&["rm", "s"]).run().exits(4);
        skep(&["rm", "--discard", "s"]).run().ok();
        skep(&["run", "--timeout", "200ms", "--", "sleep", "60"]).run().exits(124);
        skep(&["run", "--", "/no/such/program"]).run().exits(127);
        skep(&["run", "--memory", "5", "--", "true"]).run().exits(2);
        server.stop();
        lab.skep(["ls"])
            .env("SKEP_HOST", format!("unix://{}/none", lab.root.display()))
            .run()
            .exits(1)
            .says("cannot reach");
    });
}

#[test]
fn a_terminal_passes_through_a_server() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let line = ["run", "-t", "--", "sh", "-c", "test -t 1 && echo yes"];
        let said = through(lab, &server, &line).run().ok();
        assert!(said.text().contains("yes"), "{}", said.describe());
        server.stop();
    });
}
