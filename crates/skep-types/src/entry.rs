//! What stands at a path: the state of one entry, as change sets and journals record it.

use crate::{ByteString, ContentHash};
use serde::{Deserialize, Serialize};

/// What stands at a path. Times and owners are left out on purpose: they are not reviewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EntryState {
    /// Nothing.
    Absent,
    /// A regular file.
    File {
        /// Hash of its bytes.
        hash: ContentHash,
        /// Its size.
        size: u64,
        /// Permission bits (`0o7777`).
        mode: u32,
    },
    /// A symbolic link; never followed.
    Symlink {
        /// Where it points.
        target: ByteString,
    },
    /// A directory (its children are entries of their own).
    Dir {
        /// Permission bits (`0o7777`).
        mode: u32,
    },
    /// A device, FIFO or socket: reported, never opened or applied.
    Special {
        /// Which.
        what: SpecialKind,
    },
}

/// What a special file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpecialKind {
    /// A named pipe.
    Fifo,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A tree nested so deeply that its paths are longer than system calls take.
    TooDeep,
}

impl EntryState {
    /// Type and permission bits in octal, as git writes them: `100644`, `120000`, `040755`.
    pub fn git_mode(&self) -> Option<String> {
        let (kind, permissions) = match self {
            Self::Absent => return None,
            Self::File { mode, .. } => (0o100_000, *mode),
            Self::Symlink { .. } => (0o120_000, 0),
            Self::Dir { mode } => (0o040_000, *mode),
            Self::Special { what: SpecialKind::Fifo } => (0o010_000, 0),
            Self::Special { what: SpecialKind::Socket } => (0o140_000, 0),
            Self::Special { what: SpecialKind::CharDevice } => (0o020_000, 0),
            Self::Special { what: SpecialKind::BlockDevice } => (0o060_000, 0),
            Self::Special { what: SpecialKind::TooDeep } => (0o040_000, 0),
        };
        Some(format!("{:06o}", kind | permissions))
    }

    /// Whether nothing stands there.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Permission bits, where the kind has them.
    pub fn mode(&self) -> Option<u32> {
        match self {
            Self::File { mode, .. } | Self::Dir { mode } => Some(*mode),
            Self::Absent | Self::Symlink { .. } | Self::Special { .. } => None,
        }
    }

    /// A word for people: `file`, `directory`, `symlink`, `fifo`, …, `nothing`.
    pub fn noun(&self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::File { .. } => "file",
            Self::Symlink { .. } => "symlink",
            Self::Dir { .. } => "directory",
            Self::Special { what: SpecialKind::Fifo } => "fifo",
            Self::Special { what: SpecialKind::Socket } => "socket",
            Self::Special { what: SpecialKind::CharDevice } => "character device",
            Self::Special { what: SpecialKind::BlockDevice } => "block device",
            Self::Special { what: SpecialKind::TooDeep } => "tree nested too deeply",
        }
    }
}
