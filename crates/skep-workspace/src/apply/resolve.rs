//! What a person decides when recovery stopped: finish, or revert.

use super::backups::keep_backups;
use super::journal::{BACKUPS, Found, JOURNAL, Journal, JournalDir, OUTCOME, Outcome};
use super::plan::{Step, plan};
use super::publish::{record_published, revert_all, run, sync_published};
use super::recover::{clear_reverted, open_scene};
use super::staging::{own, slot_path, staging_name, staging_path};
use super::step::{Guard, Scene, StepError};
use super::{ApplyError, KeptBackup, Recovered, Resolution, recover};
use crate::tree::TreeRoot;
use skep_sys::failpoint;
use skep_types::ApprovalId;
use std::io;
use std::path::{Path, PathBuf};

/// Goes on from [`Recovered::NeedsAttention`] as the person decided. May be repeated.
///
/// Finishing keeps the user's versions as backups. Reverting leaves every path that the user
/// changed as it is, and keeps what stood there before as a backup.
pub fn resolve(journal_dir: &Path, resolution: Resolution) -> Result<Recovered, ApplyError> {
    let dir = JournalDir::open(journal_dir)?;
    let journal = dir.journal()?;
    if let Found::Good(_) = dir.read::<Outcome>(OUTCOME)? {
        return recover(journal_dir, true);
    }
    let (root, staging) = open_scene(&dir, &journal)?;
    let guard = match resolution {
        Resolution::Finish => Guard::Decided,
        Resolution::Revert => Guard::Reviewed,
    };
    let scene = Scene { root: &root, staging: &staging, journal: &journal, guard };
    let steps = plan(&journal.records);
    failpoint::hit("resolve.start").map_err(own("resolve", staging.path()))?;
    match resolution {
        Resolution::Finish => {
            run(&scene, &steps, &mut |_| {}).map_err(|(_, error)| error)?;
            sync_published(&scene)?;
            record_published(&dir)?;
            let applied = keep_backups(&dir, staging, &journal);
            Ok(Recovered::Applied { note: journal.intent.note, applied })
        }
        Resolution::Revert => {
            revert(&scene, &steps)?;
            sync_published(&scene)?;
            dir.write(OUTCOME, &Outcome::RolledBack)?;
            clear_reverted(&dir, staging, &journal)?;
            Ok(Recovered::Aborted { note: Some(journal.intent.note) })
        }
    }
}

/// What stood in the project before an approval that was reverted, and could not go back because the
/// user's own version is there. It is kept with the journal, or in the staging directory if it could
/// not be moved, until [`super::discard`] ends both.
pub fn kept_backups(journal_dir: &Path) -> Result<Vec<KeptBackup>, ApplyError> {
    let Some(dir) = JournalDir::open_if_there(journal_dir)? else { return Ok(Vec::new()) };
    let Found::Good(journal) = dir.read::<Journal>(JOURNAL)? else { return Ok(Vec::new()) };
    let mut kept = Vec::new();
    for (place, may_be_staged) in
        [(dir.path_of(BACKUPS), false), (staging_path(&journal.intent), true)]
    {
        let tree = match TreeRoot::open(&place) {
            Ok(tree) => tree,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(own("open", &place)(error)),
        };
        for record in &journal.records {
            let slot = slot_path(record).and_then(|slot| tree.stat(&slot));
            let Some(slot) = slot.map_err(own("look at", &place))? else { continue };
            // A staged entry that could not be removed was never the user's.
            let staged = record.staged.is_some_and(|staged| staged.ino == slot.st_ino);
            if !(may_be_staged && staged) {
                let (path, at) = (record.path.clone(), place.join(record.slot_name()));
                kept.push(KeptBackup { path, at });
            }
        }
    }
    Ok(kept)
}

/// The staging directories of an approval that are still there. For one whose journal cannot be
/// read: nothing is known of it but its name, so nothing is touched, only named.
pub fn left_behind(project: &Path, id: &ApprovalId) -> Vec<PathBuf> {
    let name = staging_name(id);
    let places = project.parent().into_iter().chain([project]);
    places.map(|place| place.join(&name)).filter(|path| path.is_dir()).collect()
}

/// Takes back what is still ours. A path that the user changed is theirs; a failing system call
/// is an error.
fn revert(scene: &Scene<'_>, steps: &[Step]) -> Result<(), ApplyError> {
    let undo: Vec<Step> = steps.iter().rev().copied().collect();
    for stuck in revert_all(scene, &undo) {
        if let StepError::Io { operation, source } = stuck.error {
            return Err(ApplyError::Path { operation, path: stuck.path, source });
        }
    }
    Ok(())
}
