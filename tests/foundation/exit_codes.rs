//! What `run` and `exec` say about how a command ended.

use crate::harness::{Lab, for_both};
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// A command line, the exit code it must give, and the reason in JSON.
fn cases(lab: &Lab) -> Vec<(Vec<String>, i32, &'static str)> {
    let not_executable = lab.write("plain.txt", "text\n").to_str().unwrap().to_owned();
    let shell = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    vec![
        (shell("exit 0"), 0, "exited"),
        (shell("exit 1"), 1, "exited"),
        (shell("exit 42"), 42, "exited"),
        (shell("exit 124"), 124, "exited"),
        (shell("exit 255"), 255, "exited"),
        (shell("kill -9 $$"), 137, "signal"),
        (shell("kill -15 $$"), 143, "signal"),
        (shell("kill -HUP $$"), 129, "signal"),
        (vec!["no-such-program".to_owned()], 127, "start_failed"),
        (vec!["/no/such/program".to_owned()], 127, "start_failed"),
        (vec![not_executable], 126, "start_failed"),
        (vec!["/etc".to_owned()], 126, "start_failed"),
    ]
}

#[test]
fn the_exit_code_is_the_commands_own_or_says_why_there_is_none() {
    for_both(|lab| {
        let cases = cases(lab);
        lab.create("s");
        for (command, code, reason) in &cases {
            lab.skep(["exec", "s", "--"]).args(command).run().exits(*code);
            let ran = lab.skep(["exec", "s", "--json", "--"]).args(command).run().exits(*code);
            let document = ran.json();
            assert_eq!(document["exit_code"], *code, "{document}");
            assert_eq!(document["reason"], *reason, "{document}");
            let signal = if *reason == "signal" { json!(code - 128) } else { json!(null) };
            assert_eq!(document["signal"], signal, "{document}");
        }
        for (command, code, _) in cases.iter().step_by(3) {
            lab.skep(["run", "--"]).args(command).run().exits(*code);
        }
    });
}

#[test]
fn a_timeout_is_124_and_leaves_nothing_running() {
    for_both(|lab| {
        let line = ["run", "--json", "--timeout", "300ms", "--grace", "100ms", "--"];
        // Also for one that ignores the request to end, and for what it started.
        let script = "trap '' TERM; setsid sleep 55555 & sleep 55555";
        let ran = lab.skep(line).args(["sh", "-c", script]).run().exits(124);
        assert_eq!(ran.json()["reason"], "timeout");
        assert!(crate::harness::outside::processes_of(&lab.root).is_empty());
    });
}

#[test]
fn skep_failing_before_the_command_is_125() {
    for_both(|lab| {
        lab.skep(["exec", "nobody", "--", "true"]).run().exits(125);
        lab.create("s");
        lab.skep(["exec", "s", "--workdir", "/nowhere", "--", "true"]).run().exits(125);
        lab.skep(["stop", "s"]).run().ok();
        let ran = lab.skep(["exec", "s", "--", "true"]).run();
        assert!(matches!(ran.code(), 0 | 125), "{}", ran.describe());
        let ran = lab.skep(["run", "--", "true"]).env("SKEP_FAILPOINT", "create.row=eio").run();
        ran.exits(125);
    });
}

#[test]
fn arguments_reach_the_program_as_they_were_typed() {
    for_both(|lab| {
        let words = ["a b", "", "$HOME", "`id`", "--json", "--", "*", "new\nline", "\"quote'"];
        let ran = lab.skep(["run", "--", "printf", "<%s>"]).args(words).run().ok();
        let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
        assert_eq!(ran.text(), expected);
        let bytes: &OsStr = OsStr::from_bytes(b"\xff\xfe");
        let ran = lab.skep(["run", "--", "printf", "%s"]).arg(bytes).run().ok();
        assert_eq!(ran.stdout, b"\xff\xfe");
    });
}

#[test]
fn a_command_that_is_not_found_is_named() {
    for_both(|lab| {
        let ran = lab.skep(["run", "--", "no-such-program"]).run().exits(127);
        ran.says("the command `no-such-program` could not be started")
            .says("it is not on your PATH either");
        let ran = lab.skep(["run", "--", "echo a | cat"]).run().exits(127);
        ran.says("the command `echo a | cat` could not be started").says("sh -c");
    });
}
