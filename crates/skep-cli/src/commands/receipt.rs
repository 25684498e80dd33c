//! `skep receipt`: the signed statement of an approval. It is JSON by nature.

use crate::arguments::AfterDashes;
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::Args;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Receipt {
    /// Approval: an id, or its beginning
    #[arg(value_name = "APPROVAL")]
    approval: String,
}

impl Run for Receipt {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        let approval = api.find_approval(&self.approval)?;
        context.output.document(&api.receipt(&approval.id)?)?;
        Ok(0)
    }
}
