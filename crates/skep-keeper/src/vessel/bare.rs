//! Init without isolation: the workspace in the project's place, and nothing else.
//!
//! The processes are ordinary ones of the caller. No pid namespace ends them all at once, so init
//! adopts every orphan (`PR_SET_CHILD_SUBREAPER`): whatever `setsid` and double forks do, a process
//! that was started inside stays a descendant of init for as long as init lives, and init ends them
//! before it ends itself. Where there is a cgroup, it is a second hold on them.

use crate::failure::{Failure, Step};
use crate::init::InitSpec;
use crate::view::apply::{self, ServeFuse};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, waitid};
use skep_confine::usage::family_of;
use skep_sys::process::send_signal;
use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

/// How long init may take to end them: what is stuck in the kernel does not die, and cannot run either.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long everyone is stopped before everyone is killed.
const STOPPING: Duration = Duration::from_millis(100);
/// How long they are killed without a pause between two looks.
const CHASING: Duration = Duration::from_millis(50);
/// The state of a process that has ended and was not waited for.
const ENDED: u8 = b'Z';

/// Puts the workspace in its place, and opens it.
pub fn workspace(
    spec: &InitSpec<'_>,
    opened: Vec<OwnedFd>,
    serve: &ServeFuse<'_>,
) -> Result<OwnedFd, Failure> {
    let (project, scope) = (&spec.run.project, &spec.run.policy.scope);
    if !spec.run.policy.mounts.is_empty() {
        return Err(Failure::invalid(
            "the provider `subprocess` shows the host as it is: it cannot show a path elsewhere",
        ));
    }
    let place = match spec.elsewhere() {
        true => spec.run.directory.join("upper"),
        false => {
            apply::replace(project, scope, opened, &spec.parts, serve)?;
            project.clone()
        }
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(&place, flags, Mode::empty())
        .step(|| format!("open the workspace `{}`", place.display()))
}

/// Signals every descendant of this process. Before they are killed they are stopped: what is killed
/// one by one could make others meanwhile.
pub fn signal_family(signal: Signal) {
    if signal == Signal::KILL {
        stop_family(Instant::now() + STOPPING);
    }
    signal_each(signal);
}

/// Signals everyone who is found by one look and still runs, and returns them.
///
/// A number may come to mean another process between looking and signalling: so the handle is
/// opened first, and its parent looked at again through the same number.
fn signal_each(signal: Signal) -> BTreeSet<i32> {
    let family: HashSet<Pid> = descendants().into_iter().collect();
    let mut reached = BTreeSet::new();
    for pid in &family {
        let Ok(process) = pidfd_open(*pid, PidfdFlags::empty()) else { continue };
        let Some((state, parent)) = state_of(*pid) else { continue };
        let is_ours = parent == getpid() || family.contains(&parent);
        if state != ENDED && is_ours && send_signal(&process, signal).is_ok() {
            reached.insert(pid.as_raw_nonzero().get());
        }
    }
    reached
}

/// Until nobody is found who was not there the time before: who was, has been stopped. Processes that
/// fork and end without a pause are not caught by this, so it is not tried for long.
fn stop_family(deadline: Instant) {
    let mut known = BTreeSet::new();
    loop {
        let found = signal_each(Signal::STOP);
        if found.is_subset(&known) || Instant::now() > deadline {
            return;
        }
        known = found;
    }
}

/// State and parent of a process: `PID (NAME) STATE PARENT …`, where the name may hold anything.
fn state_of(pid: Pid) -> Option<(u8, Pid)> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut rest = stat.get(name_end + 2..)?.split(|byte| *byte == b' ');
    let state = *rest.next()?.first()?;
    let parent = std::str::from_utf8(rest.next()?).ok()?.parse().ok()?;
    Some((state, Pid::from_raw(parent)?))
}

/// Everyone below this process.
fn descendants() -> Vec<Pid> {
    let own = getpid();
    family_of(own).into_iter().filter(|pid| *pid != own).collect()
}

/// Whether anybody is left, ended or not. Whoever lives is below a child of this process.
fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// Ends every descendant, and waits until none is left or patience is at its end.
pub fn end_family(patience: Duration) {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        stop_family(Instant::now() + STOPPING);
        let pause = Instant::now() + CHASING;
        while Instant::now() < pause {
            while let Ok(Some(_)) = skep_sys::process::wait_any() {}
            if !has_children() {
                return;
            }
            signal_each(Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
