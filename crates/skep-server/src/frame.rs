//! Length-prefixed frames over a unix socket, with a descriptor where one goes along.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use skep_sys::message::{receive_with, send_with};
use std::io;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// No answer is larger; a change set of this size could not be shown anyway.
const LIMIT: usize = 1 << 30;

/// A frame to be sent: its length, and what is in it.
fn framed(payload: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let mut frame = Vec::with_capacity(payload.len() + 4);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(payload);
    Ok(frame)
}

/// Sends one frame.
pub(crate) fn send(
    socket: impl AsFd,
    payload: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let frame = framed(payload)?;
    let mut sent = send_with(&socket, &frame, descriptor.as_slice())?;
    while sent < frame.len() {
        sent += send_with(&socket, &frame[sent..], &[])?;
    }
    Ok(())
}

/// The same where nobody may be kept waiting.
pub(crate) async fn ask(
    socket: &UnixStream,
    payload: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let frame = framed(payload)?;
    let mut sent = 0;
    while sent < frame.len() {
        // It goes with the first byte.
        let along = if sent == 0 { descriptor } else { None };
        let send = || send_with(socket, &frame[sent..], along.as_slice());
        sent += socket.async_io(Interest::WRITABLE, send).await?;
    }
    Ok(())
}

/// Waits for one frame; `None` when the other side has gone.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut arriving = Arriving::default();
    loop {
        match arriving.take(&socket) {
            Ok(true) => return Ok(Some(arriving.whole())),
            Ok(false) => {}
            Err(error) if arriving.is_new() && error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
}

/// The same where nobody may be kept waiting; that the other side has gone is an error.
pub(crate) async fn answer(socket: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut arriving = Arriving::default();
    while !socket.async_io(Interest::READABLE, || arriving.take(socket)).await? {}
    Ok(arriving.whole())
}

/// A frame as far as it has come.
#[derive(Default)]
struct Arriving {
    head: [u8; 4],
    payload: Vec<u8>,
    /// Bytes of both that are there.
    come: usize,
    descriptor: Option<OwnedFd>,
}

impl Arriving {
    fn is_new(&self) -> bool {
        self.come == 0
    }

    /// Takes in what one call gives; true when the frame is whole.
    fn take(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let room = match self.come.checked_sub(self.head.len()) {
            None => &mut self.head[self.come..],
            Some(come) => &mut self.payload[come..],
        };
        let (length, descriptors) = receive_with(&socket, room)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.descriptor = descriptors.into_iter().next().or(self.descriptor.take());
        self.come += length;
        let expected = u32::from_le_bytes(self.head) as usize;
        if self.come == self.head.len() {
            if expected > LIMIT {
                let message = format!("a frame of {expected} bytes is too large");
                return Err(io::Error::other(message));
            }
            self.payload = vec![0; expected];
        }
        Ok(self.come == self.head.len() + expected)
    }

    fn whole(self) -> (Vec<u8>, Option<OwnedFd>) {
        (self.payload, self.descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn frames_arrive_whole_and_with_their_descriptor() {
        let (one, other) = UnixStream::pair().unwrap();
        let (passed, _kept) = UnixStream::pair().unwrap();
        let big = vec![7; 1 << 20];
        let sender = std::thread::spawn(move || {
            send(&one, b"{}", Some(passed.as_fd())).unwrap();
            send(&one, &vec![7; 1 << 20], None).unwrap();
        });
        let (payload, descriptor) = receive(&other).unwrap().unwrap();
        assert_eq!((payload.as_slice(), descriptor.is_some()), (&b"{}"[..], true));
        let (payload, descriptor) = receive(&other).unwrap().unwrap();
        assert!(payload == big && descriptor.is_none());
        sender.join().unwrap();
        assert!(receive(&other).unwrap().is_none());
    }
}
