//! Bases that belong to an earlier state of the sandbox.
//!
//! A rebase, or the rejection of a path that the user edited, brings the project's newer lines into the
//! sandbox, and moves the base with them. A state from before has none of these lines: against the newer
//! base they would count as removed by the sandbox, and an approval would revert the user. So a snapshot
//! notes how far the index reached, and whoever goes back to it takes the bases of then along.
//!
//! What was approved or undone meanwhile is so in the project, and moves the base of then as well. A base
//! that has lines of the user's which the one of then lacks is another one: of what moved there only that
//! counts which leads back to a base of before, as an undo does.

use super::memory::{
    Durability, INDEX, Memory, Moved, Record, Settled, end_of_lines, memory_error, parse_index,
};
use super::moved::along;
use crate::error::DeriveError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use skep_types::{EntryState, RelPath};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;

/// How far the index in `memory` reaches now, for [`rewind`].
pub fn reach(memory: &Path) -> Result<u64, DeriveError> {
    let path = memory.join(INDEX);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let end = match rustix::fs::open(&path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(0),
        Err(error) => Err(io::Error::from(error)),
        Ok(opened) => {
            let mut file = File::from(opened);
            file.metadata().and_then(|found| end_of_lines(&mut file, found.len()))
        }
    };
    end.map_err(|source| memory_error("read", &path, source))
}

/// Whether bases have moved with the sandbox since the index in `memory` reached as far as `reach`.
pub fn is_behind(memory: &Path, reach: u64) -> Result<bool, DeriveError> {
    Ok(!back(memory, reach)?.is_empty())
}

/// Gives the paths whose bases moved with the sandbox since then the bases of then. May be repeated, and
/// taken back by the same with a later `reach`.
pub fn rewind(memory: &Path, reach: u64) -> Result<(), DeriveError> {
    let records = back(memory, reach)?;
    Memory::load(memory)?.append(records, Durability::Power)
}

/// What has to be appended for that.
fn back(memory: &Path, reach: u64) -> Result<Vec<Record>, DeriveError> {
    let path = memory.join(INDEX);
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|source| memory_error("read", &path, source))?,
    };
    let split = usize::try_from(reach).unwrap_or(usize::MAX).min(bytes.len());
    let parse = |bytes: &[u8]| {
        parse_index(bytes).map_err(|line| DeriveError::Damaged { path: path.clone(), line })
    };
    let (mut then, mut earlier) = (BTreeMap::new(), BTreeMap::new());
    for record in parse(&bytes[..split])? {
        note_earlier(&record, &mut earlier);
        if let Some((path, settled, _)) = base_of(record) {
            put(&mut then, path, settled);
        }
    }
    let blobs = Memory::load(memory)?;
    let mut now = then.clone();
    let mut moved = BTreeSet::new();
    for record in parse(&bytes[split..])? {
        if let Some((path, settled, with)) = base_of(record.clone()) {
            match with {
                Moved::Sandbox => drop(moved.insert(path.clone())),
                Moved::Project => {
                    let step = (now.get(&path), settled.as_ref());
                    let earlier = earlier.get(&path).map_or(&[][..], Vec::as_slice);
                    let followed = follow(&blobs, then.get(&path), step, earlier)?;
                    put(&mut then, path.clone(), followed);
                }
            }
            put(&mut now, path, settled);
        }
        note_earlier(&record, &mut earlier);
    }
    let back = moved.into_iter().filter(|path| then.get(path) != now.get(path));
    let record = |path: RelPath| match then.get(&path) {
        Some(settled) => Record::Settled { settled: settled.clone(), path, moved: Moved::Sandbox },
        None => Record::Unsettled { path, moved: Moved::Sandbox },
    };
    Ok(back.map(record).collect())
}

/// The base of then, after the base of its time moved with the project.
fn follow(
    blobs: &Memory,
    then: Option<&Settled>,
    (from, to): (Option<&Settled>, Option<&Settled>),
    earlier: &[EntryState],
) -> Result<Option<Settled>, DeriveError> {
    if then.map(|settled| &settled.state) == from.map(|settled| &settled.state) {
        return Ok(to.cloned());
    }
    let (Some(base), Some(from), Some(to)) = (then, from, to) else { return Ok(then.cloned()) };
    let moved = along(blobs, base, from, to)?;
    Ok(moved.filter(|moved| earlier.contains(&moved.state)).or_else(|| then.cloned()))
}

/// The path whose base a record is about, that base, and what it moved with.
fn base_of(record: Record) -> Option<(RelPath, Option<Settled>, Moved)> {
    match record {
        Record::Settled { path, settled, moved } => Some((path, Some(settled), moved)),
        Record::Unsettled { path, moved } => Some((path, None, moved)),
        Record::Capture { .. }
        | Record::Subtree { .. }
        | Record::Listing { .. }
        | Record::Anchor { .. } => None,
    }
}

fn put(bases: &mut BTreeMap<RelPath, Settled>, path: RelPath, settled: Option<Settled>) {
    match settled {
        Some(settled) => drop(bases.insert(path, settled)),
        None => drop(bases.remove(&path)),
    }
}

/// Collects what was ever the base of each path.
fn note_earlier(record: &Record, earlier: &mut BTreeMap<RelPath, Vec<EntryState>>) {
    let (path, state) = match record {
        Record::Settled { path, settled, .. } => (path, &settled.state),
        Record::Capture { path, capture } => match &capture.state {
            Some(state) => (path, state),
            None => return,
        },
        _ => return,
    };
    earlier.entry(path.clone()).or_default().push(state.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::EntryState;

    fn path(name: &str) -> RelPath {
        RelPath::parse(name.as_bytes()).unwrap()
    }

    fn mode_of(memory: &Path, name: &str) -> Option<u32> {
        let memory = Memory::load(memory).unwrap();
        memory.settled.get(&path(name)).and_then(|settled| settled.state.mode())
    }

    #[test]
    fn only_what_moved_with_the_sandbox_goes_back_and_forth() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let settle = |name: &str, mode, moved| {
            let settled = Settled { state: EntryState::Dir { mode }, partial: None };
            let record = Record::Settled { path: path(name), settled, moved };
            Memory::load(at).unwrap().append(vec![record], Durability::Process).unwrap();
        };
        assert_eq!(reach(at).unwrap(), 0);
        settle("rebased", 1, Moved::Project);
        settle("approved", 1, Moved::Project);
        let first = reach(at).unwrap();
        assert!(!is_behind(at, first).unwrap());
        settle("approved", 2, Moved::Project);
        settle("rebased", 2, Moved::Sandbox);
        settle("rebased", 3, Moved::Project);
        settle("new", 2, Moved::Sandbox);
        let second = reach(at).unwrap();
        assert!(is_behind(at, first).unwrap());
        for _ in 0..2 {
            rewind(at, first).unwrap();
            let modes = ["rebased", "approved", "new"].map(|name| mode_of(at, name));
            assert_eq!(modes, [Some(1), Some(2), None]);
        }
        let length = std::fs::metadata(at.join(INDEX)).unwrap().len();
        rewind(at, first).unwrap();
        assert_eq!(std::fs::metadata(at.join(INDEX)).unwrap().len(), length, "nothing to do");
        rewind(at, second).unwrap();
        let modes = ["rebased", "approved", "new"].map(|name| mode_of(at, name));
        assert_eq!(modes, [Some(3), Some(2), Some(2)]);
    }
}
