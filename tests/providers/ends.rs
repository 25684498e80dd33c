//! Execs behave the same everywhere, and when a sandbox ends nothing of it is left.

use super::{for_all, for_these, run};
use crate::harness::{Lab, Terminal, outside, wait_for, wait_for_empty};

/// How many `sleep`s run: seen from outside, or asked of gVisor, whose processes are its own.
fn asleep(lab: &Lab, provider: &str) -> usize {
    if provider == "oci:runsc" {
        let script = "for f in /proc/[0-9]*/cmdline; do head -c 6 $f 2>/dev/null; echo; done";
        let text = lab.exec_script("s", script).run().text();
        return text.split('\n').filter(|line| line.starts_with("sleep\0")).count();
    }
    let asleep = |process: &outside::Process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        line.starts_with(b"sleep\0")
    };
    outside::processes_of(&lab.root).into_iter().filter(asleep).count()
}

/// The process that calls itself the keeper and is no child of another that does: where init is a
/// fork of the keeper, it has the same name.
fn keeper(lab: &Lab) -> i32 {
    let called = |process: &outside::Process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        line.starts_with(b"skep: keeper")
    };
    let found: Vec<i32> = outside::processes_of(&lab.root)
        .into_iter()
        .filter(called)
        .map(|process| process.pid)
        .collect();
    let parent = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())?;
        rest.split(' ').nth(1)?.parse::<i32>().ok()
    };
    let first = |pid: &&i32| parent(**pid).is_some_and(|parent| !found.contains(&parent));
    *found.iter().find(first).unwrap_or_else(|| panic!("no keeper among {found:?}"))
}

#[test]
fn codes_signals_input_and_both_outputs_are_the_same_everywhere() {
    for_all(|lab, provider| {
        let with = |flags: &[&str], script| run(lab, provider, flags, script);
        with(&[], "exit 7").run().exits(7);
        with(&[], "kill -9 $$").run().exits(137);
        let ran = with(&["-i"], "cat; echo out; echo err >&2").input("in\n").run().ok();
        assert_eq!((ran.text().as_str(), ran.errors().contains("err\n")), ("in\nout", true));
        lab.skep(["run", "--provider", provider, "--", "/no/such"]).run().exits(127);
        lab.skep(["run", "--provider", provider, "--", "/etc/passwd"]).run().exits(126);
        let end = with(
            &["--json", "--timeout", "400ms", "--grace", "200ms"],
            "echo part; trap '' TERM; sleep 300; sleep 300",
        );
        let end = end.run().exits(124).json();
        assert_eq!(
            (&end["reason"], &end["stdout"]),
            (&"timeout".into(), &"part\n".into()),
            "{end}"
        );
    });
}

#[test]
fn a_sandboxs_own_directory_is_where_commands_start_everywhere() {
    for_all(|lab, provider| {
        lab.write("sub/mark", "here");
        let line = ["create", "s", "--provider", provider, "--workdir", "sub"];
        lab.skep(line).run().ok();
        for _ in 0..2 {
            assert_eq!(lab.skep(["exec", "s", "--", "cat", "mark"]).run().ok().text(), "here");
        }
        let elsewhere = ["exec", "s", "--workdir", ".", "--", "cat", "sub/mark"];
        assert_eq!(lab.skep(elsewhere).run().ok().text(), "here");
    });
}

#[test]
fn a_terminal_has_its_size_and_its_keys_everywhere() {
    for_all(|lab, provider| {
        // gVisor's terminals make no signals of keys.
        let (script, keys, answer) = match provider {
            "oci:runsc" => ("stty size; read line; echo GOT $line; exit 9", "it\n", "GOT it"),
            _ => (
                "trap 'echo INTERRUPTED; exit 9' INT; stty size; while :; do sleep 0.05; done",
                "\x03",
                "INTERRUPTED",
            ),
        };
        let call = lab.skep(["run", "-t", "--provider", provider, "--", "sh", "-c", script]);
        let mut terminal = Terminal::start(call, 33, 101);
        terminal.wait_to_show("33 101");
        terminal.type_in(keys);
        terminal.wait_to_show(answer);
        assert_eq!(terminal.end().code(), Some(9), "{provider}: {}", terminal.screen());
    });
}

#[test]
fn input_that_has_ended_ends_on_a_terminal_everywhere() {
    for_all(|lab, provider| {
        let with = |script| run(lab, provider, &["-t"], script).within(30);
        if provider == "oci:runsc" {
            // gVisor's terminals do not know the end of input: said at once, instead of waiting for ever.
            with("exec cat").run().exits(5).says("has no end of input");
            assert!(lab.sandboxes().is_empty());
            lab.skep(["create", "s", "--provider", provider]).run().ok();
            let line = ["exec", "-t", "s", "--", "cat"];
            lab.skep(line).run().exits(5).says("leave `-t` out");
            lab.skep(["exec", "-i", "s", "--", "cat"]).run().ok();
            lab.skep(["shell", "s"]).run().ok();
            return;
        }
        with("exec cat").run().ok();
        let ran = with("cat; read line; echo; echo OVER").input("no newline").run().ok();
        let text = ran.text();
        assert!(text.contains("no newline") && text.contains("OVER"), "{provider}: {text}");
    });
}

/// Sessions of their own and double forks: what one loses sight of is what survives.
const DAEMONS: &str = "trap '' TERM; setsid sleep 4781 & (setsid sh -c 'sleep 4781 & exit' &); \
                       setsid setsid nohup sleep 4781 >/dev/null 2>&1 & sleep 4781";

#[test]
fn res_11_stop_ends_daemons_on_every_provider() {
    for_all(|lab, provider| {
        lab.skep(["create", "s", "--provider", provider]).run().ok();
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", DAEMONS]).run().ok();
        wait_for("the processes", 20, || (asleep(lab, provider) == 4).then_some(()));
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(outside::processes_of(&lab.root), vec![], "{provider}");
        lab.audit();
    });
}

/// The harshest end. Without a pid namespace init itself has to see it.
#[test]
fn res_11_a_killed_keeper_leaves_nobody_on_any_provider() {
    for_all(|lab, provider| {
        lab.skep(["create", "s", "--provider", provider]).run().ok();
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", DAEMONS]).run().ok();
        wait_for("the processes", 20, || (asleep(lab, provider) == 4).then_some(()));
        outside::kill(keeper(lab));
        wait_for_empty("processes", 15, || outside::processes_of(&lab.root));
        // Typed, and usable again.
        lab.skep(["exec", "s", "--", "true"]).run().ok();
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}

#[test]
fn res_2_a_memory_bomb_ends_as_out_of_memory_on_every_provider() {
    for_all(|lab, provider| {
        let bomb = "x = b'x' * (900 << 20)\nimport time; time.sleep(20)";
        let run = |more: &[&str]| {
            let call = lab.skep(["run", "--json", "--memory", "256M", "--provider", provider]);
            call.args(more).args(["--", "/usr/bin/python3", "-c", bomb]).run()
        };
        if provider == "oci:runsc" && !lab.who.is_root() {
            // Without a cgroup nobody outside sees what gVisor hands out: asking for it is refused.
            let problem = run(&[]).exits(5).problem();
            assert_eq!(problem["code"], "missing_capability", "{problem}");
            return;
        }
        let end = run(&["--best-effort"]).exits(137).json();
        assert_eq!(end["reason"], "oom", "{provider}: {end}");
    });
}

#[test]
fn res_1_a_fork_bomb_stops_at_the_limit_on_every_provider() {
    for_all(|lab, provider| {
        let bomb = "import os, time\nn = 0\ntry:\n  while n < 300:\n    if os.fork() == 0: time.sleep(9); os._exit(0)\n    n += 1\n\
            except BlockingIOError: pass\nprint(n)";
        let flags = ["run", "--json", "--pids", "40", "--provider", provider];
        let ran = lab.skep(flags).args(["--", "/usr/bin/python3", "-c", bomb]).run();
        if provider == "oci:runsc" {
            // Nobody counts the tasks of another kernel: asking for it is refused.
            assert_eq!(ran.exits(5).problem()["code"], "missing_capability");
            return;
        }
        let end = ran.ok().json();
        let made: u32 = end["stdout"].as_str().unwrap().trim().parse().unwrap();
        assert!((10..40).contains(&made), "{provider}: {end}");
    });
}

/// Each link lives for less than a look at `/proc` takes. All of them hold one lock, which tells
/// whether any is left.
const CHAIN: &str = r#"
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    time_t end = time(0) + 40;
    flock(open(argv[1], O_RDONLY), LOCK_SH);
    if (fork()) return 0;
    setsid();
    while (time(0) < end) if (fork() > 0) _exit(0);
    return 0;
}
"#;

#[test]
fn stop_ends_those_who_fork_and_end_without_a_pause() {
    for_these(&["subprocess"], |lab, provider| {
        // Outside the project: a file of the workspace is another one than the project's.
        let (source, lock) = (lab.write("chain.c", CHAIN), lab.root.join("lock"));
        std::fs::write(&lock, "").unwrap();
        let program = lab.project.join("chain");
        let mut compiler = std::process::Command::new("gcc");
        compiler.arg("-O1").arg("-o").arg(&program).arg(&source);
        assert!(compiler.status().unwrap().success());
        let held = std::fs::File::open(&lock).unwrap();
        let is_free = || {
            let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            let free = rustix::fs::flock(&held, operation).is_ok();
            let _ = rustix::fs::flock(&held, rustix::fs::FlockOperation::Unlock);
            free
        };
        lab.skep(["create", "s", "--provider", provider]).run().ok();
        let lock = lock.display();
        let script = format!("for i in 1 2 3; do ./chain {lock}; done; sleep 4781");
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", &script]).run().ok();
        wait_for("the chains", 20, || (!is_free()).then_some(()));
        lab.skep(["stop", "s"]).run().ok();
        assert!(is_free(), "a chain goes on after `stop`");
        assert_eq!(outside::processes_of(&lab.root), vec![]);
    });
}

/// A backup that is put beside names a keeper that lives: it is the original's.
#[test]
fn a_copied_state_directory_leaves_the_keepers_of_the_original_alone() {
    for_these(&["namespace", "oci:runc"], |lab, provider| {
        lab.skep(["create", "s", "--provider", provider]).run().ok();
        lab.skep(["exec", "-d", "s", "--", "sleep", "4393"]).run().ok();
        for (name, way) in [
            ("copy", "cp -a \"$0\" \"$1\""),
            ("tape", "mkdir \"$1\"; tar -C \"$0\" -c . | tar -C \"$1\" -x"),
        ] {
            let copy = lab.root.join(name);
            let script = lab.program("sh").args(["-c", way]).arg(&lab.state).arg(&copy);
            script.run();
            let keepers = lab.keepers();
            let in_copy = |words: &[&str]| lab.skep(words).env("SKEP_HOME", copy.to_str().unwrap());
            let listed = in_copy(&["ls", "--json"]).run().ok().json();
            assert_eq!(listed[0]["state"], "stopped", "{name}: {listed}");
            in_copy(&["stop", "s"]).run();
            in_copy(&["rm", "--discard", "s"]).run().ok();
            assert_eq!(lab.keepers(), keepers, "{provider} {name}");
            let alive = lab
                .exec_script("s", "grep -c 4393 /proc/[0-9]*/cmdline | grep -vc ':0'")
                .run()
                .ok();
            assert_ne!(alive.text(), "0", "{provider} {name}");
            std::fs::remove_dir_all(&copy).unwrap();
        }
        lab.skep(["rm", "--discard", "s"]).run().ok();
        assert!(lab.keepers().is_empty());
    });
}

/// A runtime that does not answer is given up on, wherever it is asked.
#[test]
fn a_runtime_that_hangs_is_given_up_on() {
    crate::harness::for_each([crate::harness::Who::user()], |lab| {
        let hangs = lab.root.join("hangs");
        std::fs::write(&hangs, "#!/bin/sh\nexec sleep 60\n").unwrap();
        std::fs::set_permissions(&hangs, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let word = format!("oci:{}", hangs.display());
        let began = std::time::Instant::now();
        lab.skep(["create", "--provider", &word]).run().exits(5).says("did not end");
        assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
        lab.skep(["create", "--provider", "oci:"]).run().exits(5).says("no runtime is named");
    });
}

/// What is told of a container is what was started.
#[test]
fn show_tells_the_runtime_that_was_started() {
    for_these(&["oci:runc", "oci:runsc"], |lab, provider| {
        lab.skep(["create", "s", "--provider", provider]).run().ok();
        let facts = &lab.skep(["show", "s", "--json"]).run().ok().json()["provider_facts"];
        let name = provider.rsplit([':', '/']).next().unwrap();
        assert!(facts["version"].as_str().is_some_and(|text| text.starts_with(name)), "{facts}");
        assert!(facts["runtime"].as_str().is_some_and(|path| path.ends_with(name)), "{facts}");
        assert_eq!(facts["container"], lab.sandbox("s")["id"]);
        assert!(facts.get("runtime_file").is_none(), "{facts}");
    });
}

/// Takes all the keys that its user may have, says so, and holds them until its input ends.
const ALL_KEYS: &str = "import ctypes, sys
libc = ctypes.CDLL(None)
number = 0
while libc.syscall(248, b'user', b'skep-%d' % number, b'x', 1, -2) != -1: number += 1
print(number, flush=True)
sys.stdin.read()";

/// A keyring for every container would be counted for the sandbox's user, who may have 200 keys: with as many
/// sandboxes no further one would start.
#[test]
fn runtimes_start_for_a_user_who_may_have_no_more_keys() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    if !crate::harness::running_as_root() {
        return crate::harness::skip("only root takes the keys of the sandboxes' user");
    }
    for_these(&["oci:runc", "oci:crun"], |lab, provider| {
        // Root's sandboxes are all of one unprivileged user.
        let user = if lab.who.is_root() { 0x7000_0000 } else { lab.who.ids().0 };
        let mut holder = Command::new("setpriv")
            .args([
                "--reuid",
                &user.to_string(),
                "--clear-groups",
                "/usr/bin/python3",
                "-c",
                ALL_KEYS,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_ne!(line, "", "no keys were taken");
        let ran = run(lab, provider, &[], "echo here").run();
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(ran.ok().text(), "here", "{provider}");
    });
}
