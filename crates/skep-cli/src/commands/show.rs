//! `skep show`: one sandbox with sizes, running execs, snapshots, warnings and enforcement.

use crate::arguments::target::Name;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::sandbox::SandboxDocument;
use crate::naming;
use crate::render;
use crate::tree::Run;
use clap::Args;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    json: Json,
}

impl Run for Show {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::sandbox(context, &self.name)?;
        let api = context.api()?;
        let view = api.show(&sandbox.id)?;
        let snapshots = api.snapshots(&sandbox.id)?;
        if self.json.json {
            let document = SandboxDocument::of_view(&view).snapshots(&snapshots);
            context.output.document(&document)?;
        } else {
            let output = &context.output;
            let text = render::sandbox::show(output.style, output.columns, &view, &snapshots);
            output.text(&text)?;
        }
        Ok(0)
    }
}
