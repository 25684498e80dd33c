//! One group: limits, freezing, ending, and what it has used.

use super::knobs::{CPU_PERIOD, TCP_BUFFERS, plan};
use super::{
    CgroupError, Feature, GroupLimits, Version, Weighed, keyed, kill, read_knob, weights,
    write_knob,
};
use rustix::process::Pid;
use skep_types::ExecId;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of a group in one hierarchy.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub version: Version,
    pub directory: PathBuf,
    pub features: BTreeSet<Feature>,
}

impl Part {
    /// Where the sandbox's own processes stand in a v2 group that has children.
    pub fn leaf(&self) -> PathBuf {
        self.directory.join("main")
    }
}

/// Whether a group may have children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Sandbox,
    Exec,
}

/// The group of a sandbox or of one exec in it.
///
/// A handle: dropping it leaves the group as it is, [`Group::remove`] takes it away.
#[derive(Debug)]
pub struct Group {
    parts: Vec<Part>,
    missing: BTreeMap<Feature, String>,
    level: Level,
}

/// The limits a group really has, read back.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InForce {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Whether swapping is held to nothing: counted, or the machine has none to give.
    pub swap_is_off: bool,
    /// Whether the buffers of TCP connections are held too.
    pub tcp_is_held: bool,
    /// Processors.
    pub cpus: Option<f64>,
    /// Tasks.
    pub pids: Option<u64>,
}

/// Moves the calling process into the groups whose files these are: run in the child.
pub fn join(files: &[OwnedFd]) -> io::Result<()> {
    for file in files {
        rustix::io::write(file, b"0")?;
    }
    Ok(())
}

impl Group {
    pub(super) fn from_parts(
        parts: Vec<Part>,
        missing: BTreeMap<Feature, String>,
        level: Level,
    ) -> Self {
        Self { parts, missing, level }
    }

    /// What this group cannot do, and why.
    pub fn missing(&self) -> &BTreeMap<Feature, String> {
        &self.missing
    }

    /// Where a feature comes from: `cgroup v1`.
    pub fn how(&self, feature: Feature) -> Option<String> {
        self.part(feature).map(|part| format!("cgroup {}", part.version.as_str()))
    }

    /// Which kind of hierarchy a feature comes from.
    pub fn version_of(&self, feature: Feature) -> Option<Version> {
        self.part(feature).map(|part| part.version)
    }

    /// Its directories, one in each hierarchy.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.directory.as_path())
    }

    pub(super) fn part(&self, feature: Feature) -> Option<&Part> {
        self.parts.iter().find(|part| part.features.contains(&feature))
    }

    pub(super) fn unsupported(&self, feature: Feature, what: &'static str) -> CgroupError {
        let reason = self.missing.get(&feature).cloned().unwrap_or_default();
        CgroupError::Unsupported { what, reason }
    }

    /// The files a child writes `0` to (see [`join`]) to be in this group.
    pub fn procs_files(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let open = |part: &Part| {
            let leaf = part.version == Version::V2 && self.level == Level::Sandbox;
            let directory = if leaf { part.leaf() } else { part.directory.clone() };
            let path = directory.join("cgroup.procs");
            match fs::OpenOptions::new().write(true).open(&path) {
                Ok(file) => Ok(OwnedFd::from(file)),
                Err(source) => Err(CgroupError::Read { path, source }),
            }
        };
        self.parts.iter().map(open).collect()
    }

    /// Makes a group inside for one exec: for ending and measuring it, and for the limits given.
    ///
    /// Only in the hierarchies this needs: in the others the processes stay in the sandbox's
    /// group, which they inherit. On error nothing is left.
    pub fn child(&self, exec: &ExecId, limits: &GroupLimits) -> Result<Self, CgroupError> {
        let mut wanted: BTreeSet<Feature> = limits.features().collect();
        wanted.extend([Feature::Kill, Feature::Freeze, Feature::CpuTime, Feature::Memory]);
        let mut child =
            Self { parts: Vec::new(), missing: self.missing.clone(), level: Level::Exec };
        for part in self.parts.iter().filter(|part| !part.features.is_disjoint(&wanted)) {
            let directory = part.directory.join(exec.as_str());
            if let Err(source) = fs::create_dir(&directory) {
                let _ = child.remove();
                return Err(CgroupError::Create { path: directory, source });
            }
            if part.version == Version::V2 {
                // Half an exec is worth nothing: the kernel kills all of it or none. Not asked of
                // the sandbox's group, where it would take pid 1 along.
                let _ = write_knob(&directory, "memory.oom.group", "1");
            }
            if part.version == Version::V1 && part.features.contains(&Feature::Memory) {
                // Version 1 counts connections only where there is a limit, not in groups below.
                if let Some(bytes) = limit_of(&part.directory, TCP_BUFFERS) {
                    let _ = write_knob(&directory, TCP_BUFFERS, &bytes.to_string());
                }
            }
            child.parts.push(Part { directory, ..part.clone() });
        }
        child.set_limits(limits);
        Ok(child)
    }

    /// Sets the limits that are given and leaves the others. What cannot be set is noted in
    /// [`Group::missing`]; [`Group::in_force`] tells what holds.
    pub fn set_limits(&mut self, limits: &GroupLimits) {
        for feature in limits.features() {
            let result = match self.part(feature) {
                None => continue,
                Some(part) => set_feature(part, feature, limits),
            };
            match result {
                Ok(()) => self.missing.remove(&feature),
                Err(error) => self.missing.insert(feature, skep_types::chain(&error)),
            };
        }
    }

    /// The limits the kernel says this group has.
    pub fn in_force(&self) -> InForce {
        let number = |feature, v1, v2| -> Option<u64> {
            let part = self.part(feature)?;
            let file = if part.version == Version::V1 { v1 } else { v2 };
            read_knob(&part.directory, file).ok()?.trim().parse().ok()
        };
        let memory =
            number(Feature::Memory, "memory.limit_in_bytes", "memory.max").filter(is_a_limit);
        InForce {
            memory,
            swap_is_off: self.swap_is_off(memory),
            tcp_is_held: self.tcp_is_held(),
            cpus: self.cpus_in_force(),
            pids: number(Feature::Pids, "pids.max", "pids.max"),
        }
    }

    /// The weight that holds on the disks below a directory, or why none does.
    pub fn io_weight(&self, place: &Path) -> Result<Weighed, String> {
        weights::in_force(self, place)
    }

    fn swap_is_off(&self, memory: Option<u64>) -> bool {
        let Some(part) = self.part(Feature::Memory) else { return false };
        let read = |file| read_knob(&part.directory, file).ok()?.trim().parse::<u64>().ok();
        match part.version {
            Version::V2 => read("memory.swap.max") == Some(0),
            Version::V1 => memory.is_some() && read("memory.memsw.limit_in_bytes") == memory,
        }
    }

    fn tcp_is_held(&self) -> bool {
        self.part(Feature::Memory).is_some_and(|part| match part.version {
            // They are memory like any other.
            Version::V2 => true,
            Version::V1 => limit_of(&part.directory, TCP_BUFFERS).is_some(),
        })
    }

    fn cpus_in_force(&self) -> Option<f64> {
        let part = self.part(Feature::Cpu)?;
        let ratio = |quota: &str, period: &str| -> Option<f64> {
            let (quota, period): (i64, u64) =
                (quota.trim().parse().ok()?, period.trim().parse().ok()?);
            (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
        };
        match part.version {
            Version::V2 => {
                let text = read_knob(&part.directory, "cpu.max").ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                ratio(quota, period)
            }
            Version::V1 => {
                let quota = read_knob(&part.directory, "cpu.cfs_quota_us").ok()?;
                let period = read_knob(&part.directory, "cpu.cfs_period_us").ok()?;
                ratio(&quota, &period)
            }
        }
    }

    /// Stops everything inside and returns when it stands still.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        kill::freeze(self)
    }

    /// Lets everything inside go on.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        kill::thaw(self)
    }

    /// Ends everything inside, children included, and returns when nothing is left alive.
    pub fn kill(&self) -> Result<(), CgroupError> {
        self.kill_within(super::PATIENCE)
    }

    /// The same, waiting no longer than this.
    pub fn kill_within(&self, patience: Duration) -> Result<(), CgroupError> {
        kill::kill(self, patience)
    }

    /// Processes inside, children included.
    pub fn pids(&self) -> Vec<Pid> {
        self.listed("cgroup.procs", "cgroup.procs")
    }

    /// Threads inside, children included: also those whose process has lost its first one, and with it its
    /// place among the processes.
    pub fn threads(&self) -> Vec<Pid> {
        self.listed("tasks", "cgroup.threads")
    }

    fn listed(&self, v1: &str, v2: &str) -> Vec<Pid> {
        // The part used for killing is joined by everything; any other does as well.
        let part = self.part(Feature::Kill).or(self.parts.first());
        let Some(part) = part else { return Vec::new() };
        let file = if part.version == Version::V1 { v1 } else { v2 };
        let mut pids = Vec::new();
        for directory in tree(&part.directory) {
            let text = read_knob(&directory, file).unwrap_or_default();
            let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
            pids.extend(numbers.filter_map(Pid::from_raw));
        }
        pids
    }

    /// The most memory it ever had, in bytes.
    pub fn memory_peak(&self) -> Option<u64> {
        let part = self.part(Feature::Memory)?;
        let file = match part.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        read_knob(&part.directory, file).ok()?.trim().parse().ok()
    }

    /// The memory it has now, in bytes.
    pub fn memory_now(&self) -> Option<u64> {
        let part = self.part(Feature::Memory)?;
        let file = match part.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        read_knob(&part.directory, file).ok()?.trim().parse().ok()
    }

    /// Processor time used, by ended processes too.
    pub fn cpu_time(&self) -> Option<Duration> {
        let part = self.part(Feature::CpuTime)?;
        match part.version {
            Version::V1 => {
                let text = read_knob(&part.directory, "cpuacct.usage").ok()?;
                text.trim().parse().ok().map(Duration::from_nanos)
            }
            Version::V2 => {
                let text = read_knob(&part.directory, "cpu.stat").ok()?;
                keyed(&text, "usage_usec").map(Duration::from_micros)
            }
        }
    }

    /// Processes the kernel killed because this group, or one inside, had no memory left. For
    /// comparing with an earlier value: some kernels count the first of a group twice.
    pub fn oom_kills(&self) -> Option<u64> {
        self.count(Feature::Memory, "memory.oom_control", "memory.events", "oom_kill")
    }

    /// How often a fork was refused because of the limit.
    pub fn pids_max_hits(&self) -> Option<u64> {
        self.count(Feature::Pids, "pids.events", "pids.events", "max")
    }

    /// v1 counts an event only where the process stood; v2 also in every group above (for pids
    /// only since Linux 6.11).
    fn count(&self, feature: Feature, v1: &str, v2: &str, key: &str) -> Option<u64> {
        let part = self.part(feature)?;
        let file = if part.version == Version::V1 { v1 } else { v2 };
        let read = |directory: &Path| keyed(&read_knob(directory, file).ok()?, key);
        let own = read(&part.directory)?;
        let below: u64 = tree(&part.directory).iter().skip(1).filter_map(|d| read(d)).sum();
        Some(if part.version == Version::V1 { own + below } else { own.max(below) })
    }

    /// Ends the rest of the group if the kernel has killed one of it for memory since `seen`:
    /// what `memory.oom.group` does by itself on v2. Returns the new count if so.
    pub fn end_after_oom(&self, seen: u64) -> Result<Option<u64>, CgroupError> {
        match self.oom_kills() {
            Some(count) if count > seen => self.kill().map(|()| Some(count)),
            _ => Ok(None),
        }
    }

    /// Takes the group and its children away; they must be empty of living processes. Succeeds if
    /// it is already gone. Tries everything and reports the first failure.
    pub fn remove(self) -> Result<(), CgroupError> {
        let mut first = Ok(());
        for part in &self.parts {
            let result = remove_tree(&part.directory, 1_000);
            if first.is_ok() {
                first = result;
            }
            if self.level == Level::Sandbox
                && let Some(parent) = part.directory.parent()
            {
                // The last one out takes the parent along; while others are there this fails.
                let _ = fs::remove_dir(parent);
            }
        }
        first
    }
}

/// v1 says "none" as the largest multiple of a page.
fn is_a_limit(bytes: &u64) -> bool {
    *bytes < i64::MAX as u64 / 2
}

fn limit_of(directory: &Path, knob: &str) -> Option<u64> {
    read_knob(directory, knob).ok()?.trim().parse().ok().filter(is_a_limit)
}

fn set_feature(part: &Part, feature: Feature, limits: &GroupLimits) -> Result<(), CgroupError> {
    let exists = |file: &str| part.directory.join(file).exists();
    let both = read_knob(&part.directory, "memory.memsw.limit_in_bytes");
    let current = both.ok().and_then(|text| text.trim().parse().ok());
    for knob in plan(feature, part.version, limits, exists, current) {
        let result = write_knob(&part.directory, knob.file, &knob.value);
        if knob.required {
            result?;
        }
    }
    Ok(())
}

/// A group's directory and all below it, parents first.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(current) = found.get(next).cloned() {
        next += 1;
        // A directory has two links of its own, and one from each directory in it.
        if rustix::fs::stat(&current).is_ok_and(|stat| stat.st_nlink == 2) {
            continue;
        }
        let entries = fs::read_dir(&current).into_iter().flatten().flatten();
        let is_group = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        found.extend(entries.filter(is_group).map(|entry| entry.path()));
    }
    found
}

/// Removes a group and those below it. A group stays busy for a moment after its last process.
pub(super) fn remove_tree(directory: &Path, attempts: u32) -> Result<(), CgroupError> {
    for path in tree(directory).into_iter().rev() {
        let mut attempt = 0;
        while let Err(source) = fs::remove_dir(&path) {
            attempt += 1;
            match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::NOENT) => break,
                Some(rustix::io::Errno::BUSY) if attempt < attempts => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                _ => return Err(CgroupError::Remove { path, source }),
            }
        }
    }
    Ok(())
}

/// The quota that stands for a number of processors, for comparing what was asked with what is.
pub(crate) fn processors_of(cpus: f64) -> f64 {
    super::knobs::quota(cpus) as f64 / CPU_PERIOD as f64
}
