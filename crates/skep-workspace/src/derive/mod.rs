//! Derives a change set: what the view shows against the base, path by path.

mod content;
mod ignored;
mod judge;
mod renames;
mod spelling;

pub(crate) use content::Contents;
pub(crate) use judge::{Entry, MergedBytes, Standing, merge_modes, ordinary_directory};

use crate::base::memory::Memory;
use crate::base::{Proof, Resolver};
use crate::error::DeriveError;
use crate::git::Repository;
use crate::markers::Markers;
use crate::spec::{DeriveOptions, Trees, WorkspaceSpec};
use crate::union;
use skep_types::{
    Change, ChangeKind, ChangeSet, ChangeSetDigest, Conflict, Drift, EntryState, RelPath, Totals,
};
use std::collections::{BTreeMap, BTreeSet};

/// Everything a sandbox changed, and what planning needs to know about it.
#[derive(Debug)]
pub struct Derived {
    /// The changes, sorted by the bytes of their path.
    pub changes: Vec<Change>,
    /// Where the project moved in a way that does not merge.
    pub conflicts: Vec<Conflict>,
    /// Where the project moved on a changed path.
    pub drift: Vec<Drift>,
    /// Over all changes.
    pub digest: ChangeSetDigest,
    /// Sums.
    pub totals: Totals,
    /// What the project was at create: a commit, or a word saying that there is none.
    pub base_word: String,
    pub(crate) detail: Detail,
}

/// What planning needs beyond the changes themselves.
#[derive(Debug, Default)]
pub(crate) struct Detail {
    /// Every path with a pending difference or a conflict.
    pub entries: BTreeMap<RelPath, Entry>,
    /// Permission bits of the directories the sandbox's levels have.
    pub directories: BTreeMap<RelPath, u32>,
    /// Directories that come with their entries or go with them, and what they become. They are no
    /// changes of their own, but the digest covers them.
    pub implied: BTreeMap<RelPath, EntryState>,
    /// Directories of the project that the sandbox removed with their content.
    pub removed_directories: BTreeSet<RelPath>,
    /// Paths where the sandbox holds the base unchanged while the project moved on.
    pub stale: BTreeMap<RelPath, Entry>,
    /// For an ignored path, the topmost path that the ignore rules match.
    pub ignored_tops: BTreeMap<RelPath, RelPath>,
}

/// Derives the change set of a workspace. Nothing may write to it meanwhile (see DESIGN.md §5).
pub fn derive(spec: &WorkspaceSpec, options: &DeriveOptions) -> Result<Derived, DeriveError> {
    let trees = Trees::open(spec)?;
    let memory = Memory::load(&spec.memory)?;
    let union = union::read(&trees, Markers::of(spec.driver))?;
    let proof = Proof::new(&trees.project, &spec.base.instant, memory.anchors.clone());
    let git = Repository::new(&spec.project, spec.base.commit.as_deref());
    let resolver = Resolver::new(proof, &memory, &git, &spec.memory);
    let contents = Contents { trees: &trees, memory: &memory, limit: options.max_hunk_bytes };
    let spelling = spelling::Spelling::new(&trees.project, spec.driver);
    let judge =
        judge::Judge { spec, trees: &trees, resolver: &resolver, contents: &contents, spelling };
    let mut detail = judge.all(&union)?;
    let mut changes = build_changes(&detail);
    ignored::mark(spec, &trees.project, &git, &mut changes, &mut detail)?;
    describe_all(&mut changes, &detail, &contents, options.max_total_bytes)?;
    renames::detect(&mut changes, &detail, &contents)?;
    changes.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(finish(spec, changes, detail))
}

fn finish(spec: &WorkspaceSpec, changes: Vec<Change>, detail: Detail) -> Derived {
    let mut conflicts = Vec::new();
    let mut drift = Vec::new();
    for entry in detail.entries.values() {
        let path = entry.path.clone();
        match &entry.standing {
            Standing::Clean => {}
            Standing::Merges(_) => {
                let reason = "changed in the project too; both changes merge".to_owned();
                drift.push(Drift { path, merges: true, reason });
            }
            Standing::Conflict(reason) => {
                drift.push(Drift { path: path.clone(), merges: false, reason: reason.clone() });
                conflicts.push(Conflict { path, reason: reason.clone() });
            }
        }
    }
    let digest = ChangeSet::digest_of(&changes, &detail.implied);
    let totals = totals(&changes);
    let base_word = spec.base.commit.clone().unwrap_or_else(|| "no commit".to_owned());
    Derived { changes, conflicts, drift, digest, totals, base_word, detail }
}

fn totals(changes: &[Change]) -> Totals {
    let mut totals = Totals::default();
    for change in changes {
        if change.ignored {
            totals.ignored += 1;
        } else {
            totals.files += 1;
            totals.added += change.added;
            totals.removed += change.removed;
        }
    }
    totals
}

/// Fills in the hunks, what is not ignored first, until the budget is used up.
fn describe_all(
    changes: &mut [Change],
    detail: &Detail,
    contents: &Contents<'_>,
    budget: u64,
) -> Result<(), DeriveError> {
    let mut left = budget;
    for ignored in [false, true] {
        for change in changes.iter_mut().filter(|change| change.ignored == ignored) {
            let size = file_size(&change.old).saturating_add(file_size(&change.new));
            if size > left {
                change.too_large = size > 0;
                continue;
            }
            contents.describe(&detail.entries[&change.path], change)?;
            left -= size.min(left);
        }
    }
    Ok(())
}

fn file_size(state: &EntryState) -> u64 {
    match state {
        EntryState::File { size, .. } => *size,
        _ => 0,
    }
}

fn build_changes(detail: &Detail) -> Vec<Change> {
    let mut changes = Vec::new();
    for entry in detail.entries.values() {
        let Some(kind) = entry.kind() else { continue };
        changes.push(Change::new(entry.path.clone(), kind, entry.old(), entry.sandbox.clone()));
    }
    changes
}

/// What happened between two states; `None` when nothing did.
pub(crate) fn kind_between(old: &EntryState, new: &EntryState) -> Option<ChangeKind> {
    use EntryState::{Absent, Dir, File, Special, Symlink};
    if old == new {
        return None;
    }
    Some(match (old, new) {
        (Special { .. }, _) | (_, Special { .. }) => ChangeKind::Special,
        (Absent, _) => ChangeKind::Added,
        (_, Absent) => ChangeKind::Deleted,
        (File { hash: before, .. }, File { hash: after, .. }) if before == after => {
            ChangeKind::Mode
        }
        (Dir { .. }, Dir { .. }) => ChangeKind::Mode,
        (File { .. }, File { .. }) | (Symlink { .. }, Symlink { .. }) => ChangeKind::Modified,
        _ => ChangeKind::Type,
    })
}
