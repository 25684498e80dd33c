//! What is decided without the store, and a run that begins before the store is open.

use crate::api::{CreateRequest, StartedRun};
use crate::chores::{Attended, Chores};
use crate::create::{Decided, Start};
use crate::execs::check_spec;
use crate::{Engine, EngineConfig, Layout};
use skep_provider::{Attach, Provider, RunSpec};
use skep_store::Store;
use skep_types::{Code, ExecSpec, Problem, Sandbox, SandboxId};
use std::cell::{Cell, OnceCell};
use std::ops::Deref;
use std::rc::Rc;

/// Settings, providers and the state directory: all an engine knows before it has a store.
pub struct Desk {
    pub(crate) config: EngineConfig,
    pub(crate) providers: Vec<Box<dyn Provider>>,
}

impl Deref for Engine {
    type Target = Desk;

    fn deref(&self) -> &Desk {
        &self.desk
    }
}

impl Desk {
    pub(crate) fn layout(&self) -> &Layout {
        &self.config.layout
    }

    pub(crate) fn now(&self) -> String {
        (self.config.now)()
    }

    /// What the provider must know of a sandbox.
    pub(crate) fn run_spec(&self, sandbox: &Sandbox) -> RunSpec {
        let layout = self.layout();
        let home = sandbox.policy.env.get("HOME").map(|home| home.as_path().to_owned());
        RunSpec {
            id: sandbox.id.clone(),
            name: sandbox.name.clone(),
            provider: sandbox.provider.clone(),
            directory: layout.sandbox(&sandbox.id),
            project: sandbox.project.as_path().to_owned(),
            driver: sandbox.driver,
            root_identity: (sandbox.base.device, sandbox.base.inode),
            layers: sandbox.layers.iter().map(|layer| layout.layer(layer)).collect(),
            hidden: sandbox.hidden.clone(),
            policy: sandbox.policy.clone(),
            asked: Default::default(),
            environment: sandbox.policy.env.clone(),
            home: home.unwrap_or_else(|| self.config.home.clone()),
            base: sandbox.base.clone(),
            secrets: Default::default(),
        }
    }
}

/// What a run asks of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Something that only it can tell: names, other sandboxes, quotas.
    Answers,
    /// That it remembers the run; when it does so is its own business.
    Memory,
}

impl Need {
    fn of(request: &CreateRequest, decided: &Decided) -> Self {
        let quota = &decided.settings.quota;
        let counts = quota.sandboxes.is_some() || quota.memory.is_some() || quota.disk.is_some();
        let is_plain = request.name.is_none()
            && !request.exclusive
            && !request.trial
            && !counts
            && decided.word == PLAIN;
        if is_plain { Self::Memory } else { Self::Answers }
    }
}

/// The provider whose sandboxes leave nothing with anybody else's name on it.
const PLAIN: &str = "namespace";

impl Engine {
    /// Opens the engine and begins a run, both at once: the sandbox is begun as far as nothing of it
    /// would outlive its processes, and `open` opens the store meanwhile.
    pub fn open_for_run(
        config: EngineConfig,
        providers: Vec<Box<dyn Provider>>,
        open: impl FnOnce(Need) -> Result<Box<dyn Store>, Problem>,
        request: &CreateRequest,
        spec: &ExecSpec,
    ) -> Result<(Self, StartedRun), Problem> {
        check_spec(spec)?;
        let desk = Rc::new(Desk { config, providers });
        let decided = desk.decide(request)?;
        let asks_store = request.fresh
            || request.from.is_some()
            || request.idempotency_key.is_some()
            // One made ahead is faster than one begun now.
            || !decided.settings.pools.is_empty();
        if asks_store {
            let engine = Self::at(desk, open(Need::Answers)?)?;
            let run = engine.create_for_run(request, spec)?;
            return Ok((engine, run));
        }
        let need = Need::of(request, &decided);
        let planned = desk.planned(decided, request, Start::default())?;
        let (engine, open) = (OnceCell::new(), Cell::new(Some(open)));
        let missing = || Problem::new(Code::Internal, "the store was not opened");
        let opener = || {
            if let Some(open) = open.take() {
                let _ = engine.set(Self::at(Rc::clone(&desk), open(need)?)?);
            }
            engine.get().ok_or_else(missing)
        };
        let (sandbox, exec) = desk.bring_up(planned, Some(spec), &opener)?;
        let engine = engine.into_inner().ok_or_else(missing)?;
        let mut exec = match exec {
            Some(exec) => engine.hand_over(&sandbox, exec, Attach::Last),
            None => engine.start_exec(&sandbox.id, spec, Attach::Last),
        };
        // Others may have to fork again.
        if engine.store.is_deferred() {
            let name = SandboxId::from_random((desk.config.random)());
            engine.chores.replace(Chores::of(desk.layout().clone(), name.to_string()));
            if let Ok(exec) = &mut exec {
                let chores = &engine.chores;
                let attended =
                    |stream| Box::new(Attended { stream, chores: Rc::clone(chores) }) as _;
                exec.stream = exec.stream.take().map(attended);
            }
        }
        Ok((engine, StartedRun { sandbox, exec }))
    }
}
