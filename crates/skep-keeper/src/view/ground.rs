//! What a view stands on: a fresh root, and everything in it that does not come from the sandbox, so that it can be
//! begun before it is known whose view it will be.
//!
//! Every target is reached from the new root's descriptor without following a symlink, because a
//! mount may lie inside the workspace, whose content is not ours.

use super::plan::{MaskKind, ViewOp};
use super::sources::is_directory;
use super::workspace::ASIDE;
use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_string,
    fsmount, fsopen, fspick, mount_change, move_mount, open_tree, unmount,
};
use skep_sys::mount::{Depth, MountAttributes, mount_setattr, mount_settle};
use skep_types::Access;
use std::path::Path;

/// A directory of the host that certainly exists and that nobody misses in a mount namespace
/// about to be left: the new root is put there until it becomes the root.
const LANDING: &[&str] = &["/tmp", "/run", "/mnt", "/var"];

/// The same where it is not known yet what will be looked for on the host: nothing that a view shows lies in there.
const LANDING_AHEAD: &str = "/proc/tty";

/// What stands beside the new root in the area, besides [`ASIDE`]: parts that can be written, and nothing.
const SCRATCH: &str = "scratch";
const EMPTY: &str = "empty";

/// The root's name in the area.
const ROOT: &str = "root";

/// Terminals that a sandbox may have. The host has some thousands, for everybody.
const MOST_TERMINALS: &str = "256";

/// Nothing done to mounts here reaches the host.
pub(super) fn make_private() -> Result<(), Failure> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(|| "make the mounts private".into())
}

/// Mounts `mount` at `path`, seen from `at`, and opens its root.
fn land_at(mount: OwnedFd, at: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Failure> {
    let land = || format!("put the new root at `{path}`");
    move_mount(&mount, "", at, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step(land)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty()).step(land)
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

/// A directory of the area, as a mount of its own that is not yet anywhere.
fn part_of(area: &OwnedFd, name: &str) -> Result<OwnedFd, Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(area, name, flags).step(|| format!("take `{name}` beside the new root"))
}

/// The processes of this pid namespace, not yet anywhere.
pub(super) fn processes() -> Result<OwnedFd, Failure> {
    let step = || "mount a private /proc".to_owned();
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
    let covered = |failure| match failure {
        // The kernel refuses a fresh /proc where the visible one has parts covered, as it has
        // in most containers: it would show what was covered.
        Failure::Step { errno, .. } if errno == Errno::PERM.raw_os_error() => Failure::missing(
            "a private /proc",
            "the kernel refuses to mount one because parts of the visible /proc are covered",
            "run skep outside the container, or start the container with an unmasked /proc",
        ),
        other => other,
    };
    fsconfig_create(&context).step(step).map_err(covered)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    fsmount(&context, flags, attributes).step(step).map_err(covered)
}

/// Where the new root and what is put aside stand: a filesystem in memory, the only one. All that is made of it is
/// seen part by part, so that nobody inside sees more of it than that; to make one for each of them, and to take it
/// down, would cost five times as much.
pub(super) struct Area {
    /// A directory of the host, covered by the area.
    pub(super) landing: &'static str,
    /// The root's name in it. For an OCI runtime it is [`vessel::ROOT`], with the bundle and the runtime's state
    /// beside it.
    pub(super) root: &'static str,
    /// Bytes for everything.
    pub(super) size: u64,
}

/// Bytes for a root, the names in it and what a runtime keeps beside it.
pub(super) const ROOM: u64 = 16 << 20;

/// A view that was begun before it was known whose it will be.
pub struct Begun {
    ground: Ground,
    done: Vec<ViewOp>,
}

impl Begun {
    /// Takes the first steps, which must need nothing of a sandbox, in this process's own mount namespace. Whoever goes on
    /// says how much room there is; until then there is little.
    ///
    /// The namespace must have come with a user namespace: nothing done to its mounts reaches the host, but what the host
    /// mounts by itself when one goes there is still to come.
    pub fn with(done: Vec<ViewOp>) -> Result<Self, Failure> {
        let modes = AsMeant::begin();
        let area = Area { landing: LANDING_AHEAD, root: ROOT, size: ROOM };
        let mut ground = Ground::land_in(area)?;
        done.iter().try_for_each(|op| ground.apply(op))?;
        drop(modes);
        Ok(Self { ground, done })
    }

    /// Goes on with a plan that begins with what was done: what is left of it. `None` if it begins otherwise; what was
    /// begun then stays behind in the host's tree, and goes with it.
    pub(super) fn go_on(
        self,
        plan: &[ViewOp],
        size: u64,
    ) -> Result<Option<(Ground, &[ViewOp])>, Failure> {
        let Some(left) = plan.strip_prefix(self.done.as_slice()) else { return Ok(None) };
        self.ground.resize(size)?;
        Ok(Some((self.ground, left)))
    }
}

/// As long as this is held, modes are meant as they are said.
pub(super) struct AsMeant(Mode);

impl AsMeant {
    pub(super) fn begin() -> Self {
        Self(rustix::process::umask(Mode::empty()))
    }
}

impl Drop for AsMeant {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

/// The new root in the making.
pub(super) struct Ground {
    pub(super) root: OwnedFd,
    /// Where the area around the root is, as a path. It goes with the host's tree.
    pub(super) landing: &'static str,
    /// In that area: what overlays are made from stands here for as long as the view is made.
    pub(super) aside: OwnedFd,
    area: OwnedFd,
    /// `/dev/null` of the view, once it was needed.
    null: Option<OwnedFd>,
    /// How many parts of the area can be written.
    scratches: u32,
}

impl Ground {
    /// A fresh, empty root in this process's own mount namespace, and beside it a place for what
    /// must be mounted somewhere and not be seen. Both stand in an area that is let go of together
    /// with the host's tree: taking mounts out one by one makes the kernel wait for a quiet moment
    /// of all processors each time.
    pub(super) fn land(size: u64) -> Result<Self, Failure> {
        make_private()?;
        let landing = LANDING.iter().find(|path| Path::new(path).is_dir()).copied().unwrap_or("/");
        Self::land_in(Area { landing, root: ROOT, size })
    }

    pub(super) fn land_in(Area { landing, root, size }: Area) -> Result<Self, Failure> {
        let area = land_at(tmpfs(0o755, size)?, CWD, landing)?;
        let beside = ASIDE.trim_start_matches('/');
        for (name, mode) in [(root, 0o755), (beside, 0o755), (SCRATCH, 0o755), (EMPTY, 0o555)] {
            mkdirat(&area, name, Mode::from_raw_mode(mode))
                .step(|| format!("make `{name}` beside the new root"))?;
        }
        let root = land_at(part_of(&area, root)?, area.as_fd(), root)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let aside = openat(&area, beside, flags, Mode::empty())
            .step(|| "open the place beside the new root".into())?;
        Ok(Self { root, landing, aside, area, null: None, scratches: 0 })
    }

    /// Gives the area another size.
    fn resize(&self, size: u64) -> Result<(), Failure> {
        let step = || "say how much memory the view may take".to_owned();
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
        let context = fspick(&self.area, "", flags).step(step)?;
        fsconfig_set_string(&context, "size", size.to_string().as_str()).step(step)?;
        fsconfig_reconfigure(&context).step(step)
    }

    /// Takes a step that needs nothing of the sandbox.
    pub(super) fn apply(&mut self, op: &ViewOp) -> Result<(), Failure> {
        match op {
            ViewOp::Directory { target, mode } => self.directory(target, *mode).map(drop),
            ViewOp::Scratch { target, mode } => {
                let at = self.directory(target, 0o755)?;
                let part = self.scratch(*mode)?;
                self.attach(part.as_fd(), at.as_fd(), target)
            }
            ViewOp::Symlink { target, points_to } => self.symlink(target, points_to),
            ViewOp::System { path } => self.system(path),
            ViewOp::Device { name } => self.device(name),
            ViewOp::Proc => self.proc(),
            ViewOp::Terminals => self.terminals(),
            ViewOp::Mask { target, how } => self.mask(Path::new(target), *how),
            // What even number 1 cannot reach needs no cover.
            ViewOp::Cover { target } if matches!(self.open(target), Err(Errno::ACCESS)) => Ok(()),
            ViewOp::Cover { target } => self.mask(target, MaskKind::Hide),
            ViewOp::ReadOnly { target } => self.read_only(target),
            ViewOp::File { target, content } => self.own_file(Path::new(target), content),
            ViewOp::Bind { .. } | ViewOp::Workspace { .. } | ViewOp::CopyOnWrite { .. } => {
                Err(Failure::invalid("a step of the view needs its sandbox"))
            }
        }
    }

    /// A new part of the area that can be written.
    fn scratch(&mut self, mode: u32) -> Result<OwnedFd, Failure> {
        let name = format!("{SCRATCH}/{}", self.scratches);
        self.scratches += 1;
        mkdirat(&self.area, &name, Mode::from_raw_mode(mode))
            .step(|| "make a directory in memory".into())?;
        part_of(&self.area, &name)
    }

    /// Opens what stands at a target, without following any link.
    pub(super) fn open(&self, target: &Path) -> Result<OwnedFd, Errno> {
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
    pub(super) fn directory(&self, target: &Path, mode: u32) -> Result<OwnedFd, Failure> {
        let step = || format!("make directory `{}` inside", target.display());
        let names: Vec<_> = target.strip_prefix("/").unwrap_or(target).components().collect();
        if names.is_empty() {
            return self.open(target).step(step);
        }
        let mut held: Option<OwnedFd> = None;
        for (index, name) in names.iter().enumerate() {
            let at = held.as_ref().unwrap_or(&self.root);
            let mode = if index + 1 == names.len() { mode } else { 0o755 };
            match mkdirat(at, name.as_os_str(), Mode::from_raw_mode(mode)) {
                // A read-only system directory says EROFS before it says that the name is there.
                Ok(()) | Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS) => {}
                Err(error) => return Err(error).step(step),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            held = Some(openat(at, name.as_os_str(), flags, Mode::empty()).step(step)?);
        }
        held.ok_or_else(|| Failure::invalid("a directory without a name"))
    }

    /// An empty file to mount on, with its parents.
    fn file(&self, target: &Path) -> Result<OwnedFd, Failure> {
        let step = || format!("make file `{}` inside", target.display());
        let relative = target.strip_prefix("/").unwrap_or(target);
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let make = || openat2(&self.root, relative, flags, Mode::from_raw_mode(0o644), resolve);
        match make() {
            Ok(made) => Ok(made),
            Err(Errno::NOENT) => {
                if let Some(parent) = target.parent() {
                    self.directory(parent, 0o755)?;
                }
                make().step(step)
            }
            // It is there, whatever else the kernel says first.
            Err(error) => self.open(target).map_err(|_| error).step(step),
        }
    }

    pub(super) fn attach(
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
        let step = || format!("make symlink `{}` inside", target.display());
        let relative = target.strip_prefix("/").unwrap_or(target);
        match symlinkat(points_to, &self.root, relative) {
            Err(Errno::NOENT) => {
                if let Some(parent) = target.parent() {
                    self.directory(parent, 0o755)?;
                }
                symlinkat(points_to, &self.root, relative).step(step)
            }
            made => made.step(step),
        }
    }

    fn system(&self, path: &Path) -> Result<(), Failure> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE;
        let tree = open_tree(CWD, path, flags)
            .step(|| format!("clone the mount of `{}`", path.display()))?;
        self.show(&tree, path, Access::Ro)
    }

    /// Shows a tree of mounts at a place.
    pub(super) fn show(
        &self,
        tree: &OwnedFd,
        target: &Path,
        access: Access,
    ) -> Result<(), Failure> {
        let mut attributes = MountAttributes::NO_SUID.with(MountAttributes::NO_DEVICES);
        if access == Access::Ro {
            attributes = attributes.with(MountAttributes::READ_ONLY);
        }
        // What is mounted there on the host later would come in without these.
        mount_settle(tree, attributes)
            .step(|| format!("restrict the mount of `{}`", target.display()))?;
        let at = if is_directory(tree.as_fd()) {
            self.directory(target, 0o755)
        } else {
            self.file(target)
        };
        let at = at.map_err(|failure| no_place(failure, target))?;
        self.attach(tree.as_fd(), at.as_fd(), target)
    }

    fn device(&self, name: &str) -> Result<(), Failure> {
        let host = Path::new("/dev").join(name);
        let step = || format!("show device `{}` inside", host.display());
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, host.as_path(), flags).step(step)?;
        mount_settle(&tree, MountAttributes::NO_SUID.with(MountAttributes::NO_EXEC)).step(step)?;
        let at = self.file(&host)?;
        self.attach(tree.as_fd(), at.as_fd(), &host)
    }

    fn proc(&self) -> Result<(), Failure> {
        let mount = processes()?;
        let target = Path::new("/proc");
        let at = self.directory(target, 0o555)?;
        self.attach(mount.as_fd(), at.as_fd(), target)
    }

    fn terminals(&self) -> Result<(), Failure> {
        let step = || "mount private terminals".to_owned();
        let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC).step(step)?;
        for (key, value) in [("ptmxmode", "0666"), ("mode", "0600"), ("max", MOST_TERMINALS)] {
            fsconfig_set_string(&context, key, value).step(step)?;
        }
        fsconfig_create(&context).step(step)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(step)?;
        let target = Path::new("/dev/pts");
        let at = self.directory(target, 0o755)?;
        self.attach(mount.as_fd(), at.as_fd(), target)
    }

    fn mask(&mut self, target: &Path, how: MaskKind) -> Result<(), Failure> {
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
            MaskKind::Hide if is_directory(at.as_fd()) => part_of(&self.area, EMPTY)?,
            MaskKind::Hide => {
                let null = match &self.null {
                    Some(null) => null,
                    None => {
                        // A view for an OCI runtime has none; there the host's is still seen.
                        let null = self.open(Path::new("/dev/null")).or_else(|_| {
                            rustix::fs::open("/dev/null", OFlags::PATH, Mode::empty())
                        });
                        self.null.insert(null.step(step)?)
                    }
                };
                open_tree(null, "", flags).step(step)?
            }
        };
        mount_settle(&cover, MountAttributes::READ_ONLY).step(step)?;
        self.attach(cover.as_fd(), at.as_fd(), target)
    }

    /// Made in the root, shown at its place, and then nameless: the mount alone holds it. Where
    /// the system has a link (`/etc/resolv.conf` often is one), the link itself is covered.
    fn own_file(&self, target: &Path, content: &str) -> Result<(), Failure> {
        let step = || format!("show skep's own `{}` inside", target.display());
        let at = match self.open(target) {
            Ok(at) => at,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error).step(step),
        };
        let name = Path::new(".skep-file");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.root, name, flags, Mode::from_raw_mode(0o644)).step(step)?;
        // The mode given to open is cut by the umask.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644)).step(step)?;
        std::io::Write::write_all(&mut std::fs::File::from(file), content.as_bytes()).step(step)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(&self.root, name, flags).step(step)?;
        mount_settle(&tree, MountAttributes::READ_ONLY).step(step)?;
        self.attach(tree.as_fd(), at.as_fd(), target)?;
        rustix::fs::unlinkat(&self.root, name, rustix::fs::AtFlags::empty()).step(step)
    }

    pub(super) fn read_only(&self, target: &Path) -> Result<(), Failure> {
        let step = || format!("make `{}` read-only inside", target.display());
        let at = self.open(target).step(step)?;
        mount_setattr(&at, Depth::One, MountAttributes::READ_ONLY).step(step)
    }

    /// `pivot_root` of a directory onto itself stacks the old root over the new one; detaching the
    /// top of that stack leaves the new root alone. No directory for the old root is needed.
    pub(super) fn pivot(self) -> Result<Left, Failure> {
        let step = || "make the view the root".to_owned();
        rustix::process::fchdir(&self.root).step(step)?;
        rustix::process::pivot_root(".", ".").step(step)?;
        Ok(Left(()))
    }
}

/// The host's tree, which is no longer the root of this process, but its current directory, and mounted.
#[derive(Debug)]
#[must_use = "until it is forgotten, the host's tree can be reached"]
pub struct Left(());

impl Left {
    /// Lets go of the host's tree: from here on it is unreachable, and the current directory is the new root.
    ///
    /// The kernel waits until every processor has passed a quiet point, so this is best done while somebody
    /// else has something to do; before any process is started that is not ours.
    pub fn forget(self) -> Result<(), Failure> {
        let step = || "leave the host's tree".to_owned();
        unmount(".", UnmountFlags::DETACH).step(step)?;
        rustix::process::chdir("/").step(step)
    }
}

/// Below a read-only directory nothing can be made to mount on.
fn no_place(failure: Failure, target: &Path) -> Failure {
    match failure {
        Failure::Step { errno: libc::ENOENT | libc::EROFS, .. } => Failure::Wrong {
            message: format!(
                "nothing can be mounted at `{}`: it is not there, and the directory around it is \
                 read-only inside",
                target.display()
            ),
            hint: "mount it at a place of its own, such as `/mnt/NAME`, or let the system be \
                   changed inside: `--system cow`"
                .into(),
        },
        other => other,
    }
}
