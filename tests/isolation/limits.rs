//! Memory, processor time, tasks and time: what is over is ended, and the end says which it was.

use crate::harness::{Lab, Ran, for_both, for_each, outside, wait_for};
use serde_json::Value;
use std::time::Instant;

/// `skep run --json --best-effort FLAGS -- python3 -c PROGRAM`: with a cgroup the limit is held,
/// without one it is guarded; the end must be the same.
fn python(lab: &Lab, flags: &[&str], program: &str) -> Ran {
    lab.skep(["run", "--json", "--best-effort"])
        .args(flags)
        .args(["--", "/usr/bin/python3", "-c", program])
        .run()
}

fn felt(end: &Value) -> Vec<&str> {
    end["limits_hit"].as_array().unwrap().iter().map(|limit| limit.as_str().unwrap()).collect()
}

const MEMORY: &str = "x = bytearray(300 << 20)\nimport time; time.sleep(20)";

#[test]
fn res_2_a_memory_bomb_ends_as_out_of_memory() {
    for_both(|lab| {
        let end =
            python(lab, &["--memory", "64M", "--name", "s", "--keep"], MEMORY).exits(137).json();
        assert_eq!(end["reason"], "oom", "{end}");
        assert_eq!(felt(&end), ["memory"]);
        // The sandbox is there and can be used again.
        lab.skep(["exec", "s", "--", "true"]).run().ok();
        // Control: with room for it the same program runs.
        let end = python(lab, &["--memory", "600M"], "x = bytearray(300 << 20)").ok().json();
        assert_eq!(end["reason"], "exited", "{end}");
    });
}

#[test]
fn res_2_many_small_processes_are_one_sum() {
    for_both(|lab| {
        let program = "import os, time\nfor i in range(30):\n  if os.fork() == 0:\n    \
            x = bytearray(10 << 20); time.sleep(20); os._exit(0)\ntime.sleep(20)";
        let end = python(lab, &["--memory", "96M", "--timeout", "15s"], program).json();
        // With a cgroup the kernel kills one and skep the rest, without one all at once.
        assert_eq!(felt(&end), ["memory"], "{end}");
        assert_eq!(end["reason"], "oom", "{end}");
    });
}

/// What the guard judged by, and what a group counted, is what the figures say.
#[test]
fn res_2_the_figures_are_those_that_were_judged_by() {
    // What a process has before it joins its group is counted for nobody: 30 ms or so (docs/design/keeper.md).
    let many = "import os, time\ntime.sleep(0.5)\nfor i in range(8):\n  if os.fork() == 0:\n    \
        x = bytearray(b'x') * (50 << 20); time.sleep(1.5); os._exit(0)\n\
        for i in range(8): os.wait()";
    for_both(|lab| {
        let stats = |end: &Value, name: &str| end["stats"][name].as_u64().unwrap();
        let end = python(lab, &["--memory", "900M"], many).ok().json();
        let peak = stats(&end, "memory_peak_bytes");
        assert!((300 << 20..500 << 20).contains(&peak), "{end}");
        let child = "import os; os.system('python3 -c \"x = bytearray(b\\'x\\') * (200 << 20); import time; time.sleep(9)\"')";
        let end = python(lab, &["--memory", "64M"], child).json();
        assert_eq!(felt(&end), ["memory"], "{end}");
        let peak = stats(&end, "memory_peak_bytes");
        assert!(peak >= 60 << 20, "{end}");
        assert!(!lab.who.is_root() || peak <= 64 << 20, "above its limit: {end}");
        let spin = "(while :; do :; done) & (while :; do :; done) & wait";
        let line =
            ["run", "--json", "--best-effort", "--cpu-time", "500ms", "--", "sh", "-c", spin];
        let end = lab.skep(line).run().json();
        assert_eq!(end["reason"], "cpu_limit", "{end}");
        assert!(stats(&end, "cpu_ms") >= 400, "{end}");
    });
}

/// A command that is over before the next look has felt its limits all the same.
#[test]
fn a_limit_is_felt_however_soon_the_command_is_over() {
    for_both(|lab| {
        let run = |flags: &[&str], script: &str| {
            lab.skep(["run", "--json"]).args(flags).args(["--", "sh", "-c", script]).run().json()
        };
        let forks = "for i in $(seq 40); do sleep 0.5 & done; wait";
        let end = run(&["--pids", "20"], forks);
        assert_eq!((end["exit_code"].as_i64(), felt(&end)), (Some(2), vec!["pids"]), "{end}");
        let end = run(&["--disk", "20M"], "dd if=/dev/zero of=f bs=1M count=50 2>&1; exit 0");
        assert_eq!(felt(&end), ["disk"], "{end}");
        // Controls: below them nothing is felt.
        let end = run(&["--pids", "60"], forks);
        assert_eq!((end["exit_code"].as_i64(), felt(&end)), (Some(0), vec![]), "{end}");
        let end = run(&["--disk", "90M"], "dd if=/dev/zero of=f bs=1M count=50 2>&1; exit 0");
        assert_eq!((end["exit_code"].as_i64(), felt(&end)), (Some(0), vec![]), "{end}");
    });
}

/// The report of an exec is about the exec.
#[test]
fn an_exec_reports_the_limits_that_are_its_own() {
    for_both(|lab| {
        lab.skep(["create", "s", "--pids", "50"]).run().ok();
        let report = |flags: &[&str]| {
            let call = lab.skep(["exec", "--json"]).args(flags).args(["s", "--", "true"]);
            call.run().ok().json()["enforcement"].clone()
        };
        let how = |report: &Value, layer: &str| report[layer]["how"].as_str().unwrap().to_owned();
        let own = report(&["--pids", "20", "--disk", "10M"]);
        let pids = how(&own, "pids");
        assert!(pids.contains("20 tasks for this exec"), "{own}");
        assert!(pids.contains("50 tasks for the sandbox"), "{own}");
        let disk = how(&own, "disk");
        assert!(disk.contains("(10 MiB)") && disk.contains("(10 GiB;"), "{own}");
        if lab.who.is_root() {
            let own = report(&["--cpus", "0.5", "--memory", "50M"]);
            assert_eq!(own["cpu"]["enforced"], true, "{own}");
            assert!(how(&own, "cpu").contains("0.5 processors for this exec"), "{own}");
            assert!(how(&own, "memory").contains("50 MiB"), "{own}");
        }
        // Control: one without limits of its own has its sandbox's.
        assert_eq!(report(&[])["pids"], lab.sandbox("s")["enforcement"]["pids"]);
    });
}

/// A file, a variable and a flag are measured alike, and what is shown is what is in force.
#[test]
fn a_limit_that_is_none_is_refused_whoever_says_it() {
    for_both(|lab| {
        let refused = [
            ("CPUS", "1e300"),
            ("CPUS", "0.000000001"),
            ("PIDS", "99999999999"),
            ("PIDS", "5000000"),
            ("OPEN_FILES", "1"),
        ];
        for (key, value) in refused {
            let said = lab.skep(["create", "x"]).env(format!("SKEP_LIMITS_{key}"), value);
            let ran = lab.without_effect(said);
            assert_eq!(ran.code(), 2, "{key}={value}: {}", ran.describe());
            lab.write("skep.toml", format!("limits.{} = {value}\n", key.to_lowercase()));
            let ran = lab.without_effect(lab.skep(["create", "x"]));
            assert_ne!(ran.code(), 0, "{key}={value}: {}", ran.describe());
            std::fs::remove_file(lab.project.join("skep.toml")).unwrap();
        }
        for flag in [["--cpus", "1e300"], ["--cpus", "0.001"], ["--pids", "5000000"]] {
            let ran = lab.without_effect(lab.skep(["create", "x"]).args(flag));
            assert_eq!(ran.code(), 2, "{flag:?}: {}", ran.describe());
        }
        lab.skep(["create", "s"]).env("SKEP_LIMITS_OPEN_FILES", "10000000").run().ok();
        let inside = lab.exec_script("s", "ulimit -n").run().ok().text();
        let shown = lab.skep(["show", "s"]).run().ok().text();
        let shown = shown.lines().find(|line| line.contains("open files")).unwrap().to_owned();
        assert!(shown.contains(&format!("open files {}", inside.trim())), "{shown}, {inside}");
        let ran = lab.skep(["exec", "s", "--pids", "5000000", "--", "true"]).run();
        assert_eq!(ran.code(), 2, "{}", ran.describe());
    });
}

/// The way out of a refusal is in it.
#[test]
fn a_typed_limit_that_cannot_be_held_names_the_way_out() {
    for_each([crate::harness::Who::user()], |lab| {
        let ran = lab.skep(["run", "--json", "--memory", "1G", "--", "true"]).run().exits(5);
        let problem = ran.problem();
        assert!(problem["hint"].as_str().unwrap().contains("`--best-effort`"), "{problem}");
        lab.skep(["run", "--best-effort", "--memory", "1G", "--", "true"]).run().ok();
    });
}

/// Pages that a hundred processes share are not a hundred times used.
#[test]
fn res_2_shared_pages_count_once() {
    for_both(|lab| {
        let program = "import os, time\nx = bytearray(30 << 20)\nfor i in range(20):\n  \
            if os.fork() == 0:\n    time.sleep(1); os._exit(0)\n\
            time.sleep(0.6)\nprint('fine')";
        let end = python(lab, &["--memory", "200M"], program).ok().json();
        assert_eq!(end["stdout"], "fine\n", "{end}");
        assert_eq!(felt(&end), Vec::<&str>::new(), "{end}");
    });
}

#[test]
fn res_3_files_in_memory_are_charged() {
    for_both(|lab| {
        for place in ["/tmp", "/dev/shm", "$HOME", "/var/tmp"] {
            // In small files, so that no limit on one of them helps.
            let script = format!(
                "for i in $(seq 60); do head -c 5M /dev/zero > {place}/f$i || break; done; sleep 5"
            );
            let flags = ["run", "--json", "--best-effort", "--memory", "64M", "--", "sh", "-c"];
            let end = lab.skep(flags).arg(&script).run().json();
            let full = end["stderr"].as_str().unwrap().contains("No space left");
            let ended = end["reason"] == "oom" && felt(&end) == ["memory"];
            assert!(full || ended, "{place}: {end}");
        }
    });
}

#[test]
fn res_3_a_memfd_is_charged() {
    for_each([crate::harness::Who::root()], |lab| {
        let program = "import os\nf = os.memfd_create('x')\nfor i in range(300): os.write(f, bytes(1 << 20))\n\
            print('wrote')";
        let end = python(lab, &["--memory", "64M"], program).json();
        assert_ne!(end["stdout"], "wrote\n", "{end}");
        assert_eq!(end["reason"], "oom", "{end}");
    });
}

/// What the kernel holds for a process: in pipes, in unix sockets, in locked pages.
#[test]
fn res_3_pipes_sockets_and_locked_pages_are_charged() {
    let fill = "import os, socket\ndef fill(pair):\n  held = total = 0\n  keep = []\n  \
        while total < 300 << 20:\n    r, w = pair(); keep += [r, w]\n    os.set_blocking(w, False)\n    \
        try:\n      while True: total += os.write(w, bytes(4096))\n    \
        except BlockingIOError: pass\n  print('held', flush=True)\n";
    let sockets = "def pair():\n  a, b = socket.socketpair(); return a.detach(), b.detach()\n";
    let locked = "import ctypes, mmap\nm = mmap.mmap(-1, 300 << 20)\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        p = ctypes.addressof(ctypes.c_char.from_buffer(m))\n\
        if libc.mlock(ctypes.c_void_p(p), ctypes.c_size_t(300 << 20)): print('refused')\n\
        else: print('held', flush=True)\n";
    for_each([crate::harness::Who::root()], |lab| {
        for program in [
            format!("{fill}fill(os.pipe)"),
            format!("{fill}{sockets}fill(pair)"),
            locked.to_owned(),
        ] {
            let end = python(lab, &["--memory", "64M"], &program).json();
            let refused = end["stdout"] == "refused\n";
            assert!(refused || end["reason"] == "oom", "{program}: {end}");
            assert_ne!(end["stdout"], "held\n", "{program}: {end}");
        }
        // Control: with room for it they get it.
        let end = python(lab, &["--memory", "2G"], &format!("{fill}{sockets}fill(pair)")).ok();
        assert_eq!(end.json()["stdout"], "held\n");
    });
}

/// Version 1 of cgroups counts the buffers of connections apart from other memory, if it is told to.
#[test]
fn res_3_buffers_of_connections_are_held() {
    for_each([crate::harness::Who::root()], |lab| {
        let program = "import socket\nl = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(200)\n\
            keep = []\n\
            for i in range(150):\n  a = socket.socket(); a.setsockopt(1, 7, 4 << 20)\n  \
            a.settimeout(0.05)\n  \
            try:\n    a.connect(l.getsockname()); b, _ = l.accept(); keep += [a, b]\n    n = 0\n    \
            while n < 4 << 20: n += a.send(bytes(1 << 18))\n  \
            except OSError: pass\n\
            print(open('/proc/net/sockstat').read().split('TCP:')[1].split('mem ')[1].split()[0])";
        let held = |memory: &str| -> u64 {
            let ran = python(lab, &["--memory", memory, "--timeout", "60s"], program);
            let end = ran.json();
            match end["reason"].as_str() {
                Some("oom") => 0,
                // In pages, as the kernel counts them.
                _ => end["stdout"].as_str().unwrap().trim().parse::<u64>().unwrap() >> 8,
            }
        };
        let (narrow, wide) = (held("64M"), held("4G"));
        // Control: without the limit they hold what they ask for.
        assert!(wide > 200, "{wide} MiB with 4 GiB");
        assert!(narrow < 64, "{narrow} MiB of buffers with a limit of 64 MiB");
    });
}

#[test]
fn res_1_a_fork_bomb_stops_at_the_limit() {
    for_both(|lab| {
        let program = "import os, time\nn = 0\ntry:\n  while n < 500:\n    if os.fork() == 0: time.sleep(20); os._exit(0)\n    n += 1\n\
            except BlockingIOError: pass\nprint(n)\ntime.sleep(0.2)";
        let flags = ["run", "--json", "--pids", "40", "--", "/usr/bin/python3", "-c"];
        let end = lab.skep(flags).arg(program).run().ok().json();
        let made: u32 = end["stdout"].as_str().unwrap().trim().parse().unwrap();
        assert!((10..40).contains(&made), "{end}");
        assert_eq!(felt(&end), ["pids"], "{end}");
        // Control: with more allowed, more are made.
        let flags = ["run", "--json", "--pids", "700", "--", "/usr/bin/python3", "-c"];
        let end = lab.skep(flags).arg(program).run().ok().json();
        assert_eq!(end["stdout"], "500\n", "{end}");
    });
}

#[test]
fn res_1_threads_count_as_tasks() {
    for_both(|lab| {
        let program = "import threading, time\nn = 0\ntry:\n  while n < 200:\n    \
            threading.Thread(target=time.sleep, args=(1,), daemon=True).start(); n += 1\n\
            except RuntimeError: pass\nprint(n)";
        let flags = ["run", "--json", "--pids", "30", "--", "/usr/bin/python3", "-c"];
        let end = lab.skep(flags).arg(program).run().ok().json();
        let made: u32 = end["stdout"].as_str().unwrap().trim().parse().unwrap();
        assert!(made < 30, "{end}");
    });
}

/// The limit nobody typed holds too, from the first moment on, and what it stopped can be ended.
#[test]
fn res_1_an_unlimited_bomb_meets_the_default_and_is_ended() {
    for_both(|lab| {
        let script = "f() { f | f & }; f; sleep 60";
        let flags = ["run", "--json", "--timeout", "2s", "--grace", "500ms", "--", "bash", "-c"];
        let start = Instant::now();
        let end = lab.skep(flags).arg(script).run().exits(124).json();
        assert_eq!(end["reason"], "timeout", "{}", end["reason"]);
        assert!(start.elapsed().as_secs() < 20, "it took {:?}", start.elapsed());
        wait_for("the bomb to be gone", 10, || {
            outside::processes_of(&lab.root).is_empty().then_some(())
        });
    });
}

/// Limits of one exec, within those of its sandbox, which other execs do not feel.
#[test]
fn limits_of_one_exec_are_held_for_it_alone_or_refused() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "4731"]).run().ok();
        let exec = |sandbox: &str, flags: &[&str], program: &str| {
            let call = lab.skep(["exec", "--json"]).args(flags).arg(sandbox);
            call.args(["--", "/usr/bin/python3", "-c", program]).run()
        };
        let fill = |files: u32| {
            format!("for i in range({files}): open(f'f{{i % 300}}', 'wb').write(bytes(1 << 20))")
        };
        // The guard looks now and then: one who goes on is ended.
        let flags = ["--disk", "8M", "--timeout", "30s"];
        let end = exec("s", &flags, &fill(100_000)).exits(137).json();
        assert_eq!((&end["reason"], felt(&end)), (&"disk_limit".into(), vec!["disk"]), "{end}");
        let forks = "import os, time\nn = 0\ntry:\n  while n < 100:\n    \
            if os.fork() == 0: time.sleep(2); os._exit(0)\n    n += 1\nexcept BlockingIOError: pass\n\
            print(n)";
        let end = exec("s", &["--pids", "20"], forks).ok().json();
        let made: u32 = end["stdout"].as_str().unwrap().trim().parse().unwrap();
        assert!((5..20).contains(&made), "{end}");
        // However many others there are.
        let crowd = "for i in $(seq 30); do sleep 4732 & done; wait";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", crowd]).run().ok();
        wait_for("the others", 10, || (outside::processes_with("4732").len() >= 30).then_some(()));
        let end = exec("s", &["--pids", "20"], forks).ok().json();
        let made: u32 = end["stdout"].as_str().unwrap().trim().parse().unwrap();
        assert!((5..20).contains(&made), "{end}");
        if lab.who.is_root() {
            let end = exec("s", &["--memory", "64M"], MEMORY).exits(137).json();
            assert_eq!(end["reason"], "oom", "{end}");
            let slow = "import time\nt = time.time()\nwhile time.process_time() < 0.2: pass\n\
                print(time.time() - t > 0.6)";
            assert_eq!(exec("s", &["--cpus", "0.2"], slow).ok().json()["stdout"], "True\n");
        } else {
            for limit in [["--memory", "64M"], ["--cpus", "1"], ["--cpu-time", "9s"]] {
                let refused = exec("s", &limit, "print('ran')").exits(5);
                assert!(!refused.text().contains("ran"), "{}", refused.describe());
                assert!(refused.describe().contains("no cgroup"), "{}", refused.describe());
            }
            // Control: who says so goes without.
            lab.skep(["create", "any", "--best-effort"]).run().ok();
            exec("any", &["--memory", "64M"], "print('ran')").ok();
        }
        // Controls: the other exec lives, and without such limits all of it goes through.
        let running = lab.skep(["ps", "s", "--json"]).run().ok().text();
        assert!(running.contains("4731"), "{running}");
        exec("s", &[], &fill(40)).ok();
        let end = exec("s", &[], forks).ok().json();
        assert_eq!(end["stdout"], "100\n", "{end}");
    });
}

const SPIN: &str = "import os\nos.fork()\nwhile True: pass";

#[test]
fn res_4_processor_time_is_a_total_not_a_rate() {
    for_both(|lab| {
        let end = python(lab, &["--cpu-time", "1s", "--timeout", "30s"], SPIN).exits(137).json();
        assert_eq!(end["reason"], "cpu_limit", "{end}");
        assert_eq!(felt(&end), ["cpu_time"]);
        // Many short processes, none of which uses much.
        let program = "import subprocess\nwhile True: subprocess.run(['/usr/bin/python3', '-c', \
            'import time\\nwhile time.process_time() < 0.1: pass'])";
        let end = python(lab, &["--cpu-time", "1s", "--timeout", "30s"], program).exits(137).json();
        assert_eq!(end["reason"], "cpu_limit", "{end}");
    });
}

#[test]
fn res_4_a_rate_slows_down_and_priority_cannot_be_raised() {
    for_each([crate::harness::Who::root()], |lab| {
        let program = "import os, time\nt = time.time()\nwhile time.process_time() < 0.3: pass\n\
            print(time.time() - t)\n\
            try: os.nice(-5); print('nice')\nexcept PermissionError: pass\n\
            try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); print('fifo')\n\
            except PermissionError: pass";
        let end = lab.skep(["run", "--json", "--cpus", "0.2", "--", "/usr/bin/python3", "-c"]);
        let end = end.arg(program).run().ok().json();
        let text = end["stdout"].as_str().unwrap();
        let took: f64 = text.lines().next().unwrap().parse().unwrap();
        assert!(took > 1.0, "0.3 s at a fifth took {took} s");
        assert_eq!(text.lines().count(), 1, "{text}");
    });
}

#[test]
fn res_10_what_ignores_signals_stands_still_or_forks_is_ended_in_time() {
    for_both(|lab| {
        let scripts = [
            "trap '' TERM INT HUP; echo begun; while :; do sleep 1; done",
            "echo begun; kill -STOP $$; echo never",
            "echo begun; sleep 300 & kill -STOP $!; wait",
            "echo begun; trap '' TERM; (trap '' TERM; sleep 300) & (trap '' TERM; sleep 300) & wait",
            "echo begun; setsid sh -c 'trap \"\" TERM; sleep 300' & sleep 300",
        ];
        for script in scripts {
            let flags = ["run", "--json", "--timeout", "400ms", "--grace", "300ms", "--"];
            let start = Instant::now();
            let end = lab.skep(flags).args(["sh", "-c", script]).run().exits(124).json();
            assert_eq!(end["reason"], "timeout", "{script}: {end}");
            assert_eq!(end["stdout"], "begun\n", "{script}: {end}");
            assert!(start.elapsed().as_millis() < 5000, "{script} took {:?}", start.elapsed());
        }
    });
}

/// In a sandbox that runs, on any provider.
pub(crate) fn what_ignores_signals_is_ended_in_time(lab: &crate::harness::Lab, name: &str) {
    let scripts = [
        "trap '' TERM INT HUP; echo begun; while :; do sleep 1; done",
        "echo begun; kill -STOP $$; echo never",
        "echo begun; setsid sh -c 'trap \"\" TERM; sleep 4391' & sleep 4391",
    ];
    for script in scripts {
        let flags = ["exec", "--json", "--timeout", "2s", "--grace", "300ms", name, "--"];
        let start = Instant::now();
        let end = lab.skep(flags).args(["sh", "-c", script]).run().exits(124).json();
        assert_eq!(end["reason"], "timeout", "{script}: {end}");
        assert_eq!(end["stdout"], "begun\n", "{script}: {end}");
        assert!(start.elapsed().as_millis() < 10_000, "{script} took {:?}", start.elapsed());
    }
    let left =
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done | grep -c '^sleep 4391'";
    // A guest is told to end them, and is not waited for.
    crate::harness::wait_for("the end of its daemons", 30, || {
        (lab.exec_script(name, left).run().text() == "0").then_some(())
    });
}

#[test]
fn res_10_a_millisecond_is_a_timeout_and_the_grace_is_used() {
    for_both(|lab| {
        let flags = ["run", "--json", "--timeout", "1ms", "--", "sleep", "60"];
        assert_eq!(lab.skep(flags).run().exits(124).json()["reason"], "timeout");
        // Asked first: what cleans up in its grace has its last words kept.
        let script = "trap 'echo cleaned; exit 0' TERM; while :; do sleep 0.05; done";
        let flags = ["run", "--json", "--timeout", "300ms", "--grace", "10s", "--", "sh", "-c"];
        let end = lab.skep(flags).arg(script).run().exits(124).json();
        assert_eq!(end["stdout"], "cleaned\n", "{end}");
        assert!(end["stats"]["duration_ms"].as_u64().unwrap() < 5000, "{end}");
    });
}

#[test]
fn res_10_zombies_and_orphans_are_reaped() {
    for_both(|lab| {
        let program = "import os\nfor i in range(600):\n  if os.fork() == 0:\n    \
            if os.fork() == 0: os._exit(0)\n    os._exit(0)\n  os.wait()\n\
            n = 0\nfor p in os.listdir('/proc'):\n  \
            try: n += p.isdigit() and open(f'/proc/{p}/stat').read().split()[2] == 'Z'\n  \
            except OSError: pass\nprint(n)";
        lab.create("s");
        let flags = ["exec", "--json", "s", "--", "/usr/bin/python3", "-c"];
        let end = lab.skep(flags).arg(program).run().ok().json();
        let zombies: u32 = end["stdout"].as_str().unwrap().trim().parse().unwrap();
        assert!(zombies < 50, "{end}");
    });
}

#[test]
fn res_12_watches_and_terminals_of_the_caller_are_left_to_it() {
    for_both(|lab| {
        let host = |name: &str| -> u64 {
            let path = format!("/proc/sys/fs/inotify/{name}");
            std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
        };
        let program = "import ctypes, os\nlibc = ctypes.CDLL(None)\nn = 0\n\
            while n < 5000 and libc.inotify_init1(0) >= 0: n += 1\n\
            t = 0\ntry:\n  while t < 2000: os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY); t += 1\n\
            except OSError: pass\nprint(n, t)";
        let end = python(lab, &[], program).ok().json();
        let text = end["stdout"].as_str().unwrap();
        let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert!((1..=host("max_user_instances") / 16).contains(&numbers[0]), "{text}");
        assert!((1..=256).contains(&numbers[1]), "{text}");
        // Control: the host's own numbers are larger.
        let most = std::fs::read_to_string("/proc/sys/kernel/pty/max").unwrap();
        assert!(most.trim().parse::<u64>().unwrap() > 256, "{most}");
    });
}

#[test]
fn res_12_descriptors_run_out_inside_only() {
    for_both(|lab| {
        let program = "import os, resource\nlimit = resource.getrlimit(resource.RLIMIT_NOFILE)\n\
            n = 0\ntry:\n  while n < 200000: os.open('/dev/null', os.O_RDONLY); n += 1\n\
            except OSError: pass\nprint(limit[0], limit[1], n)";
        let end = python(lab, &[], program).ok().json();
        let text = end["stdout"].as_str().unwrap();
        let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert!(numbers[0] <= 65_536 && numbers[1] <= 65_536 && numbers[2] < 65_536, "{text}");
        // Nothing of it is left: the next one has all of them again.
        assert_eq!(python(lab, &[], program).ok().json()["stdout"], text);
    });
}

/// A crash leaves no core in the project.
#[test]
fn a_crash_leaves_no_core() {
    for_both(|lab| {
        let program = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)";
        let end = python(lab, &["--name", "s", "--keep"], program).exits(139).json();
        assert_eq!((&end["reason"], &end["signal"]), (&"signal".into(), &11.into()), "{end}");
        assert_eq!(lab.diff("s")["changes"], Value::Array(vec![]));
    });
}
