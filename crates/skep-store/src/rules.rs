//! Rules that are the same in every database: scopes, moves of approvals, names of holders.

use crate::{APPROVAL_MOVES, Result, StoreError};
use skep_types::{Approval, ApprovalId, ApprovalState, RelPath, Sandbox, SandboxId};

/// No scope in the policy means the whole project.
pub(crate) fn scopes(sandbox: &Sandbox) -> Vec<RelPath> {
    match sandbox.policy.scope.as_slice() {
        [] => vec![RelPath::root()],
        scopes => scopes.to_vec(),
    }
}

/// Whether one of two scopes is the other or holds it.
pub(crate) fn overlap(a: &RelPath, b: &RelPath) -> bool {
    let holds = |above: &[u8], below: &[u8]| {
        above.is_empty()
            || below
                .strip_prefix(above)
                .is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
    };
    holds(a.as_bytes(), b.as_bytes()) || holds(b.as_bytes(), a.as_bytes())
}

// An id has no `/`, so no two holders have the same text.
pub(crate) fn sandbox_holder(id: &SandboxId) -> String {
    format!("sandbox/{id}")
}

pub(crate) fn snapshot_holder(sandbox: &SandboxId, label: &str) -> String {
    format!("snapshot/{sandbox}/{label}")
}

pub(crate) fn template_holder(name: &str) -> String {
    format!("template/{name}")
}

pub(crate) fn approval_not_found(id: &ApprovalId) -> StoreError {
    StoreError::NotFound { what: "approval", name: id.to_string() }
}

pub(crate) fn illegal_move(
    approval: &Approval,
    from: ApprovalState,
    to: ApprovalState,
) -> StoreError {
    StoreError::IllegalApprovalMove { id: approval.id.clone(), from, to }
}

pub(crate) fn check_approval_move(approval: &Approval, to: ApprovalState) -> Result<()> {
    let from = approval.state;
    if from == to || APPROVAL_MOVES.contains(&(from, to)) {
        Ok(())
    } else {
        Err(illegal_move(approval, from, to))
    }
}

/// The word in the `state` column, as in the JSON.
pub(crate) fn state_word(state: ApprovalState) -> &'static str {
    match state {
        ApprovalState::Applying => "applying",
        ApprovalState::Committed => "committed",
        ApprovalState::Applied => "applied",
        ApprovalState::Aborted => "aborted",
        ApprovalState::Undone => "undone",
        ApprovalState::NeedsAttention => "needs_attention",
    }
}

/// A path and everything below it, as bounds of an index.
pub(crate) struct PathRange<'a> {
    /// The path itself; `None` lets everything through.
    pub path: Option<&'a [u8]>,
    /// Everything below lies from here on …
    pub from: Vec<u8>,
    /// … and before this.
    pub until: Vec<u8>,
}

impl<'a> PathRange<'a> {
    /// Everything below `dir` lies between `dir/` and `dir0`: `0` follows `/`.
    pub(crate) fn below(path: Option<&'a RelPath>) -> Self {
        match path {
            Some(path) if !path.is_root() => {
                let bytes = path.as_bytes();
                let (from, until) = ([bytes, b"/"].concat(), [bytes, b"0"].concat());
                Self { path: Some(bytes), from, until }
            }
            _ => Self { path: None, from: Vec::new(), until: Vec::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_overlap_by_component() {
        let overlaps = |a: &str, b: &str| {
            overlap(&RelPath::parse(a.as_bytes()).unwrap(), &RelPath::parse(b.as_bytes()).unwrap())
        };
        for (a, b) in [("", "x"), ("x", "x"), ("x", "x/y"), ("x/y/z", "x"), ("", "")] {
            assert!(overlaps(a, b) && overlaps(b, a), "{a} {b}");
        }
        for (a, b) in [("x", "y"), ("x", "xy"), ("x/a", "x/b"), ("x/a", "x/ab")] {
            assert!(!overlaps(a, b) && !overlaps(b, a), "{a} {b}");
        }
    }
}
