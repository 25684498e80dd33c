//! Stops every process of the sandbox without a cgroup's freezer, and knows when they stand.
//!
//! A stop signal is only a request: a thread that runs on another processor goes on until it next
//! enters the kernel. A change set read before that would be no consistent cut.

use crate::census::Census;
use crate::failure::{Failure, Step};
use crate::held::Held;
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a process may take to stop. One that is stuck in the kernel cannot write either, but
/// nobody knows for how long.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a process may wait in the kernel before its children are looked at.
const VFORK_PATIENCE: Duration = Duration::from_millis(5);

/// Who is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Everyone in this pid namespace but number 1.
    Everyone,
    /// The descendants of this process.
    Descendants,
}

impl Reach {
    pub(crate) fn signal(self, signal: Signal) {
        match self {
            Self::Everyone => drop(skep_sys::process::signal_everyone(signal)),
            Self::Descendants => crate::vessel::signal_family(signal),
        }
    }

    /// Who is meant, as of now. Number 1 may be somebody else's, and is then nobody's to stop.
    pub(crate) fn pids(self) -> std::io::Result<Vec<i32>> {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let mut pids = Vec::new();
        match self {
            Self::Everyone => {
                for entry in std::fs::read_dir("/proc")? {
                    pids.extend(number(&entry?.file_name()));
                }
            }
            Self::Descendants => {
                let family = skep_confine::usage::family_of(rustix::process::getpid());
                pids.extend(family.into_iter().map(|pid| pid.as_raw_nonzero().get()));
            }
        }
        pids.retain(|pid| *pid != 1 && *pid != own);
        Ok(pids)
    }

    fn moving(self, still: &[String]) -> std::io::Result<Option<Moving>> {
        let pids = self.pids()?;
        moving(Path::new("/proc"), |pid| pids.contains(&pid) && !is_inside(pid, still))
    }
}

/// How often it is looked whether all are in their cgroups, before they are stopped.
const LOOKS: u32 = 5;

/// Whether everyone is in a cgroup of one of these names. In doubt it is `false`.
///
/// One who forks and exits, again and again, is never there when its number is looked up. So a look
/// counts only if none of those listed was gone when it was looked at, and no number was given out
/// meanwhile: a fork that had its number before has a parent that is on the list.
pub(crate) fn all_are_inside(reach: Reach, names: &[String]) -> bool {
    for _ in 0..LOOKS {
        let before = last_number();
        let inside = reach.pids().is_ok_and(|pids| pids.iter().all(|pid| is_inside(*pid, names)));
        // Without a pid namespace the numbers are everybody's.
        let quiet = reach == Reach::Descendants || (before.is_some() && before == last_number());
        if inside && quiet {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// The number that was given out last in this pid namespace.
pub(crate) fn last_number() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_ascii_whitespace().last().map(str::to_owned)
}

/// Whether all threads of a process that still run are in a cgroup of one of these names. Names of
/// cgroups are given outside only.
pub(crate) fn is_inside(pid: i32, names: &[String]) -> bool {
    if names.is_empty() {
        return false;
    }
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.into_iter().all(|task| {
        let Ok(path) = task.map(|task| task.path()) else { return false };
        let Ok(groups) = std::fs::read_to_string(path.join("cgroup")) else { return false };
        let named = |line: &str| line.split('/').any(|part| names.iter().any(|name| name == part));
        groups.lines().any(named) || has_ended(&path)
    })
}

/// A process that has ended and was not waited for; version 1 no longer says where it was.
fn has_ended(task: &Path) -> bool {
    let stat = std::fs::read(task.join("stat")).unwrap_or_default();
    parse(&stat).is_some_and(|(state, _)| matches!(state, b'Z' | b'X'))
}

/// How long two looks at those who stand are apart. One that was seen to stand may still be on its way
/// off the processor.
const SETTLING: Duration = Duration::from_millis(1);

/// How often everyone is stopped before somebody is said to go on by itself.
const STOPS: u32 = 5;

/// Stops everyone, and holds them for good. Where they cannot be held they are counted once they stand:
/// whether they went on standing can be told later.
pub(crate) fn hold_everyone(
    reach: Reach,
    still: &[String],
    held: &mut Held,
) -> Result<Option<Census>, Failure> {
    let paused = pause_everyone(reach, still);
    // Also those who wake themselves faster than they are seen to stand.
    if matches!(paused, Ok(()) | Err(Failure::Moved(_))) && held.take(reach, still) {
        return Ok(None);
    }
    if let Err(failure) = paused {
        reach.signal(Signal::CONT);
        return Err(failure);
    }
    watch_everyone(reach, still).map(Some)
}

/// Stops everyone until two looks find the same.
pub(crate) fn watch_everyone(reach: Reach, still: &[String]) -> Result<Census, Failure> {
    let look = || Census::take(reach, still).step(|| "look at the processes".into());
    let mut tries = 0;
    loop {
        pause_everyone(reach, still)?;
        let first = look()?;
        std::thread::sleep(SETTLING);
        let second = look()?;
        tries += 1;
        match first.differs(&second) {
            None => return Ok(second),
            Some(_) if tries < STOPS => {}
            Some(moved) => {
                reach.signal(Signal::CONT);
                return Err(Failure::Moved(moved));
            }
        }
    }
}

/// Called by init. Every process but init has stopped when it returns `Ok`.
///
/// None is missed: a process that forks while the signal is on its way starts its fork again after
/// the stop, and programs inside cannot continue each other while none of them runs.
///
/// A parent of `vfork` stops only when its child has called `exec`, and the child was just stopped
/// on its way there: such a child is let go for a moment, until both can be stopped.
///
/// Whoever is in a cgroup of one of the names in `still` is frozen and not waited for.
pub(crate) fn pause_everyone(reach: Reach, still: &[String]) -> Result<(), Failure> {
    reach.signal(Signal::STOP);
    let start = Instant::now();
    let mut nudge_at = start + VFORK_PATIENCE;
    loop {
        let moving = reach.moving(still).step(|| "look at the processes".into())?;
        let Some(moving) = moving else { return Ok(()) };
        let now = Instant::now();
        if now > start + PATIENCE {
            reach.signal(Signal::CONT);
            if moving.state == b'D' {
                let operation = format!("stop process {} inside", moving.pid);
                return Err(Failure::Step { operation, errno: libc::EBUSY });
            }
            return Err(Failure::Moved(Census::name(moving.pid)));
        }
        if moving.state == b'D' && now >= nudge_at {
            let_children_go(Path::new("/proc"), moving.pid, reach);
            nudge_at = Instant::now() + VFORK_PATIENCE;
        } else if now >= nudge_at {
            // One that was not stopped yet may have let it go on.
            reach.signal(Signal::STOP);
            nudge_at = now + VFORK_PATIENCE;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Lets the stopped children of a waiting process go on for a moment, and stops everyone again.
fn let_children_go(proc: &Path, parent: i32, reach: Reach) {
    for child in std::fs::read_dir(proc).into_iter().flatten().flatten() {
        let Some(pid) = number(&child.file_name()) else { continue };
        let Ok(stat) = std::fs::read(child.path().join("stat")) else { continue };
        if parse(&stat) == Some((b'T', parent))
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }
    std::thread::sleep(Duration::from_micros(500));
    reach.signal(Signal::STOP);
}

/// A thread that has not stopped.
struct Moving {
    pid: i32,
    state: u8,
}

/// A thread that has neither stopped nor ended, other than init.
fn moving(proc: &Path, counts: impl Fn(i32) -> bool) -> std::io::Result<Option<Moving>> {
    for entry in std::fs::read_dir(proc)? {
        let Some(pid) = number(&entry?.file_name()) else { continue };
        if !counts(pid) {
            continue;
        }
        // Gone meanwhile: it does not move any more.
        let Ok(tasks) = std::fs::read_dir(proc.join(pid.to_string()).join("task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let Ok(stat) = std::fs::read(task.path().join("stat")) else { continue };
            if let Some((state, _)) = parse(&stat)
                && !stands(state)
            {
                return Ok(Some(Moving { pid, state }));
            }
        }
    }
    Ok(None)
}

fn number(name: &std::ffi::OsStr) -> Option<i32> {
    name.to_str()?.parse().ok()
}

/// State and parent. The name before them is chosen by the process: the last `)` ends it.
fn parse(stat: &[u8]) -> Option<(u8, i32)> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut words = std::str::from_utf8(stat.get(end + 2..)?).ok()?.split(' ');
    let state = words.next()?.bytes().next()?;
    Some((state, words.next()?.trim().parse().ok()?))
}

/// Stopped, traced or dead.
pub(crate) fn stands(state: u8) -> bool {
    matches!(state, b'T' | b't' | b'Z' | b'X')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_behind_the_name() {
        assert_eq!(parse(b"7 (sh) T 1 7 7"), Some((b'T', 1)));
        assert_eq!(parse(b"7 (a) R b) Z 12 7 7"), Some((b'Z', 12)));
        assert_eq!(parse(b"7 (a) T b) R 1 7 7"), Some((b'R', 1)));
        assert!(!stands(b'S') && !stands(b'D') && !stands(b'R'));
        assert!(stands(b'T') && stands(b'Z'));
    }

    #[test]
    fn a_running_process_is_seen() {
        assert!(moving(Path::new("/proc"), |pid| pid != 1).unwrap().is_some(), "this test runs");
    }
}
