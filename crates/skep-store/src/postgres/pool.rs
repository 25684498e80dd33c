//! A few connections, made when needed and kept for the next.
//!
//! The pools there are for this client are asynchronous, or start threads of their own; a process
//! that forks keepers can have neither.

use super::fault::{Fault, Outcome};
use super::session::Session;
use crate::StoreError;
use std::fmt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_postgres::Config;

pub(super) struct Pool {
    config: Config,
    stall: Duration,
    /// How long a caller waits for a connection to become free.
    patience: Duration,
    size: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Session>,
    lent: usize,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration holds the password.
        f.debug_struct("Pool").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn new(config: Config, size: usize, stall: Duration, patience: Duration) -> Self {
        let state = Mutex::default();
        Self { config, stall, patience, size: size.max(1), state, freed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection beside the pool.
    pub(super) fn connect(&self) -> Outcome<Session> {
        Session::open(&self.config, self.stall)
    }

    /// Waits for a free connection, or makes one.
    pub(super) fn take(&self, operation: &'static str, path: &Path) -> Outcome<Lent<'_>> {
        let deadline = Instant::now() + self.patience;
        let mut state = self.state();
        while state.lent >= self.size {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreError::Busy { operation, path: path.to_owned() }.into());
            }
            state = match self.freed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        state.lent += 1;
        let kept = state.idle.pop();
        drop(state);
        let mut lent = Lent { pool: self, session: None, fresh: kept.is_none() };
        lent.session = Some(match kept {
            Some(session) => session,
            None => self.connect()?,
        });
        Ok(lent)
    }
}

/// A connection that goes back when it is dropped: kept if no transaction is open on it any more.
pub(super) struct Lent<'a> {
    pool: &'a Pool,
    session: Option<Session>,
    fresh: bool,
}

impl Lent<'_> {
    /// Whether it was made just now.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    pub(super) fn session(&mut self) -> Outcome<&mut Session> {
        self.session.as_mut().ok_or(Fault::Stalled)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut kept = self.session.take().filter(|session| !session.broken);
        // Without an open transaction this is a notice; with one it undoes what was not committed.
        if kept.as_mut().is_some_and(|session| session.batch("ROLLBACK").is_err()) {
            kept = None;
        }
        let mut state = self.pool.state();
        state.lent -= 1;
        state.idle.extend(kept);
        drop(state);
        self.pool.freed.notify_one();
    }
}
