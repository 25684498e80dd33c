//! The only file that names an engine or a provider; `storage.rs` names the stores.

use crate::context::{Global, Host};
use crate::project;
use crate::storage::{self, ConfigFile};
use skep_client::Client;
use skep_engine::api::{Api, CreateRequest, StartedExec, StartedRun};
use skep_engine::{Engine, EngineConfig, Layout, Need, OrProblem as _, Way, Wish};
use skep_keeper::Nest;
use skep_keeper::kept::Kept;
use skep_policy::ConfigDocument;
use skep_provider::{Attach, Provider};
use skep_provider_docker::Docker;
use skep_provider_microvm::{Emulation, Microvm, Surroundings};
use skep_provider_namespace::{Bubblewrap, Namespace, Subprocess};
use skep_provider_oci::Oci;
use skep_store::{Access, DeferredStore, NewInstance, Store};
use skep_types::{Code, ExecId, ExecSpec, Problem, Sandbox, SandboxId, WorkspaceDriver};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Opens the engine in this process, or the way to a server.
pub(crate) fn open(global: &Global, early: &Early) -> Result<Box<dyn Api>, Problem> {
    match &global.host {
        None => Ok(Box::new(engine_with(global, early)?)),
        Some(host) => Ok(Box::new(open_client(host, global.user)?)),
    }
}

fn open_client(host: &Host, user: u32) -> Result<Client, Problem> {
    let token = match (&host.token, &host.token_file) {
        (Some(token), _) => Some(token.to_string_lossy().into_owned()),
        (None, Some(path)) => Some(skep_client::read_token(path, user)?),
        (None, None) => None,
    };
    Client::new(&host.url, token)
}

/// Makes the state directory, if need be, and returns its real path.
pub(crate) fn prepare(global: &Global) -> Result<PathBuf, Problem> {
    layout(global).map(|layout| layout.root().to_owned())
}

fn layout(global: &Global) -> Result<Layout, Problem> {
    let may_make = || project::check_new_state(global);
    Layout::open(&global.state_dir, may_make).map_err(|error| {
        let message =
            format!("cannot use the state directory `{}`: {error}", global.state_dir.display());
        // What the kernel said has a number; what has none is a place that is not taken.
        let code = if error.raw_os_error().is_some() { Code::Io } else { Code::Refused };
        Problem::new(code, message).hint("name another one with `--home DIR`")
    })
}

/// A keeper that was begun before it is known what for. Its provider takes it for the first sandbox that it fits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Early(Rc<RefCell<Option<Nest>>>);

impl Early {
    /// Forks it, so this process must be single threaded. Where it cannot be had, it is begun later, and whoever does
    /// that says why not.
    pub(crate) fn begin(&self, stays: bool) {
        self.0.replace(Nest::make(stays).ok());
    }

    /// It ends, if nobody has taken it.
    pub(crate) fn end(&self) {
        self.0.take();
    }
}

/// Opens the engine in this process.
pub(crate) fn open_engine(global: &Global) -> Result<Engine, Problem> {
    engine_with(global, &Early::default())
}

fn engine_with(global: &Global, early: &Early) -> Result<Engine, Problem> {
    let (config, providers) = parts(global, early)?;
    let store = open_store(global, &config, Access::ReadWrite)?;
    Engine::open(config, providers, store)
}

/// Opens one that only reads: nothing is settled, migrated or made.
pub(crate) fn open_to_read(global: &Global) -> Result<Engine, Problem> {
    let (config, providers) = parts(global, &Early::default())?;
    let store = open_store(global, &config, Access::ReadOnly)?;
    Ok(Engine::open_to_read(config, providers, store))
}

/// Reads the store from end to end: a sentence per problem.
pub(crate) fn check_store(global: &Global) -> Result<Vec<String>, Problem> {
    let (config, _) = parts(global, &Early::default())?;
    open_store(global, &config, Access::ReadWrite)?.check().or_problem()
}

/// Opens it and begins a run, both at once.
pub(crate) fn open_for_run(
    global: &Global,
    early: &Early,
    request: &CreateRequest,
    spec: &ExecSpec,
) -> Result<(Box<dyn Api>, StartedRun), Problem> {
    let (config, providers) = parts(global, early)?;
    let own = config.clone();
    let open = |need: Need| match need {
        Need::Memory => match deferred_store(global, &own.layout) {
            Some(store) => Ok(store),
            None => open_store(global, &own, Access::ReadWrite),
        },
        Need::Answers => open_store(global, &own, Access::ReadWrite),
    };
    let (engine, run) = Engine::open_for_run(config, providers, open, request, spec)?;
    Ok((Box::new(engine), run))
}

/// What stands for the store where it surely is the file in the state directory, and has nothing to say.
fn deferred_store(global: &Global, layout: &Layout) -> Option<Box<dyn Store>> {
    if !storage::is_own(global) {
        return None;
    }
    let first = NewInstance { instance: random_word(), node: host_name() };
    let store = DeferredStore::instead_of(&layout.database(), first)?;
    Some(Box::new(store.beginning_in(layout.blank_record())))
}

fn open_store(
    global: &Global,
    config: &EngineConfig,
    access: Access,
) -> Result<Box<dyn Store>, Problem> {
    let configs = (config.system_config.clone(), config.user_config.clone());
    storage::open(global, &config.layout, &configs, random_word(), host_name(), access)
}

/// All of an engine but its store.
fn parts(
    global: &Global,
    early: &Early,
) -> Result<(EngineConfig, Vec<Box<dyn Provider>>), Problem> {
    let layout = layout(global)?;
    let user = global.user_name();
    let configs = (global.system_config()?, global.user_config()?);
    let settings = (configs.clone(), global.variables.clone());
    let providers = providers(&layout, &user, settings, early)?;
    let config = EngineConfig {
        layout,
        system_config: configs.0,
        variables: global.variables.clone(),
        user_config: configs.1,
        home: global.home.clone(),
        user,
        now,
        random,
        secret: crate::secrets::read,
        progress: crate::progress::note,
    };
    Ok((config, providers))
}

/// A running sandbox that was found without opening the store.
pub(crate) struct Shortcut {
    layout: Layout,
    /// Where it leads.
    pub(crate) way: Way,
}

impl Shortcut {
    /// The sandbox that a name led to last; `None` wherever the store has more to say.
    pub(crate) fn find(global: &Global, name: &str) -> Option<Self> {
        if global.host.is_some() || !storage::is_own(global) {
            return None;
        }
        let layout = Layout::existing(&global.state_dir)?;
        let way = Way::find(&layout, name)?;
        // What is known to be damaged is asked, and says so.
        (!skep_store::is_in_doubt(&layout.database())).then_some(Self { layout, way })
    }

    /// Runs a command there; `None` if the store must be asked after all, and nothing has happened.
    pub(crate) fn exec(
        &self,
        spec: &ExecSpec,
        attach: Attach,
        no_input: bool,
    ) -> Result<Option<StartedExec>, Problem> {
        let providers = providers(&self.layout, "", Settings::default(), &Early::default())?;
        let provider = providers.iter().find(|provider| provider.serves(&self.way.provider));
        let Some(provider) = provider else { return Ok(None) };
        let exec = ExecId::from_random(random());
        let wish = Wish { exec, spec, started_at: now(), attach, no_input };
        self.way.exec(&self.layout, provider.as_ref(), wish)
    }
}

/// Remembers the way to a sandbox that a command was started in.
pub(crate) fn remember_way(global: &Global, sandbox: &Sandbox) {
    if global.host.is_none()
        && storage::is_own(global)
        && let Some(layout) = Layout::existing(&global.state_dir)
    {
        Way::remember(&layout, sandbox);
    }
}

/// What may be set in files and variables, looked at when it is needed.
type Settings = ((ConfigFile, ConfigFile), BTreeMap<String, String>);

/// Every provider of this skep, in the order in which `auto` looks at them.
fn providers(
    layout: &Layout,
    user: &str,
    settings: Settings,
    early: &Early,
) -> Result<Vec<Box<dyn Provider>>, Problem> {
    let programs = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let programs = programs.iter().map(Into::into).collect();
    let namespace =
        Namespace::new(layout.root().to_owned(), programs, user.to_owned()).with_egress();
    let microvm = Microvm::new(
        layout.root().to_owned(),
        Box::new(move || surroundings(&settings.0, &settings.1)),
    );
    let docker = Docker::new(layout.root().to_owned(), this_program, docker_engine);
    let driver = forced_driver()?;
    Ok(vec![
        Box::new(Kept::new(namespace).force_driver(driver).with_nest(Rc::clone(&early.0))),
        Box::new(Kept::new(Bubblewrap::new(this_program)).force_driver(driver)),
        Box::new(Kept::new(Oci::new(layout.root().to_owned(), this_program)).force_driver(driver)),
        Box::new(Kept::new(microvm).force_driver(driver)),
        Box::new(Kept::new(docker).force_driver(driver)),
        Box::new(Kept::new(Subprocess).force_driver(driver)),
    ])
}

/// Asked only by providers that have it executed anew.
fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into())
}

/// Which Docker engine is meant: as `docker` itself reads it. Asked only where one is.
pub(crate) fn docker_engine() -> skep_provider_docker::Named {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    // The process that watches the container stands elsewhere.
    let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let certificates = variable("DOCKER_CERT_PATH").map(PathBuf::from).map(whole);
    let usual = || Some(PathBuf::from(variable("HOME")?).join(".docker"));
    skep_provider_docker::Named {
        host: variable("DOCKER_HOST").map(|host| host.to_string_lossy().into_owned()),
        verified: variable("DOCKER_TLS_VERIFY").is_some(),
        certificates: certificates.or_else(usual),
    }
}

/// Process 1 of a sandbox, executed by somebody else than the keeper. `None` for any other command.
pub(crate) fn init(line: &[std::ffi::OsString]) -> Option<u8> {
    let door = match line {
        [_, word] if word == skep_keeper::vessel::INIT_COMMAND => None,
        [_, word, door] if word == skep_keeper::vessel::INIT_COMMAND => Some(Path::new(door)),
        _ => return None,
    };
    Some(u8::try_from(skep_keeper::run_executed(door)).unwrap_or(125))
}

/// The process beside a container that has it made and removed. `None` for any other command.
pub(crate) fn attendant(line: &[std::ffi::OsString]) -> Option<u8> {
    let wanted = line.len() == 2 && line[1] == skep_provider_docker::ATTENDANT_COMMAND;
    wanted.then(skep_provider_docker::attend)
}

/// What the microvm provider asks when a machine is wanted. A settings file that cannot be read
/// was refused before.
fn surroundings(
    files: &(ConfigFile, ConfigFile),
    variables: &BTreeMap<String, String>,
) -> Surroundings {
    let parse = |file: &ConfigFile| {
        let (text, name) = file.as_ref()?;
        Some(ConfigDocument::parse(text, name).ok()?.provider.microvm)
    };
    let (user, system) = (parse(&files.1).unwrap_or_default(), parse(&files.0).unwrap_or_default());
    let named = |short: &str, long: &str| variables.get(short).or_else(|| variables.get(long));
    let asked = match named("SKEP_MICROVM_EMULATION", "SKEP_PROVIDER_MICROVM_EMULATION") {
        Some(value) => Some(value == "1" || value == "true"),
        None => user.emulation.or(system.emulation),
    };
    let kernel = variables.get("SKEP_PROVIDER_MICROVM_KERNEL").cloned();
    let kernel = kernel.or(user.kernel).or(system.kernel).map(PathBuf::from);
    let emulation = if asked == Some(true) { Emulation::Allowed } else { Emulation::Refused };
    Surroundings { emulation, program: this_program(), kernel }
}

/// `SKEP_DRIVER` takes the choice of the copy-on-write driver away, so that tests reach each of them.
/// Builds for users do not read it.
fn forced_driver() -> Result<Option<WorkspaceDriver>, Problem> {
    let Some(word) = std::env::var_os("SKEP_DRIVER").filter(|_| cfg!(debug_assertions)) else {
        return Ok(None);
    };
    let all = [
        WorkspaceDriver::OverlayUserns,
        WorkspaceDriver::OverlayRoot,
        WorkspaceDriver::FuseOverlayfs,
        WorkspaceDriver::Copy,
    ];
    match all.into_iter().find(|driver| word == driver.as_str()) {
        Some(driver) => Ok(Some(driver)),
        None => Err(Problem::new(Code::Usage, format!("unknown driver {word:?} in SKEP_DRIVER"))),
    }
}

/// The clock.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().to_string()
}

/// Ten bytes from the kernel. Without them no id would be safe, so there is nothing to fall back
/// to: the kernel's source cannot fail once the machine is up, and is asked until it answers.
fn random() -> [u8; 10] {
    let mut bytes = [0; 10];
    let mut filled = 0;
    while filled < bytes.len() {
        let more =
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += more.unwrap_or(0);
    }
    bytes
}

fn random_word() -> String {
    SandboxId::from_random(random()).to_string()
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
