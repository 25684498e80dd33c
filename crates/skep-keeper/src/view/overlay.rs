//! Mounting the copy-on-write workspace.

use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use std::io;

/// What the kernel takes of a string for fsconfig(2).
const LONGEST_OPTION: usize = 255;

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
///
/// It is mounted `volatile`: otherwise its end would sync the whole filesystem that the upper lies
/// on, other programs' data included, and stopping a sandbox would wait for that (5 to 500 ms).
/// What the upper holds is written out by the kernel like any file, and an approval syncs what it
/// takes over.
pub fn mount(parts: &OverlayParts<'_>) -> Result<OwnedFd, Failure> {
    let overlay = || "mount the workspace overlay".to_owned();
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step(overlay)?;
    fsconfig_set_string(&context, "source", "skep").step(overlay)?;
    set_lowers(context.as_fd(), &parts.lowers).step(overlay)?;
    set_directory(context.as_fd(), "upperdir", parts.upper).step(overlay)?;
    set_directory(context.as_fd(), "workdir", parts.work).step(overlay)?;
    for (key, value) in [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow")] {
        fsconfig_set_string(&context, key, value).step(|| format!("set overlay option `{key}`"))?;
    }
    if parts.markers == Markers::User {
        fsconfig_set_flag(&context, "userxattr").step(overlay)?;
    }
    // Kernels before 5.10 do not know it.
    if fsconfig_set_flag(&context, "volatile").is_ok() {
        forget_last_mount(parts.work);
    }
    fsconfig_create(&context).step(overlay)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(overlay)
}

/// A volatile mount leaves a mark in its work directory, and the kernel mounts no marked one: after
/// a power loss the upper may lack what was never written out. Without a power loss it lacks
/// nothing, and with one the engine says so; nobody has a better copy either way.
fn forget_last_mount(work: BorrowedFd<'_>) {
    use rustix::fs::{AtFlags, unlinkat};
    let gone = unlinkat(work, "work/incompat/volatile/dirty", AtFlags::empty()).is_ok();
    if gone {
        // What is still there, the mount itself reports.
        let _ = unlinkat(work, "work/incompat/volatile", AtFlags::REMOVEDIR);
        let _ = unlinkat(work, "work/incompat", AtFlags::REMOVEDIR);
    }
}

/// All in one list, as every kernel takes it; one by one where the list is longer than an option may
/// be, which takes Linux 6.8.
fn set_lowers(context: BorrowedFd<'_>, lowers: &[BorrowedFd<'_>]) -> io::Result<()> {
    let list: Vec<String> = lowers.iter().map(|lower| path_of(*lower)).collect();
    let list = list.join(":");
    if list.len() <= LONGEST_OPTION {
        return Ok(fsconfig_set_string(context, "lowerdir", list.as_str())?);
    }
    lowers.iter().try_for_each(|lower| set_directory(context, "lowerdir+", *lower))
}

fn path_of(directory: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", directory.as_raw_fd())
}

fn set_directory(context: BorrowedFd<'_>, key: &str, directory: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fsconfig_set_string(context, key, path_of(directory).as_str())?)
}
