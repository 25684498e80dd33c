//! The three sides of a path, for showing a conflict.

use crate::base::memory::Memory;
use crate::derive::{Contents, Derived};
use crate::error::DeriveError;
use crate::held::Kept;
use crate::spec::{DeriveOptions, Trees, WorkspaceSpec};
use skep_types::{EntryState, RelPath};

/// One side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// What stands there.
    pub state: EntryState,
    /// Its bytes, when it is a file that is not too large (and, for a base, was kept).
    pub bytes: Option<Vec<u8>>,
}

/// Base, project and sandbox of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sides {
    /// `None` when the base is not known.
    pub base: Option<Side>,
    /// What stands in the project.
    pub project: Side,
    /// What the sandbox has.
    pub sandbox: Side,
}

/// The three sides of a changed or conflicting path; `None` when it is neither.
pub fn three_sides(
    spec: &WorkspaceSpec,
    derived: &Derived,
    path: &RelPath,
) -> Result<Option<Sides>, DeriveError> {
    let Some(entry) = derived.entry(path) else { return Ok(None) };
    let trees = Trees::open(spec)?;
    let memory = Memory::load(&spec.memory)?;
    let limit = DeriveOptions::default().max_hunk_bytes;
    let kept = Kept::default();
    let held = trees.held(&kept);
    let contents = Contents { trees: &held, memory: &memory, limit };
    let base = match &entry.base.state {
        None => None,
        Some(state) => Some(Side { state: state.clone(), bytes: contents.base(&entry)? }),
    };
    let project =
        Side { state: entry.project.clone(), bytes: contents.project(path, &entry.project)? };
    let sandbox = Side { state: entry.sandbox.clone(), bytes: contents.sandbox(&entry)? };
    Ok(Some(Sides { base, project, sandbox }))
}
