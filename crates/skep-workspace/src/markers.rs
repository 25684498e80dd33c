//! The marks by which an overlay says "deleted" and "this directory hides what is below".
//!
//! Only the family that the sandbox's own mount used is read. Inside a mount that uses `trusted.*`
//! the sandboxed code can store raw `user.overlay.*` attributes; a reader that honoured both would
//! let it forge deletions.

use crate::held::Place;
use crate::tree::Meta;
use rustix::fs::FileType;
use rustix::io::Errno;
use skep_types::WorkspaceDriver;
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

    /// How an open directory of one level treats what is below.
    pub(crate) fn opacity(self, directory: &Place) -> io::Result<Opacity> {
        let name = match self.0 {
            WorkspaceDriver::OverlayUserns => "user.overlay.opaque",
            WorkspaceDriver::OverlayRoot => "trusted.overlay.opaque",
            WorkspaceDriver::FuseOverlayfs => "user.fuseoverlayfs.opaque",
            WorkspaceDriver::Copy => return Ok(Opacity::Opaque),
        };
        if self.are_names()
            && directory.meta(OPAQUE_NAME)?.is_some_and(|meta| is_mark_by_name(&meta))
        {
            return Ok(Opacity::Opaque);
        }
        Ok(match attribute(directory.fd()?, name)?.as_deref() {
            Some(b"y") => Opacity::Opaque,
            Some(b"x") if !self.are_names() => Opacity::MarkedFiles,
            _ => Opacity::Merged,
        })
    }

    /// Whether a mark may stand beside the entry that it is about.
    pub(crate) fn are_names(self) -> bool {
        self.0 == WorkspaceDriver::FuseOverlayfs
    }

    /// What a name in an open directory of one level means.
    pub(crate) fn read(
        self,
        directory: &Place,
        opacity: Opacity,
        name: Vec<u8>,
        kind: FileType,
    ) -> io::Result<Marked> {
        if self.are_names()
            && name.starts_with(WHITEOUT_PREFIX)
            && directory.meta(&name)?.is_some_and(|meta| is_mark_by_name(&meta))
        {
            let rest = &name[WHITEOUT_PREFIX.len()..];
            let internal = rest.is_empty() || rest == b".opq" || rest.starts_with(WHITEOUT_PREFIX);
            return Ok(match internal {
                true => Marked::Internal,
                false => Marked::Whiteout(rest.to_vec()),
            });
        }
        let whiteout = match (self.0, kind) {
            (WorkspaceDriver::Copy, _) => false,
            (_, FileType::CharacterDevice | FileType::Unknown) => {
                directory.meta(&name)?.is_some_and(|meta| is_whiteout_device(&meta))
            }
            (_, FileType::RegularFile) if opacity == Opacity::MarkedFiles => {
                self.is_marked_file(directory, &name)?
            }
            _ => false,
        };
        Ok(if whiteout { Marked::Whiteout(name) } else { Marked::Entry(name) })
    }

    fn is_marked_file(self, directory: &Place, name: &[u8]) -> io::Result<bool> {
        let mark = match self.0 {
            WorkspaceDriver::OverlayUserns => "user.overlay.whiteout",
            WorkspaceDriver::OverlayRoot => "trusted.overlay.whiteout",
            WorkspaceDriver::FuseOverlayfs | WorkspaceDriver::Copy => return Ok(false),
        };
        let (file, meta) = directory.open_file(name)?;
        Ok(meta.size == 0 && attribute(&file, mark)?.is_some())
    }
}

/// Whether an entry of a level says that nothing is there.
pub(crate) fn is_whiteout_device(meta: &Meta) -> bool {
    meta.kind() == FileType::CharacterDevice && meta.stands_for == 0
}

/// fuse-overlayfs marks by name with empty files (or whiteout devices). It lets the sandbox make
/// other entries with such names (by `mkdir`, `rename`, `symlink`); those are entries, not marks, or
/// their content would be out of sight.
fn is_mark_by_name(meta: &Meta) -> bool {
    let empty = meta.kind() == FileType::RegularFile && meta.size == 0;
    empty || is_whiteout_device(meta)
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
