//! Bases that belong to an earlier state of the sandbox.
//!
//! A rebase, or the rejection of a path that the user edited, brings the project's newer lines into the
//! sandbox, and moves the base with them. A state from before has none of these lines: against the newer
//! base they would count as removed by the sandbox, and an approval would revert the user. So a snapshot
//! notes how far the index reached, and whoever goes back to it takes the bases of then along.
//!
//! What was approved or undone meanwhile is so in the project, and moves the base of then as well. A base
//! that has lines of the user's which the one of then lacks is another one: what was approved on top of them
//! is left to the project's side. What was undone is taken out of every base that has it, in whatever state
//! the sandbox was when it was undone.

use super::late;
use super::memory::{
    Capture, Durability, INDEX, Memory, Moved, Record, Settled, Undone, end_of_lines, memory_error,
    parse_index,
};
use super::moved::{along, moved_along};
use super::stay::Stay;
use crate::error::DeriveError;
use crate::held::Kept;
use crate::markers::Markers;
use crate::spec::{Trees, WorkspaceSpec};
use crate::union::{self, Union};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use skep_types::{EntryState, RelPath, WorkspaceDriver};
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

/// Whether bases may have to go back to be those of when the index in `memory` reached as far as `reach`.
pub fn is_behind(memory: &Path, reach: u64) -> Result<bool, DeriveError> {
    let (_, since) = divided(memory, reach)?;
    Ok(since.iter().any(|record| !matches!(record, Record::Anchor { .. })))
}

/// Gives the sandbox, which is at the state of then, the bases of then: of paths whose bases moved with it
/// since, and of those that left it or came. May be repeated, and taken back by the same with a later
/// `reach`.
pub fn rewind(spec: &WorkspaceSpec, reach: u64) -> Result<(), DeriveError> {
    let records = rewound(spec, reach)?;
    Memory::load(&spec.memory)?.append(records, Durability::Power)
}

/// What has to be appended for that.
fn rewound(spec: &WorkspaceSpec, reach: u64) -> Result<Vec<Record>, DeriveError> {
    let (before, since) = divided(&spec.memory, reach)?;
    let inside = Inside::read(spec)?;
    let then = followed(&spec.memory, before, &since, &|path| inside.holds(path))?;
    let mut now = Memory::load(&spec.memory)?;
    // What came into the sandbox after then is not of a later moment.
    let moment = || Record::Moment { moment: then.moment.clone() };
    let mut records = Vec::new();
    records.extend((then.moment != now.moment).then(moment));
    records.extend(moved_back(&then, &now, &since));
    // In a copy everything stays, and nothing shows through.
    if spec.driver != WorkspaceDriver::Copy {
        let touched = since.iter().chain(&records).filter_map(path_of).cloned().collect();
        records.iter().cloned().for_each(|record| now.take(record));
        records.extend(stays(&inside, &then, &mut now, touched));
    }
    Ok(records)
}

/// What is in the sandbox by now. Everything is in a copy.
struct Inside(Option<Union>);

impl Inside {
    fn read(spec: &WorkspaceSpec) -> Result<Self, DeriveError> {
        if spec.driver == WorkspaceDriver::Copy {
            return Ok(Self(None));
        }
        let (trees, kept) = (Trees::open(spec)?, Kept::default());
        let union = union::read(&trees.held(&kept).levels, Markers::of(spec.driver))?;
        Ok(Self(Some(union)))
    }

    fn holds(&self, path: &RelPath) -> bool {
        self.0.as_ref().is_none_or(|union| union.covers(path))
    }
}

/// What of these paths is in the sandbox as it was then, and what left it.
fn stays(
    inside: &Inside,
    then: &Memory,
    now: &mut Memory,
    paths: BTreeSet<RelPath>,
) -> Vec<Record> {
    let mut records = Vec::new();
    for path in paths {
        let stay = match (inside.holds(&path), then.stays.get(&path)) {
            (false, _) => Stay::Left,
            (true, Some(was)) => was.clone(),
            (true, None) => Stay::Here,
        };
        if stay != Stay::Left
            && let Some(capture) = captured_then(then, now, &path)
        {
            let record = Record::Capture { path: path.clone(), capture };
            now.take(record.clone());
            records.push(record);
        }
        if stay != *now.stays.get(&path).unwrap_or(&Stay::Here) {
            records.push(Record::Stay { path: path.clone(), stay: stay.clone() });
        }
        if stay != Stay::Left && then.subtrees.contains(&path) && !now.subtrees.contains(&path) {
            records.push(Record::Subtree { path: path.clone() });
        }
        let lists = then.listings.iter().filter(|_| stay != Stay::Left);
        for (since, names) in lists.filter_map(|(era, listed)| Some((*era, listed.get(&path)?))) {
            if now.listings.get(&since).is_none_or(|listed| !listed.contains_key(&path)) {
                let names = names.iter().cloned().collect();
                records.push(Record::Listing { path: path.clone(), names, since });
            }
        }
    }
    records
}

/// What was captured of a path that is in the state of then, where another capture took its place: the path
/// left, and came again from a project that the user had edited.
fn captured_then(then: &Memory, now: &Memory, path: &RelPath) -> Option<Capture> {
    let (was, is) = (then.captures.get(path), now.captures.get(path)?);
    let nothing_stood = || then.tells_nothing_stood(path).then(Capture::of_nothing);
    let capture = was.cloned().or_else(nothing_stood).unwrap_or_else(Capture::of_unknown);
    (capture != *is).then_some(capture)
}

/// The records of the index up to `reach`, and those behind it.
fn divided(memory: &Path, reach: u64) -> Result<(Vec<Record>, Vec<Record>), DeriveError> {
    let bytes = read(memory)?;
    let split = usize::try_from(reach).unwrap_or(usize::MAX).min(bytes.len());
    Ok((parsed(memory, &bytes[..split])?, parsed(memory, &bytes[split..])?))
}

fn path_of(record: &Record) -> Option<&RelPath> {
    match record {
        Record::Moment { .. } => None,
        Record::Capture { path, .. }
        | Record::Subtree { path }
        | Record::Listing { path, .. }
        | Record::Anchor { path, .. }
        | Record::Settled { path, .. }
        | Record::Unsettled { path, .. }
        | Record::Undone { path, .. }
        | Record::Stay { path, .. }
        | Record::Aware { path } => Some(path),
    }
}

/// Everything that was ever the base of each path, by the index in `memory`.
pub(crate) fn earlier_bases(
    memory: &Path,
) -> Result<BTreeMap<RelPath, Vec<EntryState>>, DeriveError> {
    let mut earlier = BTreeMap::new();
    parsed(memory, &read(memory)?)?.iter().for_each(|record| note_earlier(record, &mut earlier));
    Ok(earlier)
}

/// Every base of each path that came with an approval, by the index in `memory`.
pub(crate) fn approved_bases(
    memory: &Path,
) -> Result<BTreeMap<RelPath, Vec<EntryState>>, DeriveError> {
    let mut approved: BTreeMap<RelPath, Vec<EntryState>> = BTreeMap::new();
    for record in parsed(memory, &read(memory)?)? {
        if let Record::Settled { path, settled, moved: Moved::Project } = record {
            approved.entry(path).or_default().push(settled.state);
        }
    }
    Ok(approved)
}

fn read(memory: &Path) -> Result<Vec<u8>, DeriveError> {
    let path = memory.join(INDEX);
    match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|source| memory_error("read", &path, source)),
    }
}

fn parsed(memory: &Path, bytes: &[u8]) -> Result<Vec<Record>, DeriveError> {
    parse_index(bytes).map_err(|line| DeriveError::Damaged { path: memory.join(INDEX), line })
}

/// What was known then, with the bases that moved with the project since.
fn followed(
    memory: &Path,
    before: Vec<Record>,
    since: &[Record],
    held: &dyn Fn(&RelPath) -> bool,
) -> Result<Memory, DeriveError> {
    let mut earlier = BTreeMap::new();
    before.iter().for_each(|record| note_earlier(record, &mut earlier));
    let mut now = Memory::of(memory, before.clone());
    let mut then = Memory::of(memory, before);
    for record in since {
        let none = Vec::new();
        if let Some((path, moves)) = moves_of(record) {
            let earlier = earlier.get(path).unwrap_or(&none);
            let moved = match &moves.with {
                With::Sandbox => None,
                // Of what is not in the sandbox, what was approved last is the base when it comes again.
                With::Approval if !held(path) && then.is_silent_on(path) => {
                    Some(moves.settled.cloned().map_or(Base::Unsettled, Base::settled))
                }
                With::Approval => follow(&then, &now, path, moves.settled, earlier)?,
                With::Undo(undone) => {
                    moved_along(&then, then.base_of(path)?.as_ref(), undone, earlier)?
                        .map(Base::settled)
                }
            };
            match moved {
                Some(Base::Settled(settled)) => then.settle(path, Some(*settled)),
                Some(Base::Unsettled) => then.settle(path, None),
                None => {}
            }
        }
        now.take(record.clone());
        // A capture tells of the era that it was proven against.
        if let Record::Capture { path, .. } = record
            && now.era_of(path) == then.era_of(path)
            && !then.captures.contains_key(path)
        {
            then.take(record.clone());
        }
        note_earlier(record, &mut earlier);
    }
    Ok(then)
}

/// What has to be appended for the bases that are others by now.
fn moved_back(then: &Memory, now: &Memory, since: &[Record]) -> Vec<Record> {
    let moved: BTreeSet<_> = since.iter().filter_map(moves_of).map(|(path, _)| path).collect();
    let back = moved.into_iter().filter(|path| then.settled.get(path) != now.settled.get(path));
    let record = |path: &RelPath| match then.settled.get(path).cloned() {
        Some(settled) => Record::Settled { settled, path: path.clone(), moved: Moved::Sandbox },
        None => Record::Unsettled { path: path.clone(), moved: Moved::Sandbox },
    };
    back.map(record).collect()
}

/// Where the base of then moves to, after the base of its time moved with an approval. Nothing, where it stays.
fn follow(
    then: &Memory,
    now: &Memory,
    path: &RelPath,
    to: Option<&Settled>,
    earlier: &[EntryState],
) -> Result<Option<Base>, DeriveError> {
    let (base, from) = (then.came_from(path)?, now.came_from(path)?);
    let same = match (&base, &from) {
        (Some(base), Some(from)) => base.state == from.state,
        // Of neither is more known than the era, and that the project proves it.
        (None, None) => {
            then.era_of(path) == now.era_of(path)
                && then.captures.get(path) == now.captures.get(path)
        }
        _ => false,
    };
    if same {
        let late = |settled: &Option<Settled>| {
            settled.as_ref().map(|settled| settled.late.clone()).unwrap_or_default()
        };
        return Ok(Some(to.map_or(Base::Unsettled, |to| {
            let late = late::followed(&late(&base), &late(&from), &to.late);
            Base::settled(Settled { late, ..to.clone() })
        })));
    }
    let (Some(base), Some(from), Some(to)) = (base, from, to) else { return Ok(None) };
    let moved = along(then, &base, &from, to)?;
    Ok(moved.filter(|moved| earlier.contains(&moved.state)).map(Base::settled))
}

/// What a base becomes.
enum Base {
    Settled(Box<Settled>),
    Unsettled,
}

impl Base {
    fn settled(settled: Settled) -> Self {
        Self::Settled(Box::new(settled))
    }
}

/// How a record moves the base of a path.
struct Moves<'a> {
    /// The base from then on; nothing, where it is not settled any more, or left alone by an undo.
    settled: Option<&'a Settled>,
    with: With<'a>,
}

/// What a base moved with.
enum With<'a> {
    Sandbox,
    Approval,
    Undo(&'a Undone),
}

/// The path whose base a record is about, and how it moves.
fn moves_of(record: &Record) -> Option<(&RelPath, Moves<'_>)> {
    let with = |moved: &Moved| match moved {
        Moved::Sandbox => With::Sandbox,
        Moved::Project => With::Approval,
    };
    match record {
        Record::Settled { path, settled, moved } => {
            Some((path, Moves { settled: Some(settled), with: with(moved) }))
        }
        Record::Unsettled { path, moved } => {
            Some((path, Moves { settled: None, with: with(moved) }))
        }
        Record::Undone { path, undone, settled } => {
            Some((path, Moves { settled: settled.as_ref(), with: With::Undo(undone) }))
        }
        // Of the state that the sandbox is in: another may lack what the user wrote.
        Record::Aware { path } => Some((path, Moves { settled: None, with: With::Sandbox })),
        Record::Capture { .. }
        | Record::Subtree { .. }
        | Record::Listing { .. }
        | Record::Anchor { .. }
        | Record::Stay { .. }
        | Record::Moment { .. } => None,
    }
}

/// Collects what was ever the base of each path.
fn note_earlier(record: &Record, earlier: &mut BTreeMap<RelPath, Vec<EntryState>>) {
    let (path, state) = match record {
        Record::Settled { path, settled, .. }
        | Record::Undone { path, settled: Some(settled), .. } => (path, &settled.state),
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

    fn go_back(at: &Path, reach: u64) {
        let (before, since) = divided(at, reach).unwrap();
        let (then, mut now) =
            (followed(at, before, &since, &|_| true).unwrap(), Memory::load(at).unwrap());
        now.append(moved_back(&then, &now, &since), Durability::Process).unwrap();
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
            let settled = Settled::of(EntryState::Dir { mode });
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
            go_back(at, first);
            let modes = ["rebased", "approved", "new"].map(|name| mode_of(at, name));
            assert_eq!(modes, [Some(1), Some(2), None]);
        }
        let length = std::fs::metadata(at.join(INDEX)).unwrap().len();
        go_back(at, first);
        assert_eq!(std::fs::metadata(at.join(INDEX)).unwrap().len(), length, "nothing to do");
        go_back(at, second);
        let modes = ["rebased", "approved", "new"].map(|name| mode_of(at, name));
        assert_eq!(modes, [Some(3), Some(2), Some(2)]);
    }
}
