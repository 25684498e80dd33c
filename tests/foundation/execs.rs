//! Execs that outlive their caller: background, list, logs, kill; and what they leave running.

use crate::harness::{Lab, Who, for_both, for_each, outside, wait_for, wait_for_empty};
use serde_json::Value;

fn exec_row(lab: &Lab, name: &str, exec: &str) -> Value {
    let rows = lab.skep(["ps", name, "--json"]).run().ok().json();
    let rows = rows.as_array().unwrap().clone();
    rows.into_iter().find(|row| row["exec"] == exec).unwrap()
}

#[test]
fn a_background_exec_is_listed_followed_and_killed() {
    for_both(|lab| {
        lab.create("s");
        let script = "echo one; echo two >&2; sleep 77777";
        let exec = lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok().text();
        assert_eq!(exec_row(lab, "s", &exec)["running"], true);
        wait_for("the output", 10, || {
            let ran = lab.skep(["logs", &exec]).run().ok();
            (ran.text().contains("one") && (ran.text() + &ran.errors()).contains("two"))
                .then_some(())
        });
        // From an offset: the rest, byte for byte.
        let whole = lab.skep(["logs", &exec, "--json"]).run().ok().json_lines();
        assert_eq!(whole[0]["offset"], 0, "{whole:?}");
        let rest = lab.skep(["logs", "--from", "2", &exec, "--json"]).run().ok().json_lines();
        assert_eq!(rest[0]["offset"], 2, "{rest:?}");
        lab.skep(["kill", &exec]).run().ok();
        let row = wait_for("the end", 10, || {
            let row = exec_row(lab, "s", &exec);
            (row["running"] == false).then_some(row)
        });
        assert_eq!((&row["reason"], &row["exit_code"]), (&"killed".into(), &137.into()));
        wait_for_empty("processes", 10, || outside::processes_with("77777"));
        // Again is no error, and the output is still there after the keeper is gone.
        lab.skep(["kill", &exec]).run().ok();
        lab.skep(["stop", "s"]).run().ok();
        assert!(lab.skep(["logs", &exec]).run().ok().text().contains("one"));
    });
}

#[test]
fn logs_follow_until_the_end() {
    for_both(|lab| {
        lab.create("s");
        let script = "for i in 1 2 3; do echo line $i; sleep 0.2; done";
        let exec = lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok().text();
        let ran = lab.skep(["logs", "-f", &exec]).run().ok();
        assert_eq!(ran.text(), "line 1\nline 2\nline 3");
    });
}

#[test]
fn an_exec_goes_on_when_its_caller_is_killed() {
    for_both(|lab| {
        lab.create("s");
        let script = "echo started; while ! test -e go; do sleep 0.05; done; echo finished";
        let mut child = lab.exec_script("s", script).spawn();
        let exec = wait_for("the exec", 10, || {
            let rows = lab.skep(["ps", "s", "--json"]).run().ok().json();
            rows[0]["exec"].as_str().map(str::to_owned)
        });
        wait_for("its output", 10, || {
            lab.skep(["logs", &exec]).run().ok().text().contains("started").then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        lab.exec_script("s", "touch go").run().ok();
        let row = wait_for("the end", 10, || {
            let row = exec_row(lab, "s", &exec);
            (row["running"] == false).then_some(row)
        });
        println!("{row}");
        // A client that dies is no reason to end the exec; if it is ended, the reason says so.
        assert_eq!(row["reason"], "exited", "{row}");
        assert_eq!(lab.skep(["logs", &exec]).run().ok().text(), "started\nfinished");
    });
}

/// Starts a daemon that has cut every tie to its parents, named by a number.
fn daemon(number: &str) -> String {
    format!("(setsid nohup sleep {number} > /dev/null 2>&1 < /dev/null &) & wait; sleep 0.1")
}

#[test]
fn res_11_a_daemon_ends_with_the_run_the_stop_and_the_removal() {
    for_both(|lab| {
        let number = format!("4{:08}", std::process::id());
        let left = || outside::processes_with(&number);
        lab.run_script(&daemon(&number)).run().ok();
        assert_eq!(left(), vec![], "after run");

        lab.create("s");
        lab.exec_script("s", &daemon(&number)).run().ok();
        // Between execs it lives on, in the sandbox, until that is stopped.
        assert_eq!(left().len(), 1, "a daemon lives until the sandbox is stopped");
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(left(), vec![], "after stop");
        lab.skep(["start", "s"]).run().ok();
        assert_eq!(left(), vec![], "started again");

        lab.exec_script("s", &daemon(&number)).run().ok();
        lab.skep(["rm", "--discard", "s"]).run().ok();
        assert_eq!(left(), vec![], "after rm");

        lab.create("k");
        lab.exec_script("k", &daemon(&number)).run().ok();
        for keeper in lab.keepers() {
            outside::kill(keeper);
        }
        wait_for_empty("processes", 10, left);
        // Control: without a sandbox it survives everything, until it is killed by its number.
        lab.program("sh").args(["-c", &daemon(&number)]).run().ok();
        assert_eq!(left().len(), 1);
        outside::kill(left()[0].pid);
    });
}

#[test]
fn killing_an_exec_ends_what_it_started() {
    for_both(|lab| {
        let number = format!("5{:08}", std::process::id());
        lab.create("s");
        // Children in sessions of their own too.
        let script = format!("setsid sleep {number} & sleep {number} & (sleep {number}) & wait");
        let exec = lab.skep(["exec", "-d", "s", "--", "sh", "-c", &script]).run().ok().text();
        let started = || outside::processes_with(&format!("sleep\0{number}"));
        wait_for("all to run", 10, || (started().len() == 3).then_some(()));
        lab.skep(["kill", &exec]).run().ok();
        wait_for_empty("processes", 10, || outside::processes_with(&number));
    });
}

/// Where no cgroup tells the processes of execs apart, something is remembered of each.
#[test]
fn many_execs_in_a_row_need_no_more_open_files_than_a_few() {
    for_both(|lab| {
        let line = "ulimit -Sn 80; exec \"$0\" create s";
        lab.program("sh").args(["-c", line, lab.binary.to_str().unwrap()]).run().ok();
        for _ in 0..90 {
            lab.skep(["exec", "s", "--", "true"]).run().ok();
        }
        lab.skep(["rm", "s"]).run().ok();
        lab.audit_leftovers();
    });
}

/// One that printed nothing has no log. Whoever looks in the moment of its end finds no end yet, and nobody running.
#[test]
fn an_exec_that_ends_while_it_is_looked_at_is_not_lost() {
    for_both(|lab| {
        lab.create("s");
        // Old enough not to be on their way any more.
        let ends = |hundredths: u32| format!("sleep 5.{hundredths:02}");
        for index in 0..24 {
            let script = ends(50 + index * 2);
            lab.skep(["exec", "-d", "s", "--", "sh", "-c", &script]).run().ok();
        }
        let rows = || lab.skep(["ps", "s", "--json"]).run().ok().json().as_array().unwrap().clone();
        let done = || rows().iter().all(|row| row["running"] == false);
        let watch = || wait_for("all ends", 60, || done().then_some(()));
        std::thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(watch)));
        });
        for row in rows() {
            assert_eq!(row["reason"], "exited", "{row}");
        }
    });
}

/// Holds a program by a lease, so that nobody can open it before the kernel takes the lease away.
const HOLDER: &str = "
import fcntl, os, shutil, signal, time
shutil.copy('/bin/true', '/tmp/held')
held = os.open('/tmp/held', os.O_WRONLY)
fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGURG)
fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open('/tmp/holds', 'w')
time.sleep(600)
";

#[test]
fn a_program_that_somebody_holds_by_a_lease_is_said_to_be_held() {
    for_each([Who::user()], |lab| {
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "python3", "-c", HOLDER]).run().ok();
        wait_for("the lease", 20, || {
            (lab.exec_script("s", "test -e /tmp/holds").run().code() == 0).then_some(())
        });
        let ran = lab.skep(["exec", "s", "--", "/tmp/held"]).within(40).run().exits(126);
        ran.says("cannot run the program").says("holds it by a lease");
        // Nobody else has to wait for it any longer.
        lab.exec_script("s", "true").within(20).run().ok();
    });
}
