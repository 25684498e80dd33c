//! The first three descriptors of a new process: pipes, or a terminal of its own.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;

/// What the new process has as its first three descriptors.
#[derive(Debug)]
pub enum Stdio {
    /// Input, output and error.
    Pipes(Vec<OwnedFd>),
    /// One terminal for all three.
    Terminal(OwnedFd),
}

impl Stdio {
    fn nth(&self, index: usize) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Pipes(pipes) => pipes.get(index).map(AsFd::as_fd),
            Self::Terminal(terminal) => Some(terminal.as_fd()),
        }
    }

    /// Makes this process the leader of a session, and the terminal its controlling one: no
    /// signal and no ioctl reaches another session's.
    pub fn enter_session(&self) -> io::Result<()> {
        become_leader()?;
        if let Self::Terminal(terminal) = self {
            rustix::process::ioctl_tiocsctty(terminal)?;
        }
        Ok(())
    }

    /// Puts them in place; every other descriptor closes with the next exec.
    pub fn take(&self) -> io::Result<()> {
        let missing = || io::Error::from_raw_os_error(libc::EBADF);
        rustix::stdio::dup2_stdin(self.nth(0).ok_or_else(missing)?)?;
        rustix::stdio::dup2_stdout(self.nth(1).ok_or_else(missing)?)?;
        rustix::stdio::dup2_stderr(self.nth(2).ok_or_else(missing)?)?;
        crate::process::close_on_exec_from(3)
    }
}

/// A terminal for a new process, and its other end.
pub fn open_terminal(rows: u16, columns: u16) -> io::Result<(Stdio, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let terminal = match rustix::pty::ioctl_tiocgptpeer(&master, flags) {
        // gVisor's kernel does not have it: by name, then.
        Err(rustix::io::Errno::NOTTY) => {
            let name = rustix::pty::ptsname(&master, Vec::new())?;
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open(name.as_c_str(), flags, Mode::empty())?
        }
        opened => opened?,
    };
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size)?;
    Ok((Stdio::Terminal(terminal), master))
}

/// `setsid`. Not by rustix, which takes the answer for a process id: gVisor answers 0.
fn become_leader() -> io::Result<()> {
    // SAFETY: takes nothing and touches no memory.
    if unsafe { libc::setsid() } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
