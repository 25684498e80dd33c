//! Whether those who were paused stood, and by what.

use serde::{Deserialize, Serialize};

/// How it stands with those who were paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stillness {
    /// A freezer holds them: nobody can move.
    Held,
    /// They were stopped by signals, and nobody has moved since.
    Stopped,
    /// They were stopped by signals, and somebody has run since.
    Moved(Moved),
}

/// A process that went on although it was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Its number inside.
    pub pid: i32,
    /// What it calls itself, escaped.
    pub name: String,
}

impl Moved {
    /// What can be done about it.
    pub const HINT: &str = "without a cgroup processes are stopped by signals only, and a timer of its own \
                            can wake one: end it (`skep kill`, or `skep stop`), or run skep where it may \
                            write cgroups (`skep doctor`)";
}

/// What those inside see of files that were replaced in the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// The project as it is: nobody is inside who has seen it before.
    Unseen,
    /// Whoever looks anew sees the project as it is; what somebody inside has open, or stands in, may be as it
    /// was.
    Dropped,
    /// What was looked at before may be seen as it was.
    Held,
    /// The same, but nobody is inside now.
    HeldAlone,
}
