//! `skep diff`: what a sandbox changed.

use crate::arguments::target::NameAndPaths;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::json::change_set::ChangeSetDocument;
use crate::naming;
use crate::paths;
use crate::render::diff::{self, Folded};
use crate::selection::{self, Ignored};
use crate::tree::Run;
use clap::Args;
use skep_types::{Change, ChangeSet};

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Diff {
    #[command(flatten)]
    target: NameAndPaths,
    /// Only a line per change
    #[arg(long, conflicts_with_all = ["name_only", "json"])]
    stat: bool,
    /// Only the paths, sorted; risks are said on standard error
    #[arg(long, conflicts_with = "json")]
    name_only: bool,
    /// Show ignored paths (built artefacts) too, not only their number
    #[arg(long)]
    ignored: bool,
    #[command(flatten)]
    json: Json,
}

impl Run for Diff {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        let naming::Meant { sandbox, words: typed, .. } =
            naming::sandbox_and_paths(context, &self.target, after)?;
        let set = context.api()?.diff(&sandbox.id)?;
        let (start, project) = (naming::start(context, &sandbox), sandbox.project.as_path());
        let words = paths::select(&typed, start, project, Some(&set))?;
        // A program gets everything, each with its `ignored` key; a person the number of them.
        let ignored = if self.ignored || self.json.json { Ignored::Shown } else { Ignored::Apart };
        let shown = selection::changes(&set, &words, ignored)?;
        if !typed.is_empty() && shown.is_empty() {
            return Err(naming::nothing_selected(&sandbox, &typed).into());
        }
        if self.json.json {
            context.output.document(&ChangeSetDocument::new(&set, &shown))?;
        } else {
            self.print(context, &set, &shown, typed.is_empty())?;
        }
        Ok(0)
    }
}

impl Diff {
    /// `whole`: nothing was named. What was named is shown in full.
    fn print(
        &self,
        context: &Context,
        set: &ChangeSet,
        shown: &[&Change],
        whole: bool,
    ) -> Result<(), Failure> {
        let output = &context.output;
        if self.name_only {
            // The list is for programs, so it is nothing but paths; risks stand before it, for people.
            let folded = if whole { diff::fold(set, shown) } else { Folded::nothing(shown) };
            let risks = folded.line(output.error_style, set)
                + &diff::risks(output.error_style, &folded.rest);
            if !risks.is_empty() {
                output.say(risks.trim_end());
            }
            output.pieces(|out| {
                shown.iter().try_for_each(|change| writeln!(out, "{}", change.path))
            })?;
        } else {
            let style = output.style;
            let folded = if whole { diff::fold(set, shown) } else { Folded::nothing(shown) };
            let rest = &folded.rest;
            output.pieces(|out| {
                out.write_all(diff::heading(style, set, &folded).as_bytes())?;
                match self.stat {
                    true => diff::stat(style, rest, out),
                    false => diff::unified(style, rest, out),
                }
            })?;
        }
        match whole {
            true => output.say(&diff::totals(set)),
            false => output.say(&diff::totals_of(set, shown)),
        }
        Ok(())
    }
}
