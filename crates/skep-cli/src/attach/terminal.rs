//! The terminal we are on: its modes, its size, and whose turn it is.

use rustix::stdio::stdin;
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
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Makes it raw; `None` if standard input is no terminal.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        if !isatty(stdin()) {
            return Ok(None);
        }
        let raw = Self { before: tcgetattr(stdin())? };
        raw.again()?;
        Ok(Some(raw))
    }

    /// Makes it raw once more.
    pub(crate) fn again(&self) -> io::Result<()> {
        let mut modes = self.before.clone();
        modes.make_raw();
        Ok(tcsetattr(stdin(), OptionalActions::Now, &modes)?)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Drain, so that the command's last output is shown in the mode it was meant for. There
        // is nobody to tell when the terminal is gone.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
    }
}

/// The size of the terminal we are on, if we are.
pub(crate) fn size() -> Option<TerminalSize> {
    let asked = tcgetwinsize(rustix::stdio::stdout()).or_else(|_| tcgetwinsize(stdin())).ok()?;
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
