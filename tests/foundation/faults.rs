//! Disks that are full or cannot be written: a typed error, nothing half-made, and a way on.

use crate::harness::{Who, for_both, for_each, outside};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn a_state_directory_that_cannot_be_written_is_an_error_without_effect() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.create("s");
        lab.exec_script("s", "echo b > b").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        let before = lab.tree();
        let skep = lab.binary.display();
        // In a mount namespace of its own, so that nobody else sees it; as the lab's caller.
        let calls = format!(
            "{skep} create t --json; echo $?; {skep} run --json -- true; echo $?; \
             {skep} approve s --json; echo $?"
        );
        let ran = if lab.who.is_root() {
            let script = format!(
                "mount --bind {0} {0} && mount -o remount,bind,ro {0} && ({calls})",
                lab.state.display()
            );
            lab.program("unshare").args(["--mount", "sh", "-c", &script]).run()
        } else {
            for name in ["", "skep.db", "sandboxes", "trash", "locks", "approvals"] {
                let path = lab.state.join(name);
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o222)).unwrap();
            }
            let ran = lab.program("sh").args(["-c", &calls]).run();
            for (name, mode) in [
                ("", 0o700),
                ("skep.db", 0o600),
                ("sandboxes", 0o700),
                ("trash", 0o700),
                ("locks", 0o700),
                ("approvals", 0o700),
            ] {
                let path = lab.state.join(name);
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            ran
        };
        let text = ran.text();
        let codes: Vec<_> = text.lines().filter(|line| line.parse::<i32>().is_ok()).collect();
        assert_eq!(codes, ["1", "125", "1"], "{}", ran.describe());
        lab.tree().assert_equals(&before, "the project was changed");
        assert_eq!(outside::processes_of(&lab.root), vec![]);
        // Writable again, everything is as before.
        assert_eq!(lab.sandboxes().len(), 1);
        assert_eq!(lab.diff("s")["changes"].as_array().unwrap().len(), 1);
        lab.skep(["approve", "s"]).run().ok();
    });
}

#[test]
fn a_full_disk_is_said_and_survived() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        let before = lab.tree();
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=4m,mode=700 none {state}
             {skep} create s > /dev/null; echo created $?
             {skep} exec s -- dd if=/dev/zero of=big bs=64k count=1000 2> /dev/null; echo filled $?
             {skep} ps s --json | grep -c '\"reason\": \"exited\"' | sed 's/^/ended /'
             {skep} create t --json 2>&1; echo second $?
             {skep} exec s -- true; echo exec $?
             {skep} ls --json > /dev/null; echo listed $?
             {skep} rm --discard s 2>&1; echo removed $?
             {skep} create u > /dev/null; echo third $?
             {skep} exec u -- true; echo works $?
             {skep} rm --discard u 2>&1
             {skep} ls --all; echo end $?; ls -A {state}/sandboxes {state}/trash"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        let text = ran.text();
        for wanted in [
            "created 0",
            "filled 1",
            "ended 1",
            "second 1",
            "exec 125",
            "listed 0",
            "removed 0",
            "third 0",
            "works 0",
            "end 0",
        ] {
            assert!(text.lines().any(|line| line == wanted), "no `{wanted}`: {}", ran.describe());
        }
        assert!(text.contains("\"code\":\"no_space\""), "{}", ran.describe());
        assert!(text.contains("make room"), "no hint: {}", ran.describe());
        lab.tree().assert_equals(&before, "the project was changed");
        assert_eq!(outside::processes_of(&lab.root), vec![]);
    });
}

/// Filled by its own command, or by somebody else while one runs: what ended has ended, how is known, and
/// the sandbox is at rest.
#[test]
fn on_a_full_disk_what_has_ended_is_known_to_have_ended() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=6m,mode=700 none {state}
             {skep} run --name r -- dd if=/dev/zero of=big bs=64k count=1000 2> /dev/null; echo run $?
             said() {{ \"$@\" --json | tr -d '\\n'; echo; }}
             said {skep} show r; said {skep} ps r
             {skep} rm --discard r 2>&1
             {skep} create t > /dev/null
             {skep} exec t -- sh -c 'echo up; sleep 1; exit 7' > {state}/../up & client=$!
             until [ -s {state}/../up ]; do sleep 0.05; done
             dd if=/dev/zero of={state}/filler bs=4k 2> /dev/null
             wait $client; echo command $?
             said {skep} ps t; {skep} stop t > /dev/null; echo stopped $?; said {skep} show t
             rm {state}/filler; said {skep} ps t; {skep} rm t 2>&1"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        let text = ran.text();
        for wanted in ["run 1", "command 7", "stopped 0"] {
            assert!(text.lines().any(|line| line == wanted), "no `{wanted}`: {}", ran.describe());
        }
        let documents = text.lines().filter(|line| line.starts_with(['{', '[']));
        let documents: Vec<Value> =
            documents.map(|line| serde_json::from_str(line).unwrap()).collect();
        let [run, of_run, while_full, stopped, after] = &documents[..] else {
            panic!("{}", ran.describe())
        };
        assert_eq!((&run["state"], &stopped["state"]), (&"stopped".into(), &"stopped".into()));
        for (execs, code) in [(of_run, 1), (while_full, 7), (after, 7)] {
            let exec = &execs[0];
            assert_eq!((&exec["reason"], &exec["exit_code"]), (&"exited".into(), &code.into()));
            assert!(exec["stats"]["duration_ms"].is_u64(), "{exec}");
        }
        fs::remove_file(lab.root.join("up")).unwrap();
    });
}

/// Nothing can be written: looking works, and everything else names what it is about and what helps.
#[test]
fn on_a_read_only_state_directory_every_error_has_its_object_and_a_hint() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=6m,mode=700 none {state}
             {skep} run --name s -- sh -c 'echo b > a' 2> /dev/null
             mount -o remount,ro {state}
             {skep} ls > /dev/null && {skep} diff s > /dev/null; echo looked $?
             {skep} create t --json; {skep} run --json -- true; {skep} exec s --json -- true
             {skep} rm --discard s --json; {skep} gc --json; {skep} approve s --json
             {skep} snapshot s x --json; {skep} start s --json; mount -o remount,rw {state}
             {skep} rm --discard s 2> /dev/null"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        assert!(ran.text().lines().any(|line| line == "looked 0"), "{}", ran.describe());
        let errors = ran.errors();
        let problems: Vec<Value> = errors
            .lines()
            .filter(|line| line.starts_with("{\"error\""))
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["error"].clone())
            .collect();
        assert_eq!(problems.len(), 8, "{}", ran.describe());
        for problem in problems {
            assert!(problem["message"].to_string().contains("state"), "no object: {problem}");
            assert!(problem["hint"].to_string().contains("writable"), "no hint: {problem}");
        }
    });
}

/// Filled by somebody else, with nothing kept back and something to settle: looking works, and so does
/// removing what takes room.
#[test]
fn on_a_full_disk_sandboxes_are_listed_and_removed() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=8m,mode=700 none {state}
             {skep} create s > /dev/null; {skep} create t > /dev/null
             for name in s t; do {skep} exec $name -- dd if=/dev/zero of=big bs=64k count=8 2> /dev/null; done
             {skep} exec -d s -- sleep 1000 > /dev/null
             rm {state}/reserve; dd if=/dev/zero of={state}/filler bs=4k 2> /dev/null
             for process in /proc/[0-9]*; do
                 if [ \"$(readlink $process/exe)\" = {skep} ]; then kill -9 ${{process#/proc/}}; fi
             done
             {skep} ls --json > /dev/null; echo listed $?
             {skep} rm --discard s 2>&1; echo first $?
             {skep} rm --discard t 2>&1; echo second $?
             rm {state}/filler
             {skep} create u > /dev/null && {skep} exec u -- true; echo works $?
             {skep} rm --discard u 2>&1
             {skep} ls --all; echo end $?; ls -A {state}/sandboxes {state}/trash"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        let text = ran.text();
        for wanted in ["listed 0", "first 0", "second 0", "works 0", "end 0"] {
            assert!(text.lines().any(|line| line == wanted), "no `{wanted}`: {}", ran.describe());
        }
        assert_eq!(outside::processes_of(&lab.root), vec![]);
    });
}

#[test]
fn a_state_directory_that_others_can_write_is_refused() {
    for_both(|lab| {
        lab.directory(&lab.state);
        fs::set_permissions(&lab.state, fs::Permissions::from_mode(0o777)).unwrap();
        let ran = lab.skep(["create", "s", "--json"]).run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        fs::set_permissions(&lab.state, fs::Permissions::from_mode(0o700)).unwrap();
        lab.create("s");
    });
}

/// A keeper that does not answer is said to, and can be ended; others are listed as ever.
#[test]
fn a_keeper_that_stands_holds_nobody_up_for_ever() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "4721"]).run().ok();
        let keeper = lab.skep(["show", "s", "--json"]).run().ok().json();
        let keeper = keeper["provider_facts"]["keeper_pid"].as_str().unwrap().parse().unwrap();
        outside::signal(keeper, Signal::STOP);
        lab.skep(["diff", "s"]).within(60).run().exits(1).says("kill -CONT");
        lab.skep(["ls"]).within(60).run().ok();
        if lab.who.is_root() {
            lab.skep(["stop", "s"]).within(120).run().ok();
            assert_eq!(outside::processes_with("4721"), vec![]);
        } else {
            outside::signal(keeper, Signal::CONT);
            // Control: one that goes on answers, also for those whom nobody woke.
            lab.exec_script("s", "true").run().ok();
            lab.skep(["diff", "s"]).run().ok();
        }
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}
