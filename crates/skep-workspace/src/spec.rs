//! Where the parts of one sandbox's workspace are.

use crate::error::DeriveError;
use crate::held::{Held, Kept};
use crate::tree::{Meta, TreeRoot};
use skep_types::{Base, RelPath, WorkspaceDriver};
use std::path::{Path, PathBuf};

/// Everything needed to look at one sandbox's workspace from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceSpec {
    /// The user's directory.
    pub project: PathBuf,
    /// What it was at create.
    pub base: Base,
    /// How the view is made, and so which marks count.
    pub driver: WorkspaceDriver,
    /// The writable layer.
    pub upper: PathBuf,
    /// Frozen uppers below it, topmost first. One with a file of the same name and the extension
    /// `copied` beside it was made by copying: the births of its entries prove nothing.
    pub layers: Vec<PathBuf>,
    /// Read-only dependency directories, topmost first. What stands there is not the project's.
    pub dependency_layers: Vec<PathBuf>,
    /// Paths of the project that the inside does not see.
    pub hidden: Vec<RelPath>,
    /// Where captures and settled bases are kept; exists, mode 0700.
    pub memory: PathBuf,
}

/// How to derive a change set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeriveOptions {
    /// Texts above this size are shown without hunks.
    pub max_hunk_bytes: u64,
    /// And once this much text was read, the rest is shown without hunks too: the largest, and ignored
    /// paths before others.
    pub max_total_bytes: u64,
}

impl Default for DeriveOptions {
    fn default() -> Self {
        Self { max_hunk_bytes: skep_types::Change::LARGEST_TEXT, max_total_bytes: 256 << 20 }
    }
}

impl WorkspaceSpec {
    /// Whether anything was written in it, or in what it began with. Not told of a copy, in which everything was.
    pub fn has_work(&self) -> bool {
        let mut entries = std::fs::read_dir(&self.upper).into_iter().flatten();
        let any = !self.layers.is_empty() || entries.next().is_some();
        any && self.driver != WorkspaceDriver::Copy
    }

    /// Whether anything was noted of what it has, or had.
    pub fn has_notes(&self) -> bool {
        crate::base::memory::is_begun(&self.memory)
    }

    /// Whether `path` is hidden from the inside, or lies below a hidden path.
    pub(crate) fn is_hidden(&self, path: &RelPath) -> bool {
        self.hidden.iter().any(|hidden| path.starts_with(hidden))
    }
}

/// The directories of a workspace, pinned.
#[derive(Debug)]
pub(crate) struct Trees {
    pub project: TreeRoot,
    /// The upper, then the layers.
    pub levels: Vec<TreeRoot>,
    pub level_paths: Vec<PathBuf>,
    /// Whether a level was made by copying.
    copied: Vec<bool>,
    pub dependencies: Vec<TreeRoot>,
}

impl Trees {
    pub(crate) fn open(spec: &WorkspaceSpec) -> Result<Self, DeriveError> {
        let project = open("project", &spec.project)?;
        let identity = project
            .identity()
            .map_err(|source| DeriveError::read("project", &RelPath::root(), source))?;
        if identity != (spec.base.device, spec.base.inode) {
            return Err(DeriveError::ProjectReplaced { path: spec.project.clone() });
        }
        let mut level_paths = vec![spec.upper.clone()];
        level_paths.extend(spec.layers.iter().cloned());
        let levels =
            level_paths.iter().map(|path| open("layer", path)).collect::<Result<_, _>>()?;
        let copied = |path: &PathBuf| path.with_extension("copied").try_exists();
        let copied = level_paths
            .iter()
            .map(copied)
            .collect::<Result<_, _>>()
            .map_err(|source| DeriveError::read("layer", &RelPath::root(), source))?;
        let dependencies = spec
            .dependency_layers
            .iter()
            .map(|path| open("dependency layer", path))
            .collect::<Result<_, _>>()?;
        Ok(Self { project, levels, level_paths, copied, dependencies })
    }

    /// The same with their directories held, for one look.
    pub(crate) fn held<'a>(&'a self, kept: &'a Kept) -> HeldTrees<'a> {
        let held = |root: &'a TreeRoot| Held::keeping(root, kept);
        HeldTrees {
            project: held(&self.project),
            levels: self.levels.iter().map(held).collect(),
            dependencies: self.dependencies.iter().map(held).collect(),
            copied: &self.copied,
            kept,
        }
    }
}

/// The trees of a workspace while they are looked at.
#[derive(Debug)]
pub(crate) struct HeldTrees<'a> {
    pub project: Held<'a>,
    /// The upper, then the layers.
    pub levels: Vec<Held<'a>>,
    pub dependencies: Vec<Held<'a>>,
    copied: &'a [bool],
    pub kept: &'a Kept,
}

impl HeldTrees<'_> {
    /// When the sandbox made an entry of a level, where that can be told.
    pub(crate) fn made_ns(&self, level: usize, meta: &Meta) -> Option<i128> {
        meta.made_ns.filter(|_| !self.copied[level])
    }
}

fn open(what: &'static str, path: &Path) -> Result<TreeRoot, DeriveError> {
    TreeRoot::open(path).map_err(|source| DeriveError::Open { what, path: path.to_owned(), source })
}
