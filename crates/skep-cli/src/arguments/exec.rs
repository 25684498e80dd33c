//! Options of `run` and `exec`: how one command is run.

use clap::Args;
use skep_types::ByteSize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Environment set inside.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct EnvironmentArguments {
    /// Set a variable inside (may be repeated)
    #[arg(long, value_name = "K=V")]
    pub(crate) env: Vec<OsString>,
    /// Set the variables of a file with K=V lines
    #[arg(long, value_name = "F")]
    pub(crate) env_file: Option<PathBuf>,
}

/// Limits of one command (for `create`: of each command run later).
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ExecLimitArguments {
    /// End the command after this long (exit code 124)
    #[arg(long, value_name = "D", value_parser = skep_types::parse_duration, help_heading = "Limits")]
    pub(crate) timeout: Option<Duration>,
    /// Time between asking the command to end and killing it
    #[arg(long, value_name = "D", value_parser = skep_types::parse_duration, help_heading = "Limits")]
    pub(crate) grace: Option<Duration>,
    /// End the command when it printed nothing for this long
    #[arg(long, value_name = "D", value_parser = skep_types::parse_duration, help_heading = "Limits")]
    pub(crate) silence_timeout: Option<Duration>,
    /// Total processor time
    #[arg(long, value_name = "D", value_parser = skep_types::parse_duration, help_heading = "Limits")]
    pub(crate) cpu_time: Option<Duration>,
    /// Output kept (head and tail)
    #[arg(long, value_name = "S", help_heading = "Limits")]
    pub(crate) output_limit: Option<ByteSize>,
}

/// Limits of one command within those of its sandbox.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OwnLimitArguments {
    /// Memory of this command, such as 512M; the sandbox's limit holds too
    #[arg(long, value_name = "S", help_heading = "Limits")]
    pub(crate) memory: Option<ByteSize>,
    /// Processors of this command, such as 1.5
    #[arg(long, value_name = "N", value_parser = super::sandbox::parse_cpus, help_heading = "Limits")]
    pub(crate) cpus: Option<f64>,
    /// Processes and threads of this command
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Limits")]
    pub(crate) pids: Option<u64>,
    /// End this command when the copy holds more than this
    #[arg(long, value_name = "S", help_heading = "Limits")]
    pub(crate) disk: Option<ByteSize>,
}

/// Where a command starts.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WorkdirArguments {
    /// Directory inside to start in (default: the sandbox's own, else the current one as seen inside)
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
}

/// How a command is connected to us.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConnectArguments {
    /// Pass our standard input on (`run` does so by itself, unless --json is given)
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give the command a terminal of its own (default: when ours are terminals)
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) tty: bool,
}
