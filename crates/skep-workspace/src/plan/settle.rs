//! What counts as the base after an approval, and again before it when it is undone.

use crate::base::memory::{Durability, Memory, Moved, Record, Settled};
use crate::derive::merge_modes;
use crate::error::DeriveError;
use crate::merge::{Merged, merge_text};
use crate::spec::WorkspaceSpec;
use serde::{Deserialize, Serialize};
use skep_types::{ContentHash, EntryState, RelPath};

/// The bases that an approval moves. It can be stored with the approval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// One per path.
    pub paths: Vec<SettledPath>,
}

/// The base of one path before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledPath {
    /// Where.
    pub path: RelPath,
    /// The base before; an undo goes back to it.
    pub before: Settled,
    /// The base from now on.
    pub after: Settled,
}

/// One base that moves.
struct Step<'a> {
    path: &'a RelPath,
    from: &'a Settled,
    to: &'a Settled,
}

impl SettledPath {
    fn forth(&self) -> Step<'_> {
        Step { path: &self.path, from: &self.before, to: &self.after }
    }

    fn back(&self) -> Step<'_> {
        Step { path: &self.path, from: &self.after, to: &self.before }
    }
}

/// Remembers the new bases, after the apply is done. Repeating it changes nothing.
pub fn settle(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    remember(spec, Moved::Project, settlement.paths.iter().map(SettledPath::forth))
}

/// The same after a rebase or a rejection brought the project's newer state into the sandbox.
pub fn settle_taken_in(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    remember(spec, Moved::Sandbox, settlement.paths.iter().map(SettledPath::forth))
}

/// Goes back to the earlier bases, after an undo is done: the changes are pending again. Repeating
/// it changes nothing.
pub fn unsettle(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    remember(spec, Moved::Project, settlement.paths.iter().map(SettledPath::back))
}

fn remember<'a>(
    spec: &WorkspaceSpec,
    moved: Moved,
    steps: impl Iterator<Item = Step<'a>>,
) -> Result<(), DeriveError> {
    let mut memory = Memory::load(&spec.memory)?;
    let mut records = Vec::new();
    for Step { path, from, to } in steps {
        let now = memory.settled.get(path);
        let settled = match now {
            Some(now) if now != to && now.state != from.state => {
                moved_along(&memory, now, from, to)?.unwrap_or_else(|| to.clone())
            }
            _ => to.clone(),
        };
        if now != Some(&settled) {
            records.push(Record::Settled { path: path.clone(), settled, moved });
        }
    }
    memory.append(records, Durability::Power)
}

/// A rebase moved the base on since: the user's lines that came into the sandbox with it stay in the
/// base, or they would count as the sandbox's.
fn moved_along(
    memory: &Memory,
    now: &Settled,
    from: &Settled,
    to: &Settled,
) -> Result<Option<Settled>, DeriveError> {
    let file = |settled: &Settled| match settled.state {
        EntryState::File { hash, mode, .. } => Some((hash, mode)),
        _ => None,
    };
    let (Some(now), Some(from), Some(to)) = (file(now), file(from), file(to)) else {
        return Ok(None);
    };
    let bytes = (memory.blob(&from.0)?, memory.blob(&now.0)?, memory.blob(&to.0)?);
    let ((Some(base), Some(ours), Some(theirs)), Some(mode)) =
        (bytes, merge_modes(from.1, now.1, to.1))
    else {
        return Ok(None);
    };
    let Merged::Clean(merged) = merge_text(&base, &ours, &theirs) else { return Ok(None) };
    memory.keep_blob(&merged)?;
    let (hash, size) = (ContentHash::of(&merged), merged.len() as u64);
    Ok(Some(Settled { state: EntryState::File { hash, size, mode }, partial: None }))
}
