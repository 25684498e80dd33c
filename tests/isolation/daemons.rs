//! What an exec leaves running: ended with it when it was ended, tracked when it went by itself.

use crate::harness::{Lab, Who, attack, for_both, for_each, outside, wait_for, wait_for_empty};

/// Processes of the sandbox that sleep for just this long, seen from outside.
fn sleepers(lab: &Lab, seconds: &str) -> usize {
    let asleep = |process: &&outside::Process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        line.starts_with(b"sleep\0") && line.windows(seconds.len()).any(|w| w == seconds.as_bytes())
    };
    outside::processes_of(&lab.root).iter().filter(asleep).count()
}

/// Who is left behind is no exec: a sandbox without one is idle.
#[test]
fn res_11_a_daemon_does_not_keep_an_idle_sandbox() {
    for_both(|lab| {
        lab.skep(["create", "s", "--idle-timeout", "1s"]).run().ok();
        let left = "(setsid sleep 4761 > /dev/null 2>&1 &) ; sleep 0.5";
        lab.exec_script("s", left).run().ok();
        wait_for("the idle sandbox to be stopped", 20, || {
            (lab.sandbox("s")["state"] == "stopped").then_some(())
        });
        let reason = lab.sandbox("s")["state_reason"].clone();
        assert_eq!(reason, "nothing ran for 1.0 s (`--idle-timeout`)");
        let events = lab.skep(["events"]).run().ok().text();
        assert!(events.contains("nothing ran for 1.0 s"), "{events}");
        // Control: a keeper that was killed is not called idle, although this one was before.
        lab.skep(["start", "s"]).run().ok();
        lab.keepers().into_iter().for_each(outside::kill);
        wait_for("it to be noticed", 10, || {
            (lab.sandbox("s")["state_reason"] == "its keeper was gone").then_some(())
        });
    });
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

/// Neither a session of its own nor a second fork takes a process out of its exec, and another exec's
/// are left alone, also where no cgroup tells them apart.
#[test]
fn res_11_a_timeout_takes_the_daemons_of_its_exec_along_and_no_others() {
    for_both(|lab| {
        lab.create("s");
        let daemon = |seconds: &str| {
            format!(
                "(setsid sh -c 'trap \"\" TERM HUP; sleep {seconds} & exec sleep {seconds}' >/dev/null 2>&1 &)"
            )
        };
        let other = format!("{}; sleep 4716", daemon("4716"));
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", &other]).run().ok();
        wait_for("the other exec", 5, || (sleepers(lab, "4716") == 3).then_some(()));
        let flags = ["exec", "--timeout", "700ms", "--grace", "200ms", "s", "--", "sh", "-c"];
        let script = format!("{}; {}; sleep 300", daemon("4717"), daemon("4717"));
        lab.skep(flags).arg(script).run().exits(124);
        wait_for_empty("daemons", 5, || vec![(); sleepers(lab, "4717")]);
        assert_eq!(sleepers(lab, "4716"), 3, "the other exec lives");
        lab.exec_script("s", "hostname").run().ok();
    });
}

/// An exec that has ended and left somebody is no longer listed where no cgroup holds them; they are still its own,
/// and not those of the only exec that runs. One that has daemons of its own takes these along.
#[test]
fn res_11_the_end_of_an_exec_leaves_alone_what_an_earlier_one_left() {
    for_both(|lab| {
        lab.create("s");
        let daemon =
            |seconds: &str| format!("(setsid sleep {seconds} >/dev/null 2>&1 </dev/null &)");
        lab.exec_script("s", &daemon("4762")).run().ok();
        wait_for("the daemon", 5, || (sleepers(lab, "4762") == 1).then_some(()));
        let script = format!("{}; exec sleep 4763", daemon("4763"));
        let gone = |how: &str| {
            wait_for_empty("processes of the exec", 5, || vec![(); sleepers(lab, "4763")]);
            assert_eq!(sleepers(lab, "4762"), 1, "what an earlier exec left, after a {how}");
        };
        let started = lab.skep(["exec", "-d", "s", "--", "sh", "-c", &script]).run().ok().text();
        wait_for("the exec", 5, || (sleepers(lab, "4763") == 2).then_some(()));
        lab.skep(["kill", started.trim()]).run().ok();
        gone("kill");
        let flags = ["exec", "--timeout", "700ms", "--grace", "200ms", "s", "--", "sh", "-c"];
        lab.skep(flags).arg(&script).run().exits(124);
        gone("timeout");
        // Control: it is ended with the sandbox.
        lab.skep(["stop", "s"]).run().ok();
        wait_for_empty("daemons", 5, || vec![(); sleepers(lab, "4762")]);
    });
}

/// A process whose first thread has ended is in no list of processes, and its other threads run on.
#[test]
fn res_11_a_process_without_its_first_thread_ends_with_its_exec() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "4718"]).run().ok();
        let beats = || std::fs::metadata(upper(lab, "s").join("beat")).map_or(0, |file| file.len());
        let still = || {
            let before = beats();
            std::thread::sleep(std::time::Duration::from_millis(400));
            beats() == before
        };
        let flags =
            ["exec", "--timeout", "900ms", "--grace", "200ms", "s", "--", "/usr/bin/python3"];
        lab.skep(flags).args(["-c", HEADLESS]).run().exits(124);
        assert!(beats() > 0, "the control: it ran");
        assert!(still(), "it goes on after the timeout");
        let detached = ["exec", "-d", "s", "--", "/usr/bin/python3", "-c", HEADLESS];
        let exec = lab.skep(detached).run().ok().text();
        let before = beats();
        wait_for("the thread", 10, || (beats() > before + 2).then_some(()));
        lab.skep(["kill", exec.trim()]).run().ok();
        assert!(still(), "it goes on after the kill");
        assert_eq!(sleepers(lab, "4718"), 1, "the other exec lives");
    });
}

/// A daemon whose first thread ends while another one writes.
const HEADLESS: &str = "
import os, threading, time, ctypes
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        def beat():
            for _ in range(300):
                with open('beat', 'ab') as file: file.write(b'x')
                time.sleep(0.05)
        threading.Thread(target=beat).start()
        ctypes.CDLL(None).syscall(60, 0)
    os._exit(0)
time.sleep(20)
";

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

/// What lies in a sandbox's upper.
fn upper(lab: &Lab, name: &str) -> std::path::PathBuf {
    let id = lab.sandbox(name)["id"].as_str().unwrap().to_owned();
    lab.state.join("sandboxes").join(id).join("upper")
}

/// The exec is over before it had a group; what it left counts on.
#[test]
fn a_freeze_holds_the_daemon_of_a_short_exec() {
    for_both(|lab| {
        lab.create("s");
        let script = "setsid sh -c 'i=0; while true; do i=$((i+1)); echo $i > count; sleep 0.01; done' \
            >/dev/null 2>&1 </dev/null &";
        lab.exec_script("s", script).run().ok();
        let file = upper(lab, "s").join("count");
        let count = || std::fs::read_to_string(&file).ok()?.trim().parse::<u64>().ok();
        // Control: it counts.
        wait_for("it to count", 10, || (count()? > 20).then_some(()));
        lab.skep(["freeze", "s"]).run().ok();
        let before = std::fs::read(&file).unwrap();
        // Long enough for ten rounds of a loop that is not frozen.
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(std::fs::read(&file).unwrap(), before);
        lab.skep(["thaw", "s"]).run().ok();
        let then = count();
        wait_for("it to count on", 10, || (count() > then).then_some(()));
    });
}

/// A counter, and whether it wakes itself from every stop.
const COUNTERS: [(&str, &[&str]); 2] = [("calm", &["./waker"]), ("hostile", &["./waker", "wake"])];

/// A stop signal does not hold who has a timer that sends SIGCONT: a freezer does, and so does a tracer.
#[test]
fn a_process_that_wakes_itself_stands_while_it_is_frozen() {
    for_both(|lab| {
        let Some(waker) = attack::program("waker") else { return };
        std::fs::copy(waker, lab.project.join("waker")).unwrap();
        for (name, words) in COUNTERS {
            lab.create(name);
            lab.skep(["exec", "-d", name, "--"]).args(words).run().ok();
            let file = upper(lab, name).join("count");
            let count = || std::fs::read(&file).ok().filter(|bytes| !bytes.is_empty());
            wait_for("it to count", 10, count);
            // Control: while it runs, what is read is of many moments.
            let seen = count();
            wait_for("it to count on", 10, || (count() != seen).then_some(()));
            lab.skep(["freeze", name]).run().ok();
            assert_eq!(lab.sandbox(name)["state_reason"], serde_json::Value::Null);
            let before = count();
            // Long enough for a hundred rounds of one that is not frozen.
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert_eq!(count(), before, "{name} stands");
            let digest = lab.diff(name)["digest"].clone();
            assert_eq!(lab.diff(name)["digest"], digest);
            lab.skep(["thaw", name]).run().ok();
            wait_for("it to count on", 10, || (count() != before).then_some(()));
            // A look pauses it, and lets it go on.
            lab.skep(["diff", name]).run().ok();
            let out = lab.root.join(format!("{name}.out"));
            lab.skep(["cp", &format!("{name}:count"), out.to_str().unwrap()]).run().ok();
            let then = count();
            wait_for("it to count after a look", 10, || (count() != then).then_some(()));
            // Whoever is held can be ended, and its end is an end like any other.
            lab.skep(["freeze", name]).run().ok();
            lab.skep(["stop", name]).run().ok();
            wait_for_empty("its processes to be gone", 10, || outside::processes_of(&lab.root));
        }
    });
}

/// Where nobody may be traced, neither a freeze nor what is read is claimed, and it is said who moved.
#[test]
fn a_process_that_wakes_itself_is_named_and_not_called_frozen() {
    #[cfg(target_arch = "x86_64")]
    const PTRACE: &str = "101";
    #[cfg(target_arch = "aarch64")]
    const PTRACE: &str = "117";
    for_each([Who::user()], |lab| {
        let (Some(waker), Some(nocall)) = (attack::program("waker"), attack::program("nocall"))
        else {
            return;
        };
        std::fs::copy(waker, lab.project.join("waker")).unwrap();
        let without = lab.root.join("bin/nocall");
        std::fs::copy(nocall, &without).unwrap();
        for (name, words) in COUNTERS {
            let create = lab.program(&without).arg(PTRACE).arg(&lab.binary);
            create.args(["create", name]).run().ok();
            let report = lab.sandbox(name)["enforcement"]["processes"]["how"].to_string();
            if !report.contains("by signals") {
                return; // Cgroups are delegated to this user.
            }
            lab.skep(["exec", "-d", name, "--"]).args(words).run().ok();
            let file = upper(lab, name).join("count");
            let count = || std::fs::read(&file).ok().filter(|bytes| !bytes.is_empty());
            wait_for("it to count", 10, count);
            if name == "calm" {
                lab.skep(["freeze", name]).run().ok();
                let reason = lab.sandbox(name)["state_reason"].to_string();
                assert!(reason.contains("stopped by signals"), "{reason}");
                let before = count();
                lab.skep(["thaw", name]).run().ok();
                wait_for("it to count on", 10, || (count() != before).then_some(()));
                continue;
            }
            let out = lab.root.join("out");
            let copied = format!("{name}:count");
            // It may miss its timers where the machine is busy: then it stands, and for good.
            let refused = |words: &[&str]| {
                let ran = lab.skep(words).run();
                if ran.code() != 0 {
                    ran.exits(4).says("(`waker`) inside does not stay stopped");
                    return Some(());
                }
                if words[0] == "freeze" {
                    let before = count();
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    assert_eq!(count(), before, "it was called frozen");
                    lab.skep(["thaw", name]).run().ok();
                }
                None
            };
            wait_for("a freeze to be refused", 30, || refused(&["freeze", name]));
            assert_eq!(lab.sandbox(name)["state"], "ready");
            wait_for("a diff to be refused", 30, || refused(&["diff", name]));
            wait_for("a copy to be refused", 30, || {
                let _ = std::fs::remove_file(&out);
                refused(&["cp", &copied, out.to_str().unwrap()])
            });
            assert!(!out.exists(), "what was refused was given out");
            let then = count();
            wait_for("it to count on", 10, || (count() != then).then_some(()));
        }
    });
}

/// Puts `tests/attack/chain.c` into the project.
fn with_chain(lab: &Lab) -> Option<()> {
    std::fs::copy(attack::program("chain")?, lab.project.join("chain")).unwrap();
    Some(())
}

/// It starts before the sandbox is in its group, which nobody typed a limit for.
#[test]
fn res_2_a_chain_of_forks_does_not_escape_the_memory_limit() {
    for_each([Who::root()], |lab| {
        if with_chain(lab).is_none() {
            return;
        }
        // Control: where there is room it gets what it asks for.
        for (limit, name) in [("512M", "roomy"), ("64M", "narrow")] {
            lab.write("skep.toml", format!("[limits]\nmemory = \"{limit}\"\n"));
            let script = "./chain 1000 256 held; sleep 4; ls held";
            let ran = lab.skep(["run", "--keep", "--name", name, "--", "sh", "-c", script]).run();
            assert_eq!(ran.code() == 0, name == "roomy", "{}", ran.describe());
        }
    });
}

/// Another exec runs, so that not everyone may be ended.
#[test]
fn res_11_a_timeout_takes_a_chain_of_forks_along() {
    for_both(|lab| {
        if with_chain(lab).is_none() {
            return;
        }
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "4714"]).run().ok();
        wait_for("the other exec", 5, || (sleepers(lab, "4714") == 1).then_some(()));
        // Control: an exec that is not ended leaves it alone.
        lab.exec_script("s", "./chain 1500 0 first").run().ok();
        wait_for("the end of the chain", 10, || {
            upper(lab, "s").join("first").exists().then_some(())
        });
        let flags = ["exec", "--timeout", "700ms", "--grace", "100ms", "s", "--", "sh", "-c"];
        lab.skep(flags).arg("./chain 3000 0 second; sleep 300").run().exits(124);
        std::thread::sleep(std::time::Duration::from_millis(3_000));
        assert!(!upper(lab, "s").join("second").exists(), "the chain lived on");
        assert_eq!(sleepers(lab, "4714"), 1, "the other exec lives");
    });
}
