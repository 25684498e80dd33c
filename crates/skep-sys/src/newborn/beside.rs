//! Processes that are born before it is known what for, or for nothing but an errand.

use super::{Born, Guest, Steps, Stillborn, Then, WAITS, failure_in, unborn};
use crate::process::Child;
use crate::program::Program;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::process::Pid;
use std::io;
use std::sync::atomic::AtomicPtr;

/// A process that takes steps beside us, and ends. Gone when dropped.
///
/// A call of libc that fails in it says why where one of ours would. Who sends it gives up if it fails.
#[derive(Debug)]
pub struct Errand {
    guest: Guest<'static>,
    pid: Pid,
}

impl Errand {
    /// Sends one that takes these steps. On error nobody is sent.
    pub fn send(steps: Steps<'static>) -> io::Result<Self> {
        let (guest, pid) = Guest::bear(steps, Then::End)?;
        Ok(Self { guest, pid })
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for its end: the descriptor that it has sent, or the mark of the step that failed, and why. One that was ended
    /// before it could say anything has no mark.
    pub fn finish(self) -> Result<Option<OwnedFd>, Stillborn> {
        let Born { child, listener } = self.guest.attend(|_, _| Ok(()))?;
        match crate::process::wait_for(&child).map_err(unborn)? {
            0 => Ok(listener),
            _ => Err((None, libc::ECHILD)),
        }
    }
}

/// A process that has taken its first steps, and is yet to be told the others and its program. Gone when dropped.
#[derive(Debug)]
pub struct Waiting {
    guest: Guest<'static>,
    listener: Option<OwnedFd>,
}

impl Waiting {
    /// Returns when it has taken these steps, or with what failed. The mark is that of its descriptors, which come later.
    pub fn begin(steps: Steps<'static>, mark: u8) -> Result<Self, Stillborn> {
        let (guest, _) =
            Guest::bear(steps, Then::Wait(mark, AtomicPtr::default())).map_err(unborn)?;
        let mut listener = None;
        let mut word = [0; 5];
        loop {
            match guest.hear(&mut word).map_err(unborn)? {
                (0, _) => return Err((None, libc::ECHILD)),
                (1, _) if word[0] == WAITS => return Ok(Self { guest, listener }),
                (1, descriptors) => listener = descriptors.into_iter().next(),
                _ => return Err(failure_in(&word)),
            }
        }
    }

    /// Whether nobody has ended it.
    pub fn is_there(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended =
            |child: &Child| poll(&mut [PollFd::new(&child.pidfd, PollFlags::IN)], Some(&now));
        self.guest.0.as_ref().is_some_and(|within| ended(&within.child) == Ok(0))
    }

    /// The same as [`start`], with the steps that it has taken before these, and with these descriptors as its first
    /// three: of others that were opened since, it has none.
    pub fn go_on<'a>(
        self,
        descriptors: [BorrowedFd<'_>; 3],
        steps: Steps<'a>,
        program: (Program, u8),
        wait: impl FnMut(BorrowedFd<'_>, &Child) -> Result<(), i32>,
    ) -> Result<Born, Stillborn> {
        let Self { guest, listener } = self;
        let mut guest: Guest<'a> = guest;
        guest.tell(steps, program, descriptors).map_err(unborn)?;
        let born = guest.attend(wait)?;
        Ok(Born { listener: born.listener.or(listener), ..born })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Step;
    use super::super::tests::{program, until_readable};
    use super::*;
    use crate::process::wait_for;
    use rustix::fd::AsFd;
    use rustix::process::{Resource, Rlimit, Signal};

    #[test]
    fn one_on_an_errand_brings_a_network_or_says_why_not() {
        let own = std::fs::metadata("/proc/self/ns/net").unwrap();
        let inode = |network: &std::fs::Metadata| std::os::unix::fs::MetadataExt::ino(network);
        let errand = Errand::send(Steps(vec![(7, Step::Network)])).unwrap();
        match errand.finish() {
            Ok(brought) => {
                let brought = std::fs::File::from(brought.unwrap()).metadata().unwrap();
                assert_ne!(inode(&brought), inode(&own));
            }
            // Who has no power over the user namespace that it is in.
            Err(refused) => assert_eq!(refused, (Some(7), libc::EPERM)),
        }
        let nowhere = Steps(vec![(1, Step::Umask(0)), (2, Step::Directory(c"/no/such".into()))]);
        let failed = Errand::send(nowhere).unwrap().finish().unwrap_err();
        assert_eq!(failed, (Some(2), libc::ENOENT));
        // One that nobody waits for any longer is ended before what it uses goes.
        let many = (0..100).map(|_| (1, Step::Directory(c"/proc/self/fd".into())));
        for _ in 0..50 {
            let errand = Errand::send(Steps(many.clone().collect())).unwrap();
            let pid = errand.pid();
            drop(errand);
            assert!(rustix::process::test_kill_process(pid).is_err());
        }
        // Whoever sent it is where it was.
        assert_eq!(inode(&std::fs::metadata("/proc/self/ns/net").unwrap()), inode(&own));
    }

    #[test]
    fn one_that_waits_takes_the_rest_of_its_steps_when_it_is_told() {
        let first = || Steps(vec![(1, Step::Umask(0o077))]);
        let rest = || Steps(vec![(3, Step::Session), (4, Step::Directory(c"/".into()))]);
        let script = "test $(umask) = 0077 && test $(pwd) = / && echo here && exit 7";
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        let nothing = [null.as_fd(); 3];
        for _ in 0..20 {
            let waiting = Waiting::begin(first(), 2).unwrap();
            let program = (program(&["sh", "-c", script]), 9);
            let (read, write) = rustix::pipe::pipe().unwrap();
            let three = [null.as_fd(), write.as_fd(), null.as_fd()];
            let born = waiting.go_on(three, rest(), program, until_readable).unwrap();
            assert_eq!(wait_for(&born.child).unwrap(), 7);
            drop(write);
            assert_eq!(std::io::read_to_string(std::fs::File::from(read)).unwrap(), "here\n");
        }
        let nowhere = Steps(vec![(3, Step::Session), (4, Step::Directory(c"/no/such".into()))]);
        let waiting = Waiting::begin(first(), 2).unwrap();
        let failed =
            waiting.go_on(nothing, nowhere, (program(&["true"]), 9), until_readable).unwrap_err();
        assert_eq!(failed, (Some(4), libc::ENOENT));
        let nowhere = Steps(vec![(2, Step::Directory(c"/no/such".into()))]);
        assert_eq!(Waiting::begin(nowhere, 5).unwrap_err(), (Some(2), libc::ENOENT));
        // One that cannot take what it is sent says so, and is not taken for one that has done its work.
        let few = Rlimit { current: Some(3), maximum: Some(3) };
        let poor = Steps(vec![(1, Step::Limit(Resource::Nofile, few))]);
        let waiting = Waiting::begin(poor, 2).unwrap();
        let failed = waiting.go_on(nothing, rest(), (program(&["true"]), 9), until_readable);
        assert_eq!(failed.unwrap_err(), (Some(2), libc::EBADF));
        // One that is not needed is gone, and one that was killed is not taken for another.
        let waiting = Waiting::begin(first(), 2).unwrap();
        assert!(waiting.is_there());
        let pid = waiting.guest.0.as_ref().unwrap().child.pid;
        drop(waiting);
        assert!(rustix::process::test_kill_process(pid).is_err());
        let waiting = Waiting::begin(first(), 2).unwrap();
        let child = &waiting.guest.0.as_ref().unwrap().child;
        crate::process::send_signal(&child.pidfd, Signal::KILL).unwrap();
        match waiting.go_on(nothing, rest(), (program(&["true"]), 9), until_readable) {
            Ok(born) => assert_eq!(wait_for(&born.child).unwrap(), 128 + 9),
            Err((_, errno)) => assert!([libc::EPIPE, libc::ECONNRESET].contains(&errno), "{errno}"),
        }
    }
}
