//! `skep fork`: starts new sandboxes from the state of one.

use crate::arguments::target::Name;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::sandbox::SandboxDocument;
use crate::naming;
use crate::tree::Run;
use clap::Args;
use skep_types::SandboxName;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Fork {
    #[command(flatten)]
    name: Name,
    /// How many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// Name of the new one (of several: with a number behind it)
    #[arg(long = "name", id = "new_name", value_name = "NEW")]
    new_name: Option<SandboxName>,
    #[command(flatten)]
    json: Json,
}

impl Run for Fork {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::sandbox(context, &self.name)?;
        let forks = context.api()?.fork(&sandbox.id, self.count, self.new_name.as_ref())?;
        if self.json.json {
            let documents: Vec<_> = forks.iter().map(SandboxDocument::new).collect();
            context.output.document(&documents)?;
        } else {
            let names: String = forks.iter().map(|fork| format!("{}\n", fork.name)).collect();
            context.output.text(&names)?;
        }
        Ok(0)
    }
}
