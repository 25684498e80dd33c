//! Stop, start, freeze, thaw, remove; events; several callers at once.

use crate::harness::{Lab, entries, for_both, outside, wait_for, wait_for_empty};
use std::collections::BTreeSet;
use std::io::Read as _;

#[track_caller]
fn state(lab: &Lab, name: &str) -> String {
    lab.sandbox(name)["state"].as_str().unwrap().to_owned()
}

#[test]
fn stop_keeps_the_changes_and_start_brings_them_back() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.create("s");
        lab.exec_script("s", "echo b > b; rm a; echo gone > /tmp/private").run().ok();
        let digest = lab.diff("s")["digest"].clone();
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(state(lab, "s"), "stopped");
        assert_eq!(outside::processes_of(&lab.root), vec![]);
        assert_eq!(lab.diff("s")["digest"], digest);
        // Repeats are fine.
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["start", "s"]).run().ok();
        lab.skep(["start", "s"]).run().ok();
        assert_eq!(state(lab, "s"), "ready");
        assert_eq!(
            lab.exec_script("s", "cat b; ls a /tmp/private 2>&1 | wc -l").run().ok().text(),
            "b\n2"
        );
        assert_eq!(lab.diff("s")["digest"], digest);
    });
}

/// What was reviewed and still runs can be paused as any other that runs.
#[test]
fn a_reviewed_sandbox_that_runs_can_be_frozen() {
    for_both(|lab| {
        for (verb, word) in [("approve", "approved"), ("reject", "rejected")] {
            lab.create("s");
            let script =
                "echo x > x; echo 0 > /tmp/n; while true; do sleep 0.02; date +%N > /tmp/n; done";
            lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
            let wait = "while ! test -s x; do sleep 0.02; done";
            lab.exec_script("s", wait).run().ok();
            lab.skep([verb, "s"]).run().ok();
            assert_eq!(state(lab, "s"), word);
            lab.skep(["freeze", "s"]).run().ok();
            assert_eq!(state(lab, "s"), "frozen");
            lab.skep(["exec", "s", "--", "true"]).run().exits(125);
            lab.skep(["thaw", "s"]).run().ok();
            assert_eq!(state(lab, "s"), word);
            assert!(lab.diff("s")["changes"].as_array().unwrap().is_empty());
            lab.skep(["rm", "s"]).run().ok();
            let _ = std::fs::remove_file(lab.project.join("x"));
        }
    });
}

#[test]
fn a_frozen_sandbox_stands_still_until_it_is_thawed() {
    for_both(|lab| {
        lab.create("s");
        let script = "i=0; while true; do i=$((i+1)); echo $i > count; sleep 0.01; done";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let file = lab.state.join("sandboxes").join(id).join("upper/count");
        let count = || std::fs::read_to_string(&file).ok()?.trim().parse::<u64>().ok();
        wait_for("it to count", 10, count);
        let first = ["freeze", "s"];
        lab.skep(first).run().ok();
        assert_eq!(state(lab, "s"), "frozen");
        let before = count();
        // Long enough for ten rounds of a loop that is not frozen.
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(count(), before);
        lab.skep(first).run().ok();
        lab.skep(["exec", "s", "--", "true"]).run().exits(125);
        lab.diff("s");
        assert_eq!(state(lab, "s"), "frozen", "a diff does not thaw");
        lab.skep(["thaw", "s"]).run().ok();
        lab.skep(["thaw", "s"]).run().ok();
        wait_for("it to count on", 10, || (count() > before).then_some(()));
    });
}

/// The command of a run has ended, and its caller has not read everything yet: what stands still is over.
#[test]
fn a_run_whose_command_has_ended_is_not_called_frozen() {
    for_both(|lab| {
        let script = "echo x > kept; head -c 450000 /dev/zero";
        let mut run = lab.skep(["run", "--name", "s", "--", "sh", "-c", script]).spawn();
        wait_for("the end of the command", 20, || {
            let id = lab.sandboxes().pop()?["id"].as_str()?.to_owned();
            let execs = entries(&lab.state.join("sandboxes").join(id).join("execs"));
            execs.iter().any(|path| path.extension() == Some("end".as_ref())).then_some(())
        });
        lab.skep(["freeze", "s"]).run().exits(4).says("is not running");
        assert_ne!(state(lab, "s"), "frozen");
        let mut output = Vec::new();
        run.stdout.take().unwrap().read_to_end(&mut output).unwrap();
        assert_eq!((run.wait().unwrap().code(), output.len()), (Some(0), 450_000));
        assert_eq!(state(lab, "s"), "stopped");
    });
}

#[test]
fn a_frozen_sandbox_can_be_stopped_and_removed() {
    for_both(|lab| {
        for last in ["stop", "rm"] {
            let name = format!("to-{last}");
            lab.create(&name);
            lab.skep(["exec", "-d", &name, "--", "sleep", "99999"]).run().ok();
            lab.skep(["freeze", &name]).run().ok();
            lab.skep([last, &name]).run().ok();
            assert_eq!(outside::processes_of(&lab.root), vec![], "after {last}");
        }
    });
}

#[test]
fn illegal_moves_are_typed_and_change_nothing() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["stop", "s"]).run().ok();
        for line in [["freeze", "s"], ["thaw", "s"]] {
            let ran = lab.skep(line).arg("--json").run();
            assert!(matches!(ran.code(), 0 | 4), "{}", ran.describe());
            assert_eq!(state(lab, "s"), "stopped");
        }
        // It was started without a word, and stood still.
        lab.skep(["start", "s"]).run().ok();
        lab.skep(["freeze", "s"]).run().ok();
        lab.skep(["start", "s"]).run().exits(4).says("skep thaw");
        assert_eq!(state(lab, "s"), "frozen");
        lab.skep(["rm", "s"]).run().ok();
        for command in ["start", "stop", "freeze", "thaw", "rm", "diff", "show"] {
            lab.skep([command, "s"]).run().exits(3);
        }
    });
}

#[test]
fn a_run_without_changes_leaves_no_sandbox_and_keep_keeps_it() {
    for_both(|lab| {
        lab.run_script("true").run().ok();
        assert_eq!(lab.sandboxes().len(), 0);
        lab.skep(["run", "--keep", "--name", "k", "--", "true"]).run().ok();
        assert_eq!(state(lab, "k"), "stopped");
        let ran = lab.skep(["run", "--rm", "--discard", "--", "sh", "-c", "echo x > x"]).run().ok();
        assert_eq!(lab.sandboxes().len(), 1, "{}", ran.describe());
    });
}

#[test]
fn after_an_approval_the_state_says_so_until_the_next_change() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo x > x").run().ok();
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(state(lab, "s"), "approved");
        lab.exec_script("s", "echo y > y").run().ok();
        assert_eq!(state(lab, "s"), "ready");
        lab.skep(["reject", "s", "--reason", "no"]).run().ok();
        assert_eq!(state(lab, "s"), "rejected");
        assert!(lab.tree().get("y").is_none() && lab.tree().get("x").is_some());
    });
}

#[test]
fn events_tell_the_story_in_order() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo x > x").run().ok();
        lab.skep(["approve", "s"]).run().ok();
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["rm", "s"]).run().ok();
        let events = lab.skep(["events", "--json"]).run().ok().json_lines();
        let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
        let mut at = 0;
        for wanted in
            ["creating", "ready", "exec.started", "exec.ended", "approv", "stopped", "deleted"]
        {
            let found = kinds[at..].iter().position(|kind| kind.contains(wanted));
            at += found.unwrap_or_else(|| panic!("no `{wanted}` in order: {kinds:?}"));
        }
        let numbers: Vec<_> =
            events.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        assert!(events.iter().all(|event| event["at"].is_string()));
    });
}

#[test]
fn eight_runs_at_once_in_one_project() {
    for_both(|lab| {
        lab.write("shared", "base\n");
        let spawn = |at: usize| {
            let name = format!("p{at}");
            let script = format!("echo {at} > own-{at}; echo {at} >> shared; cat shared | wc -l");
            lab.skep(["run", "--name", &name, "--", "sh", "-c", &script]).spawn()
        };
        let children: Vec<_> = (0..8).map(spawn).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            assert_eq!(output.stdout, b"2\n", "each has a copy of its own");
        }
        let names: BTreeSet<_> =
            lab.sandboxes().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names, (0..8).map(|at| format!("p{at}")).collect());
        // Approvals at once: the files of their own all arrive, the shared one by one sandbox.
        let approve =
            |at: usize| lab.skep(["approve", &format!("p{at}"), &format!("own-{at}")]).spawn();
        let children: Vec<_> = (0..8).map(approve).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        for at in 0..8 {
            assert_eq!(
                lab.tree().get(format!("own-{at}")).unwrap().bytes,
                format!("{at}\n").as_bytes()
            );
        }
        assert_eq!(lab.tree().get("shared").unwrap().bytes, b"base\n");
    });
}

#[test]
fn eight_callers_of_one_name_make_one_sandbox() {
    for_both(|lab| {
        let children: Vec<_> = (0..8).map(|_| lab.skep(["create", "s"]).spawn()).collect();
        let ends: Vec<_> = children
            .into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .map(|end| (end.status.code(), String::from_utf8_lossy(&end.stderr).into_owned()))
            .collect();
        let ended = |code| ends.iter().filter(|(other, _)| *other == Some(code)).count();
        assert_eq!((ended(0), ended(4)), (1, 7), "{ends:?}");
        assert_eq!(lab.keepers().len(), 1);
        // With a key of idempotence all of them get the same one, or are told to come again.
        let keyed = |_| lab.skep(["create", "--idempotency-key", "k", "--json"]).spawn();
        let children: Vec<_> = (0..8).map(keyed).collect();
        let mut ids = BTreeSet::new();
        for child in children {
            let output = child.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            if !output.status.success() {
                assert!(
                    errors.contains("\"busy\"") && errors.contains("\"retryable\":true"),
                    "{errors}"
                );
                continue;
            }
            let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            ids.insert(document["id"].as_str().unwrap().to_owned());
        }
        let again = lab.skep(["create", "--idempotency-key", "k", "--json"]).run().ok().json();
        ids.insert(again["id"].as_str().unwrap().to_owned());
        assert_eq!(ids.len(), 1, "{ids:?}");
    });
}

#[test]
fn stats_add_up() {
    for_both(|lab| {
        let empty = lab.skep(["stats", "--json"]).run().ok().json();
        assert_eq!((&empty["sandboxes"], &empty["changed"]), (&0.into(), &0.into()), "{empty}");
        for (name, memory) in [("a", "256M"), ("b", "128M")] {
            let limits = ["--memory", memory, "--disk", "64M", "--best-effort"];
            lab.skep(["create", name]).args(limits).run().ok();
        }
        lab.exec_script("a", "head -c 1000000 /dev/zero > big").run().ok();
        lab.skep(["stop", "b"]).run().ok();
        lab.skep(["exec", "-d", "a", "--", "sleep", "60"]).run().ok();
        let sums = lab.skep(["stats", "--json"]).run().ok().json();
        assert_eq!(sums["states"], serde_json::json!({ "ready": 1, "stopped": 1 }), "{sums}");
        assert_eq!((&sums["sandboxes"], &sums["running"]), (&2.into(), &1.into()), "{sums}");
        assert_eq!((&sums["execs"], &sums["memory"]), (&1.into(), &(256 << 20).into()), "{sums}");
        assert_eq!(sums["disk"], 128 << 20, "{sums}");
        assert!(sums["changed"].as_u64().unwrap() >= 1_000_000, "{sums}");
        let text = lab.skep(["stats"]).run().ok().text();
        assert!(text.contains("2 (1 ready, 1 stopped)"), "{text}");
    });
}

/// A skep of another version is told so by a keeper, which goes on; it can be ended by any.
#[test]
fn a_keeper_of_another_version_goes_on_and_can_be_ended() {
    use std::io::{Read as _, Write as _};
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo kept > file").run().ok();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let socket = lab.state.join("sandboxes").join(id).join("keeper.sock");
        let ask = |operation: &str| {
            let request = format!("{{\"version\":99,\"operation\":\"{operation}\"}}");
            let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
            let mut frame = vec![1];
            frame.extend((request.len() as u32).to_le_bytes());
            frame.extend(request.as_bytes());
            stream.write_all(&frame).unwrap();
            stream
        };
        let mut answer = [0; 64];
        let length = ask("Status").read(&mut answer).unwrap();
        let text = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(text.contains("OtherVersion"), "{text}");
        // It goes on.
        lab.skep(["exec", "s", "--", "cat", "file"]).run().ok();
        let mut rest = Vec::new();
        ask("Stop").read_to_end(&mut rest).unwrap();
        wait_for("the keeper to be gone", 10, || lab.keepers().is_empty().then_some(()));
        // Settled as any other that is gone.
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(lab.skep(["exec", "s", "--", "cat", "file"]).run().ok().text(), "kept");
    });
}

/// Whoever cannot open enough files to see that a keeper lives does not take it for gone: nobody would ever end it.
#[test]
fn who_cannot_open_more_files_takes_no_keeper_for_gone() {
    for_both(|lab| {
        lab.create("s");
        let keeper = lab.keepers()[0];
        let program = lab.binary.to_str().unwrap();
        let one_more = "inject=open,openat:error=EMFILE";
        let seen_by = format!("/proc/{keeper}/stat");
        let refuse = ["-qq", "-f", "-o", "/dev/null", "-P", &seen_by, "-e", one_more];
        lab.program("strace").args(refuse).args([program, "ls"]).run().ok();
        assert_eq!(lab.sandbox("s")["state"], "ready");
        for most in 4..24 {
            for line in ["ls", "run -- true"] {
                let script = format!("ulimit -n {most}; exec {program} {line}");
                lab.program("sh").args(["-c", &script]).run();
            }
            assert_eq!(lab.sandbox("s")["state"], "ready", "with {most} open files");
        }
        // A run whose command could not begin may still be ending.
        wait_for("the others to end", 20, || (lab.keepers() == [keeper]).then_some(()));
        for sandbox in lab.sandboxes() {
            lab.skep(["rm", "--discard", sandbox["id"].as_str().unwrap()]).run().ok();
        }
        wait_for_empty("processes", 10, || outside::processes_of(&lab.root));
        lab.audit_leftovers();
    });
}
