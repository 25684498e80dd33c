//! Upkeep: what may go, what stays, and why.
//!
//! Everything is decided with a reason and, unless it is a dry run, done at once, under the lock
//! of what is concerned; whatever somebody else is working on is left for the next time. Unreviewed
//! work is never removed, neither for its age nor for its size, nor by a crash of gc itself, unless
//! it was asked for and the work lies in an archive.

mod leftovers;
mod sandboxes;

pub(crate) use sandboxes::{EXPIRED, KEPT, TTL, end_of_life};

use crate::Engine;
use crate::api::{GcDecision, GcPart, GcRequest};
use crate::problems::OrProblem;
use skep_policy::Retention;
use skep_store::SandboxFilter;
use skep_types::{Code, Problem};
use std::time::Duration;

/// What to do with one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Keep,
    Stop,
    Archive,
    Remove,
}

impl Action {
    fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Stop => "stop",
            Self::Archive => "archive",
            Self::Remove => "remove",
        }
    }
}

pub(crate) fn decision(
    what: &str,
    name: &str,
    action: Action,
    reason: String,
    bytes: u64,
) -> GcDecision {
    GcDecision {
        what: what.to_owned(),
        name: name.to_owned(),
        action: action.as_str().to_owned(),
        reason,
        bytes,
    }
}

impl Engine {
    pub(crate) fn collect(&self, request: &GcRequest) -> Result<Vec<GcDecision>, Problem> {
        let (settings, _) = self.settings(None, None)?;
        let wanted = |part: GcPart| request.only.is_empty() || request.only.contains(&part);
        let mut decisions = Vec::new();
        if wanted(GcPart::Sandboxes) {
            decisions = self.collect_sandboxes(request, &settings)?;
            self.collect_unknown(&mut decisions);
        } else if wanted(GcPart::Reviewed) {
            decisions = self.collect_reviewed(request, &settings)?;
        }
        if wanted(GcPart::Undo) {
            self.collect_undo(request, &settings, &mut decisions)?;
        }
        if wanted(GcPart::Layers) {
            self.collect_layers(request, &mut decisions)?;
        }
        if wanted(GcPart::Archives) {
            self.collect_archives(request, &settings, &mut decisions)?;
        }
        if wanted(GcPart::Trash) {
            self.collect_trash(request, &mut decisions);
            self.collect_groups(request, &mut decisions);
        }
        if wanted(GcPart::Rows) && !request.dry_run {
            self.prune(&settings.retention, &mut decisions)?;
        }
        Ok(decisions)
    }

    fn prune(&self, kept: &Retention, decisions: &mut Vec<GcDecision>) -> Result<(), Problem> {
        let mut say = |what: &str, count: usize, reason: String| {
            if count > 0 {
                let name = count.to_string();
                decisions.push(decision(what, &name, Action::Remove, reason, 0));
            }
        };
        if let Some(age) = kept.events {
            let events = self.store.prune_events(&self.earlier(age)?).or_problem()?;
            let count = usize::try_from(events).unwrap_or(usize::MAX);
            say("events", count, format!("older than {}", spoken(age)));
        }
        let rows = self.store.purge_deleted(&self.earlier(kept.deleted)?).or_problem()?;
        let reason = format!("deleted more than {} ago", spoken(kept.deleted));
        say("rows of deleted sandboxes", rows.len(), reason);
        if let Some(age) = kept.history {
            let gone = self.store.forget_approvals(&self.earlier(age)?).or_problem()?;
            let count = usize::try_from(gone).unwrap_or(usize::MAX);
            say("approvals", count, format!("older than {}, past their undo", spoken(age)));
        }
        let execs = self.forget_old_execs(kept)?;
        say("execs", execs, format!("beyond the newest {} or too old", kept.execs_keep));
        let keys = self.store.prune_keys(&self.now()).or_problem()?;
        say("idempotency keys", usize::try_from(keys).unwrap_or(usize::MAX), "expired".into());
        self.store.upkeep().map(drop).or_problem()
    }

    /// Ended execs of living sandboxes: the rows first, so that nobody is led to output that is not
    /// there, then the files.
    fn forget_old_execs(&self, kept: &Retention) -> Result<usize, Problem> {
        let mut gone = 0;
        for sandbox in self.store.list_sandboxes(&SandboxFilter::default()).or_problem()? {
            let execs = self.store.list_execs(&sandbox.id).or_problem()?;
            let mut ended: Vec<_> = execs.into_iter().filter(|exec| exec.end.is_some()).collect();
            ended.reverse();
            let mut old = Vec::new();
            for (place, exec) in ended.into_iter().enumerate() {
                let aged = match kept.execs {
                    Some(most) => self.age(&exec.started_at)? > most,
                    None => false,
                };
                if aged || place as u64 >= kept.execs_keep {
                    old.push(exec.id);
                }
            }
            if old.is_empty() {
                continue;
            }
            let forgotten = self.store.forget_execs(&sandbox.id, &old).or_problem()?;
            gone += usize::try_from(forgotten).unwrap_or(usize::MAX);
            let directory = self.layout().sandbox(&sandbox.id).join("execs");
            for id in old {
                for kind in ["head", "tail0", "tail1", "end", "end.new", "record"] {
                    // One that is not there any more, or not yet removable, is no reason to stop.
                    let _ = std::fs::remove_file(directory.join(format!("{id}.{kind}")));
                }
            }
        }
        Ok(gone)
    }

    /// The time that was so long ago.
    pub(crate) fn earlier(&self, age: Duration) -> Result<String, Problem> {
        let now: jiff::Timestamp = self.now().parse().map_err(clock_problem)?;
        let age = jiff::SignedDuration::try_from(age).map_err(clock_problem)?;
        Ok(now.checked_sub(age).unwrap_or(jiff::Timestamp::MIN).to_string())
    }

    /// How long ago a time was; nothing when it lies in the future.
    pub(crate) fn age(&self, time: &str) -> Result<Duration, Problem> {
        let now: jiff::Timestamp = self.now().parse().map_err(clock_problem)?;
        let then: jiff::Timestamp = time.parse().map_err(clock_problem)?;
        Ok(Duration::try_from(now.duration_since(then)).unwrap_or_default())
    }
}

fn clock_problem(error: impl std::fmt::Display) -> Problem {
    Problem::new(Code::Internal, format!("a time cannot be read: {error}"))
}

/// `3 days`, `5 hours`, `2 minutes`.
pub(crate) fn spoken(age: Duration) -> String {
    let seconds = age.as_secs();
    let (count, unit) = match seconds {
        0..=119 => (seconds, "second"),
        120..=7_199 => (seconds / 60, "minute"),
        7_200..=172_799 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spoken_in_one_unit() {
        let spoken = |seconds| super::spoken(Duration::from_secs(seconds));
        assert_eq!(spoken(1), "1 second");
        assert_eq!(spoken(150), "2 minutes");
        assert_eq!(spoken(3 * 3600), "3 hours");
        assert_eq!(spoken(8 * 86_400), "8 days");
    }
}
