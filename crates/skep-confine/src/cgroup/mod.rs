//! Control groups, on whatever layout the host has, behind one small interface.
//!
//! [`CgroupHost::locate`] reads where this process may make groups; [`CgroupHost::detect`] also
//! tries it. [`CgroupHost::create`] makes the group of a sandbox, [`Group::child`] that of one exec
//! in it. A group is one directory in each hierarchy that is needed: one on a pure v2 host, and on
//! a v1 or mixed host one for each controller. What a host lacks is not an error here: it is noted
//! in the group with the reason, and [`crate::report`] tells; only a host where nothing can be
//! written at all gives [`CgroupError::NoneUsable`].
//!
//! Every path is made of a checked parent name and an id type, below the directory this process
//! may write to. Nothing outside of it is ever touched.

mod group;
mod host;
mod kill;
mod knobs;
mod tables;
mod weights;

pub(crate) use group::processors_of;
pub use group::{Group, InForce, join};
pub use host::{CgroupHost, ParentName};
pub use knobs::GroupLimits;
pub use weights::Weighed;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a group can do for us, whichever hierarchy does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Limits and counts memory.
    Memory,
    /// Limits the processor rate.
    Cpu,
    /// Limits the number of tasks.
    Pids,
    /// Counts processor time.
    CpuTime,
    /// Weighs reading and writing of disks against that of other groups.
    Io,
    /// Stops and continues everything in it.
    Freeze,
    /// Ends everything in it.
    Kill,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Memory, Self::Cpu, Self::Pids, Self::CpuTime, Self::Io, Self::Freeze, Self::Kill];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::CpuTime => "cpu time",
            Self::Io => "io weight",
            Self::Freeze => "freeze",
            Self::Kill => "kill",
        }
    }
}

/// Which kind of hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// The unified one.
    V2,
}

impl Version {
    /// `v1` or `v2`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}

/// What went wrong with a group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Nothing can be written anywhere.
    #[error("no cgroup can be made here: {reasons}")]
    NoneUsable {
        /// What was tried, and why it failed.
        reasons: String,
    },
    /// A group could be made, but it would limit nothing.
    #[error("no cgroup that can be made here limits anything: {reason}")]
    LimitsNothing {
        /// Why not.
        reason: String,
    },
    /// A name for the parent that is not a plain file name.
    #[error("`{0}` is not a name for a cgroup (letters, digits and `-`, at most 64)")]
    BadParentName(String),
    /// A directory could not be made.
    #[error("cannot make cgroup {}", path.display())]
    Create {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A group of that name is in use.
    #[error("cgroup {} exists and has processes in it", path.display())]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot set `{knob}` to `{value}` in {}", cgroup.display())]
    WriteKnob {
        /// The file.
        knob: &'static str,
        /// What was to be in it.
        value: String,
        /// Where.
        cgroup: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A directory could not be removed.
    #[error("cannot remove cgroup {}", path.display())]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Processes did not end, or did not stop.
    #[error("processes in {} did not {what} in time", path.display())]
    TooSlow {
        /// Which group.
        path: PathBuf,
        /// `end` or `freeze`.
        what: &'static str,
    },
    /// The host has no way to do that.
    #[error("this host's cgroups cannot {what}: {reason}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

fn write_knob(cgroup: &Path, knob: &'static str, value: &str) -> Result<(), CgroupError> {
    std::fs::OpenOptions::new()
        .write(true)
        .open(cgroup.join(knob))
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|source| CgroupError::WriteKnob {
            knob,
            value: value.to_owned(),
            cgroup: cgroup.to_owned(),
            source,
        })
}

fn read_knob(cgroup: &Path, knob: &str) -> Result<String, CgroupError> {
    let path = cgroup.join(knob);
    match read_file(&path).and_then(|text| String::from_utf8(text).map_err(io::Error::other)) {
        Ok(text) => Ok(text),
        Err(source) => Err(CgroupError::Read { path, source }),
    }
}

/// A file of the kernel's. It has no size to ask for, and most fit into a page.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(4096);
    // Bounded, and so nobody asks for its size first.
    io::Read::read_to_end(&mut io::Read::take(std::fs::File::open(path)?, 64 << 20), &mut text)?;
    Ok(text)
}

/// The number after `key` in a file of `key value` lines.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// How long processes may take to end or to stand.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `done` says so, asking often at first; false if that takes longer than `patience`.
fn wait_until(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let mut pause = Duration::from_micros(50);
    let mut waited = Duration::ZERO;
    while waited < patience {
        if done() {
            return true;
        }
        std::thread::sleep(pause);
        waited += pause;
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    done()
}
