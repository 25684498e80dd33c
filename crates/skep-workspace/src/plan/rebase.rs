//! Rebase: the sandbox takes the project's newer state in.

use super::reject::{ViewWrite, order_writes, project_write};
use super::settle::{SettledPath, Settlement};
use crate::apply::Source;
use crate::base::memory::{Memory, Settled};
use crate::derive::{Contents, Derived, Entry, MergedBytes, Standing};
use crate::error::DeriveError;
use crate::held::Kept;
use crate::spec::{DeriveOptions, Trees, WorkspaceSpec};
use skep_types::{Conflict, EntryState};

/// What a rebase writes, and what it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebased {
    /// What to write through the mounted view, in this order.
    pub writes: Vec<ViewWrite>,
    /// Where both sides do not merge; these paths are left as they are.
    pub conflicts: Vec<Conflict>,
    /// To be settled after the writes: the project's state is the base of what was merged.
    pub settlement: Settlement,
}

/// Plans to take the project's newer state in: changed paths are merged, copies that the sandbox has
/// not changed are brought up to date, conflicts are listed and not touched.
pub fn rebase(spec: &WorkspaceSpec, derived: &Derived) -> Result<Rebased, DeriveError> {
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
    for entry in derived.detail.stale.values() {
        keep_project(&contents, &memory, entry)?;
        writes.push(project_write(spec, entry));
        paths.push(moved_base(entry));
    }
    order_writes(&mut writes);
    let conflicts = derived.conflicts.clone();
    Ok(Rebased { writes, conflicts, settlement: Settlement { paths } })
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
        before: Settled { state: entry.old(), partial: entry.base.partial.clone() },
        after: Settled { state: entry.project.clone(), partial: None },
    }
}
