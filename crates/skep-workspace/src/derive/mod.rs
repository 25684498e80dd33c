//! Derives a change set: what the view shows against the base, path by path.

mod content;
pub(crate) mod ignored;
mod judge;
mod renames;
mod spelling;

pub(crate) use content::Contents;
pub(crate) use judge::{Entry, MergedBytes, Standing, ordinary_directory};

use crate::base::Resolver;
use crate::base::memory::Memory;
use crate::base::moment::Proofs;
use crate::error::DeriveError;
use crate::git::Repository;
use crate::held::Kept;
use crate::markers::Markers;
use crate::spec::{DeriveOptions, Trees, WorkspaceSpec};
use crate::union;
use skep_types::{
    Change, ChangeKind, ChangeSet, ChangeSetDigest, Conflict, ContentHash, Drift, EntryState,
    RelPath, Totals,
};
use std::borrow::Cow;
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
    /// Bytes of small files that were read on the way.
    pub kept: Kept,
    pub(crate) detail: Detail,
}

/// What planning needs beyond the changes themselves.
#[derive(Debug, Default)]
pub(crate) struct Detail {
    /// Every path with a pending difference or a conflict, without those that a change says all of.
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
    /// The topmost paths that the ignore rules match, of those that are ignored.
    pub ignored_tops: BTreeSet<RelPath>,
}

impl Detail {
    /// The entry of a change.
    fn of<'a>(&'a self, change: &Change) -> Cow<'a, Entry> {
        match self.entries.get(&change.path) {
            Some(entry) => Cow::Borrowed(entry),
            None => Cow::Owned(Entry::of_plain(change)),
        }
    }

    /// The topmost path above an ignored path (or it itself) that the ignore rules match.
    pub(crate) fn ignored_top(&self, path: &RelPath) -> Option<RelPath> {
        let above = path.ancestors().filter(|above| self.ignored_tops.contains(above)).last();
        above.or_else(|| self.ignored_tops.contains(path).then(|| path.clone()))
    }
}

impl Derived {
    /// Everything known of a path with a change or a conflict.
    pub(crate) fn entry(&self, path: &RelPath) -> Option<Cow<'_, Entry>> {
        if let Some(entry) = self.detail.entries.get(path) {
            return Some(Cow::Borrowed(entry));
        }
        let at = self.changes.binary_search_by(|change| change.path.cmp(path)).ok()?;
        self.changes.get(at).map(|change| self.detail.of(change))
    }
}

impl Derived {
    /// Where an approval would merge, each with a hash of what stands in the project there.
    pub fn moved(&self) -> Vec<(RelPath, ContentHash)> {
        let merges =
            self.detail.entries.values().filter(|entry| {
                matches!(entry.standing, Standing::Merges(_) | Standing::Collides(_))
            });
        let mark = |entry: &Entry| ContentHash::of(format!("{:?}", entry.project).as_bytes());
        merges.map(|entry| (entry.path.clone(), mark(entry))).collect()
    }
}

impl Detail {
    /// Directories that the sandbox has as they were, and in whose place the project has something
    /// else now.
    pub(crate) fn replaced(&self) -> BTreeSet<&RelPath> {
        let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
        let replaced = self.stale.values().filter(|entry| {
            directory(&entry.sandbox) && !directory(&entry.project) && !entry.project.is_absent()
        });
        replaced.map(|entry| &entry.path).collect()
    }

    /// What the sandbox has in a directory that is none any more in the project cannot go there.
    fn below_replaced(&mut self, changes: &[Change]) {
        let replaced: BTreeSet<RelPath> = self.replaced().into_iter().cloned().collect();
        if replaced.is_empty() {
            return;
        }
        for change in changes {
            if change.path.ancestors().any(|parent| replaced.contains(&parent)) {
                let entry = self.of(change).into_owned();
                self.entries.insert(change.path.clone(), entry);
            }
        }
        for entry in self.entries.values_mut() {
            let above = entry.path.ancestors().find(|parent| replaced.contains(parent));
            if let Some(parent) = above
                && entry.standing == Standing::Clean
                && !entry.sandbox.is_absent()
            {
                let reason = format!("its directory `{parent}` was replaced in the project");
                entry.standing = Standing::Conflict(reason);
            }
        }
    }
}

/// Derives the change set of a workspace. Nothing may write to it meanwhile (see DESIGN.md §5).
pub fn derive(spec: &WorkspaceSpec, options: &DeriveOptions) -> Result<Derived, DeriveError> {
    let kept = Kept::default();
    let (changes, detail) = look(spec, options, &kept)?;
    Ok(finish(spec, changes, detail, kept))
}

fn look(
    spec: &WorkspaceSpec,
    options: &DeriveOptions,
    kept: &Kept,
) -> Result<(Vec<Change>, Detail), DeriveError> {
    let trees = Trees::open(spec)?;
    let held = trees.held(kept);
    let memory = Memory::load(&spec.memory)?;
    let git = Repository::new(&spec.project, spec.base.commit.as_deref());
    let contents = Contents { trees: &held, memory: &memory, limit: options.max_hunk_bytes };
    let (mut changes, mut detail) = judged(spec, &contents, &git)?;
    changes.sort_by(|left, right| left.path.cmp(&right.path));
    ignored::mark(spec, &held.project, &git, &mut changes, &mut detail)?;
    describe_all(&mut changes, &detail, &contents, options.max_total_bytes)?;
    renames::detect(&mut changes, &detail, &contents)?;
    Ok((changes, detail))
}

/// Every path of the upper and the layers, against base and project.
fn judged(
    spec: &WorkspaceSpec,
    contents: &Contents<'_>,
    git: &Repository,
) -> Result<(Vec<Change>, Detail), DeriveError> {
    let (trees, memory) = (contents.trees, contents.memory);
    let union = union::read(&trees.levels, Markers::of(spec.driver))?;
    let (created, moment) = (&spec.base.instant, memory.moment.as_deref());
    let proofs = Proofs::new(&trees.project, created, moment, &memory.anchors);
    let resolver = Resolver::new(proofs, memory, git, &spec.memory);
    let spelling = spelling::Spelling::new(&trees.project, spec.driver);
    let judge = judge::Judge { spec, trees, resolver: &resolver, contents, spelling };
    judge.all(&union)
}

fn finish(spec: &WorkspaceSpec, changes: Vec<Change>, detail: Detail, kept: Kept) -> Derived {
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
            Standing::Conflict(reason) | Standing::Collides(reason) => {
                drift.push(Drift { path: path.clone(), merges: false, reason: reason.clone() });
                conflicts.push(Conflict { path, reason: reason.clone() });
            }
        }
    }
    let digest = ChangeSet::digest_of(&changes, &detail.implied);
    let totals = totals(&changes);
    let base_word = spec.base.commit.clone().unwrap_or_else(|| "no commit".to_owned());
    Derived { changes, conflicts, drift, digest, totals, base_word, kept, detail }
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

/// A line costs at least this much of the budget: lining up is work by the line.
const LINE_BYTES: u64 = 32;

/// Fills in the hunks, what is not ignored first and what is small before what is large, until the
/// budget is used up: a script must not go unseen behind heaps of text whose names come first.
fn describe_all(
    changes: &mut [Change],
    detail: &Detail,
    contents: &Contents<'_>,
    budget: u64,
) -> Result<(), DeriveError> {
    let size = |change: &Change| file_size(&change.old).saturating_add(file_size(&change.new));
    // Nothing was there and nothing is: no text.
    let mut order: Vec<usize> = (0..changes.len()).filter(|at| size(&changes[*at]) > 0).collect();
    order.sort_by_key(|at| (changes[*at].ignored, size(&changes[*at])));
    let mut left = budget;
    for at in order {
        let change = &mut changes[at];
        let size = size(change);
        if size > left {
            change.too_large = true;
            continue;
        }
        let lines = contents.describe(&detail.of(change), change)?;
        left = left.saturating_sub(size.max(lines.saturating_mul(LINE_BYTES)));
    }
    Ok(())
}

fn file_size(state: &EntryState) -> u64 {
    match state {
        EntryState::File { size, .. } => *size,
        _ => 0,
    }
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
