//! Connects our standard streams and signals to a command inside.
//!
//! One loop over three descriptors: signals (as a descriptor, so that none is lost between two
//! system calls), the exec's stream, and our standard input. What a terminal would do by itself
//! with a program outside a sandbox (interrupt it, tell it the size of the window, end it with
//! `SIGPIPE` when nobody reads) is passed on. Who ends us ends the command: a shell on a terminal
//! ignores `SIGTERM`, so it is told what it would be told if its terminal were closed, and then ended.

pub(crate) mod capture;
pub(crate) mod terminal;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use skep_provider::{ExecStream, StreamEvent};
use skep_sys::signal::SignalFd;
use skep_types::ExecEnd;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use terminal::RawMode;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
const SIGWINCH: i32 = 28;

/// A second interrupt within this time means: now.
const IMPATIENCE: Duration = Duration::from_secs(2);
/// How long a command on a terminal has for each signal after ours to end.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often to look again whether we may read the terminal.
const BACKGROUND_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Input handed on in one go. A socket is writable when three quarters of its buffer (some
/// 200 KiB) are free, so a piece of this size never blocks us then. Blocking would be a deadlock
/// with a command that waits for us to take its output before it reads on.
const INPUT_PIECE: usize = 32 << 10;
/// Output taken in one go before signals are looked at again.
const EVENTS_IN_A_ROW: usize = 64;

/// Where our standard input goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nowhere: the command reads an empty input.
    Closed,
    /// To the command.
    Passed,
}

/// Whether the command is on a terminal of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Screen {
    /// Yes: ours is made raw, if we have one.
    Terminal,
    /// No: pipes.
    Pipes,
}

/// Where the command's output goes.
pub(crate) trait Sink {
    /// Bytes of standard output, or of the terminal.
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Bytes of standard error.
    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Pumps until the command has ended. An end that was not seen is `UnexpectedEof`.
pub(crate) fn pump(
    stream: &mut dyn ExecStream,
    input: Input,
    screen: Screen,
    sink: &mut dyn Sink,
) -> io::Result<ExecEnd> {
    pump_from(rustix::stdio::stdin(), stream, input, screen, sink)
}

fn pump_from(
    stdin: BorrowedFd<'_>,
    stream: &mut dyn ExecStream,
    input: Input,
    screen: Screen,
    sink: &mut dyn Sink,
) -> io::Result<ExecEnd> {
    let signals = SignalFd::new(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCONT, SIGWINCH])?;
    let raw = if screen == Screen::Terminal { RawMode::enter(stdin)? } else { None };
    let mut pump = Pump {
        stdin,
        on_terminal: rustix::termios::isatty(stdin),
        stream,
        sink,
        input,
        screen,
        raw,
        pending: Vec::new(),
        interrupted: None,
        leaving: None,
        reader_gone: None,
        more: true,
        background: false,
    };
    if input == Input::Closed {
        unless_gone(pump.stream.close_stdin())?;
    }
    pump.until_the_end(&signals)
}

struct Pump<'a> {
    stdin: BorrowedFd<'a>,
    /// Whether our standard input is a terminal.
    on_terminal: bool,
    stream: &'a mut dyn ExecStream,
    sink: &'a mut dyn Sink,
    input: Input,
    screen: Screen,
    raw: Option<RawMode<'a>>,
    /// Input that was read and is handed on once the stream has room.
    pending: Vec<u8>,
    interrupted: Option<Instant>,
    /// We were told to end: the next signal for the command, and when it is due.
    leaving: Option<(i32, Instant)>,
    /// Since when nobody reads our standard output.
    reader_gone: Option<Instant>,
    /// Whether the stream may have more without its descriptor being readable.
    more: bool,
    /// Whether our terminal belongs to another job.
    background: bool,
}

/// What is there to be done.
#[derive(Default)]
struct Ready {
    signals: bool,
    stream: bool,
    input: bool,
    room: bool,
}

impl Pump<'_> {
    fn until_the_end(&mut self, signals: &SignalFd) -> io::Result<ExecEnd> {
        loop {
            let ready = self.wait(signals)?;
            if ready.signals {
                while let Some(signal) = signals.next()? {
                    self.signal(signal)?;
                }
            }
            self.insist()?;
            if (ready.stream || self.more)
                && let Some(end) = self.output()?
            {
                return Ok(end);
            }
            if ready.room && !self.pending.is_empty() {
                let bytes = std::mem::take(&mut self.pending);
                self.give(bytes)?;
            }
            if ready.input {
                self.read_input()?;
            }
        }
    }

    fn wait(&mut self, signals: &SignalFd) -> io::Result<Ready> {
        self.background = self.on_terminal
            && self.input == Input::Passed
            && terminal::belongs_to_another_job(self.stdin);
        let reads = self.input == Input::Passed && self.pending.is_empty() && !self.background;
        let wanted =
            if self.pending.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut descriptors = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(self.stream.as_fd(), wanted),
        ];
        if reads {
            descriptors.push(PollFd::from_borrowed_fd(self.stdin, PollFlags::IN));
        }
        let quiet = self.stream.quiet_after().filter(|_| !self.more && self.leaving.is_none());
        let timeout = match (self.more, self.background, self.leaving) {
            (true, ..) => Some(NOW),
            (false, _, Some((_, due))) => Some(until(due)),
            (false, true, None) => Some(BACKGROUND_CHECK),
            (false, false, None) => quiet.map(timespec),
        };
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(0) if quiet.is_some() => {
                self.stream.quiet();
                return Ok(Ready::default());
            }
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let events = |at: usize| descriptors.get(at).map_or(PollFlags::empty(), PollFd::revents);
        Ok(Ready {
            signals: !events(0).is_empty(),
            stream: !events(1).difference(PollFlags::OUT).is_empty(),
            input: !events(2).is_empty(),
            room: events(1).contains(PollFlags::OUT),
        })
    }

    fn signal(&mut self, signal: i32) -> io::Result<()> {
        match signal {
            SIGWINCH => self.resize(),
            SIGCONT => {
                // The shell has put its own modes back while we were stopped.
                if let Some(raw) = &self.raw {
                    raw.again()?;
                }
                self.resize()
            }
            SIGINT => {
                let impatient = self.interrupted.is_some_and(|at| at.elapsed() < IMPATIENCE);
                self.interrupted = Some(Instant::now());
                self.send(if impatient { SIGKILL } else { SIGINT })
            }
            SIGTERM if self.screen == Screen::Terminal => {
                self.leaving.get_or_insert((SIGHUP, Instant::now() + LAST_WORDS));
                self.send(SIGTERM)
            }
            other => self.send(other),
        }
    }

    /// A command on a terminal that did not end when it was asked: hung up on, then killed.
    fn insist(&mut self) -> io::Result<()> {
        match self.leaving {
            Some((signal, due)) if Instant::now() >= due => {
                self.leaving = Some((SIGKILL, Instant::now() + LAST_WORDS));
                self.send(signal)
            }
            _ => Ok(()),
        }
    }

    fn send(&mut self, signal: i32) -> io::Result<()> {
        unless_gone(self.stream.signal(signal))
    }

    fn resize(&mut self) -> io::Result<()> {
        match (self.screen, terminal::size()) {
            (Screen::Terminal, Some(size)) => unless_gone(self.stream.resize(size)),
            _ => Ok(()),
        }
    }

    fn output(&mut self) -> io::Result<Option<ExecEnd>> {
        for _ in 0..EVENTS_IN_A_ROW {
            match self.stream.next()? {
                None => {
                    self.more = false;
                    return Ok(None);
                }
                Some(StreamEvent::Ended(end)) => return Ok(Some(*end)),
                Some(StreamEvent::Stdout(bytes)) => self.print(&bytes)?,
                // A closed standard error is ignored, as the C library's users do.
                Some(StreamEvent::Stderr(bytes)) => drop(self.sink.stderr(&bytes)),
            }
        }
        self.more = true;
        Ok(None)
    }

    fn print(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.reader_gone {
            None => {
                if self.sink.stdout(bytes).is_err() {
                    // The command writes into a pipe of ours that is still read; what the kernel
                    // would have sent it, we send.
                    self.reader_gone = Some(Instant::now());
                    self.send(SIGPIPE)?;
                }
                Ok(())
            }
            // It ignores SIGPIPE, and cannot see the EPIPE that would have ended it.
            Some(since) if since.elapsed() > IMPATIENCE => {
                self.reader_gone = Some(Instant::now());
                self.send(SIGTERM)
            }
            Some(_) => Ok(()),
        }
    }

    fn read_input(&mut self) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(INPUT_PIECE);
        match rustix::io::read(self.stdin, rustix::buffer::spare_capacity(&mut buffer)) {
            Ok(0) => self.end_input(),
            Ok(_) => {
                self.pending = buffer;
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            // A terminal that hung up or belongs to somebody else has nothing more to say.
            Err(_) => self.end_input(),
        }
    }

    /// Hands input on. `WouldBlock` means that nothing of it was taken.
    fn give(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        match self.stream.stdin(&bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.pending = bytes;
                Ok(())
            }
            // The command closed its input, or has ended; the stream will say which.
            Err(_) => {
                self.input = Input::Closed;
                Ok(())
            }
        }
    }

    fn end_input(&mut self) -> io::Result<()> {
        self.input = Input::Closed;
        unless_gone(self.stream.close_stdin())
    }
}

fn until(due: Instant) -> Timespec {
    timespec(due.saturating_duration_since(Instant::now()))
}

fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: span.as_secs() as i64, tv_nsec: i64::from(span.subsec_nanos()) }
}

/// A stream that is going away says so by itself when it is read next.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::NotConnected
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
