//! The host directories and files a view is made from, as detached mounts.
//!
//! An ordinary user's init opens them itself, in its own mount namespace. Started by root, init
//! has no privilege on the host any more and could not reach a project inside somebody's private
//! home; so the keeper, which still has, opens them and passes them in. There the project also
//! gets an id map, so that its owner on disk appears as the unprivileged user inside ([`owner`]).
//!
//! [`owner`]: crate::owner

use super::plan::{SYSTEM_PATHS, SystemEntry};
use crate::failure::{Failure, Step};
use crate::owner::{Owner, OwnerMaps};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::mount::{OpenTreeFlags, open_tree};
use skep_sys::mount::mount_idmap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// One thing to open.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SourceSpec {
    /// Where on the host.
    #[serde(with = "skep_provider::paths::one")]
    pub path: PathBuf,
    /// Whether its owners are mapped when started by root.
    pub owners: Owners,
    /// Whether what is mounted below comes along.
    pub below: Below,
    /// Device and inode it must have.
    pub identity: Option<(u64, u64)>,
}

/// Whether the owners on disk are mapped to the ids inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Owners {
    /// Seen as they are: foreign owners look like nobody.
    Plain,
    /// Whoever owns it is the user inside; every other id appears as itself.
    Mapped,
}

/// Whether mounts below a source come along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Below {
    /// They do.
    Included,
    /// They do not: the directory is seen as its own filesystem has it.
    Excluded,
}

/// Opens one source as a detached mount of its own.
///
/// # Errors
/// When it does not exist, is not what was pinned, or cannot be cloned. Nothing is left.
pub fn open(spec: &SourceSpec, maps: Option<&mut OwnerMaps>) -> Result<OwnedFd, Failure> {
    open_at(CWD, &spec.path, spec, maps)
}

/// The same, where the path's beginning may be covered by now: `below` leads to it from `at`.
pub fn open_at(
    at: BorrowedFd<'_>,
    below: &Path,
    spec: &SourceSpec,
    maps: Option<&mut OwnerMaps>,
) -> Result<OwnedFd, Failure> {
    let step = |what: &str| format!("{what} `{}`", spec.path.display());
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let path = rustix::fs::openat(at, below, flags, Mode::empty()).step(|| step("open"))?;
    check_identity(spec, path.as_fd())?;
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    // Below a user namespace's copy of the mount table, submounts are locked to their parents and
    // cannot be left behind; and what lies under them would come to light.
    if spec.below == Below::Included || maps.is_none() {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = open_tree(&path, "", flags).step(|| step("clone the mount of"))?;
    if let (Owners::Mapped, Some(maps)) = (spec.owners, maps) {
        let stat = rustix::fs::fstat(&path).step(|| step("look at"))?;
        let user_namespace = maps.shown(Owner::of(&stat))?;
        mount_idmap(&tree, user_namespace).map_err(|error| unmapped(spec, error))?;
    }
    Ok(tree)
}

/// FUSE and most network filesystems cannot show other owners. Then a project is copied, which is what
/// comes of this error; nothing stands in for a mount that shall be written.
fn unmapped(spec: &SourceSpec, error: io::Error) -> Failure {
    let path = spec.path.display();
    if spec.identity.is_some() {
        let operation = format!("map the owners of `{path}` for the workspace overlay");
        return Failure::Step { operation, errno: error.raw_os_error().unwrap_or(libc::EINVAL) };
    }
    Failure::missing(
        format!("`{path}` writable inside"),
        format!("its filesystem cannot show its owners as the users inside: {error}"),
        "show it read-only (`:ro`), or start the sandbox as its owner instead of root",
    )
}

fn check_identity(spec: &SourceSpec, path: BorrowedFd<'_>) -> Result<(), Failure> {
    let Some((device, inode)) = spec.identity else { return Ok(()) };
    let stat = rustix::fs::fstat(path).step(|| format!("look at `{}`", spec.path.display()))?;
    if (stat.st_dev, stat.st_ino) == (device, inode) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "`{}` is another directory than when the sandbox was created",
        spec.path.display()
    )))
}

/// Whether a path is a directory, without following a link at its end.
pub fn is_directory(source: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(source)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Whether something stands at a path.
pub fn exists(path: &Path) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// What stands at the system paths of this host.
pub fn system_entries() -> Vec<SystemEntry> {
    let entry = |path: &&str| {
        let path = Path::new(path);
        match std::fs::read_link(path) {
            Ok(points_to) => Some(SystemEntry::Link(path.into(), points_to)),
            Err(_) if path.is_dir() => Some(SystemEntry::Directory(path.into())),
            Err(_) => None,
        }
    };
    SYSTEM_PATHS.iter().filter_map(entry).collect()
}
