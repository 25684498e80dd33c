//! Recovery: what the files of an approval say, and what follows from it.
//!
//! | intent | journal | outcome | committed | then |
//! |---|---|---|---|---|
//! | – | – | – | any | nothing; but an error if it is committed and the whole directory is gone |
//! | yes | – or half | – | no | remove staging |
//! | yes | yes | – | no | take back steps (there are none), remove staging |
//! | yes | yes | – | yes | roll forward, or say where somebody else was |
//! | yes | yes | published | any | keep backups |
//! | yes | yes | rolled back | any | remove what was staged, keep what could not go back |
//!
//! Each line ends in a state that has a line of its own, so a recovery that dies is recovered by
//! the next.

use super::backups::{keep_backups, move_backups};
use super::journal::{
    BACKUPS, Found, INTENT, Intent, JOURNAL, Journal, JournalDir, OUTCOME, Outcome, Record,
};
use super::plan::{Step, moves, plan};
use super::publish::{Stuck, applied_paths, record_published, revert_all, run, sync_published};
use super::staging::{Staging, own, staging_path};
use super::step::{Guard, Scene};
use super::verify::{Index, differs, uncovered_child};
use super::{Applied, ApplyError, Attention, PathConflict, Recovered};
use crate::tree::TreeRoot;
use skep_sys::failpoint;
use skep_types::EntryState;
use std::io;
use std::path::Path;

/// Brings an interrupted approval to an end; see the module's table. May be repeated.
///
/// `committed` says whether the store holds the commit point. With it a damaged journal is an
/// error, never a reason to remove anything.
pub fn recover(journal_dir: &Path, committed: bool) -> Result<Recovered, ApplyError> {
    let Some(dir) = JournalDir::open_if_there(journal_dir)? else {
        return without_directory(journal_dir, committed);
    };
    failpoint::hit("recover.start").map_err(own("recover", journal_dir))?;
    let journal = dir.read::<Journal>(JOURNAL)?;
    match (journal, dir.read::<Outcome>(OUTCOME)?) {
        (Found::Good(journal), Found::Good(Outcome::Published)) => finish(&dir, journal),
        (Found::Good(journal), Found::Good(Outcome::RolledBack)) => clean(&dir, journal),
        (Found::Good(journal), _) if committed => roll_forward(&dir, journal),
        (Found::Good(journal), _) => take_back(&dir, journal),
        (Found::Absent, Found::Good(_)) => Ok(Recovered::Nothing),
        (Found::Absent | Found::Damaged, _) if committed && has_intent(&dir)? => {
            dir.journal().map(|_| Recovered::Nothing)
        }
        (Found::Absent | Found::Damaged, _) => remove_unjournaled(&dir),
    }
}

/// Before the commit point the directory may not be made yet. After it the journal was there, and goes
/// only when the row has ended: whoever removed it, a part may be in the project.
fn without_directory(journal_dir: &Path, committed: bool) -> Result<Recovered, ApplyError> {
    if !committed {
        return Ok(Recovered::Nothing);
    }
    let reason = "its directory is gone".to_owned();
    Err(ApplyError::Journal { path: journal_dir.join(JOURNAL), reason })
}

fn has_intent(dir: &JournalDir) -> Result<bool, ApplyError> {
    Ok(!matches!(dir.read::<Intent>(INTENT)?, Found::Absent))
}

/// Nothing was journaled, so nothing was published: whatever is staged goes.
fn remove_unjournaled(dir: &JournalDir) -> Result<Recovered, ApplyError> {
    let note = match dir.read::<Intent>(INTENT)? {
        Found::Absent => return Ok(Recovered::Nothing),
        Found::Damaged => None,
        Found::Good(intent) => {
            let path = staging_path(&intent);
            if let Some(staging) = Staging::open_recorded(&intent).map_err(own("open", &path))? {
                staging.remove().map_err(own("remove", &path))?;
            }
            Some(intent.note)
        }
    };
    failpoint::hit("recover.removed").map_err(own("recover", &dir.path_of(INTENT)))?;
    remove_files(dir)?;
    Ok(Recovered::Aborted { note })
}

fn remove_files(dir: &JournalDir) -> Result<(), ApplyError> {
    dir.remove(JOURNAL)?;
    dir.remove(&format!("{JOURNAL}.new"))?;
    dir.remove(&format!("{INTENT}.new"))?;
    // Last: while it is there, the staging directory can be found.
    dir.remove(INTENT)
}

/// Published before the interruption: only the backups may not be in their place.
fn finish(dir: &JournalDir, journal: Journal) -> Result<Recovered, ApplyError> {
    failpoint::hit("recover.finish").map_err(own("recover", &dir.path_of(JOURNAL)))?;
    let applied = match open_own_staging(&journal)? {
        Some(staging) => keep_backups(dir, staging, &journal),
        None => Applied {
            paths: applied_paths(&journal),
            stripped: journal.stripped.clone(),
            late_writes: Vec::new(),
            backups: dir.path_of(BACKUPS),
        },
    };
    Ok(Recovered::Applied { note: journal.intent.note, applied })
}

/// Rolled back before the interruption: only staged entries may be left, and what could not go back.
fn clean(dir: &JournalDir, journal: Journal) -> Result<Recovered, ApplyError> {
    failpoint::hit("recover.clean").map_err(own("recover", &dir.path_of(JOURNAL)))?;
    if let Some(staging) = open_own_staging(&journal)? {
        clear_reverted(dir, staging, &journal)?;
    }
    Ok(Recovered::Aborted { note: Some(journal.intent.note) })
}

/// Removes what was staged. What came out of the project and could not go back goes to the journal, or
/// stays beside the project if it cannot be moved: kept either way.
pub(super) fn clear_reverted(
    dir: &JournalDir,
    staging: Staging,
    journal: &Journal,
) -> Result<(), ApplyError> {
    let path = staging.path().to_owned();
    let empty = staging.remove_staged(&journal.records).map_err(own("remove", &path))?;
    if !empty {
        let _ = move_backups(dir, staging, journal);
    }
    Ok(())
}

/// The staging directory, if it is there and is the one that was made.
fn open_own_staging(journal: &Journal) -> Result<Option<Staging>, ApplyError> {
    let path = staging_path(&journal.intent);
    let opened = Staging::open_recorded(&journal.intent);
    let Some(staging) = opened.map_err(own("open", &path))? else { return Ok(None) };
    let mark = staging.mark().map_err(own("look at", &path))?;
    Ok((mark.ino == journal.staging).then_some(staging))
}

/// The project and its staging directory, checked against the journal.
pub(super) fn open_scene(
    dir: &JournalDir,
    journal: &Journal,
) -> Result<(TreeRoot, Staging), ApplyError> {
    let project = journal.intent.project.as_path();
    let root = TreeRoot::open(project).map_err(own("open", project))?;
    // Device numbers of some filesystems change with a reboot; inodes do not.
    if root.identity().map_err(own("look at", project))?.1 != journal.intent.root.1 {
        return Err(ApplyError::RootChanged { project: project.to_owned() });
    }
    let path = staging_path(&journal.intent);
    match Staging::open(&root, &journal.intent).map_err(own("open", &path))? {
        Some(staging) if staging.mark().map_err(own("look at", &path))?.ino == journal.staging => {
            Ok((root, staging))
        }
        _ => Err(ApplyError::Journal {
            path: dir.path_of(JOURNAL),
            reason: format!(
                "its staging directory `{}` is gone",
                skep_types::ByteString::from(path)
            ),
        }),
    }
}

/// Not committed: no step was made, or (a caller that published too early) all are taken back.
fn take_back(dir: &JournalDir, journal: Journal) -> Result<Recovered, ApplyError> {
    if let Some(staging) = open_own_staging(&journal)? {
        let path = staging.path().to_owned();
        let moved = any_moved(&staging, &journal).map_err(own("look at", &path))?;
        if moved {
            let (root, staging) = open_scene(dir, &journal)?;
            let guard = Guard::Reviewed;
            let scene = Scene { root: &root, staging: &staging, journal: &journal, guard };
            let undo: Vec<Step> = plan(&journal.records).into_iter().rev().collect();
            let stuck = revert_all(&scene, &undo);
            if !stuck.is_empty() {
                let conflicts = stuck.into_iter().map(Stuck::into_conflict).collect();
                return Ok(needs_attention(&scene, conflicts));
            }
            sync_published(&scene)?;
        }
        // The journal goes first: with it, a staged entry that is not in its slot any more is one that
        // was published, and a removal that was cut short could never be told from that.
        dir.remove(JOURNAL)?;
        dir.sync().map_err(own("sync", &dir.path_of(JOURNAL)))?;
        failpoint::hit("recover.take_back").map_err(own("recover", &path))?;
        staging.remove_staged(&journal.records).map_err(own("remove", &path))?;
    }
    failpoint::hit("recover.removed").map_err(own("recover", &dir.path_of(JOURNAL)))?;
    remove_files(dir)?;
    Ok(Recovered::Aborted { note: Some(journal.intent.note) })
}

fn any_moved(staging: &Staging, journal: &Journal) -> io::Result<bool> {
    for record in journal.records.iter().filter(|record| moves(record)) {
        if staging.is_moved(record)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Committed: the rest of the steps, unless somebody else changed a path that is still to come.
fn roll_forward(dir: &JournalDir, journal: Journal) -> Result<Recovered, ApplyError> {
    let (root, staging) = open_scene(dir, &journal)?;
    let guard = Guard::Reviewed;
    let scene = Scene { root: &root, staging: &staging, journal: &journal, guard };
    failpoint::hit("recover.forward").map_err(own("recover", staging.path()))?;
    let conflicts = look_ahead(&scene)?;
    if !conflicts.is_empty() {
        return Ok(needs_attention(&scene, conflicts));
    }
    match run(&scene, &plan(&journal.records), &mut |_| {}) {
        Ok(()) => {}
        Err((_, ApplyError::Conflict(conflicts))) => return Ok(needs_attention(&scene, conflicts)),
        Err((_, error)) => return Err(error),
    }
    sync_published(&scene)?;
    record_published(dir)?;
    let applied = keep_backups(dir, staging, &journal);
    Ok(Recovered::Applied { note: journal.intent.note, applied })
}

/// Looks at every path that is still to come before the first of them is touched.
fn look_ahead(scene: &Scene<'_>) -> Result<Vec<PathConflict>, ApplyError> {
    let records = &scene.journal.records;
    let index: Index<'_> =
        records.iter().map(|record| (&record.path, (&record.before, &record.after))).collect();
    let mut conflicts = Vec::new();
    for record in records.iter().filter(|record| moves(record)) {
        let found = look_at(scene, record, &index).map_err(|source| ApplyError::Path {
            operation: "look at",
            path: record.path.clone(),
            source,
        })?;
        conflicts.extend(found);
    }
    Ok(conflicts)
}

fn look_at(
    scene: &Scene<'_>,
    record: &Record,
    index: &Index<'_>,
) -> io::Result<Option<PathConflict>> {
    if scene.staging.is_moved(record)? {
        return Ok(None);
    }
    let state = scene.root.state(&record.path)?;
    let expected = match (&record.before, &state) {
        (EntryState::Dir { mode }, EntryState::Dir { mode: now }) => {
            now == mode || *now == super::plan::working_mode(*mode)
        }
        (before, now) => before == now,
    };
    if !expected {
        return Ok(Some(differs(&record.path, &record.before, &state)));
    }
    let child = uncovered_child(scene.root, &record.path, &record.before, &record.after, index)?;
    Ok(child.map(|reason| PathConflict { path: record.path.clone(), reason }))
}

fn needs_attention(scene: &Scene<'_>, conflicts: Vec<PathConflict>) -> Recovered {
    let attention = |conflict: PathConflict| {
        let record = scene.journal.records.iter().find(|record| record.path == conflict.path);
        let approved = record
            .filter(|record| record.staged.is_some())
            .map(|record| scene.staging.path().join(record.slot_name()));
        Attention { path: conflict.path, reason: conflict.reason, approved }
    };
    Recovered::NeedsAttention {
        note: scene.journal.intent.note.clone(),
        paths: conflicts.into_iter().map(attention).collect(),
    }
}
