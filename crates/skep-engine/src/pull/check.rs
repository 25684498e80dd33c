//! What came from inside is what it says, has no names that git would trip over, and misses nothing.
//!
//! Receiving the pack has hashed every object. What is left is what `git fsck` would look at: that
//! commits and trees can be read, that no tree has a name by which a checkout would write to `.git` or
//! out of the project, and that everything an object refers to is there. The objects of the project
//! are taken to be complete; then every tip is, because every new object is.

use super::{Tip, failed, refused};
use gix::bstr::{BStr, ByteSlice};
use gix::objs::Kind;
use gix::validate::path::component;
use skep_types::Problem;
use std::path::Path;

/// A branch points to a commit.
pub(super) fn tips(repository: &gix::Repository, tips: &[Tip]) -> Result<(), Problem> {
    for tip in tips {
        let kind = repository.find_header(tip.id).map(|header| header.kind());
        if !matches!(kind, Ok(Kind::Commit)) {
            return Err(refused(format!("branch `{}` inside points to no commit", tip.name)));
        }
    }
    Ok(())
}

/// Every object of the pack with this index.
pub(super) fn pack(repository: &gix::Repository, index: &Path) -> Result<(), Problem> {
    let cannot = |error: &dyn std::fmt::Display| failed("check what came from inside", error);
    let index = gix::odb::pack::index::File::at(index, repository.object_hash())
        .map_err(|error| cannot(&error))?;
    for entry in index.iter() {
        let object = match repository.find_header(entry.oid).map_err(|e| cannot(&e))?.kind() {
            Kind::Blob => continue,
            _ => repository.find_object(entry.oid).map_err(|error| cannot(&error))?,
        };
        let bad =
            |what: &str| refused(format!("{} `{}` from inside: {what}", object.kind, entry.oid));
        match object.kind {
            Kind::Commit => commit(repository, &object).map_err(|what| bad(&what))?,
            Kind::Tree => tree(repository, &object).map_err(|what| bad(&what))?,
            Kind::Tag | Kind::Blob => {}
        }
    }
    Ok(())
}

fn commit(repository: &gix::Repository, object: &gix::Object<'_>) -> Result<(), String> {
    let commit = gix::objs::CommitRef::from_bytes(&object.data, repository.object_hash())
        .map_err(|_| "cannot be read".to_owned())?;
    let refers = std::iter::once(commit.tree()).chain(commit.parents());
    refers.into_iter().try_for_each(|id| there(repository, &id))
}

fn tree(repository: &gix::Repository, object: &gix::Object<'_>) -> Result<(), String> {
    let tree = gix::objs::TreeRef::from_bytes(&object.data, repository.object_hash())
        .map_err(|_| "cannot be read".to_owned())?;
    if tree.entries.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err("is not sorted".into());
    }
    for entry in &tree.entries {
        name(entry.filename, entry.mode.is_link())?;
        if !entry.mode.is_commit() {
            there(repository, entry.oid)?;
        }
    }
    Ok(())
}

/// By git's own rules, for every filesystem a checkout may land on.
fn name(name: &BStr, link: bool) -> Result<(), String> {
    let options =
        component::Options { protect_windows: false, protect_hfs: true, protect_ntfs: true };
    let mode = link.then_some(component::Mode::Symlink);
    match gix::validate::path::component(name, mode, options) {
        Ok(_) if name.find_byte(0).is_none() => Ok(()),
        Ok(_) => Err("has a name with a NUL byte".into()),
        Err(error) => {
            let shown = skep_types::escape::visible(name);
            Err(format!("has an entry `{shown}`: {error}"))
        }
    }
}

fn there(repository: &gix::Repository, id: &gix::oid) -> Result<(), String> {
    if repository.has_object(id) {
        Ok(())
    } else {
        Err(format!("refers to `{id}`, which is missing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_reach_git_or_climb_are_refused() {
        for bad in [".git", ".GIT", "git~1", ".git ", ".g\u{200c}it", "..", ".", "", "a/b"] {
            assert!(name(bad.into(), false).is_err(), "{bad:?}");
        }
        for good in ["a", ".gitignore", ".gitmodules", "con", "a:b", "a\\b", ".github", "ü"] {
            assert!(name(good.into(), false).is_ok(), "{good:?}");
        }
        assert!(name(".gitmodules".into(), true).is_err());
    }
}
