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
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use skep_confine::usage::family_of;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long ending may take: what is stuck in the kernel does not die, and cannot run either.
const PATIENCE: Duration = Duration::from_secs(10);

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
        stop_family(Instant::now() + PATIENCE);
    }
    signal_each(signal);
}

/// A number may come to mean another process between looking and signalling: so the handle is
/// opened first, and its parent looked at again through the same number.
fn signal_each(signal: Signal) {
    for pid in descendants() {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if family_of(getpid()).contains(&pid) {
            let _ = pidfd_send_signal(&process, signal);
        }
    }
}

/// Until nobody is found who was not there the time before: who was, has been stopped.
fn stop_family(deadline: Instant) {
    let mut known = BTreeSet::new();
    loop {
        let family: BTreeSet<i32> =
            descendants().into_iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        if family.is_subset(&known) || Instant::now() > deadline {
            return;
        }
        known = family;
        signal_each(Signal::STOP);
    }
}

fn descendants() -> Vec<Pid> {
    let own = getpid();
    family_of(own).into_iter().filter(|pid| *pid != own).collect()
}

/// Ends every descendant, and waits until none is left.
pub fn end_family() {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        while let Ok(Some(_)) = skep_sys::process::wait_any() {}
        if descendants().is_empty() {
            return;
        }
        signal_family(Signal::KILL);
        std::thread::sleep(Duration::from_millis(1));
    }
}
