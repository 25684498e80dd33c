//! `skep freeze`: pauses every process.

use super::answer_with_sandbox;
use crate::arguments::target::Name;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::naming;
use crate::tree::Run;
use clap::Args;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Freeze {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    json: Json,
}

impl Run for Freeze {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::sandbox(context, &self.name)?;
        let sandbox = context.api()?.freeze(&sandbox.id)?;
        answer_with_sandbox(context, &sandbox, self.json.json)
    }
}
