//! The sandbox's network namespace, seen from outside.

use rustix::fd::{AsFd, OwnedFd};
use rustix::process::Signal;
use rustix::thread::LinkNameSpaceType;
use std::fs::File;
use std::io;

/// Handles on the sandbox's user and network namespace.
#[derive(Debug)]
pub struct Place {
    /// None where it is the caller's own: nobody may enter the one he is in.
    user: Option<OwnedFd>,
    network: OwnedFd,
}

impl Place {
    /// Of init, which has just been made and waits: later it hides from everybody.
    pub fn of(init: i32) -> io::Result<Self> {
        let open = |name: &str| File::open(format!("/proc/{init}/ns/{name}")).map(OwnedFd::from);
        let user = open("user")?;
        let own = rustix::fs::stat("/proc/self/ns/user")?;
        let theirs = rustix::fs::fstat(&user)?;
        let same = (own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino);
        Ok(Self { user: (!same).then_some(user), network: open("net")? })
    }

    /// Moves this process in, with all rights there, and binds its life to its parent's.
    ///
    /// The kernel forgets the death signal when a process changes its rights, so that comes last.
    pub fn enter(&self) -> io::Result<()> {
        let parent = rustix::process::getppid();
        let user = self.user.iter().map(|user| (user.as_fd(), LinkNameSpaceType::User));
        let network = (self.network.as_fd(), LinkNameSpaceType::Network);
        for (namespace, kind) in user.chain([network]) {
            rustix::thread::move_into_link_name_space(namespace, Some(kind))?;
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != parent {
            return Err(io::Error::other("the keeper is gone"));
        }
        Ok(())
    }
}
