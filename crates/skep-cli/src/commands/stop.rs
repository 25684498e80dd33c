//! `skep stop`: ends everything inside; the changes are kept.

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
pub(crate) struct Stop {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    json: Json,
}

impl Run for Stop {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::whole_or_newest(context, self.name.typed())?;
        let sandbox = context.api()?.stop(&sandbox.id)?;
        answer_with_sandbox(context, &sandbox, self.json.json)
    }
}
