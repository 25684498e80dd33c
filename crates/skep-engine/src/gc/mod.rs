//! Upkeep: what may go, what stays, and why.
//!
//! Everything is decided with a reason and, unless it is a dry run, done at once, under the lock
//! of what is concerned; whatever somebody else is working on is left for the next time. Unreviewed
//! work is never removed, neither for its age nor for its size, nor by a crash of gc itself, unless
//! it was asked for and the work lies in an archive.

mod leftovers;
mod rows;
mod sandboxes;

pub(crate) use sandboxes::{EXPIRED, KEPT, TTL, end_of_life};

use crate::Engine;
use crate::api::{GcDecision, GcPart, GcRequest};
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
            self.collect_records(&mut decisions);
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
        if wanted(GcPart::Rows) {
            rows::say(self.collect_rows(request, &settings.retention)?, &mut decisions);
        }
        Ok(decisions)
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
