//! Limits that make no sense are refused as usage; limits that cannot be held are refused too.

use crate::harness::for_both;

const SENSELESS: [&str; 29] = [
    "--memory=0M",
    "--memory=-1M",
    "--memory=99999999999999999999G",
    "--memory=64",
    "--memory=M",
    "--memory=1.5.5G",
    "--disk=0G",
    "--disk=-5M",
    "--pids=0",
    "--pids=-1",
    "--pids=99999999999999999999",
    "--cpus=0",
    "--cpus=-1",
    "--cpus=nan",
    "--cpus=inf",
    "--cpus=1e30",
    "--timeout=0s",
    "--timeout=-1s",
    "--timeout=99999999999999999h",
    "--timeout=5",
    "--cpu-time=0s",
    "--cpu-time=-3s",
    "--output-limit=0M",
    "--output-limit=-1M",
    "--idle-timeout=0s",
    "--grace=-1s",
    "--memory=1K",
    "--pids=1",
    "--idle-timeout=1ms",
];

#[test]
fn res_10_limits_of_zero_below_zero_or_beyond_all_numbers_are_usage_errors() {
    for_both(|lab| {
        for flag in SENSELESS {
            for command in ["run", "create"] {
                let call = lab.skep([command, flag]);
                let call = if command == "run" { call.args(["--", "true"]) } else { call };
                assert_eq!(call.run().code(), 2, "{command} {flag}");
            }
        }
        assert!(lab.sandboxes().is_empty());
    });
}

#[test]
fn proc_14_a_layer_that_is_required_and_missing_is_refused_and_nothing_is_left() {
    for_both(|lab| {
        // Namespaces have no kernel of their own; a processor rate nobody asked for is not held.
        for layer in ["kernel", "cpu"] {
            let line =
                ["run", "--json", "--provider", "namespace", "--require", layer, "--", "true"];
            let ran = lab.without_effect(lab.skep(line));
            assert_eq!(ran.code(), 5, "{}", ran.describe());
            assert_eq!(ran.problem()["code"], "missing_capability");
        }
        for layer in ["filesystem", "network", "processes", "syscalls", "pids", "disk"] {
            lab.skep(["run", "--require", layer, "--", "true"]).run().ok();
        }
        lab.skep(["run", "--require", "nonsense", "--", "true"]).run().exits(2);
    });
}

/// Without a cgroup a typed limit on memory, rate or processor time is refused; `--best-effort`
/// takes what there is and the report says what that was.
#[test]
fn proc_14_a_typed_limit_without_a_cgroup_is_refused_unless_best_effort() {
    for_both(|lab| {
        for (flag, layer) in
            [("--memory=64M", "memory"), ("--cpus=0.5", "cpu"), ("--cpu-time=5s", "cpu")]
        {
            let ran = lab.skep(["run", "--json", flag, "--", "true"]).run();
            if lab.who.is_root() {
                let report = ran.ok().json();
                assert_eq!(report["enforcement"][layer]["enforced"], true, "{flag}: {report}");
                continue;
            }
            assert_eq!(ran.code(), 5, "{}", ran.describe());
            assert_eq!(ran.problem()["code"], "missing_capability");
            let ran = lab.skep(["run", "--json", "--best-effort", flag, "--", "true"]).run().ok();
            let found = ran.json()["enforcement"][layer].clone();
            assert_eq!(found["enforced"], false, "{flag}: {found}");
            assert!(found["reason"].as_str().unwrap().contains("cgroup"), "{found}");
        }
    });
}

/// What a command cannot reach without a network is said with what would let it, and nothing else is.
#[test]
fn net_1_a_command_that_fails_without_a_network_is_told_so() {
    for_both(|lab| {
        let said = "this sandbox has none; `--allow HOST` opens a way";
        for script in [
            "import socket; socket.create_connection(('192.0.2.1', 80), 2)",
            "import socket; socket.getaddrinfo('example.com', 80)",
        ] {
            let ran = lab.skep(["run", "--", "/usr/bin/python3", "-c", script]).run().exits(1);
            assert!(ran.errors().contains(said), "{}", ran.describe());
            let ran = lab.skep(["run", "--json", "--", "/usr/bin/python3", "-c", script]).run();
            assert_eq!(ran.json()["refused"][0]["call"], "network", "{}", ran.describe());
        }
        for script in ["import sys; sys.exit(1)", "import socket; socket.socket().bind(('', 0))"] {
            let ran = lab.skep(["run", "--", "/usr/bin/python3", "-c", script]).run();
            assert!(!ran.errors().contains("network"), "{}", ran.describe());
        }
    });
}
