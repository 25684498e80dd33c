//! Asks the project's repository two things: whether the base's commit has a path (it is tracked then,
//! and no ignore rule counts), and the bytes of a blob, by its id or as the commit has them.
//!
//! Only objects are read, with no configuration but the repository's own format; nothing is run.
//! A repository that cannot be read has no answer, which is the same as having no repository.

use skep_types::RelPath;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// Blobs above this are not merged.
const LARGEST_BLOB: u64 = 4 << 20;

/// How a repository is opened: with no configuration but its own, and without asking who we are in a
/// way that a static program does not survive.
pub fn isolated() -> gix::open::Options {
    skep_sys::names::keep_built_in();
    gix::open::Options::isolated().open_path_as_is(false)
}

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
        self.entry(path).is_some()
    }

    /// The bytes that the commit has at `path`, if they are this many; `None` also when they are too many
    /// to merge.
    pub(crate) fn committed(&self, path: &RelPath, size: u64) -> Option<Vec<u8>> {
        self.blob(&self.entry(path)?.to_string(), size)
    }

    fn entry(&self, path: &RelPath) -> Option<gix::ObjectId> {
        let opened = self.opened.get_or_init(|| self.open()).as_ref()?;
        let tree = opened.repository.find_tree(opened.tree).ok()?;
        let parts: Vec<&[u8]> = path.components().collect();
        Some(tree.lookup_entry(parts).ok().flatten()?.object_id())
    }

    /// The bytes of a blob that has this size; `None` when it is not there or is too large to merge.
    pub(crate) fn blob(&self, id: &str, size: u64) -> Option<Vec<u8>> {
        if size > LARGEST_BLOB {
            return None;
        }
        let id = gix::ObjectId::from_hex(id.as_bytes()).ok()?;
        let repository = self.repository()?;
        let header = repository.find_header(id).ok()?;
        if header.kind() != gix::objs::Kind::Blob || header.size() != size {
            return None;
        }
        Some(repository.find_object(id).ok()?.data.clone())
    }

    /// Opened anew: a blob is asked for rarely, and also where there is no commit yet.
    fn repository(&self) -> Option<gix::Repository> {
        gix::open_opts(&self.project, isolated()).ok()
    }

    fn open(&self) -> Option<Opened> {
        let id = gix::ObjectId::from_hex(self.commit.as_ref()?.as_bytes()).ok()?;
        let repository = self.repository()?;
        let tree = repository.find_commit(id).ok()?.tree_id().ok()?.detach();
        Some(Opened { repository, tree })
    }
}
