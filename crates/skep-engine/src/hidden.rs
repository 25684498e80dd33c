//! Finding the project's files that the inside must not see, and masking them.
//!
//! The search is bounded: it goes level by level, nearest first, until it has looked at as many
//! entries as the data file allows. What was not searched is not hidden, and the report says so.

use skep_policy::HideRules;
use skep_types::RelPath;
use skep_workspace::tree::TreeRoot;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// What a search found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Paths to hide, sorted.
    pub hidden: Vec<RelPath>,
    /// Whether it stopped before it had seen everything it meant to look at.
    pub cut_short: bool,
}

/// Looks for files to hide.
pub fn search(project: &TreeRoot, rules: &HideRules) -> io::Result<Found> {
    let plan = rules.search_plan();
    let mut found = Found::default();
    for path in &plan.exact {
        if let Some(stat) = project.stat(path)? {
            let directory = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
            if rules.hides(path, directory).is_some() {
                found.hidden.push(path.clone());
            }
        }
    }
    let mut budget = plan.max_entries;
    let mut queue = VecDeque::from([RelPath::root()]);
    while let Some(directory) = queue.pop_front() {
        // A directory the caller cannot list cannot be read from inside either.
        let Ok(entries) = project.list(&directory) else { continue };
        for (name, kind) in entries {
            if budget == 0 {
                found.cut_short = true;
                break;
            }
            budget -= 1;
            // Most are files of no interest: of those not even the path is put together.
            if !kind.is_dir() && !rules.could_hide(&name, false) {
                continue;
            }
            let Ok(path) = directory.join(&name) else { continue };
            if rules.hides(&path, kind.is_dir()).is_some() {
                found.hidden.push(path);
            } else if kind.is_dir() && !plan.skips(&path) {
                queue.push_back(path);
            }
        }
        if found.cut_short {
            break;
        }
    }
    found.hidden.sort();
    found.hidden.dedup();
    Ok(found)
}

/// Makes the mask: a layer of whiteouts, one for each hidden path.
///
/// A whiteout is a character device 0:0. Anyone may make one; it cannot be opened. The layer is
/// made with the first of them; it lends its mode to the project's root inside.
pub fn make_mask(mask: &Path, project: &Path, hidden: &[RelPath]) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if hidden.is_empty() {
        return Ok(());
    }
    match std::fs::create_dir(mask) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => {
            made?;
            let mode = std::fs::metadata(project)?.mode() & 0o7777;
            std::fs::set_permissions(mask, std::fs::Permissions::from_mode(mode))?;
        }
    }
    for path in hidden {
        if let Some(parent) = path.parent() {
            make_parents(mask, project, &parent)?;
        }
        let place = mask.join(path.as_path());
        // Something below it was hidden before; now all of it is.
        let _ = std::fs::remove_dir_all(&place);
        mknodat(CWD, place, FileType::CharacterDevice, Mode::empty(), 0)?;
    }
    Ok(())
}

/// A directory of the mask lends the merged directory its mode and owner: they must be those of
/// the project's.
fn make_parents(mask: &Path, project: &Path, path: &RelPath) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let mut chain: Vec<RelPath> =
        path.ancestors().chain([path.clone()]).filter(|p| !p.is_root()).collect();
    chain.sort();
    for directory in chain {
        let target = mask.join(directory.as_path());
        match std::fs::create_dir(&target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        }
        let like = std::fs::symlink_metadata(project.join(directory.as_path()))?;
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(like.mode() & 0o7777))?;
    }
    Ok(())
}
