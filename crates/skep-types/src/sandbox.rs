//! A sandbox as remembered.

use crate::{
    ByteString, EnforcementReport, LayerId, Policy, RelPath, SandboxId, SandboxName, SandboxState,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the copy-on-write view is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceDriver {
    /// overlayfs mounted in the sandbox's user namespace; markers are `user.overlay.*`.
    OverlayUserns,
    /// overlayfs mounted by root; markers are `trusted.overlay.*`.
    OverlayRoot,
    /// fuse-overlayfs.
    FuseOverlayfs,
    /// A full copy (reflinked where the filesystem can); the base is a second look at the project.
    Copy,
}

impl WorkspaceDriver {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OverlayUserns => "overlay-userns",
            Self::OverlayRoot => "overlay-root",
            Self::FuseOverlayfs => "fuse-overlayfs",
            Self::Copy => "copy",
        }
    }
}

/// A point in time by which "older than" can be proven, see `skep-workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instant {
    /// Wall clock, nanoseconds since the epoch.
    pub wall_ns: i128,
    /// Clock since boot, nanoseconds; with `wall_ns` it shows steps of the wall clock.
    pub boot_ns: i128,
    /// Which boot.
    pub boot_id: String,
}

/// What the project was when the sandbox was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The creation instant.
    pub instant: Instant,
    /// Device of the project's root.
    pub device: u64,
    /// Inode of the project's root.
    pub inode: u64,
    /// The commit that was checked out.
    pub commit: Option<String>,
}

/// Who holds a running sandbox: a process that cannot be mistaken for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperIdentity {
    /// Process id on this host.
    pub pid: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
    /// Which boot.
    pub boot_id: String,
    /// Device and inode of the sandbox's directory, where it holds one: in a copy of a state directory the
    /// same row stands beside another directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<(u64, u64)>,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Its id; every resource is named after it.
    pub id: SandboxId,
    /// Its unique name.
    pub name: SandboxName,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it is in that state, where that needs a word.
    pub state_reason: Option<String>,
    /// Which provider runs it.
    pub provider: String,
    /// The project.
    pub project: ByteString,
    /// How the view is made.
    pub driver: WorkspaceDriver,
    /// What the project was at create.
    pub base: Base,
    /// The policy in force.
    pub policy: Policy,
    /// What was found to be enforced.
    pub enforcement: EnforcementReport,
    /// Frozen layers below the upper, topmost first.
    pub layers: Vec<LayerId>,
    /// Paths of the project hidden from the inside.
    pub hidden: Vec<RelPath>,
    /// Who holds it, while it runs.
    pub keeper: Option<KeeperIdentity>,
    /// Free words.
    pub labels: BTreeMap<String, String>,
    /// When it was created (RFC 3339).
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
    /// Grows with every change; for optimistic updates.
    pub version: u64,
}
