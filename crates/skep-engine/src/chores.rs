//! What is done while a command runs, because nobody waits then: the directories of the next sandbox are made
//! ([`crate::spare`]), and those of earlier ones removed ([`crate::waste`]).
//!
//! Both wait for the disk, so they have a thread of their own, which ends with the process wherever it is.
//! What it leaves undone the next one does. It is started after the keeper was forked; whoever forks later
//! waits for its end ([`Chores::finish`]).

use crate::{Layout, spare, waste};
use std::thread::JoinHandle;

/// A little of the stack is enough, and less to map.
const STACK: usize = 128 << 10;

/// Chores that were begun.
#[derive(Debug, Default)]
pub(crate) struct Chores(Option<JoinHandle<()>>);

impl Chores {
    /// Begins. Where no thread can be had, the next one does it.
    pub(crate) fn begin(layout: Layout, name: String) -> Self {
        let work = move || {
            // A disk that is full, or not to be written, is met by somebody who can say so.
            let _ = spare::make(&layout, &name);
            waste::clear(&layout);
        };
        let thread = std::thread::Builder::new().name("chores".into()).stack_size(STACK);
        Self(thread.spawn(work).ok())
    }

    /// Waits until they are done.
    pub(crate) fn finish(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}
