//! Tells the processes of one exec from another's where no cgroup does.
//!
//! Before it starts a process for an exec, init moves into a fresh namespace of host names. The process
//! inherits it, and so does everything that it starts, whatever sessions and double forks there are:
//! leaving a namespace needs a capability that nobody inside has. Where init may not make one (without
//! isolation, or in a container without capabilities) an exec is its process group, as far as that goes.

use crate::pause::{self, Reach};
use rustix::process::{Pid, PidfdFlags, Resource, Signal, getpid, getrlimit, pidfd_open};
use skep_sys::process::{Namespaces, signal_everyone, unshare};
use skep_types::ExecId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// When so many marks are remembered, it is looked which are still worn: an exec that has ended may
/// yet be told to end what it left.
const MANY: usize = 128;
/// Or as many as are this part of the files that may be open: each mark is one, and commands need others.
const PART: u64 = 4;
/// How often its processes are looked for before everyone is stopped: who forks faster than it is
/// killed is caught only then.
const ROUNDS: u32 = 20;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// The marks that were given.
#[derive(Debug, Default)]
pub(super) struct Marks {
    given: VecDeque<Mark>,
}

#[derive(Debug)]
struct Mark {
    exec: ExecId,
    /// Keeps the number from being given to another namespace.
    _namespace: File,
    number: u64,
}

impl Marks {
    /// What is started from here on is this exec's.
    pub(super) fn give(&mut self, exec: &ExecId, running: &HashMap<i32, ExecId>) {
        match fresh() {
            Ok((namespace, number)) => {
                if self.given.len() >= many() {
                    let worn = worn();
                    let runs = |exec: &ExecId| running.values().any(|running| running == exec);
                    self.given.retain(|mark| worn.contains(&mark.number) || runs(&mark.exec));
                }
                self.given.push_back(Mark { exec: exec.clone(), _namespace: namespace, number });
            }
            // It would wear the last one's.
            Err(_) => self.given.clear(),
        }
    }

    /// Kills every process of an exec; says whether they could be told. Where all are `still` nobody is
    /// stopped for it, and nobody woken.
    pub(super) fn kill(&self, exec: &ExecId, still: bool) -> bool {
        let Some(mark) = self.given.iter().rev().find(|mark| mark.exec == *exec) else {
            return false;
        };
        for _ in 0..ROUNDS {
            let before = pause::last_number();
            let found = kill_marked(mark.number);
            if has_seen_all(found, before.as_deref(), pause::last_number().as_deref()) {
                return true;
            }
            std::thread::sleep(PAUSE);
        }
        if !still && pause::pause_everyone(Reach::Everyone, &[]).is_ok() {
            kill_marked(mark.number);
            let _ = signal_everyone(Signal::CONT);
        }
        true
    }
}

/// Whether a look that found so many has left nobody out. Who forks and ends all the time is not on a list that was
/// made meanwhile: the number that was given out last tells.
fn has_seen_all(found: usize, before: Option<&str>, after: Option<&str>) -> bool {
    found == 0 && before.is_some() && before == after
}

fn many() -> usize {
    let open = getrlimit(Resource::Nofile).current;
    open.map_or(MANY, |open| MANY.min((open / PART) as usize))
}

fn fresh() -> std::io::Result<(File, u64)> {
    unshare(Namespaces::UTS)?;
    let namespace = File::open("/proc/self/ns/uts")?;
    let number = namespace.metadata()?.ino();
    Ok((namespace, number))
}

/// Everyone but init.
fn everyone() -> std::io::Result<impl Iterator<Item = Pid>> {
    let entries = std::fs::read_dir("/proc")?.flatten();
    let number = |name: std::ffi::OsString| name.to_str().and_then(|name| name.parse().ok());
    let pids = entries.filter_map(move |entry| Pid::from_raw(number(entry.file_name())?));
    Ok(pids.filter(|pid| *pid != getpid()))
}

/// The mark of a process. One whose first thread has ended shows it by the others.
fn mark_of(pid: Pid) -> std::io::Result<u64> {
    let mark = |place: &str| -> std::io::Result<u64> {
        Ok(std::fs::metadata(format!("{place}/ns/uts"))?.ino())
    };
    let process = format!("/proc/{}", pid.as_raw_nonzero());
    match mark(&process) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let threads = std::fs::read_dir(format!("{process}/task"))?.flatten();
            let mut marks = threads.map(|thread| mark(&thread.path().to_string_lossy()));
            marks.find(Result::is_ok).unwrap_or(Err(error))
        }
        mark => mark,
    }
}

/// All marks that somebody wears.
fn worn() -> HashSet<u64> {
    everyone().into_iter().flatten().filter_map(|pid| mark_of(pid).ok()).collect()
}

/// How many were found.
///
/// Who runs a program that nobody may read does not show its mark, to nobody but the host's root. It is
/// ended too: whom a limit or a kill does not reach must not go on.
fn kill_marked(number: u64) -> usize {
    let mut found = 0;
    let Ok(everyone) = everyone() else {
        // Who cannot be told from others is ended with them.
        let _ = signal_everyone(Signal::KILL);
        return 0;
    };
    for pid in everyone {
        // The handle first: what wears the mark then is what the handle stands for.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let meant = match mark_of(pid) {
            Ok(worn) => worn == number,
            Err(error) => error.kind() == ErrorKind::PermissionDenied,
        };
        if meant {
            found += 1;
            let _ = skep_sys::process::send_signal(&process, Signal::KILL);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_found_nobody_counts_only_if_nobody_was_born_meanwhile() {
        assert!(has_seen_all(0, Some("17"), Some("17")));
        assert!(!has_seen_all(0, Some("17"), Some("18")), "somebody was born");
        assert!(!has_seen_all(0, None, None), "nobody knows");
        assert!(!has_seen_all(1, Some("17"), Some("17")), "who was found has to be gone first");
    }
}
