//! Finding the project's files that the inside must not see, and masking them.
//!
//! The search for the built-in list is bounded: it goes level by level, nearest first, until it has
//! looked at as many entries as the data file allows. What was not searched is not hidden, and the
//! report says so. Where the caller typed names or globs, everything is searched, or it is refused.

use skep_policy::{HideRules, SearchPlan};
use skep_types::{EnforcementReport, Layer, LayerReport, RelPath};
use skep_workspace::tree::TreeRoot;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// What a search found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Paths to hide, sorted.
    pub(crate) hidden: Vec<RelPath>,
    /// How far it came.
    pub(crate) searched: Searched,
}

/// Whether the search for files to hide saw everything it meant to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Searched {
    Whole,
    InPart { entries: usize, levels: usize },
}

/// Why what the caller hides cannot be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SearchError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a glob to hide needs a search of all of the project, which has more than {0} entries")]
    TooMany(usize),
    #[error("a glob to hide may match in `{directory}`, which cannot be listed: {error}")]
    Unlisted { directory: RelPath, error: io::Error },
}

/// Looks for files to hide.
pub(crate) fn search(project: &TreeRoot, rules: &HideRules) -> Result<Found, SearchError> {
    search_by(project, rules, &rules.search_plan())
}

fn search_by(
    project: &TreeRoot,
    rules: &HideRules,
    plan: &SearchPlan,
) -> Result<Found, SearchError> {
    let in_part = Searched::InPart { entries: plan.max_entries, levels: plan.max_depth };
    let mut found = Found { hidden: exact(project, rules, plan)?, searched: Searched::Whole };
    let mut budget = plan.max_entries;
    // With each directory, whether the built-in list counts in it.
    let mut queue = VecDeque::from([(RelPath::root(), true)]);
    'search: while let Some((directory, listed)) = queue.pop_front() {
        let entries = match project.list(&directory) {
            Ok(entries) => entries,
            Err(error) if plan.whole && could_be_read(project, &directory, &error) => {
                return Err(SearchError::Unlisted { directory, error });
            }
            Err(_) => continue,
        };
        for (name, kind) in entries {
            if budget == 0 && plan.whole {
                return Err(SearchError::TooMany(plan.max_entries));
            }
            if budget == 0 {
                found.searched = in_part;
                break 'search;
            }
            budget -= 1;
            // Most are files of no interest: of those not even the path is put together.
            if !kind.is_dir() && !rules.could_hide(&name, false) {
                continue;
            }
            let Ok(path) = directory.join(&name) else { continue };
            let hides = if listed { HideRules::hides } else { HideRules::hides_as_asked };
            if hides(rules, &path, kind.is_dir()).is_some() {
                found.hidden.push(path);
            } else if !kind.is_dir() {
                continue;
            } else if plan.is_too_deep(&path) {
                found.searched = in_part;
            } else if plan.whole || !plan.skips(&path) {
                let listed = listed && !plan.skips(&path);
                queue.push_back((path, listed));
            }
        }
    }
    found.hidden.sort();
    found.hidden.dedup();
    Ok(found)
}

/// The paths that the caller spelled out, of which one look each is enough.
fn exact(project: &TreeRoot, rules: &HideRules, plan: &SearchPlan) -> io::Result<Vec<RelPath>> {
    let mut hidden = Vec::new();
    for path in &plan.exact {
        if let Some(stat) = project.stat(path)? {
            let directory = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
            if rules.hides(path, directory).is_some() {
                hidden.push(path.clone());
            }
        }
    }
    Ok(hidden)
}

/// Whether the inside could read in a directory that could not be listed: what the caller may
/// neither list nor enter is closed to the inside too, and what is gone holds nothing. A name in a
/// directory that may be entered can be guessed. The view does not cross mounts.
fn could_be_read(project: &TreeRoot, directory: &RelPath, error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, NotADirectory, NotFound, PermissionDenied};
    match error.kind() {
        NotFound | NotADirectory | CrossesDevices => false,
        PermissionDenied => directory.join(b"x").is_ok_and(|name| project.stat(&name).is_ok()),
        _ => true,
    }
}

const STOPPED: &str = "the search for secrets stopped after ";

/// The report says how much is hidden, and whether more could have been.
pub(crate) fn note_hidden(report: &mut EnforcementReport, hidden: usize, searched: Searched) {
    let Some(LayerReport { how, reason, .. }) = report.0.get_mut(&Layer::Filesystem) else {
        return;
    };
    how.push_str(&format!(", {hidden} path(s) hidden"));
    if let Searched::InPart { entries, levels } = searched {
        let more = format!(
            "{STOPPED}{entries} entries or {levels} levels; `.env` files and keys beyond may be \
             readable; `--hide GLOB` searches everything"
        );
        *reason = Some(reason.take().into_iter().chain([more]).collect::<Vec<_>>().join("; "));
    }
}

/// What a report says of a search for secrets that was cut short.
pub fn unsearched(report: &EnforcementReport) -> Option<&str> {
    let reason = report.0.get(&Layer::Filesystem)?.reason.as_deref()?;
    reason.find(STOPPED).and_then(|at| reason.get(at..))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_is_searched_for_everywhere_or_refused() {
        let project = tempfile::tempdir().unwrap();
        for path in ["a/1", "a/2", "a/3", "node_modules/x/.env", "node_modules/x/deep.sql"] {
            let path = project.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let root = TreeRoot::open(project.path()).unwrap();
        let rules = HideRules::new(&["*.sql"], &[]).unwrap();
        let found = search(&root, &rules).unwrap();
        assert_eq!(found.hidden, [RelPath::parse(b"node_modules/x/deep.sql").unwrap()]);
        assert_eq!(found.searched, Searched::Whole);
        let small = SearchPlan { max_entries: 3, ..rules.search_plan() };
        let error = search_by(&root, &rules, &small).unwrap_err();
        assert!(matches!(error, SearchError::TooMany(3)), "{error}");
        let builtin = SearchPlan { whole: false, ..small };
        let found = search_by(&root, &rules, &builtin).unwrap();
        assert!(matches!(found.searched, Searched::InPart { entries: 3, .. }));
    }

    #[test]
    fn a_search_that_was_cut_short_is_said_beside_other_reasons() {
        let mut report = EnforcementReport::default();
        report.on(Layer::Filesystem, "overlay");
        note_hidden(&mut report, 1, Searched::Whole);
        assert_eq!(unsearched(&report), None);
        report.0.get_mut(&Layer::Filesystem).unwrap().reason = Some("no overlay".into());
        note_hidden(&mut report, 1, Searched::InPart { entries: 7, levels: 2 });
        let said = unsearched(&report).unwrap();
        assert!(said.starts_with("the search for secrets stopped after 7 entries"), "{said}");
        assert!(report.0[&Layer::Filesystem].reason.as_ref().unwrap().starts_with("no overlay; "));
    }
}
