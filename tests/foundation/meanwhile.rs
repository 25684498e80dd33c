//! What others may do with a sandbox while somebody makes it, or looks at it: nothing that would show.

use crate::harness::{Held, Lab, for_both, wait_for, wait_for_empty};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Lets it go on, and waits for its end.
#[track_caller]
fn goes_on(held: Held) {
    let ended = held.go_on();
    assert!(ended.status.success(), "{ended:?}");
}

/// The row is there before the directories are, and before what hides the secrets is.
#[test]
fn a_sandbox_that_is_being_created_is_its_makers_alone() {
    for_both(|lab| {
        lab.write("a.txt", "one");
        lab.write("sub/key.pem", "SECRET");
        for point in ["create.row", "create.directories"] {
            let making = Held::at(lab.skep(["create", "x"]), &[point]);
            for line in [
                &["exec", "x", "--", "cat", "sub/key.pem"][..],
                &["start", "x"],
                &["freeze", "x"],
                &["snapshot", "x", "early"],
                &["fork", "x"],
                &["rm", "x", "--discard"],
            ] {
                let refused = lab.skep(line).run();
                assert_ne!(refused.code(), 0, "{line:?}: {}", refused.describe());
                assert_eq!(refused.text(), "", "{line:?}");
                assert!(refused.errors().contains("being created"), "{}", refused.describe());
            }
            goes_on(making);
            // Whoever asks now finds it whole.
            let seen = lab.exec_script("x", "cat a.txt; cat sub/key.pem").run();
            assert_eq!(seen.text(), "one");
            lab.skep(["rm", "x"]).run().ok();
        }
    });
}

/// A command that is asked for during a look begins when the look is over: a change set is one moment.
#[test]
fn nothing_begins_while_somebody_looks() {
    for_both(|lab| {
        lab.create("z");
        lab.exec_script("z", "echo 1 > one").run().ok();
        let upper = lab.state.join("sandboxes").join(lab.sandbox("z")["id"].as_str().unwrap());
        let during = upper.join("upper/during");
        let looking = Held::at(lab.skep(["diff", "z"]), &["look.still"]);
        let mut early = lab.exec_script("z", "echo 2 > during").spawn();
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            assert!(
                !during.exists() && early.try_wait().unwrap().is_none(),
                "it ran during the look"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        goes_on(looking);
        assert!(early.wait().unwrap().success());
        assert!(during.exists());
        // One that was asked for by somebody who gave up does not begin.
        let looking = Held::at(lab.skep(["diff", "z"]), &["look.still"]);
        let mut impatient = lab.exec_script("z", "echo 3 > impatient").spawn();
        let execs = || lab.skep(["ps", "z", "--json"]).run().ok().json().as_array().unwrap().len();
        wait_for("the impatient one", 20, || (execs() >= 3).then_some(()));
        impatient.kill().unwrap();
        impatient.wait().unwrap();
        goes_on(looking);
        lab.exec_script("z", "true").run().ok();
        assert!(!upper.join("upper/impatient").exists());
    });
}

/// Killed between the keeper and the row, neither lies about the other afterwards.
#[test]
fn a_freeze_or_thaw_that_was_killed_half_way_is_settled() {
    for_both(|lab| {
        lab.create("f");
        lab.skep(["exec", "-d", "f", "--", "sh", "-c", "while :; do date +%N > tick; done"])
            .run()
            .ok();
        let tick = lab.state.join("sandboxes").join(lab.sandbox("f")["id"].as_str().unwrap());
        let tick = tick.join("upper/tick");
        let read = || std::fs::read(&tick).unwrap_or_default();
        let moves = || {
            let before = read();
            wait_for("the counter", 20, || (read() != before).then_some(()));
        };
        moves();
        let killed = lab.skep(["freeze", "f"]).env("SKEP_FAILPOINT", "freeze.still=kill").run();
        assert_ne!(killed.code(), 0);
        assert_eq!(lab.sandbox("f")["state"], "ready");
        moves();
        lab.skep(["freeze", "f"]).run().ok();
        let killed = lab.skep(["thaw", "f"]).env("SKEP_FAILPOINT", "thaw.row=kill").run();
        assert_ne!(killed.code(), 0);
        assert_eq!(lab.sandbox("f")["state"], "ready");
        moves();
    });
}

/// The way without the store knows when a sandbox's time is over.
#[test]
fn an_exec_past_the_time_to_live_is_refused() {
    for_both(|lab| {
        lab.skep(["create", "t", "--ttl", "3s"]).run().ok();
        lab.exec_script("t", "true").run().ok();
        lab.exec_script("t", "true").run().ok();
        // Nothing but execs: nobody else opens the store.
        wait_for("its end", 20, || (lab.exec_script("t", "true").run().code() != 0).then_some(()));
    });
}

/// Whoever looked was killed: a command that waited for the end of the look begins all the same.
#[test]
fn a_command_does_not_wait_for_a_look_whose_looker_died() {
    for_both(|lab| {
        lab.create("d");
        lab.skep(["exec", "-d", "d", "--", "sleep", "600"]).run().ok();
        let looking = Held::at(lab.skep(["diff", "d"]), &["look.still"]);
        let waits = lab.exec_script("d", "echo 1 > one").spawn();
        let execs = || lab.skep(["ps", "d", "--json"]).run().ok().json().as_array().unwrap().len();
        wait_for("the command to be asked for", 20, || (execs() >= 2).then_some(()));
        drop(looking);
        let ended = waits.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    });
}

/// A command that waits for the end of a look can be killed, and then does not begin.
#[test]
fn a_command_that_waits_can_be_killed() {
    for_both(|lab| {
        lab.create("k");
        lab.skep(["exec", "-d", "k", "--", "sleep", "600"]).run().ok();
        let looking = Held::at(lab.skep(["diff", "k"]), &["look.still"]);
        let waits = lab.exec_script("k", "echo 1 > one").spawn();
        let execs = || lab.skep(["ps", "k", "--json"]).run().ok().json();
        let asked = wait_for("the command to be asked for", 20, || {
            let all = execs();
            let new = all.as_array().unwrap().iter().find(|one| one["command"][0] == "sh")?;
            new["exec"].as_str().map(str::to_owned)
        });
        lab.skep(["kill", &asked]).run().ok();
        goes_on(looking);
        assert!(!waits.wait_with_output().unwrap().status.success());
        assert_eq!(lab.diff("k")["changes"].as_array().unwrap().len(), 0);
    });
}

/// A keeper may end by itself between the look whether it runs and the word to pause: nobody is left then, and
/// what was changed is there.
#[test]
fn a_look_or_a_removal_whose_keeper_ends_meanwhile_is_answered() {
    for_both(|lab| {
        lab.create("e");
        for signal in [Signal::TERM, Signal::KILL] {
            lab.exec_script("e", "echo 1 > one").run().ok();
            let looking = Held::at(lab.skep(["diff", "e"]), &["look.begins"]);
            end_keepers(lab, signal);
            let ended = looking.go_on();
            assert!(ended.status.success(), "{ended:?}");
            assert!(String::from_utf8_lossy(&ended.stdout).contains("added one"), "{ended:?}");
        }
        lab.exec_script("e", "rm one").run().ok();
        let removing = Held::at(lab.skep(["rm", "e"]), &["look.begins"]);
        end_keepers(lab, Signal::TERM);
        goes_on(removing);
        lab.audit_leftovers();
    });
}

fn end_keepers(lab: &Lab, signal: Signal) {
    for keeper in lab.keepers() {
        let _ = kill_process(Pid::from_raw(keeper).unwrap(), signal);
    }
    wait_for_empty("keepers", 20, || lab.keepers());
}
