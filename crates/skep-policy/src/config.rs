//! Config files: their shape, and reading them strictly.
//!
//! The same shape serves `~/.config/skep/config.toml`, a project's `skep.toml` and, filled by
//! code, the command line. An unknown key is an error that names the nearest known one; a
//! malformed file is refused as a whole.

mod environment;
mod keys;
mod mount;
mod pages;
mod table;
mod values;
mod written;

pub use keys::{KEYS, nearest_key};
pub use mount::{MountError, parse_mount};
pub use pages::{example_file, json_schema, reference_page};
pub use table::{Kind, ProjectMay, Setting, TABLE};
pub(crate) use written::EMPTY;
pub use written::{InForce, config_file};

use serde::Deserialize;
use skep_types::{
    ByteSize, ByteString, InsideUser, Layer, Mount, NetworkMode, PlainSecret, PublishedPort,
    RelPath, Secret, SystemView,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A config file is at most this large.
pub const MAX_CONFIG_BYTES: usize = 256 * 1024;

/// Why a config file was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Over [`MAX_CONFIG_BYTES`].
    #[error("{source_name} is {size} bytes long; at most {MAX_CONFIG_BYTES} are read")]
    TooLarge {
        /// Which file.
        source_name: String,
        /// Its size.
        size: usize,
    },
    /// A key nobody knows.
    #[error("{source_name} has the unknown key `{key}`{}", did_you_mean(.nearest))]
    UnknownKey {
        /// Which file.
        source_name: String,
        /// The key, from the top.
        key: String,
        /// The nearest known one.
        nearest: Option<String>,
    },
    /// Not TOML, or a value of the wrong kind.
    #[error("{source_name}{}: {reason}", place(.at))]
    Malformed {
        /// Which file.
        source_name: String,
        /// The line and the column, both from 1; none where that is not known.
        at: Option<(usize, usize)>,
        /// Why.
        reason: String,
    },
}

fn place(at: &Option<(usize, usize)>) -> String {
    at.map_or_else(String::new, |(line, column)| format!(":{line}:{column}"))
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |key| format!("; the nearest known one is `{key}`"))
}

/// One source of settings. What is `None` or empty says nothing.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigDocument {
    /// Which profile to start from.
    pub profile: Option<String>,
    /// Limits.
    pub limits: LimitsSection,
    /// What the inside looks like.
    pub sandbox: SandboxSection,
    /// Acceptance rules.
    pub changes: ChangesSection,
    /// The way out.
    pub egress: EgressSection,
    /// When to warn.
    pub warn: WarnSection,
    /// What undo keeps.
    pub undo: UndoSection,
    /// What is cleaned up, and when.
    pub gc: GcSection,
    /// Providers.
    pub provider: ProviderSection,
    /// How much there may be at once.
    pub quota: QuotaSection,
    /// Where skep remembers.
    pub store: StoreSection,
    /// The server.
    pub server: ServerSection,
    /// Profiles of the user's own.
    pub profiles: BTreeMap<String, ProfileDocument>,
    /// Sandboxes that a server has ready, by a name of the user's choice.
    pub pools: BTreeMap<String, PoolSection>,
}

/// A limit that was mentioned: `Some(None)` lifts it (`"none"` in a file).
pub type Mentioned<T> = Option<Option<T>>;

/// `[limits]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are those of `skep_types::Limits`")]
pub struct LimitsSection {
    #[serde(deserialize_with = "values::size")]
    pub memory: Mentioned<ByteSize>,
    #[serde(deserialize_with = "values::cpus")]
    pub cpus: Mentioned<f64>,
    #[serde(deserialize_with = "values::duration")]
    pub cpu_time: Mentioned<Duration>,
    #[serde(deserialize_with = "values::count")]
    pub pids: Mentioned<u64>,
    #[serde(deserialize_with = "values::size")]
    pub disk: Mentioned<ByteSize>,
    #[serde(deserialize_with = "values::count")]
    pub inodes: Mentioned<u64>,
    #[serde(deserialize_with = "values::count")]
    pub open_files: Mentioned<u64>,
    #[serde(deserialize_with = "values::duration")]
    pub timeout: Mentioned<Duration>,
    /// Wall clock of execs started over the API that name none.
    #[serde(deserialize_with = "values::duration")]
    pub api_timeout: Mentioned<Duration>,
    #[serde(deserialize_with = "values::duration")]
    pub grace: Mentioned<Duration>,
    #[serde(deserialize_with = "values::duration")]
    pub idle_timeout: Mentioned<Duration>,
    #[serde(deserialize_with = "values::duration")]
    pub silence_timeout: Mentioned<Duration>,
    #[serde(deserialize_with = "values::size")]
    pub output: Mentioned<ByteSize>,
    #[serde(deserialize_with = "values::count")]
    pub io_weight: Mentioned<u64>,
}

/// `[sandbox]`: the fields are those of [`skep_types::Policy`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSection {
    /// What can be reached.
    pub network: Option<NetworkMode>,
    /// How system directories are seen.
    pub system: Option<SystemView>,
    /// Who the processes look like.
    pub user: Option<InsideUser>,
    /// Whether the built-in allow-list of host variables is passed.
    pub inherit_env: Option<bool>,
    /// Whether `ptrace` is allowed.
    pub ptrace: Option<bool>,
    /// Whether what was asked for may weaken.
    pub best_effort: Option<bool>,
    /// Host paths shown inside (`SRC:DST[:ro|rw]`).
    #[serde(deserialize_with = "mount::deserialize")]
    pub mounts: Option<Vec<Mount>>,
    /// Read-only layers below the workspace.
    pub layers: Option<Vec<ByteString>>,
    /// Pieces of the home shown read-only.
    #[serde(deserialize_with = "values::home_pieces")]
    pub home: Option<Vec<ByteString>>,
    /// Globs shown as absent.
    pub hide: Option<Vec<String>>,
    /// Exceptions to `hide`.
    pub show: Option<Vec<String>>,
    /// Variables set inside.
    #[serde(deserialize_with = "values::variables")]
    pub env: BTreeMap<String, ByteString>,
    /// Host variables passed on.
    pub env_pass: Option<BTreeSet<String>>,
    /// Layers that must be enforced.
    pub require: Option<BTreeSet<Layer>>,
    /// Writable parts of the project.
    pub scope: Option<Vec<RelPath>>,
}

/// `[changes]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChangesSection {
    /// Only these may be approved.
    pub allow: Option<Vec<String>>,
    /// These may not.
    pub deny: Option<Vec<String>>,
}

/// `[egress]`: what can be reached with `network = "allow"`, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressSection {
    /// Rules and presets.
    #[serde(deserialize_with = "values::rules")]
    pub allow: Option<Vec<String>>,
    /// Addresses of names, instead of asking a name server.
    #[serde(deserialize_with = "values::host_addresses")]
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
    /// Name servers to ask, instead of the host's.
    #[serde(deserialize_with = "values::resolvers")]
    pub resolvers: Option<Vec<SocketAddr>>,
    /// Files with certificates of authorities that servers may have.
    pub extra_ca: Option<Vec<ByteString>>,
    /// Presets of the user's own: rules by name, without the `@`.
    #[serde(deserialize_with = "values::presets")]
    pub presets: BTreeMap<String, Vec<String>>,
    /// Names of secrets that are put into bodies too.
    pub secret_bodies: Option<Vec<String>>,
    /// Secrets put in at the edge. Not for files: filled from the command line.
    #[serde(skip)]
    pub secrets: Option<Vec<Secret>>,
    /// Secrets given in the clear. Not for files.
    #[serde(skip)]
    pub secret_env: Option<Vec<PlainSecret>>,
    /// Ports of the host that lead inside. Not for files.
    #[serde(skip)]
    pub publish: Option<Vec<PublishedPort>>,
}

/// `[warn]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WarnSection {
    /// An upper larger than this is remarked upon.
    #[serde(deserialize_with = "values::plain_size")]
    pub upper_size: Option<ByteSize>,
}

/// `[undo]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UndoSection {
    /// How many approvals can be undone.
    #[serde(deserialize_with = "values::plain_count")]
    pub keep: Option<u64>,
    /// For how long.
    #[serde(deserialize_with = "values::plain_duration")]
    pub age: Option<Duration>,
}

/// `[gc]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GcSection {
    /// Approved sandboxes go after this.
    #[serde(deserialize_with = "values::plain_duration")]
    pub approved_age: Option<Duration>,
    /// Rejected ones after this.
    #[serde(deserialize_with = "values::plain_duration")]
    pub rejected_age: Option<Duration>,
    /// All sandboxes together.
    #[serde(deserialize_with = "values::plain_size")]
    pub total_size: Option<ByteSize>,
    /// Warn when this much of it is used.
    #[serde(deserialize_with = "values::percent")]
    pub warn_percent: Option<u8>,
    /// Whether sandboxes without changes stay.
    pub keep_empty: Option<bool>,
    /// Whether unreviewed work may be archived, and then removed, to make room.
    pub archive_unreviewed: Option<bool>,
    /// Archives go after this.
    #[serde(deserialize_with = "values::duration")]
    pub archive_age: Mentioned<Duration>,
    /// Events go after this.
    #[serde(deserialize_with = "values::duration")]
    pub events_age: Mentioned<Duration>,
    /// Rows of deleted sandboxes go after this.
    #[serde(deserialize_with = "values::plain_duration")]
    pub deleted_age: Option<Duration>,
    /// Execs that have ended go after this.
    #[serde(deserialize_with = "values::duration")]
    pub execs_age: Mentioned<Duration>,
    /// The newest ended execs of a sandbox that stay.
    #[serde(deserialize_with = "values::plain_count")]
    pub execs_keep: Option<u64>,
    /// Approvals that cannot be undone any more go after this.
    #[serde(deserialize_with = "values::duration")]
    pub history_age: Mentioned<Duration>,
}

/// `[quota]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaSection {
    /// Sandboxes at once.
    #[serde(deserialize_with = "values::count")]
    pub sandboxes: Mentioned<u64>,
    /// Memory limits of the running ones together.
    #[serde(deserialize_with = "values::size")]
    pub memory: Mentioned<ByteSize>,
    /// Changed files of all together.
    #[serde(deserialize_with = "values::size")]
    pub disk: Mentioned<ByteSize>,
    /// Memory the host must have free.
    #[serde(deserialize_with = "values::size")]
    pub free_memory: Mentioned<ByteSize>,
}

/// `[store]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSection {
    /// A PostgreSQL instead of the file in the state directory.
    pub url: Option<String>,
    /// What this machine is called there.
    pub node: Option<String>,
    /// How long its lease is good for.
    #[serde(deserialize_with = "values::plain_duration")]
    pub lease: Option<Duration>,
}

/// `[server]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSection {
    /// Where traces are sent.
    pub traces: Option<String>,
}

/// `[pools.NAME]`: sandboxes that `skep serve` has started before anybody asks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSection {
    /// Of this project.
    pub project: ByteString,
    /// Under this profile, or the one in force.
    #[serde(default)]
    pub profile: Option<String>,
    /// By this provider, or the one in force.
    #[serde(default)]
    pub provider: Option<String>,
    /// How many wait.
    #[serde(deserialize_with = "values::needed_count")]
    pub size: u64,
}

/// `[provider]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderSection {
    /// Which provider, or `auto`.
    pub name: Option<String>,
    /// `[provider.microvm]`.
    pub microvm: MicrovmSection,
}

/// `[provider.microvm]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MicrovmSection {
    /// Whether software emulation may stand in for KVM.
    pub emulation: Option<bool>,
    /// The guest's kernel.
    pub kernel: Option<String>,
}

/// A profile: a named set of limits and views.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileDocument {
    /// One line for people.
    pub description: String,
    /// The profile it builds on; `default` when it says nothing.
    pub from: Option<String>,
    /// Memory as a share of the host.
    pub memory_share: Option<MemoryShare>,
    /// Limits.
    pub limits: LimitsSection,
    /// View.
    pub sandbox: SandboxSection,
    /// Acceptance rules.
    pub changes: ChangesSection,
    /// The way out.
    pub egress: EgressSection,
}

/// Memory as a share of the host: at most `percent` of it, and at most `cap`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryShare {
    /// Never more than this.
    #[serde(deserialize_with = "values::required_size")]
    pub cap: ByteSize,
    /// Of the host's memory.
    #[serde(deserialize_with = "values::required_percent")]
    pub percent: u8,
}

impl ConfigDocument {
    /// Reads a config file. `source_name` is how errors call it.
    pub fn parse(text: &[u8], source_name: &str) -> Result<Self, ConfigError> {
        let source_name = source_name.to_owned();
        if text.len() > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLarge { source_name, size: text.len() });
        }
        let text = std::str::from_utf8(text).map_err(|error| ConfigError::Malformed {
            source_name: source_name.clone(),
            at: Some(line_and_column(&text[..error.valid_up_to()])),
            reason: error.to_string(),
        })?;
        let malformed = |error: toml::de::Error| malformed(&source_name, text, &error);
        let table: toml::Table = toml::from_str(text).map_err(malformed)?;
        if let Some(key) = keys::first_unknown(&table) {
            let nearest = nearest_key(&key);
            return Err(ConfigError::UnknownKey { source_name: source_name.clone(), key, nearest });
        }
        toml::from_str(text).map_err(malformed)
    }
}

/// In one line, as compilers have it, with the key. The value may be a secret.
fn malformed(source_name: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.as_bytes().get(..span.start));
    let at = before.map(line_and_column);
    let line = at.and_then(|(line, _)| text.lines().nth(line - 1)).unwrap_or_default();
    let mut reason = error.message().trim_end().replace('\n', ", ");
    if let Some((key, _)) = line.split_once('=') {
        reason.push_str(&format!(" (`{}`)", key.trim()));
    }
    ConfigError::Malformed { source_name: source_name.to_owned(), at, reason }
}

/// Where a text ends, from 1, in characters.
fn line_and_column(before: &[u8]) -> (usize, usize) {
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    (line, String::from_utf8_lossy(&before[start..]).chars().count() + 1)
}

#[cfg(test)]
#[path = "config/tests.rs"]
mod tests;
