//! Reject: what must be written through the mounted view so that a selection is gone.
//!
//! The upper of a mounted overlay is never written directly; these writes go through the view (or
//! through a view mounted for the purpose).

use super::content::file_state;
use super::emptied::{below_what_gives_way, drop_directories, nothing_at};
use super::rebase::{Company, keep_project, moved_base};
use super::select::{self, Pick, Picked, Purpose};
use super::settle::{GivenPath, Settlement};
use crate::apply::Source;
use crate::base::memory::Memory;
use crate::derive::{Contents, Derived, Entry, Standing};
use crate::error::{DeriveError, PlanError};
use crate::held::Kept;
use crate::hunks::apply_hunks;
use crate::spec::{DeriveOptions, Trees, WorkspaceSpec};
use skep_types::{Change, EntryState, Hunk, RelPath, Selection};
use std::collections::{BTreeMap, BTreeSet};

/// One write through the view: whatever stands at `path` gives way to `state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewWrite {
    /// Where.
    pub path: RelPath,
    /// What shall stand there.
    pub state: EntryState,
    /// Where a file's bytes come from; `None` leaves the bytes that are there (another mode).
    pub content: Source,
}

/// What a rejection writes, and what counts as the base afterwards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rejected {
    /// What to write through the mounted view, in this order.
    pub writes: Vec<ViewWrite>,
    /// To be settled after the writes: where the project had moved, the sandbox has its newer state
    /// now. With the old base the user's own edits would count as the sandbox's, and come back when
    /// the user takes them back.
    pub settlement: Settlement,
    /// Where it is written for what was rejected, and not only to take in what came beside it.
    pub rejected: Vec<RelPath>,
    /// Where the project had moved, and the sandbox has the base that it had, because somebody is inside.
    pub not_taken_in: Vec<RelPath>,
}

/// Plans the rejection of a selection: after it, it is no change any more.
///
/// Where the project has moved, the sandbox gets its newer state, which is the base from then on. While somebody is inside
/// it gets the base that it had: what is written without having seen the user's lines then takes none of them away.
pub fn reject(
    spec: &WorkspaceSpec,
    derived: &Derived,
    selection: &Selection,
    company: Company,
) -> Result<Rejected, PlanError> {
    let mut picked = select::select(derived, selection, Purpose::Reject, &|_| false)?;
    let mut bare = select::bare_conflicts(derived, selection, &|_| false)?;
    // What was moved away is rejected with what it was moved to.
    bare.retain(|entry| entry.kind().is_none());
    picked.extend(bare.iter().map(|entry| (entry.path.clone(), Pick::Whole)));
    pull_in(derived, company, &mut picked);
    let trees = Trees::open(spec)?;
    let memory = Memory::load(&spec.memory)?;
    let limit = DeriveOptions::default().max_hunk_bytes;
    let kept = Kept::default();
    let held = trees.held(&kept);
    let contents = Contents { trees: &held, memory: &memory, limit };
    let mut writes = BTreeMap::new();
    let mut settlement = Settlement::default();
    let (mut not_taken_in, mut beside) = (Vec::new(), BTreeSet::new());
    for change in &derived.changes {
        let Some(pick) = picked.get(&change.path) else { continue };
        let stale = || PlanError::Stale { path: change.path.clone() };
        let entry = derived.entry(&change.path).ok_or_else(stale)?;
        let from = match &change.renamed_from {
            Some(old) => Some(derived.entry(old).ok_or_else(stale)?),
            None => None,
        };
        let (entry, from) = (entry.as_ref(), from.as_deref());
        match pick {
            Pick::Whole => {
                for entry in [Some(entry), from].into_iter().flatten() {
                    let moved = entry.standing != Standing::Clean;
                    let write = match moved && company == Company::Busy {
                        true => base_write(&contents, entry)?,
                        false => None,
                    };
                    if write.is_some() && entry.base.state.as_ref() != Some(&entry.project) {
                        not_taken_in.push(entry.path.clone());
                    }
                    if write.is_none() && moved && company == Company::Busy {
                        keep_project(&contents, &memory, entry)?;
                        let (path, state) = (entry.path.clone(), entry.project.clone());
                        settlement.given.push(GivenPath { path, state });
                    }
                    let write = write.unwrap_or_else(|| project_write(spec, entry));
                    writes.insert(entry.path.clone(), write);
                    if moved && company != Company::Busy {
                        keep_project(&contents, &memory, entry)?;
                        settlement.paths.push(moved_base(entry));
                        for entry in in_its_place(derived, entry) {
                            keep_project(&contents, &memory, entry)?;
                            writes.insert(entry.path.clone(), project_write(spec, entry));
                            settlement.paths.push(moved_base(entry));
                            beside.insert(entry.path.clone());
                        }
                    }
                }
            }
            Pick::Hunks(ids) => {
                let unknown = || PlanError::UnknownBase { path: change.path.clone() };
                let base = contents.base(from.unwrap_or(entry))?.ok_or_else(unknown)?;
                let kept: Vec<&Hunk> =
                    change.hunks.iter().filter(|hunk| !ids.contains(&hunk.id)).collect();
                let bytes = apply_hunks(&base, &kept).map_err(|_| stale())?;
                let mode = change.new.mode().unwrap_or(0o644);
                let (path, state) = (change.path.clone(), file_state(&bytes, mode));
                let content = Source::Bytes(bytes);
                writes.insert(path.clone(), ViewWrite { path, state, content });
            }
        }
    }
    let mut returning = BTreeSet::new();
    for entry in bare {
        if company == Company::Busy {
            // The directory that it is in comes back; then it is no conflict.
            not_taken_in.push(entry.path.clone());
            let removed = &derived.detail.removed_directories;
            returning.extend(entry.path.ancestors().filter(|parent| removed.contains(parent)));
        } else {
            keep_project(&contents, &memory, entry)?;
            writes.insert(entry.path.clone(), project_write(spec, entry));
            settlement.paths.push(moved_base(entry));
            beside.insert(entry.path.clone());
        }
    }
    let (stale, directories) = below_what_gives_way(derived, &writes);
    writes.extend(directories.into_iter().map(|path| (path.clone(), nothing_at(path))));
    for entry in stale {
        writes.insert(entry.path.clone(), project_write(spec, entry));
        beside.insert(entry.path.clone());
        if company != Company::Busy {
            settlement.paths.push(moved_base(entry));
        }
    }
    restore_parents(derived, &trees, returning, &mut writes)?;
    drop_directories(derived, &trees, &mut writes)?;
    let mut writes: Vec<ViewWrite> = writes.into_values().collect();
    order_writes(&mut writes);
    not_taken_in.sort();
    let rejected = writes.iter().map(|write| &write.path).filter(|path| !beside.contains(path));
    let rejected = rejected.cloned().collect();
    Ok(Rejected { writes, settlement, rejected, not_taken_in })
}

/// What the user has in the directory that takes the place of an entry.
fn in_its_place<'a>(derived: &'a Derived, entry: &'a Entry) -> impl Iterator<Item = &'a Entry> {
    let stale = entry.is_in_place_of_other().then(|| derived.detail.stale.values());
    stale.into_iter().flatten().filter(|below| below.path.starts_with(&entry.path))
}

/// Nothing can come back below something that is no directory, nor in the place of a directory
/// that still holds changed entries.
fn pull_in(derived: &Derived, company: Company, picked: &mut Picked) {
    let changes: BTreeMap<&RelPath, &Change> =
        derived.changes.iter().map(|change| (&change.path, change)).collect();
    let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
    let mut pending: Vec<RelPath> = picked.keys().cloned().collect();
    while let Some(path) = pending.pop() {
        let change = changes.get(&path);
        let restored = change.and_then(|change| change.renamed_from.as_ref()).unwrap_or(&path);
        let in_the_way = |change: &&Change| {
            !directory(&change.new) && !change.new.is_absent() && directory(&change.old)
        };
        let mut needed: Vec<RelPath> = restored
            .ancestors()
            .filter(|parent| changes.get(parent).is_some_and(in_the_way))
            .collect();
        let gives_way = |change: &&Change| {
            directory(&change.new) && !directory(&becomes(derived, change, company))
        };
        if change.is_some_and(gives_way) {
            let below = derived
                .changes
                .iter()
                .filter(|other| other.path != path && other.path.starts_with(&path));
            needed.extend(below.map(|other| other.path.clone()));
        }
        for need in needed {
            if picked.get(&need) != Some(&Pick::Whole) {
                picked.insert(need.clone(), Pick::Whole);
                pending.push(need);
            }
        }
    }
}

/// What stands at a change's path once it is rejected.
fn becomes(derived: &Derived, change: &Change, company: Company) -> EntryState {
    match derived.entry(&change.path) {
        Some(entry) if company != Company::Busy && entry.standing != Standing::Clean => {
            entry.project.clone()
        }
        _ => change.old.clone(),
    }
}

/// Puts the base back at a path, if it is known. Where nothing stood and the user has a file by now, the sandbox cannot
/// have nothing without removing that. (Of a directory what is in it shows that it is not meant.)
fn base_write(contents: &Contents<'_>, entry: &Entry) -> Result<Option<ViewWrite>, DeriveError> {
    let Some(state) = entry.base.state.clone() else { return Ok(None) };
    let directory = matches!(entry.project, EntryState::Dir { .. });
    if state.is_absent() && !entry.project.is_absent() && !directory {
        return Ok(None);
    }
    let content = match state {
        EntryState::File { .. } => match contents.base(entry)? {
            Some(bytes) => Source::Bytes(bytes),
            None => return Ok(None),
        },
        _ => Source::None,
    };
    Ok(Some(ViewWrite { path: entry.path.clone(), state, content }))
}

/// Puts the project's state back at a path.
pub(super) fn project_write(spec: &WorkspaceSpec, entry: &Entry) -> ViewWrite {
    let content = match entry.project {
        EntryState::File { .. } => {
            Source::File { root: spec.project.clone(), path: entry.path.clone() }
        }
        _ => Source::None,
    };
    ViewWrite { path: entry.path.clone(), state: entry.project.clone(), content }
}

/// Directories that the sandbox removed, above what comes back, and those that come back themselves.
pub(super) fn restore_parents(
    derived: &Derived,
    trees: &Trees,
    returning: BTreeSet<RelPath>,
    writes: &mut BTreeMap<RelPath, ViewWrite>,
) -> Result<(), DeriveError> {
    let mut parents = returning;
    let written = writes.values().filter(|write| !write.state.is_absent());
    parents.extend(written.flat_map(|write| write.path.ancestors()));
    // And those that the user made in them.
    let (removed, there) = (&derived.detail.removed_directories, &derived.detail.directories);
    parents.retain(|parent| {
        removed.contains(parent)
            || (!there.contains_key(parent)
                && parent.ancestors().any(|above| removed.contains(&above)))
    });
    for path in parents {
        let state = trees
            .project
            .state(&path)
            .map_err(|source| DeriveError::read("project", &path, source))?;
        writes.insert(path.clone(), ViewWrite { path, state, content: Source::None });
    }
    Ok(())
}

/// Removals from the deepest up, then the rest from the top down.
pub(super) fn order_writes(writes: &mut [ViewWrite]) {
    writes.sort_by(|left, right| {
        let key = |write: &ViewWrite| {
            let depth = write.path.depth() as i64;
            if write.state.is_absent() { (0, -depth) } else { (1, depth) }
        };
        key(left).cmp(&key(right)).then_with(|| left.path.cmp(&right.path))
    });
}
