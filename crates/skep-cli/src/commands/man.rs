//! `skep man`: manual pages, in the form that `man -l -` reads.

use crate::arguments::AfterDashes;
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree;
use crate::tree::Run;
use clap::Args;
use skep_types::{Code, Problem, escape};

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The page of this command (default: of skep itself)
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

impl Run for Man {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let mut whole = tree::whole();
        whole.build();
        let page = match &self.command {
            None => whole,
            Some(name) => {
                let found = whole.find_subcommand(name).cloned();
                let message =
                    || format!("no command is called `{}`", escape::visible(name.as_bytes()));
                found.ok_or_else(|| Problem::new(Code::NotFound, message()))?
            }
        };
        let mut text = Vec::new();
        clap_mangen::Man::new(page).render(&mut text)?;
        context.output.bytes(&text)?;
        Ok(0)
    }
}
