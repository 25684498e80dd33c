//! The same request sent twice: by its key it is carried out once.
//!
//! While a request is carried out its key holds who does it, so that a later one can tell a maker
//! at work from one that was killed. The sandbox carries the key as a label: a maker that died
//! between making it and saying so is answered for by what it made.

use crate::api::CreateRequest;
use crate::create::self_identity;
use crate::problems::OrProblem;
use crate::{Engine, lock};
use serde_json::Value;
use skep_store::{KeyClaim, SandboxFilter, StoreError};
use skep_types::{Code, ContentHash, KeeperIdentity, Problem, Sandbox};
use std::time::Duration;

/// How long a repeated request with the same key is answered with the first one's result.
const KEY_LIFETIME: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);
/// Taking over a dead maker's key is a matter of a few rows.
const PATIENCE: Duration = Duration::from_secs(5);
/// The label that tells which key a sandbox was made for.
pub(crate) const KEY_LABEL: &str = "skep.key";

impl Engine {
    /// The same key and the same request: the same sandbox, however often it is sent.
    pub(crate) fn create_once(&self, request: &CreateRequest) -> Result<Sandbox, Problem> {
        self.create_repeated(request).map(|(sandbox, _)| sandbox)
    }

    /// The same, and whether it was there for its key.
    pub fn create_repeated(&self, request: &CreateRequest) -> Result<(Sandbox, bool), Problem> {
        let new = |sandbox| (sandbox, false);
        let Some(key) = &request.idempotency_key else {
            return self.create_sandbox(request).map(new);
        };
        // The caller's environment is where a request comes from, not what it says: a retry from
        // another terminal is the same request.
        let said = CreateRequest { host_env: Default::default(), ..request.clone() };
        let body = ContentHash::of(&serde_json::to_vec(&said).unwrap_or_default());
        match self.claim(key, &body)? {
            KeyClaim::New => self.create_for(key, request).map(new),
            KeyClaim::InProgress => Err(under_way(key)),
            KeyClaim::Done(Value::String(id)) => Ok((self.made_for(key, &id)?, true)),
            KeyClaim::Done(maker) if is_alive(&maker) => Err(under_way(key)),
            KeyClaim::Done(_) => self.take_over(key, &body, request).map(new),
        }
    }

    /// The sandbox that was made for a key, if it is still there.
    fn made_for(&self, key: &str, id: &str) -> Result<Sandbox, Problem> {
        match self.store.find_sandbox(id) {
            Err(StoreError::NotFound { .. }) => {
                let message = format!("the sandbox made for the key `{key}` was deleted");
                Err(Problem::new(Code::Conflict, message).hint("ask with another key"))
            }
            found => found.or_problem(),
        }
    }

    pub(crate) fn claim(&self, key: &str, body: &ContentHash) -> Result<KeyClaim, Problem> {
        let now = self.now();
        let expires = now
            .parse::<jiff::Timestamp>()
            .and_then(|now| now.checked_add(KEY_LIFETIME))
            .map_err(|error| Problem::new(Code::Internal, format!("the clock is off: {error}")))?;
        self.store.claim_key(key, body, &now, &expires.to_string()).or_problem()
    }

    fn create_for(&self, key: &str, request: &CreateRequest) -> Result<Sandbox, Problem> {
        let maker = serde_json::to_value(self_identity()?).unwrap_or_default();
        let made = match self.store.finish_key(key, &maker).or_problem() {
            Ok(()) => self.create_sandbox(request),
            Err(problem) => Err(problem),
        };
        let id = made.as_ref().ok().map(|sandbox| Value::String(sandbox.id.to_string()));
        self.settle_key(key, id);
        made
    }

    /// The maker died. One of those who notice goes on; the lock decides which.
    fn take_over(
        &self,
        key: &str,
        body: &ContentHash,
        request: &CreateRequest,
    ) -> Result<Sandbox, Problem> {
        let guard = lock::take(&self.layout().key_lock(), "the list of keys", PATIENCE)?;
        match self.claim(key, body)? {
            KeyClaim::Done(Value::Object(maker)) if !is_alive(&Value::Object(maker.clone())) => {}
            _ => return Err(under_way(key)),
        }
        let all = self.store.list_sandboxes(&SandboxFilter::default()).or_problem()?;
        let made = all.into_iter().find(|one| one.labels.get(KEY_LABEL).is_some_and(|k| k == key));
        if let Some(sandbox) = made {
            self.store.finish_key(key, &Value::String(sandbox.id.to_string())).or_problem()?;
            return Ok(sandbox);
        }
        let maker = serde_json::to_value(self_identity()?).unwrap_or_default();
        self.store.finish_key(key, &maker).or_problem()?;
        drop(guard);
        self.create_for(key, request)
    }
}

fn under_way(key: &str) -> Problem {
    Problem::new(Code::Busy, format!("a request with the key `{key}` is under way"))
}

/// Whether the process that a key holds still runs. What cannot be read is no proof of death.
pub(crate) fn is_alive(maker: &Value) -> bool {
    let Ok(maker) = serde_json::from_value::<KeeperIdentity>(maker.clone()) else { return true };
    skep_sys::process::boot_id().is_ok_and(|boot| boot == maker.boot_id)
        && skep_sys::process::start_ticks(maker.pid as i32)
            .is_ok_and(|ticks| ticks == maker.start_ticks)
}
