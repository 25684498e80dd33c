//! What happens because time has passed.

use super::Keeper;
use super::guard::{cpu_exceeded, cpu_next};
use crate::protocol::{ToInit, Whom};
use skep_types::{EndReason, ExecId};
use std::time::{Duration, Instant};

/// How often a group is asked whether the kernel killed one of it for memory.
const OOM_INTERVAL: Duration = Duration::from_millis(250);
/// Captures become rarer, up to this.
const RAREST_CAPTURE: Duration = Duration::from_secs(30);

impl Keeper<'_> {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut deadlines: Vec<Option<Instant>> = vec![self.idle_deadline(), self.next_join()];
        let mut any = false;
        for running in self.state.execs.values().filter(|running| !running.has_ended()) {
            any = true;
            deadlines.push(running.next_deadline());
            deadlines.push(cpu_next(running.group.as_ref(), &running.limits, now));
        }
        if any {
            deadlines.push(self.state.disk.as_ref().and_then(|guard| guard.next()));
            deadlines.push(self.state.capture.map(|capture| capture.at));
            deadlines.push(self.group.is_some().then(|| now + OOM_INTERVAL));
        }
        deadlines.into_iter().flatten().min()
    }

    fn idle_deadline(&self) -> Option<Instant> {
        Some(self.state.idle_since? + self.spec.policy.limits.idle_timeout?)
    }

    pub(super) fn meet_deadlines(&mut self, now: Instant) {
        if self.idle_deadline().is_some_and(|deadline| now >= deadline) {
            self.state.stopping = true;
            return;
        }
        self.meet_joins(now);
        let execs: Vec<ExecId> = self.state.execs.keys().cloned().collect();
        for exec in &execs {
            self.meet_exec_deadlines(exec, now);
        }
        if execs.is_empty() {
            return;
        }
        self.watch_disk(now);
        if let Some(capture) = self.state.capture.filter(|capture| now >= capture.at) {
            self.capture();
            let cost = now.elapsed();
            let pause = (capture.pause * 2).min(RAREST_CAPTURE).max(cost * 20);
            self.state.capture = Some(super::Capture { at: Instant::now() + pause, pause });
        }
    }

    fn meet_exec_deadlines(&mut self, exec: &ExecId, now: Instant) {
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        if running.has_ended() {
            return self.forget_if_quiet(exec);
        }
        if running.kill_at.is_some_and(|at| now >= at) {
            let reason = running.verdict.unwrap_or(EndReason::Killed);
            return self.kill(exec, reason);
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
        if let Some(group) = &running.group {
            // Half a build is worth nothing: when the kernel killed one, all go.
            let _ = group.end_after_oom(0);
        }
    }

    fn watch_disk(&mut self, now: Instant) {
        let Some(guard) = &mut self.state.disk else { return };
        let Ok(Some(_)) = guard.look(now) else { return };
        let execs: Vec<ExecId> = self.state.execs.keys().cloned().collect();
        for exec in execs {
            if let Some(running) = self.state.execs.get_mut(&exec) {
                running.feel("disk");
            }
            self.kill(&exec, EndReason::DiskLimit);
        }
    }
}
