//! What an exec has used and felt, where nobody in the kernel counts it: from looks.
//!
//! A look comes now and then, an exec may be over before the next. So the guards look once more when
//! it ends, if it could have met its limits at all by then: what is reported does not depend on the
//! moment, as far as what is left behind tells.

use super::running::{MainEnd, Running};
use super::shares::Share;
use super::{Keeper, Membership};
use skep_confine::cgroup::{Feature, Group};
use skep_confine::report::{Fallback, report_limits};
use skep_confine::usage::{family_of, poll_usage};
use skep_types::{EnforcementReport, ExecId, Layer, Limits};
use std::time::Duration;

/// Faster than any kernel makes tasks.
const FASTEST_FORK: Duration = Duration::from_micros(20);

impl Keeper<'_> {
    /// What was used before it, and what holds of the limits that were typed for it.
    pub(super) fn note_beginning(&mut self, running: &mut Running, typed: &Limits) {
        running.own_report = self.own_report(running, typed);
        // Of the first one nothing was before.
        let asked = running.limits.cpu_time.is_some() || self.state.so_far.any();
        // What others have had until now is not its own.
        let _ = self.tell_apart();
        if let Some(guard) = self.state.polled.as_mut().filter(|_| asked) {
            let look = guard.measure(None);
            running.cpu_before = look.cpu;
            running.share = Share::begin(self.state.told, look.stored);
        }
    }

    /// Of the first one it is not asked what was before: that is what init itself has used until now.
    pub(super) fn note_beginnings(&mut self) {
        for running in self.state.execs.values_mut().filter(|running| !running.has_ended()) {
            if running.cpu_seen.is_zero() && running.cpu_before.is_zero() {
                running.cpu_before = poll_usage(&[self.init.pid]).cpu;
            }
        }
    }

    /// The main process of an exec has ended by itself.
    pub(super) fn last_look(&mut self, exec: &ExecId, main: &MainEnd) {
        let Some(running) = self.state.execs.get(exec) else { return };
        if running.verdict.is_none() {
            self.look_at_use(exec);
            self.look_at_tasks(exec);
            // A shell passes on that its child wrote past the largest file there may be. Anybody can send that
            // signal; what lies there tells.
            let said = main.signal == Some(libc::SIGXFSZ) || main.code == Some(128 + libc::SIGXFSZ);
            self.look_at_disk(exec, said);
        }
    }

    /// Whoever has run long enough to have been looked at is looked at once more.
    fn look_at_use(&mut self, exec: &ExecId) {
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        let Some(guard) = self.state.polled.as_mut().filter(|_| running.cpu_seen > Duration::ZERO)
        else {
            return;
        };
        if running.alone {
            let look = guard.measure(None);
            running.cpu_seen = running.cpu_seen.max(look.cpu.saturating_sub(running.cpu_before));
        }
    }

    /// A fork that a resource limit refuses is counted nowhere; those who were let live show it.
    fn look_at_tasks(&mut self, exec: &ExecId) {
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        let (Some(guard), Some(limit)) = (&mut self.state.polled, running.tasks_in_all) else {
            return;
        };
        let least = FASTEST_FORK.saturating_mul(u32::try_from(limit).unwrap_or(u32::MAX));
        if running.started.elapsed() < least {
            return;
        }
        let look = guard.measure(None);
        if running.alone {
            running.memory_seen = running.memory_seen.max(look.used);
        }
        // Its main process was one of them.
        if look.tasks + 1 >= limit {
            running.feel("pids");
        }
    }

    fn look_at_disk(&mut self, exec: &ExecId, said: bool) {
        let Some(running) = self.state.execs.get(exec) else { return };
        let (own, had, init) = (self.own_disk(running), running.started.elapsed(), self.init.pid);
        let Some(guard) = &mut self.state.disk else { return };
        let passed = guard.look_once_more(had, said, || family_of(init));
        let over = own.is_some_and(|limit| guard.bytes() >= limit);
        if let Some(running) = self.state.execs.get_mut(exec).filter(|_| passed || over) {
            running.feel("disk");
        }
    }

    /// Whether a cgroup holds the memory of everybody inside.
    pub(super) fn holds_memory(&self) -> bool {
        let holds = |group: &Group| {
            group.how(Feature::Memory).is_some() && !group.missing().contains_key(&Feature::Memory)
        };
        self.group.as_ref().filter(|m| m.used).and_then(Membership::group).is_some_and(holds)
    }

    /// The layers that are different for one exec, because limits were typed for it.
    fn own_report(&self, running: &Running, typed: &Limits) -> EnforcementReport {
        let fallback = Fallback {
            process_limit: typed.pids.filter(|_| self.counts_by_rlimit()),
            polled: self.group.is_none(),
            beside: 0,
        };
        let asked = [
            (Layer::Memory, typed.memory.is_some()),
            (Layer::Cpu, typed.cpus.is_some() || typed.cpu_time.is_some()),
            (Layer::Pids, typed.pids.is_some()),
        ];
        let mut report = EnforcementReport::default();
        if asked.iter().any(|(_, asked)| *asked) {
            report = report_limits(running.group.as_ref(), typed, fallback);
            report.0.retain(|layer, _| asked.contains(&(*layer, true)));
        }
        if let (Some(_), Some(pids)) = (self.vessel.machine(), typed.pids) {
            report.on(Layer::Pids, format!("a cgroup of the guest's, {pids} tasks"));
        }
        if let (Some(all), Some(own), Some(pids)) =
            (running.tasks_in_all, typed.pids, report.0.get_mut(&Layer::Pids))
            && all > own
        {
            let how = std::mem::take(&mut pids.how);
            pids.how = format!(
                "{how}; the kernel counts the {} of others that ran when it started with them, and what is \
                 its own is looked at every 50 to 200 ms: above {own} it is ended",
                all - own
            );
        }
        if let Some(size) = typed.disk {
            let guard = format!("guard on the upper ({size}), one file by RLIMIT_FSIZE");
            report.on(Layer::Disk, guard);
        }
        report
    }
}
