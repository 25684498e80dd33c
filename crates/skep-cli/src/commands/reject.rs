//! `skep reject`: drops a selection from the sandbox.

use crate::arguments::target::NameAndPaths;
use crate::arguments::{AfterDashes, Json};
use crate::asking;
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::approval::RejectDocument;
use crate::naming;
use crate::paths;
use crate::render::diff::counted;
use crate::tree::Run;
use clap::Args;
use skep_types::{HunkId, RelPath, Sandbox, Selection};

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Reject {
    #[command(flatten)]
    target: NameAndPaths,
    /// Only this hunk, as `skep diff` shows its id (may be repeated)
    #[arg(long, value_name = "ID")]
    hunk: Vec<HunkId>,
    /// Why; readable inside the sandbox
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    json: Json,
}

impl Run for Reject {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        let naming::Meant { sandbox, words: typed, no_name } =
            naming::whole_and_paths(context, &self.target, after)?;
        let (start, project) = (naming::start(context, &sandbox), sandbox.project.as_path());
        let everything = typed.is_empty() && self.hunk.is_empty();
        let asks = everything && !self.json.json && asking::somebody(context);
        let looks = asks || no_name.is_some() || paths::has_two_readings(&typed, start, project);
        let set = match looks {
            true => Some(context.api()?.diff(&sandbox.id)?),
            false => None,
        };
        if let (Some(no_name), Some(set)) = (no_name, &set) {
            no_name.check(context, &sandbox, set)?;
        }
        let words = paths::select(&typed, start, project, set.as_ref())?;
        // What was asked about is dropped and nothing newer.
        let digest = set.as_ref().filter(|_| asks).map(|set| set.digest);
        if let Some(set) = set.as_ref().filter(|set| asks && !set.changes.is_empty()) {
            let count = counted(set.changes.len() as u64, "change", "changes");
            let question = format!("drop {count} from {}?", sandbox.name);
            asking::ask(context, &question, "not rejected; nothing was changed")?;
        }
        // Everything is everything: what was built goes too.
        let selection = Selection { paths: words, hunks: self.hunk, ignored: everything };
        let reason = self.reason.as_deref();
        let report = context.api()?.reject(&sandbox.id, &selection, digest, reason)?;
        if self.json.json {
            context.output.document(&RejectDocument::new(&report))?;
        } else {
            for path in &report.rejected {
                context.output.say(&format!("  dropped  {path}"));
            }
            let count = counted(report.rejected.len() as u64, "change was", "changes were");
            let left = report.remaining;
            let all = if left > 0 { ", ignored ones included" } else { "" };
            context.output.say(&format!("{count} dropped from {}; {left} left{all}", sandbox.name));
            say_not_taken_in(context, &report.not_taken_in, &sandbox);
        }
        Ok(0)
    }
}

/// Somebody inside may have read a file before it was edited: the rejection does not move its base.
fn say_not_taken_in(context: &Context, paths: &[RelPath], sandbox: &Sandbox) {
    for path in paths {
        context.output.say(&format!("  as it was  {path}"));
    }
    if !paths.is_empty() {
        let (count, name) = (counted(paths.len() as u64, "path", "paths"), &sandbox.name);
        context.output.say(&format!(
            "a command runs in {name}: your newer version of {count} was not taken in; `skep stop {name}`, then \
             `skep rebase {name}` does that"
        ));
    }
}
