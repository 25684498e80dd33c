//! The view as a list of operations: decided here, done in [`super::apply`].
//!
//! Order matters, and is the order of the list:
//!
//! 1. System directories, the host's or an image's, so that everything private comes after and on top of them.
//! 2. Private `/tmp`, `/var/tmp`, `/run`, `/dev`, `/proc`: before the project, which may itself
//!    live under `/tmp`. So far nothing is the sandbox's own, and it is done ahead where it can be ([`ground`]).
//! 3. Files of skep's own over the system's, and the home, empty, with the pieces the policy shows.
//! 4. What comes from the sandbox's own directory: messages, and the project, at its own path, over
//!    whatever stands there.
//! 5. Extra mounts, which may lie inside the project.

use super::home::Link;
use super::image::ImageParts;
use serde::{Deserialize, Serialize};
use skep_types::{Access, Mount, RelPath};
use std::path::{Path, PathBuf};

/// One step. Targets are absolute paths as seen inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewOp {
    /// A directory, with the parents that are missing.
    Directory { target: PathBuf, mode: u32 },
    /// An empty directory in memory that can be written. All of them are parts of one filesystem.
    Scratch { target: PathBuf, mode: u32 },
    /// A symlink.
    Symlink { target: PathBuf, points_to: PathBuf },
    /// A directory of the host's system, shown where it is with everything mounted below it, and not to be written.
    System { path: PathBuf },
    /// The nth of the sources that were opened before, shown with everything mounted below it.
    Bind { source: usize, target: PathBuf, access: Access },
    /// A device node of the host.
    Device { name: &'static str },
    /// The processes of this sandbox.
    Proc,
    /// Terminals of this sandbox.
    Terminals,
    /// An entry of `/proc` made unreadable (or read-only), if it exists.
    Mask { target: &'static str, how: MaskKind },
    /// A directory that must not be seen though it lies in one that is shown, if it can be.
    Cover { target: PathBuf },
    /// The workspace at the project's path; `scope` is what can be written (all, if empty).
    Workspace { target: PathBuf, scope: Vec<RelPath> },
    /// A directory of the system with writes going to an area of the sandbox's.
    CopyOnWrite { target: PathBuf, lower: usize, area: usize, how: CowMethod },
    /// A small file of skep's own over a file of the system's, if that is there.
    File { target: &'static str, content: String },
    /// Nothing below here can be written any more, except what is mounted on it.
    ReadOnly { target: PathBuf },
}

/// How a directory of the system becomes copy-on-write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CowMethod {
    /// By the kernel, owners mapped.
    Overlay,
    /// By fuse-overlayfs, everything shown as the user's own.
    Fuse,
}

/// A directory of the system that is copy-on-write: indices into the opened sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CowDirectory {
    /// Where it is, outside and inside.
    pub path: PathBuf,
    /// The host's.
    pub lower: usize,
    /// With `upper`, `work` and `mask` in it.
    pub area: usize,
    /// How.
    pub how: CowMethod,
}

/// How an entry of `/proc` is masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskKind {
    /// Replaced by an empty file or directory.
    Hide,
    /// Visible, not writable.
    ReadOnly,
}

/// What the plan depends on.
#[derive(Debug, Clone)]
pub struct ViewSpec<'a> {
    /// The project's path.
    pub project: &'a Path,
    /// Writable parts of it.
    pub scope: &'a [RelPath],
    /// The caller's home directory.
    pub home: &'a Path,
    /// What comes first.
    pub ground: GroundSpec<'a>,
    /// Extra mounts; the nth is source `mounts_from + n`.
    pub mounts: &'a [Mount],
    /// Index of the first extra mount among the opened sources.
    pub mounts_from: usize,
    /// Home pieces (relative to the home); the nth is source `home_from + n`.
    pub home_pieces: &'a [PathBuf],
    /// Directories around them that have more in them than is shown.
    pub home_directories: &'a [PathBuf],
    /// Links in those.
    pub home_links: &'a [Link],
    /// Index of the first home piece among the opened sources.
    pub home_from: usize,
    /// Index of the directory shown at `/run/skep`.
    pub messages: usize,
    /// Files of the system that say something else inside, with what they say.
    pub files: Vec<(&'static str, String)>,
    /// Where skep keeps its own state: the other sandboxes, what was approved, the data base.
    pub state: &'a Path,
}

/// What the first part of the plan depends on.
#[derive(Debug, Clone)]
pub struct GroundSpec<'a> {
    /// Devices beside [`DEVICES`].
    pub devices: &'a [&'static str],
    /// What stands at the system paths of this host.
    pub system_entries: &'a [SystemEntry],
    /// Those of them that can be written, and `/var`.
    pub copy_on_write: &'a [CowDirectory],
    /// The image whose system is shown, if it is not the host's.
    pub image: Option<&'a ImageParts>,
    /// Index of the program that is init, where a runtime makes the processes: then it makes
    /// `/proc` and `/dev` too.
    pub init_program: Option<usize>,
}

impl<'a> GroundSpec<'a> {
    /// As it nearly always is: the host's system, to be read, and nothing more than every sandbox has.
    pub fn usual(system_entries: &'a [SystemEntry]) -> Self {
        Self { devices: &[], system_entries, copy_on_write: &[], image: None, init_program: None }
    }
}

/// A top-level entry of the host that belongs to the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SystemEntry {
    /// A directory to show.
    Directory(PathBuf),
    /// A link to repeat (`/bin -> usr/bin`).
    Link(PathBuf, PathBuf),
}

/// Directories of the system that are shown when they exist. `/var`, `/srv`, `/mnt`, `/home` and
/// the like hold data, not programs, and stay away; so does `/sys`, which describes the host.
pub const SYSTEM_PATHS: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu",
];

/// Device nodes that are harmless to share.
pub const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

/// Entries of `/proc` that tell about, or act on, the host rather than the sandbox.
pub const MASKED: &[(&str, MaskKind)] = &[
    ("/proc/acpi", MaskKind::Hide),
    ("/proc/asound", MaskKind::Hide),
    ("/proc/interrupts", MaskKind::Hide),
    ("/proc/kcore", MaskKind::Hide),
    ("/proc/keys", MaskKind::Hide),
    ("/proc/key-users", MaskKind::Hide),
    ("/proc/kmsg", MaskKind::Hide),
    ("/proc/kpagecgroup", MaskKind::Hide),
    ("/proc/kpagecount", MaskKind::Hide),
    ("/proc/kpageflags", MaskKind::Hide),
    ("/proc/latency_stats", MaskKind::Hide),
    ("/proc/sched_debug", MaskKind::Hide),
    ("/proc/scsi", MaskKind::Hide),
    ("/proc/sysrq-trigger", MaskKind::Hide),
    ("/proc/timer_list", MaskKind::Hide),
    ("/proc/timer_stats", MaskKind::Hide),
    ("/proc/bus", MaskKind::ReadOnly),
    ("/proc/fs", MaskKind::ReadOnly),
    ("/proc/irq", MaskKind::ReadOnly),
    ("/proc/sys", MaskKind::ReadOnly),
];

/// The first steps, which show nothing of the sandbox's own.
pub fn ground(spec: &GroundSpec<'_>) -> Vec<ViewOp> {
    let mut ops = Vec::with_capacity(64);
    system(spec, &mut ops);
    private(spec, &mut ops);
    ops
}

/// The steps that build the view.
pub fn plan(spec: &ViewSpec<'_>) -> Vec<ViewOp> {
    let mut ops = ground(&spec.ground);
    let own = spec.files.iter().cloned();
    ops.extend(own.map(|(target, content)| ViewOp::File { target, content }));
    home(spec, &mut ops);
    // From here on the sandbox's own directory is needed, which may be the last thing to be there.
    ops.push(ViewOp::Bind {
        source: spec.messages,
        target: "/run/skep".into(),
        access: Access::Ro,
    });
    ops.push(ViewOp::Workspace { target: spec.project.into(), scope: spec.scope.to_vec() });
    for (index, mount) in spec.mounts.iter().enumerate() {
        ops.push(ViewOp::Bind {
            source: spec.mounts_from + index,
            target: mount.target.as_path().into(),
            access: mount.access,
        });
    }
    if spec.ground.system_entries.contains(&SystemEntry::Directory("/nix".into())) {
        ops.push(ViewOp::Cover { target: NIX_DAEMON.into() });
    }
    ops.extend(state_in_view(spec).map(|target| ViewOp::Cover { target }));
    spec.ground.image.filter(|image| image.for_guest).inspect(|image| image.beside(&mut ops));
    // Last: until here directories had to be made in the root.
    ops.push(ViewOp::ReadOnly { target: "/".into() });
    ops
}

/// Every place where the state directory would be seen: in a system directory, in a piece of the
/// home, or in a mount.
fn state_in_view<'a>(spec: &'a ViewSpec<'_>) -> impl Iterator<Item = PathBuf> + 'a {
    let own = spec.ground.image.is_none_or(|image| image.for_guest);
    let entries = spec.ground.system_entries.iter().filter(move |_| own);
    let system = entries.filter_map(|entry| match entry {
        SystemEntry::Directory(path) if spec.state.starts_with(path) => Some(spec.state.into()),
        _ => None,
    });
    let mounts = spec.mounts.iter().filter_map(|mount| {
        let below = spec.state.strip_prefix(mount.source.as_path()).ok()?;
        Some(mount.target.as_path().join(below))
    });
    let pieces = spec.home_pieces.iter().map(|piece| spec.home.join(piece));
    let home = pieces.filter(|piece| spec.state.starts_with(piece)).map(|_| spec.state.into());
    system.chain(home).chain(mounts)
}

/// A root with programs and nothing else, for one that serves a filesystem: the host's processes
/// (it names its descriptors by `/proc/self`), and what it serves, which is source 0.
pub fn server(system_entries: &[SystemEntry], parts: &Path) -> Vec<ViewOp> {
    let mut ops: Vec<ViewOp> = system_entries.iter().map(as_it_is).collect();
    ops.push(ViewOp::System { path: "/proc".into() });
    ops.push(ViewOp::Bind { source: 0, target: parts.into(), access: Access::Rw });
    ops.push(ViewOp::ReadOnly { target: "/".into() });
    ops
}

/// The step that shows an entry of the host's system as it is.
fn as_it_is(entry: &SystemEntry) -> ViewOp {
    match entry {
        SystemEntry::Link(target, points_to) => {
            ViewOp::Symlink { target: target.clone(), points_to: points_to.clone() }
        }
        SystemEntry::Directory(path) => ViewOp::System { path: path.clone() },
    }
}

/// Where the daemon of Nix listens to everybody: it would fetch from the network for whoever asks.
const NIX_DAEMON: &str = "/nix/var/nix/daemon-socket";

fn system(spec: &GroundSpec<'_>, ops: &mut Vec<ViewOp>) {
    if let Some(image) = spec.image.filter(|image| !image.for_guest) {
        return image.system(ops);
    }
    ops.extend(spec.system_entries.iter().map(|entry| match entry {
        SystemEntry::Directory(path) => {
            copy_on_write(spec, path).unwrap_or_else(|| as_it_is(entry))
        }
        SystemEntry::Link(..) => as_it_is(entry),
    }));
}

fn copy_on_write(spec: &GroundSpec<'_>, path: &Path) -> Option<ViewOp> {
    let directory = spec.copy_on_write.iter().find(|directory| directory.path == path)?;
    let CowDirectory { lower, area, how, .. } = directory.clone();
    Some(ViewOp::CopyOnWrite { target: path.into(), lower, area, how })
}

fn private(spec: &GroundSpec<'_>, ops: &mut Vec<ViewOp>) {
    let scratch = |target: &str, mode| ViewOp::Scratch { target: target.into(), mode };
    ops.extend([scratch("/tmp", 0o1777), scratch("/run", 0o755)]);
    // The host's `/var` brings its own links; it would also bring the host's `/var/tmp`.
    match copy_on_write(spec, Path::new("/var")) {
        Some(op) => ops.extend([op, scratch("/var/tmp", 0o1777)]),
        None if spec.image.is_some_and(|image| !image.for_guest) => {
            ops.push(scratch("/var/tmp", 0o1777));
        }
        None => ops.extend([
            scratch("/var", 0o755),
            ViewOp::Directory { target: "/var/tmp".into(), mode: 0o1777 },
            ViewOp::Symlink { target: "/var/run".into(), points_to: "/run".into() },
        ]),
    }
    if let Some(program) = spec.init_program {
        let target = crate::vessel::INIT_PROGRAM.into();
        ops.push(ViewOp::Bind { source: program, target, access: Access::Ro });
        spec.image.inspect(|image| image.programs(ops));
        for target in ["/proc", "/dev", "/sys"] {
            ops.push(ViewOp::Directory { target: target.into(), mode: 0o755 });
        }
        return;
    }
    // A directory of the root, which can be read only once all of it is there.
    ops.push(ViewOp::Directory { target: "/dev".into(), mode: 0o755 });
    ops.extend(DEVICES.iter().chain(spec.devices).map(|name| ViewOp::Device { name }));
    ops.push(ViewOp::Terminals);
    ops.push(scratch("/dev/shm", 0o1777));
    for (name, points_to) in [
        ("/dev/ptmx", "pts/ptmx"),
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        ops.push(ViewOp::Symlink { target: name.into(), points_to: points_to.into() });
    }
    ops.push(ViewOp::Proc);
    ops.extend(MASKED.iter().map(|(target, how)| ViewOp::Mask { target, how: *how }));
}

fn home(spec: &ViewSpec<'_>, ops: &mut Vec<ViewOp>) {
    ops.push(ViewOp::Scratch { target: spec.home.into(), mode: 0o700 });
    let directories = spec.home_directories.iter().map(|path| spec.home.join(path));
    ops.extend(directories.map(|target| ViewOp::Directory { target, mode: 0o755 }));
    for Link { at, points_to } in spec.home_links {
        ops.push(ViewOp::Symlink { target: spec.home.join(at), points_to: points_to.clone() });
    }
    for (index, piece) in spec.home_pieces.iter().enumerate() {
        ops.push(ViewOp::Bind {
            source: spec.home_from + index,
            target: spec.home.join(piece),
            access: Access::Ro,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(ops: &[ViewOp], wanted: impl Fn(&ViewOp) -> bool) -> usize {
        ops.iter().position(wanted).unwrap()
    }

    #[test]
    fn the_project_comes_after_the_private_tmp_and_the_home() {
        let ops = plan(&ViewSpec {
            project: Path::new("/tmp/project"),
            scope: &[],
            home: Path::new("/home/user"),
            ground: GroundSpec::usual(&[SystemEntry::Directory("/usr".into())]),
            mounts: &[],
            mounts_from: 2,
            home_pieces: &[".cargo/bin".into()],
            home_directories: &[],
            home_links: &[],
            home_from: 2,
            messages: 1,
            files: Vec::new(),
            state: Path::new("/usr/state"),
        });
        let tmp = position(
            &ops,
            |op| matches!(op, ViewOp::Scratch { target, .. } if target == Path::new("/tmp")),
        );
        let home = position(
            &ops,
            |op| matches!(op, ViewOp::Scratch { target, .. } if target == Path::new("/home/user")),
        );
        let workspace = position(&ops, |op| matches!(op, ViewOp::Workspace { .. }));
        assert!(tmp < workspace && home < workspace);
        let covered = ViewOp::Cover { target: "/usr/state".into() };
        assert!(position(&ops, |op| *op == covered) > workspace);
        assert_eq!(ops.last(), Some(&ViewOp::ReadOnly { target: "/".into() }));
    }
}
