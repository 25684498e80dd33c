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
    check_filesystem(root)?;
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

/// Refuses a directory that is somebody's for something else: it would be closed to all others, and
/// what lies in it would be taken for skep's own.
pub fn check_unused(root: &Path) -> io::Result<()> {
    let mut others = Vec::new();
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name();
        match name.to_str() {
            // A state directory that is being made or lost a part, and a filesystem made for one.
            Some("skep.db" | "sandboxes") => return Ok(()),
            Some("lost+found") => {}
            _ => others.push(name),
        }
    }
    match others.first() {
        Some(name) => refuse(format!(
            "it is no state directory and holds other things (`{}`); name a new or an empty one",
            skep_types::escape::visible(name.as_encoded_bytes())
        )),
        None => Ok(()),
    }
}

/// Refuses a place on a filesystem without local locks.
pub fn check_filesystem(place: &Path) -> io::Result<()> {
    let kind = rustix::fs::statfs(place)?.f_type as u64 & 0xffff_ffff;
    match FOREIGN.iter().find(|(number, _)| *number == kind) {
        Some((_, name)) => refuse(format!("it lies on {name}; a local filesystem is needed")),
        None => Ok(()),
    }
}

fn refuse(why: String) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// The state directory that a path lies in, whoever's it is: one with a database or a node's name
/// beside sandboxes.
pub fn around(path: &Path) -> Option<&Path> {
    path.ancestors().find(|place| {
        let holds = |name: &str| fs::symlink_metadata(place.join(name)).is_ok();
        holds("sandboxes") && (holds("skep.db") || holds("node"))
    })
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
    fn a_state_directory_is_known_by_what_it_holds() {
        let directory = tempfile::tempdir().unwrap();
        let (plain, state) = (directory.path().join("plain"), directory.path().join("state"));
        for path in [plain.join("sandboxes/x"), state.join("sandboxes/x/upper")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(state.join("skep.db"), "").unwrap();
        assert_eq!(around(&plain.join("sandboxes/x")), None);
        assert_eq!(around(&state.join("sandboxes/x/upper")), Some(state.as_path()));
        assert_eq!(around(&state), Some(state.as_path()));
    }

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
