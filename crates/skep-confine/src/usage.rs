//! How much a set of processes uses, read from `/proc`: for hosts without cgroups, where a guard
//! polls and ends what is over.
//!
//! This is a guard, not a limit: between two polls a process may take anything.

use rustix::process::Pid;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read as _;
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
        let resident = match stat.resident_pages {
            0 if stat.threads > 1 => resident_of_threads(*pid),
            pages => pages,
        };
        usage.resident += resident * page;
        usage.cpu += Duration::from_millis(stat.ticks.saturating_mul(1_000) / tick);
        usage.processes += 1;
        usage.threads += stat.threads;
    }
    usage
}

/// Pages of a process whose first thread has ended: its others still have them.
fn resident_of_threads(process: Pid) -> u64 {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let pages = threads.into_iter().flatten().flatten().filter_map(|thread| {
        let statm = fs::read_to_string(thread.path().join("statm")).ok()?;
        statm.split_ascii_whitespace().nth(1)?.parse().ok()
    });
    pages.max().unwrap_or(0)
}

/// Bytes of memory of some processes that are no pages of files; a page that a fork shares with its
/// parent counts in both.
pub fn anonymous_of(pids: &[Pid]) -> u64 {
    let page = rustix::param::page_size() as u64;
    let pages = pids.iter().filter_map(|pid| {
        let text = read_small(format!("/proc/{}/statm", pid.as_raw_nonzero()))?;
        anonymous_pages(std::str::from_utf8(&text).ok()?)
    });
    pages.sum::<u64>().saturating_mul(page)
}

/// Of `statm`: the size, what is resident, and what of that is shared.
fn anonymous_pages(statm: &str) -> Option<u64> {
    let mut numbers = statm.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(resident.saturating_sub(shared))
}

/// A process and everything it has started, as far as parents tell: with the pid 1 of a sandbox,
/// who adopts every orphan, that is the whole sandbox.
pub fn family_of(first: Pid) -> Vec<Pid> {
    families_of(&[first])
}

/// Several processes and everything they have started, each once, at a cost that follows them and
/// not the host. Complete if they stand; of those who fork and end meanwhile some may be missed.
///
/// Each process has a list of its children. A kernel built without those lists is asked for all
/// processes of the host.
pub fn families_of(first: &[Pid]) -> Vec<Pid> {
    if !fs::exists("/proc/thread-self/children").unwrap_or(false) {
        return families_in_all_of_proc(first);
    }
    gather(first, children_of)
}

fn families_in_all_of_proc(first: &[Pid]) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    for pid in pids {
        if let Some(parent) = read_stat(pid).and_then(|stat| Pid::from_raw(stat.parent)) {
            children.entry(parent).or_default().push(pid);
        }
    }
    gather(first, |pid| children.remove(&pid).unwrap_or_default())
}

fn gather(first: &[Pid], mut children_of: impl FnMut(Pid) -> Vec<Pid>) -> Vec<Pid> {
    let mut seen = HashSet::new();
    let mut family: Vec<Pid> = first.iter().copied().filter(|pid| seen.insert(*pid)).collect();
    let mut next = 0;
    while let Some(pid) = family.get(next) {
        let born = children_of(*pid);
        next += 1;
        family.extend(born.into_iter().filter(|child| seen.insert(*child)));
    }
    family
}

/// Those a process is the parent of, by adoption too: each of its threads has a list.
pub fn children_of(parent: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero()));
    let lists = tasks.into_iter().flatten().flatten().filter_map(|task| {
        // No list of a thread that has ended meanwhile.
        fs::read_to_string(task.path().join("children")).ok()
    });
    let numbers = |list: String| -> Vec<Pid> {
        list.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    };
    lists.flat_map(numbers).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: i32,
    ticks: u64,
    threads: u64,
    resident_pages: u64,
}

/// The state of a process as a letter (`proc(5)`), and how many threads it has. The name that it has given
/// itself may be anything.
pub fn state_of(pid: Pid) -> Option<(u8, u64)> {
    read_stat(pid).map(|stat| (stat.state, stat.threads))
}

/// Which namespace of host names a process is in, if it shows that.
pub fn host_names_of(pid: Pid) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Some(fs::metadata(format!("/proc/{}/ns/uts", pid.as_raw_nonzero())).ok()?.ino())
}

fn read_stat(pid: Pid) -> Option<Stat> {
    parse_stat(&read_small(format!("/proc/{}/stat", pid.as_raw_nonzero()))?)
}

/// A file of the kernel's that is less than a page, in one read: reading it as a file of unknown
/// length takes three times as many calls, for every process of the host.
fn read_small(path: String) -> Option<Vec<u8>> {
    let mut text = vec![0; 4096];
    let length = fs::File::open(path).and_then(|mut file| file.read(&mut text)).ok()?;
    text.truncate(length);
    Some(text)
}

/// How long the living descendants of a process have had a processor; `None` if they are more than
/// `most` threads, or the kernel does not tell.
pub fn time_of_descendants(first: Pid, most: usize) -> Option<Duration> {
    let mut time = Duration::ZERO;
    let mut threads = 0;
    let mut next = vec![(first, false)];
    while let Some((pid, counts)) = next.pop() {
        // Who is gone by now has used nothing that is still there.
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else {
            continue;
        };
        for task in tasks.flatten() {
            let path = task.path();
            let of = |name: &str| read_small(format!("{}/{name}", path.display()));
            if counts {
                threads += 1;
                time += first_number(&of("schedstat")?).map(Duration::from_nanos)?;
            }
            let children = String::from_utf8(of("children")?).ok()?;
            let born = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            next.extend(born.filter_map(Pid::from_raw).map(|pid| (pid, true)));
        }
        if threads + next.len() > most {
            return None;
        }
    }
    Some(time)
}

fn first_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().next()?.parse().ok()
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
    let state = fields.first()?.bytes().next()?;
    Some(Stat { state, parent, ticks, threads: number(17)?, resident_pages: number(21)? })
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

    /// Chains of children, with many in one list: more than a page of them.
    #[test]
    fn a_family_is_found_to_its_last_member() {
        use std::process::{Command, Stdio};
        let script = "i=0; while [ $i -lt 900 ]; do i=$((i+1)); sleep 60 & done; \
                      sh -c 'sleep 60 & sh -c \"echo ready; exec sleep 60\"; :'; :";
        let mut shell =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut byte = [0; 1];
        shell.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        let first = Pid::from_child(&shell);
        let family = family_of(first);
        let all_of_proc: HashSet<Pid> = families_in_all_of_proc(&[first]).into_iter().collect();
        assert_eq!(all_of_proc, family.iter().copied().collect());
        for pid in &family {
            let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        }
        let _ = shell.wait();
        assert_eq!((family.len(), family[0]), (1 + 900 + 3, first));
    }

    #[test]
    fn descendants_are_counted_until_they_are_too_many() {
        use std::process::{Command, Stdio};
        let mut shell = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo x; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut byte = [0; 1];
        shell.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        let own = rustix::process::getpid();
        let time = time_of_descendants(own, 50).unwrap();
        assert!(time > Duration::from_micros(200) && time < Duration::from_secs(60), "{time:?}");
        let shell_pid = Pid::from_raw(shell.id() as i32).unwrap();
        assert_eq!(time_of_descendants(shell_pid, 50), Some(Duration::ZERO), "it has none");
        assert_eq!(time_of_descendants(own, 0), None);
        shell.kill().unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn pages_of_files_are_no_memory_of_a_process() {
        assert_eq!(anonymous_pages("900 300 200 1 0 50 0"), Some(100));
        assert_eq!(anonymous_pages("900 300"), None);
        let own = rustix::process::getpid();
        let some = anonymous_of(&[own]);
        assert!(some > 0 && some <= poll_usage(&[own]).resident, "{some}");
    }

    #[test]
    fn a_program_name_cannot_forge_fields() {
        let line = b"7 (x) S 1 9 (y)) S 3 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 5 0 0 0 6 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat, Stat { state: b'S', parent: 3, ticks: 10, threads: 5, resident_pages: 6 });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(0u8..128, 0..300)) {
            parse_stat(&bytes);
        }
    }
}
