//! Execs in a container behave as everywhere, and the container is what was promised.

use super::{for_both, run};
use crate::harness::{Terminal, wait_for};
use serde_json::Value;

#[test]
fn codes_signals_input_timeouts_and_both_outputs() {
    for_both(|lab, engine| {
        run(lab, &[], "exit 7").run().exits(7);
        run(lab, &[], "kill -9 $$").run().exits(137);
        let ran = run(lab, &["-i"], "cat; echo out; echo err >&2").input("in\n").run().ok();
        assert_eq!((ran.text().as_str(), ran.errors().contains("err\n")), ("in\nout", true));
        lab.skep(["run", "--provider", "docker", "--", "/no/such"]).run().exits(127);
        let flags = ["--json", "--timeout", "400ms", "--grace", "200ms"];
        let end = run(lab, &flags, "echo part; trap '' TERM; sleep 300; sleep 300");
        let end = end.run().exits(124).json();
        assert_eq!(
            (&end["reason"], &end["stdout"]),
            (&"timeout".into(), &"part\n".into()),
            "{end}"
        );
        engine.assert_empty();
    });
}

#[test]
fn a_terminal_in_a_container_has_its_size_and_its_keys() {
    for_both(|lab, _| {
        let script = "trap 'echo INTERRUPTED; exit 9' INT; stty size; while :; do sleep 0.05; done";
        let call = lab.skep(["run", "-t", "--provider", "docker", "--", "sh", "-c", script]);
        let mut terminal = Terminal::start(call, 33, 101);
        terminal.wait_to_show("33 101");
        terminal.type_in("\x03");
        terminal.wait_to_show("INTERRUPTED");
        assert_eq!(terminal.end().code(), Some(9), "{}", terminal.screen());
    });
}

#[test]
fn input_that_has_ended_ends_on_a_terminal_in_a_container() {
    for_both(|lab, _| {
        run(lab, &["-t"], "exec cat").within(30).run().ok();
        let ran = run(lab, &["-t"], "cat; read line; echo; echo OVER").input("no newline");
        let text = ran.within(30).run().ok().text();
        assert!(text.contains("no newline") && text.contains("OVER"), "{text}");
    });
}

/// Asked of the engine and of the kernel, not of skep.
#[test]
fn the_container_is_what_the_report_says() {
    for_both(|lab, engine| {
        let flags = ["--memory", "200M", "--pids", "50", "--cpus", "1.5", "--best-effort"];
        lab.skep(["create", "s", "--provider", "docker"]).args(flags).run().ok();
        let [container] = &engine.containers()[..] else { panic!("{:?}", engine.containers()) };
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["provider_facts"]["container"], **container, "{shown}");
        assert!(
            shown["provider_facts"]["engine"].as_str().unwrap().starts_with("Docker "),
            "{shown}"
        );
        for layer in ["filesystem", "network", "processes", "syscalls", "landlock"] {
            assert_eq!(shown["enforcement"][layer]["enforced"], true, "{layer}: {shown}");
        }
        let seen: Value = serde_json::from_str(&engine.ask(&["inspect", container])).unwrap();
        let (host, config) = (&seen[0]["HostConfig"], &seen[0]["Config"]);
        assert_eq!(host["ReadonlyRootfs"], true);
        assert_eq!(host["CapDrop"][0], "ALL");
        assert_eq!(host["NetworkMode"], "none");
        assert_eq!(host["Memory"], 200 << 20);
        assert_eq!(host["MemorySwap"], 200 << 20);
        assert_eq!(host["NanoCpus"], 1_500_000_000_u64);
        assert_eq!(host["PidsLimit"], 51);
        let pids = &shown["enforcement"]["pids"];
        assert_eq!(pids["enforced"], true, "{pids}");
        assert!(pids["how"].as_str().unwrap().contains("cgroup"), "{pids}");
        assert_eq!(config["Labels"]["skep.sandbox"], shown["id"]);
        let script = "grep -E '^(Uid|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
            touch /usr/x /x 2>/dev/null && echo WRITTEN; cat /etc/shadow 2>/dev/null; \
            tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; ls /sys; ls /var/lib 2>/dev/null | grep -c docker";
        let inside = lab.exec_script("s", script).run().text();
        assert!(
            inside.contains("CapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2"),
            "{inside}"
        );
        assert!(!inside.contains("WRITTEN") && !inside.contains("root:"), "{inside}");
        assert!(inside.contains("\nlo\n0"), "{inside}");
        let uid = format!("Uid:\t{}\t", lab.who.ids().0);
        assert!(inside.contains(&uid), "{inside}");
    });
}

#[test]
fn frozen_means_standing_still() {
    for_both(|lab, _| {
        lab.skep(["create", "s", "--provider", "docker"]).run().ok();
        let script = "while :; do echo x >> ticks; sleep 0.01; done";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
        let ticks = || {
            let diff = lab.diff("s");
            diff["changes"][0]["size"].as_u64()
        };
        wait_for("the first tick", 10, || ticks().filter(|size| *size > 0));
        lab.skep(["freeze", "s"]).run().ok();
        let before = lab.diff("s")["digest"].clone();
        assert_eq!(lab.diff("s")["digest"], before);
        lab.skep(["thaw", "s"]).run().ok();
        wait_for("more of them", 10, || (lab.diff("s")["digest"] != before).then_some(()));
    });
}

#[test]
fn res_2_a_memory_bomb_in_a_container_ends_as_out_of_memory() {
    for_both(|lab, _| {
        let bomb = "x = bytearray(300 << 20)\nimport time; time.sleep(20)";
        let flags = ["run", "--json", "--memory", "64M", "--provider", "docker"];
        let ran = lab.skep(flags).args(["--", "/usr/bin/python3", "-c", bomb]).run();
        let end = ran.exits(137).json();
        assert_eq!(end["reason"], "oom", "{end}");
    });
}

#[test]
fn net_13_no_name_is_asked_of_anybody() {
    for_both(|lab, _| {
        let script = "import socket\n\
            print(open('/etc/resolv.conf').read())\n\
            try: open('/etc/resolv.conf', 'w')\n\
            except OSError as error: print('kept', error.errno)\n\
            for server in ('127.0.0.11', '127.0.0.1', '192.0.2.1'):\n\
            \x20   asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
            \x20   asked.settimeout(1)\n\
            \x20   try:\n\
            \x20       asked.connect((server, 53)); asked.send(b'x'); asked.recv(9)\n\
            \x20       print('ANSWERED', server)\n\
            \x20   except OSError as error: print(server, error)\n";
        let seen =
            lab.skep(["run", "--provider", "docker", "--", "/usr/bin/python3", "-c", script]);
        let seen = seen.run().ok().text();
        assert!(seen.contains("no network") && seen.contains("kept 30"), "{seen}");
        assert!(!seen.contains("ANSWERED") && !seen.contains("nameserver"), "{seen}");
        assert!(seen.contains("192.0.2.1 [Errno 101]"), "{seen}");
    });
}

/// Without a user namespace `RLIMIT_NPROC` counts what its user runs on the whole host.
#[test]
fn a_limit_on_processes_counts_only_those_inside() {
    for_both(|lab, _| {
        let outside: Vec<_> = (0..30).map(|_| lab.program("sleep").arg("120").spawn()).collect();
        let bomb = "import os, time\nn = 0\ntry:\n  while n < 300:\n    if os.fork() == 0: time.sleep(9); os._exit(0)\n    n += 1\n\
            except BlockingIOError: pass\nprint(n)";
        let call = lab.skep(["run", "--pids", "20", "--provider", "docker"]);
        let made = call.args(["--", "/usr/bin/python3", "-c", bomb]).run().ok().text();
        assert!((10..20).contains(&made.parse::<u32>().unwrap()), "{made}");
        for mut process in outside {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    });
}

#[test]
fn crash_8_res_10_a_container_under_a_server_that_is_killed() {
    for_both(|lab, _| {
        lab.skep(["create", "s", "--provider", "docker"]).run().ok();
        crate::server::crash::an_exec_outlives_the_server(lab);
        crate::isolation::limits::what_ignores_signals_is_ended_in_time(lab, "s");
        let facts = &lab.skep(["show", "s", "--json"]).run().ok().json()["provider_facts"];
        assert!(facts["container"].as_str().is_some_and(|id| id.len() == 64), "{facts}");
        assert!(
            facts["engine"].as_str().is_some_and(|text| text.starts_with("Docker ")),
            "{facts}"
        );
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}
