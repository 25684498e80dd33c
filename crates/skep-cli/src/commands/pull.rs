//! `skep pull`: commits made inside arrive as references of the project's repository.

use crate::arguments::target::Name;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::naming;
use crate::render::diff::counted;
use crate::tree::Run;
use clap::Args;
use skep_types::escape;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Pull {
    #[command(flatten)]
    name: Name,
    /// Move this branch of the project forward too (not the one that is checked out)
    #[arg(long, value_name = "B")]
    branch: Option<String>,
    #[command(flatten)]
    json: Json,
}

impl Run for Pull {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::sandbox(context, &self.name)?;
        let report = context.api()?.pull(&sandbox.id, self.branch.as_deref())?;
        for entry in report.refs.iter().filter(|entry| !entry.deletes_hidden.is_empty()) {
            let name = escape::visible(entry.name.as_bytes());
            let paths: Vec<String> =
                entry.deletes_hidden.iter().map(|path| format!("`{path}`")).collect();
            context.output.warn(&format!(
                "`{name}` deletes {}, hidden inside: git there saw no such file; merge it with \
                 `git merge --no-commit --no-ff`, then `git restore -SW -- PATH`",
                paths.join(", ")
            ));
        }
        if self.json.json {
            context.output.document(&report)?;
            return Ok(0);
        }
        let mut text = String::new();
        for entry in report.refs.iter().filter(|entry| entry.changed) {
            let (short, name) = (&entry.commit[..12], escape::visible(entry.name.as_bytes()));
            text.push_str(&format!("{short} {name}\n"));
        }
        context.output.text(&text)?;
        let moved = report.refs.iter().filter(|entry| entry.changed).count() as u64;
        match moved {
            0 => context.output.say("nothing new"),
            moved => {
                let count = counted(moved, "reference was moved", "references were moved");
                context.output.say(&match report.objects {
                    0 => format!("{count}; the project had their commits already"),
                    _ => count,
                });
            }
        }
        Ok(0)
    }
}
