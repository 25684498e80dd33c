//! What holds of the limits, and what is refused because it does not.

use super::quota::Quota;
use crate::failure::Failure;
use crate::identity::IdMap;
use crate::vessel::{Tasks, Vessel};
use rustix::process::{Resource, getrlimit};
use skep_confine::cgroup::Group;
use skep_confine::report::{Fallback, NO_GROUP, NO_LIMIT, report_io, report_limits};
use skep_provider::RunSpec;
use skep_types::{EnforcementReport, Layer, NetworkMode, SystemView};

/// Who holds the limits.
#[derive(Default)]
pub struct Holders<'a> {
    /// Skep's own group.
    pub own: Option<&'a Group>,
    /// Where there is none, one that is only watched.
    pub watched: Option<&'a Group>,
    /// What is known of a group that will be there before anybody needs it.
    pub promised: Option<&'a EnforcementReport>,
}

/// The layers that a group answers for.
const HELD: [Layer; 3] = [Layer::Memory, Layer::Cpu, Layer::Pids];

/// What a report says of the layers that a group answers for, if it holds the memory: what can be
/// promised of another one.
pub fn held(report: &EnforcementReport) -> Option<EnforcementReport> {
    let part = |layer: Layer| Some((layer, report.0.get(&layer)?.clone()));
    let held: Option<_> = HELD.into_iter().map(part).collect();
    let is_held = report.0.get(&Layer::Memory).is_some_and(|memory| memory.enforced);
    held.filter(|_| is_held).map(EnforcementReport)
}

/// What stands in for a group, or beside it.
pub fn fallback(spec: &RunSpec, map: IdMap, holders: &Holders<'_>) -> Fallback {
    let Holders { own, watched, promised } = holders;
    let limit = spec.policy.limits.pids.filter(|_| map != IdMap::Host);
    // A hard limit that the caller has stays.
    let most = || getrlimit(Resource::Nproc).maximum;
    Fallback {
        process_limit: limit.map(|limit| most().map_or(limit, |most| most.min(limit))),
        polled: own.is_none() && watched.is_none() && promised.is_none(),
        beside: u64::from(own.is_none() && watched.is_some()),
    }
}

/// The part of the report that is about limits.
pub fn report(
    spec: &RunSpec,
    vessel: &Vessel,
    map: IdMap,
    holders: Holders<'_>,
    quota: &Result<Quota, String>,
) -> EnforcementReport {
    let limits = &spec.policy.limits;
    let fallback = fallback(spec, map, &holders);
    let Holders { own, watched, promised } = holders;
    let group = own.or(watched);
    let mut report = match promised {
        Some(promised) => promised.clone(),
        None => report_limits(group, limits, fallback),
    };
    report.0.insert(Layer::Io, report_io(own, limits.io_weight, &spec.directory));
    if let (Some(machine), Some(_)) = (vessel.machine(), limits.memory) {
        // The group around it leaves room for what makes the guest; the guest has no more.
        report.on(Layer::Memory, format!("the guest's own memory, {} MiB", machine.memory_mib));
    }
    if let (Some(_), Some(pids)) = (vessel.machine(), limits.pids) {
        report.on(Layer::Pids, format!("a cgroup of the guest's, {pids} tasks for each exec"));
    }
    if vessel.tasks() == Tasks::Foreign && limits.memory.is_some() && group.is_none() {
        let reason = "no cgroup can be written by this user, and what another kernel hands out is not seen from outside";
        report.off(Layer::Memory, "nothing", reason);
    }
    if vessel.tasks() == Tasks::Foreign && limits.pids.is_some() {
        let reason = "the processes inside are another kernel's, which the host does not count";
        report.off(Layer::Pids, "the runtime's own tasks are counted", reason);
    }
    let counted = match spec.policy.system {
        SystemView::Ro => "the upper",
        SystemView::Cow => "the upper and those of the system",
    };
    match limits.disk {
        Some(size) => {
            let guard = format!(
                "guard on {counted} ({size}; looked at every 5 ms to 2 s, deleted files that are open or mapped too), one file by RLIMIT_FSIZE"
            );
            report.on(
                Layer::Disk,
                match quota {
                    Ok(_) => format!("project quota on {counted} ({size}), and a {guard}"),
                    // The guard knows the ways to hold what was deleted that were found so far.
                    Err(reason) => format!(
                        "{guard}; a program that means to may hold more of what it deleted for a while; no project quota: {reason}"
                    ),
                },
            );
        }
        None => report.off(Layer::Disk, "no limit", NO_LIMIT),
    }
    report
}

/// Where a cgroup could be made and would limit nothing, the reason is another one than elsewhere.
pub fn note_what_is_in_the_way(report: &mut EnforcementReport, reason: Option<&str>) {
    let unheld = report.0.values_mut().filter(|layer| layer.reason.as_deref() == Some(NO_GROUP));
    for (layer, reason) in unheld.zip(reason.into_iter().cycle()) {
        layer.reason = Some(reason.to_owned());
    }
}

/// Without a freezer a freeze is a signal, which a process can have itself woken from unless it is
/// traced. Whether that could be done is said of each freeze.
pub fn note_signals(report: &mut EnforcementReport, vessel: &Vessel, grouped: bool) {
    let freezer = grouped && vessel.tasks() == Tasks::Host || vessel.machine().is_some();
    if let Some(processes) = report.0.get_mut(&Layer::Processes).filter(|_| !freezer) {
        processes
            .how
            .push_str("; a freeze stops them by signals and holds them by ptrace where it may");
    }
}

/// What the caller named must hold. Defaults may weaken; the report says so.
pub fn refuse_what_is_missing(spec: &RunSpec, report: &EnforcementReport) -> Result<(), Failure> {
    let asked = spec.asked.iter().filter(|_| !spec.policy.best_effort);
    // Rules about what may be reached are worth nothing if something else may be, too.
    let ruled = (spec.policy.network == NetworkMode::Allow).then_some(&Layer::Network);
    for layer in asked.chain(&spec.policy.require).chain(ruled) {
        let missing = match report.0.get(layer) {
            Some(found) if found.enforced => continue,
            Some(found) => found.reason.clone().unwrap_or_else(|| "it is not enforced".into()),
            None => "this provider does not have that layer".into(),
        };
        // What was typed at create is required of every later start.
        let remedy = match (spec.policy.require.contains(layer), spec.asked.contains(layer)) {
            (true, _) if missing == NO_LIMIT => {
                "name a limit too, such as `--memory 2G` or `--cpus 1`"
            }
            (true, false) => {
                "see `skep doctor` for the remedy; what is required is never gone without, and a limit that was typed only if the sandbox is created with `--best-effort`"
            }
            (_, true) | (false, false) => {
                "see `skep doctor` for the remedy, or say `--best-effort` (and no `--require` for it) to go without"
            }
        };
        return Err(Failure::missing(format!("`{layer}`"), missing, remedy));
    }
    Ok(())
}

/// Ports in need a network of the sandbox's own.
pub fn refuse_ports(spec: &RunSpec, vessel: &Vessel) -> Result<(), Failure> {
    if spec.policy.egress.publish.is_empty() || vessel.has_ports() {
        return Ok(());
    }
    Err(Failure::missing(
        "`--publish`",
        format!("the provider `{}` does not have it", spec.provider),
        "use `--provider namespace`",
    ))
}
