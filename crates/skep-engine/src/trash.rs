//! Deleting: first out of the way by a rename, then piece by piece.
//!
//! What lies in a sandbox's directory was made by untrusted code. Nothing is followed, no other
//! filesystem is entered, and directories that were locked by their mode are opened up first.

use crate::closed;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, chmodat, fstat, openat2, unlinkat,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::path::Path;

/// Moves `path` into the trash and removes it there. Succeeds if it is already gone.
pub fn discard(path: &Path, trash: &Path) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Ok(()) };
    let target = trash.join(name);
    match closed::rename(path, &target) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // The same name is still being removed from an earlier try.
        Err(error) if error.raw_os_error() == Some(libc_enotempty()) => {
            remove(&target)?;
            closed::rename(path, &target)?;
        }
        Err(error) => return Err(error),
    }
    remove(&target)
}

fn libc_enotempty() -> i32 {
    Errno::NOTEMPTY.raw_os_error()
}

/// Empties the trash.
pub fn empty(trash: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(trash)? {
        remove(&entry?.path())?;
    }
    Ok(())
}

/// Removes a tree without following links or entering another filesystem.
pub fn remove(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    raise_open_files();
    let name = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(name))?;
    match remove_entry(parent.as_fd(), &name, FileType::Unknown) {
        // A root-looking user with subordinate ids may have left files of theirs: from a user
        // namespace with the same ids they can be removed.
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && !rustix::process::geteuid().is_root()
                && skep_sys::process::enter_own_user_namespace().is_ok() =>
        {
            remove_entry(parent.as_fd(), &name, FileType::Unknown)
                .map_err(|error| explained(path, error))
        }
        other => other,
    }
}

/// Says whose it is that cannot be removed, and what to do.
fn explained(path: &Path, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    io::Error::other(format!(
        "{error}: something in it belongs to a subordinate id that you were lent when the sandbox \
         ran; put the line back into `/etc/subuid` and `/etc/subgid` and say `skep gc`, or remove \
         `{}` as root",
        path.display()
    ))
}

/// A tree is removed from inside, with one directory open per level; untrusted code may have
/// nested it deeper than the usual limit of open files.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    // Where it cannot be raised, a tree that deep is reported and stays in the trash.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
}

/// Most directories that go are empty, and then one call is all there is to do.
fn remove_entry(parent: BorrowedFd<'_>, name: &CStr, kind: FileType) -> io::Result<()> {
    if !matches!(kind, FileType::Directory | FileType::Unknown) {
        return gone(unlinkat(parent, name, AtFlags::empty()));
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTDIR) => return gone(unlinkat(parent, name, AtFlags::empty())),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        other => return gone(other),
    }
    let Some(directory) = open_directory(parent, name)? else { return Ok(()) };
    // A second descriptor, because the first one is used up by reading.
    let inside = rustix::io::fcntl_dupfd_cloexec(&directory, 0)?;
    for entry in Dir::new(directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            remove_entry(inside.as_fd(), entry.file_name(), entry.file_type())?;
        }
    }
    gone(unlinkat(parent, name, AtFlags::REMOVEDIR))
}

/// What is not there any more has been removed.
fn gone(removed: Result<(), Errno>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opened so that what is in it can be removed; `None` if it is gone. A mount point in the way is
/// an error (`EXDEV`): what is mounted there is not ours to remove.
fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let open = || openat2(parent, name, flags, Mode::empty(), resolve);
    let unlock = || chmodat(parent, name, Mode::from_raw_mode(0o700), AtFlags::empty());
    let directory = match open() {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ACCESS) => {
            unlock()?;
            open()?
        }
        other => other?,
    };
    if fstat(&directory)?.st_mode & 0o700 != 0o700 {
        unlock()?;
    }
    Ok(Some(directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn removes_locked_directories_and_leaves_link_targets() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        std::fs::write(&outside, "keep").unwrap();
        let tree = base.path().join("tree");
        std::fs::create_dir_all(tree.join("a/locked")).unwrap();
        std::fs::write(tree.join("a/locked/file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/link")).unwrap();
        std::os::unix::fs::symlink(base.path(), tree.join("up")).unwrap();
        // One that can be listed and not written, as an ordinary user sees it.
        std::fs::create_dir(tree.join("a/stiff")).unwrap();
        std::fs::write(tree.join("a/stiff/file"), "x").unwrap();
        std::fs::set_permissions(tree.join("a/stiff"), std::fs::Permissions::from_mode(0o500))
            .unwrap();
        std::fs::set_permissions(tree.join("a/locked"), std::fs::Permissions::from_mode(0o000))
            .unwrap();
        let trash = base.path().join("trash");
        std::fs::create_dir(&trash).unwrap();
        discard(&tree, &trash).unwrap();
        assert!(!tree.exists());
        assert_eq!(std::fs::read_dir(&trash).unwrap().count(), 0);
        assert_eq!(std::fs::read_to_string(outside).unwrap(), "keep");
        discard(&tree, &trash).unwrap();
    }
}
