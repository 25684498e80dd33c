//! Copying bytes and hashing them in the same pass: what is compared with the review is what was
//! written, not what was read a moment before.

use crate::tree::hash_reader;
use rustix::fs::{SeekFrom, Stat, ioctl_ficlone, seek};
use rustix::io::Errno;
use skep_types::ContentHash;
use std::fs::File;
use std::io::{self, Read, Seek, Write};

const BUFFER: usize = 256 << 10;
/// Below this a clone costs more than a copy.
const CLONE_FROM: u64 = 64 << 10;
const ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Copies files; remembers whether the filesystem can share their blocks.
#[derive(Debug)]
pub(super) struct Copier {
    clones: bool,
    buffer: Vec<u8>,
}

impl Copier {
    pub fn new() -> Self {
        Self { clones: true, buffer: vec![0; BUFFER] }
    }

    /// Copies `source` into the empty file `target`, and says what it wrote. It stops after
    /// `limit` bytes and one more, so that a file which grows meanwhile ends as a mismatch.
    pub fn copy(
        &mut self,
        source: &mut File,
        stat: &Stat,
        target: &mut File,
        limit: u64,
    ) -> io::Result<(ContentHash, u64)> {
        let size = stat.st_size as u64;
        if size >= CLONE_FROM && self.clones {
            match ioctl_ficlone(&*target, &*source) {
                Ok(()) => {
                    target.rewind()?;
                    return hash_reader(&*target, BUFFER as u64);
                }
                // Whatever the reason (no reflinks, another filesystem), copying settles it.
                Err(_) => self.clones = false,
            }
        }
        let mut sink = Sink { target, hasher: blake3::Hasher::new(), written: 0 };
        if (stat.st_blocks as u64).saturating_mul(512) < size {
            self.copy_sparse(source, size, limit, &mut sink)?;
        } else {
            self.copy_range(source, limit.saturating_add(1), &mut sink)?;
        }
        Ok((ContentHash::from_bytes(*sink.hasher.finalize().as_bytes()), sink.written))
    }

    /// Copies what has data, and leaves the holes as holes.
    fn copy_sparse(
        &mut self,
        source: &mut File,
        size: u64,
        limit: u64,
        sink: &mut Sink<'_>,
    ) -> io::Result<()> {
        let end = size.min(limit.saturating_add(1));
        while sink.written < end {
            let data = match seek(&*source, SeekFrom::Data(sink.written)) {
                Ok(offset) => offset.min(end),
                Err(Errno::NXIO) => end,
                Err(errno) => return Err(errno.into()),
            };
            sink.skip(data - sink.written)?;
            if data == end {
                break;
            }
            let hole = seek(&*source, SeekFrom::Hole(data))?.min(end);
            seek(&*source, SeekFrom::Start(data))?;
            self.copy_range(source, hole - data, sink)?;
            if sink.written < hole {
                // The file was cut short while we read: the hash will not match.
                break;
            }
        }
        sink.target.set_len(sink.written)
    }

    fn copy_range(
        &mut self,
        source: &mut File,
        length: u64,
        sink: &mut Sink<'_>,
    ) -> io::Result<()> {
        let mut left = length;
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            match source.read(&mut self.buffer[..want]) {
                Ok(0) => break,
                Ok(count) => {
                    sink.write(&self.buffer[..count])?;
                    left -= count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

struct Sink<'a> {
    target: &'a mut File,
    hasher: blake3::Hasher,
    written: u64,
}

impl Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.target.write_all(bytes)?;
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn skip(&mut self, length: u64) -> io::Result<()> {
        let mut left = length;
        while left > 0 {
            let count = left.min(ZEROS.len() as u64);
            self.hasher.update(&ZEROS[..count as usize]);
            left -= count;
        }
        self.written += length;
        self.target.seek(io::SeekFrom::Start(self.written))?;
        Ok(())
    }
}
