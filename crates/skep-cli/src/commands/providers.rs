//! `skep providers`: the part of `doctor` that is about providers.

use crate::arguments::{AfterDashes, Json};
use crate::commands::doctor::{FindingView, text};
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::Args;
use skep_engine::api::Finding;

/// How findings about providers are named: `provider namespace`, `provider docker`.
const PREFIX: &str = "provider ";

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Providers {
    #[command(flatten)]
    json: Json,
}

impl Run for Providers {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let findings = context.api()?.doctor()?;
        let providers: Vec<(&str, &Finding)> = findings
            .iter()
            .filter_map(|finding| Some((finding.name.strip_prefix(PREFIX)?, finding)))
            .collect();
        if self.json.json {
            let views: Vec<_> =
                providers.iter().map(|(name, finding)| FindingView::new(finding, name)).collect();
            context.output.document(&views)?;
        } else {
            context.output.text(&text(context.output.style, providers.into_iter()))?;
        }
        Ok(0)
    }
}
