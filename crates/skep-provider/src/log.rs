//! The kept output of an exec.
//!
//! Everything printed has an offset: how many bytes the exec had printed before, on both streams
//! together. The first half of the limit is kept as the head; after that, two tail files take
//! turns, so that at least the last quarter of the limit is always there and the disk use is
//! bounded. What lies between was dropped, and the gap in the offsets says how much.
//!
//! A file is a sequence of records: stream byte, offset, length, bytes. A torn record at the end
//! (a killed keeper) is ignored.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Which stream a record came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    fn byte(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }
}

const HEADER: usize = 13;

fn part(directory: &Path, exec: &str, name: &str) -> PathBuf {
    directory.join(format!("{exec}.{name}"))
}

/// Writes the log of one running exec.
#[derive(Debug)]
pub struct LogWriter {
    directory: PathBuf,
    exec: String,
    /// Made with the first byte: most short commands say nothing.
    head: Option<Part>,
    head_left: u64,
    tail_size: u64,
    tail: Option<Tail>,
    tails_begun: u64,
    offset: u64,
    written: [u64; 2],
    /// Whether something could not be written.
    lost: bool,
}

#[derive(Debug)]
struct Tail {
    file: Part,
    left: u64,
}

impl LogWriter {
    /// Starts a log that keeps about `limit` bytes.
    pub fn create(directory: &Path, exec: &str, limit: u64) -> io::Result<Self> {
        Ok(Self {
            directory: directory.to_owned(),
            exec: exec.to_owned(),
            head: None,
            head_left: (limit / 2).max(1),
            tail_size: (limit / 4).max(1),
            tail: None,
            tails_begun: 0,
            offset: 0,
            written: [0, 0],
            lost: false,
        })
    }

    /// Appends bytes of one stream. What cannot be written (the disk is full) is dropped: its place in
    /// the log stays empty, and [`LogWriter::truncated`] says so.
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) {
        self.written[usize::from(stream.byte() - 1)] += bytes.len() as u64;
        let end = self.offset + bytes.len() as u64;
        if self.keep(stream, bytes).is_err() {
            self.offset = end;
            self.lost = true;
        }
    }

    fn keep(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let (head, mut rest) = bytes.split_at(bytes.len().min(self.head_left as usize));
        if !head.is_empty() {
            let file = match &mut self.head {
                Some(file) => file,
                None => self.head.insert(Part::new(&part(&self.directory, &self.exec, "head"))?),
            };
            file.write_record(stream, self.offset, head)?;
            self.offset += head.len() as u64;
            self.head_left -= head.len() as u64;
        }
        while !rest.is_empty() {
            let mut tail = match self.tail.take() {
                Some(tail) if tail.left > 0 => tail,
                _ => self.next_tail()?,
            };
            let (now, later) = rest.split_at(rest.len().min(tail.left as usize));
            let written = tail.file.write_record(stream, self.offset, now);
            if written.is_ok() {
                tail.left -= now.len() as u64;
                self.offset += now.len() as u64;
            }
            self.tail = Some(tail);
            written?;
            rest = later;
        }
        Ok(())
    }

    /// The older of the two tails is started anew.
    fn next_tail(&mut self) -> io::Result<Tail> {
        let path = part(&self.directory, &self.exec, &format!("tail{}", self.tails_begun % 2));
        if self.truncates_next() {
            match std::fs::remove_file(&path) {
                // It went before, and could not be made anew.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        let file = Part::new(&path)?;
        self.tails_begun += 1;
        Ok(Tail { file, left: self.tail_size })
    }

    fn truncates_next(&self) -> bool {
        self.tails_begun >= 2
    }

    /// Bytes printed so far on standard output and on standard error, kept or not.
    pub fn written(&self) -> (u64, u64) {
        (self.written[0], self.written[1])
    }

    /// Whether something was dropped: a third tail took the place of the first, or a write failed.
    pub fn truncated(&self) -> bool {
        self.lost || self.tails_begun > 2
    }
}

/// One file of a log: whole records, and nothing else.
#[derive(Debug)]
struct Part {
    file: File,
    length: u64,
}

impl Part {
    fn new(path: &Path) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self { file, length: 0 })
    }

    fn write_record(&mut self, stream: Stream, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut record = Vec::with_capacity(HEADER + bytes.len());
        record.push(stream.byte());
        record.extend_from_slice(&offset.to_le_bytes());
        record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        record.extend_from_slice(bytes);
        if let Err(error) = self.file.write_all(&record) {
            // Half a record would make everything after it unreadable.
            let _ = self.file.set_len(self.length);
            let _ = self.file.seek(io::SeekFrom::Start(self.length));
            return Err(error);
        }
        self.length += record.len() as u64;
        Ok(())
    }
}

fn first_offset(path: &Path) -> Option<u64> {
    let mut header = [0; HEADER];
    File::open(path).ok()?.read_exact(&mut header).ok()?;
    Some(u64::from_le_bytes(header[1..9].try_into().ok()?))
}

/// One kept piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Which stream.
    pub stream: Stream,
    /// Where it starts.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Reads what is kept from `from` on, in order, at most about `limit` bytes.
pub fn read(directory: &Path, exec: &str, from: u64, limit: usize) -> io::Result<Vec<Record>> {
    let mut tails: Vec<_> = ["tail0", "tail1"]
        .iter()
        .map(|name| part(directory, exec, name))
        .filter_map(|path| first_offset(&path).map(|offset| (offset, path)))
        .collect();
    tails.sort();
    let head = part(directory, exec, "head");
    let mut records = Vec::new();
    let mut left = limit;
    for path in std::iter::once(head).chain(tails.into_iter().map(|(_, path)| path)) {
        if left == 0 {
            break;
        }
        read_file(&path, from, &mut left, &mut records)?;
    }
    Ok(records)
}

fn read_file(path: &Path, from: u64, left: &mut usize, out: &mut Vec<Record>) -> io::Result<()> {
    let mut file = match File::open(path) {
        Ok(file) => io::BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    while *left > 0 {
        let Some(record) = read_record(&mut file, from)? else { break };
        if record.bytes.is_empty() {
            continue;
        }
        *left = left.saturating_sub(record.bytes.len());
        out.push(record);
    }
    Ok(())
}

/// The next record, without its bytes before `from`; `None` at the end or at a torn record.
fn read_record(file: &mut io::BufReader<File>, from: u64) -> io::Result<Option<Record>> {
    let mut header = [0; HEADER];
    if !fill(file, &mut header)? {
        return Ok(None);
    }
    let stream = match header[0] {
        1 => Stream::Stdout,
        2 => Stream::Stderr,
        _ => return Ok(None),
    };
    let mut eight = [0; 8];
    eight.copy_from_slice(&header[1..9]);
    let offset = u64::from_le_bytes(eight);
    let length = u32::from_le_bytes([header[9], header[10], header[11], header[12]]) as u64;
    if offset + length <= from {
        file.seek_relative(length as i64)?;
        return Ok(Some(Record { stream, offset, bytes: Vec::new() }));
    }
    let mut bytes = vec![0; length as usize];
    if !fill(file, &mut bytes)? {
        return Ok(None);
    }
    let skip = from.saturating_sub(offset) as usize;
    bytes.drain(..skip);
    Ok(Some(Record { stream, offset: offset + skip as u64, bytes }))
}

fn fill(file: &mut io::BufReader<File>, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offsets_resume_in_the_middle_of_a_record() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = LogWriter::create(directory.path(), "x", 1 << 20).unwrap();
        log.append(Stream::Stdout, b"hello ");
        log.append(Stream::Stderr, b"world");
        let records = read(directory.path(), "x", 3, 1 << 20).unwrap();
        assert_eq!(
            records[0],
            Record { stream: Stream::Stdout, offset: 3, bytes: b"lo ".to_vec() }
        );
        assert_eq!(
            records[1],
            Record { stream: Stream::Stderr, offset: 6, bytes: b"world".to_vec() }
        );
        assert_eq!(log.written(), (6, 5));
        assert!(!log.truncated());
    }

    #[test]
    fn what_a_full_disk_refuses_is_a_gap_and_the_rest_can_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = LogWriter::create(directory.path(), "x", 1 << 20).unwrap();
        log.append(Stream::Stdout, b"before ");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let head = log.head.replace(Part { file: full, length: 20 });
        log.append(Stream::Stdout, b"lost ");
        log.head = head;
        log.append(Stream::Stdout, b"after");
        let records = read(directory.path(), "x", 0, 1 << 20).unwrap();
        let kept: Vec<_> = records.iter().map(|one| (one.offset, one.bytes.as_slice())).collect();
        assert_eq!(kept, [(0, b"before ".as_slice()), (12, b"after")]);
        assert_eq!(log.written(), (17, 0));
        assert!(log.truncated(), "it must be said");
    }

    proptest! {
        #[test]
        fn head_and_tail_are_kept_and_the_size_is_bounded(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..40),
            limit in 16u64..400,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let mut log = LogWriter::create(directory.path(), "x", limit).unwrap();
            let mut all = Vec::new();
            for piece in &pieces {
                log.append(Stream::Stdout, piece);
                all.extend_from_slice(piece);
            }
            let records = read(directory.path(), "x", 0, usize::MAX).unwrap();
            let mut kept = 0;
            for record in &records {
                let start = record.offset as usize;
                prop_assert_eq!(&all[start..start + record.bytes.len()], &record.bytes[..]);
                kept += record.bytes.len() as u64;
            }
            prop_assert!(kept <= limit + 3);
            prop_assert_eq!(log.truncated(), kept < all.len() as u64);
            if let Some(last) = records.last() {
                prop_assert_eq!(last.offset as usize + last.bytes.len(), all.len());
            }
        }
    }
}
