//! What an exec leaves running: ended with it when it was ended, tracked when it went by itself.

use crate::harness::{Lab, for_both, outside, wait_for, wait_for_empty};

/// Processes of the sandbox that sleep for just this long, seen from outside.
fn sleepers(lab: &Lab, seconds: &str) -> usize {
    let asleep = |process: &&outside::Process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        line.starts_with(b"sleep\0") && line.windows(seconds.len()).any(|w| w == seconds.as_bytes())
    };
    outside::processes_of(&lab.root).iter().filter(asleep).count()
}

#[test]
fn res_11_a_timeout_takes_the_daemons_of_its_exec_along() {
    for_both(|lab| {
        lab.create("s");
        let script =
            "setsid nohup sh -c 'trap \"\" TERM HUP; exec sleep 4711' >/dev/null 2>&1 & sleep 300";
        let flags = ["exec", "--timeout", "500ms", "--grace", "300ms", "s", "--", "sh", "-c"];
        lab.skep(flags).arg(script).run().exits(124);
        wait_for_empty("daemons", 5, || vec![(); sleepers(lab, "4711")]);
        // The sandbox itself lives on.
        lab.exec_script("s", "true").run().ok();
    });
}

#[test]
fn res_11_a_daemon_of_an_exec_that_ended_by_itself_is_kept_until_stop() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "setsid sleep 4712 >/dev/null 2>&1 & true").run().ok();
        wait_for("the daemon", 5, || (sleepers(lab, "4712") == 1).then_some(()));
        lab.skep(["stop", "s"]).run().ok();
        wait_for_empty("daemons", 5, || vec![(); sleepers(lab, "4712")]);
    });
}

/// Killing the keeper is the harshest end: nothing inside survives it.
#[test]
fn res_11_nothing_survives_the_keeper() {
    for_both(|lab| {
        lab.create("s");
        let script = "trap '' TERM; setsid sleep 4713 & setsid sleep 4713 & sleep 4713";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
        wait_for("the processes", 5, || (sleepers(lab, "4713") == 3).then_some(()));
        for keeper in lab.keepers() {
            outside::kill(keeper);
        }
        wait_for_empty("processes", 5, || outside::processes_of(&lab.root));
    });
}
