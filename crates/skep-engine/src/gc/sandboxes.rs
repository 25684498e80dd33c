//! Which sandboxes may go.

use super::{Action, decision, spoken};
use crate::api::{GcDecision, GcRequest};
use crate::lifecycle::{holding_work, snapshots_with_work};
use crate::problems::{OrProblem, io_problem};
use crate::review::{Left, counted};
use crate::{Engine, usage};
use serde_json::json;
use skep_policy::Settings;
use skep_store::SandboxFilter;
use skep_sys::failpoint;
use skep_types::{ByteSize, Problem, Sandbox, SandboxId, SandboxState, WorkspaceDriver};
use std::cell::Cell;
use std::time::Duration;

/// The label that says how many seconds a sandbox may live.
pub(crate) const TTL: &str = "skep.ttl";
/// The label of one whose time is over and whose work is kept: when that was decided.
pub(crate) const EXPIRED: &str = "skep.expired";
/// The label of one that is kept although nothing was changed in it.
pub(crate) const KEPT: &str = "skep.keep";

/// What is known of a sandbox when it is decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    state: SandboxState,
    running: bool,
    /// Changes nobody has decided on.
    unreviewed: u64,
    /// What they are, where it was looked.
    left: Option<Left>,
    /// Ignored paths and changes of git's own that hold nobody up any more.
    apart: u64,
    /// Whether somebody wants it without changes too.
    kept: bool,
    /// States kept under a label, which nobody may have reviewed.
    snapshots: usize,
    /// Since its row last changed.
    idle: Duration,
    /// Whether its time to live is over.
    expired: bool,
    /// Whether it can be archived at all: a full copy of a project cannot be laid over it again.
    archivable: bool,
}

/// When things go.
#[derive(Debug, Clone, Copy)]
struct Ages {
    approved: Duration,
    rejected: Duration,
    /// Asked for: everything that is idle for so long and has nothing unreviewed.
    idle: Option<Duration>,
    /// Whether unreviewed work may be put into an archive and then removed.
    archive: bool,
    /// Whether sandboxes without changes stay.
    keep_empty: bool,
}

impl Ages {
    fn of(request: &GcRequest, settings: &Settings) -> Self {
        Self {
            approved: settings.approved_age,
            rejected: settings.rejected_age,
            idle: request.older_than,
            archive: request.archive || settings.retention.archive_unreviewed,
            keep_empty: settings.retention.keep_empty,
        }
    }
}

/// When a sandbox's time to live is over (RFC 3339), if it has one that is still to be kept.
pub(crate) fn end_of_life(sandbox: &Sandbox) -> Option<String> {
    if sandbox.labels.contains_key(EXPIRED) {
        return None;
    }
    let ttl: i64 = sandbox.labels.get(TTL)?.parse().ok()?;
    let created: jiff::Timestamp = sandbox.created_at.parse().ok()?;
    created.checked_add(jiff::SignedDuration::from_secs(ttl)).ok().map(|end| end.to_string())
}

impl Engine {
    /// Approved and rejected ones past their age, and nothing else.
    pub(super) fn collect_reviewed(
        &self,
        request: &GcRequest,
        settings: &Settings,
    ) -> Result<Vec<GcDecision>, Problem> {
        let ages = Ages::of(request, settings);
        let states = [SandboxState::Approved, SandboxState::Rejected].into();
        let filter = SandboxFilter { states, ..SandboxFilter::default() };
        let mut decisions = Vec::new();
        for sandbox in self.store.list_sandboxes(&filter).or_problem()? {
            let size = self.size_of(&sandbox);
            decisions.extend(self.collect_sandbox(request, &sandbox, &ages, None, size));
        }
        Ok(decisions)
    }

    pub(super) fn collect_sandboxes(
        &self,
        request: &GcRequest,
        settings: &Settings,
    ) -> Result<Vec<GcDecision>, Problem> {
        let ages = Ages::of(request, settings);
        let mut sandboxes = self.store.list_sandboxes(&SandboxFilter::default()).or_problem()?;
        // Those that were left alone the longest go first when room is needed.
        sandboxes.sort_by(|one, other| one.updated_at.cmp(&other.updated_at));
        let sizes: Vec<u64> = sandboxes.iter().map(|sandbox| self.size_of(sandbox)).collect();
        let limit = request.max_size.unwrap_or(settings.total_size);
        let mut over = sizes.iter().sum::<u64>().saturating_sub(limit.0);
        let mut decisions = Vec::new();
        for (sandbox, size) in sandboxes.iter().zip(sizes) {
            let room = (over > 0).then_some(limit);
            let decided = self.collect_sandbox(request, sandbox, &ages, room, size);
            let gone = [Action::Remove.as_str(), Action::Archive.as_str()];
            if decided.iter().any(|decision| gone.contains(&decision.action.as_str())) {
                over = over.saturating_sub(size);
            }
            decisions.extend(decided);
        }
        Ok(decisions)
    }

    pub(crate) fn size_of(&self, sandbox: &Sandbox) -> u64 {
        let directory = self.layout().sandbox(&sandbox.id);
        usage::of(&directory).map_or(0, |usage| usage.bytes)
    }

    /// What lies in layers that nobody else stands on: they go with the sandbox.
    fn size_of_own_layers(&self, sandbox: &Sandbox) -> u64 {
        let Ok(used) = self.store.layers_in_use() else { return 0 };
        let own = sandbox.layers.iter().filter(|layer| used.get(layer) == Some(&1));
        own.filter_map(|layer| usage::of(&self.layout().layer(layer)).ok())
            .map(|own| own.bytes)
            .sum()
    }

    /// Decides and acts under the sandbox's lock. What cannot be decided is kept.
    fn collect_sandbox(
        &self,
        request: &GcRequest,
        sandbox: &Sandbox,
        ages: &Ages,
        room: Option<ByteSize>,
        size: u64,
    ) -> Vec<GcDecision> {
        let name = sandbox.name.as_str();
        let layers = Cell::new(0);
        let goes = |action: &Action| matches!(action, Action::Remove | Action::Archive);
        let say = |action, reason: String| {
            let freed = if goes(&action) { size + layers.get() } else { 0 };
            decision("sandbox", name, action, reason, freed)
        };
        let Ok(_lock) = self.lock_now(&sandbox.id) else {
            return vec![say(Action::Keep, "another skep is working on it".into())];
        };
        let decided = self.judge_locked(&sandbox.id).and_then(|(sandbox, facts)| {
            let decided = decide(&facts, ages, room);
            if decided.iter().any(|(action, _)| goes(action)) {
                layers.set(self.size_of_own_layers(&sandbox));
            }
            if request.dry_run {
                return Ok(decided);
            }
            self.carry_out(&sandbox, decided, &|facts| decide(facts, ages, room))
        });
        match decided {
            Ok(decided) => {
                decided.into_iter().map(|(action, reason)| say(action, reason)).collect()
            }
            Err(problem) => vec![say(Action::Keep, format!("it could not be let go: {problem}"))],
        }
    }

    /// Does what was decided, under the sandbox's lock. Where it is stopped for it, it is judged again:
    /// what was written between the look and the stop is unreviewed work like any other.
    fn carry_out(
        &self,
        sandbox: &Sandbox,
        decided: Vec<(Action, String)>,
        again: &dyn Fn(&Facts) -> Vec<(Action, String)>,
    ) -> Result<Vec<(Action, String)>, Problem> {
        let Some(stop) = decided.iter().find(|(action, _)| *action == Action::Stop).cloned() else {
            for (action, _) in &decided {
                match action {
                    Action::Keep | Action::Stop => {}
                    Action::Remove => self.delete(sandbox)?,
                    // The work is on the disk in its archive before anything of it goes.
                    Action::Archive => {
                        self.archive(sandbox)?;
                        self.delete(sandbox)?;
                    }
                }
            }
            return Ok(decided);
        };
        failpoint::hit("gc.judged")
            .map_err(|error| io_problem("stop", self.layout().root(), &error))?;
        self.stop_locked(sandbox.clone())?;
        let (sandbox, facts) = self.judge_locked(&sandbox.id)?;
        let rest =
            again(&facts).into_iter().filter(|(action, _)| *action != Action::Stop).collect();
        let mut done = vec![stop];
        done.extend(self.carry_out(&sandbox, rest, again)?);
        Ok(done)
    }

    /// A sandbox as it is now that its lock is held.
    fn judge_locked(&self, id: &SandboxId) -> Result<(Sandbox, Facts), Problem> {
        self.settle_layers_of(id)?;
        let sandbox = self.load(id)?;
        let facts = self.facts(&sandbox)?;
        Ok((sandbox, facts))
    }

    /// Sandboxes whose time to live is over: stopped, and removed when nothing is unreviewed. Whoever
    /// opens an engine does this, so that no daemon is needed; one that is being worked on, or cannot
    /// be judged, is left for the next.
    pub(crate) fn expire(&self, sandboxes: &[Sandbox]) {
        let over = |sandbox: &&Sandbox| {
            !sandbox.labels.contains_key(EXPIRED) && self.is_over(sandbox).unwrap_or(false)
        };
        for sandbox in sandboxes.iter().filter(over) {
            let _ = self.whole(self.expire_one(sandbox));
        }
    }

    fn expire_one(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let _lock = self.lock_now(&sandbox.id)?;
        let (sandbox, facts) = self.judge_locked(&sandbox.id)?;
        // It may have been given more time while we looked.
        if !facts.expired || facts.state == SandboxState::Creating {
            return Ok(());
        }
        let (settings, _) = self.settings(None, None)?;
        let ages = Ages::of(&GcRequest::default(), &settings);
        let again = |facts: &Facts| decide(facts, &ages, None);
        let kept = match self.carry_out(&sandbox, again(&facts), &again) {
            Ok(done) => done.into_iter().find(|(action, _)| *action == Action::Keep),
            Err(problem) if self.is_running(&self.load(&sandbox.id)?) => return Err(problem),
            // It stands still, and `skep gc` may be asked to try again.
            Err(problem) => Some((Action::Keep, problem.to_string())),
        };
        let Some((_, reason)) = kept else { return Ok(()) };
        // Noted, so that nobody derives its changes again to find the same.
        let at = self.now();
        self.update(&sandbox.id, "sandbox.expired", json!({ "kept": reason }), &mut |row| {
            row.labels.insert(EXPIRED.into(), at.clone());
            row.state_reason = Some(format!("its time to live is over; kept: {reason}"));
        })?;
        Ok(())
    }

    fn is_over(&self, sandbox: &Sandbox) -> Result<bool, Problem> {
        match sandbox.labels.get(TTL).and_then(|ttl| ttl.parse().ok()) {
            None => Ok(false),
            Some(ttl) => Ok(self.age(&sandbox.created_at)? >= Duration::from_secs(ttl)),
        }
    }

    fn facts(&self, sandbox: &Sandbox) -> Result<Facts, Problem> {
        let running = self.is_running(sandbox);
        let expired = self.is_over(sandbox)?;
        let snapshots = self.store.list_snapshots(Some(&sandbox.id)).or_problem()?;
        // A running one stays in any case: no need to pause it for a look.
        let look = sandbox.state != SandboxState::Creating && (!running || expired);
        let left = if look { Some(self.left(sandbox)?) } else { None };
        let unreviewed = left.map_or(0, |left| left.unreviewed());
        let all = left.map_or(0, |left| left.changes + left.ignored + left.git);
        Ok(Facts {
            state: sandbox.state,
            running,
            unreviewed,
            left,
            apart: all - unreviewed,
            kept: sandbox.labels.contains_key(KEPT),
            snapshots: holding_work(&snapshots),
            idle: self.age(&sandbox.updated_at)?,
            expired,
            archivable: sandbox.driver != WorkspaceDriver::Copy,
        })
    }
}

impl Facts {
    /// What nobody has decided on.
    fn left(&self) -> String {
        self.left.map_or_else(|| "unreviewed changes".into(), |left| left.describe())
    }
}

/// The rules, in order. `room` is the limit that all together are over.
fn decide(facts: &Facts, ages: &Ages, room: Option<ByteSize>) -> Vec<(Action, String)> {
    if facts.state == SandboxState::Creating {
        return vec![(Action::Keep, "it is being created".into())];
    }
    let mut decided = Vec::new();
    if facts.running && facts.expired {
        decided.push((Action::Stop, "its time to live is over".into()));
    } else if facts.running {
        return vec![(Action::Keep, "it is running".into())];
    }
    let idle = spoken(facts.idle);
    let asked = ages.idle.is_some_and(|age| facts.idle >= age) || room.is_some() || facts.expired;
    let work = facts.unreviewed > 0 && facts.snapshots == 0 && facts.archivable;
    if work && asked && ages.archive {
        let why = match room {
            Some(limit) => format!("all together are over {limit}"),
            None if facts.expired => "its time to live is over".into(),
            None => format!("idle for {idle}"),
        };
        let reason = format!("{}, archived first; {why}", facts.left());
        decided.push((Action::Archive, reason));
        return decided;
    }
    if facts.unreviewed > 0 {
        let mut reason = facts.left();
        if facts.expired {
            reason.push_str("; its time to live is over");
        }
        if ages.idle.is_some_and(|age| facts.idle >= age) {
            reason.push_str(&format!("; idle for {idle}: review or discard it by name"));
        }
        if let Some(limit) = room {
            reason.push_str(&format!("; all together are over {limit}: review or discard it"));
        }
        decided.push((Action::Keep, reason));
        return decided;
    }
    if facts.snapshots > 0 {
        decided.push((Action::Keep, snapshots_with_work(facts.snapshots)));
        return decided;
    }
    let (action, mut reason) = reviewed(facts, ages, room, &idle);
    if facts.apart > 0 {
        let apart = counted(facts.apart, "path", "paths");
        reason.push_str(&format!("; {apart} left that are ignored or git's own"));
    }
    decided.push((action, reason));
    decided
}

/// Nothing is left to review in it.
fn reviewed(facts: &Facts, ages: &Ages, room: Option<ByteSize>, idle: &str) -> (Action, String) {
    if facts.expired {
        return (Action::Remove, "its time to live is over, nothing is unreviewed".into());
    }
    let (age, word) = match facts.state {
        SandboxState::Approved => (ages.approved, "approved"),
        SandboxState::Rejected => (ages.rejected, "rejected"),
        _ if facts.kept && ages.idle.is_none_or(|age| facts.idle < age) && room.is_none() => {
            return (Action::Keep, "it has no changes and was kept by `--keep`".into());
        }
        _ if ages.keep_empty => return (Action::Keep, "it has no changes; `gc.keep_empty`".into()),
        _ => return (Action::Remove, "it has no changes and does not run".into()),
    };
    if facts.idle >= age || ages.idle.is_some_and(|age| facts.idle >= age) {
        return (Action::Remove, format!("{word} {idle} ago"));
    }
    match room {
        Some(limit) => (Action::Remove, format!("{word}, and all together are over {limit}")),
        None => (Action::Keep, format!("{word} {idle} ago; goes after {}", spoken(age))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn facts(state: SandboxState) -> Facts {
        let idle = HOUR;
        let archivable = true;
        Facts {
            state,
            running: false,
            unreviewed: 0,
            left: None,
            apart: 0,
            kept: false,
            snapshots: 0,
            idle,
            expired: false,
            archivable,
        }
    }

    fn actions(facts: &Facts, idle: Option<Duration>, room: Option<ByteSize>) -> Vec<Action> {
        let ages = ages(idle);
        decide(facts, &ages, room).into_iter().map(|(action, _)| action).collect()
    }

    fn ages(idle: Option<Duration>) -> Ages {
        let (approved, rejected) = (24 * HOUR, 168 * HOUR);
        Ages { approved, rejected, idle, archive: false, keep_empty: false }
    }

    #[test]
    fn unreviewed_work_is_archived_only_when_asked_and_allowed() {
        let work = Facts { unreviewed: 2, ..facts(SandboxState::Stopped) };
        let with = |facts: &Facts, idle, room| {
            let ages = Ages { archive: true, ..ages(idle) };
            decide(facts, &ages, room).into_iter().map(|(action, _)| action).collect::<Vec<_>>()
        };
        assert_eq!(with(&work, None, None), [Action::Keep]);
        assert_eq!(with(&work, Some(HOUR), None), [Action::Archive]);
        assert_eq!(with(&work, Some(2 * HOUR), None), [Action::Keep]);
        assert_eq!(with(&work, None, Some(ByteSize(1))), [Action::Archive]);
        assert_eq!(actions(&work, Some(HOUR), Some(ByteSize(1))), [Action::Keep]);
        let running = Facts { running: true, ..work };
        assert_eq!(with(&running, Some(HOUR), Some(ByteSize(1))), [Action::Keep]);
        for other in [Facts { snapshots: 1, ..work }, Facts { archivable: false, ..work }] {
            assert_eq!(with(&other, Some(HOUR), None), [Action::Keep]);
        }
        let empty = Ages { keep_empty: true, ..ages(None) };
        assert_eq!(decide(&facts(SandboxState::Stopped), &empty, None)[0].0, Action::Keep);
    }

    #[test]
    fn unreviewed_work_stays_whatever_is_asked() {
        for state in SandboxState::ALL {
            for expired in [false, true] {
                for running in [false, true] {
                    for (unreviewed, snapshots) in [(3, 0), (0, 2)] {
                        let base =
                            Facts { unreviewed, snapshots, expired, running, ..facts(state) };
                        let old = Facts { idle: 10_000 * HOUR, ..base };
                        let decided = actions(&old, Some(HOUR), Some(ByteSize(0)));
                        assert!(!decided.contains(&Action::Remove), "{old:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_decided_goes_with_age_or_for_room() {
        use SandboxState::{Approved, Rejected, Stopped};
        assert_eq!(actions(&facts(Stopped), None, None), [Action::Remove]);
        let kept = Facts { kept: true, ..facts(Stopped) };
        assert_eq!(actions(&kept, None, None), [Action::Keep]);
        assert_eq!(actions(&kept, Some(2 * HOUR), None), [Action::Keep]);
        assert_eq!(actions(&kept, Some(HOUR), None), [Action::Remove]);
        assert_eq!(actions(&facts(Approved), None, None), [Action::Keep]);
        let day = |state, days: u32| Facts { idle: 24 * days * HOUR, ..facts(state) };
        assert_eq!(actions(&day(Approved, 1), None, None), [Action::Remove]);
        assert_eq!(actions(&day(Rejected, 1), None, None), [Action::Keep]);
        assert_eq!(actions(&day(Rejected, 7), None, None), [Action::Remove]);
        assert_eq!(actions(&facts(Rejected), Some(HOUR), None), [Action::Remove]);
        assert_eq!(actions(&facts(Rejected), None, Some(ByteSize(1))), [Action::Remove]);
    }

    #[test]
    fn a_running_one_is_stopped_only_when_its_time_is_over() {
        let running = Facts { running: true, ..facts(SandboxState::Ready) };
        assert_eq!(actions(&running, Some(Duration::ZERO), Some(ByteSize(0))), [Action::Keep]);
        let expired = Facts { expired: true, ..running };
        assert_eq!(actions(&expired, None, None), [Action::Stop, Action::Remove]);
        let work = Facts { unreviewed: 1, ..expired };
        assert_eq!(actions(&work, None, None), [Action::Stop, Action::Keep]);
        let archiving = Ages { archive: true, ..ages(None) };
        let decided: Vec<_> =
            decide(&work, &archiving, None).into_iter().map(|one| one.0).collect();
        assert_eq!(decided, [Action::Stop, Action::Archive]);
    }
}
