//! One end of a connection that is carried over the line: the guest has one, the host the other.
//!
//! Both do the same: what the socket says becomes frames, what frames say goes into the socket, and
//! an end is passed on as what it was: a last byte, or a break.

use crate::wire::{self, Kind, PIECE, WINDOW};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use std::io;

/// Connections at the same time, and lines of a guest's own making: their numbers have this bit.
pub const MOST: usize = 512;
/// Set in the number of every line that the guest opens; the host's lines never have it.
pub const BY_GUEST: u32 = 1 << 31;

/// A socket whose other end is on the other side of the line.
#[derive(Debug)]
pub struct Carried {
    socket: OwnedFd,
    /// For the socket.
    pending: Vec<u8>,
    /// Bytes sent that the other side has not passed on yet.
    ahead: usize,
    /// Nothing more will come for the socket.
    heard_all: bool,
    /// The socket has said its last byte.
    said_all: bool,
    broken: bool,
    /// The other side knows that it is broken.
    told: bool,
}

impl Carried {
    /// Takes over a socket, connected or about to be.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        Ok(Self {
            socket,
            pending: Vec::new(),
            ahead: 0,
            heard_all: false,
            said_all: false,
            broken: false,
            told: false,
        })
    }

    /// What to wait for, if for anything. `calm`: there is room on the line.
    pub fn interest(&self, calm: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, calm && self.may_say());
        flags.set(PollFlags::OUT, !self.pending.is_empty());
        (!flags.is_empty()).then(|| (self.socket.as_fd(), flags))
    }

    fn may_say(&self) -> bool {
        !self.said_all && !self.broken && self.ahead < WINDOW
    }

    /// Takes what a frame says. An error is one of the protocol.
    pub fn obey(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        match kind {
            Kind::Bytes if !self.heard_all => self.pending.extend_from_slice(payload),
            Kind::BytesEnd => self.heard_all = true,
            Kind::Credit => {
                let passed: usize = serde_json::from_slice(payload)?;
                self.ahead = self.ahead.saturating_sub(passed);
            }
            Kind::Reset => {
                self.break_off();
                self.told = true;
            }
            _ => return Err(io::Error::other("a frame does not belong to a connection")),
        }
        if self.pending.len() > 4 * WINDOW {
            return Err(io::Error::other("a connection does not keep to the window"));
        }
        Ok(())
    }

    /// Moves what can be moved, as frames of line `number`. `calm`: there is room on the line.
    pub fn pump(&mut self, number: u32, calm: bool, out: &mut Vec<u8>) {
        let passed = self.write();
        if passed > 0 {
            wire::push_json(out, number, Kind::Credit, &passed);
        }
        if calm {
            self.read(number, out);
        }
        if self.broken && !std::mem::replace(&mut self.told, true) {
            wire::push(out, number, Kind::Reset, b"");
        }
    }

    /// Whether both sides have nothing more to say.
    pub fn is_over(&self) -> bool {
        self.broken || (self.said_all && self.heard_all && self.pending.is_empty())
    }

    /// What is at the other end of the socket sees a reset, not an end.
    pub fn break_off(&mut self) {
        let _ = sockopt::set_socket_linger(&self.socket, Some(std::time::Duration::ZERO));
        self.broken = true;
    }

    fn write(&mut self) -> usize {
        let mut passed = 0;
        while passed < self.pending.len() && !self.broken {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.pending[passed..], flags) {
                Ok(length) => passed += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.break_off(),
            }
        }
        self.pending.drain(..passed);
        if self.heard_all && self.pending.is_empty() && !self.broken {
            // Twice is no harm; one that is not connected yet is told by its read.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
        passed
    }

    fn read(&mut self, number: u32, out: &mut Vec<u8>) {
        let mut buffer = vec![0; PIECE];
        while self.may_say() {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => {
                    self.said_all = true;
                    wire::push(out, number, Kind::BytesEnd, b"");
                }
                Ok(length) => {
                    self.ahead += length;
                    wire::push(out, number, Kind::Bytes, &buffer[..length]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.break_off(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Inbox;
    use proptest::prelude::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    fn pair() -> (TcpStream, Carried) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (client, Carried::new(listener.accept().unwrap().0.into()).unwrap())
    }

    /// Frames of one end are taken by the other, both ways, until nothing moves.
    fn exchange(ends: &mut [Carried; 2]) {
        loop {
            let mut moved = false;
            for (from, to) in [(0, 1), (1, 0)] {
                let mut out = Vec::new();
                ends[from].pump(7, true, &mut out);
                moved |= !out.is_empty();
                let mut inbox = Inbox::default();
                inbox.push(&out);
                while let Some(frame) = inbox.take().unwrap() {
                    ends[to].obey(frame.kind, frame.payload).unwrap();
                }
            }
            if !moved {
                return;
            }
        }
    }

    #[test]
    fn bytes_and_ends_cross_and_a_half_closed_connection_still_answers() {
        let ((mut client, one), (mut server, other)) = (pair(), pair());
        let mut ends = [one, other];
        client.write_all(b"question").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        exchange(&mut ends);
        let mut heard = String::new();
        server.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "question");
        assert!(!ends[0].is_over() && !ends[1].is_over());
        server.write_all(b"answer").unwrap();
        drop(server);
        exchange(&mut ends);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
        assert!(ends[0].is_over() && ends[1].is_over());
    }

    #[test]
    fn a_break_is_passed_on_as_a_break() {
        let ((mut client, one), (server, mut other)) = (pair(), pair());
        let _ = server;
        other.break_off();
        let mut ends = [one, other];
        exchange(&mut ends);
        assert!(ends[0].is_over());
        drop(ends);
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn nobody_is_more_than_a_window_ahead() {
        let (mut client, mut carried) = pair();
        let flood = std::thread::spawn(move || {
            client.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            while client.write(&[7; 1 << 16]).is_ok() {}
        });
        let mut out = Vec::new();
        flood.join().unwrap();
        carried.pump(1, true, &mut out);
        assert!(out.len() <= WINDOW + PIECE + 4096, "{}", out.len());
        assert!(carried.interest(true).is_none());
    }

    proptest! {
        #[test]
        fn whatever_a_guest_says_is_taken_or_refused(
            frames in proptest::collection::vec((proptest::sample::select(Kind::ALL), proptest::collection::vec(any::<u8>(), 0..40)), 0..20),
        ) {
            let (_client, mut carried) = pair();
            let mut out = Vec::new();
            for (kind, payload) in frames {
                let _ = carried.obey(kind, &payload);
                carried.pump(1, true, &mut out);
            }
        }
    }
}
