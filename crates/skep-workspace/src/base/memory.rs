//! What is remembered of the base, in the sandbox's own 0700 directory.
//!
//! `index` is a file of lines, only ever appended to: a checksum, a space, a JSON record. The last
//! record of a path counts. A torn last line (the writer was killed) is left out and cut off by the
//! next writer. `blobs/` holds bytes under the name of their hash.

use super::Identity;
use super::late::Late;
use super::moment::{Anchors, Era, Moment, era_of};
use super::stay::Stay;
use crate::error::DeriveError;
use crate::tree::TreeRoot;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use skep_types::{ByteString, ContentHash, EntryState, HunkId, RelPath};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

pub(super) const INDEX: &str = "index";
const BLOBS: &str = "blobs";
/// Hexadecimal digits of the checksum of a line.
const CHECKSUM_DIGITS: usize = 16;

/// Whether there is an index with something in it.
pub(crate) fn is_begun(directory: &Path) -> bool {
    std::fs::metadata(directory.join(INDEX)).is_ok_and(|found| found.len() > 0)
}

/// One line of the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(crate) enum Record {
    /// What stood in the project at `path` while the proof held.
    Capture { path: RelPath, capture: Capture },
    /// Everything below this directory was captured; what is not recorded there was not there.
    Subtree { path: RelPath },
    /// Everything that was in this directory at create; noted in place of many absent names.
    Listing {
        path: RelPath,
        names: Vec<ByteString>,
        /// Or at this moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Era,
    },
    /// This directory was there at create.
    Anchor {
        path: RelPath,
        device: u64,
        inode: u64,
        /// Or at this moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Era,
    },
    /// The base of `path` from now on: it was approved, undone or rebased.
    Settled {
        path: RelPath,
        settled: Settled,
        #[serde(default, skip_serializing_if = "Moved::with_the_project")]
        moved: Moved,
    },
    /// No longer settled.
    Unsettled {
        path: RelPath,
        #[serde(default, skip_serializing_if = "Moved::with_the_project")]
        moved: Moved,
    },
    /// An approval of `path` was undone, or that undo was. Other states that the sandbox was in may have
    /// that approval in their base, whether or not the present one has.
    Undone {
        path: RelPath,
        /// The step that every base makes which has the approval.
        undone: Box<Undone>,
        /// The base of the present state from now on; nothing, where it is left alone.
        settled: Option<Settled>,
    },
    /// Whether `path` is still in the sandbox as it came there.
    Stay { path: RelPath, stay: Stay },
    /// Nobody is inside any more who may not know what the user wrote at `path`, and the sandbox has it.
    Aware { path: RelPath },
    /// What comes into the sandbox from now on comes from the project as it is at this moment; without one, from
    /// the project as it was at create.
    Moment { moment: Option<Box<Moment>> },
}

/// How the base moved of the state in which an approval was made, when it was undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Undone {
    pub from: Settled,
    pub to: Settled,
    pub way: Way,
}

/// Which way an undo goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// Back: the change is pending again.
    Back,
    /// An undo was undone: forth again.
    Forth,
}

/// What a base moved with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Moved {
    /// An approval or an undo: the project has it, whatever state the sandbox goes back to.
    #[default]
    Project,
    /// The sandbox took the project's newer state in: it is the base of that state, and of no other
    /// that the sandbox was or will be in.
    Sandbox,
}

impl Moved {
    fn with_the_project(&self) -> bool {
        *self == Self::Project
    }
}

/// What was seen of a base entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capture {
    /// Which inode at which time; `None` when nothing stood there.
    pub identity: Option<Identity>,
    /// Its state, when it was small enough to be read (or needs no reading).
    pub state: Option<EntryState>,
}

impl Capture {
    /// Nothing stood there.
    pub(crate) fn of_nothing() -> Self {
        Self { identity: None, state: Some(EntryState::Absent) }
    }

    /// Of no inode, and of no state: what stood there is not known.
    pub(crate) fn of_unknown() -> Self {
        Self { identity: Some(Identity::COPIED), state: None }
    }

    /// Whether there was nothing below it.
    pub(crate) fn is_no_directory(&self) -> bool {
        // What was too large to be read is a file.
        !matches!(self.state, Some(EntryState::Dir { .. })) && *self != Self::of_unknown()
    }
}

/// A base that was settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// What counts as the base.
    pub state: EntryState,
    /// Set when only some hunks of the file were taken.
    pub partial: Option<Partial>,
    /// Set when it has something of the user's that somebody inside may not know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<Late>,
}

impl Settled {
    /// As a whole, and everybody knows it.
    pub(crate) fn of(state: EntryState) -> Self {
        Self { state, partial: None, late: Vec::new() }
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.state, EntryState::File { .. })
    }
}

/// How a settled base came from an earlier one, so that the remaining hunks keep their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial {
    /// The base of which hunks were taken.
    pub root: ContentHash,
    /// The sandbox's content then.
    pub new: ContentHash,
    /// The hunks that were taken.
    pub taken: Vec<HunkId>,
    /// Where they changed that base, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stretches: Vec<Stretch>,
    /// How that base came about in the same way, the newest step first: the sandbox went on between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Step>,
}

/// A base that hunks were taken of before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its bytes.
    pub base: ContentHash,
    /// Where they changed it, in its order.
    pub stretches: Vec<Stretch>,
}

/// Lines that stand in the place of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// The first that was replaced, or the one that they came before; counted from 0.
    pub start: usize,
    /// How many were replaced.
    pub old: usize,
    /// How many stand there.
    pub new: usize,
}

/// The loaded index.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    directory: PathBuf,
    pub captures: HashMap<RelPath, Capture>,
    pub subtrees: HashSet<RelPath>,
    pub listings: HashMap<Era, HashMap<RelPath, HashSet<ByteString>>>,
    pub anchors: HashMap<Era, Anchors>,
    pub moment: Option<Box<Moment>>,
    pub settled: BTreeMap<RelPath, Settled>,
    /// Whose removal was approved: the sandbox's mark that it is gone stays.
    pub removed: HashSet<RelPath>,
    /// What left the sandbox since its base was noted, or came again; what is not here did neither.
    pub stays: HashMap<RelPath, Stay>,
}

/// Whether a write must outlive a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It may be lost with the machine, not with a process.
    Process,
    /// It is synced.
    Power,
}

impl Memory {
    pub(crate) fn load(directory: &Path) -> Result<Self, DeriveError> {
        let path = directory.join(INDEX);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(memory_error("read", &path, source)),
        };
        let records = parse_index(&bytes)
            .map_err(|line| DeriveError::Damaged { path: path.clone(), line })?;
        Ok(Self::of(directory, records))
    }

    /// What such records say, with the blobs in `directory`.
    pub(super) fn of(directory: &Path, records: Vec<Record>) -> Self {
        let mut memory = Self { directory: directory.to_owned(), ..Self::default() };
        records.into_iter().for_each(|record| memory.take(record));
        memory
    }

    pub(super) fn take(&mut self, record: Record) {
        match record {
            Record::Capture { path, capture } => {
                self.stays.remove(&path);
                self.captures.insert(path, capture);
            }
            Record::Subtree { path } => drop(self.subtrees.insert(path)),
            Record::Listing { path, names, since } => {
                self.listings.entry(since).or_default().insert(path, names.into_iter().collect());
            }
            Record::Anchor { path, device, inode, since } => {
                self.anchors.entry(since).or_default().insert(path, (device, inode));
            }
            Record::Moment { moment } => self.moment = moment,
            Record::Settled { path, settled, moved } => {
                let removed = settled.state.is_absent() && moved == Moved::Project;
                self.settle(&path, Some(settled));
                if removed {
                    self.removed.insert(path);
                }
            }
            Record::Undone { path, settled: Some(settled), undone } => {
                let removed = settled.state.is_absent() && undone.way == Way::Forth;
                self.settle(&path, Some(settled));
                if removed {
                    self.removed.insert(path);
                }
            }
            Record::Unsettled { path, .. } => self.settle(&path, None),
            Record::Undone { settled: None, .. } => {}
            Record::Stay { path, stay: Stay::Here } => drop(self.stays.remove(&path)),
            Record::Stay { path, stay } => {
                if stay == Stay::Left {
                    self.subtrees.remove(&path);
                    self.listings.values_mut().for_each(|listed| drop(listed.remove(&path)));
                }
                self.stays.insert(path, stay);
            }
            Record::Aware { path } => {
                if let Some(Stay::Seen(sight)) = self.stays.get_mut(&path) {
                    sight.late = false;
                }
                if let Some(settled) = self.settled.get_mut(&path) {
                    settled.late.clear();
                }
            }
        }
    }

    /// Moves the base of a path. What it came from has become its base, or another has.
    pub(super) fn settle(&mut self, path: &RelPath, settled: Option<Settled>) {
        if self.stays.get(path).is_some_and(|stay| *stay != Stay::Left) {
            self.stays.remove(path);
        }
        self.removed.remove(path);
        match settled {
            Some(settled) => drop(self.settled.insert(path.clone(), settled)),
            None => drop(self.settled.remove(path)),
        }
    }

    /// The base of a path as far as it is noted here, as an undo finds it: nothing, where nothing was settled and
    /// it is as it came.
    pub(crate) fn base_of(&self, path: &RelPath) -> Result<Option<Settled>, DeriveError> {
        match self.stays.get(path) {
            Some(Stay::Seen(_)) => self.came_from(path),
            _ => Ok(self.settled.get(path).cloned()),
        }
    }

    /// Whether nothing was noted of what a path came from.
    pub(super) fn is_silent_on(&self, path: &RelPath) -> bool {
        !self.settled.contains_key(path) && !self.captures.contains_key(path)
    }

    /// What a path in the sandbox came from, as far as it is noted here.
    pub(super) fn came_from(&self, path: &RelPath) -> Result<Option<Settled>, DeriveError> {
        let captured = || {
            let state = self.captures.get(path)?.state.clone()?;
            Some(Settled::of(state))
        };
        let noted = self.settled.get(path).cloned().or_else(captured);
        let (Some(Stay::Seen(sight)), Some(before)) = (self.stays.get(path), &noted) else {
            return Ok(noted);
        };
        let Some(state) = sight.base(self, &before.state)? else { return Ok(None) };
        let late = sight.owes(&before.late, &before.state, &state);
        Ok(Some(Settled { state, partial: None, late }))
    }

    /// Whether something else tells that nothing stood at a path that was not captured itself: the
    /// whole of a directory above it was, or something above it was no directory.
    pub(crate) fn tells_nothing_stood(&self, path: &RelPath) -> bool {
        if self.subtrees.is_empty() && self.listings.is_empty() && self.captures.is_empty() {
            return false;
        }
        // A note counts for what is of its era; without a moment everything is of one.
        let moment = self.moment.as_deref();
        let holds = |path: &RelPath| moment.is_none_or(|moment| moment.holds(path));
        let cuts = |path: &RelPath| moment.is_none_or(|moment| moment.cuts(path));
        let held = holds(path);
        let mut at = path.clone();
        while let Some(parent) = at.parent() {
            let bare = self.captures.get(&parent).is_some_and(Capture::is_no_directory)
                && !self.stays.contains_key(&parent)
                && (held || !holds(&parent));
            let below = self.subtrees.contains(&parent) && cuts(&parent) == held;
            if bare || below || self.is_listed_without(self.era_of(path), &at) {
                return true;
            }
            at = parent;
        }
        false
    }

    /// Whether a list of the directory it is in says that nothing stood at a path.
    pub(crate) fn is_unlisted(&self, path: &RelPath) -> bool {
        self.is_listed_without(self.era_of(path), path)
    }

    fn is_listed_without(&self, era: Era, path: &RelPath) -> bool {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let names = self.listings.get(&era).and_then(|listed| listed.get(&parent));
        names.is_some_and(|names| !names.contains(name))
    }

    /// What the base of a path is proven against.
    pub(crate) fn era_of(&self, path: &RelPath) -> Era {
        era_of(self.moment.as_deref(), path)
    }

    /// Appends records, whole or (after a kill) as a torn tail that readers leave out.
    pub(crate) fn append(
        &mut self,
        records: Vec<Record>,
        durability: Durability,
    ) -> Result<(), DeriveError> {
        append(&self.directory, &records, durability)?;
        records.into_iter().for_each(|record| self.take(record));
        Ok(())
    }

    /// Keeps bytes; does nothing when they are kept already.
    pub(crate) fn keep_blob(&self, bytes: &[u8]) -> Result<ContentHash, DeriveError> {
        keep_blob(&self.directory, bytes)
    }

    /// Whether bytes were kept before; they may be damaged.
    pub(crate) fn has_blob(&self, hash: &ContentHash) -> bool {
        has_blob(&self.directory, hash)
    }

    /// Bytes kept before; `None` when they are not here.
    pub(crate) fn blob(&self, hash: &ContentHash) -> Result<Option<Vec<u8>>, DeriveError> {
        let path = self.directory.join(BLOBS).join(hash.to_string());
        match std::fs::read(&path) {
            Ok(bytes) if ContentHash::of(&bytes) == *hash => Ok(Some(bytes)),
            // A blob cut short by a crash is as good as none.
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(memory_error("read", &path, source)),
        }
    }
}

/// Appends records to the index in `directory`, for who has not loaded it.
pub(super) fn append(
    directory: &Path,
    records: &[Record],
    durability: Durability,
) -> Result<(), DeriveError> {
    if records.is_empty() {
        return Ok(());
    }
    let path = directory.join(INDEX);
    append_lines(&path, records, durability)
        .map_err(|source| memory_error("append to", &path, source))
}

/// Whether bytes were kept in `directory`; they may be damaged.
pub(super) fn has_blob(directory: &Path, hash: &ContentHash) -> bool {
    directory.join(BLOBS).join(hash.to_string()).exists()
}

/// Keeps bytes in `directory`; does nothing when they are kept already.
pub(super) fn keep_blob(directory: &Path, bytes: &[u8]) -> Result<ContentHash, DeriveError> {
    let hash = ContentHash::of(bytes);
    let blobs = directory.join(BLOBS);
    let path = blobs.join(hash.to_string());
    write_blob(&blobs, &path, bytes).map_err(|source| memory_error("write", &path, source))?;
    Ok(hash)
}

pub(super) fn memory_error(operation: &'static str, path: &Path, source: io::Error) -> DeriveError {
    DeriveError::Memory { operation, path: path.to_owned(), source }
}

/// The records of an index, or the number of the first damaged line.
pub(crate) fn parse_index(bytes: &[u8]) -> Result<Vec<Record>, usize> {
    let mut records = Vec::new();
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    for (number, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
        records.push(parse_line(&line[..line.len() - 1]).ok_or(number + 1)?);
    }
    Ok(records)
}

fn parse_line(line: &[u8]) -> Option<Record> {
    let (sum, json) = line.split_at_checked(CHECKSUM_DIGITS)?;
    let json = json.strip_prefix(b" ")?;
    (checksum(json).as_bytes() == sum).then_some(())?;
    serde_json::from_slice(json).ok()
}

fn checksum(json: &[u8]) -> String {
    ContentHash::of(json).to_string().chars().take(CHECKSUM_DIGITS).collect()
}

fn render_line(record: &Record) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(record).map_err(io::Error::other)?;
    Ok([checksum(&json).as_bytes(), b" ", &json, b"\n"].concat())
}

fn append_lines(path: &Path, records: &[Record], durability: Durability) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || rustix::fs::open(path, flags, Mode::from_raw_mode(0o600));
    let opened = match (open(), path.parent()) {
        // Most sandboxes never need a memory: it is made with its first record.
        (Err(rustix::io::Errno::NOENT), Some(directory)) => {
            make_private(directory)?;
            open()
        }
        (opened, _) => opened,
    };
    let mut file = File::from(opened?);
    // The keeper captures while a command line settles; one of them writes at a time.
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    let end = cut_torn_tail(&mut file)?;
    file.seek(SeekFrom::Start(end))?;
    let lines: Vec<Vec<u8>> = records.iter().map(render_line).collect::<io::Result<_>>()?;
    file.write_all(&lines.concat())?;
    if durability == Durability::Power {
        file.sync_all()?;
        if let Some(parent) = path.parent() {
            File::open(parent)?.sync_all()?;
        }
    }
    Ok(())
}

fn cut_torn_tail(file: &mut File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let end = end_of_lines(file, length)?;
    if end != length {
        file.set_len(end)?;
    }
    Ok(end)
}

/// Where the last whole line ends.
pub(super) fn end_of_lines(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut chunk = [0; 4096];
    while end > 0 {
        let start = end.saturating_sub(chunk.len() as u64);
        let part = &mut chunk[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    Ok(end)
}

/// A directory, and those above it, for nobody else; fine if it is there.
pub(super) fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(directory)
}

fn write_blob(blobs: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Ok(found) = std::fs::metadata(path)
        && found.len() == bytes.len() as u64
    {
        return Ok(());
    }
    make_private(blobs)?;
    let root = TreeRoot::open(blobs)?;
    let name = format!("{}.{}", path.file_name().unwrap_or_default().display(), std::process::id());
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(root.fd(), &name, flags, Mode::from_raw_mode(0o600))?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    // Not synced: readers check the hash, and a blob lost with the machine only turns a later merge
    // into a conflict. An approval of thousands of files must not wait for each.
    std::fs::rename(blobs.join(&name), path)
}

#[cfg(test)]
mod tests {
    use super::super::stay::Sight;
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        let path = prop::collection::vec(1u8..=255, 1..8).prop_filter_map("a path", |bytes| {
            RelPath::parse(&bytes).ok().filter(|path| !path.is_root())
        });
        let state = prop_oneof![
            Just(EntryState::Absent),
            any::<u32>().prop_map(|mode| EntryState::Dir { mode }),
            (any::<Vec<u8>>(), any::<u64>()).prop_map(|(bytes, size)| EntryState::File {
                hash: ContentHash::of(&bytes),
                size,
                mode: 0o644
            }),
            prop::collection::vec(any::<u8>(), 0..9)
                .prop_map(|target| EntryState::Symlink { target: target.into() }),
        ];
        (path, state, 0..8).prop_map(|(path, state, which)| match which {
            7 => {
                let sight = Sight { project: Some(state), sandbox: None, late: true };
                Record::Stay { path, stay: Stay::Seen(sight) }
            }
            0 => Record::Subtree { path },
            5 => {
                Record::Listing { names: vec![path.to_byte_string()], path, since: Some(i64::MAX) }
            }
            1 => Record::Anchor { path, device: 3, inode: u64::MAX, since: None },
            2 => Record::Unsettled { path, moved: Moved::Sandbox },
            6 => {
                let settled = Settled::of(state);
                let (from, to) = (settled.clone(), settled.clone());
                let undone = Box::new(Undone { from, to, way: Way::Forth });
                Record::Undone { path, undone, settled: Some(settled) }
            }
            3 => {
                let settled = Settled::of(state);
                Record::Settled { path, settled, moved: Moved::Project }
            }
            _ => {
                let identity = Identity { device: 1, inode: 2, ctime: (1_700_000_000, 5) };
                Record::Capture {
                    path,
                    capture: Capture { identity: Some(identity), state: Some(state) },
                }
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn any_cut_gives_a_prefix_and_any_flip_is_noticed(
            records in prop::collection::vec(record(), 1..8), cut in any::<u16>(), flip in any::<u16>()
        ) {
            let lines: Vec<Vec<u8>> = records.iter().map(|r| render_line(r).unwrap()).collect();
            let bytes = lines.concat();
            prop_assert_eq!(&parse_index(&bytes).unwrap(), &records);
            let torn = parse_index(&bytes[..usize::from(cut) % (bytes.len() + 1)]).unwrap();
            prop_assert_eq!(&torn[..], &records[..torn.len()]);
            let mut damaged = bytes.clone();
            let at = usize::from(flip) % damaged.len();
            damaged[at] ^= 0x20;
            let parsed = parse_index(&damaged);
            prop_assert!(parsed.is_err() || parsed.unwrap().len() < records.len());
        }
    }

    #[test]
    fn the_last_record_counts_and_a_torn_tail_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = RelPath::parse(b"a").unwrap();
        let settled = |mode| Record::Settled {
            path: path.clone(),
            settled: Settled::of(EntryState::Dir { mode }),
            moved: Moved::Project,
        };
        let mut memory = Memory::load(dir.path()).unwrap();
        memory.append(vec![settled(1), settled(2)], Durability::Power).unwrap();
        let index = dir.path().join(INDEX);
        let mut bytes = std::fs::read(&index).unwrap();
        bytes.extend_from_slice(b"0123 torn");
        std::fs::write(&index, bytes).unwrap();
        let mut memory = Memory::load(dir.path()).unwrap();
        assert_eq!(memory.settled[&path].state, EntryState::Dir { mode: 2 });
        memory.append(vec![settled(3)], Durability::Process).unwrap();
        assert_eq!(Memory::load(dir.path()).unwrap().settled[&path].state.mode(), Some(3));
    }

    #[test]
    fn blobs_come_back_only_whole() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::load(dir.path()).unwrap();
        let hash = memory.keep_blob(b"honey").unwrap();
        assert_eq!(memory.blob(&hash).unwrap().unwrap(), b"honey");
        std::fs::write(dir.path().join(BLOBS).join(hash.to_string()), b"hon").unwrap();
        assert_eq!(memory.blob(&hash).unwrap(), None);
        memory.keep_blob(b"honey").unwrap();
        assert_eq!(memory.blob(&hash).unwrap().unwrap(), b"honey");
    }
}
