//! Whether two sandboxes are at odds over a path, told without deriving the changes of either.
//!
//! They are if both have a change there that nobody has decided on, and not the same one. What was
//! approved, what the project has by now, what a fork was made with and what the project ignores is no
//! reason to warn anybody. This is for warnings only: what cannot be told counts as at odds.

use crate::base::memory::{Memory, Settled};
use crate::derive::ignored::Rules;
use crate::error::DeriveError;
use crate::git::Repository;
use crate::held::Held;
use crate::markers::{Markers, Opacity, is_whiteout_device};
use crate::spec::WorkspaceSpec;
use crate::tree::{Meta, TreeRoot};
use rustix::fs::FileType;
use skep_types::{EntryState, RelPath, WorkspaceDriver};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

/// Reading a file costs at least so much of what may be read.
const LEAST: u64 = 4 << 10;

/// How many bytes may still be read to compare files.
#[derive(Debug)]
pub struct Reading(Cell<u64>);

impl Reading {
    /// So many.
    pub fn of(bytes: u64) -> Self {
        Self(Cell::new(bytes))
    }

    fn take(&self, size: u64) -> io::Result<()> {
        let left = self.0.get().checked_sub(size.max(LEAST));
        self.0.set(left.ok_or(io::ErrorKind::QuotaExceeded)?);
        Ok(())
    }
}

/// What was approved of a sandbox: read when it is first asked for, and once by all who look at the same.
#[derive(Debug, Clone, Default)]
pub struct Approved(Rc<OnceCell<BTreeMap<RelPath, Settled>>>);

/// The directories of a workspace, opened for a glance.
pub struct Opened {
    spec: WorkspaceSpec,
    project: TreeRoot,
    /// The upper, then the layers.
    levels: Vec<TreeRoot>,
    git: Repository,
    approved: Approved,
}

impl Opened {
    /// Fails where one is gone, as in a sandbox that is just being removed.
    pub fn of(spec: WorkspaceSpec, approved: Approved) -> io::Result<Self> {
        let project = TreeRoot::open(&spec.project)?;
        let levels = std::iter::once(&spec.upper).chain(&spec.layers);
        let levels = levels.map(|path| TreeRoot::open(path)).collect::<Result<_, _>>()?;
        let git = Repository::new(&spec.project, spec.base.commit.as_deref());
        Ok(Self { spec, project, levels, git, approved })
    }

    /// The upper, then the layers.
    pub fn levels(&self) -> &[TreeRoot] {
        &self.levels
    }
}

/// What a sandbox has of its own, asked path by path.
pub struct Glance<'a> {
    opened: &'a Opened,
    project: Held<'a>,
    levels: Vec<Level<'a>>,
}

struct Level<'a> {
    tree: Held<'a>,
    /// The directory that was asked of last, and whether the level hides what others have in it. Paths
    /// come sorted.
    hides: RefCell<Option<(RelPath, bool)>>,
}

/// What a sandbox has at a path.
enum Side<'g> {
    /// Nothing of its own.
    Untouched,
    Gone,
    Entry {
        tree: &'g Held<'g>,
        meta: Meta,
    },
}

impl<'a> Glance<'a> {
    /// Nothing is looked at yet.
    pub fn new(opened: &'a Opened) -> Self {
        let level = |root| Level { tree: Held::new(root), hides: RefCell::default() };
        let levels = opened.levels.iter().map(level).collect();
        let project = Held::new(&opened.project);
        Self { opened, project, levels }
    }

    /// Whether both have a change at `path` that is not decided on, and not the same one.
    pub fn is_at_odds(&self, other: &Glance<'_>, path: &RelPath, reading: &Reading) -> bool {
        self.at_odds(other, path, reading).unwrap_or(true)
    }

    fn at_odds(
        &self,
        other: &Glance<'_>,
        path: &RelPath,
        reading: &Reading,
    ) -> Result<bool, DeriveError> {
        let failed = |source| DeriveError::read("sandbox", path, source);
        let theirs = other.side(path).map_err(failed)?;
        if matches!(theirs, Side::Untouched) {
            return Ok(false);
        }
        let ours = self.side(path).map_err(failed)?;
        if matches!(ours, Side::Untouched)
            || ours.is_same(&theirs, path, reading).map_err(failed)?
        {
            return Ok(false);
        }
        // One removed the directory or put something in its place, and the other works in it.
        let in_it = ours.is_directory() != theirs.is_directory();
        Ok((in_it && ours.is_directory() || self.is_pending(&ours, path, reading)?)
            && (in_it && theirs.is_directory() || other.is_pending(&theirs, path, reading)?))
    }

    /// The topmost level that speaks of the path counts.
    fn side(&self, path: &RelPath) -> io::Result<Side<'_>> {
        let driver = self.opened.spec.driver;
        for level in &self.levels {
            match level.tree.meta(path)? {
                Some(meta) if is_whiteout_device(&meta) => return Ok(Side::Gone),
                Some(meta) => return Ok(Side::Entry { tree: &level.tree, meta }),
                None if level.hides(path, Markers::of(driver))? => return Ok(Side::Gone),
                None => {}
            }
        }
        Ok(if driver == WorkspaceDriver::Copy { Side::Gone } else { Side::Untouched })
    }

    /// Whether the project does not have it, and it was not approved either.
    fn is_pending(
        &self,
        side: &Side<'_>,
        path: &RelPath,
        reading: &Reading,
    ) -> Result<bool, DeriveError> {
        let failed = |source| DeriveError::read("sandbox", path, source);
        let project = match self.project.meta(path).map_err(failed)? {
            Some(meta) => Side::Entry { tree: &self.project, meta },
            None => Side::Gone,
        };
        if side.is_same(&project, path, reading).map_err(failed)? {
            return Ok(false);
        }
        let Some(settled) = self.settled()?.get(path) else { return Ok(true) };
        Ok(!side.may_be(&settled.state)
            || side.state(path, reading).map_err(failed)? != settled.state)
    }

    fn settled(&self) -> Result<&BTreeMap<RelPath, Settled>, DeriveError> {
        let Approved(settled) = &self.opened.approved;
        if let Some(settled) = settled.get() {
            return Ok(settled);
        }
        let memory = Memory::load(&self.opened.spec.memory)?;
        Ok(settled.get_or_init(|| memory.settled))
    }

    /// Whether one of its levels, of those that count, hides what others have in a directory.
    pub fn cuts(&self, directory: &RelPath, counts: &[bool]) -> bool {
        let markers = Markers::of(self.opened.spec.driver);
        let cuts = |level: &Level<'_>| level.is_cut_at_or_above(directory, markers).unwrap_or(true);
        self.levels.iter().zip(counts).any(|(level, counts)| *counts && cuts(level))
    }

    /// Those of the paths that the project does not ignore.
    pub fn not_ignored(&self, paths: Vec<RelPath>) -> Vec<RelPath> {
        let Ok(rules) = Rules::new(&self.opened.spec, &self.project) else { return paths };
        let rules = RefCell::new(rules);
        let ignored = |path: &RelPath| {
            let directory = self.levels.iter().any(|level| level.has_directory(path));
            let matched = rules.borrow_mut().top_match(path, directory);
            matched.is_ok_and(|top| top.is_some()) && !self.opened.git.has(path)
        };
        paths.into_iter().filter(|path| !ignored(path)).collect()
    }
}

impl Level<'_> {
    /// Whether it hides what others have at `path`, where it has nothing itself.
    fn hides(&self, path: &RelPath, markers: Markers) -> io::Result<bool> {
        let Some(directory) = path.parent() else { return Ok(false) };
        if let Some((last, hides)) = &*self.hides.borrow()
            && *last == directory
        {
            return Ok(*hides);
        }
        let hides = self.is_cut_at_or_above(&directory, markers)?;
        *self.hides.borrow_mut() = Some((directory, hides));
        Ok(hides)
    }

    fn is_cut_at_or_above(&self, directory: &RelPath, markers: Markers) -> io::Result<bool> {
        let above = std::iter::once(directory.clone()).chain(directory.ancestors());
        for directory in above.filter(|directory| !directory.is_root()) {
            let Some(meta) = self.tree.meta(&directory)? else { continue };
            if meta.kind() != FileType::Directory
                || markers.opacity(&*self.tree.enter(&directory)?)? == Opacity::Opaque
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_directory(&self, path: &RelPath) -> bool {
        let meta = self.tree.meta(path).ok().flatten();
        meta.is_some_and(|meta| meta.kind() == FileType::Directory)
    }
}

impl Side<'_> {
    fn is_directory(&self) -> bool {
        matches!(self, Self::Entry { meta, .. } if meta.kind() == FileType::Directory)
    }

    fn is_same(&self, other: &Self, path: &RelPath, reading: &Reading) -> io::Result<bool> {
        let (one, two) = match (self, other) {
            (Self::Entry { meta: one, .. }, Self::Entry { meta: two, .. }) => (one, two),
            (Self::Gone, Self::Gone) => return Ok(true),
            _ => return Ok(false),
        };
        if (one.device, one.inode) == (two.device, two.inode) {
            return Ok(true);
        }
        let file = one.kind() == FileType::RegularFile;
        if one.mode != two.mode || file && one.size != two.size {
            return Ok(false);
        }
        Ok(self.state(path, reading)? == other.state(path, reading)?)
    }

    /// Whether it could be this, as far as is known without reading it.
    fn may_be(&self, state: &EntryState) -> bool {
        match (self, state) {
            (Self::Entry { meta, .. }, EntryState::File { size, .. }) => meta.size == *size,
            _ => true,
        }
    }

    fn state(&self, path: &RelPath, reading: &Reading) -> io::Result<EntryState> {
        let Self::Entry { tree, meta } = self else { return Ok(EntryState::Absent) };
        if meta.kind() == FileType::RegularFile {
            reading.take(meta.size)?;
        }
        tree.state(path)
    }
}
