//! `skep restore`: takes a sandbox back to a snapshot.

use super::answer_with_sandbox;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::naming;
use crate::tree::Run;
use clap::Args;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Sandbox (default: the project's newest) and label
    #[arg(value_names = ["NAME", "LABEL"], num_args = 1..=2, required = true)]
    words: Vec<String>,
    /// Sandbox, as an option
    #[arg(short, long, value_name = "NAME")]
    sandbox: Option<String>,
    #[command(flatten)]
    json: Json,
}

impl Run for Restore {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let (name, label) = naming::name_and_last(&self.words, self.sandbox.as_deref())?;
        let sandbox = naming::whole_or_newest(context, name)?;
        let sandbox = context.api()?.restore(&sandbox.id, label)?;
        answer_with_sandbox(context, &sandbox, self.json.json)
    }
}
