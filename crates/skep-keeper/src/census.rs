//! Who stands, and whether anybody has moved since.
//!
//! A stop signal holds nobody for good: a timer that a process has set itself, or a descriptor that
//! tells it of input, can send it SIGCONT, which no handler, mask or limit of ours keeps away. A
//! cgroup's freezer does, and a tracer (`held.rs`). Without either a stop is believed by its result: a
//! thread that has run since was put on a processor, and the kernel counts that (`proc_pid_status(5)`: `voluntary_ctxt_switches`,
//! `nonvoluntary_ctxt_switches`). A thread cannot set its counts back.

use crate::pause::{Reach, is_inside};
use skep_provider::Moved;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Every thread that was stopped by a signal, at one moment. Who has ended cannot move, and is reaped at
/// any time: it is not counted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Census {
    reach: Reach,
    /// Cgroups whose processes are frozen and not counted.
    still: Vec<String>,
    threads: BTreeMap<(i32, i32), Thread>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thread {
    name: Vec<u8>,
    /// Stopped, traced or dead.
    pub(crate) stands: bool,
    pub(crate) ended: bool,
    /// Who traces it, or 0.
    pub(crate) tracer: i32,
    switches: u64,
}

impl Census {
    /// Counts everybody as of now.
    pub(crate) fn take(reach: Reach, still: &[String]) -> io::Result<Self> {
        let mut threads = BTreeMap::new();
        for pid in reach.pids()? {
            if is_inside(pid, still) {
                continue;
            }
            let directory = format!("/proc/{pid}/task");
            // Gone meanwhile: it does not move any more.
            let Ok(tasks) = std::fs::read_dir(&directory) else { continue };
            for task in tasks.flatten() {
                if let Some((id, thread)) = thread(&task.path()).filter(|(_, it)| !it.ended) {
                    threads.insert((pid, id), thread);
                }
            }
        }
        Ok(Self { reach, still: still.to_owned(), threads })
    }

    /// Whether nobody was there.
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// What one process is called.
    pub(crate) fn name(pid: i32) -> Moved {
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        Moved { pid, name: skep_types::escape::visible(name.trim_ascii_end()) }
    }

    /// Somebody who has run since, was started since, or is gone since.
    pub(crate) fn moved(&self) -> io::Result<Option<Moved>> {
        let now = Self::take(self.reach, &self.still)?;
        Ok(self.differs(&now))
    }

    /// Somebody of whom two looks differ, or who does not stand.
    pub(crate) fn differs(&self, now: &Self) -> Option<Moved> {
        let named = |(key, thread): (&(i32, i32), &Thread)| Moved {
            pid: key.0,
            name: skep_types::escape::visible(&thread.name),
        };
        let restless = now.threads.iter().find(|(key, thread)| {
            !thread.stands || self.threads.get(*key).is_none_or(|before| before != *thread)
        });
        let gone = || self.threads.iter().find(|(key, _)| !now.threads.contains_key(*key));
        restless.or_else(gone).map(named)
    }
}

/// One thread, if it is still there.
pub(crate) fn thread(task: &Path) -> Option<(i32, Thread)> {
    let id = task.file_name()?.to_str()?.parse().ok()?;
    parse(&std::fs::read(task.join("status")).ok()?).map(|thread| (id, thread))
}

/// The kernel escapes line breaks in the name, which the process chooses.
fn parse(status: &[u8]) -> Option<Thread> {
    let field = |wanted: &str| {
        let line = status.split(|byte| *byte == b'\n').find_map(|line| {
            line.strip_prefix(wanted.as_bytes()).and_then(|rest| rest.strip_prefix(b":\t"))
        });
        line.map(<[u8]>::trim_ascii)
    };
    let number = |wanted| std::str::from_utf8(field(wanted)?).ok()?.parse::<u64>().ok();
    let state = field("State")?.first().copied()?;
    Some(Thread {
        name: field("Name")?.to_owned(),
        stands: crate::pause::stands(state),
        ended: matches!(state, b'Z' | b'X'),
        tracer: i32::try_from(number("TracerPid")?).ok()?,
        switches: number("voluntary_ctxt_switches")?
            .wrapping_add(number("nonvoluntary_ctxt_switches")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(threads: &[(i32, &str, u64)]) -> Census {
        let thread = |(pid, status, switches): &(i32, &str, u64)| {
            let text = format!(
                "Name:\ta\\nState:\tR\nState:\t{status}\nTracerPid:\t0\nvoluntary_ctxt_switches:\t{switches}\n\
                 nonvoluntary_ctxt_switches:\t1\n"
            );
            ((*pid, *pid), parse(text.as_bytes()).unwrap())
        };
        let threads = threads.iter().map(thread).collect();
        Census { reach: Reach::Everyone, still: Vec::new(), threads }
    }

    #[test]
    fn whoever_ran_came_or_went_has_moved() {
        let before = census(&[(7, "T (stopped)", 4), (9, "t (tracing stop)", 1)]);
        let moved = |now: &[(i32, &str, u64)]| before.differs(&census(now)).map(|who| who.pid);
        assert_eq!(moved(&[(7, "T (stopped)", 4), (9, "t (tracing stop)", 1)]), None);
        assert_eq!(moved(&[(7, "T (stopped)", 5), (9, "t (tracing stop)", 1)]), Some(7));
        assert_eq!(moved(&[(7, "R (running)", 4), (9, "t (tracing stop)", 1)]), Some(7));
        assert_eq!(
            moved(&[(7, "T (stopped)", 4), (8, "T (stopped)", 1), (9, "t (tracing stop)", 1)]),
            Some(8)
        );
        assert_eq!(moved(&[(7, "T (stopped)", 4)]), Some(9));
    }

    #[test]
    fn a_name_cannot_pass_for_a_state() {
        let thread = &census(&[(7, "T (stopped)", 4)]).threads[&(7, 7)];
        assert_eq!(thread.name, b"a\\nState:\tR");
        assert!(thread.stands);
    }
}
