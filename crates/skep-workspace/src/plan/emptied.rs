//! Directories that go: with the last of what is in them, or because something else takes their place.
//!
//! A directory is removed through the view, where only an empty one can be. So it is asked what the
//! sandbox has in it, changed or not: a removal that fails half way would leave a part of a rejection done.

use super::reject::ViewWrite;
use crate::apply::Source;
use crate::derive::{Derived, Entry};
use crate::error::DeriveError;
use crate::spec::Trees;
use skep_types::{EntryState, RelPath};
use std::collections::{BTreeMap, BTreeSet};

/// Directories that neither the project nor a dependency has, once everything in them goes. One with a change of
/// its own is decided by itself.
pub(super) fn drop_directories(
    derived: &Derived,
    trees: &Trees,
    writes: &mut BTreeMap<RelPath, ViewWrite>,
) -> Result<(), DeriveError> {
    let children = children_of(derived);
    for path in derived.detail.directories.keys().rev() {
        let goes =
            |child: &&RelPath| writes.get(*child).is_some_and(|write| write.state.is_absent());
        let emptied = children
            .get(path)
            .is_some_and(|children| !children.is_empty() && children.iter().all(goes));
        let decided = writes.contains_key(path) || derived.entry(path).is_some();
        if emptied && !decided && !stands_elsewhere(trees, path)? {
            writes.insert(path.clone(), nothing_at(path));
        }
    }
    Ok(())
}

/// What the sandbox has unchanged below a path where it has a directory and gets something else, or nothing; the user
/// has it no more. With it go the directories that it is in.
pub(super) fn below_what_gives_way<'a>(
    derived: &'a Derived,
    writes: &BTreeMap<RelPath, ViewWrite>,
) -> (Vec<&'a Entry>, Vec<&'a RelPath>) {
    let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
    let directories = &derived.detail.directories;
    let given = writes.values().filter(|write| !directory(&write.state));
    let tops: BTreeSet<&RelPath> =
        given.map(|write| &write.path).filter(|path| directories.contains_key(path)).collect();
    let is_below = |path: &RelPath| path.ancestors().any(|parent| tops.contains(&parent));
    let stale = derived.detail.stale.values();
    let stale = stale.filter(|entry| !entry.sandbox.is_absent() && is_below(&entry.path));
    let below = directories.keys().filter(|path| is_below(path) && !writes.contains_key(path));
    (stale.collect(), below.collect())
}

/// The write that removes something.
pub(super) fn nothing_at(path: &RelPath) -> ViewWrite {
    ViewWrite { path: path.clone(), state: EntryState::Absent, content: Source::None }
}

/// Whether the view shows something at a path though the sandbox has nothing there.
fn stands_elsewhere(trees: &Trees, path: &RelPath) -> Result<bool, DeriveError> {
    let dependencies = trees.dependencies.iter().map(|tree| ("dependency layer", tree));
    for (what, tree) in std::iter::once(("project", &trees.project)).chain(dependencies) {
        let found = tree.stat(path).map_err(|source| DeriveError::read(what, path, source))?;
        if found.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the sandbox has in each of its directories, also what it has not changed.
fn children_of(derived: &Derived) -> BTreeMap<RelPath, BTreeSet<&RelPath>> {
    let changed = derived.changes.iter().filter(|change| !change.new.is_absent());
    let detail = &derived.detail;
    let present = detail.entries.values().chain(detail.stale.values());
    let present = present.filter(|entry| !entry.sandbox.is_absent()).map(|entry| &entry.path);
    let present = present.chain(changed.map(|change| &change.path));
    let mut children: BTreeMap<RelPath, BTreeSet<&RelPath>> = BTreeMap::new();
    for path in present.chain(detail.directories.keys()) {
        if let Some(parent) = path.parent() {
            children.entry(parent).or_default().insert(path);
        }
    }
    children
}
