//! Upkeep: what may go, what stays, and why.
//!
//! Everything is decided with a reason and, unless it is a dry run, done at once, under the lock
//! of what is concerned; whatever somebody else is working on is left for the next time. Unreviewed
//! work is never removed: neither for its age nor for its size, nor by a crash of gc itself.

mod leftovers;
mod sandboxes;

use crate::Engine;
use crate::api::{GcDecision, GcRequest};
use crate::problems::OrProblem;
use skep_types::{Code, Problem};
use std::time::Duration;

/// Events are kept this long, rows of deleted sandboxes that long.
const EVENTS: Duration = Duration::from_secs(90 * 86_400);
const DELETED_ROWS: Duration = Duration::from_secs(30 * 86_400);

/// What to do with one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Keep,
    Stop,
    Remove,
}

impl Action {
    fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Stop => "stop",
            Self::Remove => "remove",
        }
    }
}

fn decision(what: &str, name: &str, action: Action, reason: String, bytes: u64) -> GcDecision {
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
        let mut decisions = self.collect_sandboxes(request, &settings)?;
        self.collect_unknown(&mut decisions);
        self.collect_undo(request, &settings, &mut decisions)?;
        self.collect_layers(request, &mut decisions)?;
        self.collect_trash(request, &mut decisions);
        if !request.dry_run {
            self.prune(&mut decisions)?;
        }
        Ok(decisions)
    }

    fn prune(&self, decisions: &mut Vec<GcDecision>) -> Result<(), Problem> {
        let mut say = |what: &str, count: usize, reason: &str| {
            if count > 0 {
                let name = count.to_string();
                decisions.push(decision(what, &name, Action::Remove, reason.to_owned(), 0));
            }
        };
        let events = self.store.prune_events(&self.earlier(EVENTS)?).or_problem()?;
        say("events", usize::try_from(events).unwrap_or(usize::MAX), "older than 90 days");
        let rows = self.store.purge_deleted(&self.earlier(DELETED_ROWS)?).or_problem()?;
        say("rows of deleted sandboxes", rows.len(), "deleted more than 30 days ago");
        let keys = self.store.prune_keys(&self.now()).or_problem()?;
        say("idempotency keys", usize::try_from(keys).unwrap_or(usize::MAX), "expired");
        self.store.upkeep().map(drop).or_problem()
    }

    /// The time that was so long ago.
    fn earlier(&self, age: Duration) -> Result<String, Problem> {
        let now: jiff::Timestamp = self.now().parse().map_err(clock_problem)?;
        let age = jiff::SignedDuration::try_from(age).map_err(clock_problem)?;
        Ok(now.checked_sub(age).unwrap_or(jiff::Timestamp::MIN).to_string())
    }

    /// How long ago a time was; nothing when it lies in the future.
    fn age(&self, time: &str) -> Result<Duration, Problem> {
        let now: jiff::Timestamp = self.now().parse().map_err(clock_problem)?;
        let then: jiff::Timestamp = time.parse().map_err(clock_problem)?;
        Ok(Duration::try_from(now.duration_since(then)).unwrap_or_default())
    }
}

fn clock_problem(error: impl std::fmt::Display) -> Problem {
    Problem::new(Code::Internal, format!("a time cannot be read: {error}"))
}

/// `3 days`, `5 hours`, `2 minutes`.
fn spoken(age: Duration) -> String {
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
