//! Limits and fences: what holds a sandboxed process, and the truth about what does.
//!
//! Nothing here decides. A policy was made elsewhere; this crate turns it into kernel state and
//! says, from what it reads back, which parts of it really hold.
//!
//! Who calls what, in the order it happens:
//!
//! 1. [`probe`]: `skep doctor` and the engine ask what the host can do. Every answer comes from
//!    trying the thing, not from a version number, and carries a reason and a remedy.
//! 2. [`cgroup`]: the keeper makes one group per sandbox and a child group per exec, on whatever
//!    cgroup layout the host has (v2, v1, a mix, or nothing it may write to).
//! 3. [`landlock`]: init prepares the second fence once; every child restricts itself with it.
//! 4. [`privileges`]: a child about to exec sets its rlimits, leaves the caller's keyring, drops
//!    every capability and sets `no_new_privs`.
//! 5. [`seccomp`]: last, because it refuses calls that the steps before need.
//! 6. [`report`]: what the group and the limits say when they are read back.
//! 7. [`usage`]: for a host without cgroups, how much a set of processes uses, to be polled.
//!
//! The child's side of it, between fork and exec, single threaded:
//!
//! ```no_run
//! use skep_confine::landlock::Fence;
//! use skep_confine::privileges::{ProcessLimits, drop_all, set_limits};
//! use skep_confine::seccomp::{self, SeccompVariant};
//! # fn in_child(fence: &Fence) -> Result<(), Box<dyn std::error::Error>> {
//! set_limits(&ProcessLimits::default())?;
//! drop_all()?;
//! fence.restrict_self()?;
//! seccomp::install(SeccompVariant::Default)?;
//! # Ok(()) }
//! ```
//!
//! What is deliberately not here: namespaces and mounts (the keeper), the disk limit (it belongs
//! to the workspace), and the network (egress).

pub mod cgroup;
pub mod landlock;
pub mod privileges;
pub mod probe;
pub mod report;
pub mod seccomp;
pub mod usage;
