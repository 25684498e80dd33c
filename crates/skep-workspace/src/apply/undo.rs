//! Undo: the reverse request of a finished apply, and the end of its retention.

use super::journal::{
    BACKUPS, Found, INTENT, JOURNAL, Journal, JournalDir, Mark, OUTCOME, Outcome, Record,
};
use super::plan::moves;
use super::staging::{Staging, own, remove_tree, slot_path, staging_path};
use super::{ApplyError, Source, Target};
use crate::tree::TreeRoot;
use rustix::io::Errno;
use skep_types::EntryState;
use std::io;
use std::path::{Path, PathBuf};

/// The targets that reverse a finished apply. They go through [`super::stage`] like any others: a
/// path that changed since is a conflict.
///
/// A backup that was written to after it was taken out (see [`super::Applied::late_writes`]) is
/// restored as it is now: the late write is the user's.
pub fn undo_targets(journal_dir: &Path) -> Result<Vec<Target>, ApplyError> {
    let dir = JournalDir::open(journal_dir)?;
    let journal = dir.journal()?;
    if !matches!(dir.read(OUTCOME)?, Found::Good(Outcome::Published)) {
        return Err(ApplyError::Journal {
            path: dir.path_of(OUTCOME),
            reason: "the approval is not applied".to_owned(),
        });
    }
    let (backups, tree) = open_backups(&dir, &journal)?;
    let reverse = |record: &Record| {
        let after = state_of_backup(tree.as_ref(), record).map_err(|source| ApplyError::Path {
            operation: "find the backup of",
            path: record.path.clone(),
            source,
        })?;
        let source = match after {
            EntryState::File { .. } | EntryState::Dir { .. } if moves(record) => Source::Backup {
                root: backups.clone(),
                path: slot_path(record).map_err(own("name a backup in", &backups))?,
            },
            _ => Source::None,
        };
        let (path, before) = (record.path.clone(), record.after.clone());
        Ok(Target { path, before, after, source, like: None })
    };
    journal.records.iter().map(reverse).collect()
}

/// The directory of backups: with the journal, or left in the staging directory.
fn open_backups(
    dir: &JournalDir,
    journal: &Journal,
) -> Result<(PathBuf, Option<TreeRoot>), ApplyError> {
    for path in [dir.path_of(BACKUPS), staging_path(&journal.intent)] {
        match TreeRoot::open(&path) {
            Ok(tree) => return Ok((path, Some(tree))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(own("open", &path)(error)),
        }
    }
    // Nothing was replaced or removed: there is nothing to keep.
    Ok((dir.path_of(BACKUPS), None))
}

fn state_of_backup(tree: Option<&TreeRoot>, record: &Record) -> io::Result<EntryState> {
    if !moves(record) {
        return Ok(record.before.clone());
    }
    let path = slot_path(record)?;
    let stat = match tree {
        Some(tree) => tree.stat(&path)?,
        None => None,
    };
    let (Some(tree), Some(stat)) = (tree, stat) else {
        return match record.before {
            EntryState::Absent => Ok(EntryState::Absent),
            _ => Err(Errno::NOENT.into()),
        };
    };
    let unwritten = record.found.is_some_and(|found| {
        let now = Mark::of(&stat);
        (found.size, found.mtime) == (now.size, now.mtime)
    });
    match record.before {
        EntryState::Dir { .. } | EntryState::Symlink { .. } => Ok(record.before.clone()),
        EntryState::File { .. } if unwritten => Ok(record.before.clone()),
        _ => match tree.state(&path)? {
            // The user's own directory, taken out by decision: copying trees back is not our job.
            EntryState::Dir { .. } => Err(Errno::ISDIR.into()),
            state => Ok(state),
        },
    }
}

/// Ends the retention: removes backups and journal, and the directory if it is empty then.
/// Refuses while the approval is neither applied nor rolled back. May be repeated.
pub fn discard(journal_dir: &Path) -> Result<(), ApplyError> {
    let Some(dir) = JournalDir::open_if_there(journal_dir)? else { return Ok(()) };
    let ended = matches!(dir.read::<Outcome>(OUTCOME)?, Found::Good(_));
    let journal = dir.read::<Journal>(JOURNAL)?;
    if !ended && !matches!(journal, Found::Absent) {
        return Err(ApplyError::Journal {
            path: dir.path_of(JOURNAL),
            reason: "the approval has not ended".to_owned(),
        });
    }
    for name in [BACKUPS, "backups.new"] {
        remove_tree(dir.fd(), name.as_bytes()).map_err(own("remove", &dir.path_of(name)))?;
    }
    if let Found::Good(journal) = journal {
        let path = staging_path(&journal.intent);
        let staging = Staging::open_recorded(&journal.intent).map_err(own("open", &path))?;
        let is_own =
            |staging: &Staging| staging.mark().is_ok_and(|mark| mark.ino == journal.staging);
        if let Some(staging) = staging.filter(is_own) {
            staging.remove().map_err(own("remove", &path))?;
        }
    }
    dir.remove(JOURNAL)?;
    dir.remove(INTENT)?;
    dir.remove(OUTCOME)?;
    match rustix::fs::rmdir(journal_dir) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
        Err(errno) => Err(own("remove", journal_dir)(errno.into())),
    }
}
