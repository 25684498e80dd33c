//! How much a set of processes uses, read from `/proc`: for hosts without cgroups, where a guard
//! polls and ends what is over.
//!
//! This is a guard, not a limit: between two polls a process may take anything.

use rustix::process::Pid;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

/// What some processes use together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory in bytes; pages shared between them count in each.
    pub resident: u64,
    /// Processor time of the living ones and the children they have waited for.
    pub cpu: Duration,
    /// Processes.
    pub processes: u64,
    /// Threads of all of them.
    pub threads: u64,
}

/// Sums up the usage of `pids`; those that are gone count nothing.
pub fn poll_usage(pids: &[Pid]) -> Usage {
    let tick = rustix::param::clock_ticks_per_second().max(1);
    let page = rustix::param::page_size() as u64;
    let mut usage = Usage::default();
    for pid in pids {
        let Some(stat) = read_stat(*pid) else { continue };
        usage.resident += stat.resident_pages * page;
        usage.cpu += Duration::from_millis(stat.ticks.saturating_mul(1_000) / tick);
        usage.processes += 1;
        usage.threads += stat.threads;
    }
    usage
}

/// A process and everything it has started, as far as parents tell: with the pid 1 of a sandbox,
/// who adopts every orphan, that is the whole sandbox.
pub fn family_of(first: Pid) -> Vec<Pid> {
    families_of(&[first])
}

/// Several processes and everything they have started, each once, from one look at `/proc`.
pub fn families_of(first: &[Pid]) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    for pid in pids {
        if let Some(parent) = read_stat(pid).and_then(|stat| Pid::from_raw(stat.parent)) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut seen = HashSet::new();
    let mut family: Vec<Pid> = first.iter().copied().filter(|pid| seen.insert(*pid)).collect();
    let mut next = 0;
    while let Some(pid) = family.get(next) {
        next += 1;
        let born = children.remove(pid).unwrap_or_default();
        family.extend(born.into_iter().filter(|child| seen.insert(*child)));
    }
    family
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    ticks: u64,
    threads: u64,
    resident_pages: u64,
}

fn read_stat(pid: Pid) -> Option<Stat> {
    parse_stat(&fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
}

/// Fields are counted after the program's name, which stands in parentheses and may hold any byte.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // In proc(5) counting, the state is field 3, here 0: utime, stime, cutime, cstime are 14 to 17.
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    let parent = fields.get(1)?.parse().ok()?;
    Some(Stat { parent, ticks, threads: number(17)?, resident_pages: number(21)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_process_uses_something_and_is_its_own_family() {
        let own = rustix::process::getpid();
        let usage = poll_usage(&[own]);
        assert!(usage.resident > 0 && usage.threads >= 1);
        assert_eq!(usage.processes, 1);
        assert!(family_of(own).contains(&own));
        assert_eq!(families_of(&[own, own]).iter().filter(|pid| **pid == own).count(), 1);
    }

    #[test]
    fn a_program_name_cannot_forge_fields() {
        let line = b"7 (x) S 1 9 (y)) S 3 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 5 0 0 0 6 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat, Stat { parent: 3, ticks: 10, threads: 5, resident_pages: 6 });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(0u8..128, 0..300)) {
            parse_stat(&bytes);
        }
    }
}
