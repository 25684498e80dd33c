//! Copying agent-written trees exactly: whiteouts, marks, modes, owners, links and times.
//!
//! A layer must mean to the overlay what the upper meant. Nothing is followed and nothing special
//! is opened; every path is reached below a pinned directory.

use crate::closed;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use skep_types::RelPath;
use skep_workspace::tree::TreeRoot;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The families of attributes that are carried over: the overlay's marks, the user's own, and
/// access lists. Capabilities of files (`security.*`) are not: they are never approved either.
const ATTRIBUTES: &[&[u8]] = &[b"user.", b"trusted.", b"system.posix_acl_"];
/// Largest attribute the kernel has.
const LARGEST_ATTRIBUTE: usize = 64 << 10;
/// How much is copied by one call.
const CHUNK: u64 = 1 << 30;

/// Whether the bytes of files are shared with the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// A copy (sharing blocks where the filesystem can): the source goes on being written.
    Copied,
    /// A second link to the same file: the source never changes.
    Linked,
}

/// Copies the tree at `from` to `to`, which must not exist; also what the agent has shut.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    closed::opened(|| copy_what_is_open(from, to), || crate::trash::remove(to))
}

fn copy_what_is_open(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    let (source, target) = (TreeRoot::open(from)?, TreeRoot::open(to)?);
    let mut directories = vec![RelPath::root()];
    let mut next = 0;
    while next < directories.len() {
        let directory = directories[next].clone();
        next += 1;
        for (name, _) in source.list(&directory).map_err(|error| named(&directory, error))? {
            let path = directory.join(&name).map_err(io::Error::other)?;
            let made = entry(&source, &path, &target, Bytes::Copied);
            if made.map_err(|error| named(&path, error))? == FileType::Directory {
                directories.push(path);
            }
        }
    }
    // Deepest first: a directory may lose the bits that working in it needs.
    for directory in directories.iter().rev() {
        finish_directory(&source, directory, &target).map_err(|error| named(directory, error))?;
    }
    Ok(())
}

fn named(path: &RelPath, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{path}`: {error}"))
}

/// Makes one entry of `source` in `target`; a directory is made empty, see [`finish_directory`].
pub(crate) fn entry(
    source: &TreeRoot,
    path: &RelPath,
    target: &TreeRoot,
    bytes: Bytes,
) -> io::Result<FileType> {
    let stat = source.stat(path)?.ok_or(Errno::NOENT)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let parent = target.open_dir(&path.parent().unwrap_or_else(RelPath::root))?;
    let name = Path::new(OsStr::from_bytes(path.file_name().unwrap_or_default()));
    if kind == FileType::Directory {
        rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
        return Ok(kind);
    }
    if bytes == Bytes::Linked && link(source, path, &parent, name) {
        return Ok(kind);
    }
    match kind {
        FileType::RegularFile => file(source, path, &parent, name)?,
        FileType::Symlink => {
            let points_to = source.read_link(path)?;
            rustix::fs::symlinkat(points_to.as_path(), &parent, name)?;
            finish_by_name(&parent, name, &stat)?;
        }
        _ => {
            // A whiteout is a character device 0:0, which anybody may make.
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::mknodat(&parent, name, kind, mode, stat.st_rdev)?;
            finish_by_name(&parent, name, &stat)?;
        }
    }
    Ok(kind)
}

/// Not everything can be linked (files of others, a full link count): a copy does as well.
fn link(source: &TreeRoot, path: &RelPath, parent: &OwnedFd, name: &Path) -> bool {
    let from = source.open_dir(&path.parent().unwrap_or_else(RelPath::root));
    from.is_ok_and(|from| rustix::fs::linkat(&from, name, parent, name, AtFlags::empty()).is_ok())
}

fn file(source: &TreeRoot, path: &RelPath, parent: &OwnedFd, name: &Path) -> io::Result<()> {
    let (from, stat) = source.open_file(path)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let to = File::from(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
    if rustix::fs::ioctl_ficlone(&to, &from).is_err() {
        copy_bytes(&from, &to, stat.st_size as u64)?;
    }
    copy_attributes(&from, &to)?;
    finish(&to, &stat)
}

/// Copies what has data; holes stay holes, or a sparse file would fill the disk.
fn copy_bytes(from: &File, to: &File, size: u64) -> io::Result<()> {
    to.set_len(size)?;
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(data))?;
        copy_range(from, to, data, end)?;
        at = end;
    }
    Ok(())
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let (mut reading, mut writing) = (start, start);
    while reading < end {
        let want = usize::try_from((end - reading).min(CHUNK)).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut reading), to, Some(&mut writing), want) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            // Filesystems that cannot: by hand.
            Err(_) => {
                let mut buffer = vec![0; 256 << 10];
                let want = buffer.len().min(want);
                let read = from.read_at(&mut buffer[..want], reading)?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                to.write_all_at(&buffer[..read], writing)?;
                reading += read as u64;
                writing += read as u64;
            }
        }
    }
    Ok(())
}

/// Gives a directory its attributes, owner, mode and times, once its entries are there.
pub(crate) fn finish_directory(
    source: &TreeRoot,
    path: &RelPath,
    target: &TreeRoot,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let (from, to) = (source.open_beneath(path, flags)?, target.open_beneath(path, flags)?);
    copy_attributes(&from, &to)?;
    let stat = rustix::fs::fstat(&from)?;
    finish(&to, &stat)
}

fn copy_attributes(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let mut names = vec![0; LARGEST_ATTRIBUTE];
    let length = match rustix::fs::flistxattr(&from, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if !ATTRIBUTES.iter().any(|family| name.starts_with(family)) {
            continue;
        }
        let mut value = vec![0; LARGEST_ATTRIBUTE];
        let length = match rustix::fs::fgetxattr(&from, name, &mut value[..]) {
            Err(Errno::NODATA) => continue,
            other => other?,
        };
        rustix::fs::fsetxattr(&to, name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}

/// Owner (as root only), then mode, which a change of owner may have cut, then times.
fn finish(to: impl AsFd, stat: &Stat) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::fchown(&to, Some(uid), Some(gid))?;
    }
    rustix::fs::fchmod(&to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    Ok(rustix::fs::futimens(&to, &times(stat))?)
}

fn finish_by_name(parent: &OwnedFd, name: &Path, stat: &Stat) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(rustix::fs::utimensat(parent, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as i64),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

    #[test]
    fn a_copy_means_to_the_overlay_what_the_original_meant() {
        let base = tempfile::tempdir().unwrap();
        let (from, to) = (base.path().join("from"), base.path().join("to"));
        std::fs::create_dir_all(from.join("shut/inner")).unwrap();
        std::fs::write(from.join("shut/inner/file"), b"honey").unwrap();
        std::fs::write(from.join("tool"), b"#!/bin/sh\n").unwrap();
        symlink("/etc/passwd", from.join("link")).unwrap();
        let whiteout = from.join("gone");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &whiteout,
            FileType::CharacterDevice,
            Mode::empty(),
            0,
        )
        .unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            from.join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let directory = File::open(from.join("shut")).unwrap();
        let marked =
            rustix::fs::fsetxattr(&directory, "user.overlay.opaque", b"y", XattrFlags::empty());
        std::fs::set_permissions(from.join("tool"), PermissionsExt::from_mode(0o4751)).unwrap();
        std::fs::set_permissions(from.join("shut"), PermissionsExt::from_mode(0o555)).unwrap();
        let sparse = File::create(from.join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (1 << 30) - 3).unwrap();

        copy_tree(&from, &to).unwrap();

        assert_eq!(std::fs::read(to.join("shut/inner/file")).unwrap(), b"honey");
        assert_eq!(std::fs::metadata(to.join("tool")).unwrap().mode() & 0o7777, 0o4751);
        assert_eq!(std::fs::metadata(to.join("shut")).unwrap().mode() & 0o7777, 0o555);
        assert_eq!(std::fs::read_link(to.join("link")).unwrap(), Path::new("/etc/passwd"));
        let device = std::fs::symlink_metadata(to.join("gone")).unwrap();
        assert!(device.file_type().is_char_device() && device.rdev() == 0);
        assert!(std::fs::symlink_metadata(to.join("pipe")).unwrap().file_type().is_fifo());
        let copied = std::fs::metadata(to.join("sparse")).unwrap();
        assert_eq!(copied.len(), 1 << 30);
        assert!(copied.blocks() < 1000, "holes were filled: {} blocks", copied.blocks());
        if marked.is_ok() {
            let mut value = [0; 8];
            let directory = File::open(to.join("shut")).unwrap();
            let length =
                rustix::fs::fgetxattr(&directory, "user.overlay.opaque", &mut value[..]).unwrap();
            assert_eq!(&value[..length], b"y");
        }
        std::fs::set_permissions(from.join("shut"), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(to.join("shut"), PermissionsExt::from_mode(0o755)).unwrap();
    }
}
