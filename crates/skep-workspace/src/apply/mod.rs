//! Apply: takes approved changes over into the project, all or nothing, and can undo them.
//!
//! # The order of things
//!
//! 1. [`stage`] verifies what stands in the project, writes every new entry into a *staging
//!    directory* beside the project (named after the approval, mode 0700), syncs it, and writes the
//!    *journal*. Nothing visible has changed; a crash leaves only what [`recover`] removes.
//! 2. The caller records the commit point in the store.
//! 3. [`Staged::publish`] moves entries between staging and project with `renameat2`, one atomic
//!    step per path, and looks at what came out of each. Then it syncs, and records the outcome.
//! 4. What came out is kept as the backup from which [`undo_targets`] makes the reverse request.
//!
//! # How a half-done publish is recognised
//!
//! No progress is written down. Every step moves an entry into or out of a numbered *slot* of the
//! staging directory, and only we write there: a slot that still holds the inode that was staged
//! (or, for a deletion, is still empty) says that its step is not done. So a step can be repeated
//! after any crash, and recovery of a recovery is the same code again.
//!
//! # What the user may see
//!
//! - A replaced file is a new inode. Hard links that the user had to the old one keep the old bytes.
//!   A change of permission bits is also made this way (by a copy), so that it can be undone and
//!   never reaches a file through another of its names.
//! - A program that holds the old file open goes on writing into the backup; such a late write is
//!   reported, and kept.
//! - New files belong to the owner of what they replace, else of their directory. Set-uid and set-gid
//!   bits of files are dropped, and reported. No extended attribute comes from the sandbox.
//!
//! The caller holds the project's lock: two applies, or an apply and a recovery, of one project
//! never run at the same time.

mod attributes;
mod backups;
mod copy;
mod journal;
mod plan;
mod publish;
mod recover;
mod resolve;
mod stage;
mod staging;
mod step;
#[cfg(test)]
mod tests;
mod undo;
mod verify;

#[doc(hidden)]
pub use journal::steps_of;
pub use publish::Staged;
pub use recover::recover;
pub use resolve::{kept_backups, left_behind, resolve};
pub use stage::stage;
pub use undo::{discard, undo_targets};

use skep_types::{AppliedPath, ApprovalId, EntryState, RelPath};
use std::io;
use std::path::{Path, PathBuf};

/// Where the bytes of a new file come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// From nowhere: for deletions, links and directories; for a file whose bytes stay the same
    /// (another mode) they are taken from the project.
    None,
    /// These bytes.
    Bytes(Vec<u8>),
    /// A file in another tree (an upper, a layer, a capture).
    File {
        /// The tree.
        root: PathBuf,
        /// The file in it.
        path: RelPath,
    },
    /// A backup of ours, as [`undo_targets`] gives it: its owner, its attributes and all its
    /// permission bits were the user's, and are put back too.
    Backup {
        /// The directory of backups.
        root: PathBuf,
        /// The backup in it.
        path: RelPath,
    },
}

/// One path to change. A rename is two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where.
    pub path: RelPath,
    /// What must stand there now.
    pub before: EntryState,
    /// What shall stand there.
    pub after: EntryState,
    /// Where the bytes come from.
    pub source: Source,
    /// What it was renamed from, which the project still has: its owner and attributes come along.
    pub like: Option<RelPath>,
}

/// Everything an apply needs.
pub struct ApplyRequest<'a> {
    /// Names the staging directory.
    pub id: &'a ApprovalId,
    /// The project.
    pub project: &'a Path,
    /// Device and inode of the project as reviewed.
    pub root_identity: (u64, u64),
    /// Where the journal and the backups are kept: exists, mode 0700, this approval's alone.
    pub journal_dir: &'a Path,
    /// What to change.
    pub targets: Vec<Target>,
    /// Kept in the journal for the caller, and given back by recovery.
    pub note: serde_json::Value,
    /// Told how far it is.
    pub progress: &'a mut dyn FnMut(Progress),
}

/// How far an apply is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is going on.
    pub phase: Phase,
    /// Paths done in this phase.
    pub done: u64,
    /// Paths in this phase.
    pub total: u64,
}

/// The phases of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Looking at what stands in the project.
    Verify,
    /// Writing new entries beside the project.
    Stage,
    /// Moving them in.
    Publish,
}

/// What an apply did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Every changed path as it was and as it is (`exec` is for the caller to fill).
    pub paths: Vec<AppliedPath>,
    /// Files whose set-uid or set-gid bit was dropped.
    pub stripped: Vec<RelPath>,
    /// Files that a program wrote to after they were taken out: the write is in the backup only.
    pub late_writes: Vec<RelPath>,
    /// Where the backups are.
    pub backups: PathBuf,
}

/// What [`recover`] found and did.
#[derive(Debug, Clone, PartialEq)]
pub enum Recovered {
    /// There is no journal: nothing was ever staged, or it was cleaned up before.
    Nothing,
    /// It was not committed (or had been rolled back): the project is as before.
    Aborted {
        /// The note of the request, if it was written.
        note: Option<serde_json::Value>,
    },
    /// It was committed, and is now complete.
    Applied {
        /// The note of the request.
        note: serde_json::Value,
        /// What was done.
        applied: Applied,
    },
    /// Somebody changed paths in the meantime; nothing more was done. [`resolve`] finishes or
    /// reverts.
    NeedsAttention {
        /// The note of the request.
        note: serde_json::Value,
        /// Where, and where both versions are.
        paths: Vec<Attention>,
    },
}

/// A path at which recovery stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attention {
    /// Where in the project; the user's version is there.
    pub path: RelPath,
    /// What is in the way.
    pub reason: String,
    /// Where the approved version is kept, if it has one.
    pub approved: Option<PathBuf>,
}

/// What stood at a path before an approval that was reverted around the user's own version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBackup {
    /// Where in the project.
    pub path: RelPath,
    /// Where it is kept.
    pub at: PathBuf,
}

/// How to go on from [`Recovered::NeedsAttention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Put the approved versions in place; the user's versions become the backups.
    Finish,
    /// Take out what was put in; what the user changed stays.
    Revert,
}

/// A path that is not as the approval expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathConflict {
    /// Where.
    pub path: RelPath,
    /// What is in the way.
    pub reason: String,
}

/// Why an apply did not happen. Unless the variant says otherwise the project is as before.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// An operation failed on a path of the project.
    #[error("cannot {operation} `{path}`")]
    Path {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: RelPath,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An operation failed on one of our own files.
    #[error("cannot {operation} `{}`", skep_types::ByteString::from(path.as_path()))]
    Own {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The project is not as it was when it was reviewed.
    #[error("the project is not as reviewed: {}", list_conflicts(.0))]
    Conflict(Vec<PathConflict>),
    /// The bytes to apply are not the ones that were reviewed.
    #[error("`{path}` has other bytes than were reviewed")]
    DigestMismatch {
        /// Where.
        path: RelPath,
    },
    /// The project's directory is another one than at review.
    #[error(
        "`{}` is no longer the directory that was reviewed",
        skep_types::ByteString::from(project.as_path())
    )]
    RootChanged {
        /// The project.
        project: PathBuf,
    },
    /// The request cannot be applied.
    #[error("cannot apply to `{path}`: {reason}")]
    Refused {
        /// Where.
        path: RelPath,
        /// Why.
        reason: String,
    },
    /// There is too little space.
    #[error("not enough space beside the project: {needed} bytes are needed, {available} are free")]
    NoSpace {
        /// Bytes to write.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// A journal cannot be read. Nothing was changed.
    #[error("the journal `{}` cannot be used: {reason}", skep_types::ByteString::from(path.as_path()))]
    Journal {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Publishing neither ended nor could be taken back: the project is half-way (or complete, but
    /// not recorded so), the journal is kept, and [`recover`] goes on.
    #[error("{}", half_way(.first, .stuck))]
    HalfWay {
        /// What failed at first.
        first: Box<ApplyError>,
        /// Where taking back failed.
        stuck: Vec<PathConflict>,
    },
}

fn half_way(first: &ApplyError, stuck: &[PathConflict]) -> String {
    let first = skep_types::chain(first);
    if stuck.is_empty() {
        format!("everything is published, but that could not be recorded: {first}")
    } else {
        let stuck = list_conflicts(stuck);
        format!("publishing stopped half-way ({first}) and could not be taken back: {stuck}")
    }
}

fn list_conflicts(conflicts: &[PathConflict]) -> String {
    let all: Vec<_> = conflicts
        .iter()
        .map(|conflict| format!("`{}` {}", conflict.path, conflict.reason))
        .collect();
    all.join("; ")
}
