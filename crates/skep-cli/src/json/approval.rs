//! Approvals: what one did, and the history.

use super::change_set::mode;
use super::text_and_bytes;
use serde::Serialize;
use skep_engine::api::{ApproveReport, RebaseReport, RebasedView, RejectReport};
use skep_types::{AppliedPath, Approval, ApprovalKind, ApprovalState, ChangeSetDigest, RelPath};

use super::change_set::ConflictView;

/// The document that `approve --json` and `undo --json` print.
#[derive(Debug, Serialize)]
pub(crate) struct ApprovalDocument<'a> {
    approval: Option<&'a str>,
    digest: ChangeSetDigest,
    applied: Vec<String>,
    remaining: u64,
    remaining_ignored: u64,
    commit: Option<&'a str>,
    notes: &'a [String],
}

impl<'a> ApprovalDocument<'a> {
    /// Of a report.
    pub(crate) fn new(report: &'a ApproveReport) -> Self {
        Self {
            approval: report.approval.as_ref().map(skep_types::ApprovalId::as_str),
            digest: report.digest,
            applied: paths(&report.applied),
            remaining: report.remaining,
            remaining_ignored: report.remaining_ignored,
            commit: report.commit.as_deref(),
            notes: &report.notes,
        }
    }
}

/// The document that `reject --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct RejectDocument {
    rejected: Vec<String>,
    remaining: u64,
    not_taken_in: Vec<String>,
}

impl RejectDocument {
    /// Of a report.
    pub(crate) fn new(report: &RejectReport) -> Self {
        Self {
            rejected: paths(&report.rejected),
            remaining: report.remaining,
            not_taken_in: paths(&report.not_taken_in),
        }
    }
}

/// The document that `rebase --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct RebaseDocument<'a> {
    merged: Vec<String>,
    conflicts: Vec<ConflictView<'a>>,
    put_off: Vec<ConflictView<'a>>,
    view: RebasedView,
}

impl<'a> RebaseDocument<'a> {
    /// Of a report.
    pub(crate) fn new(report: &'a RebaseReport) -> Self {
        Self {
            merged: paths(&report.merged),
            conflicts: report.conflicts.iter().map(ConflictView::new).collect(),
            put_off: report.put_off.iter().map(ConflictView::put_off).collect(),
            view: report.view,
        }
    }
}

/// One element of `history --json`.
#[derive(Debug, Serialize)]
pub(crate) struct HistoryEntry<'a> {
    approval: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    undoes: Option<&'a str>,
    state: ApprovalState,
    sandbox: &'a str,
    sandbox_id: &'a str,
    digest: ChangeSetDigest,
    approver: &'a str,
    at: &'a str,
    commit: Option<&'a str>,
    paths: Vec<PathEntry<'a>>,
}

#[derive(Debug, Serialize)]
struct PathEntry<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    old_mode: Option<String>,
    new_mode: Option<String>,
    exec: Option<&'a str>,
}

impl<'a> HistoryEntry<'a> {
    /// Of an approval.
    pub(crate) fn new(approval: &'a Approval) -> Self {
        let (kind, undoes) = match &approval.kind {
            ApprovalKind::Approve => ("approve", None),
            ApprovalKind::Undo { of } => ("undo", Some(of.as_str())),
        };
        Self {
            approval: approval.id.as_str(),
            kind,
            undoes,
            state: approval.state,
            sandbox: approval.sandbox_name.as_str(),
            sandbox_id: approval.sandbox.as_str(),
            digest: approval.digest,
            approver: &approval.approver,
            at: &approval.at,
            commit: approval.commit.as_deref(),
            paths: approval.paths.iter().map(path_entry).collect(),
        }
    }
}

fn path_entry(applied: &AppliedPath) -> PathEntry<'_> {
    let (path, path_bytes) = text_and_bytes(applied.path.as_bytes());
    PathEntry {
        path,
        path_bytes,
        old_mode: mode(&applied.before),
        new_mode: mode(&applied.after),
        exec: applied.exec.as_ref().map(skep_types::ExecId::as_str),
    }
}

fn paths(paths: &[RelPath]) -> Vec<String> {
    paths.iter().map(|path| text_and_bytes(path.as_bytes()).0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn the_keys_that_are_relied_on() {
        let report = fake::approve_report();
        let json = serde_json::to_value(ApprovalDocument::new(&report)).unwrap();
        for key in ["approval", "digest", "applied", "remaining", "commit"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(json["applied"], serde_json::json!(["a.txt"]));
    }
}
