//! `skep restore`: takes a sandbox back to a snapshot.

use super::answer_with_sandbox;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::naming;
use crate::render::diff::counted;
use crate::tree::Run;
use clap::Args;
use skep_engine::api::SnapshotView;

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
        let api = context.api()?;
        let before = api.snapshots(&sandbox.id)?;
        let running = api.execs(&sandbox.id)?.iter().filter(|exec| exec.end.is_none()).count();
        let sandbox = api.restore(&sandbox.id, label)?;
        if running > 0 {
            let count = counted(running as u64, "command was", "commands were");
            context.output.say(&format!("{count} ended: files cannot change under what runs"));
        }
        let outcome = answer_with_sandbox(context, &sandbox, self.json.json)?;
        let is_new = |new: &SnapshotView| before.iter().all(|known| known.label != new.label);
        if let Some(kept) = api.snapshots(&sandbox.id)?.into_iter().find(is_new) {
            context.output.say(&format!(
                "what was there before is kept: skep restore {} {}",
                sandbox.name, kept.label
            ));
        }
        Ok(outcome)
    }
}
