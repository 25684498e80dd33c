//! The lists that were noted of the project, at create and soon after, read when first asked.

use super::names;
use super::tracked::{self, Tracked};
use crate::git::Repository;
use skep_types::RelPath;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// What git had clean, and which names stood where.
pub(super) struct Noted<'a> {
    memory: &'a Path,
    tracked: OnceCell<HashMap<RelPath, Tracked>>,
    names: OnceCell<HashSet<RelPath>>,
}

impl<'a> Noted<'a> {
    pub(super) fn of(memory: &'a Path) -> Self {
        Self { memory, tracked: OnceCell::new(), names: OnceCell::new() }
    }

    /// What git had clean there.
    pub(super) fn clean(&self, path: &RelPath) -> Option<&Tracked> {
        self.tracked.get_or_init(|| tracked::load(self.memory)).get(path)
    }

    /// Whether anything tells that something stood there: the lists, or the commit that was checked out.
    pub(super) fn tell_of(&self, path: &RelPath, git: &Repository) -> bool {
        self.clean(path).is_some() || self.names().contains(path) || git.has(path)
    }

    fn names(&self) -> &HashSet<RelPath> {
        self.names.get_or_init(|| names::load(self.memory))
    }
}
