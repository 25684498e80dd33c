//! Descriptors that were sent and not received yet: they are in nobody's table, and what they stand for
//! takes up room all the same.
//!
//! Looked at only while everyone is held: who receives meanwhile would be missed, or made to miss something.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FileType, Stat, fstat};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use skep_sys::peek::waiting_descriptors;
use std::collections::HashSet;

/// Sockets that wait at sockets, deeper than the kernel lets them be sent (`unix(7)`, `ETOOMANYREFS`).
const DEEPEST: u32 = 8;
/// `PIDFD_THREAD`: of one thread. Kernels before 6.9 have it not.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);

/// Whose descriptors are looked at.
#[derive(Debug, Clone, Copy)]
pub(super) enum Holder {
    /// All threads of a process have one table.
    Process(Pid),
    /// The first thread has ended; another one has the table.
    Thread(Pid),
}

/// Those who were looked at already: a socket may be in several tables, or wait at itself.
pub(super) type Sockets = HashSet<(u64, u64)>;

/// How many descriptors wait at a socket, by the `fdinfo` of whoever has it.
pub(super) fn count(place: &str, descriptor: &str) -> u64 {
    let text = std::fs::read(format!("{place}/fdinfo/{descriptor}")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

impl Holder {
    /// Its number.
    pub(super) fn id(self) -> Pid {
        let (Self::Process(id) | Self::Thread(id)) = self;
        id
    }

    /// A handle on it, by which copies of its descriptors can be had.
    pub(super) fn open(self) -> rustix::io::Result<OwnedFd> {
        match self {
            Self::Process(pid) => pidfd_open(pid, PidfdFlags::empty()),
            Self::Thread(thread) => pidfd_open(thread, THREAD),
        }
    }
}

/// A copy of a descriptor of somebody's.
pub(super) fn copy_of(holder: &OwnedFd, number: i32) -> rustix::io::Result<OwnedFd> {
    pidfd_getfd(holder, number, PidfdGetfdFlags::empty())
}

/// Shows each that waits at a socket, and at those that wait there. Says whether that was all: what waits
/// at a connection that nobody has accepted cannot be seen.
pub(super) fn look(
    holder: Holder,
    descriptor: &str,
    waiting: u64,
    known: &mut Sockets,
    show: &mut dyn FnMut(&OwnedFd, &Stat),
) -> bool {
    let number = descriptor.parse().ok();
    let copy = number.and_then(|number| copy_of(&holder.open().ok()?, number).ok());
    copy.is_some_and(|socket| look_at(&socket, waiting, DEEPEST, known, show))
}

/// The same of a socket that is this process's.
pub(super) fn look_at_own(
    socket: &OwnedFd,
    known: &mut Sockets,
    show: &mut dyn FnMut(&OwnedFd, &Stat),
) -> bool {
    let waiting = count("/proc/self", &socket.as_raw_fd().to_string());
    waiting == 0 || look_at(socket, waiting, DEEPEST, known, show)
}

fn look_at(
    socket: &OwnedFd,
    waiting: u64,
    deeper: u32,
    known: &mut Sockets,
    show: &mut dyn FnMut(&OwnedFd, &Stat),
) -> bool {
    let Ok(stat) = fstat(socket) else { return false };
    if !known.insert((stat.st_dev, stat.st_ino)) {
        return true;
    }
    let mut all = true;
    let seen = waiting_descriptors(socket, |descriptor| {
        let Ok(stat) = fstat(&descriptor) else { return all = false };
        show(&descriptor, &stat);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
            let more = count("/proc/self", &descriptor.as_raw_fd().to_string());
            all &= more == 0 || (deeper > 0 && look_at(&descriptor, more, deeper - 1, known, show));
        }
    });
    all && seen.is_ok_and(|seen| seen >= waiting)
}
