//! Execs: one command run in a sandbox, and how it ended.

use crate::{ByteString, EnforcementReport, ExecId, Limits, SandboxId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What to run. Bytes all the way: nothing is quoted, split or decoded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// The command and its arguments, as the kernel gets them.
    pub argv: Vec<ByteString>,
    /// Environment on top of the sandbox's.
    pub env: BTreeMap<String, ByteString>,
    /// Directory inside to start in; absolute. `None` is the sandbox's own, else the project.
    pub workdir: Option<ByteString>,
    /// On a terminal of its own.
    pub tty: Option<TerminalSize>,
    /// Limits of this exec, on top of the sandbox's.
    pub limits: Limits,
}

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// How an exec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// By itself, with an exit code.
    Exited,
    /// By a signal nobody here sent.
    Signal,
    /// The wall clock ran out.
    Timeout,
    /// The sandbox was idle for too long.
    IdleTimeout,
    /// It was silent for too long.
    SilenceTimeout,
    /// It used up its processor time.
    CpuLimit,
    /// It ran out of memory.
    Oom,
    /// It wrote more than it may.
    DiskLimit,
    /// It could not make more processes, and ended of it.
    PidsLimit,
    /// It printed more than it may.
    OutputLimit,
    /// Somebody killed it.
    Killed,
    /// Its end was not seen.
    Lost,
    /// It never ran.
    StartFailed,
}

impl EndReason {
    /// The word for it, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signal => "signal",
            Self::Timeout => "timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::SilenceTimeout => "silence_timeout",
            Self::CpuLimit => "cpu_limit",
            Self::Oom => "oom",
            Self::DiskLimit => "disk_limit",
            Self::PidsLimit => "pids_limit",
            Self::OutputLimit => "output_limit",
            Self::Killed => "killed",
            Self::Lost => "lost",
            Self::StartFailed => "start_failed",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an exec used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStats {
    /// Wall clock; `None` where nobody saw the end.
    pub duration_ms: Option<u64>,
    /// Processor time of all its processes.
    pub cpu_ms: u64,
    /// Largest memory use. What is no more than init itself takes (some 4 MiB) is not told apart from that.
    pub memory_peak_bytes: u64,
    /// Bytes it printed, kept or not.
    pub stdout_bytes: u64,
    /// Bytes it printed, kept or not.
    pub stderr_bytes: u64,
    /// When it was let begin, in nanoseconds since the epoch, by the clock that files are stamped with: nothing
    /// that it wrote has an earlier stamp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at_ns: Option<i64>,
    /// When its end was heard of, in milliseconds since the epoch: nothing of its main process is later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<i64>,
}

/// A system call that the filter refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCall {
    /// Its name.
    pub call: String,
    /// How often.
    pub count: u64,
}

/// The end of an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// The code for the shell: the command's own, 124, 125, 126, 127, or 128 + signal.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// How it ended.
    pub reason: EndReason,
    /// A sentence where the reason needs one (start failures, denials).
    pub message: Option<String>,
    /// Limits that were felt, whether or not they ended it.
    pub limits_hit: Vec<String>,
    /// Whether output was dropped from the log.
    pub truncated: bool,
    /// System calls that were refused, and how often; where they are noted.
    #[serde(default)]
    pub refused: Vec<RefusedCall>,
    /// The layers that were different for it than for its sandbox, because limits were typed for it.
    /// On the way from the keeper only: an [`Exec`] takes them in.
    #[serde(default, skip_serializing_if = "EnforcementReport::is_empty")]
    pub enforcement: EnforcementReport,
    /// What it used.
    pub stats: ExecStats,
}

impl ExecEnd {
    /// A command that ended by itself, with this code and nothing else to say.
    pub fn exited(exit_code: i32) -> Self {
        Self {
            exit_code,
            signal: None,
            reason: EndReason::Exited,
            message: None,
            limits_hit: Vec::new(),
            truncated: false,
            refused: Vec::new(),
            enforcement: EnforcementReport::default(),
            stats: ExecStats::default(),
        }
    }
}

/// One exec as remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exec {
    /// Its id.
    pub id: ExecId,
    /// Where it runs.
    pub sandbox: SandboxId,
    /// What it runs.
    pub spec: ExecSpec,
    /// When it was started (RFC 3339).
    pub started_at: String,
    /// How it ended; `None` while it runs.
    pub end: Option<ExecEnd>,
    /// What was enforced on it: what is known of its sandbox, and of its own limits once it has ended.
    pub enforcement: EnforcementReport,
}

impl Exec {
    /// It has ended. What held of its own limits comes before what holds of its sandbox's.
    pub fn finish(&mut self, mut end: ExecEnd) {
        for (layer, mut own) in std::mem::take(&mut end.enforcement).0 {
            own.how.push_str(" for this exec");
            if let Some(whole) = self.enforcement.0.get(&layer).filter(|whole| whole.enforced) {
                own.how = format!("{}; {} for the sandbox", own.how, whole.how);
            }
            self.enforcement.0.insert(layer, own);
        }
        self.end = Some(end);
    }
}
