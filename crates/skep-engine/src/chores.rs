//! What is done while a command runs, because nobody waits then: directories for the next sandboxes are made
//! ([`crate::spare`]), and those of earlier ones removed ([`crate::waste`]).
//!
//! A command that takes its time leaves time for both; one that is over at once does not, and would wait for
//! them. So there is a stock, which whoever has time fills up: nothing is begun before a command has been
//! quiet for a while, but where the last directory of the stock was taken. What waits to be removed goes on waiting
//! even then, unless it has become much.
//!
//! Both wait for the disk, so they have a thread of their own. It is started after the keeper was forked;
//! whoever forks later, and whoever ends, waits until what it has in hand is done ([`Chores::finish`]).

use crate::{Layout, spare, waste};
use rustix::fd::BorrowedFd;
use skep_provider::{ExecStream, StreamEvent};
use skep_types::TerminalSize;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A little of the stack is enough, and less to map.
const STACK: usize = 128 << 10;
/// A command that says nothing for so long leaves time.
const QUIET: Duration = Duration::from_millis(20);
/// What is done of each at least, once it is begun: the next ones have time for nothing either.
const LEAST: usize = 16;

/// When chores are begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The command has been quiet for a while.
    Quiet,
    /// It has only begun, and may be over at once.
    Busy,
}

/// Chores of one run.
#[derive(Debug, Default)]
pub(crate) enum Chores {
    /// There are none, or they are done.
    #[default]
    None,
    /// They can wait.
    Waiting { layout: Layout, name: String },
    /// They were begun, and end early when they are told that it is enough.
    Begun { thread: JoinHandle<()>, enough: Arc<AtomicBool> },
}

impl Chores {
    /// Begins where the stock is empty. `name` is one that nobody else uses.
    pub(crate) fn of(layout: Layout, name: String) -> Self {
        let empty = spare::is_out(&layout);
        let mut chores = Self::Waiting { layout, name };
        if empty {
            chores.begin(Moment::Busy);
        }
        chores
    }

    /// Where no thread can be had, the next one does it.
    fn begin(&mut self, moment: Moment) {
        let Self::Waiting { layout, name } = std::mem::take(self) else { return };
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        let goes_on = move |done: usize| done < LEAST || !told.load(Ordering::Relaxed);
        let work = move || {
            // A disk that is full, or not to be written, is met by somebody who can say so.
            let _ = spare::fill(&layout, &name, &goes_on);
            match moment {
                Moment::Quiet => waste::clear(&layout, &goes_on),
                Moment::Busy => waste::clear_if_much(&layout),
            }
        };
        let thread = std::thread::Builder::new().name("chores".into()).stack_size(STACK);
        if let Ok(thread) = thread.spawn(work) {
            *self = Self::Begun { thread, enough };
        }
    }

    /// Waits until what was begun has come to a good end.
    pub(crate) fn finish(&mut self) {
        if let Self::Begun { thread, enough } = std::mem::take(self) {
            enough.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
    }
}

/// The stream of a command during which chores can be done.
pub(crate) struct Attended {
    pub stream: Box<dyn ExecStream>,
    pub chores: Rc<RefCell<Chores>>,
}

impl ExecStream for Attended {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn next(&mut self) -> io::Result<Option<StreamEvent>> {
        self.stream.next()
    }

    fn stdin(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.stdin(bytes)
    }

    fn close_stdin(&mut self) -> io::Result<()> {
        self.stream.close_stdin()
    }

    fn resize(&mut self, size: TerminalSize) -> io::Result<()> {
        self.stream.resize(size)
    }

    fn signal(&mut self, signal: i32) -> io::Result<()> {
        self.stream.signal(signal)
    }

    fn quiet_after(&self) -> Option<Duration> {
        matches!(*self.chores.borrow(), Chores::Waiting { .. }).then_some(QUIET)
    }

    fn quiet(&mut self) {
        self.chores.borrow_mut().begin(Moment::Quiet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_wait_for_a_quiet_moment_unless_the_stock_is_out() {
        let base = tempfile::tempdir().unwrap();
        let layout = Layout::open(&base.path().join("state"), || Ok(())).unwrap();
        let stock = || std::fs::read_dir(layout.spare()).unwrap().count();
        let chores = |name: &str| Chores::of(layout.clone(), name.to_owned());
        let mut begun = chores("a");
        assert!(matches!(begun, Chores::Begun { .. }), "{begun:?}");
        begun.finish();
        let made = stock();
        assert!(made >= LEAST, "{made}");
        let mut waiting = chores("b");
        assert!(matches!(waiting, Chores::Waiting { .. }), "{waiting:?}");
        waiting.begin(Moment::Quiet);
        assert!(matches!(waiting, Chores::Begun { .. }), "{waiting:?}");
        waiting.finish();
        assert!(matches!(waiting, Chores::None), "{waiting:?}");
        let mut ended = chores("c");
        let before = stock();
        ended.finish();
        assert_eq!(stock(), before, "a run that was over at once made nothing");
    }
}
