//! What can go wrong while looking at a workspace, and while choosing from it.

use skep_types::{Conflict, HunkId, RelPath};
use std::io;
use std::path::PathBuf;

/// Why a change set could not be derived. A workspace that cannot be read is never "unchanged".
#[derive(Debug, thiserror::Error)]
pub enum DeriveError {
    /// One of the directories of the workspace is not there.
    #[error("cannot open the {what} `{}`", path.display())]
    Open {
        /// Project, upper or layer.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The directory at the project's path is not the one the sandbox was created on.
    #[error("`{}` is not the directory the sandbox was created on (it was moved or replaced)", path.display())]
    ProjectReplaced {
        /// The project.
        path: PathBuf,
    },
    /// Its permission bits keep us out.
    #[error("cannot read `{path}` in the {side}: its permission bits forbid it")]
    Unreadable {
        /// Project, upper or layer.
        side: &'static str,
        /// Where.
        path: RelPath,
    },
    /// Any other failure to read.
    #[error("cannot read `{path}` in the {side}")]
    Read {
        /// Project, upper or layer.
        side: &'static str,
        /// Where.
        path: RelPath,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file changed while it was read twice.
    #[error("`{path}` changed while it was read")]
    Moved {
        /// Where.
        path: RelPath,
    },
    /// What is remembered of the base cannot be read or written.
    #[error("cannot {operation} `{}`", path.display())]
    Memory {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A line of a memory file, not the last, is damaged.
    #[error("line {line} of `{}` is damaged", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
}

impl DeriveError {
    /// Whether the path lies on another filesystem that is mounted in the project: the view does
    /// not cross it, and neither do we.
    pub(crate) fn is_mounted_over(&self) -> bool {
        matches!(self, Self::Read { side: "project", source, .. } if is_mounted_over(source))
    }

    /// Names the side and the path of a failed read.
    pub(crate) fn read(side: &'static str, path: &RelPath, source: io::Error) -> Self {
        let path = path.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Unreadable { side, path },
            _ => Self::Read { side, path, source },
        }
    }
}

/// Why a selection cannot be planned. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The workspace could not be read.
    #[error(transparent)]
    Derive(#[from] DeriveError),
    /// The project moved on these paths in a way that does not merge.
    #[error("{} selected path(s) conflict with the project", .0.len())]
    Conflicts(Vec<Conflict>),
    /// A path or glob of the selection has no change.
    #[error("`{0}` matches no change")]
    NothingMatches(String),
    /// Everything it matches is ignored by the project's rules.
    #[error("`{0}` matches only ignored paths; name them one by one, or include ignored paths")]
    OnlyIgnored(String),
    /// An empty path.
    #[error("an empty path names nothing; `.` is the whole project")]
    EmptyPath,
    /// A glob that cannot be read.
    #[error("`{0}` is not a valid glob")]
    BadGlob(String),
    /// No such hunk.
    #[error("no hunk `{0}` in this change set")]
    UnknownHunk(HunkId),
    /// A device, FIFO or socket was named.
    #[error("`{0}` is a special file; special files are shown, never applied")]
    Special(RelPath),
    /// A selected path stands on another change that cannot come along.
    #[error("`{path}` cannot be taken without `{needs}`: {reason}")]
    Depends {
        /// What was selected.
        path: RelPath,
        /// What it stands on.
        needs: RelPath,
        /// Why that cannot come along.
        reason: String,
    },
    /// Hunks of a file were named whose base is not known, or was not kept.
    #[error("the earlier content of `{path}` is not known: it cannot be rejected in parts")]
    UnknownBase {
        /// Where.
        path: RelPath,
    },
    /// A hunk no longer fits: the sandbox or the project moved between derive and plan.
    #[error("`{path}` moved since it was reviewed")]
    Stale {
        /// Where.
        path: RelPath,
    },
}

/// What resolving with `RESOLVE_NO_XDEV` says at a mount point.
pub(crate) fn is_mounted_over(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::CrossesDevices
}
