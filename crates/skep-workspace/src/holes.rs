//! Hashing files that are mostly holes.
//!
//! A hole takes up no room, so no disk limit sees it: a program inside can make a hundred files of ten
//! gigabytes in a moment, and a review that reads them all takes hours. BLAKE3 is a tree, and what a
//! stretch of zeros makes of itself in it depends on where it stands and on nothing else. So holes are
//! not read but asked for (lseek(2), `SEEK_DATA`), and each stretch is computed once in a process, for
//! all files together.

use crate::tree::hash_reader;
use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root,
    merge_subtrees_root,
};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use skep_types::ContentHash;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

/// Smaller files are read: asking for their holes costs as much.
const LARGE: u64 = 1 << 20;
/// What is read in one piece: little more than the data that breaks a hole.
const LEAF: u64 = 64 << 10;
/// So many stretches are remembered, and large ones in any case.
const REMEMBERED: usize = 1 << 20;
const LARGE_STRETCH: u64 = 64 << 20;

static NOTHING: [u8; LEAF as usize] = [0; LEAF as usize];

thread_local! {
    /// By where a stretch of zeros begins and how long it is.
    static ZEROS: RefCell<HashMap<(u64, u64), ChainingValue>> = RefCell::default();
}

/// Hash and length of a file. `expected` is its size as it was just seen.
pub(crate) fn hash_file(file: &File, expected: u64) -> io::Result<(ContentHash, u64)> {
    if expected >= LARGE {
        let found = file.metadata()?;
        let size = found.len();
        if size >= LARGE && found.blocks().saturating_mul(512) < size {
            let hash = Sparse { file, size, data: 0..0, bytes: Vec::new() }.root();
            // One that shrinks or grows meanwhile is read to its end as any other.
            if let Ok(hash) = hash
                && file.metadata()?.len() == size
            {
                return Ok((hash, size));
            }
            seek(file, SeekFrom::Start(0))?;
        }
    }
    hash_reader(file, expected)
}

/// A file that is looked at from its beginning to its end.
struct Sparse<'a> {
    file: &'a File,
    size: u64,
    /// The data that was found last.
    data: std::ops::Range<u64>,
    bytes: Vec<u8>,
}

impl Sparse<'_> {
    /// It has more than one leaf.
    fn root(mut self) -> io::Result<ContentHash> {
        let left = left_subtree_len(self.size);
        let halves = (self.stretch(0, left)?, self.stretch(left, self.size - left)?);
        let hash = merge_subtrees_root(&halves.0, &halves.1, Mode::Hash);
        Ok(ContentHash::from_bytes(*hash.as_bytes()))
    }

    fn stretch(&mut self, at: u64, length: u64) -> io::Result<ChainingValue> {
        if self.is_hole(at, length)? {
            return Ok(zeros(at, length));
        }
        if length <= LEAF {
            self.bytes.resize(length as usize, 0);
            self.file.read_exact_at(&mut self.bytes, at)?;
            return Ok(leaf(at, &self.bytes));
        }
        let left = left_subtree_len(length);
        let halves = (self.stretch(at, left)?, self.stretch(at + left, length - left)?);
        Ok(merge_subtrees_non_root(&halves.0, &halves.1, Mode::Hash))
    }

    /// Asked in the order of the file, so that what is behind us is not asked again.
    fn is_hole(&mut self, at: u64, length: u64) -> io::Result<bool> {
        if self.data.end <= at {
            self.data = match seek(self.file, SeekFrom::Data(at)) {
                Ok(start) => start..seek(self.file, SeekFrom::Hole(start))?,
                // None up to its end.
                Err(Errno::NXIO) => self.size..u64::MAX,
                // A filesystem that does not know holes: all of it is data.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at..u64::MAX,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(self.data.start >= at + length)
    }
}

fn leaf(at: u64, bytes: &[u8]) -> ChainingValue {
    Hasher::new().set_input_offset(at).update(bytes).finalize_non_root()
}

fn zeros(at: u64, length: u64) -> ChainingValue {
    if let Some(known) = ZEROS.with_borrow(|zeros| zeros.get(&(at, length)).copied()) {
        return known;
    }
    let value = if length <= LEAF {
        leaf(at, &NOTHING[..length as usize])
    } else {
        let left = left_subtree_len(length);
        let halves = (zeros(at, left), zeros(at + left, length - left));
        merge_subtrees_non_root(&halves.0, &halves.1, Mode::Hash)
    };
    ZEROS.with_borrow_mut(|zeros| {
        if zeros.len() < REMEMBERED || length >= LARGE_STRETCH {
            zeros.insert((at, length), value);
        }
    });
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_file_with_holes_hashes_as_its_bytes_do() {
        let (mib, leaf) = (1u64 << 20, LEAF);
        let sizes = [LARGE, LARGE + 1, 3 * mib - 1, 5 * mib + leaf, 5 * mib + 4097, 8 * mib];
        for size in sizes {
            let places = [
                vec![],
                vec![0],
                vec![size - 1],
                vec![leaf - 1, leaf, 2 * mib.min(size / 4)],
                vec![size / 2, size / 2 + 3 * leaf, size - leaf],
            ];
            for data in places {
                let file = tempfile::tempfile().unwrap();
                file.set_len(size).unwrap();
                for at in &data {
                    let bytes = b"honey".get(..5.min((size - at) as usize)).unwrap();
                    file.write_all_at(bytes, *at).unwrap();
                }
                let mut bytes = Vec::new();
                (&file).read_to_end(&mut bytes).unwrap();
                let hashed = hash_file(&file, size).unwrap();
                assert_eq!(hashed, (ContentHash::of(&bytes), size), "{size} bytes, {data:?}");
            }
        }
    }
}
