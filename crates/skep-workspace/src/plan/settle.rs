//! What counts as the base after an approval, and again before it when it is undone.

use crate::base::memory::{Durability, Memory, Moved, Record, Settled, Undone, Way};
use crate::base::moved::moved_along;
use crate::base::rewind::{approved_bases, earlier_bases};
use crate::base::stay::{Sight, Stay};
use crate::error::DeriveError;
use crate::spec::WorkspaceSpec;
use serde::{Deserialize, Serialize};
use skep_types::{EntryState, RelPath};

/// The bases that an approval moves. It can be stored with the approval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// One per path.
    pub paths: Vec<SettledPath>,
    /// Where the sandbox was given what the project has, while somebody was inside who may know something older.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenPath>,
}

impl Settlement {
    /// Whether nothing moves.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.given.is_empty()
    }
}

/// What a path was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenPath {
    /// Where.
    pub path: RelPath,
    /// What the project had there.
    pub state: EntryState,
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
    remember(spec, Moved::Project, settlement)
}

/// The same after a rebase or a rejection brought the project's newer state into the sandbox.
pub fn settle_taken_in(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    remember(spec, Moved::Sandbox, settlement)
}

/// Goes back to the earlier bases, after an undo is done: the changes are pending again. Repeating
/// it changes nothing.
pub fn unsettle(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    let steps = settlement.paths.iter().map(SettledPath::back);
    undo(spec, Way::Back, steps)
}

/// And forth again, after that undo was undone.
pub fn settle_again(spec: &WorkspaceSpec, settlement: &Settlement) -> Result<(), DeriveError> {
    let steps = settlement.paths.iter().map(SettledPath::forth);
    undo(spec, Way::Forth, steps)
}

/// What of an approval was settled in this sandbox: in the one that it was made of, and in every fork that was
/// made since.
pub fn settled_here(
    spec: &WorkspaceSpec,
    settlement: &Settlement,
) -> Result<Settlement, DeriveError> {
    let settled = approved_bases(&spec.memory)?;
    let here = |path: &&SettledPath| {
        settled.get(&path.path).is_some_and(|states| states.contains(&path.after.state))
    };
    let paths = settlement.paths.iter().filter(here).cloned().collect();
    Ok(Settlement { paths, given: Vec::new() })
}

fn remember(
    spec: &WorkspaceSpec,
    moved: Moved,
    settlement: &Settlement,
) -> Result<(), DeriveError> {
    let mut memory = Memory::load(&spec.memory)?;
    let moves = settlement.paths.iter().map(SettledPath::forth);
    let records = moves
        .filter(|step| memory.settled.get(step.path) != Some(step.to))
        .map(|step| Record::Settled { path: step.path.clone(), settled: step.to.clone(), moved });
    let mut records: Vec<Record> = records.collect();
    for GivenPath { path, state } in &settlement.given {
        let stay = Stay::Seen(Sight::given(state.clone()));
        if memory.stays.get(path) != Some(&stay) {
            records.push(Record::Stay { path: path.clone(), stay });
        }
    }
    memory.append(records, Durability::Power)
}

/// Of every path the step is remembered, also where the present state has nothing of what is undone:
/// another one that the sandbox goes to may have it.
fn undo<'a>(
    spec: &WorkspaceSpec,
    way: Way,
    steps: impl Iterator<Item = Step<'a>>,
) -> Result<(), DeriveError> {
    let mut memory = Memory::load(&spec.memory)?;
    let earlier = earlier_bases(&spec.memory)?;
    let mut records = Vec::new();
    for Step { path, from, to } in steps {
        let undone = Box::new(Undone { from: from.clone(), to: to.clone(), way });
        let earlier = earlier.get(path).map_or(&[][..], Vec::as_slice);
        let settled = moved_along(&memory, memory.base_of(path)?.as_ref(), &undone, earlier)?;
        records.push(Record::Undone { path: path.clone(), undone, settled });
    }
    memory.append(records, Durability::Power)
}
