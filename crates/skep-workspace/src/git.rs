//! Asks the project's repository one thing: whether the base's commit has a path (it is tracked then,
//! and no ignore rule counts).
//!
//! Only objects are read, with no configuration but the repository's own format; nothing is run.
//! A repository that cannot be read has no answer, which is the same as having no repository.

use skep_types::RelPath;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// The repository of a project, opened when first asked.
pub(crate) struct Repository {
    project: PathBuf,
    commit: Option<String>,
    opened: OnceCell<Option<Opened>>,
}

struct Opened {
    repository: gix::Repository,
    tree: gix::ObjectId,
}

impl Repository {
    pub(crate) fn new(project: &Path, commit: Option<&str>) -> Self {
        let (project, commit) = (project.to_owned(), commit.map(str::to_owned));
        Self { project, commit, opened: OnceCell::new() }
    }

    /// Whether the commit has something at `path`; `false` also when that cannot be told.
    pub(crate) fn has(&self, path: &RelPath) -> bool {
        let Some(opened) = self.opened.get_or_init(|| self.open()) else { return false };
        let found = opened.repository.find_tree(opened.tree).ok().and_then(|tree| {
            let parts: Vec<&[u8]> = path.components().collect();
            tree.lookup_entry(parts).ok().flatten()
        });
        found.is_some()
    }

    fn open(&self) -> Option<Opened> {
        let id = gix::ObjectId::from_hex(self.commit.as_ref()?.as_bytes()).ok()?;
        let options = gix::open::Options::isolated().open_path_as_is(false);
        let repository = gix::open_opts(&self.project, options).ok()?;
        let tree = repository.find_commit(id).ok()?.tree_id().ok()?.detach();
        Some(Opened { repository, tree })
    }
}
