//! What a person decides when recovery stopped: finish, or revert.

use super::backups::{keep_backups, move_backups};
use super::journal::{Found, JournalDir, OUTCOME, Outcome};
use super::plan::{Step, plan};
use super::publish::{record_published, revert_all, run, sync_published};
use super::recover::open_scene;
use super::staging::{own, staging_name};
use super::step::{Guard, Scene, StepError};
use super::{ApplyError, Recovered, Resolution, recover};
use skep_sys::failpoint;
use skep_types::ApprovalId;
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
            let path = staging.path().to_owned();
            let empty = staging.remove_staged(&journal.records).map_err(own("remove", &path))?;
            if !empty {
                // They stay beside the project if they cannot be moved: kept either way.
                let _ = move_backups(&dir, staging, &journal);
            }
            Ok(Recovered::Aborted { note: Some(journal.intent.note) })
        }
    }
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
