//! The policy of a sandbox: what is visible, writable, reachable, and how much of it.
//!
//! These are values after parsing and resolving: a limit here is greater than zero, a path is
//! what it says. How profiles and config files become one of these is in `skep-policy`.

use crate::{ByteSize, ByteString, Layer};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How much a sandbox, or one exec in it, may take. `None` means no limit of that kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory; swap is none.
    pub memory: Option<ByteSize>,
    /// Processor rate, in processors (`1.5`).
    pub cpus: Option<f64>,
    /// Total processor time.
    pub cpu_time: Option<Duration>,
    /// Number of processes and threads.
    pub pids: Option<u64>,
    /// Bytes in the upper.
    pub disk: Option<ByteSize>,
    /// Inodes in the upper.
    pub inodes: Option<u64>,
    /// Open files of a process.
    pub open_files: Option<u64>,
    /// Wall clock.
    pub timeout: Option<Duration>,
    /// Between asking to end and killing.
    pub grace: Option<Duration>,
    /// A sandbox without execs for this long is stopped.
    pub idle_timeout: Option<Duration>,
    /// An exec without output for this long is ended.
    pub silence_timeout: Option<Duration>,
    /// Output kept of one exec (head and tail).
    pub output: Option<ByteSize>,
    /// Weight of reading and writing disks against other sandboxes, of which each has 100 by itself.
    // Left out where there is none: a keeper of an earlier version does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_weight: Option<u64>,
}

impl Limits {
    /// Open files that a process inside may have at most, of as many as a process outside may. The
    /// kernel compares the descriptors that all processes of a user have under way to each other with
    /// the sender's own limit (`unix(7)`): whoever looks after sandboxes must be able to pass some when
    /// one of them has as many under way as it may.
    pub fn most_open_files(outside: u64) -> u64 {
        outside - outside / 4
    }
}

/// What can be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// Nothing but the sandbox's own loopback.
    #[default]
    #[serde(alias = "loopback")]
    None,
    /// What the rules of the policy allow, through skep's proxy.
    Allow,
    /// The host's network as it is; must be named.
    Host,
}

/// How the system directories are seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SystemView {
    /// Read-only.
    #[default]
    Ro,
    /// Copy-on-write: packages can be installed inside, nothing reaches the host.
    Cow,
}

/// Whether a mount can be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Read only.
    #[default]
    Ro,
    /// Written straight through to the host.
    Rw,
}

/// A host path shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// On the host; absolute.
    pub source: ByteString,
    /// Inside; absolute.
    pub target: ByteString,
    /// Read-only unless said.
    pub access: Access,
}

/// Who the processes inside look like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InsideUser {
    /// The caller's own user and group id.
    #[default]
    Caller,
    /// Root-looking; still unprivileged outside.
    Root,
}

/// Acceptance rules as they were written: globs of changes that may, and may not, be approved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeRules {
    /// If not empty, only changes to paths that match one of these may be approved.
    pub allow: Vec<String>,
    /// Changes to paths that match one of these may not.
    pub deny: Vec<String>,
}

impl ChangeRules {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// Everything a provider has to know to build and limit the inside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// The profile it was made from.
    pub profile: String,
    /// Limits of the whole sandbox (and defaults of each exec).
    pub limits: Limits,
    /// Network.
    pub network: NetworkMode,
    /// What the way out leads to, and which ports lead in.
    pub egress: crate::EgressPolicy,
    /// System directories.
    pub system: SystemView,
    /// The image whose system is seen instead of the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Who the processes look like.
    pub user: InsideUser,
    /// Extra mounts, in order.
    pub mounts: Vec<Mount>,
    /// Read-only dependency layers below the workspace: first is on top.
    pub layers: Vec<ByteString>,
    /// Pieces of the caller's home shown read-only (relative to the home), where they exist.
    pub home: Vec<ByteString>,
    /// Files of the project (globs) shown as absent.
    pub hide: Vec<String>,
    /// Exceptions to `hide`.
    pub show: Vec<String>,
    /// Environment set inside, on top of the allow-list.
    pub env: BTreeMap<String, ByteString>,
    /// Names of host variables passed on.
    pub env_pass: BTreeSet<String>,
    /// Where a command starts that names no directory; absolute. Otherwise the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<ByteString>,
    /// Whether `ptrace` and its kin are allowed between the sandbox's own processes.
    pub allow_ptrace: bool,
    /// Refuse unless these are enforced.
    pub require: BTreeSet<Layer>,
    /// What the caller typed may weaken instead of being refused.
    pub best_effort: bool,
    /// Parts of the project (relative) that are writable; empty means all.
    pub scope: Vec<crate::RelPath>,
    /// Changes to paths that match one of these globs may not be approved.
    pub deny_changes: Vec<String>,
    /// If not empty, only changes to paths that match one of these globs may be approved.
    pub allow_changes: Vec<String>,
}

impl Policy {
    /// Its acceptance rules, to be kept beside a state of the sandbox.
    pub fn change_rules(&self) -> ChangeRules {
        ChangeRules { allow: self.allow_changes.clone(), deny: self.deny_changes.clone() }
    }
}
