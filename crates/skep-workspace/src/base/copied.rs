//! Captures for a copy. What it began with is known by hash from the start; the bytes are not kept, for the
//! project has them. So those of what was changed inside are kept while it still does, as in every other
//! workspace. A hash is all the proof that is needed.

use super::capture::{CAPTURE_BYTES, CaptureSummary};
use super::known::Known;
use super::memory;
use super::room::{Room, taken_by};
use super::{clock_ns, ctime_ns};
use crate::error::DeriveError;
use crate::markers::Markers;
use crate::spec::{HeldTrees, WorkspaceSpec};
use crate::tree::Meta;
use crate::union::{self, Seen, Union};
use rustix::fs::FileType;
use skep_types::{ContentHash, RelPath};
use std::collections::HashSet;

/// What was captured for a copy.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// Looked at, with whatever outcome: what the project has lost does not come back.
    looked_at: HashSet<RelPath>,
    /// When the last look began: whatever was changed later carries this time or a later one.
    begun_ns: i128,
    /// What the bytes take up that were kept.
    kept: u64,
}

impl Copied {
    /// Keeps the bytes of every file that is not as it was copied, at most `most` of them.
    ///
    /// A copy has the time of what it was copied from. Who writes and sets it back loses a merge, and
    /// nothing else.
    pub(super) fn capture(
        &mut self,
        spec: &WorkspaceSpec,
        trees: &HeldTrees<'_>,
        known: &Known,
        most: Option<u64>,
    ) -> Result<CaptureSummary, DeriveError> {
        let own = most.map_or(u64::MAX, |most| most.saturating_sub(self.kept));
        let mut room = Room::new(spec.upper.clone(), own);
        let since = std::mem::replace(&mut self.begun_ns, clock_ns());
        let mut summary = CaptureSummary::default();
        let union = union::read(&trees.levels, Markers::of(spec.driver))?;
        let mut changed: Vec<(RelPath, u64)> = Vec::new();
        for path in union.iter().map(|(path, _)| path).filter(|path| known.was_copied(path)) {
            changed.extend(altered(trees, path, since).map(|size| (path.clone(), size)));
        }
        changed.extend(removed(trees, &union, since).filter(|(path, _)| known.was_copied(path)));
        for (path, size) in changed {
            if self.looked_at.contains(&path) || size > CAPTURE_BYTES || !room.for_file(size) {
                continue;
            }
            // Gone or shut since: there is nothing to keep.
            let bytes = trees.project.root().read(&path, CAPTURE_BYTES).unwrap_or_default();
            let hash = ContentHash::of(&bytes);
            if !known.was_copied_as(&path, &hash) {
                summary.unproven += 1;
            } else if !memory::has_blob(&spec.memory, &hash) {
                memory::keep_blob(&spec.memory, &bytes)?;
                self.kept = self.kept.saturating_add(taken_by(size));
                summary.captured += 1;
            }
            self.looked_at.insert(path);
        }
        Ok(summary)
    }
}

/// The files of the project that are not in the copy, in directories of it that were changed since: they came
/// later, or were removed inside. What is made there again merges with what the user does meanwhile only if
/// the bytes were kept.
fn removed<'a>(
    trees: &'a HeldTrees<'_>,
    union: &'a Union,
    since_ns: i128,
) -> impl Iterator<Item = (RelPath, u64)> + 'a {
    let directories = union
        .iter()
        .filter(|(_, seen)| matches!(seen, Seen::Dir { .. }))
        .map(|(path, _)| path.clone());
    let changed = move |path: &RelPath| {
        let meta = trees.levels.first().and_then(|copy| copy.meta(path).ok().flatten());
        meta.is_some_and(|meta| ctime_ns(&meta) >= since_ns)
    };
    let mut pending: Vec<RelPath> =
        std::iter::once(RelPath::root()).chain(directories).filter(changed).collect();
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        // Gone or shut: there is nothing to keep.
        for (name, kind) in trees.project.root().list(&directory).unwrap_or_default() {
            let Ok(path) = directory.join(&name) else { continue };
            if union.get(&path).is_some() {
                continue;
            }
            match kind {
                FileType::Directory => pending.push(path),
                FileType::RegularFile => {
                    let meta = trees.project.meta(&path).ok().flatten();
                    found.extend(meta.map(|meta| (path, meta.size)));
                }
                _ => {}
            }
        }
    }
    found.into_iter()
}

/// The size of a file in the project, where the copy of it was changed since, and has another size or time.
fn altered(trees: &HeldTrees<'_>, path: &RelPath, since_ns: i128) -> Option<u64> {
    let copy = trees.levels.first()?.meta(path).ok().flatten()?;
    if ctime_ns(&copy) < since_ns {
        return None;
    }
    let file = |meta: &Meta| meta.kind() == FileType::RegularFile;
    let project = trees.project.meta(path).ok().flatten().filter(file)?;
    let same = file(&copy) && (copy.size, copy.written) == (project.size, project.written);
    (!same).then_some(project.size)
}
