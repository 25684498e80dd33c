//! The first three descriptors of a new process: pipes, or a terminal of its own.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{
    OptionalActions, SpecialCodeIndex, Winsize, tcgetattr, tcsetattr, tcsetwinsize,
};
use std::io;
use std::time::{Duration, Instant};

/// The end of input of a terminal whose modes do not say another (`VEOF`, Ctrl-D).
const END_OF_FILE: u8 = 4;
/// The first and the longest pause between two looks whether the end of input was read.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const RAREST_LOOK: Duration = Duration::from_secs(1);

/// What the new process has as its first three descriptors.
#[derive(Debug)]
pub enum Stdio {
    /// Input, output and error.
    Pipes(Vec<OwnedFd>),
    /// One terminal for all three.
    Terminal(OwnedFd),
}

impl Stdio {
    /// All three, if they are there.
    pub fn all(&self) -> Option<[BorrowedFd<'_>; 3]> {
        match self {
            Self::Pipes(pipes) => match pipes.as_slice() {
                [input, output, error, ..] => Some([input, output, error].map(AsFd::as_fd)),
                _ => None,
            },
            Self::Terminal(terminal) => Some([terminal.as_fd(); 3]),
        }
    }

    /// The terminal, if it is one.
    pub fn terminal(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Terminal(terminal) => Some(terminal.as_fd()),
            Self::Pipes(_) => None,
        }
    }

    /// Makes this process the leader of a session, and the terminal its controlling one: no
    /// signal and no ioctl reaches another session's.
    pub fn enter_session(&self) -> io::Result<()> {
        lead_session()?;
        if let Some(terminal) = self.terminal() {
            rustix::process::ioctl_tiocsctty(terminal)?;
        }
        Ok(())
    }

    /// Puts them in place; every other descriptor closes with the next exec.
    pub fn take(&self) -> io::Result<()> {
        Ok(place(self.all().ok_or(Errno::BADF)?)?)
    }
}

/// `setsid`. Not by rustix, which takes the answer for a process id: gVisor answers 0.
pub(crate) fn lead_session() -> rustix::io::Result<()> {
    // SAFETY: takes nothing and touches no memory.
    if unsafe { libc::setsid() } != -1 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::PERM))
}

/// Makes these the first three; every other one closes with the next exec.
pub(crate) fn place([input, output, error]: [BorrowedFd<'_>; 3]) -> rustix::io::Result<()> {
    rustix::stdio::dup2_stdin(input)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(error)?;
    crate::process::close_on_exec_from(3)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

const TERMINAL_FLAGS: OpenptFlags =
    OpenptFlags::RDWR.union(OpenptFlags::NOCTTY).union(OpenptFlags::CLOEXEC);

/// A terminal for a new process, and its other end.
pub fn open_terminal(rows: u16, columns: u16) -> io::Result<(Stdio, OwnedFd)> {
    let master = rustix::pty::openpt(TERMINAL_FLAGS)?;
    rustix::pty::unlockpt(&master)?;
    let terminal = open_peer(master.as_fd())?;
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size)?;
    Ok((Stdio::Terminal(terminal), master))
}

/// The end that processes have.
fn open_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match rustix::pty::ioctl_tiocgptpeer(master, TERMINAL_FLAGS) {
        // gVisor's kernel does not have it: by name, then.
        Err(rustix::io::Errno::NOTTY) => {
            let name = rustix::pty::ptsname(master, Vec::new())?;
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            Ok(rustix::fs::open(name.as_c_str(), flags, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

/// Turns off everything a terminal does by itself: another one behind it does it.
pub fn make_raw(terminal: impl AsFd) -> io::Result<()> {
    let mut modes = tcgetattr(&terminal)?;
    modes.make_raw();
    Ok(tcsetattr(terminal, OptionalActions::Now, &modes)?)
}

/// The end of a terminal's input.
///
/// A pipe has ended when it is closed, for everybody who will ever read it. A terminal has no such
/// state: its end-of-file character ends one read, and only at the beginning of a line; a program
/// that sets its own modes while it starts takes it for an ordinary byte. So it is said again
/// whenever nothing waits to be read, as often as somebody comes to read.
#[derive(Debug)]
pub struct EndOfInput {
    next: Instant,
    pause: Duration,
}

impl EndOfInput {
    /// Says it for the first time, on the end of the terminal that processes do not have.
    pub fn say(master: impl AsFd, now: Instant) -> Self {
        write_end(master.as_fd());
        Self { next: now + FIRST_LOOK, pause: FIRST_LOOK }
    }

    /// When to look next.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Says it again, if it is time to look and what was typed before has been read.
    pub fn repeat(&mut self, master: impl AsFd, now: Instant) {
        if now < self.next {
            return;
        }
        self.pause = (self.pause * 2).min(RAREST_LOOK);
        self.next = now + self.pause;
        if !is_unread(master.as_fd()) {
            write_end(master.as_fd());
        }
    }
}

/// Whether something that was typed has no reader yet; only the other end tells.
fn is_unread(master: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    open_peer(master).is_ok_and(|peer| {
        let mut watched = [PollFd::new(&peer, PollFlags::IN)];
        poll(&mut watched, Some(&now)).is_ok() && watched[0].revents().contains(PollFlags::IN)
    })
}

/// Nobody is there to be told if it fails: then the terminal is gone, or full of unread input.
fn write_end(master: BorrowedFd<'_>) {
    let modes = tcgetattr(master).ok();
    let character = modes.map_or(0, |modes| modes.special_codes[SpecialCodeIndex::VEOF]);
    let character = if character == 0 { END_OF_FILE } else { character };
    let _ = rustix::io::write(master, &[character]);
}
