//! Runs whose command line is killed: the command goes on, and when it has ended nothing waits for anybody.

use crate::harness::{Lab, for_both, outside, wait_for, wait_for_empty};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Child;

/// What the state of such a sandbox says.
const REASON: &str = "its command had ended, and whoever ran it was gone";

/// Kills a command line once its command is at work, which says so by a file.
fn kill_at_work(lab: &Lab, mut run: Child) -> String {
    let row = wait_for("the sandbox", 20, || {
        let row = lab.sandboxes().pop()?;
        (row["state"] == "ready").then_some(row)
    });
    let (id, name) = (row["id"].as_str().unwrap(), row["name"].as_str().unwrap());
    let begun = lab.state.join("sandboxes").join(id).join("upper/begun");
    wait_for("its command", 20, || begun.exists().then_some(()));
    run.kill().unwrap();
    run.wait().unwrap();
    name.to_owned()
}

fn stopped(lab: &Lab, name: &str) -> Value {
    wait_for("the sandbox to stop", 20, || lab.keepers().is_empty().then_some(()));
    wait_for("that to be noticed", 20, || {
        let row = lab.sandbox(name);
        (row["state"] == "stopped").then_some(row)
    })
}

/// The command is durable, the keeper is not: it ends as a run does.
#[test]
fn a_run_whose_command_line_was_killed_ends_when_its_command_does() {
    let work = "echo x > begun; sleep 2; echo done; echo y > ended; exit 3";
    let lines: [&[&str]; 3] = [
        &["run", "--", "sh", "-c", work],
        &["run", "--name", "named", "--", "sh", "-c", work],
        &["run", "--idempotency-key", "k", "--", "sh", "-c", work],
    ];
    for_both(|lab| {
        for line in lines {
            let name = kill_at_work(lab, lab.skep(line).spawn());
            assert_eq!(lab.keepers().len(), 1, "the command goes on");
            let row = stopped(lab, &name);
            assert_eq!(row["state_reason"], REASON);
            let execs = lab.skep(["ps", &name, "--json"]).run().ok().json();
            assert_eq!(execs[0]["exit_code"], 3, "{execs:#}");
            let logs = lab.skep(["logs", execs[0]["exec"].as_str().unwrap()]).run().ok();
            assert_eq!(logs.text(), "done");
            assert_eq!(lab.diff(&name)["totals"]["files"], 2);
            // It can be used on, and is then nobody's run: the next keeper waits as any other does.
            lab.exec_script(&name, "true").run().ok();
            std::thread::sleep(std::time::Duration::from_millis(1500));
            assert_eq!(lab.keepers().len(), 1);
            lab.skep(["rm", "--discard", &name]).run().ok();
        }
        lab.audit_leftovers();
    });
}

/// Who else is at work there, or has paused it, is not ended with it.
#[test]
fn a_run_whose_command_line_was_killed_waits_for_what_others_run_in_it() {
    for_both(|lab| {
        let run = lab.skep(["run", "--", "sh", "-c", "echo x > begun; exec sleep 66663"]).spawn();
        let name = kill_at_work(lab, run);
        let execs = lab.skep(["ps", &name, "--json"]).run().ok().json();
        let other = "sleep 3; echo z > other";
        lab.skep(["exec", "-d", &name, "--", "sh", "-c", other]).run().ok();
        lab.skep(["kill", execs[0]["exec"].as_str().unwrap()]).run().ok();
        std::thread::sleep(std::time::Duration::from_millis(1500));
        assert_eq!(lab.keepers().len(), 1, "somebody else's command was ended");
        lab.skep(["freeze", &name]).run().ok();
        std::thread::sleep(std::time::Duration::from_millis(3000));
        assert_eq!(lab.sandbox(&name)["state"], "frozen");
        lab.skep(["thaw", &name]).run().ok();
        assert_eq!(stopped(lab, &name)["state_reason"], REASON);
        let paths: Vec<Value> = lab.diff(&name)["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|change| change["path"].clone())
            .collect();
        assert_eq!(paths, ["begun", "other"]);
        lab.skep(["rm", "--discard", &name]).run().ok();
        lab.audit_leftovers();
    });
}

/// Without anything to review it goes with the next upkeep, and its output with it; not before.
#[test]
fn a_run_whose_command_line_was_killed_and_that_changed_nothing_goes_with_upkeep() {
    for_both(|lab| {
        let script = "echo x > begun; sleep 1; rm begun; echo said";
        let name = kill_at_work(lab, lab.skep(["run", "--", "sh", "-c", script]).spawn());
        stopped(lab, &name);
        let execs = lab.skep(["ps", &name, "--json"]).run().ok().json();
        let exec = execs[0]["exec"].as_str().unwrap();
        assert_eq!(lab.skep(["logs", exec]).run().ok().text(), "said");
        lab.skep(["gc"]).run().ok();
        assert_eq!(lab.sandboxes(), Vec::<Value>::new());
        assert_eq!(outside::processes_of(&lab.root).len(), 0);
        lab.audit_leftovers();
    });
}

/// The same without namespaces, where nobody's death ends everybody.
#[test]
fn a_run_without_isolation_whose_command_line_was_killed_ends_when_its_command_does() {
    for_both(|lab| {
        let script = "echo x > begun; sleep 1; echo y > ended";
        let line = ["run", "--provider", "subprocess", "--", "sh", "-c", script];
        let name = kill_at_work(lab, lab.skep(line).spawn());
        assert_eq!(stopped(lab, &name)["state_reason"], REASON);
        assert_eq!(lab.diff(&name)["totals"]["files"], 2);
        lab.skep(["rm", "--discard", &name]).run().ok();
        lab.audit_leftovers();
    });
}

/// Killed when the sandbox is up and its command was not asked for yet: nobody ever will.
#[test]
fn a_run_that_was_killed_before_its_command_began_leaves_no_keeper() {
    for_both(|lab| {
        for provider in ["namespace", "subprocess"] {
            let line = ["run", "--name", "s", "--provider", provider, "--", "touch", "begun"];
            let killed = lab.skep(line).env("SKEP_FAILPOINT", "exec.row=kill").run();
            assert_eq!(killed.code(), -9, "{}", killed.describe());
            let row = stopped(lab, "s");
            let reason = "whoever made it for a command was gone before that began";
            assert_eq!(row["state_reason"], reason);
            let execs = lab.skep(["ps", "s", "--json"]).run().ok().json();
            assert_eq!(execs[0]["reason"], "lost", "{execs:#}");
            assert_eq!(lab.diff("s")["totals"]["files"], 0);
            // Started by somebody else it waits as any other does.
            lab.exec_script("s", "true").run().ok();
            std::thread::sleep(std::time::Duration::from_millis(1500));
            assert_eq!(lab.keepers().len(), 1);
            lab.skep(["rm", "s"]).run().ok();
        }
        lab.audit_leftovers();
    });
}

/// Killed while the sandbox comes up: who hears that nobody is there any more ends, and asks nobody.
#[test]
fn a_keeper_whose_maker_died_while_it_came_up_ends_by_itself() {
    for_both(|lab| {
        for line in [&["create", "s"][..], &["run", "--name", "s", "--", "true"]] {
            let mut maker = lab.skep(line).env("SKEP_FAILPOINT", "create.ready=stop").spawn();
            let of_lab = || outside::processes_of(&lab.root).into_iter().map(|one| one.pid);
            let keeper = wait_for("the keeper to be nearly up", 20, || {
                of_lab().find(|pid| outside::state_of(*pid as u32) == Some('T'))
            });
            maker.kill().unwrap();
            maker.wait().unwrap();
            outside::signal(keeper, Signal::CONT);
            wait_for("the keeper to end", 10, || lab.keepers().is_empty().then_some(()));
            wait_for("the sandbox to be gone", 20, || lab.sandboxes().is_empty().then_some(()));
        }
        wait_for_empty("processes", 10, || lab.keepers());
        lab.audit_leftovers();
    });
}
