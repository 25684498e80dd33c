//! What an entry carries beside its bytes, its owner and its mode: access lists, labels and the user's
//! own attributes.
//!
//! A file that is replaced is a new inode, and would come without them. They are the user's, and no part
//! of what was reviewed: so they are carried over from what is replaced, and from the backup when it is
//! put back. Nothing of the kind ever comes out of a sandbox.
//!
//! An access list matters most. With one, the group bits of the mode are its mask: a new file with that
//! mode and without the list would give the owning group what the mask allowed to others. What is new
//! gets the list that its directory gives to what is made in it, for the same reason.

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, getxattr, listxattr};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Everything under this is the user's.
const OWN: &[u8] = b"user.";
/// Marks of overlayfs and fuse-overlayfs; a project may be an upper of somebody's.
const MARKS: [&[u8]; 2] = [b"user.overlay.", b"user.fuseoverlayfs."];
/// Access lists, and what a security module calls it. Not capabilities: like the privilege bits they
/// belong to the bytes that were there.
const CARRIED: [&[u8]; 3] =
    [b"system.posix_acl_access", b"system.posix_acl_default", b"security.selinux"];

/// File capabilities, which only root gives.
const CAPABILITY: &CStr = c"security.capability";
/// What a directory gives to what is made in it, and what it becomes there.
const DEFAULT_LIST: &CStr = c"system.posix_acl_default";
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// Attributes of what is only pinned are read by its name in /proc.
fn way_to(entry: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", entry.as_fd().as_raw_fd())
}

/// As [`carry`], with capabilities: for the very bytes that had them. Who is not root cannot give them.
pub(super) fn carry_whole(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let kept = match value(&way_to(&from), CAPABILITY) {
        Ok(kept) => kept,
        Err(error) if is_unsupported(&error) => None,
        Err(error) => return Err(error),
    };
    carry(from, &to)?;
    match kept.map(|kept| fsetxattr(&to, CAPABILITY, &kept, XattrFlags::empty())) {
        None | Some(Ok(())) => Ok(()),
        Some(Err(Errno::PERM)) if !rustix::process::geteuid().is_root() => Ok(()),
        Some(Err(errno)) => Err(errno.into()),
    }
}

/// The list that a directory gives to what is made in it.
pub(super) fn default_list(directory: impl AsFd) -> io::Result<Option<Vec<u8>>> {
    match value(&way_to(&directory), DEFAULT_LIST) {
        Err(error) if is_unsupported(&error) => Ok(None),
        other => other,
    }
}

/// Gives a new entry that list. Its mode, set afterwards, cuts it as the mode of a call that makes a
/// file does (acl(5)): the owner, the mask and everybody else; the owning group has what the list says.
pub(super) fn inherit(list: &[u8], to: impl AsFd, directory: bool) -> io::Result<()> {
    fsetxattr(&to, ACCESS_LIST, list, XattrFlags::empty())?;
    if directory {
        fsetxattr(&to, DEFAULT_LIST, list, XattrFlags::empty())?;
    }
    Ok(())
}

fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
}

/// Carries over what `from` (open in any way) has to `to`. The mode of `to` is to be set afterwards.
pub(super) fn carry(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    // By the descriptor, which is open until the end.
    let way = way_to(&from);
    for name in names(&way)? {
        let Some(value) = value(&way, &name)? else { continue };
        let mut there = vec![0; value.len() + 1];
        // A label is mostly there already, and not everybody may set one.
        let same = fgetxattr(&to, &*name, &mut there).is_ok_and(|length| there[..length] == value);
        if !same {
            fsetxattr(&to, &*name, &value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn names(path: &str) -> io::Result<Vec<CString>> {
    let mut list = vec![0; 1024];
    let length = loop {
        match listxattr(path, &mut list) {
            Ok(length) => break length,
            Err(Errno::RANGE) if list.len() <= LONGEST => list.resize(list.len() * 4, 0),
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
    };
    let names = list[..length].split_inclusive(|byte| *byte == 0);
    let carried = names.filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    Ok(carried.filter(|name| is_carried(name.to_bytes())).map(CStr::to_owned).collect())
}

/// The kernel's limit of a list and of a value (xattr(7)).
const LONGEST: usize = 64 << 10;

fn is_carried(name: &[u8]) -> bool {
    let mark = MARKS.iter().any(|mark| name.starts_with(mark));
    CARRIED.contains(&name) || (name.starts_with(OWN) && !mark)
}

fn value(path: &str, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 256];
    loop {
        match getxattr(path, name, &mut value) {
            Ok(length) => {
                value.truncate(length);
                return Ok(Some(value));
            }
            Err(Errno::RANGE) if value.len() <= LONGEST => value.resize(LONGEST * 2, 0),
            // Taken away meanwhile.
            Err(Errno::NODATA) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried() {
        for yes in ["user.note", "user.overlayx", "system.posix_acl_access", "security.selinux"] {
            assert!(is_carried(yes.as_bytes()), "{yes}");
        }
        for no in
            ["user.overlay.opaque", "security.capability", "trusted.x", "security.ima", "users"]
        {
            assert!(!is_carried(no.as_bytes()), "{no}");
        }
    }
}
