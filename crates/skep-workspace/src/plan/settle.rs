//! What counts as the base after an approval, and again before it when it is undone.

use crate::base::memory::{Durability, Memory, Moved, Record, Settled};
use crate::base::moved::along;
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
    remember(spec, Moved::Project, settlement.paths.iter().map(SettledPath::forth), |_, step| {
        Ok(Some(step.to.clone()))
    })
}

/// The same after a rebase or a rejection brought the project's newer state into the sandbox.
pub fn settle_taken_in(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    remember(spec, Moved::Sandbox, settlement.paths.iter().map(SettledPath::forth), |_, step| {
        Ok(Some(step.to.clone()))
    })
}

/// Goes back to the earlier bases, after an undo is done: the changes are pending again. Repeating
/// it changes nothing.
pub fn unsettle(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    let steps = settlement.paths.iter().map(SettledPath::back);
    remember(spec, Moved::Project, steps, moved_along)
}

/// And forth again, after that undo was undone.
pub fn settle_again(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    let steps = settlement.paths.iter().map(SettledPath::forth);
    remember(spec, Moved::Project, steps, moved_along)
}

fn remember<'a>(
    spec: &WorkspaceSpec,
    moved: Moved,
    steps: impl Iterator<Item = Step<'a>>,
    settled: impl Fn(&Memory, &Step<'a>) -> Result<Option<Settled>, DeriveError>,
) -> Result<(), DeriveError> {
    let mut memory = Memory::load(&spec.memory)?;
    let mut records = Vec::new();
    for step in steps {
        let Some(settled) = settled(&memory, &step)? else { continue };
        if memory.settled.get(step.path) != Some(&settled) {
            records.push(Record::Settled { path: step.path.clone(), settled, moved });
        }
    }
    memory.append(records, Durability::Power)
}

/// The base may have moved since the approval that is undone: by a rebase, whose lines are in the sandbox
/// and stay in its base, or they would count as the sandbox's; or back to before it, with the sandbox.
fn moved_along(memory: &Memory, step: &Step<'_>) -> Result<Option<Settled>, DeriveError> {
    let Step { path, from, to } = step;
    // An approval settles: what is not settled has gone back, and has nothing of it.
    let Some(now) = memory.settled.get(path) else { return Ok(None) };
    if now == *to || now.state == from.state {
        return Ok(Some((*to).clone()));
    }
    if [now, from, to].into_iter().any(|settled| !settled.is_file()) {
        return Ok(Some((*to).clone()));
    }
    along(memory, now, from, to)
}
