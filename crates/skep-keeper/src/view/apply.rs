//! Building the view: one loop over the plan, relative to the new root.
//!
//! Every target is reached from the new root's descriptor without following a symlink, because a
//! mount may lie inside the workspace, whose content is not ours.

use super::overlay::{self, Markers, OverlayParts};
use super::plan::{MaskKind, Source, ViewOp};
use super::sources::is_directory;
use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    mount_change, move_mount, open_tree, unmount,
};
use skep_sys::mount::{Depth, MountAttributes, mount_setattr};
use skep_types::{Access, RelPath, WorkspaceDriver};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A directory of the host that certainly exists and that nobody misses in a mount namespace
/// about to be left: the new root is put there until it becomes the root.
const LANDING: &[&str] = &["/tmp", "/run", "/mnt", "/var"];

/// What the workspace is made from: indices into the opened sources.
#[derive(Debug, Clone)]
pub struct WorkspaceParts {
    /// How it is made.
    pub driver: WorkspaceDriver,
    /// The project.
    pub project: usize,
    /// The sandbox's directory, with `upper`, `work` and `mask` in it.
    pub directory: usize,
    /// Frozen layers, topmost first.
    pub layers: Vec<usize>,
    /// Whether `mask` holds whiteouts.
    pub masked: bool,
}

/// Builds the view and makes it the root of this process.
///
/// 1. Cut propagation, so that nothing done here reaches the host.
/// 2. Land a fresh root somewhere out of the way.
/// 3. Follow the plan.
/// 4. `pivot_root`, and let go of the old root: from here on the host's tree is unreachable.
pub fn build(ops: &[ViewOp], opened: Vec<OwnedFd>, parts: &WorkspaceParts) -> Result<(), Failure> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the mounts private".into())?;
    let root = land_root()?;
    let mut builder = Builder { root, opened: opened.into_iter().map(Some).collect(), parts };
    for op in ops {
        builder.apply(op)?;
    }
    builder.pivot()
}

fn land_root() -> Result<OwnedFd, Failure> {
    let tmpfs = tmpfs(0o755, 16 << 20)?;
    let landing = LANDING.iter().find(|path| Path::new(path).is_dir()).copied().unwrap_or("/");
    let land = || format!("put the new root at `{landing}`");
    move_mount(&tmpfs, "", CWD, landing, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step(land)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(landing, flags, Mode::empty()).step(land)
}

fn tmpfs(mode: u32, size: u64) -> Result<OwnedFd, Failure> {
    let step = || "mount a filesystem in memory".to_owned();
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
    fsconfig_set_string(&context, "mode", format!("{mode:o}").as_str()).step(step)?;
    fsconfig_set_string(&context, "size", size.to_string().as_str()).step(step)?;
    fsconfig_create(&context).step(step)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(step)
}

struct Builder<'a> {
    root: OwnedFd,
    opened: Vec<Option<OwnedFd>>,
    parts: &'a WorkspaceParts,
}

impl Builder<'_> {
    fn apply(&mut self, op: &ViewOp) -> Result<(), Failure> {
        match op {
            ViewOp::Directory { target, mode } => self.directory(target, *mode).map(drop),
            ViewOp::Tmpfs { target, mode, size } => {
                let at = self.directory(target, 0o755)?;
                self.attach(tmpfs(*mode, *size)?.as_fd(), at.as_fd(), target)
            }
            ViewOp::Symlink { target, points_to } => self.symlink(target, points_to),
            ViewOp::Bind { source, target, access } => self.bind(source, target, *access),
            ViewOp::Device { name } => self.device(name),
            ViewOp::Proc => self.proc(),
            ViewOp::Terminals => self.terminals(),
            ViewOp::Mask { target, how } => self.mask(Path::new(target), *how),
            ViewOp::Workspace { target, scope } => self.workspace(target, scope),
            ViewOp::ReadOnly { target } => self.read_only(target),
        }
    }

    /// Opens what stands at a target, without following any link.
    fn open(&self, target: &Path) -> Result<OwnedFd, Errno> {
        let relative = target.strip_prefix("/").unwrap_or(target);
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        openat2(
            &self.root,
            relative,
            OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        )
    }

    /// Makes a directory with its parents, and opens it.
    fn directory(&self, target: &Path, mode: u32) -> Result<OwnedFd, Failure> {
        let step = || format!("make directory `{}` inside", target.display());
        let names: Vec<_> = target.strip_prefix("/").unwrap_or(target).components().collect();
        let mut at = self.open(Path::new("/")).step(step)?;
        for (index, name) in names.iter().enumerate() {
            let mode = if index + 1 == names.len() { mode } else { 0o755 };
            match mkdirat(&at, name.as_os_str(), Mode::from_raw_mode(mode)) {
                // The mode given to mkdir is cut by the umask.
                Ok(()) => rustix::fs::chmodat(
                    &at,
                    name.as_os_str(),
                    Mode::from_raw_mode(mode),
                    rustix::fs::AtFlags::empty(),
                )
                .step(step)?,
                // A read-only system directory says EROFS before it says that the name is there.
                Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS) => {}
                Err(error) => return Err(error).step(step),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = openat(&at, name.as_os_str(), flags, Mode::empty()).step(step)?;
        }
        Ok(at)
    }

    /// An empty file to mount on, with its parents.
    fn file(&self, target: &Path) -> Result<OwnedFd, Failure> {
        let step = || format!("make file `{}` inside", target.display());
        if let Some(parent) = target.parent() {
            self.directory(parent, 0o755)?;
        }
        if let Ok(there) = self.open(target) {
            return Ok(there);
        }
        let relative = target.strip_prefix("/").unwrap_or(target);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        openat2(&self.root, relative, flags, Mode::from_raw_mode(0o644), resolve).step(step)?;
        self.open(target).step(step)
    }

    fn attach(
        &self,
        mount: BorrowedFd<'_>,
        at: BorrowedFd<'_>,
        target: &Path,
    ) -> Result<(), Failure> {
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(mount, "", at, "", flags).step(|| format!("mount `{}` inside", target.display()))
    }

    fn symlink(&self, target: &Path, points_to: &Path) -> Result<(), Failure> {
        if let Some(parent) = target.parent() {
            self.directory(parent, 0o755)?;
        }
        let relative = target.strip_prefix("/").unwrap_or(target);
        symlinkat(points_to, &self.root, relative)
            .step(|| format!("make symlink `{}` inside", target.display()))
    }

    fn bind(&mut self, source: &Source, target: &Path, access: Access) -> Result<(), Failure> {
        let tree = match source {
            Source::Opened(index) => self.take(*index)?,
            Source::System(path) => open_tree(
                CWD,
                path.as_path(),
                OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_RECURSIVE,
            )
            .step(|| format!("clone the mount of `{}`", path.display()))?,
        };
        let mut attributes = MountAttributes::NO_SUID.with(MountAttributes::NO_DEVICES);
        if access == Access::Ro {
            attributes = attributes.with(MountAttributes::READ_ONLY);
        }
        mount_setattr(&tree, Depth::Recursive, attributes)
            .step(|| format!("restrict the mount of `{}`", target.display()))?;
        let at = if is_directory(tree.as_fd()) {
            self.directory(target, 0o755)?
        } else {
            self.file(target)?
        };
        self.attach(tree.as_fd(), at.as_fd(), target)
    }

    fn take(&mut self, index: usize) -> Result<OwnedFd, Failure> {
        self.opened
            .get_mut(index)
            .and_then(Option::take)
            .ok_or_else(|| Failure::invalid(format!("source {index} of the view was not opened")))
    }

    fn device(&self, name: &str) -> Result<(), Failure> {
        let host = Path::new("/dev").join(name);
        let step = || format!("show device `{}` inside", host.display());
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, host.as_path(), flags).step(step)?;
        mount_setattr(&tree, Depth::One, MountAttributes::NO_SUID.with(MountAttributes::NO_EXEC))
            .step(step)?;
        let at = self.file(&host)?;
        self.attach(tree.as_fd(), at.as_fd(), &host)
    }

    fn proc(&self) -> Result<(), Failure> {
        let step = || "mount a private /proc".to_owned();
        let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
        fsconfig_create(&context).step(step).map_err(|failure| match failure {
            // The kernel refuses a fresh /proc where the visible one has parts covered, as it has
            // in most containers: it would show what was covered.
            Failure::Step { errno, .. } if errno == Errno::PERM.raw_os_error() => Failure::missing(
                "a private /proc",
                "the kernel refuses to mount one because parts of the visible /proc are covered",
                "run skep outside the container, or start the container with an unmasked /proc",
            ),
            other => other,
        })?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(step)?;
        let target = Path::new("/proc");
        let at = self.directory(target, 0o555)?;
        self.attach(mount.as_fd(), at.as_fd(), target)
    }

    fn terminals(&self) -> Result<(), Failure> {
        let step = || "mount private terminals".to_owned();
        let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
        for (key, value) in [("ptmxmode", "0666"), ("mode", "0600")] {
            fsconfig_set_string(&context, key, value).step(step)?;
        }
        fsconfig_create(&context).step(step)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(step)?;
        let target = Path::new("/dev/pts");
        let at = self.directory(target, 0o755)?;
        self.attach(mount.as_fd(), at.as_fd(), target)
    }

    fn mask(&self, target: &Path, how: MaskKind) -> Result<(), Failure> {
        let step = || format!("mask `{}` inside", target.display());
        let at = match self.open(target) {
            Ok(at) => at,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error).step(step),
        };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let cover = match how {
            MaskKind::ReadOnly => open_tree(&at, "", flags).step(step)?,
            MaskKind::Hide if is_directory(at.as_fd()) => tmpfs(0o555, 4096)?,
            MaskKind::Hide => {
                let null = self.open(Path::new("/dev/null")).step(step)?;
                open_tree(&null, "", flags).step(step)?
            }
        };
        mount_setattr(&cover, Depth::One, MountAttributes::READ_ONLY).step(step)?;
        self.attach(cover.as_fd(), at.as_fd(), target)
    }

    fn read_only(&self, target: &Path) -> Result<(), Failure> {
        let step = || format!("make `{}` read-only inside", target.display());
        let at = self.open(target).step(step)?;
        mount_setattr(&at, Depth::One, MountAttributes::READ_ONLY).step(step)
    }

    fn workspace(&mut self, target: &Path, scope: &[RelPath]) -> Result<(), Failure> {
        let mount = match self.parts.driver {
            WorkspaceDriver::OverlayUserns => self.overlay(Markers::User)?,
            WorkspaceDriver::OverlayRoot => self.overlay(Markers::Trusted)?,
            WorkspaceDriver::Copy | WorkspaceDriver::FuseOverlayfs => self.copied()?,
        };
        let at = self.directory(target, 0o755)?;
        let step = || format!("limit the scope in `{}`", target.display());
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        self.attach(mount.as_fd(), at.as_fd(), target)?;
        let mut parts = Vec::new();
        for part in scope.iter().filter(|part| !part.is_root()) {
            let inside = target.join(part.as_path());
            let place = self.open(&inside).map_err(|error| match error {
                Errno::NOENT => {
                    Failure::invalid(format!("scope `{part}` does not exist in the project"))
                }
                error => Failure::Step { operation: step(), errno: error.raw_os_error() },
            })?;
            let tree = open_tree(&place, "", flags | OpenTreeFlags::AT_EMPTY_PATH).step(step)?;
            parts.push((tree, inside));
        }
        if parts.is_empty() {
            return Ok(());
        }
        self.read_only(target)?;
        for (tree, inside) in &parts {
            let at = self.open(inside).step(step)?;
            self.attach(tree.as_fd(), at.as_fd(), inside)?;
        }
        Ok(())
    }

    /// An overlay's directories must be mounted in this namespace: they are put aside in the new
    /// root for as long as the mount takes, which keeps its own references.
    fn overlay(&mut self, markers: Markers) -> Result<OwnedFd, Failure> {
        let project = self.set_aside(self.parts.project)?;
        let directory = self.set_aside(self.parts.directory)?;
        let layers = self.parts.layers.clone();
        let layers: Vec<_> =
            layers.into_iter().map(|index| self.set_aside(index)).collect::<Result<_, _>>()?;
        let below = |name: &str| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&directory, name, flags, Mode::empty())
                .step(|| format!("open `{name}` of the sandbox"))
        };
        let (upper, work) = (below("upper")?, below("work")?);
        let mask = if self.parts.masked { Some(below("mask")?) } else { None };
        let lowers = layers.iter().chain(mask.iter()).chain([&project]).map(AsFd::as_fd).collect();
        let parts = OverlayParts { lowers, upper: upper.as_fd(), work: work.as_fd(), markers };
        let mount = overlay::mount(&parts)?;
        self.clear_aside()?;
        Ok(mount)
    }

    /// The whole copy stands in `upper`.
    fn copied(&mut self) -> Result<OwnedFd, Failure> {
        let directory = self.set_aside(self.parts.directory)?;
        let step = || "open the copy of the project".to_owned();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let upper = openat(&directory, "upper", flags, Mode::empty()).step(step)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&upper, "", flags).step(step)?;
        mount_setattr(
            &tree,
            Depth::One,
            MountAttributes::NO_SUID.with(MountAttributes::NO_DEVICES),
        )
        .step(step)?;
        self.clear_aside()?;
        Ok(tree)
    }

    fn set_aside(&mut self, index: usize) -> Result<OwnedFd, Failure> {
        let source = self.take(index)?;
        let place = Path::new("/.skep").join(index.to_string());
        let at = self.directory(&place, 0o700)?;
        self.attach(source.as_fd(), at.as_fd(), &place)?;
        self.open(&place).step(|| format!("open `{}` inside", place.display()))
    }

    fn clear_aside(&self) -> Result<(), Failure> {
        let step = || "take the workspace's parts out of the view".to_owned();
        let aside = self.open(Path::new("/.skep")).step(step)?;
        let mut names = Vec::new();
        let directory = openat(
            &aside,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .step(step)?;
        for entry in rustix::fs::Dir::read_from(&directory).step(step)? {
            let entry = entry.step(step)?;
            if entry.file_name().to_bytes().iter().all(u8::is_ascii_digit)
                && entry.file_type() == FileType::Directory
            {
                names.push(entry.file_name().to_owned());
            }
        }
        for name in names {
            let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&directory));
            let path = Path::new(&path).join(std::ffi::OsStr::from_bytes(name.as_bytes()));
            unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).step(step)?;
            rustix::fs::unlinkat(&directory, name.as_c_str(), rustix::fs::AtFlags::REMOVEDIR)
                .step(step)?;
        }
        rustix::fs::unlinkat(&self.root, ".skep", rustix::fs::AtFlags::REMOVEDIR).step(step)
    }

    /// `pivot_root` of a directory onto itself stacks the old root over the new one; detaching the
    /// top of that stack leaves the new root alone. No directory for the old root is needed.
    fn pivot(self) -> Result<(), Failure> {
        let step = || "make the view the root".to_owned();
        rustix::process::fchdir(&self.root).step(step)?;
        rustix::process::pivot_root(".", ".").step(step)?;
        unmount(".", UnmountFlags::DETACH).step(step)?;
        rustix::process::chdir("/").step(step)
    }
}
