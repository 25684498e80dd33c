//! The `Provider` trait: where the processes of a sandbox run.
//!
//! A provider turns a workspace and a policy into a running sandbox, runs execs in it, and takes
//! it away again without leaving anything. It does not decide: what to run, what to keep and what
//! to approve is the engine's business; what is remembered is the store's. It also does not look
//! at changes: the workspace is the same under every provider, and so is the review.
//!
//! The contract, in short (each method says it in full):
//!
//! - On error nothing is left: no process, mount, cgroup or file.
//! - Ending what is already gone succeeds.
//! - Everything a sandbox needs on the host is named after its id, so that it can be found and
//!   taken away by somebody who knows only the id.
//! - The enforcement report says what was found by probing, never what was intended. What the
//!   caller asked for by name and the host cannot give is [`ProviderError::Missing`].
//!
//! ```
//! use skep_provider::{ProviderError, RunSpec};
//! fn refuses_unless_it_can(error: &ProviderError) -> bool {
//!     matches!(error, ProviderError::Missing { .. })
//! }
//! # let _ = (refuses_unless_it_can, |spec: RunSpec| spec);
//! ```

pub mod capabilities;
pub mod log;
pub mod paths;
pub mod record;
pub mod shelf;
mod stillness;

pub use capabilities::{Boundary, Capabilities};
pub use stillness::{Freshness, Moved, Stillness};

pub use skep_types::EgressProbe;
use skep_types::{
    ByteString, Code, EnforcementReport, EntryState, ExecEnd, ExecId, ExecSpec, KeeperIdentity,
    Layer, Policy, Problem, RelPath, SandboxId, SandboxName, SecretValue, TerminalSize,
    WorkspaceDriver,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

/// Everything a provider needs to know to hold one sandbox.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct RunSpec {
    /// Its id; every resource is named after it.
    pub id: SandboxId,
    /// Its name, which is also the host name inside.
    pub name: SandboxName,
    /// Its provider, as it was typed: `namespace`, `oci:runc`.
    pub provider: String,
    /// `$SKEP_HOME/sandboxes/<id>`: upper, work, layers, execs, socket.
    #[serde(with = "paths::one")]
    pub directory: PathBuf,
    /// The project, absolute.
    #[serde(with = "paths::one")]
    pub project: PathBuf,
    /// How the view is made.
    pub driver: WorkspaceDriver,
    /// Device and inode of the project's root, as pinned at create.
    pub root_identity: (u64, u64),
    /// Frozen layers between the project and the upper, topmost first.
    #[serde(with = "paths::many")]
    pub layers: Vec<PathBuf>,
    /// Project paths shown as absent.
    pub hidden: Vec<RelPath>,
    /// What it may see, reach and use.
    pub policy: Policy,
    /// What the caller asked for by name: refused when it cannot be had (unless best effort).
    pub asked: BTreeSet<Layer>,
    /// Environment inside, complete.
    pub environment: BTreeMap<String, ByteString>,
    /// The caller's home directory, shown empty inside.
    #[serde(with = "paths::one")]
    pub home: PathBuf,
    /// What the base of the workspace is, for captures while execs run.
    pub base: skep_types::Base,
    /// Values of the policy's secrets. In memory only: this is never written anywhere.
    #[serde(skip)]
    pub secrets: RunSecrets,
}

/// Values of secrets by name, as read from their sources for one start.
#[derive(Debug, Clone, Default)]
pub struct RunSecrets {
    /// Put in at the edge.
    pub edge: BTreeMap<String, SecretValue>,
    /// Given to processes inside in the clear.
    pub plain: BTreeMap<String, SecretValue>,
}

/// A sandbox that now runs.
#[derive(Debug, Clone)]
pub struct Started {
    /// Who holds it.
    pub keeper: KeeperIdentity,
    /// What was found to be enforced.
    pub enforcement: EnforcementReport,
}

/// What an attached exec says.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// Bytes from standard output (or the terminal).
    Stdout(Vec<u8>),
    /// Bytes from standard error.
    Stderr(Vec<u8>),
    /// The end; nothing follows.
    Ended(Box<ExecEnd>),
}

/// The live end of an attached exec.
///
/// Dropping it detaches: the exec goes on, its output is kept.
pub trait ExecStream {
    /// Readable when more has come. What came together with something earlier, the answer to the start
    /// too, has been read already: wait for the descriptor only after [`ExecStream::next`] said `None`.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// The next event; `None` when there is none yet. An end of the stream without
    /// [`StreamEvent::Ended`] is an error (`UnexpectedEof`): the exec was lost.
    fn next(&mut self) -> io::Result<Option<StreamEvent>>;
    /// Bytes for standard input. Blocks while the exec does not read.
    fn stdin(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// End of standard input.
    fn close_stdin(&mut self) -> io::Result<()>;
    /// The terminal has another size now.
    fn resize(&mut self, size: TerminalSize) -> io::Result<()>;
    /// Sends a signal to the exec's foreground process group.
    fn signal(&mut self, signal: i32) -> io::Result<()>;
    /// After how long without anything [`ExecStream::quiet`] is to be called; `None`: not at all, or not again.
    fn quiet_after(&self) -> Option<Duration> {
        None
    }
    /// Nothing has come for that long.
    fn quiet(&mut self) {}
}

/// What a running sandbox is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Execs that have not ended.
    pub running: Vec<ExecId>,
    /// Whether its processes are paused, until somebody lets them go on.
    pub frozen: bool,
}

/// Something to be put at a path through the mounted view.
#[derive(Debug)]
pub struct ViewWrite {
    /// Where.
    pub path: RelPath,
    /// What shall stand there.
    pub state: EntryState,
    /// Its bytes, for a file.
    pub content: Option<File>,
}

/// Which copy-on-write drivers can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverChoice {
    /// Best first.
    pub drivers: Vec<WorkspaceDriver>,
    /// Why others are not among them.
    pub passed_over: Vec<String>,
}

/// One finding about this host, for `skep doctor`.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Finding {
    /// What was probed.
    pub name: String,
    /// Whether it works.
    pub ok: bool,
    /// Whether it was tried; what was not is neither there nor missing.
    #[serde(default = "tried")]
    pub tried: bool,
    /// How it was found, or which mechanism.
    pub how: String,
    /// Why not.
    pub reason: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

fn tried() -> bool {
    true
}

/// What a quick look at a provider found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// What was done to find it out.
    pub how: String,
    /// What was not tried, because nobody asked for it.
    pub untried: Option<String>,
}

impl Look {
    /// Everything there is to try was tried.
    pub fn whole(how: impl Into<String>) -> Self {
        Self { how: how.into(), untried: None }
    }
}

/// Why a provider could not.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The host lacks something that was asked for; says what and what to do.
    #[error("{what} cannot be enforced here: {reason}")]
    Missing {
        /// A layer, a driver, the provider itself.
        what: String,
        /// Found by probing.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// The view could not be built.
    #[error("cannot {operation}")]
    Setup {
        /// Operation and object.
        operation: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The request is wrong, and this is how it would be right.
    #[error("{message}")]
    Wrong {
        /// What is wrong with what.
        message: String,
        /// What to ask for instead.
        hint: String,
    },
    /// The request is wrong: a missing mount source, a bad working directory.
    #[error("{0}")]
    Invalid(String),
    /// The caller did not want it any more; it knows why.
    #[error("the start was withdrawn")]
    Withdrawn,
    /// Somebody who was stopped went on by itself, again and again.
    #[error("process {} (`{}`) inside does not stay stopped", .0.pid, .0.name)]
    Moved(Moved),
    /// Nobody holds the sandbox.
    #[error("sandbox `{0}` is not running")]
    NotRunning(SandboxId),
    /// The keeper speaks another version.
    #[error(
        "the keeper of sandbox `{id}` was started by another version of skep: it speaks protocol {theirs}, this one {ours}"
    )]
    Version {
        /// Which sandbox.
        id: SandboxId,
        /// Its keeper's.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The conversation with the keeper failed.
    #[error("cannot {operation} sandbox `{id}`")]
    Keeper {
        /// What was asked.
        operation: &'static str,
        /// Of which sandbox.
        id: SandboxId,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl ProviderError {
    /// The error as callers see it.
    pub fn problem(&self) -> Problem {
        let code = match self {
            Self::Missing { .. } => Code::MissingCapability,
            Self::Invalid(_) | Self::Wrong { .. } => Code::Usage,
            Self::NotRunning(_) => Code::IllegalState,
            Self::Moved(_) => Code::Conflict,
            Self::Version { .. } => Code::Refused,
            Self::Setup { source, .. } if is_full(source) => Code::NoSpace,
            Self::Setup { .. } | Self::Keeper { .. } | Self::Withdrawn => Code::Io,
        };
        let problem = Problem::from_error(code, self);
        match self {
            Self::Missing { remedy, .. } => problem.hint(remedy.clone()),
            Self::Wrong { hint, .. } => problem.hint(hint.clone()),
            Self::Moved(_) => problem.hint(Moved::HINT),
            Self::Version { .. } => problem.hint(
                "`skep stop` ends it and keeps its changes, `skep start` starts it anew; or go on with the skep that started it",
            ),
            _ => problem,
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn no_way_out(provider: &str) -> ProviderError {
    ProviderError::Invalid(format!("the provider `{provider}` has no egress of skep's"))
}

/// What a caller does in its own process while a sandbox is started.
pub struct Beside<'a> {
    /// Makes known that the sandbox will be: its row, its directory. Called once. Whatever would
    /// outlive the sandbox's processes is made only after this has returned, so that nothing is
    /// ever there that nobody knows of.
    pub intend: &'a mut dyn FnMut() -> Result<(), Withdrawn>,
    /// Anything else, done once others are at work.
    pub meanwhile: &'a mut dyn FnMut(),
    /// Whether the caller runs a command there at once, and stays with it ([`Attach::Last`]).
    pub stays: bool,
}

/// The caller does not want the sandbox any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawn;

/// Where the processes of a sandbox run.
pub trait Provider {
    /// The word for it on the command line.
    fn name(&self) -> &'static str;

    /// Everything that can be typed to mean it and that is worth listing: `oci:runc`, `oci:runsc`.
    fn words(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }

    /// Whether a word means this provider; more words than it lists may (`oci:/opt/bin/runc`).
    fn serves(&self, word: &str) -> bool {
        word == self.name()
    }

    /// What it can do where the host lets it, as data. Nothing is probed.
    fn capabilities(&self, word: &str) -> Capabilities;

    /// Whether it works here, found by doing; otherwise the reason and the remedy. Leaves nothing.
    /// May take a while: the engine remembers the answer for a short time.
    fn probe(&self, word: &str) -> Result<(), ProviderError>;

    /// The same for somebody who only looks around: quick, and nothing is started that takes seconds
    /// or gigabytes. Says what was done.
    fn look(&self, word: &str) -> Result<Look, ProviderError> {
        self.probe(word).map(|()| Look::whole("tried it"))
    }

    /// What an answer of [`Provider::probe`] holds for: remembered under this, and asked again under
    /// another.
    fn circumstances(&self, word: &str) -> String {
        word.to_owned()
    }

    /// What there is to know of a running sandbox besides its report: a container's id, the
    /// runtime's version. Empty when nobody holds it.
    fn facts(&self, spec: &RunSpec) -> BTreeMap<String, String> {
        let _ = spec;
        BTreeMap::new()
    }

    /// Everything about this host that this provider depends on, found by trying.
    fn findings(&self) -> Vec<Finding>;

    /// The copy-on-write driver to use for a project with its state in `directory`.
    fn choose_driver(
        &self,
        project: &std::path::Path,
        directory: &std::path::Path,
    ) -> Result<WorkspaceDriver, ProviderError>;

    /// All drivers that may work for it, best first, each worth a try where the one before fails.
    fn drivers(
        &self,
        project: &std::path::Path,
        directory: &std::path::Path,
    ) -> Result<DriverChoice, ProviderError> {
        let drivers = vec![self.choose_driver(project, directory)?];
        Ok(DriverChoice { drivers, passed_over: Vec::new() })
    }

    /// Starts a sandbox: its namespaces, view and limits are up and probed when this returns.
    ///
    /// On error nothing is left. The directory and its `upper` are kept in any case.
    fn start(&self, spec: &RunSpec) -> Result<Started, ProviderError>;

    /// The same, with what the caller does beside it. The sandbox's directory need not be there
    /// before `beside.intend` has returned; if that refuses, the answer is
    /// [`ProviderError::Withdrawn`].
    fn start_beside(&self, spec: &RunSpec, beside: Beside<'_>) -> Result<Started, ProviderError> {
        (beside.intend)().map_err(|Withdrawn| ProviderError::Withdrawn)?;
        (beside.meanwhile)();
        self.start(spec)
    }

    /// A sandbox that was started ahead, and in which nothing has run, becomes somebody's: it takes the
    /// name, the environment and the base of `spec`; everything else of it is as it was started with.
    /// Says who holds it. On error it is of no use to anybody.
    fn adopt(&self, spec: &RunSpec) -> Result<KeeperIdentity, ProviderError>;

    /// Runs a command. With `attach`, its output and input go through the returned stream;
    /// without, it runs in the background and its output is kept in the exec's log.
    ///
    /// Between [`Provider::freeze`] and [`Provider::thaw`] it waits: a look at what is paused must not be
    /// taken beside a process that runs.
    fn exec(
        &self,
        spec: &RunSpec,
        exec: &ExecId,
        command: &ExecSpec,
        attach: Attach,
    ) -> Result<Option<Box<dyn ExecStream>>, ProviderError>;

    /// Runs a command that nobody has written down yet: the provider writes its record first, where
    /// the engine takes it in later (see [`record`]).
    ///
    /// [`Direct::AskTheStore`] where it cannot be done so now; then nothing was started or written.
    fn exec_directly(&self, order: &DirectExec<'_>) -> Result<Direct, ProviderError> {
        let _ = order;
        Ok(Direct::AskTheStore)
    }

    /// Sends a signal to every process of an exec. Succeeds if it has ended.
    fn signal(&self, spec: &RunSpec, exec: &ExecId, signal: i32) -> Result<(), ProviderError>;

    /// Pauses every process inside; returns when none runs. Repeating is harmless.
    fn freeze(&self, spec: &RunSpec) -> Result<(), ProviderError>;

    /// Lets them go on. Repeating is harmless.
    fn thaw(&self, spec: &RunSpec) -> Result<(), ProviderError>;

    /// Whether everybody has stood since [`Provider::freeze`], and by what. Somebody who has moved is
    /// told of once; then they are to be paused again.
    fn stood(&self, spec: &RunSpec) -> Result<Stillness, ProviderError>;

    /// Makes those inside see the project as it is, also where files were replaced in it: a kernel goes on
    /// showing what it has found under a name. Everybody inside is paused. Where it cannot be done,
    /// [`Freshness::Held`].
    fn refresh(&self, spec: &RunSpec) -> Result<Freshness, ProviderError> {
        let _ = spec;
        Ok(Freshness::Held)
    }

    /// What it is doing; [`ProviderError::NotRunning`] when nobody holds it.
    fn status(&self, spec: &RunSpec) -> Result<Status, ProviderError>;

    /// Puts entries into the workspace through the mounted view, in order. Nothing else inside
    /// may be running (frozen, or no execs).
    fn write_view(&self, spec: &RunSpec, writes: &[ViewWrite]) -> Result<(), ProviderError>;

    /// From now on these rules say what can be reached, and nothing else; connections that they do
    /// not allow are cut, and counted in the answer.
    fn reach(&self, spec: &RunSpec, rules: &[String]) -> Result<u64, ProviderError> {
        let _ = (spec, rules);
        Err(no_way_out(self.name()))
    }

    /// Forgets the value of a secret; connections to its hosts are cut, and counted.
    fn revoke(&self, spec: &RunSpec, secret: &str) -> Result<u64, ProviderError> {
        let _ = (spec, secret);
        Err(no_way_out(self.name()))
    }

    /// Tries from inside whether hosts can be reached.
    fn knock(
        &self,
        spec: &RunSpec,
        targets: &[(String, u16)],
    ) -> Result<Vec<EgressProbe>, ProviderError> {
        let _ = (spec, targets);
        Err(no_way_out(self.name()))
    }

    /// Refuses the removal of a stopped sandbox's directory while somebody else has something mounted
    /// from it. To be asked after [`Provider::still`], before anything is removed.
    fn refuse_removal(
        &self,
        id: &SandboxId,
        directory: &std::path::Path,
    ) -> Result<(), ProviderError> {
        let _ = (id, directory);
        Ok(())
    }

    /// Ends everything inside. When this returns, nothing of the sandbox changes any more, and what is
    /// left of it is on its way out: [`Provider::stop`] waits for that. Succeeds if it is already gone.
    fn still(
        &self,
        id: &SandboxId,
        directory: &std::path::Path,
        keeper: Option<&KeeperIdentity>,
    ) -> Result<(), ProviderError> {
        self.stop(id, directory, keeper)
    }

    /// Ends everything inside and the keeper. When this returns, no process, mount, cgroup or
    /// socket of the sandbox is left. Succeeds if it is already gone.
    fn stop(
        &self,
        id: &SandboxId,
        directory: &std::path::Path,
        keeper: Option<&KeeperIdentity>,
    ) -> Result<(), ProviderError>;

    /// Whether the process that holds a sandbox is still that process, or may be.
    fn is_alive(&self, keeper: &KeeperIdentity, directory: &std::path::Path) -> bool;

    /// Ids of sandboxes that have resources on this host (cgroups), of every state directory.
    fn list_owned(&self) -> Result<Vec<SandboxId>, ProviderError>;

    /// Takes away what is left of a sandbox that is gone, if nobody is in it. Succeeds if there is
    /// nothing.
    fn reap(&self, id: &SandboxId) -> Result<(), ProviderError>;
}

/// A command for a sandbox that was found without the store.
#[derive(Debug, Clone, Copy)]
pub struct DirectExec<'a> {
    /// The sandbox.
    pub id: &'a SandboxId,
    /// What it must be called, or somebody else is meant.
    pub name: &'a SandboxName,
    /// Its directory.
    pub directory: &'a std::path::Path,
    /// The exec's id.
    pub exec: &'a ExecId,
    /// What to run, and when it was asked for.
    pub begun: &'a record::Begun,
    /// Whether the caller stays connected.
    pub attach: Attach,
    /// Whether its input has ended before it begins.
    pub no_input: bool,
}

/// What came of asking for a command directly.
pub enum Direct {
    /// It runs; with its stream, when attached.
    Started(Option<Box<dyn ExecStream>>),
    /// Somebody must ask who has the store.
    AskTheStore,
}

/// Whether the caller stays connected to an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// Stream input and output.
    Yes,
    /// The same, and it is the last one: the caller stops the sandbox when it has ended, which the
    /// provider may begin with at once.
    Last,
    /// Run in the background.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_called_so() {
        let full = |errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            ProviderError::Setup { operation: "write".into(), source }.problem().code
        };
        let (no_space, quota, broken) = (28, 122, 5);
        assert_eq!((full(no_space), full(quota)), (Code::NoSpace, Code::NoSpace));
        assert_eq!(full(broken), Code::Io);
    }
}
