//! Plans an approval: a selection becomes targets for the apply, and what to remember afterwards.

mod content;
mod emptied;
mod rebase;
mod reject;
mod select;
mod settle;
mod sides;

pub use rebase::{Company, PutOff, Rebased, rebase};
pub use reject::{Rejected, ViewWrite, reject};
pub use settle::{
    SettledPath, Settlement, settle, settle_again, settle_taken_in, settled_here, unsettle,
};
pub use sides::{Side, Sides, three_sides};

use crate::apply::{Source, Target};
use crate::base::after_approval;
use crate::base::capture::{Insiders, capture};
use crate::base::memory::{Memory, Settled};
use crate::derive::{Contents, Derived, Entry};
use crate::error::{DeriveError, PlanError};
use crate::held::Kept;
use crate::spec::{DeriveOptions, Trees, WorkspaceSpec};
use rebase::keep_project;
use select::{Pick, Picked, Purpose};
use skep_types::{Change, ChangeKind, Conflict, EntryState, RelPath, Selection};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What an approval does, as data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What to change in the project, sorted by path.
    pub targets: Vec<Target>,
    /// What counts as the base afterwards.
    pub settlement: Settlement,
    /// Changes (ignored ones not counted) that are still to be reviewed afterwards.
    pub remaining: usize,
    /// Those among them that were set apart.
    pub apart: usize,
}

impl Plan {
    /// Whether it changes something at `path`.
    pub fn has(&self, path: &RelPath) -> bool {
        self.targets.binary_search_by(|target| target.path.cmp(path)).is_ok()
    }
}

/// Plans the approval of a selection. The project is not touched; base bytes that an undo or a later
/// merge may need are kept in the sandbox's memory.
pub fn plan(
    spec: &WorkspaceSpec,
    derived: &Derived,
    selection: &Selection,
) -> Result<Plan, PlanError> {
    plan_leaving(spec, derived, selection, &|_| false)
}

/// The same, leaving out what is set apart unless it is named: by its own path, or by a directory or
/// glob that begins with the same name.
pub fn plan_leaving(
    spec: &WorkspaceSpec,
    derived: &Derived,
    selection: &Selection,
    apart: &dyn Fn(&RelPath) -> bool,
) -> Result<Plan, PlanError> {
    let mut picked = select::select(derived, selection, Purpose::Approve, apart)?;
    pull_in(derived, &mut picked, selection.ignored, apart)?;
    let conflicts = select::conflicts_of(derived, selection, &picked, apart)?;
    if !conflicts.is_empty() {
        return Err(PlanError::Conflicts(conflicts));
    }
    // The apply will touch directories whose age proves the base of changes that stay pending.
    // This is the user's own doing, and no sum of the sandbox's holds it back.
    capture(spec, None, Insiders::Some)?;
    let trees = Trees::open(spec)?;
    let memory = Memory::load(&spec.memory)?;
    let limit = DeriveOptions::default().max_hunk_bytes;
    let kept = Kept::default();
    let held = trees.held(&kept);
    let contents = Contents { trees: &held, memory: &memory, limit };
    let mut planner = Planner {
        derived,
        trees: &trees,
        memory: &memory,
        contents,
        targets: BTreeMap::new(),
        settled: BTreeMap::new(),
    };
    for change in &derived.changes {
        if let Some(pick) = picked.get(&change.path) {
            planner.change(change, pick)?;
        }
    }
    planner.make_parents()?;
    planner.remove_directories()?;
    planner.check_replaced()?;
    let remaining: Vec<&Change> = derived
        .changes
        .iter()
        .filter(|change| !change.ignored && picked.get(&change.path) != Some(&Pick::Whole))
        .collect();
    let apart = remaining.iter().filter(|change| apart(&change.path)).count();
    let remaining = remaining.len();
    let Planner { targets, settled, .. } = planner;
    let settlement = Settlement { paths: settled.into_values().collect(), given: Vec::new() };
    Ok(Plan { targets: targets.into_values().collect(), settlement, remaining, apart })
}

/// Adds what the picked changes cannot be without: a directory that takes the place of a file above
/// them, and the entries of a directory that gives way to something else. What is set apart, and so was
/// not shown, does not go along unsaid: it is the user's own, most often.
fn pull_in(
    derived: &Derived,
    picked: &mut Picked,
    ignored: bool,
    apart: &dyn Fn(&RelPath) -> bool,
) -> Result<(), PlanError> {
    let changes: BTreeMap<&RelPath, &Change> =
        derived.changes.iter().map(|change| (&change.path, change)).collect();
    let mut pending: Vec<RelPath> = picked.keys().cloned().collect();
    while let Some(path) = pending.pop() {
        let Some(change) = changes.get(&path) else { continue };
        let mut needed: Vec<RelPath> = Vec::new();
        if !change.new.is_absent() {
            let replaced = path.ancestors().filter(|parent| {
                changes.get(parent).is_some_and(|change| change.kind == ChangeKind::Type)
            });
            needed.extend(replaced);
        }
        let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
        if directory(&change.old) && !directory(&change.new) {
            let below = derived.changes.iter().filter(|other| {
                let from = other.renamed_from.as_ref().unwrap_or(&other.path);
                *from != path && from.starts_with(&path)
            });
            needed.extend(below.map(|other| other.path.clone()));
        }
        for need in needed {
            if picked.get(&need) == Some(&Pick::Whole) {
                continue;
            }
            if changes.get(&need).is_some_and(|change| change.kind == ChangeKind::Special) {
                let reason = "special files are never applied".to_owned();
                return Err(PlanError::Depends { path, needs: need, reason });
            }
            let left_out = |change: &&Change| (change.ignored && !ignored) || apart(&change.path);
            if changes.get(&need).is_some_and(left_out) {
                let reason = "it is ignored or git's own, and left out unless it is named (or with \
                              `--ignored`)";
                return Err(PlanError::Depends { path, needs: need, reason: reason.to_owned() });
            }
            picked.insert(need.clone(), Pick::Whole);
            pending.push(need);
        }
    }
    Ok(())
}

struct Planner<'a> {
    derived: &'a Derived,
    trees: &'a Trees,
    memory: &'a Memory,
    contents: Contents<'a>,
    targets: BTreeMap<RelPath, Target>,
    settled: BTreeMap<RelPath, SettledPath>,
}

impl Planner<'_> {
    fn entry(&self, path: &RelPath) -> Result<Entry, PlanError> {
        let stale = || PlanError::Stale { path: path.clone() };
        self.derived.entry(path).map(Cow::into_owned).ok_or_else(stale)
    }

    fn change(&mut self, change: &Change, pick: &Pick) -> Result<(), PlanError> {
        let entry = self.entry(&change.path)?;
        let from = match &change.renamed_from {
            Some(old) => Some(self.entry(old)?),
            None => None,
        };
        self.keep_bytes(&entry)?;
        let outcome = match pick {
            Pick::Whole => content::whole(self.trees, &entry)?,
            Pick::Hunks(ids) => {
                content::partial(&self.contents, self.memory, &entry, from.as_ref(), change, ids)?
            }
        };
        self.target(&entry, outcome.state, outcome.source);
        if let Some(from) = from {
            self.target(&from, EntryState::Absent, Source::None);
            self.settle(&from, Settled::of(EntryState::Absent))?;
            if let Some(target) = self.targets.get_mut(&entry.path) {
                target.like = Some(from.path);
            }
        }
        self.settle(&entry, outcome.settled)?;
        Ok(())
    }

    /// Keeps the base's bytes, which are only in the project until the apply replaces them, and the
    /// sandbox's, which are the base afterwards.
    fn keep_bytes(&self, entry: &Entry) -> Result<(), DeriveError> {
        // Of what the sandbox removed no bytes are needed: it is never merged.
        if !entry.sandbox.is_absent()
            && let Some(bytes) = self.contents.base(entry)?
        {
            self.memory.keep_blob(&bytes)?;
        }
        if let Some(bytes) = self.contents.sandbox(entry)? {
            self.memory.keep_blob(&bytes)?;
        }
        Ok(())
    }

    fn target(&mut self, entry: &Entry, after: EntryState, source: Source) {
        if entry.project != after {
            let (path, before) = (entry.path.clone(), entry.project.clone());
            let target = Target { path: path.clone(), before, after, source, like: None };
            self.targets.insert(path, target);
        }
    }

    fn settle(&mut self, entry: &Entry, after: Settled) -> Result<(), DeriveError> {
        let (path, before) = (entry.path.clone(), entry.settled());
        if entry.project != before.state {
            keep_project(&self.contents, self.memory, entry)?;
        }
        let late = after_approval(self.memory, &before, &entry.project, &after.state)?;
        let after = Settled { late, ..after };
        self.settled.insert(path.clone(), SettledPath { path, before, after });
        Ok(())
    }

    fn settle_directory(&mut self, path: &RelPath, before: EntryState, after: EntryState) {
        let (before, after) = (Settled::of(before), Settled::of(after));
        self.settled.insert(path.clone(), SettledPath { path: path.clone(), before, after });
    }

    fn project_state(&self, path: &RelPath) -> Result<EntryState, DeriveError> {
        self.trees.project.state(path).map_err(|source| DeriveError::read("project", path, source))
    }

    /// Directories that must come first.
    fn make_parents(&mut self) -> Result<(), PlanError> {
        let created: Vec<RelPath> = self
            .targets
            .values()
            .filter(|target| !target.after.is_absent())
            .map(|target| target.path.clone())
            .collect();
        for path in created {
            for parent in path.ancestors().filter(|parent| !parent.is_root()) {
                let planned = self.targets.get(&parent).map(|target| target.after.clone());
                let standing = match planned {
                    Some(after) => after,
                    None => self.project_state(&parent)?,
                };
                match standing {
                    EntryState::Dir { .. } => break,
                    EntryState::Absent => self.make_directory(&parent),
                    other => {
                        let noun = other.noun();
                        let reason = format!("its directory `{parent}` is a {noun} in the project");
                        let path = path.clone();
                        return Err(PlanError::Conflicts(vec![Conflict { path, reason }]));
                    }
                }
            }
        }
        Ok(())
    }

    fn make_directory(&mut self, path: &RelPath) {
        let mode = self.derived.detail.directories.get(path).copied().unwrap_or(0o755);
        // Bits that are a change of their own come when that is taken.
        let apart = self.derived.entry(path).is_some();
        let mode = if apart { crate::derive::ordinary_directory(mode) } else { mode };
        let after = EntryState::Dir { mode };
        let target = Target {
            path: path.clone(),
            before: EntryState::Absent,
            after: after.clone(),
            source: Source::None,
            like: None,
        };
        self.targets.insert(path.clone(), target);
        self.settle_directory(path, EntryState::Absent, after);
    }

    /// Directories that the sandbox removed and that this plan empties. One that still holds
    /// anything, known or not, stays.
    fn remove_directories(&mut self) -> Result<(), PlanError> {
        for path in self.derived.detail.removed_directories.iter().rev() {
            let names = self.names_in(path)?;
            let emptied = names.iter().all(|child| {
                self.targets.get(child).is_some_and(|target| target.after.is_absent())
            });
            if emptied && !names.is_empty() {
                let before = self.project_state(path)?;
                let target = Target {
                    path: path.clone(),
                    before: before.clone(),
                    after: EntryState::Absent,
                    source: Source::None,
                    like: None,
                };
                self.targets.insert(path.clone(), target);
                self.settle_directory(path, before, EntryState::Absent);
            }
        }
        Ok(())
    }

    fn names_in(&self, path: &RelPath) -> Result<Vec<RelPath>, DeriveError> {
        let error = |source| DeriveError::read("project", path, source);
        let names = self.trees.project.list(path).map_err(error)?;
        names
            .into_iter()
            .map(|(name, _)| path.join(&name).map_err(|e| error(std::io::Error::other(e))))
            .collect()
    }

    /// A directory that gives way must be empty by then.
    fn check_replaced(&self) -> Result<(), PlanError> {
        let mut conflicts = Vec::new();
        for target in self.targets.values() {
            let gives_way = matches!(target.before, EntryState::Dir { .. })
                && !matches!(target.after, EntryState::Dir { .. });
            if !gives_way {
                continue;
            }
            for child in self.names_in(&target.path)? {
                let goes = self.targets.get(&child).is_some_and(|child| child.after.is_absent());
                if !goes {
                    let reason = format!("stands in `{}`, which the sandbox replaced", target.path);
                    conflicts.push(Conflict { path: child, reason });
                }
            }
        }
        if conflicts.is_empty() { Ok(()) } else { Err(PlanError::Conflicts(conflicts)) }
    }
}
