//! What a picked change puts into the project.

use crate::apply::Source;
use crate::base::memory::{Memory, Partial, Settled, Step};
use crate::derive::{Contents, Entry, MergedBytes, Standing};
use crate::error::PlanError;
use crate::hunk_ids::joined;
use crate::hunks::{apply_hunks, stretches_of};
use crate::merge::{Merged, merge_modes, merge_text};
use crate::spec::Trees;
use skep_types::{Change, Conflict, ContentHash, EntryState, Hunk, HunkId};
use std::collections::BTreeSet;

/// So many steps of a base are remembered. What is at home in an earlier one gets another id.
const MOST_STEPS: usize = 32;

/// What to put there, and what counts as the base afterwards.
pub(super) struct Outcome {
    pub state: EntryState,
    pub source: Source,
    pub settled: Settled,
}

/// Takes a whole change. When the project moved, the merge goes there; the base becomes what the
/// sandbox has, so that its later edits merge on top.
pub(super) fn whole(trees: &Trees, entry: &Entry) -> Result<Outcome, PlanError> {
    let settled = Settled::of(entry.sandbox.clone());
    let (state, source) = match &entry.standing {
        Standing::Conflict(reason) | Standing::Collides(reason) => {
            let (path, reason) = (entry.path.clone(), reason.clone());
            return Err(PlanError::Conflicts(vec![Conflict { path, reason }]));
        }
        Standing::Clean => (entry.sandbox.clone(), sandbox_source(trees, entry)),
        Standing::Merges(merge) => {
            let source = match &merge.bytes {
                MergedBytes::Project => Source::None,
                MergedBytes::Sandbox => sandbox_source(trees, entry),
                MergedBytes::New(bytes) => Source::Bytes(bytes.clone()),
            };
            (merge.state.clone(), source)
        }
    };
    // Only the mode differs: the apply takes the bytes that stand there.
    let same_bytes = file_hash(&state).is_some() && file_hash(&state) == file_hash(&entry.project);
    let source = if same_bytes { Source::None } else { source };
    Ok(Outcome { state, source, settled })
}

fn sandbox_source(trees: &Trees, entry: &Entry) -> Source {
    match (&entry.sandbox, entry.level) {
        (EntryState::File { .. }, Some(level)) => {
            Source::File { root: trees.level_paths[level].clone(), path: entry.path.clone() }
        }
        _ => Source::None,
    }
}

fn file_hash(state: &EntryState) -> Option<ContentHash> {
    match state {
        EntryState::File { hash, .. } => Some(*hash),
        _ => None,
    }
}

/// Takes some hunks of a file: the base with these, and the base's mode.
pub(super) fn partial(
    contents: &Contents<'_>,
    memory: &Memory,
    entry: &Entry,
    from: Option<&Entry>,
    change: &Change,
    ids: &BTreeSet<HunkId>,
) -> Result<Outcome, PlanError> {
    let stale = || PlanError::Stale { path: entry.path.clone() };
    let origin = from.unwrap_or(entry);
    let (Some(base_hash), Some(mode)) = (file_hash(&change.old), change.old.mode()) else {
        return Err(stale());
    };
    let base = contents.base(origin)?.ok_or_else(stale)?;
    let hunks: Vec<&Hunk> = change.hunks.iter().filter(|hunk| ids.contains(&hunk.id)).collect();
    let half = apply_hunks(&base, &hunks).map_err(|_| stale())?;
    memory.keep_blob(&base)?;
    memory.keep_blob(&half)?;
    let settled_state = file_state(&half, mode);
    let (state, bytes) = if entry.project.is_absent() || entry.project == change.old {
        (settled_state.clone(), half)
    } else {
        merge_partial(contents, entry, &base, half, mode)?
    };
    let step = Step { base: base_hash, stretches: stretches_of(&hunks) };
    let earlier = entry.base.partial.as_ref();
    let partial = file_hash(&entry.sandbox).map(|new| taken_of(earlier, step, new, ids));
    let settled = Settled { partial, ..Settled::of(settled_state) };
    Ok(Outcome { state, source: Source::Bytes(bytes), settled })
}

/// How a base came about of which more hunks were taken now. As long as the sandbox does not go on, all are
/// hunks of one diff.
fn taken_of(
    earlier: Option<&Partial>,
    step: Step,
    new: ContentHash,
    ids: &BTreeSet<HunkId>,
) -> Partial {
    let now = ids.iter().cloned();
    match earlier {
        Some(same) if same.new == new => Partial {
            taken: same.taken.iter().cloned().chain(now).collect(),
            stretches: joined(&same.stretches, &step.stretches),
            ..same.clone()
        },
        other => {
            let last =
                other.map(|last| Step { base: last.root, stretches: last.stretches.clone() });
            let before = other.map_or(&[][..], |last| last.earlier.as_slice());
            let steps = last.into_iter().chain(before.iter().cloned()).take(MOST_STEPS);
            let (root, stretches) = (step.base, step.stretches);
            Partial { root, new, taken: now.collect(), stretches, earlier: steps.collect() }
        }
    }
}

/// The project moved: the taken hunks are merged into what stands there.
fn merge_partial(
    contents: &Contents<'_>,
    entry: &Entry,
    base: &[u8],
    half: Vec<u8>,
    base_mode: u32,
) -> Result<(EntryState, Vec<u8>), PlanError> {
    let conflict = |reason: &str| {
        let (path, reason) = (entry.path.clone(), reason.to_owned());
        PlanError::Conflicts(vec![Conflict { path, reason }])
    };
    let project = contents
        .project(&entry.path, &entry.project)?
        .ok_or_else(|| conflict("the project's version cannot be merged"))?;
    let ours = entry.project.mode().unwrap_or(base_mode);
    let mode = merge_modes(base_mode, ours, base_mode).unwrap_or(ours);
    match merge_text(base, &project, &half) {
        Merged::Clean(bytes) => Ok((file_state(&bytes, mode), bytes)),
        Merged::Conflict => {
            Err(conflict("the same lines changed in the project and in the sandbox"))
        }
    }
}

pub(super) fn file_state(bytes: &[u8], mode: u32) -> EntryState {
    EntryState::File { hash: ContentHash::of(bytes), size: bytes.len() as u64, mode }
}
