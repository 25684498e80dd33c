//! The live end of an attached exec, carried from a worker to the server.
//!
//! A worker has other questions to answer, so it forks: the child pumps between the provider's
//! stream and a socket whose other end the server gets. It ends with either side; the exec goes on
//! when the server goes away.
//!
//! The frames look like the keeper's (`skep_keeper::protocol`), and are another protocol on purpose:
//! the server knows providers only through their trait, a stream of a provider need not come from a
//! keeper, and worker and server are one program that starts together, so these frames carry no
//! version and may change at any time, which the keeper's may not. Shared would be the five bytes of
//! a frame's head.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use skep_provider::{ExecStream, StreamEvent};
use skep_sys::process::{Namespaces, clone_with};
use std::io;

/// What a frame of a relay is. A frame is this byte, a length (32 bits, little endian), the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Bytes for standard input.
    Stdin = 0,
    /// Bytes of standard output, or of the terminal.
    Stdout = 1,
    /// Bytes of standard error.
    Stderr = 2,
    /// The end, as JSON; nothing follows.
    End = 3,
    /// No more standard input.
    StdinEnd = 4,
    /// Another size of the terminal, as JSON.
    Resize = 5,
    /// A signal, as JSON.
    Signal = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        let all = [
            Self::Stdin,
            Self::Stdout,
            Self::Stderr,
            Self::End,
            Self::StdinEnd,
            Self::Resize,
            Self::Signal,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Input handed on in one go: what a writable socket takes without blocking (see the command
/// line's own pump).
const PIECE: usize = 32 << 10;
/// Output that may wait for the server before no more is taken from the exec.
const ROOM: usize = 256 << 10;

/// One frame.
pub(crate) fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(payload.len() + 5);
    frame.push(kind as u8);
    frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Takes one frame from the start of a buffer, if it is whole.
pub(crate) fn take(buffer: &mut Vec<u8>) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let Some((head, rest)) = buffer.split_first_chunk::<5>() else { return Ok(None) };
    let kind = Kind::from_byte(head[0]).ok_or_else(|| io::Error::other("not a frame"))?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    let payload = payload.to_vec();
    buffer.drain(..5 + length);
    Ok(Some((kind, payload)))
}

/// Forks the pump and returns the server's end. `said` is what was taken from the stream before, as frames.
pub(crate) fn start(stream: Box<dyn ExecStream>, said: Vec<u8>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    clone_with(Namespaces::NONE, move || {
        let kept = skep_sys::process::close_all_but(&[stream.as_fd(), theirs.as_fd()]);
        let (inbox, outbox) = (Vec::new(), said);
        let mut pump = Pump { stream, more: true, server: theirs, inbox, outbox };
        match kept.and_then(|()| pump.run()) {
            Ok(()) => 0,
            Err(_) => 1,
        }
    })?;
    Ok(ours)
}

struct Pump {
    stream: Box<dyn ExecStream>,
    /// Whether the stream may have more without its descriptor being readable.
    more: bool,
    server: OwnedFd,
    /// From the server, not yet handed on.
    inbox: Vec<u8>,
    /// For the server, not yet sent.
    outbox: Vec<u8>,
}

impl Pump {
    fn run(&mut self) -> io::Result<()> {
        let mut ended = false;
        while !ended || !self.outbox.is_empty() {
            let (output, input, room, space) = self.wait(ended)?;
            if space {
                self.flush()?;
            }
            if output && !ended {
                ended = self.output()?;
            }
            if room {
                self.hand_on()?;
            }
            if input && !self.read()? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn wait(&self, ended: bool) -> io::Result<(bool, bool, bool, bool)> {
        let mut stream = PollFlags::empty();
        if !ended && self.outbox.len() < ROOM {
            stream |= PollFlags::IN;
        }
        if !ended && !self.inbox.is_empty() {
            stream |= PollFlags::OUT;
        }
        let mut server = PollFlags::empty();
        if self.inbox.len() < PIECE {
            server |= PollFlags::IN;
        }
        if !self.outbox.is_empty() {
            server |= PollFlags::OUT;
        }
        let mut watched = [
            PollFd::from_borrowed_fd(self.stream.as_fd(), stream),
            PollFd::new(&self.server, server),
        ];
        let more = self.more && !ended && self.outbox.len() < ROOM;
        let timeout = more.then(rustix::event::Timespec::default);
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [stream, server] = watched.map(|one| one.revents());
        let gone = PollFlags::HUP | PollFlags::ERR;
        Ok((
            more || stream.intersects(PollFlags::IN | gone),
            server.intersects(PollFlags::IN | gone),
            stream.contains(PollFlags::OUT),
            server.contains(PollFlags::OUT),
        ))
    }

    /// Takes what the exec said; true when that was its end.
    fn output(&mut self) -> io::Result<bool> {
        self.more = true;
        while self.outbox.len() < ROOM {
            let (kind, payload) = match self.stream.next()? {
                None => {
                    self.more = false;
                    return Ok(false);
                }
                Some(StreamEvent::Stdout(bytes)) => (Kind::Stdout, bytes),
                Some(StreamEvent::Stderr(bytes)) => (Kind::Stderr, bytes),
                Some(StreamEvent::Ended(end)) => (Kind::End, serde_json::to_vec(&end)?),
            };
            self.outbox.extend_from_slice(&frame(kind, &payload));
            if kind == Kind::End {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&self.server, &self.outbox, flags) {
            Ok(sent) => drop(self.outbox.drain(..sent)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Takes what the server said; false when it has gone.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; PIECE];
        match rustix::net::recv(&self.server, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(false),
            Ok((length, _)) => {
                self.inbox.extend_from_slice(&buffer[..length]);
                Ok(true)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// One frame of the server's for the exec. An exec that is going away says so by itself.
    fn hand_on(&mut self) -> io::Result<()> {
        let Some((kind, payload)) = take(&mut self.inbox)? else { return Ok(()) };
        let _ = match kind {
            Kind::Stdin => self.stream.stdin(&payload),
            Kind::StdinEnd => self.stream.close_stdin(),
            Kind::Resize => self.stream.resize(serde_json::from_slice(&payload)?),
            Kind::Signal => self.stream.signal(serde_json::from_slice(&payload)?),
            Kind::Stdout | Kind::Stderr | Kind::End => Ok(()),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_one_by_one() {
        let mut buffer = frame(Kind::Stdout, b"one");
        buffer.extend_from_slice(&frame(Kind::End, b""));
        buffer.truncate(buffer.len() - 1);
        assert_eq!(take(&mut buffer).unwrap(), Some((Kind::Stdout, b"one".to_vec())));
        assert_eq!(take(&mut buffer).unwrap(), None);
        buffer.push(0);
        assert_eq!(take(&mut buffer).unwrap(), Some((Kind::End, Vec::new())));
        assert!(take(&mut vec![99, 0, 0, 0, 0]).is_err());
    }

    /// A stream that has read its events before anybody asks: nothing makes its descriptor readable.
    struct Ahead {
        silent: OwnedFd,
        events: Vec<StreamEvent>,
    }

    impl ExecStream for Ahead {
        fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
            self.silent.as_fd()
        }
        fn next(&mut self) -> io::Result<Option<StreamEvent>> {
            Ok(self.events.pop())
        }
        fn stdin(&mut self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn close_stdin(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn resize(&mut self, _: skep_types::TerminalSize) -> io::Result<()> {
            Ok(())
        }
        fn signal(&mut self, _: i32) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_read_ahead_is_not_held_back() {
        let (silent, _writer) = rustix::pipe::pipe().unwrap();
        let events = vec![StreamEvent::Stdout(b"second".into()), StreamEvent::Stderr(b"x".into())];
        let kind = SocketType::STREAM;
        let (server, theirs) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        std::thread::spawn(move || {
            let stream = Box::new(Ahead { silent, events });
            let (inbox, outbox) = (Vec::new(), Vec::new());
            let _ = Pump { stream, more: true, server: theirs, inbox, outbox }.run();
        });
        let mut buffer = Vec::new();
        let mut got = Vec::new();
        while got.len() < 2 {
            let mut watched = [PollFd::new(&server, PollFlags::IN)];
            let patience = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
            assert_ne!(poll(&mut watched, Some(&patience)).unwrap(), 0, "{got:?}");
            let mut bytes = [0; 64];
            let (length, _) =
                rustix::net::recv(&server, &mut bytes[..], RecvFlags::empty()).unwrap();
            buffer.extend_from_slice(&bytes[..length]);
            while let Some(frame) = take(&mut buffer).unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got, [(Kind::Stderr, b"x".to_vec()), (Kind::Stdout, b"second".to_vec())]);
    }
}
