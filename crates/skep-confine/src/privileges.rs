//! What a process gives up before it becomes somebody else's program.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use skep_sys::privileges::Held;
use skep_types::Limits;
use std::io;

/// What could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// A resource limit.
    #[error("cannot limit {what} to `{value}`")]
    Limit {
        /// Of what.
        what: &'static str,
        /// To how much.
        value: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A set of capabilities.
    #[error("cannot empty the {set} capability set")]
    Capabilities {
        /// `bounding`, `ambient`, or `effective, permitted and inheritable`.
        set: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// `no_new_privs`.
    #[error("cannot set no_new_privs")]
    NoNewPrivileges {
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The caller's keyring.
    #[error("cannot leave the caller's session keyring")]
    Keyring {
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Limits of one process, as opposed to a group.
///
/// There is no limit of the address space among them: it is not a limit of memory, and breaks
/// programs that reserve much and use little (Java, Go, node, sanitizers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Open files.
    pub open_files: u64,
    /// Processes of this user *in this user namespace*: since Linux 5.14 they are counted per
    /// namespace, so that inside a sandbox's own it limits the sandbox and nobody else. For hosts
    /// without a pids cgroup. Real root (uid 0 of the host) is exempt.
    pub processes: Option<u64>,
    /// Processor seconds of each process: a backstop for hosts without cgroups.
    pub cpu_seconds: Option<u64>,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        Self { open_files: 65_536, processes: None, cpu_seconds: None }
    }
}

impl ProcessLimits {
    /// The limits for a process on a host without cgroups, where they stand in for the group's.
    pub fn without_cgroups(limits: &Limits) -> Self {
        Self {
            open_files: limits.open_files.unwrap_or(Self::default().open_files),
            processes: limits.pids,
            cpu_seconds: limits.cpu_time.map(|time| time.as_secs().max(1)),
        }
    }

    /// The limits for a process in a group that does the rest.
    pub fn with_cgroups(limits: &Limits) -> Self {
        let open_files = limits.open_files.unwrap_or(Self::default().open_files);
        Self { open_files, ..Self::default() }
    }
}

/// Sets the limits of this process and what it starts, and returns those that hold: a hard limit
/// that was lower before stays lower.
///
/// Besides those asked for: no core files (they would land in the project, or go to the host's
/// handler with the memory in them), and no raised priorities even where the caller's session
/// may raise them.
pub fn set_limits(limits: &ProcessLimits) -> Result<ProcessLimits, PrivilegeError> {
    lower(Resource::Core, "the size of core files", 0)?;
    lower(Resource::Rtprio, "real-time priority", 0)?;
    lower(Resource::Nice, "raised priority", 0)?;
    let open_files = lower(Resource::Nofile, "open files", limits.open_files)?;
    let optional = |resource, what, value: Option<u64>| {
        value.map(|value| lower(resource, what, value)).transpose()
    };
    Ok(ProcessLimits {
        open_files,
        processes: optional(Resource::Nproc, "processes", limits.processes)?,
        cpu_seconds: optional(Resource::Cpu, "processor time", limits.cpu_seconds)?,
    })
}

/// Sets soft and hard limit to `value`, or to the present hard limit if that is lower: raising it
/// needs a capability that even root may lack.
fn lower(resource: Resource, what: &'static str, value: u64) -> Result<u64, PrivilegeError> {
    let value = getrlimit(resource).maximum.map_or(value, |hard| hard.min(value));
    let limit = Rlimit { current: Some(value), maximum: Some(value) };
    match setrlimit(resource, limit) {
        Ok(()) => Ok(value),
        Err(error) => Err(PrivilegeError::Limit { what, value, source: error.into() }),
    }
}

/// Leaves the caller's session keyring for an empty one. Once, in the sandbox's pid 1: what it
/// starts inherits it. Before seccomp, which refuses the call.
pub fn leave_keyring() -> Result<(), PrivilegeError> {
    skep_sys::keyring::join_new_session().map_err(|source| PrivilegeError::Keyring { source })
}

/// Gives up every capability for good and sets `no_new_privs`.
pub fn drop_all() -> Result<(), PrivilegeError> {
    drop_all_but(CapabilitySet::empty())
}

/// Gives up every capability that is not in `kept`, for good, and sets `no_new_privs`.
///
/// 1. The bounding set first: taking from it needs `CAP_SETPCAP`, which the third step gives up.
/// 2. The rest: see [`drop_held_but`].
///
/// A process without `CAP_SETPCAP` cannot do the first; it has nothing to gain from the bounding
/// set either once `no_new_privs` is set, so that this is no error.
pub fn drop_all_but(kept: CapabilitySet) -> Result<(), PrivilegeError> {
    bound_to(kept).map(drop)?;
    drop_held_but(kept)
}

/// Takes everything but `kept` out of the bounding set of this process and of all it will start.
///
/// It matters for a root-looking user, who gets back on exec whatever the bounding set has. What
/// this process holds, it keeps: so the parent of many can do it once for all of them, which saves
/// each of them a call for every capability there is.
///
/// False if this process had not the right to, and everything is still in it.
pub fn bound_to(kept: CapabilitySet) -> Result<bool, PrivilegeError> {
    let failed =
        |error: Errno| PrivilegeError::Capabilities { set: "bounding", source: error.into() };
    drop_bounding(kept).map_err(failed)
}

/// Gives up what this process holds, but for `kept`, and sets `no_new_privs`. For good, if
/// [`bound_to`] came before.
pub fn drop_held_but(kept: CapabilitySet) -> Result<(), PrivilegeError> {
    skep_sys::privileges::drop_held_but(kept).map_err(|(held, errno)| match held {
        Held::Capabilities(set) => PrivilegeError::Capabilities { set, source: errno.into() },
        Held::NewPrivileges => PrivilegeError::NoNewPrivileges { source: errno.into() },
    })
}

fn drop_bounding(kept: CapabilitySet) -> Result<bool, Errno> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Beyond the last one this kernel knows.
            Err(Errno::INVAL) => return Ok(true),
            Err(Errno::PERM) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
