//! The two ends of an exec's pipes as a reader and a writer.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skep_provider::{ExecStream, StreamEvent};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;

/// Nobody inside may keep the host waiting for longer than this without a byte.
const PATIENCE: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// As much of what git said on standard error as is shown.
const SAID: usize = 2_000;

/// An exec's standard input and output.
pub(super) struct Pipe(Rc<RefCell<Inner>>);

struct Inner {
    stream: Box<dyn ExecStream>,
    unread: Vec<u8>,
    at: usize,
    taken: u64,
    limit: u64,
    said: Vec<u8>,
    ended: bool,
}

impl Pipe {
    pub(super) fn new(stream: Box<dyn ExecStream>, limit: u64) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            stream,
            unread: Vec::new(),
            at: 0,
            taken: 0,
            limit,
            said: Vec::new(),
            ended: false,
        })))
    }

    pub(super) fn reader(&self) -> Reader {
        Reader(Rc::clone(&self.0))
    }

    pub(super) fn writer(&self) -> Writer {
        Writer(Rc::clone(&self.0))
    }

    /// The last line of its standard error, made visible.
    pub(super) fn said(&self) -> Option<String> {
        let inner = self.0.borrow();
        let line =
            inner.said.split(|byte| *byte == b'\n').rfind(|line| !line.trim_ascii().is_empty())?;
        Some(skep_types::escape::visible(line).to_string())
    }
}

impl Inner {
    /// The next bytes of standard output; none at the end.
    fn more(&mut self) -> io::Result<()> {
        while !self.ended {
            match self.stream.next() {
                Ok(Some(StreamEvent::Stdout(bytes))) if bytes.is_empty() => {}
                Ok(Some(StreamEvent::Stdout(bytes))) => {
                    self.taken += bytes.len() as u64;
                    if self.taken > self.limit {
                        return Err(io::Error::other("the inside sends more than is taken"));
                    }
                    (self.unread, self.at) = (bytes, 0);
                    return Ok(());
                }
                Ok(Some(StreamEvent::Stderr(bytes))) => {
                    let room = SAID.saturating_sub(self.said.len());
                    self.said.extend(bytes.into_iter().take(room));
                }
                Ok(Some(StreamEvent::Ended(_))) => self.ended = true,
                Ok(None) => self.wait()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let mut watched = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN)];
        match poll(&mut watched, Some(&PATIENCE)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Standard output of the exec.
pub(super) struct Reader(Rc<RefCell<Inner>>);

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.0.borrow_mut();
        if inner.at == inner.unread.len() {
            inner.unread.clear();
            inner.at = 0;
            inner.more()?;
        }
        let rest = &inner.unread[inner.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        inner.at += count;
        Ok(count)
    }
}

/// Standard input of the exec.
pub(super) struct Writer(Rc<RefCell<Inner>>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().stream.stdin(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
