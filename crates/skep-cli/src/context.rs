//! What a running command has at hand.

use crate::arguments::GlobalArguments;
use crate::arguments::sandbox::SandboxArguments;
use crate::output::Output;
use crate::project;
use crate::surroundings::{self, Surroundings};
use crate::wiring::{self, Early, Shortcut};
use skep_engine::api::{Api, CreateRequest, StartedRun};
use skep_types::{Code, ExecSpec, Problem};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The resolved global settings: all that opening the engine needs.
#[derive(Debug, Clone)]
pub(crate) struct Global {
    /// The state directory, absolute.
    pub(crate) state_dir: PathBuf,
    /// The user's settings file; it need not exist.
    pub(crate) config_file: PathBuf,
    /// The system's settings file; it need not exist.
    pub(crate) system_config_file: PathBuf,
    /// Variables that begin with `SKEP_`.
    pub(crate) variables: BTreeMap<String, String>,
    /// `--store`.
    pub(crate) store: Option<String>,
    /// The caller's home directory.
    pub(crate) home: PathBuf,
    /// The current directory.
    pub(crate) directory: PathBuf,
    /// The caller's user id.
    pub(crate) user: u32,
    /// The server to ask instead of an engine in this process.
    pub(crate) host: Option<Host>,
}

/// A server, and what to show it.
#[derive(Clone)]
pub(crate) struct Host {
    /// Its address.
    pub(crate) url: String,
    /// The text of a token.
    pub(crate) token: Option<OsString>,
    /// A file (mode 0600) that holds one.
    pub(crate) token_file: Option<PathBuf>,
}

/// Without the token.
impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.url)
    }
}

impl Global {
    /// The user's settings and the name of their file; none if there is no such file.
    pub(crate) fn user_config(&self) -> Result<Option<(Vec<u8>, String)>, Problem> {
        read_config(&self.config_file)
    }

    /// The system's settings and the name of their file; none if there is no such file.
    pub(crate) fn system_config(&self) -> Result<Option<(Vec<u8>, String)>, Problem> {
        read_config(&self.system_config_file)
    }

    /// The caller's name, for approvals.
    pub(crate) fn user_name(&self) -> String {
        surroundings::user_name(self.user)
    }
}

/// A file that is there and cannot be read is an error: its limits must not be left out silently.
fn read_config(path: &Path) -> Result<Option<(Vec<u8>, String)>, Problem> {
    let name = show_path(path);
    match std::fs::read(path) {
        Ok(text) => Ok(Some((text, name))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("cannot read the settings in `{name}`: {error}");
            Err(Problem::new(Code::Io, message))
        }
    }
}

/// Surroundings, streams, and the API once it is asked for.
pub(crate) struct Context {
    /// What was not typed.
    pub(crate) surroundings: Surroundings,
    /// The streams.
    pub(crate) output: Output,
    global: Global,
    api: OnceCell<Box<dyn Api>>,
    /// Whether the command changes nothing that is remembered.
    reads: bool,
    /// What is begun before it is known what for.
    early: Early,
}

/// What a command does with the sandbox that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It runs a command there at once, and stays with it.
    ForACommand,
    /// It leaves it.
    No,
}

impl Context {
    /// Resolves the global options. The engine is not opened yet: help for a broken state
    /// directory must not need it.
    pub(crate) fn new(typed: &GlobalArguments, surroundings: Surroundings, output: Output) -> Self {
        let global = Global {
            state_dir: surroundings.state_directory(typed.home.as_deref()),
            config_file: surroundings.config_file(),
            system_config_file: surroundings.system_config_file(),
            variables: surroundings.own_variables(),
            store: typed.store.clone(),
            home: surroundings.home.clone(),
            directory: surroundings.directory.clone(),
            user: surroundings.user,
            host: host(typed, &surroundings),
        };
        output.detail(&format!("state directory: {}", show_path(&global.state_dir)));
        let early = Early::default();
        Self { surroundings, output, global, api: OnceCell::new(), reads: false, early }
    }

    /// For a command that changes nothing that is remembered, or for one that may.
    pub(crate) fn reading(mut self, reads: bool) -> Self {
        self.reads = reads;
        self
    }

    /// The API, opened on first use.
    pub(crate) fn api(&self) -> Result<&dyn Api, Problem> {
        if self.api.get().is_none() {
            let opened = wiring::open(&self.global, &self.early);
            let opened = opened.or_else(|problem| self.open_in_doubt(problem))?;
            let _ = self.api.set(opened);
        }
        match self.api.get() {
            Some(api) => Ok(api.as_ref()),
            None => Err(Problem::new(Code::Internal, "the engine was not opened")),
        }
    }

    /// What is damaged is read as far as it can be, and said to be so; it is not changed.
    fn open_in_doubt(&self, problem: Problem) -> Result<Box<dyn Api>, Problem> {
        if !self.reads || !skep_engine::is_doubt(&problem) {
            return Err(problem);
        }
        let Ok(engine) = wiring::open_to_read(&self.global) else { return Err(problem) };
        self.output.warn(&problem.message);
        Ok(Box::new(engine))
    }

    /// The way to a running sandbox, as long as nobody has opened the store.
    pub(crate) fn shortcut(&self, name: &str) -> Option<Shortcut> {
        match self.api.get() {
            None => Shortcut::find(&self.global, name),
            Some(_) => None,
        }
    }

    /// Begins a sandbox in this process, if it seems to be an ordinary one, before it is known what it will be: what
    /// takes the longest needs no more than that there will be one.
    pub(crate) fn begin_early(&self, typed: &SandboxArguments, stay: Stay) {
        if self.global.host.is_none() && self.api.get().is_none() && typed.seems_ordinary() {
            self.early.begin(stay == Stay::ForACommand);
        }
    }

    /// What was begun and has not been used goes.
    pub(crate) fn end_early(&self) {
        self.early.end();
    }

    /// Begins a run. An engine in this process is opened while the sandbox comes up.
    pub(crate) fn begin_run(
        &self,
        request: &CreateRequest,
        spec: &ExecSpec,
    ) -> Result<(&dyn Api, StartedRun), Problem> {
        if self.api.get().is_some() || self.global.host.is_some() {
            let api = self.api()?;
            return Ok((api, api.begin_run(request, spec)?));
        }
        let (opened, run) = wiring::open_for_run(&self.global, &self.early, request, spec)?;
        self.end_early();
        let _ = self.api.set(opened);
        Ok((self.api()?, run))
    }

    /// The resolved global settings.
    pub(crate) fn global(&self) -> &Global {
        &self.global
    }

    /// The server that is asked, if one is.
    pub(crate) fn host(&self) -> Option<&Host> {
        self.global.host.as_ref()
    }

    /// The state directory.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.global.state_dir
    }

    /// The project of the current directory; not checked, so good only for looking things up.
    pub(crate) fn project_here(&self) -> Result<PathBuf, Problem> {
        let around = &self.surroundings;
        around.refuse_gone()?;
        let found =
            project::find(&around.directory, &around.home, &project::Host { user: around.user });
        self.output.detail(&format!("project: {}", show_path(&found)));
        Ok(found)
    }

    /// The project to create a sandbox for: `--project`, or the one of the current directory.
    pub(crate) fn project_to_use(&self, typed: Option<&Path>) -> Result<PathBuf, Problem> {
        let project = match typed {
            Some(path) => project::named(&self.surroundings.directory.join(path))?,
            None => self.project_here()?,
        };
        project::check(&project, &self.surroundings.home, self.state_dir())?;
        Ok(project)
    }

    /// With an API given, for tests.
    #[cfg(test)]
    pub(crate) fn with_api(surroundings: Surroundings, output: Output, api: Box<dyn Api>) -> Self {
        let context = Self::new(&GlobalArguments::default(), surroundings, output);
        let _ = context.api.set(api);
        context
    }
}

/// `--host`, else `SKEP_HOST`; the token from `SKEP_TOKEN`, else the file `SKEP_TOKEN_FILE`.
fn host(typed: &GlobalArguments, around: &Surroundings) -> Option<Host> {
    let url = match &typed.host {
        Some(url) => url.clone(),
        None => around.variable("SKEP_HOST")?.to_string_lossy().into_owned(),
    };
    let token = around.variable("SKEP_TOKEN").cloned();
    let token_file = around.variable("SKEP_TOKEN_FILE").map(|path| around.directory.join(path));
    Some(Host { url, token, token_file })
}

/// A path for people.
pub(crate) fn show_path(path: &Path) -> String {
    skep_types::escape::visible(path.as_os_str().as_encoded_bytes())
}
