//! Building the view: one loop over the plan, on its [`ground`](super::ground).

use super::fuse::{FuseOrder, SeenOwners};
use super::ground::{Area, AsMeant, Begun, Ground, Left, ROOM, make_private, processes};
use super::plan::ViewOp;
use crate::failure::{Failure, Step};
use crate::vessel;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use serde::{Deserialize, Serialize};
use skep_types::{RelPath, WorkspaceDriver};
use std::path::Path;

/// What the workspace is made from: indices into the opened sources.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkspaceParts {
    /// How it is made.
    pub driver: WorkspaceDriver,
    /// The project.
    pub project: usize,
    /// The sandbox's directory, with `upper`, `work` and `mask` in it.
    pub directory: usize,
    /// Frozen layers, topmost first.
    pub layers: Vec<usize>,
    /// The finished overlay, where root has mounted it outside; it follows the opened sources.
    pub ready: Option<usize>,
    /// Whether `mask` holds whiteouts.
    pub masked: bool,
    /// Whose files they seem to be, where fuse-overlayfs shows them.
    pub owners: SeenOwners,
}

/// Builds the view and makes it the root of this process. `size` is how many bytes may be stored in its own filesystem in
/// memory.
///
/// 1. Cut propagation, so that nothing done here reaches the host.
/// 2. Land a fresh root somewhere out of the way.
/// 3. Follow the plan.
/// 4. `pivot_root`. What is left is to let go of the old root: [`Left::forget`].
///
/// What was begun is gone on with, where the plan begins so.
pub fn build(
    (ops, size): (&[ViewOp], u64),
    begun: Option<Begun>,
    opened: Opened<'_>,
    parts: &WorkspaceParts,
    serve: &ServeFuse<'_>,
) -> Result<Left, Failure> {
    let _modes = AsMeant::begin();
    let size = size.saturating_add(ROOM);
    let begun = begun.map(|begun| begun.go_on(ops, size)).transpose()?.flatten();
    let (ground, ops) = match begun {
        Some(begun) => begun,
        None => (Ground::land(size)?, ops),
    };
    let mut builder = Builder { ground, opened, parts, serve };
    ops.iter().try_for_each(|op| builder.apply(op))?;
    builder.ground.pivot()
}

/// Builds the view at [`vessel::ROOT`] and leaves it there, for an OCI runtime to make it a root.
pub fn stage(
    (ops, size): (&[ViewOp], u64),
    opened: Vec<OwnedFd>,
    parts: &WorkspaceParts,
    serve: &ServeFuse<'_>,
) -> Result<(), Failure> {
    let _modes = AsMeant::begin();
    make_private()?;
    // The runtime looks itself and its children up by the numbers they have here.
    let to = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&processes()?, "", CWD, "/proc", to).step(|| "show the runtime its /proc".into())?;
    let size = size.saturating_add(ROOM);
    let ground = Ground::land_in(Area { landing: vessel::STAGE, root: "rootfs", size })?;
    let mut builder = Builder { ground, opened: opened.into(), parts, serve };
    ops.iter().try_for_each(|op| builder.apply(op))
}

/// Puts the workspace in the project's place, and changes nothing else.
pub fn replace(
    project: &Path,
    scope: &[RelPath],
    opened: Vec<OwnedFd>,
    parts: &WorkspaceParts,
    serve: &ServeFuse<'_>,
) -> Result<(), Failure> {
    let mut builder = Builder::land(opened.into(), parts, serve)?;
    let mount = builder.mount_workspace()?;
    let step = || "leave the place where the workspace was made".to_owned();
    unmount(builder.ground.landing, UnmountFlags::DETACH).step(step)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    builder.ground.root = rustix::fs::open("/", flags, Mode::empty()).step(step)?;
    builder.place_workspace(&mount, project, scope)
}

/// Builds a view without a workspace, and makes it the root of this process.
pub fn build_plain(ops: &[ViewOp], opened: Vec<OwnedFd>) -> Result<(), Failure> {
    let parts = WorkspaceParts {
        driver: WorkspaceDriver::Copy,
        project: usize::MAX,
        directory: usize::MAX,
        layers: Vec::new(),
        ready: None,
        masked: false,
        owners: SeenOwners::AsStored,
    };
    let refuse = |_: &_| Err(Failure::invalid("nothing is served here"));
    build((ops, 0), None, opened.into(), &parts, &refuse)?.forget()
}

/// Has a filesystem served by fuse-overlayfs, and returns its mount, detached.
pub type ServeFuse<'a> = dyn Fn(&FuseOrder) -> Result<OwnedFd, Failure> + 'a;

/// The sources of a view, by their indices.
pub struct Opened<'a> {
    /// Those that are there. A place is empty for one that is not, or was used.
    pub now: Vec<Option<OwnedFd>>,
    /// Waits for those that come later; asked when the first of them is needed.
    pub later: Option<&'a Later<'a>>,
}

/// Waits for sources, and returns them with their indices.
pub type Later<'a> = dyn Fn() -> Result<Vec<(usize, OwnedFd)>, Failure> + 'a;

impl From<Vec<OwnedFd>> for Opened<'_> {
    fn from(all: Vec<OwnedFd>) -> Self {
        Self { now: all.into_iter().map(Some).collect(), later: None }
    }
}

/// A view in the making.
pub(super) struct Builder<'a> {
    pub(super) ground: Ground,
    opened: Opened<'a>,
    pub(super) parts: &'a WorkspaceParts,
    pub(super) serve: &'a ServeFuse<'a>,
}

impl<'a> Builder<'a> {
    /// One that is to hold nothing but a workspace.
    pub(super) fn land(
        opened: Opened<'a>,
        parts: &'a WorkspaceParts,
        serve: &'a ServeFuse<'a>,
    ) -> Result<Self, Failure> {
        Ok(Self { ground: Ground::land(ROOM)?, opened, parts, serve })
    }

    fn apply(&mut self, op: &ViewOp) -> Result<(), Failure> {
        match op {
            ViewOp::Bind { source, target, access } => {
                let tree = self.take(*source)?;
                self.ground.show(&tree, target, *access)
            }
            ViewOp::Workspace { target, scope } => self.workspace(target, scope),
            ViewOp::CopyOnWrite { target, lower, area, how } => {
                self.copy_on_write(target, *lower, *area, *how)
            }
            op => self.ground.apply(op),
        }
    }

    pub(super) fn take(&mut self, index: usize) -> Result<OwnedFd, Failure> {
        let Opened { now, later } = &mut self.opened;
        if now.get(index).is_some_and(Option::is_none)
            && let Some(later) = later.take()
        {
            for (index, source) in later()? {
                if let Some(place) = now.get_mut(index) {
                    *place = Some(source);
                }
            }
        }
        now.get_mut(index)
            .and_then(Option::take)
            .ok_or_else(|| Failure::invalid(format!("source {index} of the view was not opened")))
    }
}
