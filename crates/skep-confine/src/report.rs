//! What the limits really are: the part of the enforcement report that cgroups and rlimits answer
//! for, from what the kernel says when it is asked afterwards.

use crate::cgroup::{Feature, Group, InForce, Version, processors_of};
use skep_types::{ByteSize, EnforcementReport, Layer, LayerReport, Limits};
use std::path::Path;

/// Why a limit that nobody gave does not hold.
pub const NO_LIMIT: &str = "no limit was asked for";

/// Why nothing is held by a cgroup, where nobody knows better.
pub const NO_GROUP: &str = "no cgroup can be written by this user";

/// What stands in where there is no cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fallback {
    /// The `RLIMIT_NPROC` set in the sandbox's own user namespace.
    pub process_limit: Option<u64>,
    /// Whether somebody polls [`crate::usage::poll_usage`] and ends what is over.
    pub polled: bool,
    /// Tasks that the group counts beside the sandbox's, and has room for: an engine's counts init.
    pub beside: u64,
}

/// Memory, processor rate and number of tasks: enforced or not, how, and why not.
///
/// A limit counts as enforced only if the kernel gives back what was asked. A limit nobody asked
/// for is reported as off, so that a reader never takes "unlimited" for "limited".
pub fn report_limits(
    group: Option<&Group>,
    asked: &Limits,
    fallback: Fallback,
) -> EnforcementReport {
    let in_force = group.map(Group::in_force).unwrap_or_default();
    let mut report = EnforcementReport::default();
    report.0.insert(Layer::Memory, memory(group, asked, &in_force, fallback));
    report.0.insert(Layer::Cpu, cpu(group, asked, &in_force, fallback));
    report.0.insert(Layer::Pids, pids(group, asked, &in_force, fallback));
    report
}

/// The weight of reading and writing: enforced where the disks below `place` heed the one that was asked for.
pub fn report_io(group: Option<&Group>, asked: Option<u64>, place: &Path) -> LayerReport {
    let Some(weight) = asked else { return not_asked() };
    let found = match group {
        None => Err(NO_GROUP.to_owned()),
        Some(group) => group.io_weight(place),
    };
    match found {
        Ok(found) if found.weight == weight => {
            let how = how(group, Feature::Io);
            let mut report =
                on(format!("{how}, `{}` {weight} (others 100) on {}", found.file, found.disks));
            report.reason = found.direct_only.then(|| {
                "cgroups v1 weigh what is read and what is written past the page cache; whose the rest is \
                 they do not know"
                    .to_owned()
            });
            report
        }
        Ok(found) => off("nothing", format!("the kernel shows a weight of {}", found.weight)),
        Err(reason) => off("nothing", reason),
    }
}

fn on(how: String) -> LayerReport {
    LayerReport { enforced: true, how, reason: None }
}

fn off(how: &str, reason: String) -> LayerReport {
    LayerReport { enforced: false, how: how.to_owned(), reason: Some(reason) }
}

fn not_asked() -> LayerReport {
    off("no limit", NO_LIMIT.to_owned())
}

fn why_not(group: Option<&Group>, feature: Feature) -> String {
    let noted = group.and_then(|group| group.missing().get(&feature).cloned());
    noted.unwrap_or_else(|| match group {
        None => NO_GROUP.to_owned(),
        Some(_) => "the kernel does not show the limit that was set".to_owned(),
    })
}

fn how(group: Option<&Group>, feature: Feature) -> String {
    group.and_then(|group| group.how(feature)).unwrap_or_default()
}

fn memory(
    group: Option<&Group>,
    asked: &Limits,
    in_force: &InForce,
    fallback: Fallback,
) -> LayerReport {
    let Some(ByteSize(limit)) = asked.memory else { return not_asked() };
    // The kernel rounds down to whole pages, of at most 64 KiB.
    let holds = in_force.memory.is_some_and(|got| got <= limit && limit - got < 64 << 10);
    if holds {
        let mut report = on(format!("{}, {}", how(group, Feature::Memory), ByteSize(limit)));
        if group.and_then(|group| group.version_of(Feature::Memory)) == Some(Version::V1) {
            report.how.push_str(" (killed by the kernel one by one, and the rest by a look after)");
        }
        if in_force.swap_is_off {
            report.how.push_str(", swap none");
        } else {
            report.reason = Some("swap cannot be limited on this kernel".to_owned());
        }
        if !in_force.tcp_is_held {
            let more = "buffers of TCP connections are not counted on this kernel".to_owned();
            let reasons: Vec<String> = report.reason.into_iter().chain([more]).collect();
            report.reason = Some(reasons.join("; "));
        }
        return report;
    }
    let stand_in = if fallback.polled { "polled and ended when over" } else { "nothing" };
    off(stand_in, why_not(group, Feature::Memory))
}

/// The rate and the total: the layer is on if each that was asked for is.
fn cpu(
    group: Option<&Group>,
    asked: &Limits,
    in_force: &InForce,
    fallback: Fallback,
) -> LayerReport {
    let mut ways = Vec::new();
    if let Some(cpus) = asked.cpus {
        let holds = in_force.cpus.is_some_and(|got| (got - processors_of(cpus)).abs() < 1e-6);
        if !holds {
            return off("nothing", why_not(group, Feature::Cpu));
        }
        ways.push(format!("{}, {cpus} processors", how(group, Feature::Cpu)));
    }
    if let Some(time) = asked.cpu_time {
        if group.and_then(Group::cpu_time).is_none() {
            let stand_in = if fallback.polled { "polled and ended when over" } else { "nothing" };
            return off(stand_in, why_not(group, Feature::CpuTime));
        }
        ways.push(format!("{}, {time:?} in all", how(group, Feature::CpuTime)));
    }
    if ways.is_empty() { not_asked() } else { on(ways.join("; ")) }
}

fn pids(
    group: Option<&Group>,
    asked: &Limits,
    in_force: &InForce,
    fallback: Fallback,
) -> LayerReport {
    let Some(limit) = asked.pids else { return not_asked() };
    if in_force.pids == Some(limit.saturating_add(fallback.beside)) {
        return on(format!("{}, {limit} tasks", how(group, Feature::Pids)));
    }
    if let Some(got) = fallback.process_limit.filter(|got| *got <= limit) {
        let mut report = on(format!("rlimit in the sandbox's user namespace, {got} tasks"));
        report.reason = Some(why_not(group, Feature::Pids));
        return report;
    }
    let stand_in = if fallback.polled { "polled and ended when over" } else { "nothing" };
    off(stand_in, why_not(group, Feature::Pids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_group_a_typed_limit_is_reported_as_not_enforced() {
        let asked = Limits { memory: Some(ByteSize(1)), pids: Some(5), ..Limits::default() };
        let report = report_limits(None, &asked, Fallback { polled: true, ..Fallback::default() });
        assert!(!report.enforces(Layer::Memory) && !report.enforces(Layer::Pids));
        assert_eq!(report.0[&Layer::Memory].how, "polled and ended when over");
        assert_eq!(report.0[&Layer::Cpu], not_asked());
    }

    #[test]
    fn processor_time_without_a_group_is_polled_and_so_not_enforced() {
        let time = Some(std::time::Duration::from_secs(1));
        let asked = Limits { cpu_time: time, ..Limits::default() };
        let report = report_limits(None, &asked, Fallback { polled: true, ..Fallback::default() });
        assert!(!report.enforces(Layer::Cpu));
        assert_eq!(report.0[&Layer::Cpu].how, "polled and ended when over");
    }

    #[test]
    fn an_rlimit_counts_for_pids_only_if_it_is_as_tight_as_asked() {
        let asked = Limits { pids: Some(5), ..Limits::default() };
        let with = |limit| Fallback { process_limit: Some(limit), ..Fallback::default() };
        assert!(report_limits(None, &asked, with(5)).enforces(Layer::Pids));
        assert!(!report_limits(None, &asked, with(6)).enforces(Layer::Pids));
    }
}
