//! The pump against a stream made of a script.

use super::*;
use skep_types::TerminalSize;
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};

fn end(exit_code: i32) -> Box<ExecEnd> {
    Box::new(ExecEnd::exited(exit_code))
}

/// Always readable (the other end of its pipe is closed); says what the script says.
struct Scripted {
    readable: OwnedFd,
    events: VecDeque<StreamEvent>,
    signals: Vec<i32>,
    closed: bool,
    taken: Vec<u8>,
    /// How often input is refused before it is taken.
    refusals: usize,
    /// Whether the script goes on only after the end of input.
    waits: bool,
}

impl Scripted {
    fn new(events: Vec<StreamEvent>) -> Self {
        let (readable, _) = rustix::pipe::pipe().unwrap();
        Self {
            readable,
            events: events.into(),
            signals: Vec::new(),
            closed: false,
            taken: Vec::new(),
            refusals: 0,
            waits: false,
        }
    }
}

impl ExecStream for Scripted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
    fn next(&mut self) -> io::Result<Option<StreamEvent>> {
        if self.waits && !self.closed {
            return Ok(None);
        }
        match self.events.pop_front() {
            Some(event) => Ok(Some(event)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    fn stdin(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.taken.extend_from_slice(bytes);
        Ok(())
    }
    fn close_stdin(&mut self) -> io::Result<()> {
        self.closed = true;
        (self.readable, _) = rustix::pipe::pipe()?;
        Ok(())
    }
    fn resize(&mut self, _: TerminalSize) -> io::Result<()> {
        Ok(())
    }
    fn signal(&mut self, signal: i32) -> io::Result<()> {
        self.signals.push(signal);
        Ok(())
    }
}

struct Broken;

impl Sink for Broken {
    fn stdout(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn stderr(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn output_arrives_in_order_until_the_end() {
    let mut events: Vec<_> =
        (0..200).map(|number| StreamEvent::Stdout(format!("{number} ").into())).collect();
    events.push(StreamEvent::Stderr(b"e".to_vec()));
    events.push(StreamEvent::Ended(end(7)));
    let mut stream = Scripted::new(events);
    let mut capture = capture::Capture::new(None);
    let end = pump(&mut stream, Input::Closed, Screen::Pipes, &mut capture).unwrap();
    assert_eq!(end.exit_code, 7);
    assert!(stream.closed);
    let expected: String = (0..200).map(|number| format!("{number} ")).collect();
    assert_eq!(capture.stdout.into_bytes(), expected.as_bytes());
    assert_eq!(capture.stderr.into_bytes(), b"e");
}

#[test]
fn a_gone_reader_reaches_the_command_as_sigpipe_once() {
    let output = || StreamEvent::Stdout(b"y\n".to_vec());
    let mut stream = Scripted::new(vec![
        StreamEvent::Stderr(b"ignored".to_vec()),
        output(),
        output(),
        output(),
        StreamEvent::Ended(end(141)),
    ]);
    let end = pump(&mut stream, Input::Closed, Screen::Pipes, &mut Broken).unwrap();
    assert_eq!(end.exit_code, 141);
    assert_eq!(stream.signals, [SIGPIPE]);
}

#[test]
fn a_lost_exec_is_an_error() {
    let mut stream = Scripted::new(vec![StreamEvent::Stdout(b"half".to_vec())]);
    let mut capture = capture::Capture::new(None);
    let error = pump(&mut stream, Input::Closed, Screen::Pipes, &mut capture).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn input_is_passed_on_whole_and_its_end_too() {
    let (stdin, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"some input").unwrap();
    drop(writer);
    let mut stream = Scripted::new(vec![StreamEvent::Ended(end(0))]);
    // A socket, unlike the closed pipe, says when it has room.
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    stream.readable = ours.into();
    (stream.refusals, stream.waits) = (3, true);
    let mut capture = capture::Capture::new(None);
    let result = pump_from(stdin.as_fd(), &mut stream, Input::Passed, Screen::Pipes, &mut capture);
    assert_eq!(result.unwrap().exit_code, 0);
    assert_eq!(stream.taken, b"some input");
    assert!(stream.closed);
}
