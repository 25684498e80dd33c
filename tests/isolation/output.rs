//! Floods of output: kept head and tail, counted, never in memory.

use crate::harness::{for_both, outside};

#[test]
fn res_9_a_flood_keeps_head_and_tail_and_the_exit_code() {
    for_both(|lab| {
        let script = "echo first; head -c 10M /dev/zero >&2; \
            head -c 100M /dev/zero | tr '\\0' a; echo; echo last; exit 3";
        let flags = ["run", "--json", "--output-limit", "1M", "--name", "s", "--keep", "--"];
        let end = lab.skep(flags).args(["sh", "-c", script]).within(120).run().exits(3).json();
        assert_eq!(end["reason"], "exited", "{}", end["reason"]);
        assert_eq!(end["truncated"], true);
        assert_eq!(end["limits_hit"], serde_json::json!(["output"]));
        assert_eq!(end["stats"]["stdout_bytes"], 6 + (100 << 20) + 6);
        assert_eq!(end["stats"]["stderr_bytes"], 10 << 20);
        // What was kept is on disk, bounded, and begins and ends as the output did.
        let exec = end["exec"].as_str().unwrap();
        let logs = lab.skep(["logs", exec]).run().ok();
        assert!(logs.stdout.starts_with(b"first\n"));
        assert!(logs.stdout.ends_with(b"last\n"));
        assert!(logs.stdout.len() < 3 << 20, "{} bytes were kept", logs.stdout.len());
        let kept: u64 = walk(&lab.state);
        assert!(kept < 16 << 20, "{kept} bytes are in the state directory");
    });
}

fn walk(path: &std::path::Path) -> u64 {
    let ran = std::process::Command::new("du").args(["-s", "-B1"]).arg(path).output().unwrap();
    String::from_utf8_lossy(&ran.stdout).split_whitespace().next().unwrap().parse().unwrap()
}

/// The keeper's memory while it passes on much more than it has.
#[test]
fn res_9_the_keeper_stays_small() {
    for_both(|lab| {
        lab.create("s");
        let script = "head -c 200M /dev/urandom; touch done; sleep 300";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
        crate::harness::wait_for("the flood to be over", 60, || {
            let ran = lab.exec_script("s", "test -e done").run();
            (ran.code() == 0).then_some(())
        });
        for keeper in lab.keepers() {
            let status = std::fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            let kilobytes: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
            assert!(kilobytes < 64 << 10, "the keeper had {kilobytes} kB");
        }
        assert!(!outside::processes_of(&lab.root).is_empty());
    });
}

/// Bytes that are no text, without a newline, cut anywhere.
#[test]
fn res_9_bytes_that_are_no_text_are_kept() {
    for_both(|lab| {
        let program = "import os\nfor i in range(300): os.write(1, b'\\xff\\xfe\\xc3' * 100)";
        let flags = ["run", "--json", "--", "/usr/bin/python3", "-c", program];
        let end = lab.skep(flags).run().ok().json();
        assert_eq!(end["stats"]["stdout_bytes"], 90_000, "{}", end["stats"]);
        assert!(end["stdout_b64"].is_string() || end["stdout"].is_string());
    });
}

/// Ten gigabytes on both outputs, without a newline: nothing of it stays in memory, and nobody waits for ever.
#[test]
fn heavy_res_9_ten_gigabytes_on_both_outputs() {
    if !crate::harness::long() {
        return;
    }
    for_both(|lab| {
        lab.create("s");
        let script = "head -c 5G /dev/zero >&2 & head -c 5G /dev/zero; wait; exit 5";
        let flags = ["exec", "--json", "--output-limit", "1M", "s", "--", "sh", "-c", script];
        let end = lab.skep(flags).within(1_200).run().exits(5).json();
        assert_eq!(end["stats"]["stdout_bytes"], 5_u64 << 30, "{}", end["stats"]);
        assert_eq!(end["stats"]["stderr_bytes"], 5_u64 << 30, "{}", end["stats"]);
        assert_eq!((&end["truncated"], &end["reason"]), (&true.into(), &"exited".into()));
        for keeper in lab.keepers() {
            let status = std::fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            let kilobytes: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
            assert!(kilobytes < 64 << 10, "the keeper had {kilobytes} kB");
        }
        let kept = walk(&lab.state);
        assert!(kept < 16 << 20, "{kept} bytes are in the state directory");
    });
}
