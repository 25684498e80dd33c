//! `skep diff`: what a sandbox changed.

use crate::arguments::target::NameAndPaths;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::json::change_set::ChangeSetDocument;
use crate::naming;
use crate::pager;
use crate::paths;
use crate::render::diff::{self, Folded};
use crate::selection::{self, Ignored};
use crate::tree::Run;
use clap::Args;
use skep_types::{Change, ChangeSet};
use std::ffi::OsString;

/// What can be typed.
#[derive(Debug, Default, Args)]
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

/// `skep diff` and `skep diff NAME` need no parser. Any other line is given back.
pub(crate) fn without_options(
    mut line: Vec<OsString>,
) -> Result<(Diff, AfterDashes), Vec<OsString>> {
    let plain = |word: &OsString| !word.is_empty() && !word.as_encoded_bytes().starts_with(b"-");
    match line.as_slice() {
        [_, word, names @ ..] if word == "diff" && names.len() <= 1 && names.iter().all(plain) => {
            let target = NameAndPaths { words: line.split_off(2), sandbox: None };
            Ok((Diff { target, ..Diff::default() }, AfterDashes(None)))
        }
        _ => Err(line),
    }
}

impl Run for Diff {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        let mut meant = naming::unsaid_sandbox_and_paths(context, &self.target, after)?;
        if !self.heading_is_seen(context) {
            meant = meant.say(context);
        }
        let naming::Meant { sandbox, words: typed, no_name, .. } = meant;
        let set = context.api()?.diff(&sandbox.id)?;
        let (start, project) = (naming::start(context, &sandbox), sandbox.project.as_path());
        let words = paths::select(&typed, start, project, Some(&set))?;
        // A program gets everything, each with its `ignored` key; a person the number of them.
        let ignored = if self.ignored || self.json.json { Ignored::Shown } else { Ignored::Apart };
        let shown = selection::changes(&set, &words, ignored)?;
        if let (true, [word, ..]) = (shown.is_empty(), typed.as_slice()) {
            naming::refuse_unknown(context, &sandbox, &set, word, no_name.as_ref())?;
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
    /// Whether the name of the sandbox, which is the first thing that is printed, stands where errors do.
    fn heading_is_seen(&self, context: &Context) -> bool {
        let terminals = context.surroundings.terminals;
        !self.json.json && !self.name_only && terminals.stdout && terminals.stderr
    }

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
            pager::pages(context, |out| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_options_means_what_the_parser_says() {
        use clap::FromArgMatches as _;
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for text in ["skep diff", "skep diff name", "skep diff src/*.rs"] {
            let (short, after) = without_options(words(text)).unwrap();
            let command = Diff::augment_args(clap::Command::new("diff"));
            let parsed = command.try_get_matches_from(words(text).split_off(1)).unwrap();
            let parsed = Diff::from_arg_matches(&parsed).unwrap();
            assert_eq!(format!("{short:?}"), format!("{parsed:?}"));
            assert_eq!(after, crate::arguments::Dashes::Cut.cut(words(text)).1);
        }
        for text in ["skep diff -q", "skep diff --", "skep diff a b", "skep diff -- a", "skep ls"] {
            assert_eq!(without_options(words(text)).unwrap_err(), words(text));
        }
    }
}
