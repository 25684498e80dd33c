//! Execs: the result of one, and the list of a sandbox's.

use super::error::ErrorView;
use super::layer::{LayerView, enforcement};
use super::{base64, text_and_bytes};
use serde::Serialize;
use skep_types::{EnforcementReport, Exec, ExecEnd, ExecStats, Problem, RefusedCall, Totals};
use std::collections::BTreeMap;

/// The document that `run --json` and `exec --json` print.
#[derive(Debug, Serialize)]
pub(crate) struct ExecDocument<'a> {
    sandbox: &'a str,
    exec: &'a str,
    exit_code: i32,
    signal: Option<i32>,
    reason: &'static str,
    message: Option<&'a str>,
    limits_hit: &'a [String],
    refused: &'a [RefusedCall],
    #[serde(flatten)]
    output: OutputView,
    truncated: bool,
    stats: StatsView,
    enforcement: BTreeMap<&'static str, LayerView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<ChangesView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsettled: Option<ErrorView<'a>>,
}

/// What a command printed; a stream that is not text is in base64.
#[derive(Debug, Serialize)]
struct OutputView {
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_b64: Option<String>,
}

#[derive(Debug, Serialize)]
struct StatsView {
    duration_ms: Option<u64>,
    cpu_ms: u64,
    memory_peak_bytes: u64,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

#[derive(Debug, Serialize)]
struct ChangesView {
    files: u64,
    added: u64,
    removed: u64,
    ignored: u64,
}

/// What goes into the document.
pub(crate) struct ExecResult<'a> {
    /// Name of the sandbox.
    pub(crate) sandbox: &'a str,
    /// Id of the exec.
    pub(crate) exec: &'a str,
    /// How it ended.
    pub(crate) end: &'a ExecEnd,
    /// What it printed.
    pub(crate) stdout: Vec<u8>,
    /// What it printed.
    pub(crate) stderr: Vec<u8>,
    /// Whether some of it is missing.
    pub(crate) truncated: bool,
    /// What was enforced.
    pub(crate) enforcement: &'a EnforcementReport,
    /// What the sandbox changed, after `run`.
    pub(crate) changes: Option<Totals>,
    /// What could not be done or written down after it.
    pub(crate) unsettled: Option<&'a Problem>,
}

impl<'a> ExecDocument<'a> {
    /// Of a result.
    pub(crate) fn new(result: ExecResult<'a>) -> Self {
        let end = result.end;
        let (stdout, stdout_b64) = text_or_base64(result.stdout);
        let (stderr, stderr_b64) = text_or_base64(result.stderr);
        Self {
            sandbox: result.sandbox,
            exec: result.exec,
            exit_code: end.exit_code,
            signal: end.signal,
            reason: end.reason.as_str(),
            message: end.message.as_deref(),
            limits_hit: &end.limits_hit,
            refused: &end.refused,
            output: OutputView { stdout, stdout_b64, stderr, stderr_b64 },
            truncated: end.truncated || result.truncated,
            stats: stats(&end.stats),
            enforcement: enforcement(result.enforcement),
            changes: result.changes.map(|totals| ChangesView {
                files: totals.files,
                added: totals.added,
                removed: totals.removed,
                ignored: totals.ignored,
            }),
            unsettled: result.unsettled.map(ErrorView::new),
        }
    }
}

fn text_or_base64(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(base64(error.as_bytes()))),
    }
}

fn stats(stats: &ExecStats) -> StatsView {
    StatsView {
        duration_ms: stats.duration_ms,
        cpu_ms: stats.cpu_ms,
        memory_peak_bytes: stats.memory_peak_bytes,
        stdout_bytes: stats.stdout_bytes,
        stderr_bytes: stats.stderr_bytes,
    }
}

/// One element of `ps --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ExecEntry<'a> {
    exec: &'a str,
    command: Vec<String>,
    started_at: &'a str,
    running: bool,
    exit_code: Option<i32>,
    signal: Option<i32>,
    reason: Option<&'static str>,
    message: Option<&'a str>,
    limits_hit: &'a [String],
    refused: &'a [RefusedCall],
    stats: Option<StatsView>,
}

impl<'a> ExecEntry<'a> {
    /// Of an exec as remembered.
    pub(crate) fn new(exec: &'a Exec) -> Self {
        let end = exec.end.as_ref();
        let command = exec.spec.argv.iter().map(|word| text_and_bytes(word.as_bytes()).0);
        Self {
            exec: exec.id.as_str(),
            command: command.collect(),
            started_at: &exec.started_at,
            running: end.is_none(),
            exit_code: end.map(|end| end.exit_code),
            signal: end.and_then(|end| end.signal),
            reason: end.map(|end| end.reason.as_str()),
            message: end.and_then(|end| end.message.as_deref()),
            limits_hit: end.map_or(&[], |end| end.limits_hit.as_slice()),
            refused: end.map_or(&[], |end| end.refused.as_slice()),
            stats: end.map(|end| stats(&end.stats)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn the_keys_that_are_relied_on() {
        let end = fake::end(7);
        let report = EnforcementReport::default();
        let document = ExecDocument::new(ExecResult {
            sandbox: "bar1",
            exec: "0123456789abcdef",
            end: &end,
            stdout: b"hello\n".to_vec(),
            stderr: b"\xff".to_vec(),
            truncated: false,
            enforcement: &report,
            changes: None,
            unsettled: None,
        });
        let json = serde_json::to_value(document).unwrap();
        assert_eq!(json["sandbox"], "bar1");
        assert_eq!(json["exit_code"], 7);
        assert_eq!(json["reason"], "exited");
        assert_eq!(json["stdout"], "hello\n");
        assert!(json.get("stderr").is_none());
        assert_eq!(json["stderr_b64"], base64(b"\xff"));
        for key in ["exec", "signal", "limits_hit", "refused", "truncated", "stats", "enforcement"]
        {
            assert!(json.get(key).is_some(), "{key}");
        }
        for key in ["duration_ms", "cpu_ms", "memory_peak_bytes", "stdout_bytes", "stderr_bytes"] {
            assert!(json["stats"][key].is_u64(), "{key}");
        }
    }
}
