//! The states of a sandbox, and the one table of moves between them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// Its row is written; its resources are being made.
    Creating,
    /// A keeper holds it.
    Ready,
    /// Its processes are paused.
    Frozen,
    /// No keeper; its changes are kept.
    Stopped,
    /// Nothing is left to review, and the last decision was an approval.
    Approved,
    /// Nothing is left to review, and the last decision was a rejection.
    Rejected,
    /// Something failed; the reason says what, and deleting or starting again is the way out.
    Error,
    /// On its way out, or gone.
    Deleted,
}

/// A move that the table does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {from} cannot become {to}")]
pub struct IllegalTransition {
    /// The state it is in.
    pub from: SandboxState,
    /// The state that was asked for.
    pub to: SandboxState,
}

use SandboxState::{Approved, Creating, Deleted, Error, Frozen, Ready, Rejected, Stopped};

/// Every legal move. A move to the same state is always legal and does nothing.
pub const TRANSITIONS: &[(SandboxState, SandboxState)] = &[
    (Creating, Ready),
    (Creating, Stopped),
    (Ready, Stopped),
    (Stopped, Ready),
    (Ready, Frozen),
    (Frozen, Ready),
    (Frozen, Stopped),
    (Ready, Approved),
    (Stopped, Approved),
    (Ready, Rejected),
    (Stopped, Rejected),
    (Approved, Ready),
    (Approved, Stopped),
    (Rejected, Ready),
    (Rejected, Stopped),
    (Approved, Rejected),
    (Rejected, Approved),
    (Creating, Error),
    (Ready, Error),
    (Frozen, Error),
    (Stopped, Error),
    (Approved, Error),
    (Rejected, Error),
    (Error, Ready),
    (Error, Stopped),
    (Creating, Deleted),
    (Ready, Deleted),
    (Frozen, Deleted),
    (Stopped, Deleted),
    (Approved, Deleted),
    (Rejected, Deleted),
    (Error, Deleted),
];

impl SandboxState {
    /// All states.
    pub const ALL: [Self; 8] =
        [Creating, Ready, Frozen, Stopped, Approved, Rejected, Error, Deleted];

    /// Checks a move against [`TRANSITIONS`].
    pub fn check_move(self, to: Self) -> Result<(), IllegalTransition> {
        if self == to || TRANSITIONS.contains(&(self, to)) {
            Ok(())
        } else {
            Err(IllegalTransition { from: self, to })
        }
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Creating => "creating",
            Ready => "ready",
            Frozen => "frozen",
            Stopped => "stopped",
            Approved => "approved",
            Rejected => "rejected",
            Error => "error",
            Deleted => "deleted",
        }
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SandboxState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|state| state.as_str()).collect();
            format!("`{text}` is not a state; one of: {}", all.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_but_deleted_has_an_exit_and_can_be_deleted() {
        for state in SandboxState::ALL {
            assert!(state.check_move(state).is_ok());
            if state != Deleted {
                assert!(state.check_move(Deleted).is_ok(), "{state}");
            } else {
                assert!(
                    SandboxState::ALL
                        .iter()
                        .all(|to| *to == Deleted || state.check_move(*to).is_err())
                );
            }
        }
    }

    #[test]
    fn frozen_is_not_reviewed_away() {
        assert!(Frozen.check_move(Approved).is_err());
        assert!(Creating.check_move(Approved).is_err());
    }
}
