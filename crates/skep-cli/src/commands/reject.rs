//! `skep reject`: drops a selection from the sandbox.

use crate::arguments::target::NameAndPaths;
use crate::arguments::{AfterDashes, Json};
use crate::asking;
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::approval::RejectDocument;
use crate::naming;
use crate::paths;
use crate::render::diff::{self, counted};
use crate::tree::Run;
use clap::Args;
use skep_types::{ChangeSet, HunkId, RelPath, Sandbox, Selection};
use std::collections::BTreeSet;

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
        let naming::Meant { sandbox, words: typed, no_name, .. } =
            naming::whole_and_paths(context, &self.target, after)?;
        let (start, project) = (naming::start(context, &sandbox), sandbox.project.as_path());
        let everything = typed.is_empty() && self.hunk.is_empty();
        let asks = everything && !self.json.json && asking::somebody(context);
        // For people, what is dropped is counted as it is shown.
        let looks =
            !self.json.json || no_name.is_some() || paths::has_two_readings(&typed, start, project);
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
        if let Some(count) = set.as_ref().filter(|_| asks).and_then(diff::all_apart) {
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
            let dropped = dropped(&report.rejected, set.as_ref());
            for path in &dropped {
                context.output.say(&format!("  dropped  {path}"));
            }
            let count = counted(dropped.len() as u64, "change was", "changes were");
            context.output.say(&format!("{count} dropped from {}", sandbox.name));
            say_left(context, report.remaining, &sandbox);
            say_not_taken_in(context, &report.not_taken_in, &sandbox);
        }
        Ok(0)
    }
}

/// The changes among what was dropped: a directory that went with its entries is none, and of a rename both
/// names are one.
fn dropped<'a>(rejected: &'a [RelPath], set: Option<&ChangeSet>) -> Vec<&'a RelPath> {
    let changes = set.map_or(&[][..], |set| &set.changes);
    let all: BTreeSet<&RelPath> = rejected.iter().collect();
    let above: BTreeSet<RelPath> = rejected.iter().flat_map(RelPath::ancestors).collect();
    let changed: BTreeSet<&RelPath> = changes.iter().map(|change| &change.path).collect();
    let renamed = changes.iter().filter(|change| all.contains(&change.path));
    let earlier: BTreeSet<&RelPath> =
        renamed.filter_map(|change| change.renamed_from.as_ref()).collect();
    let counts = |path: &&RelPath| {
        changed.contains(path) || !above.contains(*path) && !earlier.contains(path)
    };
    rejected.iter().filter(counts).collect()
}

fn say_left(context: &Context, remaining: u64, sandbox: &Sandbox) {
    let name = &sandbox.name;
    // Counted anew; where that fails now, what was dropped is dropped.
    let left = context.api().and_then(|api| api.diff(&sandbox.id)).map(|set| diff::all_apart(&set));
    context.output.say(&match (remaining, left) {
        (0, _) | (_, Ok(None)) => format!("nothing is left in {name}"),
        (_, Ok(Some(left))) => format!("left in {name}: {left}"),
        (_, Err(_)) => format!("left in {name}: {remaining}, ignored paths included"),
    });
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
