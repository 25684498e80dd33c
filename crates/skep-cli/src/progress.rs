//! How far long work is, for whoever waits at a terminal.
//!
//! The engine tells of each path; here a line is written over itself, a few times a second and not before the work has
//! taken some time.

use crate::context::Context;
use skep_engine::{Phase, Progress};
use std::cell::Cell;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// What is done by then is not told.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between one line and the next.
const PAUSE: Duration = Duration::from_millis(100);
/// To the line's beginning, and all that stands on it away.
const CLEAR: &str = "\r\x1b[K";

thread_local! {
    /// When the next line is due; none if nobody waits.
    static DUE: Cell<Option<Instant>> = const { Cell::new(None) };
    static SHOWN: Cell<bool> = const { Cell::new(false) };
}

/// As long as this is there, somebody waits.
pub(crate) struct Shown;

impl Shown {
    /// `None` where no terminal is, or no words are wanted.
    pub(crate) fn to(context: &Context, json: bool) -> Option<Self> {
        if json || !context.surroundings.terminals.stderr || context.output.is_quiet() {
            return None;
        }
        DUE.set(Some(Instant::now() + PATIENCE));
        Some(Self)
    }
}

/// What comes next has the line for itself.
impl Drop for Shown {
    fn drop(&mut self) {
        DUE.set(None);
        if SHOWN.take() {
            put(CLEAR);
        }
    }
}

/// For the engine.
pub(crate) fn note(progress: Progress) {
    let now = Instant::now();
    if DUE.get().is_none_or(|due| now < due) {
        return;
    }
    DUE.set(Some(now + PAUSE));
    SHOWN.set(true);
    put(&format!("{CLEAR}{}", line(&progress)));
}

fn line(progress: &Progress) -> String {
    let Progress { phase, done, total } = progress;
    let what = match phase {
        Phase::Verify => "looking at the project",
        Phase::Stage => "writing beside the project",
        Phase::Publish => "moving in",
    };
    format!("{what}: {done} of {total}")
}

/// A terminal that is gone is no reason to stop half way.
fn put(text: &str) {
    let mut out = std::io::stderr();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_done_and_how_far_it_is() {
        let progress = Progress { phase: Phase::Stage, done: 3, total: 18_000 };
        assert_eq!(line(&progress), "writing beside the project: 3 of 18000");
    }

    #[test]
    fn nothing_is_said_to_nobody_or_of_what_is_quick_and_the_line_is_left_empty() {
        let progress = Progress { phase: Phase::Publish, done: 1, total: 2 };
        note(progress);
        assert!(!SHOWN.get(), "nobody waits");
        DUE.set(Some(Instant::now() + PATIENCE));
        note(progress);
        assert!(!SHOWN.get(), "it has only just begun");
        DUE.set(Some(Instant::now()));
        note(progress);
        assert!(SHOWN.get() && DUE.get().is_some_and(|due| due > Instant::now()));
        drop(Shown);
        assert!(!SHOWN.get() && DUE.get().is_none());
    }
}
