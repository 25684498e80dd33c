//! The enforcement report: which layers are really on, and why not where they are not.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// One thing that can be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The view of files: what is visible and writable.
    Filesystem,
    /// What can be reached over a network.
    Network,
    /// Other processes are invisible, and everything dies with the sandbox.
    Processes,
    /// Memory and swap.
    Memory,
    /// Processor rate.
    Cpu,
    /// Number of processes.
    Pids,
    /// Bytes and inodes written.
    Disk,
    /// Weight of reading and writing disks.
    Io,
    /// The system call filter.
    Syscalls,
    /// Landlock as a second fence.
    Landlock,
    /// A kernel of its own.
    Kernel,
}

impl Layer {
    /// All layers, in the order they are shown.
    pub const ALL: [Self; 11] = [
        Self::Filesystem,
        Self::Network,
        Self::Processes,
        Self::Memory,
        Self::Cpu,
        Self::Pids,
        Self::Disk,
        Self::Io,
        Self::Syscalls,
        Self::Landlock,
        Self::Kernel,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Network => "network",
            Self::Processes => "processes",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Disk => "disk",
            Self::Io => "io",
            Self::Syscalls => "syscalls",
            Self::Landlock => "landlock",
            Self::Kernel => "kernel",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Layer {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|layer| layer.as_str() == text).ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|layer| layer.as_str()).collect();
            format!("`{text}` is not a layer; one of: {}", all.join(", "))
        })
    }
}

/// What is known about one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Whether a probe found it on.
    pub enforced: bool,
    /// The mechanism, or what stands in for it.
    pub how: String,
    /// Why it is not enforced, or weaker than it could be.
    pub reason: Option<String>,
}

/// What was really enforced, layer by layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnforcementReport(pub BTreeMap<Layer, LayerReport>);

impl EnforcementReport {
    /// Notes that a layer is on.
    pub fn on(&mut self, layer: Layer, how: impl Into<String>) {
        self.0.insert(layer, LayerReport { enforced: true, how: how.into(), reason: None });
    }

    /// Notes that a layer is off, or only stood in for by `how`.
    pub fn off(&mut self, layer: Layer, how: impl Into<String>, reason: impl Into<String>) {
        let report = LayerReport { enforced: false, how: how.into(), reason: Some(reason.into()) };
        self.0.insert(layer, report);
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a layer was found on.
    pub fn enforces(&self, layer: Layer) -> bool {
        self.0.get(&layer).is_some_and(|report| report.enforced)
    }
}
