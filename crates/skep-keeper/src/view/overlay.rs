//! Mounting the copy-on-write workspace.

use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use std::io;

/// The directories an overlay is made from. All lie in this process's mount namespace.
#[derive(Debug)]
pub struct OverlayParts<'a> {
    /// Topmost first; the project is the last.
    pub lowers: Vec<BorrowedFd<'a>>,
    /// Where changes go.
    pub upper: BorrowedFd<'a>,
    /// Scratch space of overlayfs, on the same filesystem.
    pub work: BorrowedFd<'a>,
    /// Which extended attributes mark deletions.
    pub markers: Markers,
}

/// Which extended attributes the overlay uses for its markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markers {
    /// `user.overlay.*`: works without privilege, and the kernel escapes forged ones.
    User,
    /// `trusted.overlay.*`: root only.
    Trusted,
}

/// Mounts an overlay, detached.
///
/// Directories are named as `/proc/self/fd/N`: no byte of a path reaches the option parser, where
/// `:` and `,` would mean something, and no length limit applies. What the kernel's configuration
/// may have switched on by default is switched off by name, so that the upper holds plain copies
/// and whiteouts and nothing else.
pub fn mount(parts: &OverlayParts<'_>) -> Result<OwnedFd, Failure> {
    let overlay = || "mount the workspace overlay".to_owned();
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step(overlay)?;
    fsconfig_set_string(&context, "source", "skep").step(overlay)?;
    for lower in &parts.lowers {
        set_directory(context.as_fd(), "lowerdir+", *lower).step(overlay)?;
    }
    set_directory(context.as_fd(), "upperdir", parts.upper).step(overlay)?;
    set_directory(context.as_fd(), "workdir", parts.work).step(overlay)?;
    for (key, value) in [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow")] {
        fsconfig_set_string(&context, key, value).step(|| format!("set overlay option `{key}`"))?;
    }
    if parts.markers == Markers::User {
        fsconfig_set_flag(&context, "userxattr").step(overlay)?;
    }
    fsconfig_create(&context).step(overlay)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(overlay)
}

fn set_directory(context: BorrowedFd<'_>, key: &str, directory: BorrowedFd<'_>) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    Ok(fsconfig_set_string(context, key, path.as_str())?)
}
