//! One client of the keeper.

use crate::protocol::{BadFrame, FrameKind, parse_frame, push_frame};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use skep_sys::message::{receive_with, send_with};
use skep_types::ExecId;
use std::io;

/// Output waiting for a client beyond this makes its exec wait: the pressure of a pipe.
const CROWDED: usize = 256 << 10;
/// What is taken from a client in one go.
const MOST: u64 = 64 << 10;

/// A connection, with what has arrived and what has not been taken yet.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    inbox: Vec<u8>,
    /// Descriptors that came with the bytes.
    pub descriptors: Vec<OwnedFd>,
    outbox: Vec<u8>,
    sent: usize,
    /// The exec whose terminal this is.
    pub attached: Option<ExecId>,
    /// Close it as soon as everything is sent.
    pub closing: bool,
    /// Whoever started the keeper has the other end.
    pub of_the_caller: bool,
}

impl Connection {
    /// A new client.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            inbox: Vec::new(),
            descriptors: Vec::new(),
            outbox: Vec::new(),
            sent: 0,
            attached: None,
            closing: false,
            of_the_caller: false,
        }
    }

    /// The one that was made before the keeper was.
    pub fn of_the_caller(socket: OwnedFd) -> Self {
        Self { of_the_caller: true, ..Self::new(socket) }
    }

    /// The socket.
    pub fn socket(&self) -> impl AsFd + '_ {
        &self.socket
    }

    /// Whether something waits to be sent.
    pub fn has_output(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// Whether the client is slow enough that its exec should wait.
    pub fn is_crowded(&self) -> bool {
        self.outbox.len() - self.sent > CROWDED
    }

    /// Queues a frame.
    pub fn push(&mut self, kind: FrameKind, payload: &[u8]) {
        push_frame(&mut self.outbox, kind, payload);
    }

    /// Sends as much as the socket takes now. An error means that the client is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.has_output() {
            match send_with(&self.socket, &self.outbox[self.sent..], &[]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }

    /// Takes what has arrived. `Ok(false)` means that the client has closed its side.
    pub fn fill(&mut self) -> io::Result<bool> {
        // As much as is there. What has closed its side, or has nothing to say, is found out by asking for something.
        let waiting = rustix::io::ioctl_fionread(&self.socket).unwrap_or(MOST);
        let mut buffer = vec![0; waiting.clamp(1, MOST) as usize];
        match receive_with(&self.socket, &mut buffer) {
            Ok((0, _)) => Ok(false),
            Ok((length, descriptors)) => {
                self.inbox.extend_from_slice(&buffer[..length]);
                self.descriptors.extend(descriptors);
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The next whole frame.
    pub fn next_frame(&mut self) -> Result<Option<(FrameKind, Vec<u8>)>, BadFrame> {
        let Some((kind, payload, used)) = parse_frame(&self.inbox)? else { return Ok(None) };
        let frame = (kind, payload.to_vec());
        self.inbox.drain(..used);
        Ok(Some(frame))
    }
}
