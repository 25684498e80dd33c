//! Which changes the project's own ignore rules match.
//!
//! The rules are read from the project, never from the sandbox: an agent that edits `.gitignore`
//! must not be able to hide its work. A path that the base's commit has is not ignored, as in git.
//!
//! What holds for everything in a directory is found out once: the rules that stand above it, and
//! whether it is ignored itself.

use super::Detail;
use crate::error::DeriveError;
use crate::git::Repository;
use crate::held::Held;
use crate::spec::WorkspaceSpec;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use skep_types::{Change, EntryState, RelPath};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

/// Ignore files above this size are not believable.
const MAX_RULES: u64 = 1 << 20;
/// So many directories are remembered at a time.
const MAX_DIRECTORIES: usize = 4096;

/// Sets `ignored` on every change that the rules match.
pub(super) fn mark(
    spec: &WorkspaceSpec,
    project: &Held<'_>,
    git: &Repository,
    changes: &mut [Change],
    detail: &mut Detail,
) -> Result<(), DeriveError> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut rules = Rules::new(spec, project)?;
    for change in changes {
        let state = if change.new.is_absent() { &change.old } else { &change.new };
        let directory = matches!(state, EntryState::Dir { .. });
        if let Some(top) = rules.top_match(&change.path, directory)?
            && !git.has(&change.path)
        {
            change.ignored = true;
            if !detail.ignored_tops.contains(&top) {
                detail.ignored_tops.insert(top);
            }
        }
    }
    Ok(())
}

pub(crate) struct Rules<'a> {
    spec: &'a WorkspaceSpec,
    project: &'a Held<'a>,
    /// Those of the repository, which count last.
    exclude: Option<Gitignore>,
    known: HashMap<RelPath, Rc<Directory>>,
    last: (RelPath, Rc<Directory>),
}

/// What counts for the entries of a directory.
#[derive(Default)]
struct Directory {
    /// What git keeps for itself never is ignored.
    in_git: bool,
    /// The topmost of it and its parents that is ignored.
    top: Option<RelPath>,
    /// Rules that stand in it and above, the nearest first, each with the length of the path it
    /// stands at.
    rules: Vec<(usize, Rc<Gitignore>)>,
}

impl<'a> Rules<'a> {
    pub(crate) fn new(spec: &'a WorkspaceSpec, project: &'a Held<'a>) -> Result<Self, DeriveError> {
        let info = RelPath::parse(b".git/info").unwrap_or_default();
        let exclude = load(spec, project, &info, b"exclude")?;
        let own = load(spec, project, &RelPath::root(), b".gitignore")?;
        let rules = own.map(|rules| (0, Rc::new(rules))).into_iter().collect();
        let root = Rc::new(Directory { in_git: false, top: None, rules });
        let known = HashMap::from([(RelPath::root(), Rc::clone(&root))]);
        Ok(Self { spec, project, exclude, known, last: (RelPath::root(), root) })
    }

    /// The topmost of the path and its parents that is ignored.
    pub(crate) fn top_match(
        &mut self,
        path: &RelPath,
        directory: bool,
    ) -> Result<Option<RelPath>, DeriveError> {
        let Some(name) = path.file_name() else { return Ok(None) };
        if self.last.0.as_bytes() != path.parent_bytes() {
            let parent = path.parent().unwrap_or_default();
            self.last = (parent.clone(), self.directory(&parent)?);
        }
        let parent = &self.last.1;
        if parent.in_git || is_git(name) {
            return Ok(None);
        }
        if parent.top.is_some() {
            return Ok(parent.top.clone());
        }
        Ok(self.matches(parent, path, directory).then(|| path.clone()))
    }

    fn directory(&mut self, path: &RelPath) -> Result<Rc<Directory>, DeriveError> {
        if self.known.len() > MAX_DIRECTORIES {
            self.known.retain(|known, _| known.is_root());
        }
        // The nearest that is known, and from there down again.
        let mut unknown = Vec::new();
        let mut at = Some(path.clone());
        let mut known = Rc::default();
        while let Some(directory) = at {
            if let Some(found) = self.known.get(&directory) {
                known = Rc::clone(found);
                break;
            }
            at = directory.parent();
            unknown.push(directory);
        }
        while let Some(directory) = unknown.pop() {
            known = Rc::new(self.below(&known, &directory)?);
            self.known.insert(directory, Rc::clone(&known));
        }
        Ok(known)
    }

    fn below(&self, above: &Directory, path: &RelPath) -> Result<Directory, DeriveError> {
        if above.in_git || path.file_name().is_some_and(is_git) {
            return Ok(Directory { in_git: true, ..Directory::default() });
        }
        let top = match &above.top {
            Some(top) => Some(top.clone()),
            None => self.matches(above, path, true).then(|| path.clone()),
        };
        let own = load(self.spec, self.project, path, b".gitignore")?;
        let own = own.map(|rules| (path.as_bytes().len() + 1, Rc::new(rules)));
        let rules = own.into_iter().chain(above.rules.iter().cloned()).collect();
        Ok(Directory { in_git: false, top, rules })
    }

    /// Whether the nearest rule that speaks of this one path ignores it.
    fn matches(&self, parent: &Directory, path: &RelPath, directory: bool) -> bool {
        let verdict = |rules: &Gitignore, below: &[u8]| match rules
            .matched(Path::new(OsStr::from_bytes(below)), directory)
        {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        };
        let near = parent.rules.iter().find_map(|(from, rules)| {
            verdict(rules, path.as_bytes().get(*from..).unwrap_or_default())
        });
        let last = || self.exclude.as_ref().and_then(|rules| verdict(rules, path.as_bytes()));
        near.or_else(last).unwrap_or(false)
    }
}

fn is_git(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b".git")
}

/// The rules in a file of the project, if it has any.
fn load(
    spec: &WorkspaceSpec,
    project: &Held<'_>,
    directory: &RelPath,
    name: &[u8],
) -> Result<Option<Gitignore>, DeriveError> {
    let error = |source| DeriveError::read("project", directory, source);
    let path = directory.join(name).map_err(|e| error(io::Error::other(e)))?;
    if spec.is_hidden(&path) {
        return Ok(None);
    }
    let bytes = match project.read(&path, MAX_RULES) {
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
    Ok(builder.build().ok().filter(|rules| !rules.is_empty()))
}
