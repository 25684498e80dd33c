//! Which changes the project's own ignore rules match.
//!
//! The rules are read from the project, never from the sandbox: an agent that edits `.gitignore`
//! must not be able to hide its work. A path that the base's commit has is not ignored, as in git.

use super::Detail;
use crate::error::DeriveError;
use crate::git::Repository;
use crate::spec::WorkspaceSpec;
use crate::tree::TreeRoot;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use skep_types::{Change, EntryState, RelPath};
use std::collections::HashMap;
use std::io;
use std::path::Path;

/// Ignore files above this size are not believable.
const MAX_RULES: u64 = 1 << 20;

/// Sets `ignored` on every change that the rules match.
pub(super) fn mark(
    spec: &WorkspaceSpec,
    project: &TreeRoot,
    git: &Repository,
    changes: &mut [Change],
    detail: &mut Detail,
) -> Result<(), DeriveError> {
    let mut rules = Rules { spec, project, loaded: HashMap::new() };
    for change in changes {
        let state = if change.new.is_absent() { &change.old } else { &change.new };
        let directory = matches!(state, EntryState::Dir { .. });
        if let Some(top) = rules.top_match(&change.path, directory)?
            && !git.has(&change.path)
        {
            change.ignored = true;
            detail.ignored_tops.insert(change.path.clone(), top);
        }
    }
    Ok(())
}

struct Rules<'a> {
    spec: &'a WorkspaceSpec,
    project: &'a TreeRoot,
    /// The rules that stand in a directory; those of the repository under `.git`.
    loaded: HashMap<RelPath, Option<Gitignore>>,
}

impl Rules<'_> {
    /// The topmost of the path and its parents that is ignored. What git keeps for itself never is.
    fn top_match(
        &mut self,
        path: &RelPath,
        directory: bool,
    ) -> Result<Option<RelPath>, DeriveError> {
        if path.components().any(|part| part.eq_ignore_ascii_case(b".git")) {
            return Ok(None);
        }
        let mut prefixes: Vec<RelPath> = path.ancestors().filter(|p| !p.is_root()).collect();
        prefixes.reverse();
        for prefix in prefixes {
            if self.matches(&prefix, true)? {
                return Ok(Some(prefix));
            }
        }
        Ok(self.matches(path, directory)?.then(|| path.clone()))
    }

    /// Whether the nearest rule that speaks of this one path ignores it.
    fn matches(&mut self, path: &RelPath, directory: bool) -> Result<bool, DeriveError> {
        for parent in path.ancestors() {
            let below = Path::new(path.as_path())
                .strip_prefix(parent.as_path())
                .unwrap_or(path.as_path())
                .to_owned();
            if let Some(verdict) = self.verdict(&parent, b".gitignore", &below, directory)? {
                return Ok(verdict);
            }
        }
        let info = RelPath::parse(b".git/info").unwrap_or_default();
        Ok(self.verdict(&info, b"exclude", path.as_path(), directory)?.unwrap_or(false))
    }

    fn verdict(
        &mut self,
        directory: &RelPath,
        name: &[u8],
        below: &Path,
        is_directory: bool,
    ) -> Result<Option<bool>, DeriveError> {
        if !self.loaded.contains_key(directory) {
            let rules = self.load(directory, name)?;
            self.loaded.insert(directory.clone(), rules);
        }
        let Some(Some(rules)) = self.loaded.get(directory) else { return Ok(None) };
        Ok(match rules.matched(below, is_directory) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        })
    }

    fn load(&self, directory: &RelPath, name: &[u8]) -> Result<Option<Gitignore>, DeriveError> {
        let error = |source| DeriveError::read("project", directory, source);
        let path = directory.join(name).map_err(|e| error(io::Error::other(e)))?;
        if self.spec.is_hidden(&path) {
            return Ok(None);
        }
        let bytes = match self.project.read(&path, MAX_RULES) {
            Ok(bytes) => bytes,
            // Anything that is no readable file of a believable size has no rules: then more is
            // shown, never less.
            Err(_) => return Ok(None),
        };
        let mut builder = GitignoreBuilder::new("");
        for line in String::from_utf8_lossy(&bytes).lines() {
            // A line that is no pattern is skipped, as git does.
            let _ = builder.add_line(None, line);
        }
        Ok(builder.build().ok())
    }
}
