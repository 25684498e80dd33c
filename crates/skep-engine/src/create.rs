//! Creating a sandbox: what is asked for becomes a plan; [`crate::bring_up`] carries it out.

use crate::api::{CreateRequest, StartedRun, first_spec};
use crate::archive::Scratch;
use crate::execs::{check_spec, check_workdir};
use crate::hidden::{SearchError, Searched};
use crate::meant::as_meant;
use crate::problems::{OrProblem, io_problem};
use crate::{Desk, Engine, git_head, hidden, naming, settings, submounts};
use skep_policy::{HideRules, InsideFacts, Settings, inside_environment};
use skep_provider::Attach;
use skep_store::{ScopeMode, StoreError};
use skep_types::{
    Base, ByteString, ChangeRules, Code, EnforcementReport, Exec, ExecSpec, Instant,
    KeeperIdentity, Layer, LayerId, Policy, Problem, RelPath, Sandbox, SandboxId, SandboxState,
    WorkspaceDriver,
};
use skep_workspace::tree::TreeRoot;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What helps where no change could be approved.
const RULES_APART: &str = "say what may be approved with `--allow-changes`";

/// What a sandbox starts on: nothing, or the layers of a snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Start {
    pub layers: Vec<LayerId>,
    pub base: Option<Base>,
    pub driver: Option<WorkspaceDriver>,
    /// Where commands start, unless the new sandbox says otherwise.
    pub workdir: Option<ByteString>,
    /// What is known of the base.
    pub memory: Option<Remembered>,
    /// Of no use once the sandbox is there, or failed.
    pub scratch: Option<PathBuf>,
    /// Which changes could be approved where it comes from.
    pub rules: ChangeRules,
}

/// What is known of the base of some layers.
#[derive(Debug, Clone)]
pub(crate) struct Remembered {
    /// Where it is kept.
    pub directory: PathBuf,
    /// How far it is about these layers; without it, all of it.
    pub reach: Option<u64>,
}

/// What was decided about a new sandbox.
pub(crate) struct Decided {
    began: Instant,
    project: PathBuf,
    pub settings: Settings,
    /// Of the provider.
    pub word: String,
}

/// A sandbox as it is to be, and what comes with it.
pub(crate) struct Planned {
    pub sandbox: Sandbox,
    pub settings: Settings,
    pub searched: Searched,
    /// Layers that were asked for by name.
    pub asked: BTreeSet<Layer>,
    /// What is known of the base.
    pub memory: Option<Remembered>,
    pub scope: ScopeMode,
    /// Whether its name was made up.
    pub made_up: bool,
    /// Whether it is made before anybody asks for it, and waits.
    pub ahead: bool,
    /// Whether no quota is held against it.
    pub trial: bool,
    _scratch: Scratch,
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
            let spec = first_spec(request, &sandbox, spec);
            let exec = self.start_exec(&sandbox.id, &spec, Attach::Last);
            return Ok(StartedRun { sandbox, exec });
        }
        let (sandbox, exec) = self.create_with(request, Some(spec))?;
        let exec = match exec {
            Some(exec) => self.hand_over(&sandbox, exec, Attach::Last),
            None => {
                let spec = first_spec(request, &sandbox, spec);
                self.start_exec(&sandbox.id, &spec, Attach::Last)
            }
        };
        Ok(StartedRun { sandbox, exec })
    }

    fn create_with(
        &self,
        request: &CreateRequest,
        first: Option<&ExecSpec>,
    ) -> Result<(Sandbox, Option<Exec>), Problem> {
        let decided = self.decide(request)?;
        if request.fresh {
            self.make_room(request)?;
        }
        let start = self.start_from(request, &decided.project)?;
        let planned = self.planned(decided, request, start)?;
        let first = first.map(|spec| first_spec(request, &planned.sandbox, spec));
        if let Some(claimed) = self.claim_ahead(&planned, first.as_deref())? {
            return Ok(claimed);
        }
        self.bring_up(planned, first.as_deref(), &|| Ok(self))
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

    fn start_from(&self, request: &CreateRequest, project: &Path) -> Result<Start, Problem> {
        match &request.from {
            None => Ok(Start::default()),
            Some(name) => self.resolve_start(name, project),
        }
    }
}

impl Desk {
    /// Settles what was asked for, and by which provider it is done.
    pub(crate) fn decide(&self, request: &CreateRequest) -> Result<Decided, Problem> {
        let began = skep_workspace::beginning()
            .map_err(|error| Problem::new(Code::Io, format!("cannot read the clock: {error}")))?;
        crate::patch::refuse_own_labels(request.labels.keys())?;
        let project = self.check_project(&request.project)?;
        let typed = settings::typed(request, &project)?;
        let (mut settings, _) = self.settings(Some(&project), Some(&typed))?;
        settings.policy.image = request.image.clone();
        check_workdir(request.workdir.as_ref())?;
        crate::egress::check_policy(&settings.policy)?;
        settings::check_mounts(&settings.policy.mounts, &project, self.layout().root())?;
        settings::check_program(&settings.provider, &project, self.layout().root())?;
        let word = self.choose_provider(&settings, request.network)?;
        Ok(Decided { began, project, settings, word })
    }

    /// The sandbox that was decided on, on what it starts from.
    pub(crate) fn planned(
        &self,
        decided: Decided,
        request: &CreateRequest,
        start: Start,
    ) -> Result<Planned, Problem> {
        let Decided { began, project, settings, word } = decided;
        let memory = start.memory.clone();
        let scratch = Scratch(start.scratch.clone(), self.layout().trash());
        let (hidden, searched) =
            find_hidden(&project, &settings.policy, &self.layout().searched())?;
        let base = match start.base.clone() {
            Some(base) => base,
            None => base_of(&project, began)?,
        };
        let ground = Ground { project, base, start, hidden };
        Ok(Planned {
            sandbox: self.draft(request, &settings, word, ground)?,
            searched,
            asked: settings::asked_layers(&request.limits),
            settings,
            memory,
            scope: if request.exclusive { ScopeMode::Exclusive } else { ScopeMode::Shared },
            made_up: request.name.is_none(),
            ahead: false,
            trial: request.trial,
            _scratch: scratch,
        })
    }

    fn draft(
        &self,
        request: &CreateRequest,
        settings: &Settings,
        word: String,
        ground: Ground,
    ) -> Result<Sandbox, Problem> {
        let Ground { project, base, start, hidden } = ground;
        let mut policy = settings.policy.clone();
        let typed = !request.allow_changes.is_empty();
        skep_policy::keep_rules(&mut policy, &start.rules, typed)
            .map_err(|error| Problem::from_error(Code::Refused, &error).hint(RULES_APART))?;
        policy.env = self.environment(request, &policy);
        if !policy.best_effort {
            // What was typed holds for every later start too, or there is none.
            policy.require.extend(settings::asked_layers(&request.limits));
        }
        policy.workdir = request.workdir.clone().or(start.workdir);
        let driver =
            self.provider(&word)?.choose_driver(&project, self.layout().root()).or_problem()?;
        let now = self.now();
        Ok(Sandbox {
            id: SandboxId::from_random((self.config.random)()),
            name: match &request.name {
                Some(name) => name.clone(),
                None => naming::made_up((self.config.random)())?,
            },
            state: SandboxState::Creating,
            state_reason: None,
            provider: word,
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
}

fn labels(request: &CreateRequest) -> BTreeMap<String, String> {
    let mut labels = request.labels.clone();
    if request.keep {
        labels.insert(crate::gc::KEPT.into(), "true".into());
    }
    if let Some(ttl) = request.ttl {
        labels.insert(crate::gc::TTL.into(), format!("{}", ttl.as_secs()));
    }
    if request.trial {
        labels.insert(crate::quota::TRIAL.into(), "true".into());
    }
    if let Some(key) = &request.idempotency_key {
        labels.insert(crate::repeated::KEY_LABEL.into(), key.clone());
    }
    labels
}

/// What of a project is not to be seen inside: secrets, and what is covered by a mount.
pub(crate) fn find_hidden(
    project: &Path,
    policy: &Policy,
    memories: &Path,
) -> Result<(Vec<RelPath>, Searched), Problem> {
    check_required_view(policy)?;
    let failed = |error| io_problem("search for secrets in", project, &error);
    let hide = as_meant(project, &policy.hide);
    let rules = HideRules::new(&hide, &policy.show)
        .map_err(|error| Problem::from_error(Code::Usage, &error))?;
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
    check_shown_by_mounts(project, policy, &found.hidden)?;
    // The view is of one filesystem: at a mount point it would show what the mount covers.
    let mut hidden = found.hidden;
    let mounts = submounts::below(project);
    if !mounts.is_empty() {
        hidden.extend(mounts);
        hidden = hidden::topmost(hidden);
    }
    Ok((hidden, found.searched))
}

/// Whoever requires that nothing outside can be written is given no hole in it, whoever asked for that.
fn check_required_view(policy: &Policy) -> Result<(), Problem> {
    match hidden::writable_outside(policy) {
        Some(writable) if policy.require.contains(&Layer::Filesystem) => {
            let message = format!("`filesystem` is required, and {writable}");
            Err(Problem::new(Code::MissingCapability, message)
                .hint("mount it read-only (`SRC:DST:ro`), or do not require `filesystem`"))
        }
        _ => Ok(()),
    }
}

/// Refuses a mount of the project, of a part of it or of what it lies in, that would show under another
/// name what is hidden.
fn check_shown_by_mounts(
    project: &Path,
    policy: &Policy,
    hidden: &[RelPath],
) -> Result<(), Problem> {
    for mount in &policy.mounts {
        let source = mount.source.as_path();
        if let Some(path) =
            hidden.iter().find(|path| project.join(path.as_path()).starts_with(source))
        {
            let message = format!(
                "the mount of `{}` would show `{path}`, which is hidden in the project",
                mount.source
            );
            return Err(Problem::new(Code::Refused, message).hint(format!(
                "mount a directory that does not hold it, or let it be seen: `--show {path}`"
            )));
        }
    }
    Ok(())
}

/// Who is creating this: a row left in `creating` by a dead process is found by it.
pub(crate) fn self_identity() -> Result<KeeperIdentity, Problem> {
    let identity = || -> std::io::Result<KeeperIdentity> {
        let pid = std::process::id();
        Ok(KeeperIdentity {
            pid,
            start_ticks: skep_sys::process::start_ticks(pid as i32)?,
            boot_id: skep_sys::process::boot_id()?,
            directory: None,
        })
    };
    identity()
        .map_err(|error| Problem::new(Code::Io, format!("cannot identify this process: {error}")))
}
