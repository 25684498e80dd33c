//! Length-prefixed frames over a unix socket, with a descriptor where one goes along.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use skep_sys::message::{receive_with, send_with};
use std::io;

/// No answer is larger; a change set of this size could not be shown anyway.
const LIMIT: usize = 1 << 30;

/// Sends one frame.
pub(crate) fn send(
    socket: impl AsFd,
    payload: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let mut frame = Vec::with_capacity(payload.len() + 4);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(payload);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    let mut sent = send_with(&socket, &frame, &descriptors)?;
    while sent < frame.len() {
        sent += send_with(&socket, &frame[sent..], &[])?;
    }
    Ok(())
}

/// Waits for one frame; `None` when the other side has gone.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut head = [0; 4];
    let mut descriptor = None;
    match fill(&socket, &mut head, &mut descriptor) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(head) as usize;
    if length > LIMIT {
        return Err(io::Error::other(format!("a frame of {length} bytes is too large")));
    }
    let mut payload = vec![0; length];
    fill(&socket, &mut payload, &mut descriptor)?;
    Ok(Some((payload, descriptor)))
}

fn fill(
    socket: impl AsFd,
    mut buffer: &mut [u8],
    descriptor: &mut Option<OwnedFd>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        let (length, descriptors) = receive_with(&socket, buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(received) = descriptors.into_iter().next() {
            *descriptor = Some(received);
        }
        buffer = &mut buffer[length..];
    }
    Ok(())
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
