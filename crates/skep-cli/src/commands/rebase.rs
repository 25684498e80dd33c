//! `skep rebase`: takes the project's newer state into the sandbox.

use crate::arguments::target::Name;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::approval::RebaseDocument;
use crate::naming;
use crate::render::diff::counted;
use crate::tree::Run;
use clap::Args;
use skep_engine::api::RebasedView;
use skep_types::{Code, escape};

/// What can be typed.
#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 4 as long as paths are in conflict, or are put off because a command runs inside, whether \
                        or not others were merged: these are left as they are, and the project is never changed."
)]
pub(crate) struct Rebase {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    json: Json,
}

impl Run for Rebase {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::whole_or_newest(context, self.name.typed())?;
        let report = context.api()?.rebase(&sandbox.id)?;
        if self.json.json {
            context.output.document(&RebaseDocument::new(&report))?;
        } else {
            let merged = counted(report.merged.len() as u64, "path was", "paths were");
            context.output.say(&format!("{merged} brought up to date in {}", sandbox.name));
            for conflict in &report.conflicts {
                let reason = escape::visible_text(conflict.reason.as_bytes());
                context.output.always(&format!("conflict: {}: {reason}", conflict.path));
            }
            if !report.conflicts.is_empty() {
                let left = report.conflicts.len() as u64;
                let left = counted(left, "path in conflict was", "paths in conflict were");
                context.output.say(&format!("{left} left as before"));
                context.output.say(&super::conflicts::way_out(&sandbox));
            }
            for path in &report.put_off {
                let reason = escape::visible_text(path.reason.as_bytes());
                context.output.always(&format!("put off: {}: {reason}", path.path));
            }
            if !report.put_off.is_empty() {
                let left = report.put_off.len() as u64;
                let left = counted(left, "path was", "paths were");
                let name = &sandbox.name;
                context.output.say(&format!(
                    "{left} put off; `skep stop {name}`, then `skep rebase {name}` takes them in"
                ));
            }
            if let Some(still) = still_seen(report.view) {
                context.output.say(&format!("it runs: {still} until `skep stop {}`", sandbox.name));
            }
        }
        // What merges is merged; what is left for a person or for later is a conflict all the same, as often as
        // it is asked: docs/design/base-without-a-walk.md.
        let done = report.conflicts.is_empty() && report.put_off.is_empty();
        Ok(if done { 0 } else { Code::Conflict.exit_code() })
    }
}

/// What of the project as it was is still seen inside.
fn still_seen(view: RebasedView) -> Option<&'static str> {
    match view {
        RebasedView::AsItIs => None,
        // They may have read a file before it was edited, and write what they knew.
        RebasedView::ButForWhatIsOpen => Some(
            "commands in it may have read files before you edited them; what they have open, and the base of \
             files that they change for the first time, stays as it was",
        ),
        // The kernel goes on showing what it has found under a name.
        RebasedView::AsItWas => Some(
            "files that were replaced in the project, as editors do, may be seen inside as they were",
        ),
    }
}
