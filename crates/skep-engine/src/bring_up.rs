//! From a plan to a sandbox that is ready: intent, resources, ready.
//!
//! The provider begins while the intent is being written. It makes nothing that would outlive its
//! processes before that is done, so the order that counts is kept: there is a row before there is
//! anything that a crash could leave.

use crate::create::Planned;
use crate::hidden::{note_hidden, note_opened};
use crate::problems::{OrProblem, io_problem};
use crate::quota::Wanted;
use crate::shut::note_shut;
use crate::undone::comes_back;
use crate::{Desk, Engine, closed, hidden, layout, naming, spare, waste};
use serde_json::json;
use skep_provider::{Beside, Provider, ProviderError, RunSpec, Started, Withdrawn};
use skep_store::{ExecMoves, Expect, ScopeMode, StoreError};
use skep_sys::failpoint;
use skep_types::{
    Code, EnforcementReport, Exec, ExecSpec, Layer, Problem, Sandbox, SandboxName, SandboxState,
    WorkspaceDriver,
};
use std::path::Path;

/// The engine, which may not be open before it is asked for.
pub(crate) type Opener<'a, 'e> = dyn Fn() -> Result<&'e Engine, Problem> + 'a;

/// How often a name is made up.
const NAMES: u32 = 8;

/// What came of writing the intent.
#[derive(Default)]
struct Intent {
    row: Option<Sandbox>,
    refused: Option<Problem>,
}

impl Desk {
    /// Makes a sandbox, and writes down that its first command begins. On error nothing is left.
    ///
    /// A name that was made up and happens to be taken is made up again.
    pub(crate) fn bring_up<'e>(
        &self,
        mut planned: Planned,
        first: Option<&ExecSpec>,
        open: &Opener<'_, 'e>,
    ) -> Result<(Sandbox, Option<Exec>), Problem> {
        for _ in 0..NAMES {
            match self.try_to_bring_up(&planned, first, open) {
                Err(problem) if planned.made_up && problem.code == Code::AlreadyExists => {
                    planned.sandbox.name = naming::made_up((self.config.random)())?;
                }
                other => return other,
            }
        }
        Err(no_free_name())
    }

    fn try_to_bring_up<'e>(
        &self,
        planned: &Planned,
        first: Option<&ExecSpec>,
        open: &Opener<'_, 'e>,
    ) -> Result<(Sandbox, Option<Exec>), Problem> {
        let provider = self.provider(&planned.sandbox.provider)?;
        let mut spec = self.start_spec(&planned.sandbox)?;
        spec.asked = planned.asked.clone();
        let mut intent = Intent::default();
        let started = provider.start_beside(
            &spec,
            Beside {
                intend: &mut || {
                    let written = open().and_then(|engine| engine.intend(planned, &mut intent.row));
                    written.map_err(|problem| {
                        intent.refused = Some(problem);
                        Withdrawn
                    })
                },
                meanwhile: &mut || {
                    if let Ok(engine) = open() {
                        engine.store.rehearse();
                        // A run does so while its command is at work, a server between requests.
                        if !engine.store.is_deferred() {
                            waste::clear_if_much(engine.layout());
                        }
                    }
                },
                stays: first.is_some(),
            },
        );
        let Some(sandbox) = intent.row else {
            // Nothing was written, and nothing is left.
            let unknown = || Problem::new(Code::Internal, "the provider did not wait for the row");
            return Err(match (intent.refused, started) {
                (Some(refused), _) => refused,
                (None, Err(error)) => error.problem(),
                (None, Ok(_)) => unknown(),
            });
        };
        let engine = open()?;
        let ready = match intent.refused {
            Some(refused) => Err(refused),
            None => engine
                .try_drivers(&sandbox, provider, spec, started)
                .and_then(|started| engine.note_ready(&sandbox, started, planned, first)),
        };
        if ready.is_err() {
            engine.note_failure();
            engine.tear_down(&sandbox, "create failed");
        }
        ready
    }
}

fn no_free_name() -> Problem {
    Problem::new(Code::Busy, "no free name was found")
}

impl Engine {
    /// The row, and then everything on the disk that must be there before the processes.
    fn intend(&self, planned: &Planned, row: &mut Option<Sandbox>) -> Result<(), Problem> {
        let limits = &planned.settings.policy.limits;
        // Held until the row is there, and counts.
        let counted = match planned.trial {
            true => None,
            false => self.check_quota(&planned.settings.quota, &Wanted::one(limits))?,
        };
        let sandbox = self.insert(planned.sandbox.clone(), false, planned.scope)?;
        drop(counted);
        let sandbox = &*row.insert(sandbox);
        self.make_directories(sandbox)?;
        if let Some(memory) = &planned.memory {
            self.check_layers(sandbox)?;
            let base = self.layout().sandbox(&sandbox.id).join("base");
            self.carry_memory(&memory.directory, &base)?;
            if let Some(reach) = memory.reach {
                let workspace = self.workspace(sandbox);
                closed::noted(|| skep_workspace::rewind(&workspace, reach))?;
            }
        }
        match sandbox.driver {
            WorkspaceDriver::Copy => self.copy_project(sandbox),
            _ => Ok(()),
        }
    }

    /// It runs: the row says so, and that its first command begins.
    pub(crate) fn note_ready(
        &self,
        sandbox: &Sandbox,
        (driver, mut started): (WorkspaceDriver, Started),
        planned: &Planned,
        first: Option<&ExecSpec>,
    ) -> Result<(Sandbox, Option<Exec>), Problem> {
        if planned.ahead {
            return self.note_waiting(sandbox, driver, &started).map(|sandbox| (sandbox, None));
        }
        note_hidden(&mut started.enforcement, sandbox.hidden.len(), &planned.searched);
        note_opened(&mut started.enforcement, &sandbox.policy);
        let upper = self.layout().sandbox(&sandbox.id).join("upper");
        note_shut(&mut started.enforcement, sandbox, &upper);
        let event = self.event("sandbox.ready", &sandbox.id, None, json!({ "driver": driver }));
        let first = first.map(|spec| self.exec_of(&sandbox.id, spec, &started.enforcement));
        let mut events = vec![event];
        events.extend(first.as_ref().map(|exec| self.begins(exec)));
        let moves = ExecMoves { begun: first.as_slice(), ended: &[] };
        let update = &mut |row: &mut Sandbox| {
            row.state = SandboxState::Ready;
            row.driver = driver;
            row.keeper = Some(started.keeper.clone());
            row.enforcement = started.enforcement.clone();
            row.updated_at = self.now();
        };
        let ready = self
            .store
            .update_with_execs(&sandbox.id, Expect::default(), moves, &events, update)
            .or_problem()?;
        // Before anybody is told: whatever is edited from then on must carry a later time.
        let made = self.layout().sandbox(&sandbox.id);
        skep_workspace::wait_past_by(&sandbox.base.instant, &made);
        Ok((ready, first))
    }

    /// The best driver first; where the kernel or the filesystem refuses it, what else there is, in
    /// order. Layers are written in one driver's marks, so that there is no choice with them.
    fn try_drivers(
        &self,
        sandbox: &Sandbox,
        provider: &dyn Provider,
        mut spec: RunSpec,
        first: Result<Started, ProviderError>,
    ) -> Result<(WorkspaceDriver, Started), Problem> {
        let mut attempt = first;
        let mut others: Option<std::vec::IntoIter<WorkspaceDriver>> = None;
        let mut refusals = Vec::new();
        loop {
            let error = match attempt {
                Ok(mut started) => {
                    note_refusals(&mut started.enforcement, refusals);
                    return Ok((spec.driver, started));
                }
                Err(error) => error,
            };
            let overlay = match &error {
                ProviderError::Setup { operation, source }
                    if operation.contains("workspace overlay") && sandbox.layers.is_empty() =>
                {
                    format!("{}: cannot {operation}: {source}", spec.driver.as_str())
                }
                _ => return Err(error).or_problem(),
            };
            // Looked for only now: the first one nearly always does.
            let others = match &mut others {
                Some(others) => others,
                none => none.insert(self.drivers_after(sandbox, provider)?),
            };
            let Some(next) = others.next() else { return Err(error).or_problem() };
            refusals.push(overlay);
            spec.driver = next;
            if next == WorkspaceDriver::Copy {
                self.copy_project(sandbox)?;
            }
            attempt = provider.start(&spec);
        }
    }

    /// The drivers that come after the sandbox's.
    fn drivers_after(
        &self,
        sandbox: &Sandbox,
        provider: &dyn Provider,
    ) -> Result<std::vec::IntoIter<WorkspaceDriver>, Problem> {
        let choice = provider.drivers(sandbox.project.as_path(), self.layout().root());
        let mut all = choice.or_problem()?.drivers.into_iter();
        all.by_ref().find(|driver| *driver == sandbox.driver);
        Ok(all)
    }

    /// Everything a sandbox has on the disk, named after its id.
    pub(crate) fn make_directories(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let directory = self.layout().sandbox(&sandbox.id);
        let make = || -> std::io::Result<()> {
            spare::take(self.layout(), &directory);
            layout::make_private(&directory)?;
            // Those of one that was made ahead are there.
            let part = |name| layout::make_private_in(&directory.join(name));
            spare::PARTS.into_iter().try_for_each(part)?;
            // The upper lends its mode to the project's root inside; the messages are read by all.
            let mode = |path: &Path, mode| {
                std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
            };
            let project = std::fs::metadata(sandbox.project.as_path())?;
            let upper = directory.join("upper");
            mode(&upper, std::os::unix::fs::MetadataExt::mode(&project) & 0o7777)?;
            mode(&directory.join("messages"), 0o755)?;
            // A copy is made without them; and where there is no overlay there may be no whiteouts.
            if sandbox.driver != WorkspaceDriver::Copy {
                let mask = directory.join("mask");
                hidden::make_mask(&mask, sandbox.project.as_path(), &sandbox.hidden)?;
            }
            failpoint::hit("create.directories")
        };
        make().map_err(|error| io_problem("make", &directory, &error))
    }

    /// The whole project, copied (reflinked where the filesystem can).
    pub(crate) fn copy_project(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let upper = self.layout().sandbox(&sandbox.id).join("upper");
        crate::usage::copy_tree(sandbox.project.as_path(), &upper, &sandbox.hidden)
            .map_err(|error| io_problem("copy the project to", &upper, &error))?;
        let mut workspace = self.workspace(sandbox);
        workspace.driver = WorkspaceDriver::Copy;
        skep_workspace::remember_copy(&workspace).map(drop).or_problem()
    }

    /// Takes away everything a failed or interrupted create may have made.
    pub(crate) fn tear_down(&self, sandbox: &Sandbox, reason: &str) {
        let directory = self.layout().sandbox(&sandbox.id);
        if let Ok(provider) = self.provider(&sandbox.provider) {
            let _ = provider.stop(&sandbox.id, &directory, None);
        }
        let _ = crate::trash::discard(&directory, &self.layout().trash());
        let event = self.event("sandbox.failed", &sandbox.id, None, json!({ "reason": reason }));
        let deleted =
            self.store.update_sandbox(&sandbox.id, Expect::default(), &[event], &mut |row| {
                row.state = SandboxState::Deleted;
                row.state_reason = Some(reason.to_owned());
                row.keeper = None;
                row.updated_at = self.now();
            });
        if deleted.is_err_and(|error| comes_back(&error)) {
            self.undone.borrow_mut().rows = true;
        }
    }

    /// A name that is another's id would never mean its own sandbox: a whole id comes first.
    fn refuse_anothers_id(&self, name: &SandboxName) -> Result<(), Problem> {
        let Ok(id) = name.as_str().parse() else { return Ok(()) };
        match self.store.sandbox(&id) {
            Ok(other) if other.state != SandboxState::Deleted => {
                let message = format!("`{name}` is the id of sandbox `{}`", other.name);
                Err(Problem::new(Code::AlreadyExists, message).hint("choose another name"))
            }
            _ => Ok(()),
        }
    }

    /// A name that was made up and happens to be taken is made up again.
    pub(crate) fn insert(
        &self,
        mut sandbox: Sandbox,
        made_up: bool,
        scope: ScopeMode,
    ) -> Result<Sandbox, Problem> {
        self.refuse_anothers_id(&sandbox.name)?;
        for _ in 0..NAMES {
            let data = json!({ "name": sandbox.name, "project": sandbox.project });
            let event = self.event("sandbox.creating", &sandbox.id, None, data);
            match self.store.insert_sandbox(&sandbox, scope, &[event]) {
                Err(StoreError::AlreadyExists { .. }) if made_up => {
                    sandbox.name = naming::made_up((self.config.random)())?;
                }
                Err(error @ StoreError::AlreadyExists { .. }) => {
                    return Err(name_taken(&error, &sandbox.name));
                }
                other => {
                    // Where the outcome is not known there may be a row.
                    self.undone.borrow_mut().rows |= other.as_ref().is_err_and(comes_back);
                    sandbox.version = other.or_problem()?;
                    failpoint::hit("create.row")
                        .map_err(|e| io_problem("create", self.layout().root(), &e))?;
                    return Ok(sandbox);
                }
            }
        }
        Err(no_free_name())
    }
}

/// Another sandbox has the name.
pub(crate) fn name_taken(error: &StoreError, name: &SandboxName) -> Problem {
    let hint =
        format!("choose another name, or use `skep exec {name}`, `skep rm {name}` or `--fresh`");
    Problem::from_error(error.code(), error).hint(hint)
}

/// The report says which drivers failed before the one in use.
fn note_refusals(report: &mut EnforcementReport, refusals: Vec<String>) {
    let Some(layer) = report.0.get_mut(&Layer::Filesystem) else { return };
    let reasons: Vec<String> = layer.reason.take().into_iter().chain(refusals).collect();
    layer.reason = (!reasons.is_empty()).then(|| reasons.join("; "));
}
