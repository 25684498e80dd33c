//! An exec as seen on the host: a process that passes its standard descriptors on to the guest.
//!
//! It is a fork of init with the exec's descriptors, session, limits and fences. Signals that
//! reach it are passed on; if it is killed, the switchboard ends the exec in the guest. A terminal it
//! is given is raw: the guest has one of its own, which does what a terminal does.

use crate::wire::{self, Inbox, Kind, NotStarted, Order, Outcome, PIECE, WINDOW};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::termios::tcgetwinsize;
use skep_sys::signal::SignalFd;
use skep_types::TerminalSize;
use std::io;

/// Signals that mean the command in the guest.
const PASSED_ON: &[i32] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    // Also what our own writing to nobody sends: the guest may have hung up, or nobody reads its output.
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGWINCH,
];

/// Passes everything on until the exec ends. `started` hears how the start went, once.
///
/// An error is the loss of the machine.
pub fn run(
    line: &OwnedFd,
    order: &Order,
    started: impl FnOnce(Result<(), NotStarted>),
) -> io::Result<Outcome> {
    let mut relay = Relay {
        line,
        terminal: order.terminal.is_some(),
        signals: SignalFd::new(PASSED_ON)?,
        out: Vec::new(),
        ahead: 0,
        input: true,
    };
    wire::push_json(&mut relay.out, 0, Kind::Start, order);
    relay.serve(started)
}

struct Relay<'a> {
    line: &'a OwnedFd,
    terminal: bool,
    signals: SignalFd,
    out: Vec<u8>,
    /// Bytes of input that the guest has not passed on yet.
    ahead: usize,
    /// Whether more input may come.
    input: bool,
}

impl Relay<'_> {
    fn serve(mut self, started: impl FnOnce(Result<(), NotStarted>)) -> io::Result<Outcome> {
        let mut started = Some(started);
        let mut inbox = Inbox::default();
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.say()?;
            let running = started.is_none();
            let (line, input) = self.wait(running)?;
            self.pass_signals(running)?;
            if input {
                self.read_input()?;
            }
            if !line {
                continue;
            }
            match rustix::io::read(self.line, &mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => inbox.push(&buffer[..length]),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            while let Some(frame) = inbox.take().map_err(io::Error::other)? {
                match frame.kind {
                    Kind::Started => {
                        if let Some(tell) = started.take() {
                            tell(Ok(()));
                        }
                    }
                    Kind::NotStarted => {
                        let failure = serde_json::from_slice(frame.payload)?;
                        if let Some(tell) = started.take() {
                            tell(Err(failure));
                        }
                        return Ok(Outcome { code: Some(127), ..Outcome::default() });
                    }
                    Kind::Stdout => self.print(rustix::stdio::stdout(), frame.payload),
                    Kind::Stderr => self.print(rustix::stdio::stderr(), frame.payload),
                    Kind::Credit => {
                        let passed: usize = serde_json::from_slice(frame.payload)?;
                        self.ahead = self.ahead.saturating_sub(passed);
                    }
                    Kind::Ended => return Ok(serde_json::from_slice(frame.payload)?),
                    _ => return Err(io::Error::other("the guest said something only a host says")),
                }
            }
        }
    }

    fn wait(&self, running: bool) -> io::Result<(bool, bool)> {
        let reads = running && self.input && self.ahead < WINDOW;
        let flags = if reads { PollFlags::IN } else { PollFlags::empty() };
        let mut watched =
            vec![PollFd::new(self.line, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
        if reads {
            watched.push(PollFd::from_borrowed_fd(rustix::stdio::stdin(), flags));
        }
        match poll(&mut watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let input = watched.get(2).is_some_and(|fd| !fd.revents().is_empty());
        Ok((!watched[0].revents().is_empty(), input))
    }

    fn pass_signals(&mut self, running: bool) -> io::Result<()> {
        while let Some(signal) = self.signals.next()? {
            if signal == libc::SIGWINCH && self.terminal {
                let size = tcgetwinsize(rustix::stdio::stdin())?;
                let size = TerminalSize { rows: size.ws_row, columns: size.ws_col };
                wire::push_json(&mut self.out, 0, Kind::Resize, &size);
            } else if running {
                wire::push_json(&mut self.out, 0, Kind::Signal, &signal);
            } else {
                // There is nothing yet to be told.
                wire::push(&mut self.out, 0, Kind::Kill, b"");
            }
        }
        Ok(())
    }

    fn read_input(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(length) if length > 0 => {
                self.ahead += length;
                wire::push(&mut self.out, 0, Kind::Stdin, &buffer[..length]);
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Ok(_) | Err(_) => {
                self.input = false;
                wire::push(&mut self.out, 0, Kind::StdinEnd, b"");
            }
        }
        Ok(())
    }

    /// Blocks while nobody reads: the window then closes, and the command in the guest waits.
    fn print(&mut self, to: BorrowedFd<'_>, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(to, rest) {
                Ok(length) => rest = &rest[length..],
                Err(rustix::io::Errno::INTR) => {}
                // Nobody will ever read it.
                Err(_) => break,
            }
        }
        wire::push_json(&mut self.out, 0, Kind::Credit, &bytes.len());
    }

    fn say(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            match rustix::io::write(self.line, &self.out[sent..]) {
                Ok(length) => sent += length,
                Err(rustix::io::Errno::INTR) => {}
                // The guest has said all there is to say and listens no more; that is still to be read.
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        Ok(())
    }
}
