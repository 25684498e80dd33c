//! Options of `run` and `create`: what a sandbox is made of.

use clap::{Args, ValueEnum};
use skep_types::{ByteSize, InsideUser, Layer, Limits, NetworkMode, SandboxName, SystemView};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What was typed to make a sandbox.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SandboxArguments {
    /// Name of the sandbox (default: one is made up)
    #[arg(long, value_name = "N")]
    pub(crate) name: Option<SandboxName>,
    /// The project (default: nearest directory upwards with skep.toml or .git, else here)
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Make only this part of the project writable (may be repeated)
    #[arg(long, value_name = "PATH")]
    pub(crate) scope: Vec<OsString>,
    /// Where the processes run: auto, or one that `skep providers` lists
    #[arg(long, value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
    /// Show the system of an image instead of the host's (providers docker, oci and microvm; see `skep image`)
    #[arg(long, value_name = "REF")]
    pub(crate) image: Option<String>,
    /// Start from a snapshot (NAME:LABEL) or a template
    #[arg(long, value_name = "SNAPSHOT|TEMPLATE")]
    pub(crate) from: Option<String>,
    /// Recreate the sandbox of this name
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Unreviewed changes may be dropped (by --fresh, and by --rm of `run`)
    #[arg(long)]
    pub(crate) discard: bool,
    /// Lock the scope: no other sandbox with --exclusive may have it meanwhile
    #[arg(long)]
    pub(crate) exclusive: bool,
    /// Who the processes inside look like
    #[arg(long, value_name = "U")]
    pub(crate) user: Option<UserWord>,
    /// System directories: read-only, or copy-on-write
    #[arg(long, value_name = "VIEW")]
    pub(crate) system: Option<SystemWord>,
    /// Named policy
    #[arg(long, value_name = "P")]
    pub(crate) profile: Option<String>,
    /// What can be reached: nothing but the sandbox's own loopback, what --allow says, or the
    /// host's network
    #[arg(long, value_name = "MODE")]
    pub(crate) net: Option<NetworkWord>,
    /// Let HOST[:PORT], *.HOST, a network or a preset (@npm) be reached (may be repeated; implies
    /// --net allow)
    #[arg(long, value_name = "RULE")]
    pub(crate) allow: Vec<String>,
    /// Put a secret in at the edge, towards HOST only; inside is a placeholder (may be repeated;
    /// SOURCE: env:VAR, file:PATH or cmd:COMMAND)
    #[arg(long, value_name = "NAME[=SOURCE][@HOST]")]
    pub(crate) secret: Vec<String>,
    /// Give a secret to the processes inside in the clear (may be repeated)
    #[arg(long, value_name = "NAME[=SOURCE]")]
    pub(crate) secret_env: Vec<String>,
    /// Lead a port of this host's loopback to a server inside (may be repeated)
    #[arg(long, value_name = "[HOST:]PORT")]
    pub(crate) publish: Vec<String>,
    /// Directory inside where commands start that name none (default: the current one, as seen inside)
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    /// Show a host path inside (may be repeated; read-only unless `:rw`, which `--require filesystem` refuses)
    #[arg(long, value_name = "SRC:DST[:ro|rw]")]
    pub(crate) mount: Vec<OsString>,
    /// Show a host path read-only at /candidate
    #[arg(long, value_name = "PATH")]
    pub(crate) archive: Option<PathBuf>,
    /// Show a host path read-only at /datasets/NAME (may be repeated)
    #[arg(long, value_name = "NAME=PATH")]
    pub(crate) dataset: Vec<OsString>,
    /// Show matching files of the project as absent (may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub(crate) hide: Vec<String>,
    /// Exceptions to what is hidden (may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub(crate) show: Vec<String>,
    /// Let only matching changes be approved (may be repeated; instead of `changes.allow`)
    #[arg(long, value_name = "GLOB")]
    pub(crate) allow_changes: Vec<String>,
    /// Let matching changes not be approved (may be repeated; beside `changes.deny`)
    #[arg(long, value_name = "GLOB")]
    pub(crate) deny_changes: Vec<String>,
    /// Refuse unless this layer is enforced (may be repeated)
    #[arg(long, value_name = "LAYER")]
    pub(crate) require: Vec<Layer>,
    /// What cannot be enforced here may be left out; the report says so
    #[arg(long)]
    pub(crate) best_effort: bool,
    /// Free words on the sandbox (may be repeated)
    #[arg(long, value_name = "K=V")]
    pub(crate) label: Vec<String>,
    /// The same key and options give the same sandbox
    #[arg(long, value_name = "K")]
    pub(crate) idempotency_key: Option<String>,
    /// How long the sandbox may live
    #[arg(long, value_name = "D", value_parser = skep_types::parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// Stop the sandbox when it had no exec for this long
    #[arg(long, value_name = "D", value_parser = skep_types::parse_duration, help_heading = "Limits")]
    pub(crate) idle_timeout: Option<Duration>,
    /// Memory of everything inside, such as 512M
    #[arg(long, value_name = "S", help_heading = "Limits")]
    pub(crate) memory: Option<ByteSize>,
    /// Processors, such as 1.5
    #[arg(long, value_name = "N", value_parser = parse_cpus, allow_negative_numbers = true, help_heading = "Limits")]
    pub(crate) cpus: Option<f64>,
    /// Processes and threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true, help_heading = "Limits")]
    pub(crate) pids: Option<u64>,
    /// Bytes written to the copy, such as 2G
    #[arg(long, value_name = "S", help_heading = "Limits")]
    pub(crate) disk: Option<ByteSize>,
    /// Weight of reading and writing disks against other sandboxes, which have 100 (1 to 1000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000), allow_negative_numbers = true, help_heading = "Limits")]
    pub(crate) io_weight: Option<u64>,
}

impl SandboxArguments {
    /// Whether nothing was typed that an ordinary start in namespaces does not know. Settings may ask for more: this is
    /// only a guess.
    pub(crate) fn seems_ordinary(&self) -> bool {
        let elsewhere =
            self.provider.as_ref().is_some_and(|word| word != "auto" && word != "namespace");
        let network = !matches!(self.net, None | Some(NetworkWord::None | NetworkWord::Loopback));
        let reaches = network || !self.allow.is_empty() || !self.publish.is_empty();
        let secret = !self.secret.is_empty() || !self.secret_env.is_empty();
        let system = self.image.is_some() || self.system == Some(SystemWord::Cow);
        let limits = self.memory.is_some()
            || self.cpus.is_some()
            || self.pids.is_some()
            || self.disk.is_some();
        let asked = limits || self.io_weight.is_some() || !self.require.is_empty();
        !(elsewhere || reaches || secret || system || asked)
    }
}

/// Who the processes inside look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UserWord {
    // You
    Caller,
    // Root-looking, still unprivileged outside
    Root,
}

/// How the system directories are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SystemWord {
    // Read-only
    Ro,
    // Copy-on-write
    Cow,
}

/// What can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkWord {
    // Nothing but the sandbox's own loopback
    None,
    // The same, by what is left
    Loopback,
    // What the rules allow, through skep's proxy
    Allow,
    // The host's network as it is
    Host,
}

impl From<UserWord> for InsideUser {
    fn from(word: UserWord) -> Self {
        match word {
            UserWord::Caller => Self::Caller,
            UserWord::Root => Self::Root,
        }
    }
}

impl From<SystemWord> for SystemView {
    fn from(word: SystemWord) -> Self {
        match word {
            SystemWord::Ro => Self::Ro,
            SystemWord::Cow => Self::Cow,
        }
    }
}

impl From<NetworkWord> for NetworkMode {
    fn from(word: NetworkWord) -> Self {
        match word {
            NetworkWord::None | NetworkWord::Loopback => Self::None,
            NetworkWord::Allow => Self::Allow,
            NetworkWord::Host => Self::Host,
        }
    }
}

pub(super) fn parse_cpus(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let limits = Limits { cpus: Some(number), ..Limits::default() };
    skep_policy::validate(&limits).map(|()| number).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_a_positive_number() {
        assert_eq!(parse_cpus("1.5"), Ok(1.5));
        for bad in ["0", "-1", "nan", "inf", "", "x", "1e99", "0.001"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }
}
