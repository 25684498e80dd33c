//! Rebase: the sandbox takes the project's newer state in.

use super::emptied::{drop_directories, nothing_at};
use super::reject::{ViewWrite, order_writes, project_write, restore_parents};
use super::settle::{SettledPath, Settlement};
use crate::apply::Source;
use crate::base::memory::{Memory, Settled};
use crate::derive::{Contents, Derived, Entry, MergedBytes, Standing};
use crate::error::DeriveError;
use crate::held::Kept;
use crate::spec::{DeriveOptions, Trees, WorkspaceSpec};
use serde::{Deserialize, Serialize};
use skep_types::{Conflict, EntryState, RelPath};
use std::collections::{BTreeMap, BTreeSet};

/// What a rebase writes, and what it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebased {
    /// What to write through the mounted view, in this order.
    pub writes: Vec<ViewWrite>,
    /// Where both sides do not merge; these paths are left as they are.
    pub conflicts: Vec<Conflict>,
    /// What would be taken in if nobody were inside, or nothing up; left as it is until then.
    pub put_off: Vec<PutOff>,
    /// To be settled after the writes: the project's state is the base of what was merged.
    pub settlement: Settlement,
}

/// A path that a rebase leaves for another time. It is no conflict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutOff {
    /// Where.
    pub path: RelPath,
    /// Why, and until when.
    pub reason: String,
}

/// Who is inside while the sandbox is changed from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// Nobody, and no view is up in which the sandbox has run.
    None,
    /// Nobody, in a view that is up.
    Idle,
    /// Somebody who may have read a file before the user edited it, and write what it knew afterwards.
    Busy,
}

/// Plans to take the project's newer state in: changed paths are merged, copies that the sandbox has
/// not changed are brought up to date, conflicts are listed and not touched. A directory that the user removed goes with
/// the last of what the sandbox has in it.
///
/// While somebody is inside, nothing of this is done to files that the sandbox has: with the project's newer state as
/// their base, what is written without having seen it would take the user's lines away. An approval merges
/// them all the same.
pub fn rebase(
    spec: &WorkspaceSpec,
    derived: &Derived,
    company: Company,
) -> Result<Rebased, DeriveError> {
    if company == Company::Busy {
        return Ok(put_off(derived));
    }
    let trees = Trees::open(spec)?;
    let memory = Memory::load(&spec.memory)?;
    let limit = DeriveOptions::default().max_hunk_bytes;
    let kept = Kept::default();
    let held = trees.held(&kept);
    let contents = Contents { trees: &held, memory: &memory, limit };
    let (mut writes, mut paths) = (Vec::new(), Vec::new());
    for entry in derived.detail.entries.values() {
        let Standing::Merges(merge) = &entry.standing else { continue };
        keep_project(&contents, &memory, entry)?;
        let content = match &merge.bytes {
            MergedBytes::New(bytes) => Source::Bytes(bytes.clone()),
            MergedBytes::Project => project_write(spec, entry).content,
            // The sandbox's own file: only its mode can differ.
            MergedBytes::Sandbox => Source::None,
        };
        if merge.state != entry.sandbox {
            let (path, state) = (entry.path.clone(), merge.state.clone());
            writes.push(ViewWrite { path, state, content });
        }
        paths.push(moved_base(entry));
    }
    let mut put_off = Vec::new();
    let mut left = left_alone(derived, company, &mut put_off);
    left.extend(disputed(derived));
    let stays = |path: &RelPath| left.iter().any(|top| path.starts_with(top));
    for entry in derived.detail.stale.values().filter(|entry| !stays(&entry.path)) {
        keep_project(&contents, &memory, entry)?;
        writes.push(project_write(spec, entry));
        paths.push(moved_base(entry));
    }
    for top in derived.detail.replaced().into_iter().filter(|path| !stays(path)) {
        let below = derived.detail.directories.keys();
        let below = below.filter(|path| *path != top && path.starts_with(top));
        writes.extend(below.map(nothing_at));
    }
    let mut writes: BTreeMap<RelPath, ViewWrite> =
        writes.into_iter().map(|write| (write.path.clone(), write)).collect();
    restore_parents(derived, &trees, BTreeSet::new(), &mut writes)?;
    drop_directories(derived, &trees, &mut writes)?;
    let mut writes: Vec<ViewWrite> = writes.into_values().collect();
    order_writes(&mut writes);
    let conflicts = derived.conflicts.clone();
    Ok(Rebased { writes, conflicts, put_off, settlement: Settlement { paths, given: Vec::new() } })
}

/// Where the user has a directory and the sandbox's own work stands in its place: what is in it is taken in
/// when that is decided.
fn disputed(derived: &Derived) -> impl Iterator<Item = &RelPath> {
    let disputed =
        |entry: &&Entry| entry.standing != Standing::Clean && entry.is_in_place_of_other();
    derived.detail.entries.values().filter(disputed).map(|entry| &entry.path)
}

/// What would be taken in, if nobody were inside.
fn put_off(derived: &Derived) -> Rebased {
    let merges = |entry: &&Entry| matches!(entry.standing, Standing::Merges(_));
    let merging = derived.detail.entries.values().filter(merges);
    let moved = merging.chain(derived.detail.stale.values()).map(|entry| &entry.path);
    let moved: BTreeSet<&RelPath> = moved.chain(derived.detail.replaced()).collect();
    let disputed: Vec<&RelPath> = disputed(derived).collect();
    let conflicts = derived.conflicts.clone();
    let listed: BTreeSet<&RelPath> = conflicts.iter().map(|one| &one.path).collect();
    let put_off = moved
        .into_iter()
        .filter(|path| !listed.contains(path) && !disputed.iter().any(|top| path.starts_with(top)))
        .map(|path| {
            let merges = derived.detail.entries.contains_key(path);
            let until = if merges { ", and an approval merges it" } else { "" };
            let reason = format!(
                "a command that runs in the sandbox may have read it before you edited it; it is taken in when \
                 nobody is inside{until}"
            );
            PutOff { path: path.clone(), reason }
        });
    let put_off = put_off.collect();
    Rebased { writes: Vec::new(), conflicts, put_off, settlement: Settlement::default() }
}

/// Directories that are none any more in the project, and stay as they are in the sandbox: it has
/// work in them, or a view is mounted whose kernel still takes them for directories.
fn left_alone<'a>(
    derived: &'a Derived,
    company: Company,
    put_off: &mut Vec<PutOff>,
) -> BTreeSet<&'a RelPath> {
    let mut left = BTreeSet::new();
    for path in derived.detail.replaced() {
        let works = |entry: &Entry| !entry.sandbox.is_absent() && entry.path.starts_with(path);
        if derived.detail.entries.values().any(works) {
            left.insert(path);
        } else if company != Company::None {
            let reason = "is no directory any more in the project; that is taken in when the \
                          sandbox is stopped"
                .to_owned();
            put_off.push(PutOff { path: path.clone(), reason });
            left.insert(path);
        }
    }
    left
}

pub(super) fn keep_project(
    contents: &Contents<'_>,
    memory: &Memory,
    entry: &Entry,
) -> Result<(), DeriveError> {
    if let EntryState::File { .. } = entry.project
        && let Some(bytes) = contents.project(&entry.path, &entry.project)?
    {
        memory.keep_blob(&bytes)?;
    }
    Ok(())
}

pub(super) fn moved_base(entry: &Entry) -> SettledPath {
    SettledPath {
        path: entry.path.clone(),
        before: entry.settled(),
        after: Settled::of(entry.project.clone()),
    }
}
