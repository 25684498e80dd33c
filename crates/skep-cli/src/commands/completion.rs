//! `skep completion`: a completion script.

use crate::arguments::AfterDashes;
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree;
use crate::tree::Run;
use clap::Args;
use clap_complete::Shell;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// For this shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Run for Completion {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut tree::whole(), "skep", &mut script);
        context.output.bytes(&script)?;
        Ok(0)
    }
}
