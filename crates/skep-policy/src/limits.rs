//! Limits: what is a limit at all, what a host gives by default, and that a part never gets more
//! than the whole.

use skep_types::{ByteSize, Limits, show_duration};
use std::cmp::Ordering;
use std::time::Duration;

/// Why a set of limits was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LimitError {
    /// Zero is never a limit: it would mean "nothing" to one reader and "no limit" to another.
    #[error("limit `{0}` is zero; a limit must be greater than zero")]
    Zero(&'static str),
    /// Not a number, or one that no kernel keeps.
    #[error("limit `{key}` is `{value:?}`, not a number from {least} to {most}")]
    OutOfRange {
        /// Which.
        key: &'static str,
        /// What was given.
        value: f64,
        /// The least there is.
        least: f64,
        /// The most there is.
        most: f64,
    },
    /// So small that no command would ever start.
    #[error("limit `{key}` is `{value}`, and nothing starts with less than `{least}`")]
    TooSmall {
        /// Which.
        key: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        least: String,
    },
    /// Larger than the kernel can count.
    #[error("limit `{0}` is too large")]
    TooLarge(&'static str),
}

/// Something asked for that is wider than what stands around it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` would widen from {outer} to {inner}")]
pub struct Widening {
    /// The setting, as in a config file.
    pub key: String,
    /// What is in force.
    pub outer: String,
    /// What was asked for.
    pub inner: String,
}

/// What has to be known of the host to choose defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Total memory, when known.
    pub memory: Option<u64>,
    /// Size of the filesystem of the state directory, when known.
    pub state_filesystem: Option<u64>,
    /// How many files a process inside may have open at most, when known.
    pub open_files: Option<u64>,
}

const GIB: u64 = 1 << 30;

/// At most `cap`, and at most this share of the whole; never less than 64 MiB, with which hardly
/// anything starts.
pub(crate) fn share(cap: u64, percent: u64, whole: Option<u64>) -> ByteSize {
    let part = whole.map_or(cap, |whole| whole / 100 * percent);
    ByteSize(cap.min(part).max(64 << 20))
}

/// The limits of a sandbox nobody said anything about.
pub fn default_limits(host: &HostFacts) -> Limits {
    Limits {
        memory: Some(share(8 * GIB, 50, host.memory)),
        cpus: None,
        cpu_time: None,
        pids: Some(4_096),
        disk: Some(ByteSize(10 * GIB)),
        inodes: Some(1_000_000),
        open_files: Some(65_536),
        timeout: None,
        grace: Some(Duration::from_secs(10)),
        idle_timeout: Some(Duration::from_secs(4 * 3_600)),
        silence_timeout: None,
        output: Some(ByteSize(64 << 20)),
        io_weight: None,
    }
}

/// Refuses limits that are none. Values typed by people cannot get here; values from an API can.
pub fn validate(limits: &Limits) -> Result<(), LimitError> {
    if let Some(value) = limits.cpus
        && !(LEAST_CPUS..=MOST_CPUS).contains(&value)
    {
        let (least, most) = (LEAST_CPUS, MOST_CPUS);
        return Err(LimitError::OutOfRange { key: "cpus", value, least, most });
    }
    let counts = [
        ("memory", limits.memory.map(|size| size.0)),
        ("pids", limits.pids),
        ("disk", limits.disk.map(|size| size.0)),
        ("inodes", limits.inodes),
        ("open_files", limits.open_files),
        ("output", limits.output.map(|size| size.0)),
        ("io_weight", limits.io_weight),
    ];
    for (key, value) in counts {
        match value {
            Some(0) => return Err(LimitError::Zero(key)),
            // The kernel counts in signed 64 bits.
            Some(value) if i64::try_from(value).is_err() => return Err(LimitError::TooLarge(key)),
            Some(value) if key == "pids" && value > MOST_PIDS => {
                return Err(LimitError::TooLarge(key));
            }
            Some(value) if key == "io_weight" && value > MOST_WEIGHT => {
                return Err(LimitError::TooLarge(key));
            }
            _ => {}
        }
    }
    for (key, value) in durations(limits) {
        match value {
            Some(Duration::ZERO) => return Err(LimitError::Zero(key)),
            Some(value) if value > CENTURY => return Err(LimitError::TooLarge(key)),
            _ => {}
        }
    }
    startable(limits)
}

/// With less than this the sandbox's own init is killed, refused its first process, or stopped as
/// idle before its first command.
fn startable(limits: &Limits) -> Result<(), LimitError> {
    let too_small = |key, value, least| Err(LimitError::TooSmall { key, value, least });
    match limits {
        Limits { memory: Some(size), .. } if *size < LEAST_MEMORY => {
            too_small("memory", size.to_string(), LEAST_MEMORY.to_string())
        }
        Limits { pids: Some(number), .. } if *number < LEAST_PIDS => {
            too_small("pids", number.to_string(), LEAST_PIDS.to_string())
        }
        Limits { open_files: Some(number), .. } if *number < LEAST_OPEN_FILES => {
            too_small("open_files", number.to_string(), LEAST_OPEN_FILES.to_string())
        }
        Limits { idle_timeout: Some(time), .. } if *time < LEAST_IDLE => {
            too_small("idle_timeout", show_duration(*time), show_duration(LEAST_IDLE))
        }
        _ => Ok(()),
    }
}

const LEAST_MEMORY: ByteSize = ByteSize(1 << 20);
const LEAST_PIDS: u64 = 2;
/// What the kernel can number (`PID_MAX_LIMIT` of a 64-bit kernel), and so the most `pids.max` takes.
const MOST_PIDS: u64 = 4 << 20;
/// The most that `bfq` takes.
const MOST_WEIGHT: u64 = 1_000;
/// A cgroup counts in microseconds per tenth of a second, and keeps no less than a hundredth.
const LEAST_CPUS: f64 = 0.01;
/// More than any machine has.
const MOST_CPUS: f64 = 10_000.0;
/// Standard descriptors, the fences' own, and those with which a program is loaded.
const LEAST_OPEN_FILES: u64 = 16;
const LEAST_IDLE: Duration = Duration::from_secs(1);

/// Longer than any limit means, and far from where timers overflow.
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

fn durations(limits: &Limits) -> [(&'static str, Option<Duration>); 5] {
    [
        ("cpu_time", limits.cpu_time),
        ("timeout", limits.timeout),
        ("grace", limits.grace),
        ("idle_timeout", limits.idle_timeout),
        ("silence_timeout", limits.silence_timeout),
    ]
}

/// The limits of a part: the smaller of both, so that nothing asked for inside ever widens what
/// stands around it. [`wider`] tells what was cut.
pub fn narrow(outer: &Limits, inner: &Limits) -> Limits {
    Limits {
        memory: least(outer.memory, inner.memory),
        cpus: match (outer.cpus, inner.cpus) {
            (Some(outer), Some(inner)) => Some(outer.min(inner)),
            (outer, inner) => outer.or(inner),
        },
        cpu_time: least(outer.cpu_time, inner.cpu_time),
        pids: least(outer.pids, inner.pids),
        disk: least(outer.disk, inner.disk),
        inodes: least(outer.inodes, inner.inodes),
        open_files: least(outer.open_files, inner.open_files),
        timeout: least(outer.timeout, inner.timeout),
        grace: least(outer.grace, inner.grace),
        idle_timeout: least(outer.idle_timeout, inner.idle_timeout),
        silence_timeout: least(outer.silence_timeout, inner.silence_timeout),
        output: least(outer.output, inner.output),
        io_weight: least(outer.io_weight, inner.io_weight),
    }
}

fn least<T: Ord>(outer: Option<T>, inner: Option<T>) -> Option<T> {
    match (outer, inner) {
        (Some(outer), Some(inner)) => Some(outer.min(inner)),
        (outer, inner) => outer.or(inner),
    }
}

/// What an exec *asks for* beyond its sandbox's limits. A limit it does not mention is inherited
/// and so never wider.
pub fn wider(outer: &Limits, inner: &Limits) -> Vec<Widening> {
    compare(outer, inner, Missing::Inherits)
}

/// What `inner`, taken as a whole, lacks or exceeds: here a missing limit is no limit.
pub(crate) fn wider_in_force(outer: &Limits, inner: &Limits) -> Vec<Widening> {
    compare(outer, inner, Missing::Unlimited)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Inherits,
    Unlimited,
}

fn compare(outer: &Limits, inner: &Limits, missing: Missing) -> Vec<Widening> {
    let mut found = Vec::new();
    let mut size = |key: &str, outer: Option<ByteSize>, inner: Option<ByteSize>| {
        check(&mut found, missing, key, outer, inner, ToString::to_string);
    };
    size("memory", outer.memory, inner.memory);
    size("disk", outer.disk, inner.disk);
    size("output", outer.output, inner.output);
    let mut count = |key: &str, outer: Option<u64>, inner: Option<u64>| {
        check(&mut found, missing, key, outer, inner, ToString::to_string);
    };
    count("pids", outer.pids, inner.pids);
    count("inodes", outer.inodes, inner.inodes);
    count("open_files", outer.open_files, inner.open_files);
    count("io_weight", outer.io_weight, inner.io_weight);
    for ((key, outer), (_, inner)) in durations(outer).into_iter().zip(durations(inner)) {
        check(&mut found, missing, key, outer, inner, |value| show_duration(*value));
    }
    check(&mut found, missing, "cpus", outer.cpus, inner.cpus, ToString::to_string);
    found
}

fn check<T: PartialOrd>(
    found: &mut Vec<Widening>,
    missing: Missing,
    key: &str,
    outer: Option<T>,
    inner: Option<T>,
    show: impl Fn(&T) -> String,
) {
    let Some(outer) = outer else { return };
    let is_wider = match &inner {
        // What cannot be compared (not a number) counts as wider.
        Some(inner) => matches!(inner.partial_cmp(&outer), None | Some(Ordering::Greater)),
        None => missing == Missing::Unlimited,
    };
    if is_wider {
        found.push(Widening {
            key: format!("limits.{key}"),
            outer: format!("`{}`", show(&outer)),
            inner: inner
                .as_ref()
                .map_or_else(|| "no limit".into(), |inner| format!("`{}`", show(inner))),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn defaults_follow_the_host() {
        let with = |memory| {
            default_limits(&HostFacts { memory, ..HostFacts::default() }).memory.unwrap().0
        };
        assert_eq!(with(Some(64 * GIB)), 8 * GIB);
        assert_eq!(with(None), 8 * GIB);
        assert!(with(Some(4 * GIB)) <= 2 * GIB && with(Some(4 * GIB)) > 2 * GIB - 4096);
        assert_eq!(with(Some(1)), 64 << 20);
        let limits = default_limits(&HostFacts::default());
        assert_eq!(limits.pids, Some(4_096));
        assert_eq!(limits.timeout, None);
        assert_eq!(limits.output, Some(ByteSize(64 << 20)));
        assert_eq!(validate(&limits), Ok(()));
    }

    #[test]
    fn zero_negative_and_overflowing_limits_are_errors() {
        let refused = |limits: Limits| validate(&limits).unwrap_err();
        let none = Limits::default;
        assert_eq!(refused(Limits { pids: Some(0), ..none() }), LimitError::Zero("pids"));
        assert_eq!(
            refused(Limits { memory: Some(ByteSize(0)), ..none() }),
            LimitError::Zero("memory")
        );
        assert_eq!(
            refused(Limits { disk: Some(ByteSize(u64::MAX)), ..none() }),
            LimitError::TooLarge("disk")
        );
        assert_eq!(
            refused(Limits { timeout: Some(Duration::ZERO), ..none() }),
            LimitError::Zero("timeout")
        );
        assert_eq!(
            refused(Limits { timeout: Some(Duration::MAX), ..none() }),
            LimitError::TooLarge("timeout")
        );
        for (small, key) in [
            (Limits { memory: Some(ByteSize(1 << 10)), ..none() }, "memory"),
            (Limits { pids: Some(1), ..none() }, "pids"),
            (Limits { open_files: Some(15), ..none() }, "open_files"),
            (Limits { idle_timeout: Some(Duration::from_millis(1)), ..none() }, "idle_timeout"),
        ] {
            let error = refused(small);
            assert!(matches!(error, LimitError::TooSmall { key: said, .. } if said == key));
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9, 1e300] {
            let error = refused(Limits { cpus: Some(bad), ..none() });
            assert!(error.to_string().len() < 80, "{error}");
        }
        let many = Limits { pids: Some((4 << 20) + 1), ..none() };
        assert_eq!(refused(many), LimitError::TooLarge("pids"));
        let heavy = Limits { io_weight: Some(1_001), ..none() };
        assert_eq!(refused(heavy), LimitError::TooLarge("io_weight"));
        for good in [0.01, 1.5, 10_000.0] {
            assert_eq!(validate(&Limits { cpus: Some(good), ..none() }), Ok(()));
        }
    }

    #[test]
    fn says_what_was_asked_for_beyond_the_sandbox() {
        let outer = default_limits(&HostFacts::default());
        let inner = Limits {
            memory: Some(ByteSize(16 * GIB)),
            timeout: Some(Duration::from_secs(5)),
            ..Limits::default()
        };
        let found = wider(&outer, &inner);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "`limits.memory` would widen from `8 GiB` to `16 GiB`");
        assert!(wider_in_force(&outer, &inner).len() > 1);
        assert!(wider_in_force(&outer, &outer).is_empty());
    }

    fn limits() -> impl Strategy<Value = Limits> {
        let size = || proptest::option::of((1u64..1 << 40).prop_map(ByteSize));
        let count = || proptest::option::of(1u64..1_000_000);
        let time = || proptest::option::of((1u64..1_000_000).prop_map(Duration::from_millis));
        let cpus = proptest::option::of(0.01f64..64.0);
        (
            (size(), size(), size()),
            (count(), count(), count(), count()),
            cpus,
            [time(), time(), time(), time(), time()],
        )
            .prop_map(
                |((memory, disk, output), (pids, inodes, open_files, io_weight), cpus, times)| {
                    Limits {
                        memory,
                        cpus,
                        cpu_time: times[0],
                        pids,
                        disk,
                        inodes,
                        open_files,
                        timeout: times[1],
                        grace: times[2],
                        idle_timeout: times[3],
                        silence_timeout: times[4],
                        output,
                        io_weight,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn narrowing_never_widens(outer in limits(), inner in limits()) {
            let narrowed = narrow(&outer, &inner);
            prop_assert!(wider_in_force(&outer, &narrowed).is_empty());
            prop_assert!(wider_in_force(&inner, &narrowed).is_empty());
            prop_assert_eq!(narrow(&narrowed, &inner), narrowed.clone());
            prop_assert_eq!(narrow(&outer, &Limits::default()), outer.clone());
            // What was not asked for beyond the whole is given as asked.
            if wider(&outer, &inner).is_empty() {
                prop_assert!(inner.memory.is_none() || narrowed.memory == inner.memory);
            }
        }
    }
}
