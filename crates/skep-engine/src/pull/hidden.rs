//! A file that is hidden inside looks deleted to git there: `git commit -a` commits its deletion.
//!
//! The agent did not mean it and could not see it, and whoever merges that commit loses the file. So it
//! is said for every branch that came, and a branch of the project is not moved to such a commit:
//! what was to be kept from the inside must not be taken from the outside.

use super::{Tip, failed, refused};
use skep_types::{Problem, RelPath};
use std::path::Path;

/// References of skep's own: what only they hold has not been taken over.
const OURS: &[u8] = b"refs/skep/";

/// Per branch that came, the hidden paths that commits made inside delete.
pub(super) fn deleted_by(
    project: &gix::Repository,
    receiver: &Path,
    tips: &[Tip],
    hidden: &[RelPath],
) -> Result<Vec<Vec<RelPath>>, Problem> {
    if hidden.is_empty() {
        return Ok(vec![Vec::new(); tips.len()]);
    }
    // The receiver sees both the project's commits and the new ones.
    let repository = super::open(receiver, None)?;
    let known = known(project)?;
    tips.iter().map(|tip| deleted(&repository, &known, tip.id, hidden)).collect()
}

/// Refuses to move a branch of the project to a commit without its hidden files.
pub(super) fn refuse(branch: &str, lost: &[RelPath]) -> Result<(), Problem> {
    if lost.is_empty() {
        return Ok(());
    }
    let shown = skep_types::escape::visible(branch.as_bytes());
    let names: Vec<String> = lost.iter().map(|path| format!("`{path}`")).collect();
    let message = format!(
        "branch `{shown}` inside deletes {}, hidden there: git inside saw no such file",
        names.join(", ")
    );
    Err(refused(message).hint(
        "nothing was changed; pull without `--branch`, then \
         `git merge --no-commit --no-ff refs/skep/NAME/BRANCH` and `git restore -SW -- PATH`",
    ))
}

/// Every commit that a reference of the project leads to, or `HEAD`.
fn known(project: &gix::Repository) -> Result<Vec<gix::ObjectId>, Problem> {
    let cannot = |error: &dyn std::fmt::Display| failed("read references", error);
    let mut known = Vec::new();
    let platform = project.references().map_err(|error| cannot(&error))?;
    for reference in platform.all().map_err(|error| cannot(&error))? {
        let reference = reference.map_err(|error| cannot(&error))?;
        if !reference.name().as_bstr().starts_with(OURS) {
            known.extend(reference.try_id().map(|id| id.detach()));
        }
    }
    known.extend(project.head_id().ok().map(|id| id.detach()));
    // A tag or a reference to something else hides no commit.
    known.retain(|id| matches!(project.find_header(*id), Ok(header) if header.kind().is_commit()));
    Ok(known)
}

fn deleted(
    repository: &gix::Repository,
    known: &[gix::ObjectId],
    tip: gix::ObjectId,
    hidden: &[RelPath],
) -> Result<Vec<RelPath>, Problem> {
    let mut missing = Vec::new();
    for path in hidden {
        if !has(repository, tip, path)? {
            missing.push(path);
        }
    }
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let cannot = |error: &dyn std::fmt::Display| failed("walk the commits from inside", error);
    let walk = repository.rev_walk([tip]).with_hidden(known.iter().copied());
    let mut lost = Vec::new();
    for commit in walk.all().map_err(|error| cannot(&error))? {
        let commit = commit.map_err(|error| cannot(&error))?;
        for path in &missing {
            if !lost.contains(*path)
                && !has(repository, commit.id, path)?
                && any_has(repository, commit.parent_ids().map(|id| id.detach()), path)?
            {
                lost.push((*path).clone());
            }
        }
    }
    lost.sort();
    Ok(lost)
}

fn any_has(
    repository: &gix::Repository,
    mut commits: impl Iterator<Item = gix::ObjectId>,
    path: &RelPath,
) -> Result<bool, Problem> {
    commits.try_fold(false, |found, commit| Ok(found || has(repository, commit, path)?))
}

/// Whether there is an entry of this name in a commit.
fn has(
    repository: &gix::Repository,
    commit: gix::ObjectId,
    path: &RelPath,
) -> Result<bool, Problem> {
    let cannot = |error: &dyn std::fmt::Display| failed("read a commit from inside", error);
    let commit = repository.find_commit(commit).map_err(|error| cannot(&error))?;
    let tree = commit.tree().map_err(|error| cannot(&error))?;
    let entry = tree.lookup_entry(path.components()).map_err(|error| cannot(&error))?;
    Ok(entry.is_some())
}
