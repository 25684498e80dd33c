//! What a long-lived server asks beyond the [`Api`](crate::api::Api): on whose behalf it acts,
//! settling while it runs, sums for quotas, and requests that may be sent twice.

use crate::api::Finding;
use crate::create::self_identity;
use crate::problems::{OrProblem, doubt};
use crate::reconcile::directory_names;
use crate::repeated::is_alive;
use crate::{Engine, spare, waste};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skep_store::{KeyClaim, SandboxFilter, Stop, StoreError};
use skep_types::{ByteSize, Code, ContentHash, Problem, Sandbox, SandboxId, SandboxState};
use std::time::Duration;

/// What all sandboxes together were promised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Sandboxes that are not deleted.
    pub sandboxes: u64,
    /// Those a keeper holds, or is about to.
    pub running: u64,
    /// Memory limits of the running ones, added up.
    pub memory: u64,
    /// Disk limits of all of them, added up.
    pub disk: u64,
}

/// The answer to a request that carried a key.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeated {
    /// The answer.
    pub value: Value,
    /// Whether it is that of an earlier request.
    pub replayed: bool,
}

impl Engine {
    /// Approvals are given in this name from now on, and no longer in that of the process's user.
    pub fn acting_for(&mut self, name: Option<&str>) {
        self.actor = name.map(str::to_owned);
    }

    /// The settings files as they are from now on: each its text, and its name for messages.
    pub fn take_settings(
        &mut self,
        system: Option<(Vec<u8>, String)>,
        user: Option<(Vec<u8>, String)>,
    ) {
        // Nobody else has the desk once the engine is open.
        if let Some(desk) = std::rc::Rc::get_mut(&mut self.desk) {
            desk.config.system_config = system;
            desk.config.user_config = user;
        }
    }

    /// The wall clock of an exec that nobody is attached to, where it names none itself.
    pub fn unattended_timeout(&self, sandbox: &Sandbox) -> Result<Option<Duration>, Problem> {
        let project = sandbox.project.as_path();
        self.settings(Some(project), None).map(|(settings, _)| settings.api_timeout)
    }

    /// Who approves.
    pub(crate) fn approver(&self) -> String {
        self.actor.clone().unwrap_or_else(|| self.config.user.clone())
    }

    /// Settles what has ended without anybody being told: a killed keeper, an interrupted delete.
    pub fn settle(&self) -> Result<(), Problem> {
        // A server that has nothing to write is alive all the same.
        self.store.renew().or_problem()?;
        self.reconcile()?;
        self.do_chores();
        // A server lives for months: nobody else would fold its log.
        self.store.upkeep().map(drop).or_problem()
    }

    /// What commands leave to those who have time: see [`crate::chores`].
    fn do_chores(&self) {
        let name = SandboxId::from_random((self.config.random)());
        // A disk that is full, or not to be written, is met by somebody who can say so.
        let _ = spare::fill(self.layout(), name.as_str(), &|_| true);
        waste::clear(self.layout(), &|_| true);
    }

    /// Why the store takes no more changes, if it does not.
    pub fn stop(&self) -> Option<Stop> {
        self.store.stop()
    }

    /// Reads everything that is remembered; an error that is a doubt says what is damaged.
    pub fn check_store(&self) -> Result<(), Problem> {
        let problems = self.store.check().or_problem()?;
        match problems.is_empty() {
            true => Ok(()),
            false => Err(doubt(Problem::new(Code::Store, problems.join("; ")))),
        }
    }

    /// Whether everything that is remembered can be read, for `skep doctor`.
    pub(crate) fn store_finding(&self) -> Finding {
        let mut problems = match self.store.check() {
            Ok(problems) => problems,
            Err(error) => vec![error.to_string()],
        };
        // Work whose row was in the end of a log that is lost. Nobody removes it.
        for name in directory_names(&self.layout().sandboxes()) {
            let unknown = |id| matches!(self.store.sandbox(&id), Err(StoreError::NotFound { .. }));
            if name.parse().is_ok_and(unknown) {
                problems.push(format!("the directory `sandboxes/{name}` is of no known sandbox"));
            }
        }
        let sound = problems.is_empty();
        Finding {
            name: "store".into(),
            ok: sound,
            tried: true,
            how: "the database was read from end to end".into(),
            reason: (!sound).then(|| problems.join("; ")),
            remedy: (!sound).then(|| {
                "keep the state directory as it is; restore `skep.db` from a backup".into()
            }),
        }
    }

    /// Leaves nothing of a sandbox that was deleted in the store: for what was only a trial.
    pub fn forget(&self, id: &SandboxId) -> Result<(), Problem> {
        self.store.forget_sandbox(id).map(drop).or_problem()
    }

    /// How much of `gc.total_size` all sandboxes take, for `skep doctor`; none where it cannot be told.
    pub(crate) fn room(&self) -> Option<Finding> {
        let (settings, _) = self.settings(None, None).ok()?;
        let all = self.store.list_sandboxes(&SandboxFilter::default()).ok()?;
        let used: u64 = all.iter().map(|sandbox| self.size_of(sandbox)).sum();
        let most = settings.total_size.0.max(1);
        let percent = u128::from(used) * 100 / u128::from(most);
        let full = percent >= u128::from(settings.total_warn_percent);
        let (used, most) = (ByteSize(used), settings.total_size);
        Some(Finding {
            name: "room for sandboxes".into(),
            ok: !full,
            tried: true,
            how: format!("all sandboxes take {used} of {most} (`gc.total_size`)"),
            reason: full.then(|| format!("that is {percent} %")),
            remedy: full.then(|| "review and remove some (`skep gc`), or raise the setting".into()),
        })
    }

    /// Sums over all sandboxes, from the store alone.
    pub fn tally(&self) -> Result<Tally, Problem> {
        let mut tally = Tally::default();
        for sandbox in self.store.list_sandboxes(&SandboxFilter::default()).or_problem()? {
            let limits = &sandbox.policy.limits;
            tally.sandboxes += 1;
            tally.disk = tally.disk.saturating_add(limits.disk.map_or(0, |size| size.0));
            if matches!(
                sandbox.state,
                SandboxState::Creating | SandboxState::Ready | SandboxState::Frozen
            ) {
                tally.running += 1;
                tally.memory = tally.memory.saturating_add(limits.memory.map_or(0, |size| size.0));
            }
        }
        Ok(tally)
    }

    /// Acts once for a key: the same request again gets the same answer, another one under the
    /// same key is refused. An act that fails may be tried again under its key; one whose maker
    /// died half way may have had its effect, and that is said.
    pub fn once(
        &self,
        key: &str,
        request: &[u8],
        act: impl FnOnce() -> Result<Value, Problem>,
    ) -> Result<Repeated, Problem> {
        let under_way = || Problem::new(Code::Busy, "a request with this key is under way");
        match self.claim(key, &ContentHash::of(request))? {
            KeyClaim::New => {
                let maker = serde_json::to_value(self_identity()?).unwrap_or_default();
                let begun = self.store.finish_key(key, &json!({ "maker": maker })).or_problem();
                let done = begun.and_then(|()| act());
                self.settle_key(key, done.as_ref().ok().map(|value| json!({ "answer": value })));
                done.map(|value| Repeated { value, replayed: false })
            }
            KeyClaim::InProgress => Err(under_way()),
            KeyClaim::Done(mut kept) => match kept.get_mut("answer").map(Value::take) {
                Some(value) => Ok(Repeated { value, replayed: true }),
                None if kept.get("maker").is_some_and(is_alive) => Err(under_way()),
                None => Err(Problem::new(
                    Code::Conflict,
                    "the request with this key was interrupted; whether it had its effect is not known",
                )
                .hint("look, and if need be ask again with another key")),
            },
        }
    }
}
