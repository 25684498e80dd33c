//! `skep shell`: an interactive shell on a terminal of its own; without a terminal here, a plain one
//! that reads its commands from standard input.

use crate::arguments::AfterDashes;
use crate::arguments::exec::{EnvironmentArguments, WorkdirArguments};
use crate::arguments::target::Name;
use crate::attach::{Input, terminal};
use crate::commands::create::read_environment;
use crate::commands::exec::{add_terminal, plain};
use crate::context::Context;
use crate::exit::Outcome;
use crate::naming;
use crate::resolve::{self, Command, Place};
use crate::tree::Run;
use clap::Args;
use skep_types::Limits;

/// Picks the caller's usual kind of shell from those that the inside has.
const SHELL: &str = "if [ -x /bin/bash ]; then exec /bin/bash; else exec /bin/sh; fi";

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Shell {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    environment: EnvironmentArguments,
    #[command(flatten)]
    workdir: WorkdirArguments,
}

impl Run for Shell {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::sandbox(context, &self.name)?;
        let mut env = read_environment(context, &self.environment)?;
        let interactive = context.surroundings.terminals.stdin;
        if interactive {
            add_terminal(&mut env, &context.surroundings);
        }
        let command = Command {
            words: ["/bin/sh", "-c", SHELL].map(Into::into).to_vec(),
            workdir: self.workdir.workdir.as_deref(),
            env,
            limits: Limits::default(),
            tty: interactive.then(terminal::size_for_new),
        };
        let place = Place {
            here: &context.surroundings.directory,
            project: sandbox.project.as_path(),
            own: &sandbox.policy.workdir,
        };
        let spec = resolve::exec(command, &place)?;
        plain(context, &sandbox, &spec, Input::Passed)
    }
}
