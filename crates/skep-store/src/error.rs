//! What can go wrong in a store, whichever database is behind it.

use crate::ScopeConflict;
use skep_types::{ApprovalId, ApprovalState, ByteString, Code, IllegalTransition, SandboxId};
use std::error::Error;
use std::io;
use std::path::PathBuf;

/// Why a store refused or failed. After any of these the change that was asked for did not happen,
/// except where the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such row.
    #[error("there is no {what} `{name}`")]
    NotFound {
        /// `sandbox`, `exec`, `approval`, …
        what: &'static str,
        /// What was asked for, as it was asked.
        name: String,
    },
    /// The name or id is taken.
    #[error("{what} `{name}` already exists")]
    AlreadyExists {
        /// `sandbox`, `exec`, `template`, …
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A prefix of an id names more than one row.
    #[error("`{prefix}` is the start of more than one {what} id: {}", candidates.join(", "))]
    Ambiguous {
        /// `sandbox`, `exec` or `approval`.
        what: &'static str,
        /// What was asked for.
        prefix: String,
        /// Some of those it could be.
        candidates: Vec<String>,
    },
    /// Somebody else changed the row since it was read.
    #[error("sandbox `{id}` is at version {found}, not {expected}: it was changed meanwhile")]
    StaleVersion {
        /// Which.
        id: SandboxId,
        /// The version the caller had read.
        expected: u64,
        /// The version in the store.
        found: u64,
    },
    /// The caller's lease was taken over by another node.
    #[error("the lease of sandbox `{id}` is at epoch {found}, not {expected}: it was taken over")]
    StaleLease {
        /// Which.
        id: SandboxId,
        /// The epoch the caller holds.
        expected: u64,
        /// The epoch in the store.
        found: u64,
    },
    /// The sandbox lies on another node of a shared database.
    #[error("sandbox `{name}` is on node `{node}`")]
    OtherNode {
        /// Which.
        name: String,
        /// Where it is.
        node: String,
    },
    /// Another holder acts for this node, and its lease has not run out.
    #[error("node `{node}` is held by another state directory for {seconds} more second(s)")]
    NodeHeld {
        /// The node.
        node: String,
        /// Until the lease runs out, unless it is renewed.
        seconds: u64,
    },
    /// The node was taken over: nothing more is written through this handle.
    #[error("node `{node}` was taken over: it is at epoch {found}, not {expected}")]
    Fenced {
        /// The node.
        node: String,
        /// The epoch the handle wrote under.
        expected: u64,
        /// The epoch in the store.
        found: u64,
    },
    /// The state table does not have this move.
    #[error("cannot change sandbox `{id}`")]
    IllegalState {
        /// Which.
        id: SandboxId,
        /// The move.
        #[source]
        source: IllegalTransition,
    },
    /// The table of approval states does not have this move.
    #[error("approval `{id}` that is {from:?} cannot become {to:?}")]
    IllegalApprovalMove {
        /// Which.
        id: ApprovalId,
        /// The state it is in.
        from: ApprovalState,
        /// The state that was asked for.
        to: ApprovalState,
    },
    /// Another sandbox holds an exclusive lock on an overlapping scope.
    #[error("the scope in `{project}` is locked by {}", list_conflicts(conflicts))]
    ScopeLocked {
        /// In which project.
        project: ByteString,
        /// By whom.
        conflicts: Vec<ScopeConflict>,
    },
    /// An idempotency key was used with another request.
    #[error("idempotency key `{key}` was already used with a different request")]
    KeyReused {
        /// The key.
        key: String,
    },
    /// A time that is not RFC 3339 was handed in.
    #[error("`{text}` is not a time in RFC 3339")]
    BadTime {
        /// The text.
        text: String,
    },
    /// The database is not readable as one. Nothing was repaired or deleted.
    #[error("the database `{}` is damaged: {detail}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// One row does not hold what was written to it. Nothing was repaired or deleted.
    #[error("the row `{id}` of table `{table}` is damaged: {detail}")]
    Damaged {
        /// The table.
        table: &'static str,
        /// The row.
        id: String,
        /// What was found.
        detail: String,
    },
    /// Somebody found a part of it damaged. Nothing was repaired or deleted, and nothing is changed.
    #[error("cannot {operation}: the database `{}` is damaged, and is not changed", path.display())]
    InDoubt {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The log with the newest commits is not where it was. Nothing was repaired or deleted.
    #[error(
        "the database `{}` is older than it was: its log `{}` is missing or cannot be read", path.display(), log.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its log.
        log: PathBuf,
    },
    /// There was a database, and it is gone. None is made in its place.
    #[error("the database `{}` is gone, and `{}` beside it says that there was one", path.display(), beside.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// What is left of it.
        beside: PathBuf,
    },
    /// Written by a newer skep.
    #[error("the database `{}` has schema {found}; this skep knows up to {known}", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The file was removed or replaced while it was open; the old handle is not trusted.
    #[error("the database `{}` was removed or replaced while in use", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// The mode of the file shuts its owner out, whatever the kernel lets this process do.
    #[error("the database `{}` is shut: its mode is {mode:03o}", path.display())]
    Shut {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The database lives where file locks cannot be trusted.
    #[error("the database `{}` is on {filesystem}; a local filesystem is needed", path.display())]
    NotLocal {
        /// The file.
        path: PathBuf,
        /// The kind of filesystem.
        filesystem: &'static str,
    },
    /// A change was asked of a store that was opened for reading.
    #[error("cannot {operation}: the database `{}` is open for reading only", path.display())]
    ReadOnly {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Somebody else held the lock for too long.
    #[error("cannot {operation}: the database `{}` is locked by another process", path.display())]
    Busy {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// No space, quota or inodes for the database.
    #[error("cannot {operation}: no space left for the database `{}`", path.display())]
    Full {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// An earlier write or sync failed; nothing more is written through this handle.
    #[error(
        "cannot {operation}: an earlier write to `{}` failed, and the store takes no more changes \
         until skep is started again", path.display()
    )]
    Stopped {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The address of a database is none.
    #[error("the address of the database cannot be used: {reason}")]
    BadAddress {
        /// Why.
        reason: String,
    },
    /// The database cannot be reached, or stopped answering; the change did not happen.
    #[error("cannot {operation}: the database `{}` does not answer", path.display())]
    Unreachable {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The database went away at the moment of the commit, and could not be asked since: whether
    /// the change happened is not known. Nothing more is written through this handle.
    #[error("cannot tell whether to {operation} succeeded: the database `{}` went away", path.display())]
    Uncertain {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// A file operation beside the database failed.
    #[error("cannot {operation} `{}`", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A value could not be written as JSON.
    #[error("cannot encode the {what} `{id}`")]
    Encode {
        /// Which kind of value.
        what: &'static str,
        /// Which.
        id: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Anything else the database said.
    #[error("cannot {operation} in the database `{}`", path.display())]
    Backend {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl StoreError {
    /// The stable code for the caller.
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::AlreadyExists { .. } => Code::AlreadyExists,
            Self::Ambiguous { .. } => Code::Usage,
            Self::KeyReused { .. } => Code::KeyReused,
            Self::StaleVersion { .. } => Code::StaleVersion,
            Self::StaleLease { .. } | Self::ScopeLocked { .. } | Self::Fenced { .. } => {
                Code::Conflict
            }
            Self::IllegalState { .. } | Self::IllegalApprovalMove { .. } => Code::IllegalState,
            Self::NotLocal { .. } | Self::OtherNode { .. } => Code::Refused,
            Self::BadAddress { .. } => Code::Usage,
            Self::Busy { .. } | Self::NodeHeld { .. } | Self::Unreachable { .. } => Code::Busy,
            Self::Full { .. } => Code::NoSpace,
            Self::BadTime { .. } | Self::Encode { .. } => Code::Internal,
            Self::Corrupt { .. }
            | Self::Damaged { .. }
            | Self::InDoubt { .. }
            | Self::Older { .. }
            | Self::Lost { .. }
            | Self::Shut { .. }
            | Self::NewerSchema { .. }
            | Self::Replaced { .. }
            | Self::ReadOnly { .. }
            | Self::Stopped { .. }
            | Self::Uncertain { .. }
            | Self::Io { .. }
            | Self::Backend { .. } => Code::Store,
        }
    }

    /// Whether a part of what is remembered cannot be read: the rest may be, and is not to be changed.
    pub fn is_doubt(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Damaged { .. } | Self::InDoubt { .. })
    }

    /// Whether it is not the database that was there, as far as can be told.
    pub(crate) fn is_another(&self) -> bool {
        matches!(self, Self::Older { .. } | Self::Lost { .. })
    }

    /// What the caller can do about it, where there is something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { what: "sandbox", .. } => Some("`skep ls --all` lists them"),
            Self::NotFound { what: "exec", .. } => Some("`skep ps [NAME]` lists them"),
            Self::NewerSchema { .. } => Some("use the newer skep that wrote it"),
            Self::Corrupt { .. } | Self::Damaged { .. } | Self::InDoubt { .. } => {
                Some("keep the state directory as it is; restore `skep.db` from a backup")
            }
            Self::Older { .. } => Some(
                "put the log back beside it; to go on with the older state, remove `skep.db-begun`",
            ),
            Self::Lost { .. } => Some(
                "put the database back, perhaps from a backup; to begin anew, remove what is left of it beside it",
            ),
            Self::Shut { .. } => Some("`chmod 600` opens it again"),
            Self::OtherNode { .. } => Some("use skep on that node"),
            Self::NodeHeld { .. } => Some("give each state directory a node name of its own"),
            Self::Fenced { .. } => Some("another server acts for this node now; stop this one"),
            Self::Unreachable { .. } => Some("start the database, then try again"),
            Self::Uncertain { .. } => Some("start skep again when the database answers"),
            Self::NotLocal { .. } => Some("set SKEP_HOME to a directory on a local disk"),
            Self::ReadOnly { .. } => {
                Some("make the state directory writable, or name another one with `--home DIR`")
            }
            Self::ScopeLocked { .. } => Some("wait for that sandbox, or delete it"),
            Self::StaleVersion { .. } => Some("read the sandbox again and repeat the change"),
            _ => None,
        }
    }
}

fn list_conflicts(conflicts: &[ScopeConflict]) -> String {
    let one = |conflict: &ScopeConflict| {
        let scope = if conflict.scope.is_root() { "/".into() } else { conflict.scope.to_string() };
        format!("sandbox `{}` (`{scope}`)", conflict.sandbox_name)
    };
    conflicts.iter().map(one).collect::<Vec<_>>().join(", ")
}
