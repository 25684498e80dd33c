//! The terminal we are on: its modes, its size, and whose turn it is.

use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};
use skep_types::TerminalSize;
use std::io;
use std::os::fd::BorrowedFd;

/// What a terminal is taken for when it does not say.
const USUAL_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// Our terminal in raw mode; as it was before when this is dropped.
#[derive(Debug)]
pub(crate) struct RawMode<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> RawMode<'a> {
    /// Makes it raw; `None` if this is no terminal.
    pub(crate) fn enter(terminal: BorrowedFd<'a>) -> io::Result<Option<Self>> {
        if !isatty(terminal) {
            return Ok(None);
        }
        let raw = Self { terminal, before: tcgetattr(terminal)? };
        raw.again()?;
        Ok(Some(raw))
    }

    /// Makes it raw once more.
    pub(crate) fn again(&self) -> io::Result<()> {
        let mut modes = self.before.clone();
        modes.make_raw();
        Ok(tcsetattr(self.terminal, OptionalActions::Now, &modes)?)
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        // Drain, so that the command's last output is shown in the mode it was meant for. There
        // is nobody to tell when the terminal is gone.
        let _ = tcsetattr(self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// The size of the terminal we are on, if we are.
pub(crate) fn size() -> Option<TerminalSize> {
    size_of(rustix::stdio::stdout()).or_else(|| size_of(rustix::stdio::stdin()))
}

fn size_of(terminal: BorrowedFd<'_>) -> Option<TerminalSize> {
    let asked = tcgetwinsize(terminal).ok()?;
    // A serial line answers with zeros.
    let known = asked.ws_row > 0 && asked.ws_col > 0;
    known.then_some(TerminalSize { rows: asked.ws_row, columns: asked.ws_col })
}

/// The size for a new terminal inside.
pub(crate) fn size_for_new() -> TerminalSize {
    size().unwrap_or(USUAL_SIZE)
}

/// Whether a terminal belongs to another job now: reading it would stop us.
pub(crate) fn belongs_to_another_job(terminal: BorrowedFd<'_>) -> bool {
    tcgetpgrp(terminal).is_ok_and(|group| group != rustix::process::getpgrp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, Winsize, tcsetwinsize};
    use std::os::fd::{AsFd as _, OwnedFd};

    fn terminal() -> (OwnedFd, OwnedFd) {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let user = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        (main, user)
    }

    fn cooked(terminal: &OwnedFd) -> bool {
        let modes = tcgetattr(terminal).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO)
    }

    #[test]
    fn the_modes_come_back_also_after_a_panic() {
        let (_main, user) = terminal();
        assert!(cooked(&user));
        let panicked = std::panic::catch_unwind(|| {
            let _raw = RawMode::enter(user.as_fd()).unwrap().unwrap();
            assert!(!cooked(&user));
            panic!("in the middle of it");
        });
        assert!(panicked.is_err());
        assert!(cooked(&user));
    }

    #[test]
    fn a_pipe_is_no_terminal() {
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(RawMode::enter(pipe.as_fd()).unwrap().is_none());
        assert_eq!(size_of(pipe.as_fd()), None);
    }

    #[test]
    fn the_size_is_what_the_terminal_says_unless_it_says_nothing() {
        let (main, user) = terminal();
        assert_eq!(size_of(user.as_fd()), None);
        let size = Winsize { ws_row: 50, ws_col: 132, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&main, size).unwrap();
        assert_eq!(size_of(user.as_fd()), Some(TerminalSize { rows: 50, columns: 132 }));
    }
}
