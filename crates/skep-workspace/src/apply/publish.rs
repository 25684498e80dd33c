//! Publishing: the steps after the commit point, taking them back, and keeping the backups.

use super::backups::keep_backups;
use super::journal::{Found, INTENT, JOURNAL, Journal, JournalDir, OUTCOME, Outcome, Record};
use super::plan::{Step, moves, plan};
use super::staging::{Staging, own};
use super::step::{Guard, Scene, StepError};
use super::{Applied, ApplyError, PathConflict, Phase, Progress};
use crate::tree::TreeRoot;
use rustix::fs::OFlags;
use skep_sys::failpoint;
use skep_types::{AppliedPath, EntryState, RelPath};
use std::collections::BTreeSet;
use std::io;

/// Up to this many directories are synced one by one; more are synced with their filesystem.
const SYNC_SINGLY: usize = 16;

/// An apply that is staged and journaled; the project is untouched.
///
/// Dropping it without a word leaves the staging directory for [`super::recover`].
#[derive(Debug)]
#[must_use = "publish or abort it"]
pub struct Staged {
    pub(super) root: TreeRoot,
    pub(super) staging: Staging,
    pub(super) dir: JournalDir,
    pub(super) journal: Journal,
}

impl Staged {
    /// Moves everything into the project. To be called once the commit point is recorded.
    ///
    /// On error the steps that were made are taken back and the approval is over, unless the error
    /// is [`ApplyError::HalfWay`]: then the journal stands, and [`super::recover`] goes on.
    pub fn publish(self) -> Result<Applied, ApplyError> {
        self.publish_with(&mut |_| {})
    }

    /// As [`Staged::publish`], telling how far it is.
    pub fn publish_with(self, progress: &mut dyn FnMut(Progress)) -> Result<Applied, ApplyError> {
        let Self { root, staging, dir, journal } = self;
        let steps = plan(&journal.records);
        let guard = Guard::Reviewed;
        let scene = Scene { root: &root, staging: &staging, journal: &journal, guard };
        let published = run(&scene, &steps, progress)
            .and_then(|()| sync_published(&scene).map_err(|error| (steps.len(), error)))
            .and_then(|()| record_published(&dir).map_err(|error| (steps.len(), error)));
        match published {
            Ok(()) => Ok(keep_backups(&dir, staging, &journal)),
            Err((_, error)) if already_recorded(&dir) => {
                Err(ApplyError::HalfWay { first: Box::new(error), stuck: Vec::new() })
            }
            Err((reached, error)) => {
                let undo: Vec<Step> = steps.iter().take(reached + 1).rev().copied().collect();
                Err(roll_back(&scene, &undo, &dir, error))
            }
        }
    }

    /// Gives up before the commit point: removes what was staged and the journal.
    pub fn abort(self) -> Result<(), ApplyError> {
        let path = self.staging.path().to_owned();
        self.staging.remove().map_err(own("remove", &path))?;
        self.dir.remove(JOURNAL)?;
        self.dir.remove(INTENT)
    }
}

/// Makes the steps; an error carries the number of the step it came from.
pub(super) fn run(
    scene: &Scene<'_>,
    steps: &[Step],
    progress: &mut dyn FnMut(Progress),
) -> Result<(), (usize, ApplyError)> {
    let total = steps.len() as u64;
    for (done, step) in steps.iter().enumerate() {
        progress(Progress { phase: Phase::Publish, done: done as u64, total });
        let path = &scene.journal.records[step.record()].path;
        failpoint::hit("apply.publish")
            .map_err(|source| StepError::Io { operation: "publish", source })
            .and_then(|()| scene.perform(*step))
            .and_then(|()| {
                failpoint::hit("apply.published")
                    .map_err(|source| StepError::Io { operation: "publish", source })
            })
            .map_err(|error| (done, name_error(error, path)))?;
    }
    Ok(())
}

fn name_error(error: StepError, path: &RelPath) -> ApplyError {
    let path = path.clone();
    match error {
        StepError::Conflict(reason) => ApplyError::Conflict(vec![PathConflict { path, reason }]),
        StepError::Io { operation, source } => ApplyError::Path { operation, path, source },
    }
}

/// Makes the moves durable.
pub(super) fn sync_published(scene: &Scene<'_>) -> Result<(), ApplyError> {
    let fail = own("sync", scene.staging.path());
    failpoint::hit("apply.publish_sync").and_then(|()| try_sync(scene)).map_err(fail)
}

fn try_sync(scene: &Scene<'_>) -> io::Result<()> {
    let dirs: BTreeSet<RelPath> = scene.journal.records.iter().flat_map(touched_dirs).collect();
    if dirs.len() > SYNC_SINGLY {
        return Ok(rustix::fs::syncfs(scene.staging.fd())?);
    }
    for dir in dirs {
        match scene.root.open_beneath(&dir, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(fd) => rustix::fs::fsync(fd)?,
            // Gone as part of the approval; its parent is in the list too.
            Err(error) if crate::tree::means_absent(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(rustix::fs::syncfs(scene.staging.fd())?);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(rustix::fs::fsync(scene.staging.fd())?)
}

fn touched_dirs(record: &Record) -> Vec<RelPath> {
    let mut dirs: Vec<RelPath> = record.path.parent().into_iter().collect();
    if matches!(record.after, EntryState::Dir { .. }) {
        dirs.push(record.path.clone());
    }
    dirs
}

pub(super) fn record_published(dir: &JournalDir) -> Result<(), ApplyError> {
    dir.write(OUTCOME, &Outcome::Published)?;
    let fail = own("record the outcome in", &dir.path_of(OUTCOME));
    failpoint::hit("apply.done").map_err(fail)
}

/// Whether the outcome reached the disk although writing it failed at the end: then nothing may
/// be taken back any more.
fn already_recorded(dir: &JournalDir) -> bool {
    !matches!(dir.read::<Outcome>(OUTCOME), Ok(Found::Absent))
}

/// Takes the made steps back; gives the error to return.
fn roll_back(scene: &Scene<'_>, undo: &[Step], dir: &JournalDir, first: ApplyError) -> ApplyError {
    let stuck: Vec<_> = revert_all(scene, undo).into_iter().map(Stuck::into_conflict).collect();
    if !stuck.is_empty() {
        return ApplyError::HalfWay { first: Box::new(first), stuck };
    }
    let recorded = sync_published(scene).and_then(|()| dir.write(OUTCOME, &Outcome::RolledBack));
    if let Err(error) = recorded {
        let reason = format!("is back as it was, but: {}", skep_types::chain(&error));
        let stuck = vec![PathConflict { path: RelPath::root(), reason }];
        return ApplyError::HalfWay { first: Box::new(first), stuck };
    }
    // Everything is back in the project: what is left in staging was never anywhere else.
    let _ = scene.staging.remove_staged(&scene.journal.records);
    first
}

/// A step that could not be taken back.
#[derive(Debug)]
pub(super) struct Stuck {
    pub path: RelPath,
    pub error: StepError,
}

impl Stuck {
    pub fn into_conflict(self) -> PathConflict {
        let reason = match self.error {
            StepError::Conflict(reason) => reason,
            StepError::Io { operation, source } => format!("(cannot {operation} it: {source})"),
        };
        PathConflict { path: self.path, reason }
    }
}

/// Takes steps back as far as possible; gives those that could not be.
pub(super) fn revert_all(scene: &Scene<'_>, undo: &[Step]) -> Vec<Stuck> {
    let mut stuck = Vec::new();
    for step in undo {
        let reverted = failpoint::hit("apply.revert")
            .map_err(|source| StepError::Io { operation: "take back", source })
            .and_then(|()| scene.revert(*step));
        if let Err(error) = reverted {
            let path = scene.journal.records[step.record()].path.clone();
            stuck.push(Stuck { path, error });
        }
    }
    stuck
}

/// The report of a finished publish.
pub(super) fn applied_paths(journal: &Journal) -> Vec<AppliedPath> {
    let applied = |record: &Record| AppliedPath {
        path: record.path.clone(),
        before: record.before.clone(),
        after: record.after.clone(),
        exec: None,
    };
    journal.records.iter().map(applied).collect()
}

/// Files that were written after they were taken out.
pub(super) fn late_writes(staging: &Staging, journal: &Journal) -> Vec<RelPath> {
    let late = |record: &&Record| {
        let is_file = moves(record) && matches!(record.before, EntryState::File { .. });
        match (is_file, record.found, staging.slot(record)) {
            (true, Some(found), Ok(Some(slot))) => !found.same_bytes(&slot),
            _ => false,
        }
    };
    journal.records.iter().filter(late).map(|record| record.path.clone()).collect()
}
