//! The packet channel between the keeper and init.

use crate::protocol::written;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skep_sys::message::{receive_with, send_with};
use std::fs::File;
use std::io::{self, Read, Seek, Write};

/// One end of the channel.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Two connected ends.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends one message.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = written(message)?;
        send_with(&self.0, &bytes, descriptors).map(drop)
    }

    /// Waits for one message; the other end being gone is `UnexpectedEof`.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        let length = match next_length(&self.0) {
            // Said once when the other end went without having read everything; what it had sent
            // before is still there, its reason among it.
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => next_length(&self.0),
            other => other,
        };
        let mut buffer = vec![0; length?];
        let (length, descriptors) = receive_with(&self.0, &mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((serde_json::from_slice(&buffer[..length])?, descriptors))
    }
}

/// Waits for a packet and tells how long it is: room for the longest would be sixteen pages to be touched, in every
/// process anew, for some hundred bytes.
fn next_length(socket: &OwnedFd) -> io::Result<usize> {
    use rustix::net::{RecvFlags, recv};
    loop {
        match recv(socket, &mut [0], RecvFlags::PEEK | RecvFlags::TRUNC) {
            Ok((_, length)) => return Ok(length),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Puts a message too large for a packet into an anonymous file.
pub fn to_file<T: Serialize>(message: &T) -> io::Result<File> {
    let fd = rustix::fs::memfd_create("skep", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(&written(message)?)?;
    file.rewind()?;
    Ok(file)
}

/// Takes a message out of an anonymous file.
pub fn from_file<T: DeserializeOwned>(descriptor: OwnedFd) -> io::Result<T> {
    let mut bytes = Vec::new();
    File::from(descriptor).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}
