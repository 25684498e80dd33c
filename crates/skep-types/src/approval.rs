//! Approvals: what was taken over, by whom, and what undo needs to know.

use crate::{
    ApprovalId, ChangeSetDigest, EntryState, ExecId, RelPath, SandboxId, SandboxName, Selection,
};
use serde::{Deserialize, Serialize};

/// Where an approval is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// Being staged; nothing of the project was touched.
    Applying,
    /// Past the commit point; recovery rolls it forward.
    Committed,
    /// In the project.
    Applied,
    /// Given up before the commit point.
    Aborted,
    /// Reversed by a later undo.
    Undone,
    /// The user edited the project during an outage and neither side can be reached.
    NeedsAttention,
}

/// What kind of step it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ApprovalKind {
    /// A selection was taken over.
    Approve,
    /// An earlier approval was reversed.
    Undo {
        /// Which.
        of: ApprovalId,
    },
}

/// One path of an approval, before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedPath {
    /// Where.
    pub path: RelPath,
    /// What stood in the project before.
    pub before: EntryState,
    /// What was put there.
    pub after: EntryState,
    /// Which exec wrote it last, when known.
    pub exec: Option<ExecId>,
}

/// One approval as remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// From which sandbox.
    pub sandbox: SandboxId,
    /// Its name then.
    pub sandbox_name: SandboxName,
    /// Into which project.
    pub project: crate::ByteString,
    /// Approve, or undo of which.
    pub kind: ApprovalKind,
    /// Where it is.
    pub state: ApprovalState,
    /// The change set that was reviewed.
    pub digest: ChangeSetDigest,
    /// What was selected of it.
    pub selection: Selection,
    /// What was applied.
    pub paths: Vec<AppliedPath>,
    /// The commit made of it.
    pub commit: Option<String>,
    /// Who approved (user name on this host).
    pub approver: String,
    /// When (RFC 3339).
    pub at: String,
}
