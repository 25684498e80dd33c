//! `skep serve`: the engine over HTTP.

use crate::arguments::AfterDashes;
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::Args;
use skep_server::listen::{self, Listen};
use skep_server::{Config, WorkerCommand};
use skep_types::{ByteSize, Code, ContentHash, Problem};
use std::ffi::OsString;
use std::path::PathBuf;

/// Workers at a time, for each processor.
const WORKERS_PER_PROCESSOR: usize = 4;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// unix:/PATH or 127.0.0.1:PORT, beside sockets that systemd passes in; may be repeated (default:
    /// skep.sock in the state directory, where none is passed in)
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    listen: Vec<Listen>,
    /// A file (mode 0600) that holds a token of role approver; TCP needs it, or `skep token`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Processes that work on requests at the same time (default: four for each processor)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=256))]
    workers: Option<u16>,
    /// At most this many sandboxes (`quota.sandboxes`)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_sandboxes: Option<u64>,
    /// At most this much memory promised to running sandboxes (`quota.memory`)
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<ByteSize>,
    /// At most this much disk used by all sandboxes together (`quota.disk`)
    #[arg(long, value_name = "SIZE")]
    max_disk: Option<ByteSize>,
    /// Start nothing when less memory than this is free on the host (`quota.free_memory`)
    #[arg(long, value_name = "SIZE")]
    keep_free: Option<ByteSize>,
    /// Send traces to this collector of OpenTelemetry: http://HOST:PORT (default: `server.traces`)
    #[arg(long, value_name = "URL")]
    traces: Option<String>,
}

fn parse_listen(text: &str) -> Result<Listen, String> {
    text.parse()
}

impl Run for Serve {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        // Opened and settled once, here, where a wrong state directory or settings file can still
        // be told to whoever started the server.
        refuse_host(context, "serve")?;
        let doubt = settle(context)?;
        let state_dir = crate::wiring::prepare(context.global())?;
        let mut listeners = listen::inherited()?;
        let mut wanted = self.listen;
        if wanted.is_empty() && listeners.is_empty() {
            wanted.push(Listen::Unix(state_dir.join("skep.sock")));
        }
        for address in &wanted {
            listeners.push(listen::bind(address)?);
        }
        let around = &context.surroundings;
        skep_server::log_to_stderr(context.output.is_verbose());
        let traces = match self.traces {
            Some(url) => Some(url),
            None => crate::storage::all_settings(context.global())?.traces,
        };
        let quotas = [
            ("SKEP_QUOTA_SANDBOXES", self.max_sandboxes.map(|most| most.to_string())),
            ("SKEP_QUOTA_MEMORY", self.max_memory.map(|size| format!("{}B", size.0))),
            ("SKEP_QUOTA_DISK", self.max_disk.map(|size| format!("{}B", size.0))),
            ("SKEP_QUOTA_FREE_MEMORY", self.keep_free.map(|size| format!("{}B", size.0))),
        ];
        skep_server::serve(Config {
            traces,
            doubt,
            listeners,
            token_file: self.token_file.map(|path| around.directory.join(path)),
            worker: worker(&state_dir, context, quotas),
            workers: self.workers.map_or_else(usual_workers, usize::from),
            user: around.user,
            home: around.home.clone(),
            environment: around.environment(),
            canary: canary(&state_dir, around.user),
            clock: crate::wiring::now,
            state_dir,
        })?;
        Ok(0)
    }
}

/// Reads the store from end to end, and settles what an earlier start left. What cannot be relied on is
/// served to be read: the answer says why.
fn settle(context: &Context) -> Result<Option<String>, Problem> {
    let global = context.global();
    let opened =
        crate::wiring::check_store(global).and_then(|problems| match problems.is_empty() {
            true => crate::wiring::open_engine(global).map(|_| None),
            false => Ok(Some(problems.join("; "))),
        });
    let doubt = match opened {
        Err(problem) if skep_engine::is_doubt(&problem) => Some(problem.message),
        other => other?,
    };
    if doubt.is_some() {
        // What cannot be read either is no reason to start.
        crate::wiring::open_to_read(global)?;
    }
    Ok(doubt.map(|why| format!("the store is only read, for it is damaged: {why}")))
}

/// The same program: also when its file was replaced by a newer one meanwhile. Quotas that were typed are
/// settings of the workers, who judge them.
fn worker(
    state_dir: &std::path::Path,
    context: &Context,
    quotas: [(&str, Option<String>); 4],
) -> WorkerCommand {
    let mut home = OsString::from("--home=");
    home.push(state_dir);
    let word = OsString::from(crate::commands::worker::WORD);
    let quotas = quotas.into_iter().filter_map(|(name, value)| Some((name.into(), value?.into())));
    let store = context.global().store.as_ref().map(|url| ("SKEP_STORE".into(), url.into()));
    WorkerCommand {
        program: "/proc/self/exe".into(),
        arguments: vec![home, word],
        reading: vec![crate::commands::worker::READING.into()],
        environment: store.into_iter().chain(quotas).collect(),
    }
}

fn usual_workers() -> usize {
    std::thread::available_parallelism().map_or(4, |count| count.get() * WORKERS_PER_PROCESSOR)
}

/// One directory per state directory, so that what a killed server left is found again.
fn canary(state_dir: &std::path::Path, user: u32) -> PathBuf {
    let hash = ContentHash::of(state_dir.as_os_str().as_encoded_bytes()).to_string();
    std::env::temp_dir().join(format!("skep-canary-{user}-{}", &hash[..12]))
}

/// What `--host` and `SKEP_HOST` may not be combined with.
pub(crate) fn refuse_host(context: &Context, command: &str) -> Result<(), Problem> {
    match context.host() {
        None => Ok(()),
        Some(_) => Err(Problem::new(
            Code::Usage,
            format!("`skep {command}` works on this host's own state directory, not with `--host`"),
        )),
    }
}
