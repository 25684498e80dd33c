//! A tunnel between two sockets whose bytes nobody has to look at any more.
//!
//! A conversation is copied through a small buffer. A direction in which much moves gets a pipe, through
//! which the kernel passes pages from one socket to the other (splice(2)) and nothing is copied
//! here. Pipes are few, because each holds two descriptors; who gets none is copied on.

use crate::client::Client;
use crate::tunnel::{Counts, Idle};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Room for the bytes of a conversation.
const ROOM: usize = 16 << 10;
/// After so many bytes it is no conversation.
const MUCH: u64 = 256 << 10;
/// What a pipe may hold; less where the host gives its users less.
const PIPE: usize = 512 << 10;

/// Copies both ways. Each end of input is passed on; comes back when both directions ended, one
/// failed, or nothing moved for `idle`. The inside hears nothing before `known` comes back.
pub(crate) async fn run(
    (client, outside): (Client, TcpStream),
    known: impl Future<Output = ()>,
    pipes: &Semaphore,
    counts: &Counts,
    idle: Duration,
) {
    let (inside, seen) = client.into_parts();
    let clock = Idle::new(idle);
    let out = async {
        write_all(&outside, &seen).await?;
        counts.to_outside.fetch_add(seen.len() as u64, Ordering::Relaxed);
        pour((&inside, &outside), pipes, &counts.to_outside, &clock).await
    };
    let back = async {
        known.await;
        pour((&outside, &inside), pipes, &counts.from_outside, &clock).await
    };
    tokio::select! {
        _ = async { tokio::try_join!(out, back) } => {}
        () = clock.over() => {}
    }
}

/// One direction, to its end.
async fn pour(
    ends: (&TcpStream, &TcpStream),
    pipes: &Semaphore,
    count: &AtomicU64,
    clock: &Idle,
) -> io::Result<()> {
    let ended = copy(ends, count, clock, pipes).await?;
    if let Some(pipe) = ended {
        pipe.carry(ends, count, clock).await?;
    }
    Ok(rustix::net::shutdown(ends.1, rustix::net::Shutdown::Write)?)
}

/// Copies to the end, or until a pipe takes over.
async fn copy<'a>(
    (from, to): (&TcpStream, &TcpStream),
    count: &AtomicU64,
    clock: &Idle,
    pipes: &'a Semaphore,
) -> io::Result<Option<Pipe<'a>>> {
    let mut room = vec![0; ROOM];
    let mut copied = 0;
    loop {
        from.readable().await?;
        let got = match from.try_read(&mut room) {
            Ok(0) => return Ok(None),
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        write_all(to, &room[..got]).await?;
        count.fetch_add(got as u64, Ordering::Relaxed);
        clock.touch();
        copied += got as u64;
        if copied >= MUCH {
            copied = 0;
            if let Some(pipe) = Pipe::new(pipes) {
                return Ok(Some(pipe));
            }
        }
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Between two sockets; empty whenever more is taken in.
struct Pipe<'a> {
    read: OwnedFd,
    write: OwnedFd,
    _room: SemaphorePermit<'a>,
}

impl<'a> Pipe<'a> {
    fn new(pipes: &'a Semaphore) -> Option<Self> {
        let room = pipes.try_acquire().ok()?;
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A small one does too, with more calls.
        let _ = fcntl_setpipe_size(&write, PIPE);
        Some(Self { read, write, _room: room })
    }

    async fn carry(
        &self,
        (from, to): (&TcpStream, &TcpStream),
        count: &AtomicU64,
        clock: &Idle,
    ) -> io::Result<()> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        loop {
            from.readable().await?;
            let taken = from.try_io(Interest::READABLE, || {
                Ok(splice(from, None, &self.write, None, PIPE, flags)?)
            });
            let mut left = match taken {
                Ok(0) => return Ok(()),
                Ok(taken) => taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            count.fetch_add(left as u64, Ordering::Relaxed);
            while left > 0 {
                to.writable().await?;
                let given = to.try_io(Interest::WRITABLE, || {
                    Ok(splice(&self.read, None, to, None, left, flags)?)
                });
                match given {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(given) => left -= given,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            clock.touch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// Two ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap());
        let (one, other) = tokio::join!(connected, listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    /// Sends both ways at once, more than any buffer holds; what arrived, and what was counted.
    async fn both_ways(pipes: usize) -> ((u64, u64), bool) {
        let (inside, here) = pair().await;
        let (there, outside) = pair().await;
        let pipes = Semaphore::new(pipes);
        let counts = Counts::default();
        let text = |seed: u8| -> Vec<u8> {
            (0..3_000_001u32).map(|at| (at as u8).wrapping_mul(7).wrapping_add(seed)).collect()
        };
        let talk = |stream: TcpStream, said: Vec<u8>| async move {
            let (mut read, mut write) = stream.into_split();
            let mut heard = Vec::new();
            let say = async {
                write.write_all(&said).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let (_, listened) = tokio::join!(say, read.read_to_end(&mut heard));
            listened.unwrap();
            heard
        };
        let ends = (Client::new(here), there);
        let tunnel = run(ends, async {}, &pipes, &counts, Duration::from_secs(20));
        let (from_outside, from_inside, ()) =
            tokio::join!(talk(inside, text(1)), talk(outside, text(2)), tunnel);
        (counts.both(), from_outside == text(2) && from_inside == text(1))
    }

    #[tokio::test]
    async fn much_passes_unchanged_with_pipes_and_without() {
        for pipes in [2, 1, 0] {
            assert_eq!(both_ways(pipes).await, ((3_000_001, 3_000_001), true), "{pipes} pipes");
        }
    }
}
