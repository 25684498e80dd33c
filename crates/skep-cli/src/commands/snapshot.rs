//! `skep snapshot`: freezes the state of a sandbox under a label.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::sandbox::SnapshotDocument;
use crate::naming;
use crate::tree::Run;
use clap::Args;
use skep_types::escape;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// Sandbox and label; a single word is a sandbox if one is called so, else a label
    #[arg(value_names = ["NAME", "LABEL"], num_args = 0..=2)]
    words: Vec<String>,
    /// Sandbox (then the word is a label)
    #[arg(short, long, value_name = "NAME")]
    sandbox: Option<String>,
    #[command(flatten)]
    json: Json,
}

impl Run for Snapshot {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let (sandbox, label) =
            naming::sandbox_and_word(context, &self.words, self.sandbox.as_deref())?;
        let snapshot = context.api()?.snapshot(&sandbox.id, label.as_deref())?;
        if self.json.json {
            context.output.document(&SnapshotDocument::new(&snapshot))?;
        } else {
            let label = escape::visible(snapshot.label.as_bytes());
            context.output.text(&format!("{label}\n"))?;
        }
        Ok(0)
    }
}
