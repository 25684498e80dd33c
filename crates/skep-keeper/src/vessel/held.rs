//! The process that is init, and the one through which it came to be.

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, Signal};
use skep_sys::process::{Child, send_signal, wait_for, wait_for_handle};
use skep_sys::processors::Processors;
use std::fs::File;

/// Init, held by the keeper.
#[derive(Debug)]
pub struct Held {
    /// Its number, here.
    pub pid: Pid,
    /// A handle on it.
    pub pidfd: OwnedFd,
    /// The child of ours that it came through; without one, init itself is the child.
    launcher: Option<Child>,
    /// What our child lives by, if it has to take something away before it ends.
    life: Option<OwnedFd>,
    /// Whether it does.
    leaves: bool,
    /// Its view, where it may be asked for: as long as this is open, init dies without waiting for its mounts
    /// to be taken down.
    view: Option<OwnedFd>,
}

/// How long our child may take to take things away: less than the keeper is given.
const LEAVING: Timespec = Timespec { tv_sec: 8, tv_nsec: 0 };

fn ends_within(process: &OwnedFd, patience: Timespec) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)).is_ok_and(|ended| ended > 0)
}

impl Held {
    /// A child of ours: init itself, or what will bring it about.
    pub fn new(child: Child) -> Self {
        let Child { pid, pidfd } = child;
        Self { pid, pidfd, launcher: None, life: None, leaves: false, view: None }
    }

    /// Init in namespaces of its own, whose view is let go of last ([`Held::let_go`]). The kernel takes mounts
    /// down when the last one leaves a namespace, and waits for every processor meanwhile; nobody who
    /// waits for init has to.
    pub fn with_view(child: Child) -> Self {
        let view = File::open(format!("/proc/{}/ns/mnt", child.pid.as_raw_nonzero()));
        Self { view: view.ok().map(OwnedFd::from), ..Self::new(child) }
    }

    /// Takes its mounts down, once it is gone.
    pub fn let_go(self) {
        drop(self.view);
    }

    /// The same, living by a pipe: it ends by itself when that is closed.
    pub fn attended(child: Child, life: OwnedFd) -> Self {
        Self { life: Some(life), leaves: true, ..Self::new(child) }
    }

    /// Init has shown itself behind our child.
    pub fn found(&mut self, pidfd: OwnedFd) -> Result<(), Failure> {
        let gone = || Failure::invalid("init ended before it was ready");
        let pid = pid_of(&pidfd).ok_or_else(gone)?;
        let child = std::mem::replace(&mut self.pidfd, pidfd);
        self.launcher = Some(Child { pid: self.pid, pidfd: child });
        self.pid = pid;
        Ok(())
    }

    /// The same as [`Held::kill`], beside us: it dies on another processor than the one that we go on with. A hint.
    pub fn kill_beside(&mut self) {
        // With a view it is a child of ours that nobody has waited for, so the number is still its own.
        if let (Some(_), Ok(all)) = (&self.view, Processors::own()) {
            let _ = all.move_away(self.pid);
        }
        self.kill();
    }

    /// Ends it, and with it everything inside.
    pub fn kill(&mut self) {
        if self.life.take().is_some() {
            // The one that lives by it goes on until it has taken everything away.
            if self.launcher.is_some() {
                let _ = send_signal(&self.pidfd, Signal::KILL);
            }
            return;
        }
        let _ = send_signal(&self.pidfd, Signal::KILL);
        if let Some(launcher) = &self.launcher {
            let _ = send_signal(&launcher.pidfd, Signal::KILL);
        }
    }

    /// Waits until it is gone. What follows it into death is gone with it.
    pub fn wait(&self) {
        match &self.launcher {
            None if self.leaves && !ends_within(&self.pidfd, LEAVING) => {}
            None => {
                let _ = wait_for_handle(&self.pidfd);
            }
            Some(launcher) => {
                if self.leaves && !ends_within(&launcher.pidfd, LEAVING) {
                    // It goes on by itself; what it could not take away yet is still known.
                    return;
                }
                let _ = wait_for(launcher);
                let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None);
            }
        }
    }
}

/// The number of the process a handle stands for, as seen from here.
pub fn pid_of(process: &OwnedFd) -> Option<Pid> {
    skep_sys::process::pid_of(process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, pidfd_open};

    #[test]
    fn a_process_that_is_gone_has_no_number() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert_eq!(pid_of(&handle), Some(pid));
        child.wait().unwrap();
        assert_eq!(pid_of(&handle), None);
    }
}
