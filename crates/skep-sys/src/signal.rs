//! Signals as readable descriptors, and putting them back for a program about to start.

use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

/// A set of signals, blocked in this process and read from a descriptor instead.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: just initialised.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: `set` is initialised; an impossible signal number is refused, not written.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

impl SignalFd {
    /// Blocks `signals` and returns where to read them.
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let set = set_of(signals);
        // SAFETY: `set` is initialised; the old set is not asked for.
        let blocked =
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next pending signal, if any.
    pub fn next(&self) -> io::Result<Option<i32>> {
        let mut buffer = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut buffer) {
            // The first field is the signal's number, in the byte order of the machine.
            Ok(read) if read == buffer.len() => {
                Ok(Some(i32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]])))
            }
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Puts every signal back to its default and unblocks all: what a new program expects.
pub fn reset_all() {
    // Those that cannot be changed are refused by the kernel without effect.
    let all: [i32; 64] = std::array::from_fn(|index| index as i32 + 1);
    reset(&all);
}

/// Undoes [`SignalFd::new`] and [`ignore`] of these signals: enough for the child of a process that
/// has called [`reset_all`] and changed nothing else.
pub fn reset(signals: &[i32]) {
    for signal in signals {
        // SAFETY: SIG_DFL is always a valid disposition.
        unsafe { libc::signal(*signal, libc::SIG_DFL) };
    }
    let empty = set_of(&[]);
    // SAFETY: `empty` is initialised; the old set is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut()) };
}

/// Ignores a signal in this process (`SIGPIPE` in the keeper: a gone reader is an error value).
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN is always a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}
