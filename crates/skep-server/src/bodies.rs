//! What can be sent. Unknown fields are errors everywhere: a limit with a typing mistake in its
//! name must not become no limit.

use serde::{Deserialize, Serialize};
use skep_engine::api::{
    ApproveRequest, CommitRequest, CreateRequest, GcPart, GcRequest, MountRequest,
};
use skep_engine::{Patch, TimeToLive};
use skep_types::{
    Access, ByteSize, ByteString, ChangeSetDigest, Code, ContentHash, ExecSpec, HunkId, InsideUser,
    Layer, Limits, NetworkMode, PlainSecret, Problem, PublishedPort, SandboxName, Secret,
    Selection, SystemView, TerminalSize, parse_duration,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// Limits; sizes as `512M`, times as `30s`. What is left out has its default.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsBody {
    /// Memory and swap together, such as `2G`.
    memory: Option<String>,
    /// Processors, such as `1.5`.
    cpus: Option<f64>,
    /// Total processor time.
    cpu_time: Option<String>,
    /// Processes and threads.
    pids: Option<u64>,
    /// Bytes in the upper.
    disk: Option<String>,
    /// Inodes in the upper.
    inodes: Option<u64>,
    /// Open files of one process.
    open_files: Option<u64>,
    /// Wall clock of an exec.
    timeout: Option<String>,
    /// Between asking to end and killing.
    grace: Option<String>,
    /// A sandbox without execs for this long is stopped.
    idle_timeout: Option<String>,
    /// An exec without output for this long is ended.
    silence_timeout: Option<String>,
    /// Output kept of one exec.
    output: Option<String>,
    /// Weight (1 to 1000) of reading and writing disks, of the sandbox; others have 100.
    io_weight: Option<u64>,
}

impl LimitsBody {
    fn resolve(&self) -> Result<Limits, Problem> {
        // Which of them are limits at all is said in one place, for whoever asks: by the engine.
        Ok(Limits {
            memory: size("memory", &self.memory)?,
            cpus: self.cpus,
            cpu_time: duration("cpu_time", &self.cpu_time)?,
            pids: self.pids,
            disk: size("disk", &self.disk)?,
            inodes: self.inodes,
            open_files: self.open_files,
            timeout: duration("timeout", &self.timeout)?,
            grace: duration("grace", &self.grace)?,
            idle_timeout: duration("idle_timeout", &self.idle_timeout)?,
            silence_timeout: duration("silence_timeout", &self.silence_timeout)?,
            output: size("output", &self.output)?,
            io_weight: self.io_weight,
        })
    }
}

/// An object within a body: serde would take an array too, and an empty one for all of its defaults.
fn object<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let fields = serde_json::Map::deserialize(from)?;
    T::deserialize(serde_json::Value::Object(fields)).map_err(serde::de::Error::custom)
}

/// Labels are in every list.
const LONGEST_LABEL: usize = 128;
const LONGEST_LABEL_VALUE: usize = 1024;
/// The kernel passes no longer string to a program: `MAX_ARG_STRLEN` of linux/binfmts.h, with its end.
const LONGEST_VARIABLE: usize = (128 << 10) - 1;

fn check_label(key: &str, value: &str) -> Result<(), Problem> {
    if (1..=LONGEST_LABEL).contains(&key.len()) && value.len() <= LONGEST_LABEL_VALUE {
        return Ok(());
    }
    let message = format!(
        "a label is 1 to {LONGEST_LABEL} bytes, and its value at most {LONGEST_LABEL_VALUE}"
    );
    Err(usage("labels", &message))
}

fn check_lengths(
    labels: &BTreeMap<String, String>,
    env: &BTreeMap<String, ByteString>,
) -> Result<(), Problem> {
    for (key, value) in labels {
        check_label(key, value)?;
    }
    for (name, value) in env {
        if name.len() + 1 + value.as_bytes().len() > LONGEST_VARIABLE {
            return Err(usage("env", &"a variable is longer than the kernel passes to a program"));
        }
    }
    Ok(())
}

fn usage(name: &str, error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::Usage, format!("`{name}`: {error}"))
}

fn size(name: &str, text: &Option<String>) -> Result<Option<ByteSize>, Problem> {
    text.as_deref().map(str::parse).transpose().map_err(|error| usage(name, &error))
}

fn duration(name: &str, text: &Option<String>) -> Result<Option<Duration>, Problem> {
    text.as_deref().map(parse_duration).transpose().map_err(|error| usage(name, &error))
}

/// A path of the host shown inside.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountBody {
    /// On the host; absolute.
    source: String,
    /// Inside; absolute.
    target: String,
    /// `ro` (default) or `rw`.
    #[serde(default)]
    #[schema(value_type = String)]
    access: Access,
}

/// The providers an operator may name: they hold what runs in them, and run no program of the
/// caller's choice outside. `subprocess` holds nothing back, a Docker engine is root of its host, and
/// `oci:/PATH` runs PATH on the host.
const FENCED: &[&str] = &[
    "auto",
    "namespace",
    "bubblewrap",
    "microvm",
    "oci",
    "oci:runc",
    "oci:crun",
    "oci:youki",
    "oci:runsc",
];

/// Whether it is a way out. Without a word the settings decide, which are the server's owner's.
fn opens(network: Option<NetworkMode>) -> bool {
    network.is_some_and(|network| network != NetworkMode::None)
}

/// A sandbox to be made.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateBody {
    /// The project's directory on the server's host; absolute.
    #[schema(required)]
    pub(crate) project: String,
    /// Otherwise one is made up.
    #[schema(value_type = Option<String>)]
    name: Option<SandboxName>,
    /// Writable parts of the project; all of it if empty.
    scope: Vec<String>,
    /// `auto`, `namespace`, …; `subprocess`, `docker` and `oci:/PATH` need the role approver.
    provider: Option<String>,
    /// A snapshot (`NAME:LABEL`) or a template to start from.
    from: Option<String>,
    /// Recreate under the same name.
    fresh: bool,
    /// Unreviewed changes of the one that is recreated may go.
    discard: bool,
    /// Lock the scope.
    exclusive: bool,
    /// `caller` or `root`.
    #[schema(value_type = Option<String>)]
    user: Option<InsideUser>,
    /// `ro` or `cow`.
    #[schema(value_type = Option<String>)]
    system: Option<SystemView>,
    /// An image whose system is seen instead of the host's (providers `docker`, `oci`
    /// and `microvm`); needs the role approver.
    image: Option<String>,
    /// A named policy; needs the role approver.
    profile: Option<String>,
    /// `none`; `allow` and `host` need the role approver.
    #[schema(value_type = Option<String>)]
    network: Option<NetworkMode>,
    /// Rules and presets of what may be reached; need the role approver.
    allow: Vec<String>,
    /// Secrets put in at the edge; their values are read on the server's host. Need the role
    /// approver.
    #[schema(value_type = Vec<Object>)]
    secrets: Vec<Secret>,
    /// Secrets given in the clear; need the role approver.
    #[schema(value_type = Vec<Object>)]
    secret_env: Vec<PlainSecret>,
    /// Ports of the server's host that lead inside; need the role approver.
    #[schema(value_type = Vec<Object>)]
    publish: Vec<PublishedPort>,
    /// Environment inside.
    #[schema(value_type = BTreeMap<String, String>)]
    env: BTreeMap<String, ByteString>,
    /// Directory inside where commands start that name none; absolute. Otherwise the project.
    #[schema(value_type = Option<String>)]
    workdir: Option<ByteString>,
    /// Parts of the host shown inside; need the role approver.
    mounts: Vec<MountBody>,
    /// Shown read-only at `/candidate`; needs the role approver.
    archive: Option<String>,
    /// Shown read-only at `/datasets/NAME`; need the role approver.
    datasets: BTreeMap<String, String>,
    /// Globs to hide.
    hide: Vec<String>,
    /// Globs not to hide; need the role approver.
    show: Vec<String>,
    /// Globs of the only changes that may be approved, instead of those of the settings; need the
    /// role approver.
    allow_changes: Vec<String>,
    /// Globs of changes that may not be approved, beside those of the settings.
    deny_changes: Vec<String>,
    /// Limits.
    #[serde(deserialize_with = "object")]
    limits: LimitsBody,
    /// How long it may live, such as `4h`.
    ttl: Option<String>,
    /// Layers without which it is refused.
    #[schema(value_type = Vec<String>)]
    require: BTreeSet<Layer>,
    /// What was asked for may weaken instead of being refused.
    best_effort: bool,
    /// Free words; those that begin with `skep.` are skep's own.
    labels: BTreeMap<String, String>,
    /// Whether upkeep leaves it although nothing was changed in it.
    keep: bool,
    /// The caller's environment, from which the allow-list takes; otherwise the server's.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    host_env: Option<BTreeMap<String, ByteString>>,
    /// The caller's home directory on the server's host; otherwise the server's. Needs the role
    /// approver.
    home: Option<String>,
}

impl CreateBody {
    /// Whether it shows parts of the host, weakens what hides them, opens a way out, or runs
    /// something outside. A profile may do any of these, and leave one that does less.
    pub(crate) fn widens(&self) -> bool {
        !self.mounts.is_empty()
            || self.archive.is_some()
            || !self.datasets.is_empty()
            || !self.show.is_empty()
            || !self.allow_changes.is_empty()
            || self.home.is_some()
            || !self.secrets.is_empty()
            || !self.secret_env.is_empty()
            || !self.publish.is_empty()
            || self.provider.as_deref().is_some_and(|word| !FENCED.contains(&word))
            || self.image.is_some()
            || self.profile.is_some()
            || !self.allow.is_empty()
            || opens(self.network)
    }

    /// The request, with what it leaves open.
    pub(crate) fn resolve(
        self,
        home: PathBuf,
        environment: BTreeMap<String, ByteString>,
        key: Option<String>,
    ) -> Result<CreateRequest, Problem> {
        if !self.project.starts_with('/') {
            return Err(usage("project", &"an absolute path is expected"));
        }
        check_lengths(&self.labels, &self.env)?;
        let mount = |mount: MountBody| MountRequest {
            source: mount.source.into(),
            target: mount.target.into(),
            access: mount.access,
        };
        Ok(CreateRequest {
            trial: false,
            limits: self.limits.resolve()?,
            ttl: duration("ttl", &self.ttl)?,
            name: self.name,
            project: self.project.into(),
            scope: self.scope.into_iter().map(PathBuf::from).collect(),
            provider: self.provider,
            from: self.from,
            fresh: self.fresh,
            discard: self.discard,
            exclusive: self.exclusive,
            user: self.user,
            system: self.system,
            image: self.image,
            profile: self.profile,
            network: self.network,
            allow: self.allow,
            secrets: self.secrets,
            secret_env: self.secret_env,
            publish: self.publish,
            env: self.env,
            workdir: self.workdir,
            mounts: self.mounts.into_iter().map(mount).collect(),
            archive: self.archive.map(PathBuf::from),
            datasets: self.datasets.into_iter().map(|(name, path)| (name, path.into())).collect(),
            hide: self.hide,
            show: self.show,
            allow_changes: self.allow_changes,
            deny_changes: self.deny_changes,
            require: self.require,
            best_effort: self.best_effort,
            labels: self.labels,
            keep: self.keep,
            idempotency_key: key,
            host_env: self.host_env.unwrap_or(environment),
            home: self.home.map_or(home, PathBuf::from),
        })
    }
}

/// Changes to a sandbox; what is left out stays. Limits and the network change while it is stopped.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PatchBody {
    /// Labels to set; `null` removes one.
    labels: BTreeMap<String, Option<String>>,
    /// How long it may live, such as `4h`, counted from when it was made; `null` is no end.
    #[serde(deserialize_with = "said")]
    #[schema(value_type = Option<String>)]
    ttl: Option<Option<String>>,
    /// Limits to set.
    #[serde(deserialize_with = "object")]
    limits: LimitsBody,
    /// `none`; `allow` and `host` need the role approver.
    #[schema(value_type = Option<String>)]
    network: Option<NetworkMode>,
    /// The only changes that may be approved, as a whole: an empty list is every change. Needs the
    /// role approver.
    allow_changes: Option<Vec<String>>,
    /// The changes that may not be approved, as a whole. Needs the role approver.
    deny_changes: Option<Vec<String>>,
}

/// Tells `null` from nothing at all.
fn said<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl PatchBody {
    /// Whether it opens a way out, or may let more be approved.
    pub(crate) fn widens(&self) -> bool {
        opens(self.network) || self.allow_changes.is_some() || self.deny_changes.is_some()
    }

    /// The patch.
    pub(crate) fn resolve(self) -> Result<Patch, Problem> {
        let ttl = match self.ttl {
            None => None,
            Some(None) => Some(TimeToLive::Unlimited),
            Some(text) => duration("ttl", &text)?.map(TimeToLive::For),
        };
        let limits = self.limits.resolve()?;
        for (key, value) in &self.labels {
            check_label(key, value.as_deref().unwrap_or_default())?;
        }
        Ok(Patch {
            labels: self.labels,
            ttl,
            limits,
            network: self.network,
            allow_changes: self.allow_changes,
            deny_changes: self.deny_changes,
        })
    }
}

/// Rows and columns.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SizeBody {
    rows: u16,
    columns: u16,
}

/// A command to run.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecBody {
    /// The command and its arguments, as the kernel gets them.
    #[schema(value_type = Vec<String>, min_items = 1)]
    command: Vec<ByteString>,
    /// Environment on top of the sandbox's.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    env: BTreeMap<String, ByteString>,
    /// Directory inside to start in; absolute. Otherwise the sandbox's own, else the project.
    #[schema(value_type = Option<String>)]
    workdir: Option<ByteString>,
    /// On a terminal of its own.
    tty: Option<SizeBody>,
    /// Limits of this exec.
    #[serde(default, deserialize_with = "object")]
    limits: LimitsBody,
    /// Keep its standard input open for `POST /v1/execs/{exec}/stdin`.
    #[serde(default)]
    pub(crate) stdin: bool,
    /// Answer when it has ended, with its output.
    #[serde(default)]
    pub(crate) wait: bool,
    /// The sandbox was made for this command, and stops when it has ended and nothing else runs in it, whatever
    /// has become of the caller; its changes are kept. With `wait`, or over a WebSocket.
    #[serde(default)]
    pub(crate) last: bool,
}

impl ExecBody {
    /// What to run.
    pub(crate) fn resolve(self) -> Result<ExecSpec, Problem> {
        let limits = self.limits.resolve()?;
        Ok(ExecSpec {
            argv: self.command,
            env: self.env,
            workdir: self.workdir,
            tty: self.tty.map(|size| TerminalSize { rows: size.rows, columns: size.columns }),
            limits,
        })
    }
}

/// A signal to send.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignalBody {
    /// Its number: 15 asks to end, 9 ends.
    #[schema(minimum = 1, maximum = 64)]
    pub(crate) signal: i32,
}

/// Which part of a change set is meant; nothing named means everything.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SelectionBody {
    /// Paths (a directory means everything below it) and globs.
    #[schema(value_type = Vec<String>)]
    paths: Vec<ByteString>,
    /// Hunk ids.
    #[schema(value_type = Vec<String>)]
    hunks: Vec<HunkId>,
    /// Include ignored paths without naming them.
    ignored: bool,
}

impl From<SelectionBody> for Selection {
    fn from(body: SelectionBody) -> Self {
        Self { paths: body.paths, hunks: body.hunks, ignored: body.ignored }
    }
}

/// A commit to be made of an approval.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommitBody {
    message: String,
    /// Undo the apply if no commit can be made.
    #[serde(default)]
    or_undo: bool,
}

/// What to take over.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ApproveBody {
    /// What of it.
    #[serde(deserialize_with = "object")]
    selection: SelectionBody,
    /// The change set that was reviewed; refused if it is another one now.
    #[schema(value_type = Option<String>)]
    digest: Option<ChangeSetDigest>,
    /// `beside` of the change set that was reviewed: with a digest, nothing else is merged with.
    #[schema(value_type = Option<String>)]
    beside: Option<ContentHash>,
    /// Say what would happen, change nothing.
    dry_run: bool,
    /// Risky paths that are meant.
    #[schema(value_type = Vec<String>)]
    allow_risky: Vec<ByteString>,
    /// Make a commit of it.
    commit: Option<CommitBody>,
    /// A command that must succeed in a fork with the selection applied.
    check: Option<String>,
}

impl From<ApproveBody> for ApproveRequest {
    fn from(body: ApproveBody) -> Self {
        Self {
            selection: body.selection.into(),
            digest: body.digest,
            beside: body.beside,
            dry_run: body.dry_run,
            allow_risky: body.allow_risky,
            commit: body
                .commit
                .map(|commit| CommitRequest { message: commit.message, or_undo: commit.or_undo }),
            check: body.check,
        }
    }
}

/// What to drop from a sandbox.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RejectBody {
    /// What of it.
    #[serde(deserialize_with = "object")]
    pub(crate) selection: SelectionBody,
    /// The change set that was reviewed.
    #[schema(value_type = Option<String>)]
    pub(crate) digest: Option<ChangeSetDigest>,
    /// For whoever made the changes.
    pub(crate) reason: Option<String>,
}

/// What to copy: `from` the host to `path` inside, or from there `to` the host.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CopyBody {
    /// Below the project; relative.
    #[schema(value_type = String)]
    pub(crate) path: ByteString,
    /// On the server's host; absolute.
    pub(crate) from: Option<String>,
    /// On the server's host; absolute.
    pub(crate) to: Option<String>,
}

/// A directory to make.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DirectoryBody {
    /// Below the project; relative.
    #[schema(value_type = String)]
    pub(crate) path: ByteString,
    /// Those above it too; one that is there is no error.
    #[serde(default)]
    pub(crate) parents: bool,
}

/// An entry to move, to a path where nothing is.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveBody {
    /// Below the project; relative.
    #[schema(value_type = String)]
    pub(crate) from: ByteString,
    /// Below the project; relative.
    #[schema(value_type = String)]
    pub(crate) to: ByteString,
}

/// Rules to add and to take away.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EgressBody {
    /// Allowed from now on.
    pub(crate) allow: Vec<String>,
    /// Not any more; taken away first.
    pub(crate) deny: Vec<String>,
}

/// What to try from inside.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProbeBody {
    /// Hosts and ports.
    pub(crate) targets: Vec<(String, u16)>,
}

/// Which commits to fetch.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PullBody {
    /// A branch of the project to move forward.
    pub(crate) branch: Option<String>,
}

/// A project.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ProjectBody {
    /// Its directory on the server's host; absolute.
    pub(crate) project: String,
}

/// A label.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SnapshotBody {
    /// Otherwise one is made up.
    pub(crate) label: Option<String>,
}

/// A label to go back to.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreBody {
    /// Of a snapshot of this sandbox.
    pub(crate) label: String,
}

/// How to fork.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ForkBody {
    /// How many; one if left out.
    #[schema(minimum = 1, maximum = 100)]
    pub(crate) count: Option<u32>,
    /// Name of the new one, or its beginning.
    #[schema(value_type = Option<String>)]
    pub(crate) name: Option<SandboxName>,
}

/// What to compare.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompareBody {
    /// 2 to 100 sandboxes, each once.
    pub(crate) sandboxes: Vec<String>,
}

/// Where a template comes from.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TemplateBody {
    /// The sandbox whose state it is.
    pub(crate) sandbox: String,
}

/// How to clean up. It must be said whether it is meant: a body without `dry_run` is an error.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GcBody {
    /// Only say what would be done.
    dry_run: bool,
    /// Also sandboxes idle for this long, such as `30d`.
    older_than: Option<String>,
    /// Until all together is at most this, such as `10G`.
    max_size: Option<String>,
    /// With one of the two above: unreviewed work may be put into an archive, and then go.
    #[serde(default)]
    archive: bool,
    /// Only these jobs; all if it is empty.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    only: BTreeSet<GcPart>,
}

impl GcBody {
    /// The request.
    pub(crate) fn resolve(&self) -> Result<GcRequest, Problem> {
        Ok(GcRequest {
            dry_run: self.dry_run,
            older_than: duration("older_than", &self.older_than)?,
            max_size: size("max_size", &self.max_size)?,
            archive: self.archive,
            only: self.only.clone(),
        })
    }
}

#[cfg(test)]
#[path = "bodies_tests.rs"]
mod tests;
