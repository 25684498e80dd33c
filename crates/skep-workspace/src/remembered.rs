//! A search of a tree that remembers what it saw, so that the next one lists only the directories
//! that have changed since.
//!
//! Every name that comes into a directory or leaves it moves that directory's change time, which
//! nobody can set. So a directory whose number and change time are those of the last search holds
//! the same names, and one `stat` stands for listing it. That is no proof within a tick of the
//! clock that filesystems stamp with: what was changed shortly before it was listed is listed again
//! the next time (git calls such entries racily clean).
//!
//! What a name means may depend on names only: a mode or a content can change without the
//! directory. [`look`] says nothing of those.

use crate::tree::TreeRoot;
use rustix::fs::AtFlags;
use skep_types::RelPath;
use std::borrow::Cow;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The first bytes of a file, with the version of its form.
const MAGIC: &[u8; 8] = b"skeplook";
/// Bytes of the hash behind it.
const HASH: usize = 32;
/// A change less than this long before it was seen may have been followed by one with the same time:
/// ten of the longest ticks that the kernel stamps with.
const SETTLED_NS: i128 = 100_000_000;
/// The same for a time without a fraction, which a filesystem may have cut off.
const SETTLED_WHOLE_NS: i128 = 2_000_000_000;
/// Fewer directories than this are listed again rather than written down.
const WORTH_WRITING: usize = 32;
/// Unless so many were listed only because they had changed a moment before the last search: they would be each time.
const WORTH_SETTLING: usize = 4;
/// Files kept of all searches; each is of one project and one set of rules.
const KEPT: usize = 32;
/// `statfs` types that move a directory's change time at once and by themselves: ext, xfs, btrfs,
/// tmpfs, overlayfs, f2fs, zfs, bcachefs.
const LOCAL: &[i64] = &[
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
];

/// What was found in one directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Names that were looked for.
    pub hits: Vec<Vec<u8>>,
    /// Directories to go into, sorted by bytes.
    pub enter: Vec<Vec<u8>>,
    /// Whether it could be listed: what could not is asked for again the next time.
    pub certain: bool,
}

/// What a search found.
#[derive(Debug)]
pub struct Looked {
    /// What was looked for, sorted.
    pub hits: Vec<RelPath>,
    /// Directories that were gone through.
    pub directories: usize,
    /// Those of them that were listed; of the others it was enough that they had not changed.
    pub listed: usize,
    /// Those listed again that had only been too fresh to be believed.
    settled: usize,
    records: Vec<u8>,
}

/// What earlier searches saw.
#[derive(Debug, Default)]
pub struct Memory(Vec<u8>);

/// By what a directory is known to be unchanged. Never equal to itself if it is uncertain.
#[derive(Debug, Clone, Copy)]
struct Stamp {
    device: u64,
    inode: u64,
    changed_ns: i128,
    certain: bool,
}

impl Stamp {
    const BYTES: usize = 33;

    fn same(&self, other: &Self) -> bool {
        self.certain && self.looks_like(other)
    }

    fn looks_like(&self, other: &Self) -> bool {
        let key = |stamp: &Self| (stamp.device, stamp.inode, stamp.changed_ns);
        key(self) == key(other)
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.device.to_le_bytes());
        to.extend_from_slice(&self.inode.to_le_bytes());
        to.extend_from_slice(&self.changed_ns.to_le_bytes());
        to.push(u8::from(self.certain));
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            device: u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?),
            inode: u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?),
            changed_ns: i128::from_le_bytes(bytes.get(16..32)?.try_into().ok()?),
            certain: *bytes.get(32)? == 1,
        })
    }
}

/// One directory as it was: its length with all that is below it, its name, its stamp, the hits,
/// and then the directories in it, each of the same form.
#[derive(Debug, Clone, Copy)]
struct Record<'a> {
    name: &'a [u8],
    stamp: Stamp,
    hits: &'a [u8],
    below: &'a [u8],
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn take_block<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?);
    take(bytes, usize::try_from(length).ok()?)
}

fn put_block(to: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(bytes);
}

/// All blocks one after the other; `None` if they do not come out even.
fn blocks(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        all.push(take_block(&mut bytes)?);
    }
    Some(all)
}

impl<'a> Record<'a> {
    fn parse(mut block: &'a [u8]) -> Option<Self> {
        let name = take_block(&mut block)?;
        let stamp = Stamp::read(take(&mut block, Stamp::BYTES)?)?;
        let hits = take_block(&mut block)?;
        Some(Self { name, stamp, hits, below: block })
    }

    fn directories(&self) -> Option<Vec<Record<'a>>> {
        blocks(self.below)?.into_iter().map(Record::parse).collect()
    }
}

impl Memory {
    /// Reads what was kept under this key; nothing, if it is of another key or was damaged.
    pub fn load(file: &Path, key: &[u8]) -> Self {
        let Ok(mut bytes) = std::fs::read(file) else { return Self::default() };
        let whole = bytes.len() >= MAGIC.len() + HASH && bytes.starts_with(MAGIC);
        if !whole {
            return Self::default();
        }
        let body = bytes.split_off(MAGIC.len() + HASH);
        let is_ours = bytes.get(MAGIC.len()..) == Some(hash(key, &body).as_bytes());
        if is_ours { Self(body) } else { Self::default() }
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Looked {
    /// Keeps what was seen for the next search, where writing it down is less than looking again.
    ///
    /// It is not synced: after a loss of power it may be damaged, which its hash shows.
    pub fn keep(&self, file: &Path, key: &[u8]) -> io::Result<()> {
        if self.listed < WORTH_WRITING && self.settled < WORTH_SETTLING {
            return Ok(());
        }
        let Some(directory) = file.parent() else { return Ok(()) };
        make_private(directory)?;
        let mut temporary = file.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let mut options = std::fs::File::options();
        let mut to =
            options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let written = (|| {
            to.write_all(MAGIC)?;
            to.write_all(hash(key, &self.records).as_bytes())?;
            to.write_all(&self.records)?;
            std::fs::rename(&temporary, file)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        forget_oldest(directory);
        written
    }
}

fn hash(key: &[u8], body: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(key.len() as u64).to_le_bytes()).update(key).update(body);
    hasher.finalize()
}

fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

fn forget_oldest(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut files: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    let many = files.len().saturating_sub(KEPT);
    for (_, file) in files.into_iter().take(many) {
        let _ = std::fs::remove_file(file);
    }
}

/// The number of this day: a part of the key of what is to be looked at anew on the next.
pub fn today() -> i128 {
    crate::base::clock_ns() / (24 * 3_600 * 1_000_000_000)
}

/// Whether this tree is on a filesystem whose change times can be believed.
pub fn can_be_remembered(root: &TreeRoot) -> bool {
    rustix::fs::fstatfs(root.fd()).is_ok_and(|stat| LOCAL.contains(&stat.f_type))
}

/// Goes through a tree. `judge` lists a directory and says what counts in it; it is asked only of
/// those that are not known, or not unchanged.
pub fn look<E>(
    root: &TreeRoot,
    memory: &Memory,
    judge: &mut dyn FnMut(&RelPath) -> Result<Content, E>,
) -> Result<Looked, E> {
    let mut walk = Walk {
        root,
        judge,
        now_ns: crate::base::clock_ns(),
        path: Vec::new(),
        looked: Looked {
            hits: Vec::new(),
            directories: 0,
            listed: 0,
            settled: 0,
            records: Vec::new(),
        },
    };
    let top = blocks(&memory.0).and_then(|all| Record::parse(all.first()?));
    let mut open = vec![walk.enter(b"", top)?];
    while let Some(frame) = open.last_mut() {
        walk.path.truncate(frame.path);
        match frame.rest.next() {
            Some((name, old)) => {
                if !walk.path.is_empty() {
                    walk.path.push(b'/');
                }
                walk.path.extend_from_slice(&name);
                open.push(walk.enter(&name, old)?);
            }
            None => {
                walk.close(frame.record);
                open.pop();
            }
        }
    }
    walk.looked.hits.sort();
    Ok(walk.looked)
}

struct Walk<'a, E> {
    root: &'a TreeRoot,
    judge: &'a mut dyn FnMut(&RelPath) -> Result<Content, E>,
    /// When it began.
    now_ns: i128,
    path: Vec<u8>,
    looked: Looked,
}

/// A directory whose own are being gone through.
struct Frame<'m> {
    /// Length of its path.
    path: usize,
    /// Where its record begins.
    record: usize,
    rest: std::vec::IntoIter<(Cow<'m, [u8]>, Option<Record<'m>>)>,
}

impl<E> Walk<'_, E> {
    fn enter<'m>(&mut self, name: &[u8], old: Option<Record<'m>>) -> Result<Frame<'m>, E> {
        self.looked.directories += 1;
        let stamp = self.stamp();
        let directories = old.and_then(|old| old.directories());
        let unchanged = old.zip(directories.as_ref()).is_some_and(|(old, _)| {
            stamp.is_some_and(|stamp| old.stamp.same(&stamp)) && blocks(old.hits).is_some()
        });
        let (hits, rest, certain) = match (old, directories) {
            (Some(old), Some(directories)) if unchanged => {
                let rest = directories.into_iter().map(|old| (Cow::Borrowed(old.name), Some(old)));
                (Cow::Borrowed(old.hits), rest.collect::<Vec<_>>(), true)
            }
            (_, directories) => {
                self.looked.listed += 1;
                let settled = |stamp: Stamp| {
                    stamp.certain && old.is_some_and(|old| old.stamp.looks_like(&stamp))
                };
                self.looked.settled += usize::from(stamp.is_some_and(settled));
                let directory = RelPath::parse(&self.path).unwrap_or_default();
                let content = (self.judge)(&directory)?;
                let mut hits = Vec::new();
                content.hits.iter().for_each(|hit| put_block(&mut hits, hit));
                let rest = with_records(content.enter, directories.unwrap_or_default());
                (Cow::Owned(hits), rest, content.certain)
            }
        };
        for hit in blocks(&hits).unwrap_or_default() {
            let directory = RelPath::parse(&self.path).unwrap_or_default();
            self.looked.hits.extend(directory.join(hit).ok());
        }
        let record = self.looked.records.len();
        self.put(name, stamp.filter(|_| certain), &hits);
        Ok(Frame { path: self.path.len(), record, rest: rest.into_iter() })
    }

    /// Taken before the directory is listed: what comes in while it is shows the next time.
    fn stamp(&self) -> Option<Stamp> {
        let path = if self.path.is_empty() { &b"."[..] } else { &self.path };
        let stat = rustix::fs::statat(self.root.fd(), path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let changed_ns =
            i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec as i64);
        let margin = if stat.st_ctime_nsec == 0 { SETTLED_WHOLE_NS } else { SETTLED_NS };
        let certain = changed_ns < self.now_ns - margin;
        Some(Stamp { device: stat.st_dev, inode: stat.st_ino, changed_ns, certain })
    }

    fn put(&mut self, name: &[u8], stamp: Option<Stamp>, hits: &[u8]) {
        let to = &mut self.looked.records;
        to.extend_from_slice(&[0; 4]);
        put_block(to, name);
        let unknown = Stamp { device: 0, inode: 0, changed_ns: 0, certain: false };
        stamp.unwrap_or(unknown).write(to);
        put_block(to, hits);
    }

    /// Everything below has been written: now its length is known.
    fn close(&mut self, record: usize) {
        let length = self.looked.records.len() - record - 4;
        let length = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        if let Some(place) = self.looked.records.get_mut(record..record + 4) {
            place.copy_from_slice(&length);
        }
    }
}

/// Directories by name with what is known of them. Both are sorted.
fn with_records<'m>(
    names: Vec<Vec<u8>>,
    records: Vec<Record<'m>>,
) -> Vec<(Cow<'m, [u8]>, Option<Record<'m>>)> {
    let known = |name: &[u8]| {
        let at = records.binary_search_by(|record| record.name.cmp(name)).ok()?;
        records.get(at).copied()
    };
    let with = |name: Vec<u8>| {
        let record = known(&name);
        (Cow::Owned(name), record)
    };
    names.into_iter().map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Timespec, Timestamps};
    use std::convert::Infallible;
    use std::time::Duration;

    /// Looks for `secret` everywhere, and tells what was listed.
    fn search(root: &Path, memory: &Memory) -> (Looked, Vec<String>) {
        let tree = TreeRoot::open(root).unwrap();
        let mut listed = Vec::new();
        let mut judge = |directory: &RelPath| -> Result<Content, Infallible> {
            listed.push(directory.to_string());
            let mut content = Content { certain: true, ..Content::default() };
            for (name, kind) in tree.list(directory).unwrap() {
                match kind.is_dir() {
                    true => content.enter.push(name),
                    false if name == b"secret" => content.hits.push(name),
                    false => {}
                }
            }
            Ok(content)
        };
        let looked = look(&tree, memory, &mut judge).unwrap();
        (looked, listed)
    }

    fn hits(looked: &Looked) -> Vec<String> {
        looked.hits.iter().map(ToString::to_string).collect()
    }

    /// As if all of it had been made long ago: the clock of the test is the margin's.
    fn settled(looked: &Looked) -> Memory {
        let mut records = looked.records.clone();
        fn settle(bytes: &mut [u8]) {
            let name = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
            bytes[4 + name + 32] = 1;
            let hits_at = 4 + name + Stamp::BYTES;
            let hits = u32::from_le_bytes(bytes[hits_at..hits_at + 4].try_into().unwrap()) as usize;
            let mut below = &mut bytes[hits_at + 4 + hits..];
            while !below.is_empty() {
                let length = u32::from_le_bytes(below[..4].try_into().unwrap()) as usize;
                settle(&mut below[4..4 + length]);
                below = &mut below[4 + length..];
            }
        }
        settle(&mut records[4..]);
        Memory(records)
    }

    fn make(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
    }

    #[test]
    fn only_what_changed_is_listed_again_and_everything_is_found() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), &["a/b/secret", "a/c/plain", "d/secret", "e/f/g/plain"]);
        let (first, listed) = search(root.path(), &Memory::default());
        assert_eq!(listed.len(), 8);
        assert_eq!(hits(&first), ["a/b/secret", "d/secret"]);
        let (again, listed) = search(root.path(), &settled(&first));
        assert!(listed.is_empty() && hits(&again) == hits(&first), "{listed:?}");
        make(root.path(), &["e/f/g/secret", "e/f/new/secret"]);
        std::fs::remove_file(root.path().join("d/secret")).unwrap();
        let (third, listed) = search(root.path(), &settled(&again));
        assert_eq!(listed, ["d", "e/f", "e/f/g", "e/f/new"]);
        assert_eq!(hits(&third), ["a/b/secret", "e/f/g/secret", "e/f/new/secret"]);
    }

    /// Another directory of the same name, with its own old change times further down.
    #[test]
    fn a_directory_that_was_exchanged_is_another() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), &["a/x/plain", "b/x/secret"]);
        let (first, _) = search(root.path(), &Memory::default());
        let at = |name: &str| root.path().join(name);
        for (from, to) in [("a", "c"), ("b", "a"), ("c", "b")] {
            std::fs::rename(at(from), at(to)).unwrap();
        }
        let (second, _) = search(root.path(), &settled(&first));
        assert_eq!(hits(&second), ["a/x/secret"]);
        // A link is no directory, whatever was known of its name.
        std::fs::rename(at("a"), at("moved")).unwrap();
        std::os::unix::fs::symlink("moved", at("a")).unwrap();
        let (third, _) = search(root.path(), &settled(&second));
        assert_eq!(hits(&third), ["moved/x/secret"]);
    }

    #[test]
    fn what_changed_a_moment_ago_is_not_certain_and_times_set_by_hand_do_not_count() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), &["a/plain"]);
        let (first, _) = search(root.path(), &Memory::default());
        let (second, listed) = search(root.path(), &Memory(first.records));
        assert_eq!(listed.len(), 2, "made less than the margin ago");
        let memory = settled(&second);
        let directory = std::fs::File::open(root.path().join("a")).unwrap();
        let before = rustix::fs::fstat(&directory).unwrap();
        make(root.path(), &["a/secret"]);
        let old = Timespec { tv_sec: before.st_mtime, tv_nsec: before.st_mtime_nsec as _ };
        let times = Timestamps { last_access: old, last_modification: old };
        rustix::fs::futimens(&directory, &times).unwrap();
        assert_eq!(hits(&search(root.path(), &memory).0), ["a/secret"]);
    }

    #[test]
    fn a_few_that_were_too_fresh_are_written_down_once_they_are_not() {
        let root = tempfile::tempdir().unwrap();
        make(root.path(), &["a/x", "b/x", "c/x"]);
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("look");
        let kept = |looked: &Looked| {
            looked.keep(&file, b"key").unwrap();
            file.exists()
        };
        let (first, _) = search(root.path(), &Memory::default());
        assert!(!kept(&first), "to list these is less than to write them down");
        std::thread::sleep(Duration::from_millis(150));
        let (second, listed) = search(root.path(), &Memory(first.records));
        assert_eq!(listed.len(), 4);
        assert!(kept(&second));
        let (third, listed) = search(root.path(), &Memory::load(&file, b"key"));
        assert!(listed.is_empty() && third.settled == 0, "{listed:?}");
    }

    #[test]
    fn what_was_kept_is_read_back_under_its_key_and_undamaged_only() {
        let state = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..40).map(|number| format!("d{number}/secret")).collect();
        make(root.path(), &names.iter().map(String::as_str).collect::<Vec<_>>());
        let (looked, _) = search(root.path(), &Memory::default());
        let file = state.path().join("looks/one");
        looked.keep(&file, b"key").unwrap();
        assert_eq!(Memory::load(&file, b"key").0, looked.records);
        assert!(Memory::load(&file, b"other").0.is_empty());
        let mut bytes = std::fs::read(&file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert!(Memory::load(&file, b"key").0.is_empty());
        std::fs::write(&file, b"skep").unwrap();
        assert!(Memory::load(&file, b"key").0.is_empty());
        for number in 0..2 * KEPT {
            looked.keep(&state.path().join(format!("looks/{number}")), b"key").unwrap();
        }
        assert_eq!(std::fs::read_dir(state.path().join("looks")).unwrap().count(), KEPT);
    }
}
