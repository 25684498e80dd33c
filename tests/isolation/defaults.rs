//! What holds where nothing was typed, asked of the kernel and of the process inside.

use crate::harness::{for_both, outside};
use std::path::PathBuf;

/// The value of a file in one of these cgroups, whichever version of cgroups has it.
fn limit(groups: &[PathBuf], names: [&str; 2]) -> u64 {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    let mut found = groups.iter().flat_map(|group| names.map(|name| group.join(name)));
    found.find_map(read).unwrap_or_else(|| panic!("no {names:?} in {groups:?}"))
}

#[test]
fn limits_hold_that_nobody_typed() {
    for_both(|lab| {
        lab.create("s");
        let inside = lab.exec_script("s", "ulimit -n; ulimit -c").run().ok().text();
        // Nobody may have more than the host lets its callers have, and a quarter of that is left to skep.
        let most = lab.program("sh").args(["-c", "ulimit -H -n"]).run().ok().text();
        let most = most.trim().parse().map_or(u64::MAX, |most: u64| most - most / 4).min(65_536);
        assert_eq!(inside.trim(), format!("{most}\n0"));
        if lab.who.is_root() {
            let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
            let groups = outside::cgroups_named(&id);
            assert_eq!(limit(&groups, ["pids.max", "pids.max"]), 4096);
            let host = std::fs::read_to_string("/proc/meminfo").unwrap();
            let total = host.lines().next().unwrap().split_whitespace().nth(1).unwrap();
            let half = total.parse::<u64>().unwrap() * 1024 / 2;
            let held = limit(&groups, ["memory.max", "memory.limit_in_bytes"]);
            // The kernel counts in pages.
            assert!(held.abs_diff(half.min(8 << 30)) <= 4096, "{held} of {half}");
        }
    });
}

#[test]
fn numbers_of_upkeep_are_those_of_the_specification() {
    for_both(|lab| {
        let text = lab.skep(["config"]).run().ok().text();
        for line in [
            "limits.disk = \"10G\"",
            "limits.inodes = 1000000",
            "limits.output = \"64M\"",
            "limits.idle_timeout = \"4h\"",
            "undo.keep = 50",
            "undo.age = \"30d\"",
            "gc.approved_age = \"1d\"",
            "gc.rejected_age = \"7d\"",
        ] {
            assert!(text.lines().any(|is| is == line), "no `{line}` in:\n{text}");
        }
    });
}
