//! A change set, as `diff --json` prints it.

use super::{base64, text_and_bytes};
use serde::Serialize;
use skep_engine::api::PutOff;
use skep_types::{
    Change, ChangeKind, ChangeSet, Conflict, Drift, EntryState, Hunk, HunkLine, RelPath, Reviewed,
    Risk,
};

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct ChangeSetDocument<'a> {
    sandbox: &'a str,
    base: &'a str,
    digest: Reviewed,
    changes: Changes<'a>,
    conflicts: Vec<ConflictView<'a>>,
    drift: Vec<DriftView<'a>>,
    warnings: &'a [String],
    totals: TotalsView,
}

/// The changes, each made into its view as it is written: there may be a million.
#[derive(Debug)]
struct Changes<'a>(Vec<&'a Change>);

impl Serialize for Changes<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|change| change_view(change)))
    }
}

#[derive(Debug, Serialize)]
struct ChangeView<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    kind: ChangeKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renamed_from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renamed_from_bytes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_target: Option<String>,
    binary: bool,
    too_large: bool,
    size: u64,
    added: u64,
    removed: u64,
    risk: Risk,
    risk_reasons: &'a [String],
    ignored: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<VerdictView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<&'a str>,
    hunks: Vec<HunkView<'a>>,
}

#[derive(Debug, Serialize)]
struct VerdictView<'a> {
    allowed: bool,
    reason: &'a str,
}

#[derive(Debug, Serialize)]
struct HunkView<'a> {
    id: &'a str,
    old_start: u32,
    old_lines: u32,
    new_start: u32,
    new_lines: u32,
    lines: Vec<LineView>,
}

/// A line with its mark and its end of line; `{ "b64": … }` where it is not text.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum LineView {
    Text(String),
    Bytes { b64: String },
}

/// A path and what is in the way.
#[derive(Debug, Serialize)]
pub(crate) struct ConflictView<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    reason: &'a str,
}

/// A path where the project moved.
#[derive(Debug, Serialize)]
pub(crate) struct DriftView<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    merges: bool,
    reason: &'a str,
}

#[derive(Debug, Serialize)]
struct TotalsView {
    files: u64,
    added: u64,
    removed: u64,
    ignored: u64,
}

impl<'a> ChangeSetDocument<'a> {
    /// Of a change set, showing some of its changes. Digest and totals are of all of it.
    pub(crate) fn new(set: &'a ChangeSet, shown: &[&'a Change]) -> Self {
        Self {
            sandbox: set.sandbox.as_str(),
            base: &set.base,
            digest: set.reviewed(),
            changes: Changes(shown.to_vec()),
            conflicts: set.conflicts.iter().map(ConflictView::new).collect(),
            drift: set.drift.iter().map(DriftView::new).collect(),
            warnings: &set.warnings,
            totals: TotalsView {
                files: set.totals.files,
                added: set.totals.added,
                removed: set.totals.removed,
                ignored: set.totals.ignored,
            },
        }
    }
}

impl<'a> ConflictView<'a> {
    /// Of a conflict.
    pub(crate) fn new(conflict: &'a Conflict) -> Self {
        let (path, path_bytes) = text_and_bytes(conflict.path.as_bytes());
        Self { path, path_bytes, reason: &conflict.reason }
    }

    /// Of a path that a rebase put off.
    pub(crate) fn put_off(one: &'a PutOff) -> Self {
        let (path, path_bytes) = text_and_bytes(one.path.as_bytes());
        Self { path, path_bytes, reason: &one.reason }
    }
}

impl<'a> DriftView<'a> {
    /// Of a drifted path.
    pub(crate) fn new(drift: &'a Drift) -> Self {
        let (path, path_bytes) = text_and_bytes(drift.path.as_bytes());
        Self { path, path_bytes, merges: drift.merges, reason: &drift.reason }
    }
}

fn change_view(change: &Change) -> ChangeView<'_> {
    let (path, path_bytes) = text_and_bytes(change.path.as_bytes());
    let from = change.renamed_from.as_ref().map(RelPath::as_bytes).map(text_and_bytes);
    let (renamed_from, renamed_from_bytes) = match from {
        Some((text, bytes)) => (Some(text), bytes),
        None => (None, None),
    };
    ChangeView {
        path,
        path_bytes,
        kind: change.kind,
        old_mode: mode(&change.old),
        new_mode: mode(&change.new),
        renamed_from,
        renamed_from_bytes,
        old_target: target(&change.old),
        new_target: target(&change.new),
        binary: change.binary,
        too_large: change.too_large,
        size: size(&change.new),
        added: change.added,
        removed: change.removed,
        risk: change.risk,
        risk_reasons: &change.risk_reasons,
        ignored: change.ignored,
        verdict: change
            .verdict
            .as_ref()
            .map(|verdict| VerdictView { allowed: verdict.allowed, reason: &verdict.reason }),
        exec: change.exec.as_ref().map(skep_types::ExecId::as_str),
        hunks: change.hunks.iter().map(hunk_view).collect(),
    }
}

fn hunk_view(hunk: &Hunk) -> HunkView<'_> {
    HunkView {
        id: hunk.id.as_str(),
        old_start: hunk.old_start,
        old_lines: hunk.old_lines,
        new_start: hunk.new_start,
        new_lines: hunk.new_lines,
        lines: hunk.lines.iter().map(line_view).collect(),
    }
}

fn line_view(line: &HunkLine) -> LineView {
    let (mark, text) = match line {
        HunkLine::Context(text) => (b' ', text),
        HunkLine::Removed(text) => (b'-', text),
        HunkLine::Added(text) => (b'+', text),
    };
    let mut bytes = vec![mark];
    bytes.extend_from_slice(text.as_bytes());
    String::from_utf8(bytes)
        .map_or_else(|error| LineView::Bytes { b64: base64(error.as_bytes()) }, LineView::Text)
}

/// Type and permission bits in octal, as git writes them.
pub(crate) fn mode(state: &EntryState) -> Option<String> {
    state.git_mode()
}

fn target(state: &EntryState) -> Option<String> {
    match state {
        EntryState::Symlink { target } => Some(text_and_bytes(target.as_bytes()).0),
        _ => None,
    }
}

fn size(state: &EntryState) -> u64 {
    match state {
        EntryState::File { size, .. } => *size,
        EntryState::Symlink { target } => target.as_bytes().len() as u64,
        EntryState::Absent | EntryState::Dir { .. } | EntryState::Special { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn the_keys_that_are_relied_on() {
        let set = fake::change_set();
        let shown: Vec<_> = set.changes.iter().collect();
        let json = serde_json::to_value(ChangeSetDocument::new(&set, &shown)).unwrap();
        for key in ["sandbox", "base", "digest", "changes", "conflicts", "totals"] {
            assert!(!json[key].is_null(), "{key}");
        }
        for key in ["files", "added", "removed", "ignored"] {
            assert!(json["totals"][key].is_u64(), "{key}");
        }
        let change = &json["changes"][0];
        for key in ["path", "kind", "binary", "size", "risk", "risk_reasons", "ignored", "hunks"] {
            assert!(!change[key].is_null(), "{key}");
        }
        assert_eq!(change["old_mode"], "100644");
        assert!(change.get("path_bytes").is_none());
        let hunk = &change["hunks"][0];
        for key in ["id", "old_start", "old_lines", "new_start", "new_lines", "lines"] {
            assert!(!hunk[key].is_null(), "{key}");
        }
        assert_eq!(hunk["lines"][0], "-one\n");
    }

    #[test]
    fn names_that_are_not_text_keep_their_bytes() {
        let set = fake::change_set();
        let odd = set.changes.iter().find(|change| change.path.as_bytes() == b"bad\xff").unwrap();
        let json = serde_json::to_value(change_view(odd)).unwrap();
        assert_eq!(json["path"], "bad\u{fffd}");
        assert_eq!(json["path_bytes"], base64(b"bad\xff"));
    }

    #[test]
    fn modes_as_git_writes_them() {
        assert_eq!(mode(&EntryState::Dir { mode: 0o755 }).unwrap(), "040755");
        assert_eq!(mode(&EntryState::Symlink { target: "x".into() }).unwrap(), "120000");
        assert_eq!(mode(&EntryState::Absent), None);
    }
}
