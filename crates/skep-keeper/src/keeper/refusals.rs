//! System calls that the filter refuses: answered, named and counted here.
//!
//! The filter of each exec hands them to a listener, which init passes on. While a call waits its
//! process stands still, so answering slowly is a brake: a program that does nothing but ask for
//! what it may not have gets so many answers a second and no more of the keeper's time. There is no
//! answer but an errno. Should the keeper die, the kernel answers ENOSYS, and init dies too.

use super::{Keeper, Token};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use skep_confine::seccomp::{self, NotingFilter};
use skep_types::ExecId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Calls of one exec answered in a row, and within each [`WINDOW`].
const BURST: u32 = 64;
const PER_WINDOW: u32 = 500;
const WINDOW: Duration = Duration::from_millis(100);

/// Every listener of the sandbox. They outlive their execs: what was left running is still refused
/// what it may not have.
#[derive(Debug, Default)]
pub struct Refusals {
    listeners: BTreeMap<u64, Listener>,
    next: u64,
}

#[derive(Debug)]
struct Listener {
    descriptor: OwnedFd,
    exec: ExecId,
    window: Instant,
    answered: u32,
}

impl Listener {
    /// Until when it has had its share.
    fn rests_until(&self) -> Option<Instant> {
        (self.answered >= PER_WINDOW).then(|| self.window + WINDOW)
    }
}

impl Refusals {
    /// Watches one more.
    pub fn watch(&mut self, descriptor: OwnedFd, exec: ExecId) {
        let listener = Listener { descriptor, exec, window: Instant::now(), answered: 0 };
        self.listeners.insert(self.next, listener);
        self.next += 1;
    }

    /// What to wait for now.
    pub(super) fn watched(&self) -> impl Iterator<Item = (PollFd<'_>, Token)> {
        let now = Instant::now();
        let awake = move |listener: &Listener| listener.rests_until().is_none_or(|end| now >= end);
        let awake = self.listeners.iter().filter(move |(_, listener)| awake(listener));
        awake.map(|(number, listener)| {
            let watched = PollFd::from_borrowed_fd(listener.descriptor.as_fd(), PollFlags::IN);
            (watched, Token::Refused(*number))
        })
    }

    /// When the first one that rests may go on.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.listeners.values().filter_map(Listener::rests_until).min()
    }
}

impl Keeper<'_> {
    /// Answers what waits at a listener.
    pub(super) fn refuse(&mut self, number: u64) {
        let Some(listener) = self.state.refusals.listeners.get_mut(&number) else { return };
        let Some(filter) = &self.noting else { return };
        let now = Instant::now();
        if now >= listener.window + WINDOW {
            (listener.window, listener.answered) = (now, 0);
        }
        for _ in 0..BURST {
            let mut ready = [PollFd::new(&listener.descriptor, PollFlags::IN)];
            let none = rustix::event::Timespec::default();
            let found = rustix::event::poll(&mut ready, Some(&none));
            if !matches!(found, Ok(1)) || !ready[0].revents().contains(PollFlags::IN) {
                if ready[0].revents().contains(PollFlags::HUP) {
                    // Nobody wears this filter any more.
                    self.state.refusals.listeners.remove(&number);
                }
                return;
            }
            listener.answered += 1;
            let Ok(Some(call)) = skep_sys::seccomp::next_waiting(listener.descriptor.as_fd())
            else {
                continue;
            };
            let errno = filter.errno(&call);
            let _ = skep_sys::seccomp::refuse(listener.descriptor.as_fd(), call.id, errno);
            if let Some(running) = self.state.execs.get_mut(&listener.exec) {
                *running.refused.entry(seccomp::name_of_refused(&call)).or_default() += 1;
            }
        }
    }

    /// The filter whose refusals are answered; the same as the one init prepares.
    pub(super) fn noting_filter(spec: &skep_provider::RunSpec) -> Option<NotingFilter> {
        NotingFilter::prepare(crate::confinement::variant_of(&spec.policy))
    }
}
