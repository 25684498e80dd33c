//! Mounts by descriptor: what `rustix` does not have.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;

bitflags_lite! {
    /// Attributes of a mount, for [`mount_setattr`].
    pub struct MountAttributes: u64 {
        /// Cannot be written through.
        READ_ONLY = libc::MOUNT_ATTR_RDONLY;
        /// Set-user-id bits have no effect.
        NO_SUID = libc::MOUNT_ATTR_NOSUID;
        /// Devices cannot be opened.
        NO_DEVICES = libc::MOUNT_ATTR_NODEV;
        /// Programs cannot be run.
        NO_EXEC = libc::MOUNT_ATTR_NOEXEC;
    }
}

/// Whether mounts below are meant too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// This mount only.
    One,
    /// Everything mounted below it as well.
    Recursive,
}

fn setattr(mount: BorrowedFd<'_>, depth: Depth, attributes: &libc::mount_attr) -> io::Result<()> {
    let flags = match depth {
        Depth::One => libc::AT_EMPTY_PATH,
        Depth::Recursive => libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
    };
    // SAFETY: the path is an empty NUL-terminated string, and `attributes` is a whole mount_attr
    // that outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Switches attributes of a mount on. In a user namespace they can be added, never taken away.
pub fn mount_setattr(mount: impl AsFd, depth: Depth, set: MountAttributes) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: set.bits(), attr_clr: 0, propagation: 0, userns_fd: 0 };
    setattr(mount.as_fd(), depth, &attributes)
}

/// The same for a mount that is not anywhere yet, and for what is mounted in it; besides, what is mounted or unmounted at
/// the place that it was taken from does not happen in it from here on.
pub fn mount_settle(tree: impl AsFd, set: MountAttributes) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: set.bits(),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    setattr(tree.as_fd(), Depth::Recursive, &attributes)
}

/// Makes a detached mount show other owners: an id on disk appears as what the user namespace
/// maps it to. Needs privilege over the filesystem, and a filesystem that can do it.
pub fn mount_idmap(mount: impl AsFd, user_namespace: impl AsFd) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: user_namespace.as_fd().as_raw_fd() as u64,
    };
    setattr(mount.as_fd(), Depth::One, &attributes)
}
