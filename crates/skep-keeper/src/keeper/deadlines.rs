//! What happens because time has passed.

use super::guard::{Stand, cpu_exceeded, cpu_next};
use super::operations::FIRST_CAPTURE;
use super::polled::Look;
use super::running::Running;
use super::{Keeper, Noting};
use crate::protocol::{ToInit, Whom, to_json};
use crate::vessel::Vessel;
use skep_types::{EndReason, ExecId, IdleStop};
use std::time::{Duration, Instant};

/// How often a group is asked whether the kernel killed one of it for memory.
const OOM_INTERVAL: Duration = Duration::from_millis(250);
/// How long whoever ran the last command may take to say stop.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Captures become rarer, up to this.
const RAREST_CAPTURE: Duration = Duration::from_secs(5);

/// Tasks that are ours, and not the sandbox's: init, and one that is just being started.
const SPARE_TASKS: u64 = 16;

impl Keeper<'_> {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut deadlines: Vec<Option<Instant>> = vec![
            self.idle_deadline(),
            self.last_deadline(),
            self.next_join(),
            self.next_egress(),
            self.state.refusals.next_deadline(),
        ];
        let mut any = false;
        for running in self.state.execs.values().filter(|running| !running.has_ended()) {
            any = true;
            deadlines.push(running.next_deadline());
            deadlines.push(cpu_next(running.group.as_ref(), &running.limits, now));
        }
        for running in self.state.execs.values().filter(|running| running.has_ended()) {
            deadlines.push(cpu_next(running.group.as_ref(), &running.limits, now));
        }
        deadlines.push(self.names_deadline(now));
        deadlines.push(self.forgetting_deadline());
        if any || self.state.left {
            deadlines.push(self.state.disk.as_ref().and_then(|guard| guard.next()));
            deadlines.push(self.state.polled.as_ref().map(|guard| guard.next()));
        }
        if self.may_change() {
            deadlines.push(self.state.capture.map(|capture| capture.at));
        }
        if any {
            deadlines.push(self.state.tracked.is_going().then_some(now));
            deadlines.push(self.state.starved_look.filter(|_| self.group.is_some()));
        }
        deadlines.into_iter().flatten().min()
    }

    /// Whether somebody is inside who can write. Of a guest it is not known who is left in it.
    pub(super) fn may_change(&self) -> bool {
        let any = self.state.execs.values().any(|running| !running.has_ended());
        let left = self.state.left && !matches!(self.vessel, Vessel::Machine(_));
        (any || left) && !self.state.frozen
    }

    /// When names are noted: a while after the first exec began, whether or not it has ended.
    fn names_deadline(&self, now: Instant) -> Option<Instant> {
        match &self.state.names {
            Noting::NotBegun => self.state.names_at,
            Noting::Going(_) => Some(now),
            Noting::Over => None,
        }
    }

    fn idle_deadline(&self) -> Option<Instant> {
        Some(self.state.idle_since? + self.spec.policy.limits.idle_timeout?)
    }

    /// For whoever finds no keeper later.
    fn record_stop(&self, after: Option<Duration>) {
        let stop = IdleStop {
            keeper: std::process::id(),
            after: after.unwrap_or(LAST_WORD),
            forsaken: after.is_none(),
            unbegun: !self.state.so_far.any(),
        };
        let _ = std::fs::write(self.spec.directory.join(IdleStop::FILE), to_json(&stop));
    }

    /// The command of a run has ended, and whoever ran it does not say stop: it was killed, or cannot reach the
    /// store. Or it was killed before the command began. Nobody needs this one any more. Not before everything
    /// was said to those who listen, nor while another command runs, or somebody has paused it.
    fn last_deadline(&self) -> Option<Instant> {
        let ended = self.state.run_ended?;
        let idle = self.state.idle_since.map_or(ended, |since| since.max(ended));
        let is_quiet = self.state.over_since.is_some()
            || (!self.state.frozen && self.not_ended(|_| true).next().is_none());
        (is_quiet && self.state.connections.is_empty()).then(|| idle + LAST_WORD)
    }

    /// Whether the command of a run has ended and no other runs. It will be stopped, by whoever ran that or by itself:
    /// that it stands still meanwhile lasts for nobody.
    pub(super) fn is_about_to_end(&self) -> bool {
        let last = self.state.run_ended.is_some() && self.not_ended(|_| true).next().is_none();
        last || self.state.over_since.is_some()
    }

    pub(super) fn meet_deadlines(&mut self, now: Instant) {
        let over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| now >= deadline);
        let (idle, last) = (over(self.idle_deadline()), over(self.last_deadline()));
        if idle || last {
            self.record_stop(self.spec.policy.limits.idle_timeout.filter(|_| !last));
            self.state.stopping = true;
            return;
        }
        self.meet_joins(now);
        self.meet_egress(now);
        let execs: Vec<ExecId> = self.state.execs.keys().cloned().collect();
        let look = self.state.starved_look.is_none_or(|at| now >= at);
        for exec in &execs {
            self.meet_exec_deadlines(exec, now, look);
        }
        if look {
            self.look_for_starved_later(now);
        }
        if self.names_deadline(now).is_some_and(|at| now >= at) {
            self.note_names();
        }
        if over(self.forgetting_deadline()) {
            self.let_go();
        }
        if execs.is_empty() && !self.state.left {
            return;
        }
        self.poll_processes(now);
        if let Some(guard) = &mut self.state.disk {
            guard.look(now);
        }
        self.hold_for_a_look(now);
        if self.state.left {
            self.look_for_left();
            if !self.state.left {
                // What they wrote last.
                self.capture();
            }
        }
        if self.state.tracked.is_going() {
            self.note_tracked();
        }
        let due = self.state.capture.filter(|capture| now >= capture.at && self.may_change());
        if let Some(capture) = due {
            let active = self.capture() > 0;
            if self.state.tracked.is_to_begin() {
                self.note_tracked();
            }
            let cost = now.elapsed();
            let pause = if active { FIRST_CAPTURE } else { capture.pause * 2 };
            let pause = pause.min(RAREST_CAPTURE).max(cost * 20);
            self.state.capture = Some(super::Capture { at: Instant::now() + pause, pause });
        }
    }

    /// Asking costs as much as the rest of a round: not after every event.
    pub(super) fn look_for_starved_later(&mut self, now: Instant) {
        self.state.starved_look = Some(now + OOM_INTERVAL);
    }

    fn meet_exec_deadlines(&mut self, exec: &ExecId, now: Instant, look: bool) {
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        if running.has_ended() {
            // Who outlives it has what is left of its time, and no more.
            if cpu_exceeded(running.group.as_ref(), &running.limits) {
                self.record_strays_ended(EndReason::CpuLimit);
                self.kill(exec, EndReason::CpuLimit);
            }
            return self.forget_if_quiet(exec);
        }
        running.repeat_end_of_input(now);
        if running.kill_at.is_some_and(|at| now >= at) {
            let reason = running.verdict.unwrap_or(EndReason::Killed);
            return self.kill(exec, reason);
        }
        if running.stuck_at.is_some_and(|at| now >= at) {
            return self.give_up(exec);
        }
        if let Some(reason) = running.expired(now) {
            running.verdict = Some(reason);
            running.kill_at = Some(now + running.grace());
            let felt = if reason == EndReason::Timeout { "timeout" } else { "silence_timeout" };
            running.feel(felt);
            let message = ToInit::Signal { whom: Whom::Exec(exec.clone()), signal: libc::SIGTERM };
            let _ = self.channel.send(&message, &[]);
            return;
        }
        if running.verdict.is_none() && cpu_exceeded(running.group.as_ref(), &running.limits) {
            running.feel("cpu_time");
            return self.kill(exec, EndReason::CpuLimit);
        }
        if look && running.verdict.is_none() && self.has_starved(exec) {
            // Half a build is worth nothing: when the kernel killed one, all go.
            self.kill(exec, EndReason::Oom);
        }
    }

    /// Whether the kernel has killed one of an exec for want of memory. It may have done so before
    /// the exec was in a group of its own; then it was this one if there is no other.
    fn has_starved(&self, exec: &ExecId) -> bool {
        let Some(running) = self.state.execs.get(exec) else { return false };
        let own = running.group.as_ref().and_then(|group| group.oom_kills()).unwrap_or(0);
        own > 0 || (self.state.execs.len() == 1 && self.memory_kills() > running.before.starved)
    }

    /// The upper has been counted.
    pub(super) fn judge_disk(&mut self) {
        let pids = skep_confine::usage::family_of(self.init.pid);
        let stand = self.stand_for_a_look();
        let passed = self.state.disk.as_mut().and_then(|guard| guard.judge(&pids, stand));
        if passed.is_some() {
            self.end_all(EndReason::DiskLimit, "disk");
        }
        if stand == Stand::Held {
            self.end_look();
        }
        if passed.is_some() {
            return;
        }
        let bytes = self.state.disk.as_ref().map_or(0, |guard| guard.bytes());
        let over = |running: &Running| {
            running.verdict.is_none() && self.own_disk(running).is_some_and(|limit| bytes >= limit)
        };
        let execs: Vec<ExecId> = self.not_ended(over).map(|(exec, _)| exec.clone()).collect();
        for exec in execs {
            if let Some(running) = self.state.execs.get_mut(&exec) {
                running.feel("disk");
            }
            self.kill(&exec, EndReason::DiskLimit);
        }
        let least =
            self.not_ended(|_| true).filter_map(|(_, running)| self.own_disk(running)).min();
        if let Some(guard) = &mut self.state.disk {
            guard.tighten(least);
        }
    }

    fn not_ended(
        &self,
        counts: impl Fn(&Running) -> bool,
    ) -> impl Iterator<Item = (&ExecId, &Running)> {
        let execs = self.state.execs.iter();
        execs.filter(move |(_, running)| !running.has_ended() && counts(running))
    }

    /// How much may lie in the upper while an exec runs, if it has a limit of its own.
    pub(super) fn own_disk(&self, running: &Running) -> Option<u64> {
        let limit =
            running.limits.disk.filter(|_| running.limits.disk != self.spec.policy.limits.disk);
        limit.map(|size| size.0)
    }

    /// Without a cgroup: memory and processor time of all there is, by looking.
    fn poll_processes(&mut self, now: Instant) {
        let memory = self.least_memory();
        let guard = self.state.polled.as_mut();
        if let Some(look) = guard.and_then(|guard| guard.look(now, memory)) {
            self.judge_look(&look);
        }
    }

    /// The same when nobody can move.
    pub(super) fn poll_now(&mut self) {
        let memory = self.least_memory();
        if let Some(look) = self.state.polled.as_mut().map(|guard| guard.look_at_held(memory)) {
            self.judge_look(&look);
        }
    }

    /// The least memory that anybody may have. An exec that has ended and left others behind says
    /// nothing about those of today.
    fn least_memory(&self) -> Option<u64> {
        let execs = self.state.execs.values().filter(|running| !running.has_ended());
        let sandbox = self.spec.policy.limits.memory;
        execs.filter_map(|running| running.limits.memory).chain(sandbox).min().map(|size| size.0)
    }

    fn judge_look(&mut self, look: &Look) {
        self.note_beginnings();
        let over = self.judge_shares(look);
        let sandbox = self.spec.policy.limits.memory;
        if sandbox.is_some_and(|limit| look.memory > limit.0) {
            return self.end_all(EndReason::Oom, "memory");
        }
        // The limit of the kernel is per user, and a root with many ids can be many users.
        // That of one exec is held by the kernel, and is not the others'.
        let pids = self.spec.policy.limits.pids;
        if pids.is_some_and(|limit| look.tasks > limit + SPARE_TASKS) {
            return self.end_all(EndReason::PidsLimit, "pids");
        }
        for running in self.state.execs.values_mut() {
            if running.tasks_in_all.is_some_and(|limit| look.tasks >= limit) {
                running.feel("pids");
            }
        }
        for (exec, reason) in over {
            self.kill(&exec, reason);
        }
    }

    /// Ends every exec for a limit that all of them share, and whoever has outlived one.
    fn end_all(&mut self, reason: EndReason, felt: &str) {
        let anew = self.ends_anew();
        if anew && self.not_ended(|_| true).next().is_none() {
            self.record_strays_ended(reason);
        }
        let execs: Vec<ExecId> = self.state.execs.keys().cloned().collect();
        for exec in &execs {
            if let Some(running) = self.state.execs.get_mut(exec) {
                running.feel(felt);
            }
            self.kill(exec, reason);
        }
        // Those too that left their exec's process group, or are in no group yet.
        let message = ToInit::Signal { whom: Whom::Everyone, signal: libc::SIGKILL };
        let _ = self.channel.send(&message, &[]);
    }
}
