//! What a capture has to know of the memory: which paths need no look any more.
//!
//! A keeper captures at the end of every exec. Reading the whole index each time would make an exec
//! as slow as everything that was changed before it is large; so only the lines that came since the
//! last time are read, and of a path a few bytes are kept.

use super::memory::{INDEX, Record, Settled, memory_error, parse_index};
use super::moment::{Anchors, Era, Moment};
use super::stay::Stay;
use super::{Identity, room};
use crate::error::DeriveError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use skep_types::{ByteString, ContentHash, EntryState, RelPath};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Stands for a path: half of its hash, which no two paths share.
type Mark = [u8; 16];

/// What stood in the project, as far as a capture cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stood {
    Directory,
    /// A file or a link: there is no base below it.
    Otherwise,
    /// Nothing.
    Nothing,
}

impl Stood {
    fn is_no_directory(self) -> bool {
        self != Self::Directory
    }
}

/// What is known of one path.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    captured: Option<Stood>,
    settled: Option<Stood>,
    stay: Since,
}

/// What became of a path since its base was noted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Since {
    #[default]
    Here,
    Left,
    Seen,
}

/// What the index said up to where it was read.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Held open: as long as it is, no other file has its inode.
    index: Option<File>,
    bytes: u64,
    lines: usize,
    paths: HashMap<Mark, Standing>,
    /// The names of those in each directory of which something was noted.
    names: HashMap<Mark, HashSet<ByteString>>,
    subtrees: HashSet<Mark>,
    listings: HashMap<Era, HashMap<RelPath, HashSet<ByteString>>>,
    anchors: HashMap<Era, Anchors>,
    moment: Option<Box<Moment>>,
    /// The files of a copy as they were when it was made: half of the hash of each.
    copied: HashMap<Mark, [u8; 16]>,
    /// Where somebody inside may not know what the user wrote: since the path came, and of its base.
    late_sights: HashSet<RelPath>,
    late_bases: HashSet<RelPath>,
    /// What the captured bytes take up.
    kept: u64,
    /// How often the base of a path was moved, or everything was forgotten.
    losses: u64,
}

impl Known {
    /// Takes in what was appended to the index in `memory` since the last time.
    pub(crate) fn follow(&mut self, memory: &Path) -> Result<(), DeriveError> {
        let path = memory.join(INDEX);
        let added = self.added(&path).map_err(|source| memory_error("read", &path, source))?;
        let whole = added.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let records = parse_index(&added[..whole])
            .map_err(|line| DeriveError::Damaged { path, line: self.lines + line })?;
        self.bytes += whole as u64;
        self.lines += records.len();
        records.into_iter().for_each(|record| self.take(record));
        Ok(())
    }

    fn added(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut index = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            Err(Errno::NOENT) => {
                self.lose_all();
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        };
        let found = index.metadata()?;
        let followed = match &self.index {
            Some(held) => {
                let held = held.metadata()?;
                (held.dev(), held.ino()) == (found.dev(), found.ino()) && found.len() >= self.bytes
            }
            None => false,
        };
        if !followed {
            self.lose_all();
        }
        index.seek(SeekFrom::Start(self.bytes))?;
        let mut added = Vec::new();
        index.read_to_end(&mut added)?;
        self.index = Some(index);
        Ok(added)
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Capture { path, capture } => {
                if let Some(EntryState::File { hash, size, .. }) = capture.state {
                    if capture.identity == Some(Identity::COPIED) {
                        self.copied.insert(mark(&path), hash.half());
                    } else {
                        self.kept = self.kept.saturating_add(room::taken_by(size));
                    }
                }
                let stood = match (capture.is_no_directory(), &capture.identity) {
                    (false, _) => Stood::Directory,
                    (true, Some(_)) => Stood::Otherwise,
                    (true, None) => Stood::Nothing,
                };
                // Without a state it went with a directory, or is too large to be told apart anyway.
                if capture.state.is_some() {
                    self.name(&path);
                }
                self.late_sights.remove(&path);
                let standing = self.standing(&path);
                (standing.captured, standing.stay) = (Some(stood), Since::Here);
            }
            Record::Settled { path, settled, .. }
            | Record::Undone { path, settled: Some(settled), .. } => {
                self.move_base(&path, Some(&settled));
            }
            Record::Unsettled { path, .. } => self.move_base(&path, None),
            Record::Aware { path } => {
                self.late_sights.remove(&path);
                self.late_bases.remove(&path);
            }
            Record::Undone { settled: None, .. } => {}
            Record::Stay { path, stay } => self.take_stay(&path, &stay),
            Record::Subtree { path } => drop(self.subtrees.insert(mark(&path))),
            Record::Listing { path, names, since } => {
                self.listings.entry(since).or_default().insert(path, names.into_iter().collect());
            }
            Record::Anchor { path, device, inode, since } => {
                self.anchors.entry(since).or_default().insert(path, (device, inode));
            }
            Record::Moment { moment } => {
                self.moment = moment;
                self.losses += 1;
            }
        }
    }

    fn move_base(&mut self, path: &RelPath, settled: Option<&Settled>) {
        self.late_sights.remove(path);
        match settled.is_some_and(|settled| !settled.late.is_empty()) {
            true => self.late_bases.insert(path.clone()),
            false => self.late_bases.remove(path),
        };
        let standing = self.standing(path);
        standing.settled = settled.map(|settled| stood(&settled.state));
        if standing.stay == Since::Seen {
            standing.stay = Since::Here;
        }
        self.losses += 1;
    }

    fn name(&mut self, path: &RelPath) {
        if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
            self.names.entry(mark(&parent)).or_default().insert(name.to_vec().into());
        }
    }

    /// The names in a directory of which something was noted.
    pub(crate) fn names_in(&self, directory: &RelPath) -> impl Iterator<Item = &ByteString> {
        self.names.get(&mark(directory)).into_iter().flatten()
    }

    fn take_stay(&mut self, path: &RelPath, stay: &Stay) {
        self.name(path);
        self.standing(path).stay = match stay {
            Stay::Here => Since::Here,
            Stay::Left => Since::Left,
            Stay::Seen(_) => Since::Seen,
        };
        self.late_sights.remove(path);
        if let Stay::Seen(sight) = stay {
            if sight.late {
                self.late_sights.insert(path.clone());
            }
            for state in [&sight.project, &sight.sandbox].into_iter().flatten() {
                if let EntryState::File { size, .. } = state {
                    self.kept = self.kept.saturating_add(room::taken_by(*size));
                }
            }
        }
        if *stay == Stay::Left {
            self.subtrees.remove(&mark(path));
            self.listings.values_mut().for_each(|listed| drop(listed.remove(path)));
            self.losses += 1;
        }
    }

    fn lose_all(&mut self) {
        *self = Self { losses: self.losses + 1, ..Self::default() };
    }

    /// A number that is another one when a path may need a look that needed none before.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    fn standing(&mut self, path: &RelPath) -> &mut Standing {
        self.paths.entry(mark(path)).or_default()
    }

    fn of(&self, path: &RelPath) -> Standing {
        self.paths.get(&mark(path)).copied().unwrap_or_default()
    }

    /// What of a path has still to be captured: itself, and what the project has below it.
    pub(crate) fn needs(&self, path: &RelPath) -> Needs {
        let Standing { captured, settled, stay } = self.of(path);
        let bare = settled.or(captured).is_some_and(Stood::is_no_directory) && stay == Since::Here;
        // What was seen when its base was not proven any more is known as well as it ever will be.
        let path_needed = captured.is_none() && settled.is_none() && stay != Since::Seen;
        Needs {
            path: path_needed,
            left: stay == Since::Left,
            sight: path_needed && stay == Since::Here,
            below: !bare && !self.subtrees.contains(&mark(path)),
            bare,
        }
    }

    /// Whether what was noted of a path tells what `stands` in the project now, as far as a look at that can say.
    pub(crate) fn tells(&self, path: &RelPath, stands: bool) -> bool {
        let Standing { captured, settled, stay } = self.of(path);
        // What was settled is the project's of a certain time, and not of any.
        settled.is_none()
            && stay == Since::Here
            && captured.is_some_and(|stood| (stood != Stood::Nothing) == stands)
    }

    pub(crate) fn is_settled(&self, path: &RelPath) -> bool {
        self.of(path).settled.is_some()
    }

    pub(crate) fn is_captured(&self, path: &RelPath) -> bool {
        self.of(path).captured.is_some()
    }

    /// Where somebody inside may not know what the user wrote.
    pub(crate) fn late(&self) -> HashSet<&RelPath> {
        self.late_sights.union(&self.late_bases).collect()
    }

    /// What the captured bytes take up.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// Directories of which all names of an era are known.
    pub(crate) fn listings(&self, era: Era) -> HashMap<RelPath, HashSet<ByteString>> {
        self.listings.get(&era).cloned().unwrap_or_default()
    }

    /// The last moment.
    pub(crate) fn moment(&self) -> Option<&Moment> {
        self.moment.as_deref()
    }

    /// Whether the whole workspace was captured when it was copied.
    pub(crate) fn is_complete_copy(&self) -> bool {
        self.subtrees.contains(&mark(&RelPath::root()))
    }

    /// Whether these are the bytes that a file of the copy began with.
    pub(crate) fn was_copied_as(&self, path: &RelPath, hash: &ContentHash) -> bool {
        self.copied.get(&mark(path)) == Some(&hash.half())
    }

    /// Whether it is a file that was copied.
    pub(crate) fn was_copied(&self, path: &RelPath) -> bool {
        self.copied.contains_key(&mark(path))
    }

    pub(crate) fn anchors(&self) -> &HashMap<Era, Anchors> {
        &self.anchors
    }
}

/// What a capture has still to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    pub path: bool,
    /// It was away, and is here again.
    pub left: bool,
    /// Where its base is not proven any more: what both sides are now.
    pub sight: bool,
    pub below: bool,
    /// It was no directory: there is no base below it.
    pub bare: bool,
}

fn stood(state: &EntryState) -> Stood {
    match state {
        EntryState::Dir { .. } => Stood::Directory,
        EntryState::Absent => Stood::Nothing,
        _ => Stood::Otherwise,
    }
}

fn mark(path: &RelPath) -> Mark {
    ContentHash::of(path.as_bytes()).half()
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Capture, Durability, Memory};
    use super::*;

    fn path(name: &str) -> RelPath {
        RelPath::parse(name.as_bytes()).unwrap()
    }

    /// Of what is captured itself.
    fn needs(below: bool, bare: bool) -> Needs {
        Needs { path: false, left: false, sight: false, below, bare }
    }

    fn captured(name: &str, state: EntryState) -> Record {
        Record::Capture {
            path: path(name),
            capture: Capture { identity: None, state: Some(state) },
        }
    }

    #[test]
    fn what_others_append_is_taken_in_and_a_new_index_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut known = Known::default();
        known.follow(dir.path()).unwrap();
        assert_eq!(
            known.needs(&path("a")),
            Needs { path: true, left: false, sight: true, below: true, bare: false }
        );

        let mut memory = Memory::load(dir.path()).unwrap();
        let append = |memory: &mut Memory, record| {
            memory.append(vec![record], Durability::Process).unwrap();
        };
        append(&mut memory, captured("a", EntryState::Absent));
        append(&mut memory, captured("d", EntryState::Dir { mode: 0o755 }));
        known.follow(dir.path()).unwrap();
        assert_eq!(known.needs(&path("a")), needs(false, true));
        assert_eq!(known.needs(&path("d")), needs(true, false));

        append(&mut memory, Record::Subtree { path: path("d") });
        std::fs::OpenOptions::new()
            .append(true)
            .open(dir.path().join(INDEX))
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"0123 torn"))
            .unwrap();
        known.follow(dir.path()).unwrap();
        assert_eq!(known.needs(&path("d")), needs(false, false));

        append(&mut memory, captured("late", EntryState::Absent));
        known.follow(dir.path()).unwrap();
        assert!(known.is_captured(&path("late")), "behind a torn tail that was cut off");

        std::fs::remove_file(dir.path().join(INDEX)).unwrap();
        let mut memory = Memory::load(dir.path()).unwrap();
        for name in ["b", "c", "e", "f", "g"] {
            append(&mut memory, captured(name, EntryState::Absent));
        }
        known.follow(dir.path()).unwrap();
        assert!(!known.is_captured(&path("a")) && known.is_captured(&path("g")));
    }
}
