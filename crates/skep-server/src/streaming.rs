//! The live end of an exec on the server's side: frames in, frames out.

use crate::relay::{self, Kind};
use rustix::fd::OwnedFd;
use skep_types::{Code, Problem};
use std::io;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// Takes over what a worker passed.
pub(crate) fn adopt(descriptor: OwnedFd) -> Result<UnixStream, Problem> {
    let stream = std::os::unix::net::UnixStream::from(descriptor);
    stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream)).map_err(lost)
}

fn lost(error: io::Error) -> Problem {
    Problem::new(Code::Internal, format!("the live end of an exec was lost: {error}"))
}

/// Both directions.
pub(crate) fn split(stream: UnixStream) -> (Output, Input) {
    let (read, write) = stream.into_split();
    (Output { read, buffer: Vec::new() }, Input { write })
}

/// From the exec.
pub(crate) struct Output {
    read: OwnedReadHalf,
    buffer: Vec<u8>,
}

impl Output {
    /// The next frame; `None` when the exec was lost.
    pub(crate) async fn next(&mut self) -> Result<Option<(Kind, Vec<u8>)>, Problem> {
        loop {
            if let Some(frame) = relay::take(&mut self.buffer).map_err(lost)? {
                return Ok(Some(frame));
            }
            match self.read.read_buf(&mut self.buffer).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(lost(error)),
            }
        }
    }
}

/// To the exec.
pub(crate) struct Input {
    write: OwnedWriteHalf,
}

impl Input {
    /// One frame. An exec that has ended says so by itself.
    pub(crate) async fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Problem> {
        match self.write.write_all(&relay::frame(kind, payload)).await {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(lost(error)),
            _ => Ok(()),
        }
    }
}
