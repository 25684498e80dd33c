//! Output taken into memory for `--json`: head and tail, bounded.

use super::Sink;
use std::collections::VecDeque;
use std::io;

/// How much of each stream is kept.
const KEPT: usize = 64 << 20;

/// Both streams of a command.
#[derive(Debug)]
pub(crate) struct Capture {
    /// Standard output.
    pub(crate) stdout: Kept,
    /// Standard error.
    pub(crate) stderr: Kept,
}

impl Capture {
    /// Keeps at most `limit` bytes of each stream (and never more than 64 MiB).
    pub(crate) fn new(limit: Option<u64>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(KEPT).min(KEPT);
        Self { stdout: Kept::new(limit), stderr: Kept::new(limit) }
    }

    /// Whether anything was left out.
    pub(crate) fn truncated(&self) -> bool {
        self.stdout.dropped + self.stderr.dropped > 0
    }
}

impl Sink for Capture {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.push(bytes);
        Ok(())
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stderr.push(bytes);
        Ok(())
    }
}

/// The beginning and the end of a stream.
#[derive(Debug)]
pub(crate) struct Kept {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    dropped: u64,
}

impl Kept {
    fn new(limit: usize) -> Self {
        let tail_limit = limit / 2;
        let head_limit = limit - tail_limit;
        Self { head: Vec::new(), tail: VecDeque::new(), head_limit, tail_limit, dropped: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = self.head_limit - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        // Only the last bytes of a piece larger than the tail can stay.
        let (passed, last) = rest.split_at(rest.len().saturating_sub(self.tail_limit));
        let over = (self.tail.len() + last.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..over);
        self.tail.extend(last);
        self.dropped += (passed.len() + over) as u64;
    }

    /// What was kept; a line says how much is missing between head and tail.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        if self.dropped > 0 {
            bytes.extend_from_slice(format!("\n[{} bytes dropped]\n", self.dropped).as_bytes());
        }
        bytes.extend(self.tail);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn head_and_tail_of_any_pieces(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..12),
            limit in 1usize..60,
        ) {
            let whole: Vec<u8> = pieces.concat();
            let mut kept = Kept::new(limit);
            pieces.iter().for_each(|piece| kept.push(piece));
            prop_assert_eq!(kept.dropped as usize, whole.len().saturating_sub(limit));
            let (head, tail) = (kept.head_limit, kept.tail_limit);
            let dropped = kept.dropped;
            let found = kept.into_bytes();
            if dropped == 0 {
                prop_assert_eq!(found, whole);
            } else {
                prop_assert!(found.starts_with(&whole[..head]));
                prop_assert!(found.ends_with(&whole[whole.len() - tail..]));
            }
        }
    }
}
