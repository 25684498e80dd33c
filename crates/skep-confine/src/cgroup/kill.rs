//! Stopping, continuing and ending everything in a group.
//!
//! v2 has a file for each. On v1 there is the freezer: freeze, so that nothing can fork away;
//! signal everything; thaw, so that the signals arrive; and again until nothing is left.

use super::{
    CgroupError, Feature, Group, PATIENCE, Version, keyed, read_knob, wait_until, write_knob,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use skep_sys::process::send_signal;
use std::path::Path;
use std::time::Duration;

/// Within this most groups are empty after `cgroup.kill`.
const SOON: Duration = Duration::from_millis(20);

pub(super) fn freeze(group: &Group) -> Result<(), CgroupError> {
    let part =
        group.part(Feature::Freeze).ok_or_else(|| group.unsupported(Feature::Freeze, "freeze"))?;
    let directory = part.directory.as_path();
    let stands = match part.version {
        Version::V2 => {
            write_knob(directory, "cgroup.freeze", "1")?;
            wait_until(PATIENCE, || event(directory, "frozen") == Some(1))
        }
        // A v1 freezer may stop half way while processes fork; writing again makes it go on.
        Version::V1 => {
            write_knob(directory, "freezer.state", "FROZEN")?;
            wait_until(PATIENCE, || {
                let state = read_knob(directory, "freezer.state").unwrap_or_default();
                state.trim() == "FROZEN" || {
                    let _ = write_knob(directory, "freezer.state", "FROZEN");
                    false
                }
            })
        }
    };
    if stands {
        return Ok(());
    }
    // Half frozen is neither state: go back.
    let _ = thaw(group);
    Err(CgroupError::TooSlow { path: directory.to_owned(), what: "freeze" })
}

pub(super) fn thaw(group: &Group) -> Result<(), CgroupError> {
    let part =
        group.part(Feature::Freeze).ok_or_else(|| group.unsupported(Feature::Freeze, "thaw"))?;
    match part.version {
        Version::V2 => write_knob(&part.directory, "cgroup.freeze", "0"),
        Version::V1 => write_knob(&part.directory, "freezer.state", "THAWED"),
    }
}

pub(super) fn kill(group: &Group, patience: Duration) -> Result<(), CgroupError> {
    let part = group.part(Feature::Kill);
    if let Some(part) = part.filter(|part| part.version == Version::V2)
        && part.directory.join("cgroup.kill").exists()
    {
        write_knob(&part.directory, "cgroup.kill", "1")?;
        let empty = || event(&part.directory, "populated").is_none_or(|n| n == 0);
        // The kernel passes over a process whose first thread has ended.
        let ended = wait_until(patience.min(SOON), empty)
            || wait_until(patience, || {
                signal_headless(group);
                empty()
            });
        return if ended { Ok(()) } else { Err(too_slow(group)) };
    }
    let ended = wait_until(patience, || {
        if group.pids().is_empty() && group.threads().is_empty() {
            return true;
        }
        // Freezing only makes it certain that one round is enough; without it there are more.
        let _ = freeze(group);
        signal_all(group);
        signal_headless(group);
        let _ = thaw(group);
        false
    });
    if ended { Ok(()) } else { Err(too_slow(group)) }
}

/// A pid read from a list may be another process by the time it is used: it is opened first, and
/// counts only if the list, read again, still has it.
fn signal_all(group: &Group) {
    let opened: Vec<_> = group
        .pids()
        .into_iter()
        .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
        .collect();
    let still = group.pids();
    for (_, process) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
        let _ = send_signal(process, Signal::KILL);
    }
}

/// Processes whose first thread has ended are in no list of processes, and their other threads run on. The
/// handle of the dead first thread reaches them all.
fn signal_headless(group: &Group) {
    let of = |thread: &Pid| process_of(*thread).map(|process| (*thread, process));
    let opened: Vec<_> = group
        .threads()
        .iter()
        .filter_map(of)
        .filter_map(|(thread, process)| {
            Some((thread, pidfd_open(process, PidfdFlags::empty()).ok()?))
        })
        .collect();
    let still = group.threads();
    for (_, process) in opened.iter().filter(|(thread, _)| still.contains(thread)) {
        let _ = send_signal(process, Signal::KILL);
    }
}

/// The process that a thread belongs to.
fn process_of(thread: Pid) -> Option<Pid> {
    // A thread gives itself any name.
    let status = std::fs::read(format!("/proc/{}/status", thread.as_raw_nonzero())).ok()?;
    let line = String::from_utf8_lossy(&status);
    let line = line.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}

fn too_slow(group: &Group) -> CgroupError {
    let path = group.directories().next().unwrap_or(Path::new("")).to_owned();
    CgroupError::TooSlow { path, what: "end" }
}

fn event(directory: &Path, key: &str) -> Option<u64> {
    keyed(&read_knob(directory, "cgroup.events").ok()?, key)
}
