//! The only file that names an engine, a provider or a store.

use crate::context::Global;
use skep_engine::api::Api;
use skep_engine::{Engine, EngineConfig, Layout};
use skep_policy::ConfigDocument;
use skep_provider::Provider;
use skep_provider_microvm::{Emulation, MicrovmProvider, Surroundings};
use skep_provider_namespace::NamespaceProvider;
use skep_store::{Access, NewInstance, SqliteStore};
use skep_types::{Code, Problem, SandboxId, WorkspaceDriver};

/// Opens the engine in this process.
pub(crate) fn open(global: &Global) -> Result<Box<dyn Api>, Problem> {
    let layout = Layout::open(&global.state_dir).map_err(|error| {
        let message =
            format!("cannot use the state directory `{}`: {error}", global.state_dir.display());
        Problem::new(Code::Io, message).hint("name another one with `--home DIR`")
    })?;
    let user = global.user_name();
    let new = NewInstance { instance: random_word(), node: host_name() };
    let store =
        SqliteStore::open(&layout.database(), Access::ReadWrite, &new).map_err(|error| {
            let problem = Problem::from_error(error.code(), &error);
            match error.hint() {
                Some(hint) => problem.hint(hint),
                None => problem,
            }
        })?;
    let user_config = global.user_config()?;
    let settings = user_config.clone();
    let microvm = MicrovmProvider::new(
        namespace(&layout, &user)?,
        layout.root().to_owned(),
        Box::new(move || surroundings(settings.as_ref())),
    );
    let providers: Vec<Box<dyn Provider>> =
        vec![Box::new(namespace(&layout, &user)?), Box::new(microvm)];
    let config = EngineConfig {
        layout,
        user_config,
        home: global.home.clone(),
        user,
        now,
        random,
        secret: crate::secrets::read,
    };
    Ok(Box::new(Engine::open(config, providers, Box::new(store))?))
}

fn namespace(layout: &Layout, user: &str) -> Result<NamespaceProvider, Problem> {
    let programs = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let provider = NamespaceProvider::new(
        layout.root().to_owned(),
        programs.iter().map(Into::into).collect(),
        user.to_owned(),
    );
    Ok(match forced_driver()? {
        Some(driver) => provider.force_driver(driver),
        None => provider,
    })
}

/// What the microvm provider asks when a machine is wanted. A settings file that cannot be read
/// was refused before.
fn surroundings(user_config: Option<&(Vec<u8>, String)>) -> Surroundings {
    let set = user_config
        .and_then(|(text, name)| ConfigDocument::parse(text, name).ok())
        .and_then(|document| document.provider.microvm.emulation);
    let asked = match std::env::var_os("SKEP_MICROVM_EMULATION") {
        Some(value) => value == "1" || value == "true",
        None => set == Some(true),
    };
    Surroundings {
        emulation: if asked { Emulation::Allowed } else { Emulation::Refused },
        program: std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into()),
    }
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

fn now() -> String {
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
