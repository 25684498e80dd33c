//! A tree with some paths replaced; everything else is taken over as it is.

use gix::ObjectId;
use gix::objs::tree::{Entry, EntryKind};
use skep_types::{Code, Problem};
use std::collections::BTreeMap;

/// What shall stand at a path: an object with its mode, or nothing.
pub(super) type Replacement = Option<(EntryKind, ObjectId)>;

/// Replacements by name, level by level.
#[derive(Debug, Default)]
pub(super) struct Edits(BTreeMap<Vec<u8>, Edit>);

#[derive(Debug)]
enum Edit {
    Entry(Replacement),
    Below(Edits),
}

impl Edits {
    /// Adds one path. A file and something below it cannot both be put; where one gave way to the
    /// other, the removal is part of what takes its place.
    pub(super) fn insert(&mut self, path: &[u8], replacement: Replacement) {
        let (name, rest) = match path.iter().position(|byte| *byte == b'/') {
            None => (path, None),
            Some(at) => (&path[..at], Some(&path[at + 1..])),
        };
        let known = self.0.get_mut(name);
        match (known, rest) {
            (Some(Edit::Below(below)), Some(rest)) => below.insert(rest, replacement),
            (Some(Edit::Below(_)), None) | (Some(Edit::Entry(Some(_))), Some(_))
                if replacement.is_none() => {}
            (_, Some(rest)) => {
                let mut below = Self::default();
                below.insert(rest, replacement);
                self.0.insert(name.to_vec(), Edit::Below(below));
            }
            (_, None) => drop(self.0.insert(name.to_vec(), Edit::Entry(replacement))),
        }
    }

    /// Writes the tree that `base` becomes; `None` when nothing is left in it.
    pub(super) fn write(
        &self,
        repository: &gix::Repository,
        base: Option<ObjectId>,
    ) -> Result<Option<ObjectId>, Problem> {
        let mut entries: Vec<Entry> = match base {
            None => Vec::new(),
            Some(id) => {
                let tree = repository.find_tree(id).map_err(|error| unreadable(&error))?;
                let tree = tree.decode().map_err(|error| unreadable(&error))?;
                tree.entries.iter().map(|entry| (*entry).into()).collect()
            }
        };
        for (name, edit) in &self.0 {
            let at = entries.iter().position(|entry| entry.filename == name.as_slice());
            let found = at.map(|at| entries.remove(at));
            entries.extend(edit.apply(repository, name, found)?);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        entries.sort();
        let tree = gix::objs::Tree { entries };
        let id = repository.write_object(&tree).map_err(|error| {
            Problem::new(Code::Io, format!("git's objects cannot be written: {error}"))
        })?;
        Ok(Some(id.detach()))
    }
}

impl Edit {
    fn apply(
        &self,
        repository: &gix::Repository,
        name: &[u8],
        found: Option<Entry>,
    ) -> Result<Option<Entry>, Problem> {
        let submodule = found.as_ref().is_some_and(|entry| entry.mode.is_commit());
        if submodule {
            let name = skep_types::escape::visible(name);
            let message = format!("`{name}` is a submodule, with a repository of its own");
            return Err(Problem::new(Code::Refused, message));
        }
        let entry = |kind: EntryKind, oid| Entry { mode: kind.into(), filename: name.into(), oid };
        match self {
            // Nothing of ours to remove: the directory has other files.
            Self::Entry(None) => Ok(found.filter(|entry| entry.mode.is_tree())),
            Self::Entry(Some((kind, id))) => Ok(Some(entry(*kind, *id))),
            Self::Below(below) => {
                let base = found.as_ref().filter(|entry| entry.mode.is_tree());
                let tree = below.write(repository, base.map(|entry| entry.oid))?;
                match tree {
                    Some(tree) => Ok(Some(entry(EntryKind::Tree, tree))),
                    // Only removals below something that is no directory.
                    None => Ok(found.filter(|entry| !entry.mode.is_tree())),
                }
            }
        }
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::Io, format!("git's objects cannot be read: {error}"))
}
