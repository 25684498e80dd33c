//! A worker stays with an exec that somebody waits for: most end within milliseconds.
//!
//! Handed over at once, each of them would cost a process that carries the stream (`relay`), a second
//! question about its end, and six hand-overs between processes: more than the command itself. So the
//! worker looks for a moment, and answers with the whole. An exec that takes longer, or says much, is
//! handed over as ever, with what it has said so far.

use crate::relay::{self, Kind};
use crate::shown::Shown;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skep_provider::{ExecStream, StreamEvent};
use skep_types::ExecEnd;
use std::io;
use std::time::{Duration, Instant};

/// How long a worker stays: others may wait for it.
const STAY: Duration = Duration::from_millis(20);
/// What it takes in meanwhile.
const ROOM: usize = 64 << 10;

/// What came of staying.
pub(crate) enum Stayed {
    /// It has ended.
    Ended(Box<ExecEnd>, Shown),
    /// It goes on; what it said is there as frames of a relay.
    GoesOn(Box<dyn ExecStream>, Vec<u8>),
}

/// Stays with an exec that nobody gives input to.
pub(crate) fn stay(mut stream: Box<dyn ExecStream>) -> Stayed {
    let deadline = Instant::now() + STAY;
    let (mut shown, mut frames) = (Shown::default(), Vec::new());
    if stream.close_stdin().is_err() {
        return Stayed::GoesOn(stream, frames);
    }
    while frames.len() < ROOM {
        match stream.next() {
            Ok(Some(StreamEvent::Stdout(bytes))) => {
                shown.add("stdout", &bytes);
                frames.extend_from_slice(&relay::frame(Kind::Stdout, &bytes));
            }
            Ok(Some(StreamEvent::Stderr(bytes))) => {
                shown.add("stderr", &bytes);
                frames.extend_from_slice(&relay::frame(Kind::Stderr, &bytes));
            }
            Ok(Some(StreamEvent::Ended(end))) => return Stayed::Ended(end, shown),
            Ok(None) if wait(&*stream, deadline).unwrap_or(false) => {}
            // That it was lost is found by whoever takes over.
            Ok(None) | Err(_) => break,
        }
    }
    Stayed::GoesOn(stream, frames)
}

/// Until there is more; false when the time is over.
fn wait(stream: &dyn ExecStream, deadline: Instant) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(false);
    }
    let left = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut watched = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    match poll(&mut watched, Some(&left)) {
        Ok(0) => Ok(false),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
