//! What the guest's console, QEMU and the share daemon say: the beginning and the end of it.
//!
//! Whoever is root in a guest writes to its console without end, and the files lie outside of every limit of
//! the sandbox. So nobody inside has them open: they write into a pipe, and the switchboard keeps the first
//! part in one file and the last in another.

use crate::{At, MachineError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes that are kept of the beginning.
const HEAD: u64 = 256 << 10;
/// Bytes of the end that the second file has at most; at least half of it are there once it was full.
const TAIL: usize = 256 << 10;
/// What the second file is called.
const TAIL_NAME: &str = "console-tail.log";

/// Where the end is kept, beside the beginning.
pub fn tail_of(console: &Path) -> PathBuf {
    console.with_file_name(TAIL_NAME)
}

/// The pipe, and the files behind it. Those of an earlier boot are written anew.
#[derive(Debug)]
pub struct Console {
    from: OwnedFd,
    into: OwnedFd,
    head: File,
    tail: File,
}

impl Console {
    /// With the beginning in this file.
    pub fn open(path: &Path) -> Result<Self, MachineError> {
        let step = || format!("keep the console in `{}`", path.display());
        let fresh = |path: &Path| {
            let file = File::options().read(true).append(true).create(true).open(path)?;
            file.set_len(0).map(|()| file)
        };
        let (from, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .at(|| "make a pipe".into())?;
        Ok(Self { from, into, head: fresh(path).at(step)?, tail: fresh(&tail_of(path)).at(step)? })
    }

    /// Everything of it, to be kept open.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [self.from.as_fd(), self.into.as_fd(), self.head.as_fd(), self.tail.as_fd()]
    }

    /// Where to write.
    pub fn entrance(&self) -> BorrowedFd<'_> {
        self.into.as_fd()
    }

    /// The keeper of it, for the process that reads the pipe.
    pub fn keeper(&self) -> io::Result<Keeper> {
        rustix::io::ioctl_fionbio(&self.from, true)?;
        Ok(Keeper {
            from: self.from.try_clone()?,
            head: self.head.try_clone()?,
            tail: self.tail.try_clone()?,
            first: 0,
            length: 0,
            recent: Vec::new(),
        })
    }

    /// What came last, up to some bytes.
    pub fn last(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        for mut file in [&self.head, &self.tail] {
            let end = file.seek(SeekFrom::End(0))?;
            file.seek(SeekFrom::Start(end.saturating_sub(2048)))?;
            file.read_to_end(&mut text)?;
        }
        Ok(text)
    }
}

/// Reads the pipe and keeps what is to be kept.
#[derive(Debug)]
pub struct Keeper {
    from: OwnedFd,
    head: File,
    tail: File,
    /// Bytes in the first file.
    first: u64,
    /// Bytes in the second.
    length: usize,
    /// The last of those, for when it is full.
    recent: Vec<u8>,
}

impl Keeper {
    /// Readable when there is something to keep.
    pub fn pipe(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    /// Keeps what is there now, at most so much that others have their turn. Files that cannot be written
    /// are no reason to stop a machine.
    pub fn pump(&mut self) {
        let mut buffer = [0; 16 << 10];
        if let Ok(length @ 1..) = rustix::io::read(&self.from, &mut buffer) {
            let _ = self.keep(&buffer[..length]);
        }
    }

    /// The same, until nothing is left.
    pub fn drain(&mut self) {
        let mut buffer = [0; 16 << 10];
        // What somebody writes without end would be read without end.
        for _ in 0..64 {
            match rustix::io::read(&self.from, &mut buffer) {
                Ok(length @ 1..) => drop(self.keep(&buffer[..length])),
                _ => return,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = usize::try_from(HEAD - self.first).unwrap_or(usize::MAX).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.write_all(first)?;
        self.first += first.len() as u64;
        self.recent.extend_from_slice(rest);
        let spare = self.recent.len().saturating_sub(TAIL / 2);
        self.recent.drain(..spare);
        if self.length + rest.len() <= TAIL {
            self.length += rest.len();
            return self.tail.write_all(rest);
        }
        self.tail.set_len(0)?;
        self.length = self.recent.len();
        self.tail.write_all(&self.recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept_and_nothing_grows() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("console.log");
        std::fs::write(&path, "of an earlier boot").unwrap();
        let console = Console::open(&path).unwrap();
        let mut keeper = console.keeper().unwrap();
        let mut written = 0_u64;
        let mut most = 0;
        for number in 0.. {
            let line = format!("line {number:08}\n").repeat(100);
            rustix::io::write(console.entrance(), line.as_bytes()).unwrap();
            written += line.len() as u64;
            keeper.pump();
            most = most.max(tail_of(&path).metadata().unwrap().len());
            if written > 2 << 20 {
                rustix::io::write(console.entrance(), b"the last word").unwrap();
                break;
            }
        }
        keeper.drain();
        let head = std::fs::read(&path).unwrap();
        assert_eq!(head.len() as u64, HEAD);
        assert!(head.starts_with(b"line 00000000\n"));
        let tail = std::fs::read(tail_of(&path)).unwrap();
        assert!(tail.ends_with(b"the last word") && tail.len() >= TAIL / 2, "{}", tail.len());
        assert!(most <= TAIL as u64, "{most}");
        assert!(console.last().unwrap().ends_with(b"the last word"));
    }
}
