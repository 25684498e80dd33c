//! Where the state directory may lie, and the space it keeps back.

use crate::layout::Layout;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Enough for the few pages of a database that a removal writes.
const RESERVE: usize = 1 << 20;

/// Filesystems (by `statfs` type) whose locks and renames another machine or another process
/// answers for.
const FOREIGN: [(u64, &str); 9] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x6573_5546, "FUSE"),
];

/// Refuses a state directory that others can write, that is not the caller's, or that lies on a
/// filesystem without local locks. One that others can only read is closed to them.
pub fn check(root: &Path) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let kind = rustix::fs::statfs(root)?.f_type as u64 & 0xffff_ffff;
    if let Some((_, name)) = FOREIGN.iter().find(|(number, _)| *number == kind) {
        return refuse(format!("it lies on {name}; a local filesystem is needed"));
    }
    let meta = fs::metadata(root)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return refuse(format!("it belongs to another user (uid {})", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return refuse(format!("others can write in it (mode {:o})", meta.mode() & 0o7777));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(root, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Whether [`check`] would find nothing to refuse and nothing to do.
pub fn is_fit(root: &Path) -> bool {
    let private = fs::metadata(root).is_ok_and(|meta| meta.mode() & 0o077 == 0);
    private && check(root).is_ok()
}

/// Keeps some space back, if there is any. It is only missed when the disk is full.
pub fn keep_reserve(layout: &Layout) {
    let path = layout.reserve();
    if path.exists() {
        return;
    }
    let options = || File::options().write(true).create_new(true).mode(0o600).open(&path);
    // Written, not only allocated: not every filesystem can promise space without bytes.
    let filled = options().and_then(|mut file| file.write_all(&vec![0x5a; RESERVE]));
    if filled.is_err() {
        let _ = fs::remove_file(&path);
    }
}

/// Gives the kept space up; says whether there was any.
pub fn spend_reserve(layout: &Layout) -> bool {
    fs::remove_file(layout.reserve()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_can_write_is_refused_and_a_readable_one_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mode = |mode| fs::set_permissions(root, Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        assert!(check(root).is_err());
        mode(0o720);
        assert!(check(root).is_err());
        mode(0o755);
        check(root).unwrap();
        assert_eq!(fs::metadata(root).unwrap().mode() & 0o777, 0o700);
    }
}
