//! Creating a sandbox: intent, resources, ready.

use crate::api::{CreateRequest, StartedRun};
use crate::execs::check_spec;
use crate::hidden::{SearchError, Searched, note_hidden};
use crate::problems::{OrProblem, io_problem};
use crate::providers::Chosen;
use crate::{Engine, git_head, hidden, layout, naming, settings};
use serde_json::json;
use skep_policy::{HideRules, InsideFacts, Settings, inside_environment};
use skep_provider::{Attach, Provider, ProviderError};
use skep_store::{ExecMoves, Expect, ScopeMode, StoreError};
use skep_sys::failpoint;
use skep_types::{
    Base, ByteString, Code, EnforcementReport, Exec, ExecSpec, Instant, KeeperIdentity, Layer,
    LayerId, Policy, Problem, RelPath, Sandbox, SandboxId, SandboxState, WorkspaceDriver,
};
use skep_workspace::tree::TreeRoot;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What a sandbox starts on: nothing, or the layers of a snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Start {
    pub layers: Vec<LayerId>,
    pub base: Option<Base>,
    pub driver: Option<WorkspaceDriver>,
    /// Where it is kept what is known of the base.
    pub memory: Option<PathBuf>,
    /// Of no use once the sandbox is there, or failed.
    pub scratch: Option<PathBuf>,
}

/// What comes after the row.
struct Rest<'a> {
    searched: Searched,
    asked: BTreeSet<Layer>,
    /// Where it is kept what is known of the base.
    memory: Option<&'a Path>,
    /// What runs first.
    first: Option<&'a ExecSpec>,
}

/// What a new sandbox stands on.
struct Ground {
    project: PathBuf,
    base: Base,
    start: Start,
    hidden: Vec<RelPath>,
}

/// The project as it is now.
fn base_of(project: &Path, began: Instant) -> Result<Base, Problem> {
    let (device, inode) = TreeRoot::open(project)
        .and_then(|root| root.identity())
        .map_err(|error| io_problem("open project", project, &error))?;
    Ok(Base { instant: began, device, inode, commit: git_head::commit(project) })
}

impl Engine {
    pub(crate) fn create_sandbox(&self, request: &CreateRequest) -> Result<Sandbox, Problem> {
        self.create_with(request, None).map(|(sandbox, _)| sandbox)
    }

    /// A sandbox for one command: that it is ready and that the command begins is one row less to
    /// wait for than the one after the other.
    pub(crate) fn create_for_run(
        &self,
        request: &CreateRequest,
        spec: &ExecSpec,
    ) -> Result<StartedRun, Problem> {
        check_spec(spec)?;
        if request.idempotency_key.is_some() {
            let sandbox = self.create_once(request)?;
            let exec = self.start_exec(&sandbox.id, spec, true);
            return Ok(StartedRun { sandbox, exec });
        }
        let (sandbox, exec) = self.create_with(request, Some(spec))?;
        let exec = match exec {
            Some(exec) => self.hand_over(&sandbox, exec, Attach::Yes),
            None => self.start_exec(&sandbox.id, spec, true),
        };
        Ok(StartedRun { sandbox, exec })
    }

    fn create_with(
        &self,
        request: &CreateRequest,
        first: Option<&ExecSpec>,
    ) -> Result<(Sandbox, Option<Exec>), Problem> {
        let began = skep_workspace::beginning()
            .map_err(|error| Problem::new(Code::Io, format!("cannot read the clock: {error}")))?;
        let project = self.check_project(&request.project)?;
        let typed = settings::typed(request, &project)?;
        let (mut settings, _) = self.settings(Some(&project), Some(&typed))?;
        settings.policy.image = request.image.clone();
        crate::egress::check_policy(&settings.policy)?;
        settings::check_mounts(&settings.policy.mounts, &project, self.layout().root())?;
        settings::check_program(&settings.provider, &project, self.layout().root())?;
        let chosen = self.choose_provider(&settings, request.network)?;
        if request.fresh {
            self.make_room(request)?;
        }
        self.check_quota(&settings)?;
        let start = self.start_from(request, &project)?;
        let memory = start.memory.clone();
        let _scratch = crate::archive::Scratch(start.scratch.clone(), self.layout().trash());
        let (hidden, searched) =
            find_hidden(&project, &settings.policy, &self.layout().searched())?;
        let base = match start.base.clone() {
            Some(base) => base,
            None => base_of(&project, began)?,
        };
        let draft =
            self.draft(request, &settings, &chosen, Ground { project, base, start, hidden })?;
        let scope = if request.exclusive { ScopeMode::Exclusive } else { ScopeMode::Shared };
        let sandbox = self.insert(draft, request.name.is_none(), scope)?;
        let rest = Rest {
            searched,
            asked: settings::asked_layers(&request.limits),
            memory: memory.as_deref(),
            first,
        };
        self.bring_up(sandbox, chosen.provider, rest)
    }

    fn make_room(&self, request: &CreateRequest) -> Result<(), Problem> {
        let Some(name) = &request.name else {
            return Err(Problem::new(Code::Usage, "`--fresh` needs the name of what is recreated")
                .hint("give it with `--name`"));
        };
        match self.store.find_sandbox(name.as_str()) {
            Ok(old) if old.name == *name => self.remove_sandbox(&old.id, request.discard),
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            other => other.map(drop).or_problem(),
        }
    }

    fn draft(
        &self,
        request: &CreateRequest,
        settings: &Settings,
        chosen: &Chosen<'_>,
        ground: Ground,
    ) -> Result<Sandbox, Problem> {
        let Ground { project, base, start, hidden } = ground;
        let mut policy = settings.policy.clone();
        policy.env = self.environment(request, &policy);
        let driver = chosen.provider.choose_driver(&project, self.layout().root()).or_problem()?;
        let now = self.now();
        Ok(Sandbox {
            id: SandboxId::from_random((self.config.random)()),
            name: match &request.name {
                Some(name) => name.clone(),
                None => naming::made_up((self.config.random)())?,
            },
            state: SandboxState::Creating,
            state_reason: None,
            provider: chosen.word.clone(),
            project: project.as_path().into(),
            driver: start.driver.unwrap_or(driver),
            base,
            enforcement: EnforcementReport::default(),
            layers: start.layers,
            hidden,
            policy,
            keeper: Some(self_identity()?),
            labels: labels(request),
            created_at: now.clone(),
            updated_at: now,
            version: 0,
        })
    }

    fn environment(
        &self,
        request: &CreateRequest,
        policy: &Policy,
    ) -> BTreeMap<String, ByteString> {
        let home = &request.home;
        let directories = policy.home.iter().map(|piece| home.join(piece.as_path()));
        let programs = directories.filter_map(|path| {
            let path = if path.ends_with("bin") { path } else { path.join("bin") };
            path.is_dir().then(|| ByteString::from(path))
        });
        let facts = InsideFacts {
            home: home.as_path().into(),
            user: self.config.user.clone(),
            shell: request.host_env.get("SHELL").cloned().filter(|shell| {
                shell.as_path().starts_with("/bin") || shell.as_path().starts_with("/usr")
            }),
            program_directories: programs.collect(),
        };
        let host = request
            .host_env
            .iter()
            .map(|(name, value)| (ByteString::from(name.as_str()), value.clone()));
        inside_environment(host, policy, &facts)
    }

    /// A name that was made up and happens to be taken is made up again.
    pub(crate) fn insert(
        &self,
        mut sandbox: Sandbox,
        made_up: bool,
        scope: ScopeMode,
    ) -> Result<Sandbox, Problem> {
        for _ in 0..8 {
            let data = json!({ "name": sandbox.name, "project": sandbox.project });
            let event = self.event("sandbox.creating", &sandbox.id, None, data);
            match self.store.insert_sandbox(&sandbox, scope, &[event]) {
                Err(StoreError::AlreadyExists { .. }) if made_up => {
                    sandbox.name = naming::made_up((self.config.random)())?;
                }
                Err(error @ StoreError::AlreadyExists { .. }) => {
                    let hint = format!(
                        "choose another name, or use `skep exec {0}`, `skep rm {0}` or `--fresh`",
                        sandbox.name
                    );
                    return Err(Problem::from_error(error.code(), &error).hint(hint));
                }
                other => {
                    sandbox.version = other.or_problem()?;
                    failpoint::hit("create.row")
                        .map_err(|e| io_problem("create", self.layout().root(), &e))?;
                    return Ok(sandbox);
                }
            }
        }
        Err(Problem::new(Code::Busy, "no free name was found"))
    }

    fn bring_up(
        &self,
        sandbox: Sandbox,
        provider: &dyn Provider,
        rest: Rest<'_>,
    ) -> Result<(Sandbox, Option<Exec>), Problem> {
        let Rest { searched, asked, memory, first } = rest;
        let result = self
            .make_directories(&sandbox)
            .and_then(|()| match memory {
                None => Ok(()),
                Some(memory) => {
                    self.check_layers(&sandbox)?;
                    let base = self.layout().sandbox(&sandbox.id).join("base");
                    self.carry_memory(memory, &base)
                }
            })
            .and_then(|()| self.start_with(&sandbox, provider, asked))
            .and_then(|(driver, mut started)| {
                // The first exec must not start before every later edit carries a later time.
                skep_workspace::wait_past(&sandbox.base.instant);
                note_hidden(&mut started.enforcement, sandbox.hidden.len(), &searched);
                let event =
                    self.event("sandbox.ready", &sandbox.id, None, json!({ "driver": driver }));
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
                self.store
                    .update_with_execs(&sandbox.id, Expect::default(), moves, &events, update)
                    .or_problem()
                    .map(|sandbox| (sandbox, first))
            });
        if result.is_err() {
            self.tear_down(&sandbox, "create failed");
        }
        result
    }

    /// The best driver first; where the kernel or the filesystem refuses it, what else there is, in
    /// order. Layers are written in one driver's marks, so that there is no choice with them.
    fn start_with(
        &self,
        sandbox: &Sandbox,
        provider: &dyn Provider,
        asked: BTreeSet<Layer>,
    ) -> Result<(WorkspaceDriver, skep_provider::Started), Problem> {
        let mut spec = self.start_spec(sandbox)?;
        spec.asked = asked;
        let mut others: Option<std::vec::IntoIter<WorkspaceDriver>> = None;
        let mut refusals = Vec::new();
        loop {
            if spec.driver == WorkspaceDriver::Copy {
                self.copy_project(sandbox)?;
            }
            let error = match provider.start_while(&spec, &mut || self.store.rehearse()) {
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
            for name in ["", "work", "messages", "execs"] {
                layout::make_private(&directory.join(name))?;
            }
            // The upper lends its mode to the project's root inside; the messages are read by all.
            let mode = |path: &Path, mode| {
                std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
            };
            let project = std::fs::metadata(sandbox.project.as_path())?;
            let upper = directory.join("upper");
            layout::make_private(&upper)?;
            mode(&upper, std::os::unix::fs::MetadataExt::mode(&project) & 0o7777)?;
            mode(&directory.join("messages"), 0o755)?;
            hidden::make_mask(&directory.join("mask"), sandbox.project.as_path(), &sandbox.hidden)?;
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
        let _ = self.store.update_sandbox(&sandbox.id, Expect::default(), &[event], &mut |row| {
            row.state = SandboxState::Deleted;
            row.state_reason = Some(reason.to_owned());
            row.keeper = None;
            row.updated_at = self.now();
        });
    }

    fn start_from(&self, request: &CreateRequest, project: &Path) -> Result<Start, Problem> {
        match &request.from {
            None => Ok(Start::default()),
            Some(name) => self.resolve_start(name, project),
        }
    }
}

fn labels(request: &CreateRequest) -> BTreeMap<String, String> {
    let mut labels = request.labels.clone();
    if let Some(ttl) = request.ttl {
        labels.insert(crate::gc::TTL.into(), format!("{}", ttl.as_secs()));
    }
    if let Some(key) = &request.idempotency_key {
        labels.insert(crate::repeated::KEY_LABEL.into(), key.clone());
    }
    labels
}

/// The files of a project that are not to be seen inside.
pub(crate) fn find_hidden(
    project: &Path,
    policy: &Policy,
    memories: &Path,
) -> Result<(Vec<RelPath>, Searched), Problem> {
    let failed = |error| io_problem("search for secrets in", project, &error);
    let rules = HideRules::of(policy).map_err(|error| Problem::from_error(Code::Usage, &error))?;
    let root = TreeRoot::open(project).map_err(failed)?;
    let found = hidden::search(&root, &rules, memories).map_err(|error| match error {
        SearchError::Io(error) => failed(error),
        other => Problem::from_error(Code::Refused, &other)
            .hint("`--hide` with a path from the project's root needs no search"),
    })?;
    if let Searched::Except { directory, .. } = &found.searched
        && policy.require.contains(&Layer::Filesystem)
    {
        let message = format!(
            "`{directory}` cannot be searched for secrets, because it cannot be listed, and \
             `filesystem` is required"
        );
        return Err(Problem::new(Code::MissingCapability, message)
            .hint("hide it whole (`--hide PATH`), or make it readable"));
    }
    Ok((found.hidden, found.searched))
}

/// The report says which drivers failed before the one in use.
fn note_refusals(report: &mut EnforcementReport, refusals: Vec<String>) {
    let Some(layer) = report.0.get_mut(&Layer::Filesystem) else { return };
    let reasons: Vec<String> = layer.reason.take().into_iter().chain(refusals).collect();
    layer.reason = (!reasons.is_empty()).then(|| reasons.join("; "));
}

/// Who is creating this: a row left in `creating` by a dead process is found by it.
pub(crate) fn self_identity() -> Result<KeeperIdentity, Problem> {
    let identity = || -> std::io::Result<KeeperIdentity> {
        let pid = std::process::id();
        Ok(KeeperIdentity {
            pid,
            start_ticks: skep_sys::process::start_ticks(pid as i32)?,
            boot_id: skep_sys::process::boot_id()?,
        })
    };
    identity()
        .map_err(|error| Problem::new(Code::Io, format!("cannot identify this process: {error}")))
}
