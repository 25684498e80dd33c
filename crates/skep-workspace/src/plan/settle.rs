//! What counts as the base after an approval, and again before it when it is undone.

use crate::base::memory::{Durability, Memory, Record, Settled};
use crate::error::DeriveError;
use crate::spec::WorkspaceSpec;
use serde::{Deserialize, Serialize};
use skep_types::RelPath;

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

/// Remembers the new bases, after the apply is done. Repeating it changes nothing.
pub fn settle(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    remember(spec, settlement.paths.iter().map(|path| (&path.path, &path.after)))
}

/// Goes back to the earlier bases, after an undo is done: the changes are pending again. Repeating
/// it changes nothing.
pub fn unsettle(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    remember(spec, settlement.paths.iter().map(|path| (&path.path, &path.before)))
}

fn remember<'a>(
    spec: &WorkspaceSpec,
    bases: impl Iterator<Item = (&'a RelPath, &'a Settled)>,
) -> Result<(), DeriveError> {
    let mut memory = Memory::load(&spec.memory)?;
    let records = bases
        .filter(|(path, settled)| memory.settled.get(path) != Some(settled))
        .map(|(path, settled)| Record::Settled { path: path.clone(), settled: settled.clone() })
        .collect();
    memory.append(records, Durability::Power)
}
