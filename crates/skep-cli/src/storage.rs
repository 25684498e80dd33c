//! Which store: the file in the state directory, or a PostgreSQL by its address.

use crate::context::Global;
use skep_engine::{Layout, OrProblem as _};
use skep_policy::{ConfigDocument, Settings, Sources, StoreSettings};
use skep_store::{Access, NewInstance, PostgresOptions, PostgresStore, SqliteStore, Store};
use skep_types::{Code, Problem};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// A file's text and its name.
pub(crate) type ConfigFile = Option<(Vec<u8>, String)>;

/// Opens the store that the settings name. Nothing of PostgreSQL runs without an address.
pub(crate) fn open(
    global: &Global,
    layout: &Layout,
    configs: &(ConfigFile, ConfigFile),
    random: String,
    host: String,
    access: Access,
) -> Result<Box<dyn Store>, Problem> {
    let settings = settings(global, configs)?;
    let Some(url) = &settings.url else {
        let new = NewInstance { instance: random, node: host };
        let store = SqliteStore::open(&layout.database(), access, &new);
        return Ok(Box::new(store.or_problem()?));
    };
    let node = match &settings.node {
        Some(node) => node.clone(),
        None => own_node(&layout.root().join("node"), &format!("{host}-{random}"))?,
    };
    let holder = holder(layout.root())?;
    let first = NewInstance { instance: random.clone(), node };
    let options = PostgresOptions {
        lease: settings.lease,
        ..PostgresOptions::new(url, first, &holder, &random)
    };
    Ok(Box::new(PostgresStore::open(&options).or_problem()?))
}

/// Whether the store is surely the file in the state directory. Settings that cannot be read are for
/// [`open`] to complain of.
pub(crate) fn is_own(global: &Global) -> bool {
    let variables = || global.variables.keys().any(|name| name.starts_with("SKEP_STORE"));
    let says_nothing = |file: Result<ConfigFile, Problem>| file.is_ok_and(|f| speaks(&f).is_none());
    global.store.is_none()
        && !variables()
        && says_nothing(global.user_config())
        && says_nothing(global.system_config())
}

/// `--store`, `SKEP_STORE…`, the user's file, the system's file. Files that do not speak of a store
/// are not parsed here: this lies on the way of every command.
fn settings(global: &Global, files: &(ConfigFile, ConfigFile)) -> Result<StoreSettings, Problem> {
    let variables = global.variables.iter().filter(|(name, _)| name.starts_with("SKEP_STORE"));
    let variables = variables.map(|(name, value)| (name.as_str(), value.as_str()));
    let usage = |error| Problem::from_error(Code::Usage, &error);
    let environment = ConfigDocument::from_variables(variables).map_err(usage)?;
    let (system, user) = (speaks(&files.0), speaks(&files.1));
    let typed = global.store.as_ref().map(|url| {
        let mut typed = ConfigDocument::default();
        typed.store.url = Some(url.clone());
        typed
    });
    if system.is_none() && user.is_none() && environment.is_none() && typed.is_none() {
        return Ok(StoreSettings::default());
    }
    let parse = |file: Option<&(Vec<u8>, String)>| {
        file.map(|(text, name)| ConfigDocument::parse(text, name)).transpose().map_err(usage)
    };
    let (system, user) = (parse(system)?, parse(user)?);
    let sources = Sources {
        system: system.as_ref(),
        user: user.as_ref(),
        environment: environment.as_ref(),
        command_line: typed.as_ref(),
        ..Sources::default()
    };
    let resolved = Settings::resolve(&sources);
    resolved
        .map(|(settings, _)| settings.store)
        .map_err(|error| Problem::from_error(Code::Usage, &error))
}

/// All settings that hold without a project.
pub(crate) fn all_settings(global: &Global) -> Result<Settings, Problem> {
    let usage = |error| Problem::from_error(Code::Usage, &error);
    let parse = |file: ConfigFile| {
        file.map(|(text, name)| ConfigDocument::parse(&text, &name)).transpose().map_err(usage)
    };
    let (system, user) = (parse(global.system_config()?)?, parse(global.user_config()?)?);
    let variables = global.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let environment = ConfigDocument::from_variables(variables).map_err(usage)?;
    let sources = Sources {
        system: system.as_ref(),
        user: user.as_ref(),
        environment: environment.as_ref(),
        ..Sources::default()
    };
    let resolved = Settings::resolve(&sources);
    resolved.map(|(all, _)| all).map_err(|error| Problem::from_error(Code::Usage, &error))
}

fn speaks(file: &ConfigFile) -> Option<&(Vec<u8>, String)> {
    file.as_ref().filter(|(text, _)| text.windows(5).any(|word| word == b"store"))
}

/// What this state directory is called in a shared database: made up once and kept.
fn own_node(path: &Path, made_up: &str) -> Result<String, Problem> {
    let failed = |error: std::io::Error| {
        Problem::new(
            Code::Io,
            format!("cannot keep the node's name in `{}`: {error}", path.display()),
        )
    };
    let new = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path);
    match new {
        Ok(mut file) => file.write_all(made_up.as_bytes()).map_err(failed)?,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let kept = std::fs::read_to_string(path).map_err(failed)?;
    if kept.is_empty() {
        let message = format!("the node's name in `{}` is empty", path.display());
        return Err(Problem::new(Code::Io, message).hint("say it with `store.node`"));
    }
    Ok(kept)
}

/// Who holds the lease of a node: this state directory, since this start of the machine. Its
/// processes arbitrate by file locks, which reach no further.
fn holder(root: &Path) -> Result<String, Problem> {
    let identity = || -> std::io::Result<String> {
        let meta = std::fs::metadata(root)?;
        Ok(format!("{} {}:{}", skep_sys::process::boot_id()?, meta.dev(), meta.ino()))
    };
    identity().map_err(|error| {
        Problem::new(Code::Io, format!("cannot identify `{}`: {error}", root.display()))
    })
}
