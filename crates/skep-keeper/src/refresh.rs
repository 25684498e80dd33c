//! Letting go of what the kernel remembers of the project's names.
//!
//! An overlay holds on to the file that it has found below a name. Who replaces it in the project by a rename,
//! as editors do, is not seen by those inside for as long as the name is remembered; a name that was asked
//! for in vain is remembered, too. Reconfiguring a filesystem drops every name that nobody uses
//! (`reconfigure_super` calls `shrink_dcache_sb`), and an overlay that is given no option stays what it is. So that
//! is done, with nothing to change. What somebody has open or stands in stays as it was.

use rustix::fd::OwnedFd;
use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fspick};

/// `OVERLAYFS_SUPER_MAGIC`.
const OVERLAY: rustix::fs::FsWord = 0x794c_7630;

/// Drops the names of the overlay whose root this is. Fails where it is another filesystem, and where it was
/// mounted by somebody who could do more than this process.
pub(crate) fn drop_names(root: &OwnedFd) -> Result<(), Errno> {
    if fstatfs(root)?.f_type != OVERLAY {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    fsconfig_reconfigure(fspick(root, "", flags)?)
}
