//! Tells the processes of one exec from another's where no cgroup does.
//!
//! Before it starts a process for an exec, init moves into a fresh namespace of host names. The process
//! inherits it, and so does everything that it starts, whatever sessions and double forks there are:
//! leaving a namespace needs a capability that nobody inside has. Where init may not make one (without
//! isolation, or in a container without capabilities) an exec is its process group, as far as that goes.

use crate::pause::{self, Reach};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open};
use skep_sys::process::{Namespaces, signal_everyone, unshare};
use skep_types::ExecId;
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Marks of execs that are remembered: one that has ended may still be told to end what it left.
const KEPT: usize = 128;
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
    pub(super) fn give(&mut self, exec: &ExecId) {
        match fresh() {
            Ok((namespace, number)) => {
                if self.given.len() == KEPT {
                    self.given.pop_front();
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
            if kill_marked(mark.number) == 0 {
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

fn fresh() -> std::io::Result<(File, u64)> {
    unshare(Namespaces::UTS)?;
    let namespace = File::open("/proc/self/ns/uts")?;
    let number = namespace.metadata()?.ino();
    Ok((namespace, number))
}

/// How many were found.
fn kill_marked(number: u64) -> usize {
    let mut found = 0;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Some(pid) = Pid::from_raw(pid).filter(|pid| *pid != getpid()) else { continue };
        // The handle first: what wears the mark then is what the handle stands for.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let wears = std::fs::metadata(entry.path().join("ns/uts"));
        if wears.is_ok_and(|namespace| namespace.ino() == number) {
            found += 1;
            let _ = skep_sys::process::send_signal(&process, Signal::KILL);
        }
    }
    found
}
