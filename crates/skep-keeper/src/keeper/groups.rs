//! Who is in which cgroup, and since when.
//!
//! Moving a process into a cgroup makes the kernel wait until every processor has passed a quiet
//! point: some 15 ms, more than a whole `skep run -- true`. A process that does not live that long
//! needs no limit of its use over time. So unless a limit was typed, the sandbox and its execs are
//! moved a moment after they start; until then what they may do is bounded by resource limits of
//! the process (files, processes) and by how little fits into that moment. Whatever needs the
//! group (freezing, ending one exec of several) has them moved first.
//!
//! The moment is one of their time, not of the clock's: on a busy host a command that needs a
//! millisecond may wait thirty for a processor, and moving it then would cost more than it does.
//!
//! A group that nobody is in yet holds nobody. Where a start a moment ago made one with the same limits and
//! read them back, it is made when the first one is moved, and must come to what was reported then; else
//! the sandbox ends. Making it and taking it away again cost a tenth of a run that did not live so long.

use super::Keeper;
use crate::failure::{Failure, Step};
use crate::launch::make_group;
use crate::vessel::{Tasks, Vessel, pid_of};
use rustix::io::Errno;
use rustix::process::Pid;
use skep_confine::cgroup::{CgroupError, Feature, Group, GroupLimits};
use skep_confine::report::{Fallback, report_limits};
use skep_confine::usage::{children_of, families_of, time_of_descendants};
use skep_provider::{ProviderError, RunSpec};
use skep_sys::failpoint;
use skep_types::{EnforcementReport, ExecId, Limits};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long after its start something is moved.
const SOON: Duration = Duration::from_millis(30);
/// Whoever is inside and has had a processor for less than this by then is left for another while…
const HARDLY: Duration = Duration::from_millis(10);
/// … if they are no more than this many threads…
const FEW: usize = 8;
/// … and until this long after the start.
const LATEST: Duration = Duration::from_millis(250);
/// How long is moved at once: who forks faster than we move must not keep us from our deadlines.
const BUDGET: Duration = Duration::from_millis(200);
/// How often that is done for an operation that needs everybody moved.
const MANY_TIMES: u32 = 50;
/// When to go on after that.
const AGAIN: Duration = Duration::from_millis(20);

/// The sandbox's group, and whether the sandbox is in it yet.
#[derive(Debug)]
pub struct Membership {
    group: Place,
    join_at: Option<Instant>,
    /// Since when somebody is there who is not in it.
    since: Instant,
    /// Whether anybody has ever been in it: before, there is nothing to ask it.
    pub used: bool,
    /// Whether it is known that nobody was left outside.
    pub closed: bool,
}

/// A group that is there, or one that is made when the first one is to be in it.
#[derive(Debug)]
enum Place {
    Made(Group),
    Promised(Box<Promise>),
}

/// What was said of a group that is not there yet.
#[derive(Debug, Clone)]
pub struct Promise {
    /// What it is to hold.
    pub limits: Limits,
    /// What else there is.
    pub beside: Fallback,
    /// What was reported of that.
    pub reported: EnforcementReport,
    /// Where it is remembered that it can be had.
    pub remembered: PathBuf,
}

impl Membership {
    /// A group that init has joined already, or will soon.
    pub fn new(group: Group, joined: bool) -> Self {
        Self::at(Place::Made(group), joined)
    }

    /// One that is made before anybody joins it.
    pub fn promised(promise: Promise) -> Self {
        Self::at(Place::Promised(Box::new(promise)), false)
    }

    fn at(group: Place, joined: bool) -> Self {
        let since = Instant::now();
        Self {
            group,
            join_at: (!joined).then(|| since + SOON),
            since,
            used: joined,
            closed: joined,
        }
    }

    /// The group, if it is there: before that nobody has been in it.
    pub fn group(&self) -> Option<&Group> {
        match &self.group {
            Place::Made(group) => Some(group),
            Place::Promised(_) => None,
        }
    }

    /// The group, which is made now if it was only promised. It holds what was reported, or is taken
    /// away again; and nobody is promised one after that without another look.
    fn make(&mut self, spec: &RunSpec, vessel: &Vessel) -> Result<&Group, Failure> {
        if let Place::Promised(promise) = &self.group {
            let made = failpoint::hit("join.cgroup")
                .step(|| "make the sandbox's cgroup".into())
                .and_then(|()| make_group(spec, vessel))
                .and_then(|made| kept(made, promise));
            if made.is_err() {
                let _ = std::fs::remove_file(&promise.remembered);
            }
            self.group = Place::Made(made?);
        }
        match &self.group {
            Place::Made(group) => Ok(group),
            Place::Promised(_) => Err(Failure::invalid("the cgroup is missing")),
        }
    }

    /// Takes the group away; says whether something is left of it.
    pub fn leaves_something(self) -> bool {
        match self.group {
            Place::Made(group) => group.remove().is_err(),
            Place::Promised(_) => false,
        }
    }

    /// Whether all that were found have been moved, and somebody may have been missed.
    pub fn is_to_be_closed(&self) -> bool {
        self.used && !self.closed && self.join_at.is_none()
    }

    /// Moves everyone again in a moment.
    pub fn move_again(&mut self) {
        self.join_at = Some(Instant::now() + AGAIN);
    }

    /// Somebody is there who is not in it yet.
    pub fn has_a_newcomer(&mut self) {
        if self.join_at.is_none() {
            self.since = Instant::now();
            self.join_at = Some(self.since + SOON);
        }
    }
}

impl Keeper<'_> {
    /// When somebody has to be moved next.
    pub(super) fn next_join(&self) -> Option<Instant> {
        let execs = self.state.execs.values().filter_map(|running| running.join_at);
        self.group.as_ref().and_then(|membership| membership.join_at).into_iter().chain(execs).min()
    }

    /// Moves whoever is due. A move that fails leaves a sandbox without its limits: it ends.
    pub(super) fn meet_joins(&mut self, now: Instant) {
        if self.next_join().is_none_or(|next| now < next) || self.may_wait(now) {
            return;
        }
        match self.join_all() {
            Ok(()) => self.close_group(),
            Err(failure) => self.end_without_limits(failure),
        }
    }

    /// Limits that do not hold are worse than no sandbox. Whoever waits is told why it ends.
    fn end_without_limits(&mut self, failure: Failure) {
        let why = ProviderError::from(failure).problem().message;
        self.state.ends_because = Some(format!("its limits could not be put on: {why}"));
        self.state.stopping = true;
    }

    /// Puts off whoever is due, if nobody inside has done much yet.
    fn may_wait(&mut self, now: Instant) -> bool {
        let due = |join_at: Option<Instant>| join_at.is_some_and(|at| at <= now);
        let group = self.group.as_ref().filter(|membership| due(membership.join_at));
        let execs = self.state.execs.values().filter(|running| due(running.join_at));
        let since = group.map(|group| group.since).into_iter().chain(execs.map(|run| run.started));
        let early = since.min().is_some_and(|since| now < since + LATEST);
        let idle = || time_of_descendants(self.init.pid, FEW).is_some_and(|time| time < HARDLY);
        if !early || !idle() {
            return false;
        }
        let later = |join_at: &mut Option<Instant>| {
            if due(*join_at) {
                *join_at = Some(now + SOON);
            }
        };
        if let Some(membership) = &mut self.group {
            later(&mut membership.join_at);
        }
        self.state.execs.values_mut().for_each(|running| later(&mut running.join_at));
        true
    }

    /// Moves everybody who is not where they belong, as many as can be in a short time. Who is left
    /// is moved a moment later; a limit on the process holds their number meanwhile.
    pub(super) fn join_all(&mut self) -> Result<(), Failure> {
        let failed = |error: CgroupError| Failure::invalid(skep_types::chain(&error));
        if let Some(membership) = &mut self.group
            && membership.join_at.is_some()
        {
            let mut first = vec![self.init.pid];
            first.extend(self.attendants.egress.as_ref().and_then(|egress| egress.pid()));
            let group = membership.make(self.spec, self.vessel)?;
            let moved = move_family(group, &first);
            membership.used = true;
            let moved = moved.map_err(failed)?;
            membership.join_at = moved.next();
        }
        let waiting: Vec<ExecId> = self
            .state
            .execs
            .iter()
            .filter(|(_, running)| running.join_at.is_some())
            .map(|(exec, _)| exec.clone())
            .collect();
        for exec in waiting {
            self.join_exec(&exec).map_err(failed)?;
        }
        Ok(())
    }

    /// Moves until nobody is left: who is not in a group is not frozen with it.
    pub(super) fn join_completely(&mut self) -> Result<(), Failure> {
        for _ in 0..MANY_TIMES {
            self.join_all()?;
            if self.next_join().is_none() {
                return Ok(());
            }
        }
        Err(Failure::invalid("processes are started faster than they can be moved into a cgroup"))
    }

    pub(super) fn join_exec(&mut self, exec: &ExecId) -> Result<(), CgroupError> {
        // Nobody is in a group of its own before the sandbox is in one.
        let Some(group) = self.group.as_ref().and_then(Membership::group) else { return Ok(()) };
        let Some(running) = self.state.execs.get_mut(exec) else { return Ok(()) };
        running.join_at = None;
        let group = match running.group.take() {
            Some(group) => group,
            None => group.child(exec, &GroupLimits::default())?,
        };
        let born = running.born;
        let main = running.process.as_ref().and_then(pid_of);
        let mut first = self.orphans_since(born);
        first.extend(main);
        let moved = move_family(&group, &first);
        if let Some(running) = self.state.execs.get_mut(exec) {
            running.group = Some(group);
            running.join_at = moved.as_ref().ok().and_then(Moved::next);
        }
        moved.map(drop)
    }

    /// Processes that have detached from their exec before it had a group: init has adopted them,
    /// they are nobody's main process and in nobody's group. They are taken for the exec that was
    /// started last before they were.
    pub(super) fn orphans_since(&self, born: u64) -> Vec<Pid> {
        self.unattributed(children_of(self.init.pid), born)
    }

    /// Those of some processes who are in nobody's group and were started after this exec, and
    /// before the next.
    pub(super) fn unattributed(&self, mut pids: Vec<Pid>, born: u64) -> Vec<Pid> {
        let execs = || self.state.execs.values();
        let mains: HashSet<Pid> =
            execs().filter_map(|running| running.process.as_ref().and_then(pid_of)).collect();
        let grouped: HashSet<Pid> =
            execs().filter_map(|running| running.group.as_ref()).flat_map(Group::pids).collect();
        let later = execs().map(|running| running.born).filter(|other| *other > born).min();
        let is_orphan = |pid: &Pid| {
            let number = pid.as_raw_nonzero().get();
            let started = skep_sys::process::start_ticks(number).unwrap_or(0);
            !mains.contains(pid)
                && !grouped.contains(pid)
                && started >= born
                && later.is_none_or(|later| started < later)
        };
        pids.retain(is_orphan);
        pids
    }

    /// An exec with limits of its own is in its group from the first instruction on. The sandbox is
    /// moved before it: it would otherwise take the exec along into its own group.
    pub(super) fn group_first(
        &mut self,
        exec: &ExecId,
        limits: &Limits,
    ) -> Result<Option<Group>, Failure> {
        let own = limits.memory.is_some() || limits.cpus.is_some() || limits.pids.is_some();
        let counted = own || limits.cpu_time.is_some();
        if counted {
            self.join_all()?;
        }
        match self.group.as_ref().and_then(Membership::group) {
            Some(group) if counted && self.has_exec_groups() => group
                .child(exec, &GroupLimits::from(limits))
                .map(Some)
                .map_err(|error| Failure::invalid(skep_types::chain(&error))),
            _ => Ok(None),
        }
    }

    /// A limit that was typed for one exec is held by its own group, or refused: what stands in for
    /// one elsewhere cannot tell execs apart.
    pub(super) fn refuse_unheld(
        &self,
        limits: &Limits,
        group: Option<&Group>,
    ) -> Result<(), Failure> {
        if limits.io_weight.is_some() {
            return Err(Failure::missing(
                "`io_weight` for one exec",
                "it is the sandbox that is weighed against others",
                "give it to the sandbox when it is created: `--io-weight`",
            ));
        }
        let asked = [
            ("--memory", Feature::Memory, limits.memory.is_some()),
            ("--cpus", Feature::Cpu, limits.cpus.is_some()),
            ("--cpu-time", Feature::CpuTime, limits.cpu_time.is_some()),
            ("--pids", Feature::Pids, limits.pids.is_some() && !self.can_count_tasks()),
        ];
        for (flag, feature, _) in asked.into_iter().filter(|(_, _, asked)| *asked) {
            let missing = match group {
                None => Some("execs have no cgroup of their own here".to_owned()),
                Some(group) => group.missing().get(&feature).cloned(),
            };
            if let Some(reason) = missing.filter(|_| !self.spec.policy.best_effort) {
                return Err(Failure::missing(
                    format!("`{flag}` for one exec"),
                    reason,
                    "limit the sandbox instead when it is created, or create it with `--best-effort`",
                ));
            }
        }
        Ok(())
    }

    /// Whether the tasks of one exec can be held without a cgroup. The kernel counts those of others with
    /// them, so either there are none, or they can be told apart.
    fn can_count_tasks(&self) -> bool {
        let alone = || children_of(self.init.pid).is_empty();
        self.counts_by_rlimit()
            && (self.vessel.machine().is_some() || self.tells_execs_apart() || alone())
    }

    /// Whether the processes of an exec wear its mark: not in a container, where init may give none.
    pub(super) fn tells_execs_apart(&self) -> bool {
        matches!(self.vessel, Vessel::Namespaces | Vessel::Bubblewrap { .. })
    }

    /// Whether the kernel counts the tasks of the sandbox for each of its processes: in a user
    /// namespace of its own, and in a guest.
    pub(super) fn counts_by_rlimit(&self) -> bool {
        self.vessel.machine().is_some()
            || (!self.vessel.is_bare() && self.vessel.tasks() == Tasks::Host)
    }

    /// When an exec without a group is to be moved into one.
    pub(super) fn join_soon(&self) -> Option<Instant> {
        self.has_exec_groups().then(|| Instant::now() + SOON)
    }

    /// Whether each exec has a cgroup of its own: not where there are none, and not where another
    /// kernel's processes are inside, which the host sees as one.
    pub(super) fn has_exec_groups(&self) -> bool {
        self.group.is_some() && self.vessel.tasks() == Tasks::Host
    }
}

/// A group that was promised, if it holds what was reported.
fn kept(made: Result<Group, CgroupError>, promise: &Promise) -> Result<Group, Failure> {
    let group = made.map_err(|error| Failure::invalid(skep_types::chain(&error)))?;
    let found = report_limits(Some(&group), &promise.limits, promise.beside);
    let same = |(layer, found)| promise.reported.0.get(layer) == Some(found);
    if found.0.iter().all(same) {
        return Ok(group);
    }
    let _ = group.remove();
    Err(Failure::invalid("the cgroup does not hold what was reported"))
}

/// Whether all have been moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    All,
    Some,
}

impl Moved {
    /// When to go on.
    fn next(&self) -> Option<Instant> {
        (*self == Self::Some).then(|| Instant::now() + AGAIN)
    }
}

/// Moves some processes and all they have started. One may fork while we look: its child is then
/// in the old group and is found by looking again, until a look finds nobody new or time is up. Who
/// is missed because it forks and ends in between is found by init (`strays.rs`).
fn move_family(group: &Group, first: &[Pid]) -> Result<Moved, CgroupError> {
    let start = Instant::now();
    let files = group.procs_files()?;
    let mut moved: HashSet<Pid> = group.pids().into_iter().collect();
    loop {
        let mut all = families_of(first);
        all.retain(|pid| moved.insert(*pid));
        if all.is_empty() {
            return Ok(Moved::All);
        }
        for pid in all {
            if start.elapsed() > BUDGET {
                return Ok(Moved::Some);
            }
            for file in &files {
                match rustix::io::write(file, pid.as_raw_nonzero().to_string().as_bytes()) {
                    // Gone meanwhile is as good as moved.
                    Ok(_) | Err(Errno::SRCH) => {}
                    Err(error) => {
                        return Err(CgroupError::WriteKnob {
                            knob: "cgroup.procs",
                            value: pid.as_raw_nonzero().to_string(),
                            cgroup: group.directories().next().unwrap_or(Path::new("")).to_owned(),
                            source: error.into(),
                        });
                    }
                }
            }
        }
    }
}
