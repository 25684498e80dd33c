//! Who may do what: the whole matrix, as data. A test compares it with the OpenAPI document, so
//! that an endpoint without a row, and a row without an endpoint, is a failure.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a caller may do. Viewer, operator and approver include each other in that order; an agent
/// is none of them: it works in the one sandbox it is bound to, and never approves or widens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Works in one sandbox.
    Agent,
    /// Looks.
    Viewer,
    /// Creates, runs, stops, deletes.
    Operator,
    /// Takes changes over into projects, and shows parts of the host to sandboxes.
    Approver,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Viewer, Self::Operator, Self::Approver];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Approver => "approver",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| {
            format!("`{text}` is not a role; one of: agent, viewer, operator, approver")
        })
    }
}

/// What an endpoint asks of its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: answered to anybody, and says next to nothing.
    Open,
    /// At least this role.
    Least(Role),
    /// At least this role, or an agent in its own sandbox.
    OrAgent(Role),
}

impl Needs {
    /// Whether a role suffices.
    pub(crate) fn allows(self, role: Role) -> bool {
        match self {
            Self::Open => true,
            Self::Least(least) => role >= least,
            Self::OrAgent(least) => role >= least || role == Role::Agent,
        }
    }
}

use Needs::{Least, Open, OrAgent};
use Role::{Approver, Operator, Viewer};

/// Method, path, and who may.
pub(crate) const MATRIX: &[(&str, &str, Needs)] = &[
    ("GET", "/health/live", Open),
    ("GET", "/health/ready", Open),
    ("GET", "/metrics", Least(Viewer)),
    ("GET", "/v1/openapi.json", Least(Viewer)),
    ("GET", "/v1/whoami", OrAgent(Viewer)),
    // Logging in is how one becomes somebody.
    ("POST", "/v1/session", Open),
    ("DELETE", "/v1/session", OrAgent(Viewer)),
    ("GET", "/v1/sandboxes", Least(Viewer)),
    ("POST", "/v1/sandboxes", Least(Operator)),
    ("GET", "/v1/newest", Least(Viewer)),
    ("GET", "/v1/sandboxes/{sandbox}", OrAgent(Viewer)),
    ("PATCH", "/v1/sandboxes/{sandbox}", Least(Operator)),
    ("DELETE", "/v1/sandboxes/{sandbox}", Least(Operator)),
    ("POST", "/v1/sandboxes/{sandbox}/start", Least(Operator)),
    ("POST", "/v1/sandboxes/{sandbox}/stop", Least(Operator)),
    ("POST", "/v1/sandboxes/{sandbox}/freeze", Least(Operator)),
    ("POST", "/v1/sandboxes/{sandbox}/thaw", Least(Operator)),
    ("GET", "/v1/sandboxes/{sandbox}/execs", OrAgent(Viewer)),
    ("POST", "/v1/sandboxes/{sandbox}/execs", OrAgent(Operator)),
    ("GET", "/v1/sandboxes/{sandbox}/attach", OrAgent(Operator)),
    ("GET", "/v1/execs/{exec}", OrAgent(Viewer)),
    ("POST", "/v1/execs/{exec}/signal", OrAgent(Operator)),
    ("POST", "/v1/execs/{exec}/kill", OrAgent(Operator)),
    ("POST", "/v1/execs/{exec}/stdin", OrAgent(Operator)),
    ("GET", "/v1/execs/{exec}/logs", OrAgent(Viewer)),
    ("GET", "/v1/execs/{exec}/stream", OrAgent(Viewer)),
    ("GET", "/v1/sandboxes/{sandbox}/changes", OrAgent(Viewer)),
    ("GET", "/v1/sandboxes/{sandbox}/changes/file", OrAgent(Viewer)),
    ("POST", "/v1/sandboxes/{sandbox}/approve", Least(Approver)),
    ("POST", "/v1/sandboxes/{sandbox}/reject", Least(Approver)),
    ("GET", "/v1/sandboxes/{sandbox}/conflicts", OrAgent(Viewer)),
    ("GET", "/v1/sandboxes/{sandbox}/sides", OrAgent(Viewer)),
    ("POST", "/v1/sandboxes/{sandbox}/rebase", Least(Operator)),
    ("GET", "/v1/sandboxes/{sandbox}/net", OrAgent(Viewer)),
    ("POST", "/v1/sandboxes/{sandbox}/net", Least(Approver)),
    ("POST", "/v1/sandboxes/{sandbox}/net/test", OrAgent(Operator)),
    ("DELETE", "/v1/sandboxes/{sandbox}/secrets/{name}", Least(Operator)),
    ("GET", "/v1/approvals", Least(Viewer)),
    ("GET", "/v1/approvals/{approval}", Least(Viewer)),
    ("GET", "/v1/approvals/{approval}/receipt", Least(Viewer)),
    ("POST", "/v1/approvals/{approval}/undo", Least(Approver)),
    ("POST", "/v1/approvals/{approval}/finish", Least(Approver)),
    ("POST", "/v1/approvals/{approval}/abandon", Least(Approver)),
    ("POST", "/v1/undo", Least(Approver)),
    // Both reach out of the sandbox: a repository of the host, files of the host.
    ("POST", "/v1/sandboxes/{sandbox}/pull", Least(Approver)),
    ("POST", "/v1/sandboxes/{sandbox}/copy", Least(Approver)),
    ("GET", "/v1/sandboxes/{sandbox}/files", OrAgent(Viewer)),
    ("PUT", "/v1/sandboxes/{sandbox}/files", OrAgent(Operator)),
    ("DELETE", "/v1/sandboxes/{sandbox}/files", OrAgent(Operator)),
    ("POST", "/v1/sandboxes/{sandbox}/files/directory", OrAgent(Operator)),
    ("POST", "/v1/sandboxes/{sandbox}/files/move", OrAgent(Operator)),
    ("GET", "/v1/sandboxes/{sandbox}/files/tar", OrAgent(Viewer)),
    ("PUT", "/v1/sandboxes/{sandbox}/files/tar", OrAgent(Operator)),
    ("GET", "/v1/sandboxes/{sandbox}/files/watch", OrAgent(Viewer)),
    ("GET", "/v1/sandboxes/{sandbox}/files/list", OrAgent(Viewer)),
    ("GET", "/v1/sandboxes/{sandbox}/files/stat", OrAgent(Viewer)),
    ("GET", "/v1/sandboxes/{sandbox}/snapshots", OrAgent(Viewer)),
    ("POST", "/v1/sandboxes/{sandbox}/snapshots", Least(Operator)),
    ("POST", "/v1/sandboxes/{sandbox}/restore", Least(Operator)),
    ("POST", "/v1/sandboxes/{sandbox}/fork", Least(Operator)),
    ("POST", "/v1/compare", Least(Viewer)),
    ("GET", "/v1/templates", Least(Viewer)),
    ("PUT", "/v1/templates/{name}", Least(Operator)),
    ("DELETE", "/v1/templates/{name}", Least(Operator)),
    ("GET", "/v1/events", Least(Viewer)),
    ("GET", "/v1/events/stream", Least(Viewer)),
    ("POST", "/v1/gc", Least(Operator)),
    ("GET", "/v1/doctor", Least(Viewer)),
    ("GET", "/v1/providers", Least(Viewer)),
    ("GET", "/v1/config", Least(Viewer)),
    ("GET", "/v1/stats", Least(Viewer)),
    ("GET", "/v1/audit", Least(Approver)),
];

/// What an endpoint needs; one that is not in the matrix is closed to everybody. The router answers
/// HEAD by GET's handler, so that it needs the same.
pub(crate) fn needs(method: &str, path: &str) -> Option<Needs> {
    let method = if method == "HEAD" { "GET" } else { method };
    MATRIX.iter().find(|row| row.0 == method && row.1 == path).map(|row| row.2)
}

/// The methods a path has, as the header `allow` names them.
pub(crate) fn methods(path: &str) -> String {
    let of_path = MATRIX.iter().filter(|row| row.1 == path);
    let words = of_path.map(|row| if row.0 == "GET" { "GET,HEAD" } else { row.0 });
    words.collect::<Vec<_>>().join(",")
}
