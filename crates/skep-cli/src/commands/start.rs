//! `skep start`: starts a stopped sandbox again.

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
pub(crate) struct Start {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    json: Json,
}

impl Run for Start {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::sandbox(context, &self.name)?;
        let sandbox = context.api()?.start(&sandbox.id)?;
        super::warn_of_no_isolation(context, &sandbox);
        answer_with_sandbox(context, &sandbox, self.json.json)
    }
}
