//! Holds those who were stopped: by tracing them, so that a signal which wakes them lets nobody go on.
//!
//! Init may trace whoever is inside: it has all capabilities in the sandbox's user namespace, and wears
//! no filter. Where it may not (a container that somebody else has fenced, Yama at its strictest, a
//! program of the host's that nobody may read, someone who is traced inside already) nobody is held, and
//! the stop is watched instead (`census.rs`).

use crate::census;
use crate::pause::{Reach, is_inside, last_number};
use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

/// How long it may take until all are held.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(200);
/// How often those are tried to be let go who are on their way into the trap.
const RELEASES: u32 = 50;

/// Who is held.
#[derive(Debug, Default)]
pub(crate) struct Held {
    threads: BTreeSet<i32>,
    /// Whether they are to be.
    wanted: bool,
}

impl Held {
    /// Whether everyone is.
    pub(crate) fn holds(&self) -> bool {
        self.wanted
    }

    /// Holds everyone but those in the cgroups `still`; whether it could. Otherwise nobody is held.
    ///
    /// A look counts only if no number was given out meanwhile: nobody was started whom it has missed.
    pub(crate) fn take(&mut self, reach: Reach, still: &[String]) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            // Who is new is stopped before it starts others.
            reach.signal(Signal::STOP);
            let before = last_number();
            let Ok(all) = self.hold(reach, still) else { break };
            // Without a pid namespace the numbers are everybody's.
            let quiet =
                reach == Reach::Descendants || (before.is_some() && before == last_number());
            if all && quiet {
                self.wanted = true;
                return true;
            }
            std::thread::sleep(PAUSE);
        }
        self.release();
        false
    }

    /// Seizes whoever is not held yet; whether there was nobody to.
    fn hold(&mut self, reach: Reach, still: &[String]) -> io::Result<bool> {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let mut all = true;
        for pid in reach.pids()? {
            if is_inside(pid, still) {
                continue;
            }
            // Gone meanwhile: it does not move any more.
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for task in tasks.flatten() {
                let Some((id, thread)) = census::thread(&task.path()) else { continue };
                if thread.ended {
                    continue;
                }
                if thread.tracer == own {
                    all &= thread.stands;
                    continue;
                }
                all = false;
                let Some(number) = Pid::from_raw(id) else { continue };
                self.threads.insert(id);
                match skep_sys::trace::hold(number) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(all)
    }

    /// Lets everyone go on whom no stop holds.
    pub(crate) fn release(&mut self) {
        self.wanted = false;
        for _ in 0..RELEASES {
            self.release_once();
            if self.threads.is_empty() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// One who was in the kernel when it was seized comes into the trap later than it was let go: the
    /// kernel then tells its tracer, and it is let go here.
    pub(crate) fn release_latecomers(&mut self) {
        if !self.wanted && !self.threads.is_empty() {
            self.release_once();
        }
    }

    fn release_once(&mut self) {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        self.threads.retain(|id| {
            let released = Pid::from_raw(*id).is_none_or(|id| skep_sys::trace::release(id).is_ok());
            let place = format!("/proc/{id}/task/{id}");
            let thread = || census::thread(std::path::Path::new(&place)).map(|(_, thread)| thread);
            !released && thread().is_some_and(|thread| thread.tracer == own && !thread.ended)
        });
    }
}
