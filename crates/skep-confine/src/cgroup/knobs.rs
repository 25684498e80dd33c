//! From limits to files and what to write into them: a plan that can be read and tested.

use super::weights::{BFQ_V1, BFQ_V2, COST};
use super::{Feature, Version};
use skep_types::{ByteSize, Limits};

/// What a group may be limited to. `None` leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupLimits {
    /// Memory; swap is none.
    pub memory: Option<ByteSize>,
    /// Processor rate, in processors.
    pub cpus: Option<f64>,
    /// Tasks.
    pub pids: Option<u64>,
    /// Weight of its reading and writing; 100 is what others have.
    pub io_weight: Option<u64>,
}

impl From<&Limits> for GroupLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            memory: limits.memory,
            cpus: limits.cpus,
            pids: limits.pids,
            io_weight: limits.io_weight,
        }
    }
}

impl GroupLimits {
    /// Which features these limits need.
    pub(super) fn features(&self) -> impl Iterator<Item = Feature> {
        let asked = [
            (Feature::Memory, self.memory.is_some()),
            (Feature::Cpu, self.cpus.is_some()),
            (Feature::Pids, self.pids.is_some()),
            (Feature::Io, self.io_weight.is_some()),
        ];
        asked.into_iter().filter(|(_, asked)| *asked).map(|(feature, _)| feature)
    }
}

/// One file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Knob {
    pub file: &'static str,
    pub value: String,
    /// Whether the limit holds without it: a group on a kernel without swap has no swap files.
    pub required: bool,
}

/// The period over which the processor quota is counted, in microseconds: the kernel's own.
pub(super) const CPU_PERIOD: u64 = 100_000;
/// The kernel refuses a smaller quota.
const SMALLEST_QUOTA: u64 = 1_000;

/// Version 1 counts the buffers of TCP connections apart from all other memory, and only in a group
/// that has a limit for them: connections of a sandbox to itself would hold any amount.
pub(super) const TCP_BUFFERS: &str = "memory.kmem.tcp.limit_in_bytes";
/// They may have this part of the memory limit, on top of it…
const TCP_SHARE: u64 = 8;
/// … but enough for a few connections.
const LEAST_TCP: u64 = 4 << 20;

/// Processors to microseconds per period.
pub(super) fn quota(cpus: f64) -> u64 {
    // A cast from floating point saturates; nonsense such as NaN becomes the smallest quota.
    ((cpus * CPU_PERIOD as f64) as u64).clamp(SMALLEST_QUOTA, 1 << 40)
}

fn required(file: &'static str, value: impl ToString) -> Knob {
    Knob { file, value: value.to_string(), required: true }
}

fn optional(file: &'static str, value: impl ToString) -> Knob {
    Knob { file, value: value.to_string(), required: false }
}

/// The files of one feature, in the order they must be written. `exists` tells which files the
/// group has; `current` is the v1 memory+swap limit in force, which may never be below the memory
/// limit, so that raising and lowering need opposite orders.
pub(super) fn plan(
    feature: Feature,
    version: Version,
    limits: &GroupLimits,
    exists: impl Fn(&str) -> bool,
    current: Option<u64>,
) -> Vec<Knob> {
    match (feature, version) {
        (Feature::Memory, version) => match (limits.memory, version) {
            (None, _) => Vec::new(),
            (Some(size), Version::V2) => {
                vec![optional("memory.swap.max", 0), required("memory.max", size.0)]
            }
            (Some(size), Version::V1) => memory_v1(size.0, exists, current),
        },
        (Feature::Cpu, Version::V2) => {
            let value = limits.cpus.map(|cpus| format!("{} {CPU_PERIOD}", quota(cpus)));
            value.map(|value| required("cpu.max", value)).into_iter().collect()
        }
        (Feature::Cpu, Version::V1) => match limits.cpus {
            None => Vec::new(),
            Some(cpus) => vec![
                required("cpu.cfs_period_us", CPU_PERIOD),
                required("cpu.cfs_quota_us", quota(cpus)),
            ],
        },
        (Feature::Pids, _) => {
            limits.pids.map(|pids| required("pids.max", pids)).into_iter().collect()
        }
        // Which of them counts is a question of the disk (see `weights.rs`), and a kernel may lack each.
        (Feature::Io, version) => {
            let files: &[&'static str] =
                if version == Version::V1 { &[BFQ_V1] } else { &[COST, BFQ_V2] };
            let weight = limits.io_weight.into_iter();
            weight.flat_map(|weight| files.iter().map(move |file| optional(file, weight))).collect()
        }
        (Feature::CpuTime | Feature::Freeze | Feature::Kill, _) => Vec::new(),
    }
}

fn memory_v1(bytes: u64, exists: impl Fn(&str) -> bool, current: Option<u64>) -> Vec<Knob> {
    const MEMORY: &str = "memory.limit_in_bytes";
    const MEMORY_AND_SWAP: &str = "memory.memsw.limit_in_bytes";
    let buffers = optional(TCP_BUFFERS, (bytes / TCP_SHARE).max(LEAST_TCP));
    if !exists(MEMORY_AND_SWAP) {
        // Without swap accounting the best is to ask the kernel not to swap this group.
        return vec![optional("memory.swappiness", 0), required(MEMORY, bytes), buffers];
    }
    let (memory, both) = (required(MEMORY, bytes), required(MEMORY_AND_SWAP, bytes));
    if current.is_some_and(|current| current <= bytes) {
        vec![both, memory, buffers]
    } else {
        vec![memory, both, buffers]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> GroupLimits {
        let memory = Some(ByteSize(1 << 20));
        GroupLimits { memory, cpus: Some(1.5), pids: Some(7), io_weight: Some(50) }
    }

    fn written(knobs: Vec<Knob>) -> Vec<String> {
        knobs.into_iter().map(|knob| format!("{}={}", knob.file, knob.value)).collect()
    }

    #[test]
    fn v2_writes_the_unified_files() {
        let all = |feature| written(plan(feature, Version::V2, &limits(), |_| true, None));
        assert_eq!(all(Feature::Memory), ["memory.swap.max=0", "memory.max=1048576"]);
        assert_eq!(all(Feature::Cpu), ["cpu.max=150000 100000"]);
        assert_eq!(all(Feature::Pids), ["pids.max=7"]);
        assert_eq!(all(Feature::Io), ["io.weight=50", "io.bfq.weight=50"]);
        let old = plan(Feature::Io, Version::V1, &limits(), |_| true, None);
        assert_eq!(written(old), ["blkio.bfq.weight=50"]);
    }

    #[test]
    fn v1_raises_the_swap_limit_first_and_lowers_it_last() {
        let with =
            |current| written(plan(Feature::Memory, Version::V1, &limits(), |_| true, current));
        let (memory, both) =
            ("memory.limit_in_bytes=1048576", "memory.memsw.limit_in_bytes=1048576");
        let buffers = "memory.kmem.tcp.limit_in_bytes=4194304";
        assert_eq!(with(Some(4096)), [both, memory, buffers]);
        assert_eq!(with(Some(u64::MAX)), [memory, both, buffers]);
    }

    #[test]
    fn v1_without_swap_accounting_asks_not_to_swap() {
        let knobs = plan(Feature::Memory, Version::V1, &limits(), |_| false, None);
        let (swap, memory) = ("memory.swappiness=0", "memory.limit_in_bytes=1048576");
        assert_eq!(written(knobs), [swap, memory, "memory.kmem.tcp.limit_in_bytes=4194304"]);
    }

    #[test]
    fn v1_gives_connections_a_share_of_the_memory() {
        let limits = GroupLimits { memory: Some(ByteSize(1 << 30)), ..GroupLimits::default() };
        let knobs = written(plan(Feature::Memory, Version::V1, &limits, |_| true, None));
        assert_eq!(knobs.last().unwrap(), "memory.kmem.tcp.limit_in_bytes=134217728");
    }

    #[test]
    fn a_quota_is_never_one_the_kernel_refuses() {
        assert_eq!(quota(2.0), 200_000);
        assert_eq!(quota(0.000_1), 1_000);
        assert_eq!(quota(f64::NAN), 1_000);
        assert_eq!(quota(f64::INFINITY), 1 << 40);
    }
}
