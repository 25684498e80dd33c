//! The library that decides: lifecycle, review, upkeep and reconcile.
//!
//! The engine stands between the edges (command line, later the server) and the parts that do
//! things. It speaks only to traits: a [`Provider`] runs processes, a [`Store`] remembers, and the
//! review is `skep-workspace`'s, which is the same under every provider. Which provider and which
//! store, the binary says when it opens the engine.
//!
//! [`api::Api`] is everything the edges may ask; [`Engine`] answers it in this process.
//!
//! ```no_run
//! use skep_engine::{Engine, EngineConfig, api::Api};
//! # fn example(config: EngineConfig, store: Box<dyn skep_store::Store>) -> Result<(), skep_types::Problem> {
//! let engine = Engine::open(config, Vec::new(), store)?;
//! let newest = engine.newest(std::path::Path::new("/home/me/project"))?;
//! # drop(newest); Ok(()) }
//! ```
//!
//! Rules that run through it: the row before the effect, with every resource named after the id;
//! the identity of a process, never its number alone; a lock file per sandbox and per project, so
//! that any number of `skep` processes can share one state directory; and what was left by a crash
//! is settled when the next one opens ([`reconcile`]).
//!
//! What can be decided without the store stands on the [`Desk`]: a run is planned there, and its
//! sandbox begun, while the store is still being opened.
//!
//! What is deliberately not here: rendering, argument parsing, concrete providers and stores, the
//! clock and the random source (they come in with [`EngineConfig`]).

pub mod api;
mod archive;
mod bring_up;
mod chores;
mod closed;
mod commit;
mod compare;
mod copy;
mod create;
mod desk;
mod early_warning;
mod egress;
mod execs;
mod files;
mod gate;
mod gc;
mod git_head;
mod hidden;
mod hosting;
mod layers;
mod layout;
mod lifecycle;
mod lock;
mod meant;
mod naming;
mod patch;
mod pool;
mod problems;
mod project;
mod providers;
mod pull;
mod quota;
mod receipt;
pub mod reconcile;
mod repeated;
mod review;
mod serve_api;
mod settings;
mod shut;
mod spare;
mod state_place;
mod stats;
mod submounts;
mod taking_in;
mod trash;
mod undone;
mod usage;
mod verdicts;
mod views;
mod waste;
mod ways;

pub use desk::{Desk, Need};
pub use execs::LiveEnd;
pub use files::{Noticed, ToWatch, Watch};
pub use hidden::unsearched;
pub use hosting::{Repeated, Tally};
pub use layout::{Layout, existing_part};
pub use patch::{Patch, TimeToLive};
pub use pool::{Filled, PoolFigures, PoolOwner};
pub use problems::{OrProblem, is_doubt, is_failing};
pub use receipt::verify_receipt;
pub use settings::{asked_layers, is_of_owner};
pub use shut::shut;
pub use stats::Stats;
pub use verdicts::Verdicts;
pub use views::{Page, PageEnd};
pub use ways::{Way, Wish};

use problems::io_problem;
use serde_json::Value;
use skep_provider::Provider;
pub use skep_store::Stop;
use skep_store::{NewEvent, Store, StoreError};
use skep_types::{
    Approval, ByteString, Code, ExecId, Problem, Sandbox, SandboxId, SandboxState, SecretSource,
    SecretValue,
};
use skep_workspace::WorkspaceSpec;
pub use skep_workspace::apply::{Phase, Progress};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// How long to wait for another `skep` that works on the same sandbox or project.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the engine needs from its surroundings.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where everything lies.
    pub layout: Layout,
    /// The system's settings file: its text, and its name for messages.
    pub system_config: Option<(Vec<u8>, String)>,
    /// Variables that begin with `SKEP_`.
    pub variables: BTreeMap<String, String>,
    /// The user's settings file: its text, and its name for messages.
    pub user_config: Option<(Vec<u8>, String)>,
    /// The caller's home directory.
    pub home: PathBuf,
    /// The caller's name, for approvals.
    pub user: String,
    /// The clock (RFC 3339).
    pub now: fn() -> String,
    /// The random source.
    pub random: fn() -> [u8; 10],
    /// Reads the value of a secret; an error says why not, and nothing of the value.
    pub secret: fn(&SecretSource) -> Result<SecretValue, String>,
    /// Told how far an approval or an undo is, path by path.
    pub progress: fn(Progress),
}

/// The engine.
pub struct Engine {
    desk: Rc<Desk>,
    store: Box<dyn Store>,
    /// In whose name approvals are given, where that is not the process's user.
    actor: Option<String>,
    /// Approvals that were interrupted and could not be settled when this was opened, and why.
    unsettled: RefCell<Vec<(Approval, Problem)>>,
    /// What was begun, failed, and could not be taken back either.
    undone: RefCell<undone::Undone>,
    /// Whether what others left was settled when this was opened.
    reconciled: bool,
    /// Whether something is left that the next one should hear of: somebody else is at it, or it failed.
    amiss: Cell<bool>,
    /// What is done while a command runs.
    chores: Rc<RefCell<chores::Chores>>,
}

/// The answer was given: now the store may fold its log, which nobody waits for any more.
impl Drop for Engine {
    fn drop(&mut self) {
        // What cannot be folded now is folded next time.
        let _ = self.store.upkeep();
        if self.is_settled() {
            self.store.vouch();
        }
    }
}

impl Engine {
    /// Opens the engine and settles what an earlier one left behind.
    pub fn open(
        config: EngineConfig,
        providers: Vec<Box<dyn Provider>>,
        store: Box<dyn Store>,
    ) -> Result<Self, Problem> {
        Self::at(Rc::new(Desk { config, providers }), store)
    }

    /// Opens the engine on a store that is only to be read: nothing is settled, and whatever would
    /// be changed is refused by the store.
    pub fn open_to_read(
        config: EngineConfig,
        providers: Vec<Box<dyn Provider>>,
        store: Box<dyn Store>,
    ) -> Self {
        Self::unsettled(Rc::new(Desk { config, providers }), store)
    }

    fn unsettled(desk: Rc<Desk>, store: Box<dyn Store>) -> Self {
        let (unsettled, undone, amiss, chores) = Default::default();
        Self { desk, store, actor: None, unsettled, undone, reconciled: false, amiss, chores }
    }

    fn at(desk: Rc<Desk>, store: Box<dyn Store>) -> Result<Self, Problem> {
        let mut engine = Self::unsettled(desk, store);
        // Somebody has settled everything, and nothing was changed since.
        if engine.store.is_deferred() {
            return Ok(engine);
        }
        engine.store.look_around();
        engine.reconcile()?;
        state_place::keep_reserve(engine.layout());
        // Where there is no room for records, runs ask the store.
        let _ = layout::make_private(&engine.layout().runs());
        engine.store.note_settled();
        engine.reconciled = true;
        Ok(engine)
    }

    /// Whether everything was looked at, and nothing is left that the next one should hear of. What others are at
    /// the store knows.
    fn is_settled(&self) -> bool {
        self.reconciled
            && !self.amiss.get()
            && self.unsettled.borrow().is_empty()
            && !self.has_undone()
    }

    fn event(
        &self,
        kind: &str,
        sandbox: &SandboxId,
        exec: Option<&ExecId>,
        data: Value,
    ) -> NewEvent {
        NewEvent {
            at: self.now(),
            kind: kind.to_owned(),
            sandbox: Some(sandbox.clone()),
            exec: exec.cloned(),
            data,
        }
    }

    /// The workspace of a sandbox, for the review.
    fn workspace(&self, sandbox: &Sandbox) -> WorkspaceSpec {
        let layout = self.layout();
        let directory = layout.sandbox(&sandbox.id);
        WorkspaceSpec {
            project: sandbox.project.as_path().to_owned(),
            base: sandbox.base.clone(),
            driver: sandbox.driver,
            upper: directory.join("upper"),
            layers: sandbox.layers.iter().map(|layer| layout.layer(layer)).collect(),
            dependency_layers: Vec::new(),
            hidden: sandbox.hidden.clone(),
            memory: directory.join("base"),
        }
    }

    /// Takes the lock of a sandbox and reads its row under it: one that was read before may be from
    /// before another keeper, or other layers.
    fn lock_sandbox(&self, id: &SandboxId) -> Result<(Sandbox, lock::Lock), Problem> {
        // Looked up only when it is to be said.
        let what = std::fmt::from_fn(|text| match self.store.sandbox(id) {
            Ok(sandbox) => write!(text, "sandbox `{}`", sandbox.name),
            Err(_) => write!(text, "sandbox `{id}`"),
        });
        let lock = lock::take_sandbox(self.layout(), id, what, PATIENCE)?;
        let lock = lock.at(self.store.begin_work());
        self.settle_layers_of(id)?;
        // Records that cannot be read keep nobody from looking at the sandbox, or from removing it.
        let _ = self.take_in_of(id);
        Ok((self.load(id)?, lock))
    }

    fn lock_project(&self, project: &ByteString) -> Result<lock::Lock, Problem> {
        let what = format!("project `{project}`");
        let lock = lock::take(&self.layout().project_lock(project), what, PATIENCE)?;
        Ok(lock.at(self.store.begin_work()))
    }

    /// The lock of a sandbox, if nobody has it: whoever is at work on it is not waited for.
    fn lock_now(&self, id: &SandboxId) -> Result<lock::Lock, Problem> {
        let lock = lock::take_sandbox(self.layout(), id, "sandbox", Duration::ZERO)?;
        Ok(lock.at(self.store.begin_work()))
    }

    /// The same of a project.
    fn lock_project_now(&self, project: &ByteString) -> Result<lock::Lock, Problem> {
        let path = self.layout().project_lock(project);
        let lock = lock::take(&path, "the project", Duration::ZERO)?;
        Ok(lock.at(self.store.begin_work()))
    }

    /// Passes an answer on. Whatever failed may be half done: this one vouches for nothing any more, so that the
    /// next one looks at everything.
    fn whole<T>(&self, answer: Result<T, Problem>) -> Result<T, Problem> {
        answer.inspect_err(|_| self.amiss.set(true))
    }

    /// Says that something failed that was asked of this engine, and may be half done.
    pub fn note_failure(&self) {
        self.amiss.set(true);
    }

    /// A sandbox that something can be done with. One that is being made is its maker's alone: its
    /// directories and what hides its secrets may not be there yet.
    fn load(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        let sandbox = self.look_up(id)?;
        if sandbox.state == SandboxState::Creating {
            let message = format!("sandbox `{}` is being created", sandbox.name);
            return Err(Problem::new(Code::Busy, message).hint("try again in a moment"));
        }
        Ok(sandbox)
    }

    /// A sandbox as it is remembered, also while it is being made.
    fn look_up(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        let sandbox = match self.store.sandbox(id) {
            Err(StoreError::NotFound { .. }) => {
                self.take_in_runs();
                self.store.sandbox(id)
            }
            found => found,
        };
        let sandbox = sandbox.or_problem()?;
        if sandbox.state == SandboxState::Deleted {
            return Err(Problem::new(
                Code::NotFound,
                format!("sandbox `{}` is deleted", sandbox.name),
            ));
        }
        if pool::is_nobodys(&sandbox) {
            let message = format!("sandbox `{}` waits in a pool, and is nobody's", sandbox.name);
            return Err(Problem::new(Code::IllegalState, message)
                .hint("it is given to whoever asks for one like it, and goes when the pool does"));
        }
        Ok(sandbox)
    }

    /// Whether a sandbox is remembered, deleted or not.
    fn is_known(&self, id: &SandboxId) -> bool {
        let known = || self.store.sandbox(id).is_ok();
        known() || {
            self.take_in_runs();
            known()
        }
    }

    /// Why there is no sandbox of that name, where one was deleted: a word that meant it may mean something
    /// else now.
    fn or_deleted(&self, name: &str, problem: Problem) -> Problem {
        if problem.code != Code::NotFound {
            return problem;
        }
        let Ok(Some(deleted)) = self.store.deleted_sandbox(name) else { return problem };
        let at = deleted.updated_at;
        problem
            .hint(format!("it was deleted ({at}); `skep ls --all` lists those that are there"))
            .details(serde_json::json!({ "deleted": { "id": deleted.id, "at": at } }))
    }

    /// Whether a keeper holds it right now.
    fn is_running(&self, sandbox: &Sandbox) -> bool {
        let Some(keeper) = &sandbox.keeper else { return false };
        sandbox.state != SandboxState::Creating
            && self.provider(&sandbox.provider).is_ok_and(|provider| {
                provider.is_alive(keeper, &self.layout().sandbox(&sandbox.id))
            })
    }

    fn read_file(path: &Path, what: &str) -> Result<Vec<u8>, Problem> {
        std::fs::read(path).map_err(|error| io_problem(format!("read {what}"), path, &error))
    }
}
