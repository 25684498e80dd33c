//! The marks by which an overlay says "deleted" and "this directory hides what is below".
//!
//! Only the family that the sandbox's own mount used is read. Inside a mount that uses `trusted.*`
//! the sandboxed code can store raw `user.overlay.*` attributes; a reader that honoured both would
//! let it forge deletions.

use crate::tree::TreeRoot;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use skep_types::{RelPath, WorkspaceDriver};
use std::io;

/// Prefix of fuse-overlayfs's (and the OCI image format's) whiteouts by name.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Its mark of an opaque directory.
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";

/// Which marks count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Markers(WorkspaceDriver);

/// What a directory of one level says of what lies below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opacity {
    /// Levels below show through.
    Merged,
    /// They do not.
    Opaque,
    /// They do, and regular files here may be whiteouts by attribute (overlayfs since Linux 6.7).
    MarkedFiles,
}

/// A name in a directory of one level, with its mark read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Marked {
    /// Not an entry: a mark of the overlay's own.
    Internal,
    /// The name is deleted.
    Whiteout(Vec<u8>),
    /// An entry.
    Entry(Vec<u8>),
}

impl Markers {
    pub(crate) fn of(driver: WorkspaceDriver) -> Self {
        Self(driver)
    }

    /// How the directory at `path` of this level treats what is below.
    pub(crate) fn opacity(self, level: &TreeRoot, path: &RelPath) -> io::Result<Opacity> {
        let names: &[&str] = match self.0 {
            WorkspaceDriver::OverlayUserns => &["user.overlay.opaque"],
            WorkspaceDriver::OverlayRoot => &["trusted.overlay.opaque"],
            WorkspaceDriver::FuseOverlayfs => &["user.fuseoverlayfs.opaque"],
            WorkspaceDriver::Copy => return Ok(Opacity::Opaque),
        };
        if self.0 == WorkspaceDriver::FuseOverlayfs {
            let mark = path.join(OPAQUE_NAME).map_err(io::Error::other)?;
            if level.stat(&mark)?.is_some_and(|stat| is_mark_by_name(&stat)) {
                return Ok(Opacity::Opaque);
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let fd = level.open_beneath(path, flags)?;
        for name in names {
            match attribute(&fd, name)?.as_deref() {
                Some(b"y") => return Ok(Opacity::Opaque),
                Some(b"x") if self.0 != WorkspaceDriver::FuseOverlayfs => {
                    return Ok(Opacity::MarkedFiles);
                }
                _ => {}
            }
        }
        Ok(Opacity::Merged)
    }

    /// What the name `name` in `parent` of this level means.
    pub(crate) fn read(
        self,
        level: &TreeRoot,
        parent: &RelPath,
        opacity: Opacity,
        name: Vec<u8>,
        kind: FileType,
    ) -> io::Result<Marked> {
        if self.0 == WorkspaceDriver::FuseOverlayfs && name.starts_with(WHITEOUT_PREFIX) {
            let path = parent.join(&name).map_err(io::Error::other)?;
            if level.stat(&path)?.is_some_and(|stat| is_mark_by_name(&stat)) {
                let rest = &name[WHITEOUT_PREFIX.len()..];
                let internal =
                    rest.is_empty() || rest == b".opq" || rest.starts_with(WHITEOUT_PREFIX);
                return Ok(if internal {
                    Marked::Internal
                } else {
                    Marked::Whiteout(rest.to_vec())
                });
            }
        }
        let path = parent.join(&name).map_err(io::Error::other)?;
        let whiteout = match (self.0, kind) {
            (WorkspaceDriver::Copy, _) => false,
            (_, FileType::CharacterDevice | FileType::Unknown) => {
                level.stat(&path)?.is_some_and(|stat| is_whiteout_device(&stat))
            }
            (_, FileType::RegularFile) if opacity == Opacity::MarkedFiles => {
                self.is_marked_file(level, &path)?
            }
            _ => false,
        };
        Ok(if whiteout { Marked::Whiteout(name) } else { Marked::Entry(name) })
    }

    fn is_marked_file(self, level: &TreeRoot, path: &RelPath) -> io::Result<bool> {
        let name = match self.0 {
            WorkspaceDriver::OverlayUserns => "user.overlay.whiteout",
            WorkspaceDriver::OverlayRoot => "trusted.overlay.whiteout",
            WorkspaceDriver::FuseOverlayfs | WorkspaceDriver::Copy => return Ok(false),
        };
        let (file, stat) = level.open_file(path)?;
        Ok(stat.st_size == 0 && attribute(&file, name)?.is_some())
    }
}

fn is_whiteout_device(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// fuse-overlayfs marks by name with empty files (or whiteout devices). It lets the sandbox make
/// other entries with such names (by `mkdir`, `rename`, `symlink`); those are entries, not marks, or
/// their content would be out of sight.
fn is_mark_by_name(stat: &Stat) -> bool {
    let empty = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size == 0;
    empty || is_whiteout_device(stat)
}

/// The first bytes of an extended attribute; marks are one letter, an origin is longer.
fn attribute(fd: impl std::os::fd::AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = [0u8; 256];
    match rustix::fs::fgetxattr(fd, name, &mut value) {
        Ok(length) => Ok(Some(value[..length].to_vec())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(error) => Err(error.into()),
    }
}
