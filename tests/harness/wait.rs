//! Waiting for a condition with a deadline.

use std::time::{Duration, Instant};

/// Looks again and again until the condition gives something; panics after `seconds`.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(seconds), "waited {seconds} s for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a list is empty; shows what is in it if it never is.
#[track_caller]
pub(crate) fn wait_for_empty<T: std::fmt::Debug>(
    what: &str,
    seconds: u64,
    mut look: impl FnMut() -> Vec<T>,
) {
    let start = Instant::now();
    loop {
        let left = look();
        if left.is_empty() {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(seconds), "{what} are left: {left:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
