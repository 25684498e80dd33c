//! What could not be taken back: the store was away when a request failed.
//!
//! A command that fails so simply ends, and the next one finds a row whose maker is dead. A server's
//! worker lives on: nobody could tell its forgotten rows and keys from those it works on. So it remembers
//! that there are some, and takes them back when the store answers again, or ends.

use crate::Engine;
use crate::create::self_identity;
use crate::problems::OrProblem;
use serde_json::Value;
use skep_store::{SandboxFilter, StoreError};
use skep_types::{Code, Problem, SandboxState};

/// What is to be taken back.
#[derive(Debug, Default)]
pub(crate) struct Undone {
    /// There may be a row in `creating` whose maker this process is.
    pub(crate) rows: bool,
    /// Idempotency keys whose request is over, with its result if it had one.
    pub(crate) keys: Vec<(String, Option<Value>)>,
}

/// Whether the store may answer again by itself. One that was taken away or taken over does not: whoever
/// ended for that would open another in its place.
pub(crate) fn comes_back(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Unreachable { .. }
            | StoreError::Uncertain { .. }
            | StoreError::Busy { .. }
            | StoreError::Full { .. }
    )
}

impl Engine {
    /// Whether something of an earlier request is still to be taken back.
    pub fn has_undone(&self) -> bool {
        let undone = self.undone.borrow();
        undone.rows || !undone.keys.is_empty()
    }

    /// Takes it back. To be called between requests: while one is carried out its row is no leftover.
    pub fn finish_undone(&self) -> Result<(), Problem> {
        let keys = std::mem::take(&mut self.undone.borrow_mut().keys);
        for (key, result) in keys {
            self.settle_key(&key, result);
        }
        if self.undone.borrow().rows {
            let me = self_identity()?;
            let filter =
                SandboxFilter { states: [SandboxState::Creating].into(), ..Default::default() };
            let rows = self.store.list_sandboxes(&filter).or_problem()?;
            self.undone.borrow_mut().rows = false;
            for sandbox in rows.iter().filter(|sandbox| sandbox.keeper.as_ref() == Some(&me)) {
                self.tear_down(sandbox, "create failed");
            }
        }
        match self.has_undone() {
            false => Ok(()),
            true => Err(Problem::new(Code::Busy, "the store did not take back what failed")),
        }
    }

    /// Keeps the result of a key's request, or frees the key.
    pub(crate) fn settle_key(&self, key: &str, result: Option<Value>) {
        let settled = match &result {
            Some(result) => self.store.finish_key(key, result),
            None => self.store.drop_key(key),
        };
        if settled.is_err_and(|error| comes_back(&error)) {
            self.undone.borrow_mut().keys.push((key.to_owned(), result));
        }
    }
}
