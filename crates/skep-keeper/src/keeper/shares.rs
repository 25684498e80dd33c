//! What is whose of what a look has found, where no cgroup counts it: by the mark that processes of an exec wear.
//!
//! A limit of one exec is held against what is its own, and ends nobody else. What cannot be told (a process that
//! shows no mark, the time of one that was detached and is gone, files in memory that came since) is charged to
//! each exec that runs. Where there are no marks, as in a container, that is everything.

use super::Keeper;
use super::polled::{Look, exact};
use super::running::Running;
use rustix::process::Pid;
use skep_confine::usage::{anonymous_of, family_of, host_names_of, poll_usage};
use skep_types::{EndReason, ExecId, Limits};
use std::time::Duration;

/// Processes inside, and what each of them wears.
pub struct Worn(Vec<(Pid, Option<u64>)>);

impl Worn {
    fn look(init: Pid) -> Self {
        let family = family_of(init).into_iter().filter(|pid| *pid != init);
        Self(family.map(|pid| (pid, host_names_of(pid))).collect())
    }

    /// Those with this mark.
    fn surely_of(&self, mark: u64) -> Vec<Pid> {
        self.0.iter().filter(|(_, worn)| *worn == Some(mark)).map(|(pid, _)| *pid).collect()
    }

    /// Those with this mark, and those who show none.
    fn of(&self, mark: u64) -> Vec<Pid> {
        let wears = |worn: &Option<u64>| worn.is_none_or(|worn| worn == mark);
        self.0.iter().filter(|(_, worn)| wears(worn)).map(|(pid, _)| *pid).collect()
    }
}

/// What is known of the share that an exec has.
#[derive(Debug, Default)]
pub struct Share {
    /// Processor time of those who wear its mark. Never falls.
    cpu: Duration,
    /// What was told apart of all execs before it began.
    told_before: Duration,
    /// Bytes in filesystems in memory before it began.
    stored_before: u64,
}

impl Share {
    /// Of one that begins now.
    pub fn begin(told: Duration, stored: u64) -> Self {
        Self { cpu: Duration::ZERO, told_before: told, stored_before: stored }
    }

    /// Its part of the time that all have used since it began: all, but for what is known to be others'.
    fn of_time(&self, all: Duration, told: Duration) -> Duration {
        let others = told.saturating_sub(self.told_before).saturating_sub(self.cpu);
        all.saturating_sub(others)
    }
}

impl Keeper<'_> {
    /// Looks who wears what, if anybody has to be told apart, and notes the time that each exec has had.
    pub(super) fn tell_apart(&mut self) -> Option<Worn> {
        // One that is alone has it all.
        let several = |running: &Running| !running.alone && running.mark.is_some();
        if !self.state.execs.values().any(several) {
            return None;
        }
        let worn = Worn::look(self.init.pid);
        for running in self.state.execs.values_mut() {
            let Some(mark) = running.mark else { continue };
            let cpu = poll_usage(&worn.surely_of(mark)).cpu;
            let more = cpu.saturating_sub(running.share.cpu);
            running.share.cpu += more;
            self.state.told += more;
        }
        Some(worn)
    }

    /// Notes what each exec has, and says whose own limit is met, and which. The sandbox's limits are not asked
    /// here: those are everybody's.
    pub(super) fn judge_shares(&mut self, look: &Look) -> Vec<(ExecId, EndReason)> {
        let worn = self.tell_apart();
        let (sandbox, told) = (&self.spec.policy.limits, self.state.told);
        let mut over = Vec::new();
        for (exec, running) in self.state.execs.iter_mut().filter(|(_, running)| running.spawned) {
            let part = running.part(look, worn.as_ref(), told);
            if !running.has_ended() {
                running.memory_seen = running.memory_seen.max(part.used);
                running.cpu_seen = running.cpu_seen.max(part.cpu);
            }
            let met = running.met(&part, look, sandbox).filter(|_| running.verdict.is_none());
            if let Some((limit, reason)) = met {
                running.feel(limit);
                over.push((exec.clone(), reason));
            }
        }
        over
    }
}

/// What of a look is one exec's.
struct Part {
    /// Its processes, where they are told apart.
    theirs: Option<Vec<Pid>>,
    /// Files in memory that came since it began.
    stored: u64,
    /// Memory, as figures show it.
    used: u64,
    /// Processor time since it began.
    cpu: Duration,
}

impl Part {
    fn has_more_memory(&self, limit: u64, look: &Look) -> bool {
        match &self.theirs {
            None => look.memory > limit,
            Some(theirs) => {
                poll_usage(theirs).resident.saturating_add(self.stored) > limit
                    && exact(theirs, self.stored) > limit
            }
        }
    }
}

impl Running {
    fn part(&self, look: &Look, worn: Option<&Worn>, told: Duration) -> Part {
        let all = look.cpu.saturating_sub(self.cpu_before);
        let stored = look.stored.saturating_sub(self.share.stored_before);
        match self.mark.zip(worn).map(|(mark, worn)| worn.of(mark)) {
            None => Part { theirs: None, stored, used: look.used, cpu: all },
            Some(theirs) => {
                let used = anonymous_of(&theirs).saturating_add(stored).min(look.used);
                Part { theirs: Some(theirs), stored, used, cpu: self.share.of_time(all, told) }
            }
        }
    }

    /// The limit of its own that it has met. Time counts for who outlives it, too.
    fn met(&self, part: &Part, look: &Look, sandbox: &Limits) -> Option<(&'static str, EndReason)> {
        let runs = !self.has_ended();
        let memory = self.limits.memory.filter(|_| runs && self.limits.memory != sandbox.memory);
        let tasks = || part.theirs.as_ref().map_or(0, |theirs| poll_usage(theirs).threads);
        if memory.is_some_and(|limit| part.has_more_memory(limit.0, look)) {
            Some(("memory", EndReason::Oom))
        } else if runs && self.has_too_many_tasks(sandbox.pids, tasks) {
            Some(("pids", EndReason::PidsLimit))
        } else if self.limits.cpu_time.is_some_and(|limit| part.cpu >= limit) {
            Some(("cpu_time", EndReason::CpuLimit))
        } else {
            None
        }
    }

    /// Whether it has more tasks than were typed for it. The kernel counts them with those of others, and so lets
    /// it have more when the others have gone.
    fn has_too_many_tasks(&self, sandbox: Option<u64>, tasks: impl FnOnce() -> u64) -> bool {
        let own = self.limits.pids.filter(|_| self.limits.pids != sandbox);
        match (own, self.tasks_in_all) {
            (Some(limit), Some(all)) => all > limit && tasks() > limit,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_known_to_be_others_is_not_charged() {
        let second = Duration::from_secs(1);
        let share = Share { cpu: second, told_before: second * 5, stored_before: 0 };
        // Since it began: ten in all, of which three were told apart, one of them its own.
        assert_eq!(share.of_time(second * 10, second * 8), second * 8);
        assert_eq!(share.of_time(second, second * 9), Duration::ZERO);
    }
}
