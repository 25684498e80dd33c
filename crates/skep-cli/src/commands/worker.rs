//! A worker of `skep serve`: not for people, and not in any list.

use crate::arguments::AfterDashes;
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::Args;
use skep_types::{Code, Problem};

/// The word for it.
pub(crate) const WORD: &str = "__worker";

/// How a worker is told that it may only read.
pub(crate) const READING: &str = "--reading";

/// What can be said.
#[derive(Debug, Args)]
pub(crate) struct Worker {
    /// What is remembered is read, and not changed
    #[arg(long)]
    reading: bool,
}

impl Run for Worker {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let failed = |error: std::io::Error| {
            Problem::new(Code::Io, format!("cannot work for the server: {error}"))
        };
        // Our standard input is the socket to the server. A copy of it is used, and the original
        // replaced, so that nothing that is started here can speak on it.
        let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
            .map_err(|error| failed(error.into()))?;
        let null = std::fs::File::open("/dev/null").map_err(failed)?;
        rustix::stdio::dup2_stdin(&null).map_err(|error| failed(error.into()))?;
        let global = context.global();
        let renew = |engine: &mut skep_engine::Engine| {
            engine.take_settings(global.system_config()?, global.user_config()?);
            Ok(())
        };
        let open = || match self.reading {
            true => crate::wiring::open_to_read(global),
            false => crate::wiring::open_engine(global),
        };
        skep_server::worker::run(socket, open, renew).map_err(failed)?;
        Ok(0)
    }
}
