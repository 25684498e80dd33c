//! `skep receipt`: the signed statement of an approval. It is JSON by nature.

use crate::arguments::AfterDashes;
use crate::context::Context;
use crate::exit::Outcome;
use crate::ids;
use crate::tree::Run;
use clap::Args;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Receipt {
    /// Approval: an id, or 6 or more characters of its beginning (`skep history` lists them)
    #[arg(value_name = "APPROVAL")]
    approval: String,
}

impl Run for Receipt {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        let approval = ids::approval(context, &self.approval)?;
        context.output.document(&api.receipt(&approval.id)?)?;
        Ok(0)
    }
}
