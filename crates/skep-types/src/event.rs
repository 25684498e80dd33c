//! Events: one line for everything that happened.

use crate::{ExecId, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one with each event of a store.
    pub sequence: u64,
    /// When (RFC 3339).
    pub at: String,
    /// What: `sandbox.created`, `exec.ended`, `approval.applied`, …
    pub kind: String,
    /// To which sandbox.
    pub sandbox: Option<SandboxId>,
    /// To which exec.
    pub exec: Option<ExecId>,
    /// More.
    pub data: Value,
}
