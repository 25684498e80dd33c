//! `skep rm`: deletes sandboxes; unreviewed changes need `--discard`.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::naming;
use crate::render::diff::counted;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_types::{Code, Problem, SandboxState};

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Sandboxes: whole names or ids (default: the project's newest, but not with --discard)
    #[arg(value_name = "NAME", conflicts_with = "sandbox")]
    names: Vec<String>,
    /// The same, as an option
    #[arg(short, long, value_name = "NAME")]
    sandbox: Option<String>,
    /// Also with unreviewed changes, which are then lost
    #[arg(long)]
    discard: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct RmDocument {
    removed: Vec<String>,
}

impl Run for Rm {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        // All are found before the first one is deleted: a mistyped name changes nothing.
        let sandboxes = if self.names.is_empty() {
            let sandbox = naming::whole_or_newest(context, self.sandbox.as_deref())?;
            // In a script, the newest is an earlier one as soon as a step before has failed.
            if self.discard && self.sandbox.is_none() {
                let message = "`--discard` wants the name of what is thrown away";
                let hint = format!("if you mean it: skep rm --discard {}", sandbox.name);
                return Err(Problem::new(Code::Usage, message).hint(hint).into());
            }
            vec![sandbox]
        } else {
            let found = self.names.iter().map(|name| naming::whole_or_newest(context, Some(name)));
            found.collect::<Result<_, _>>()?
        };
        let mut removed = Vec::new();
        for sandbox in sandboxes {
            // Removing is what was asked for; that the count is not to be had does not stop it.
            let execs = api.execs(&sandbox.id).unwrap_or_default();
            let running = execs.iter().filter(|exec| exec.end.is_none()).count() as u64;
            // What was set apart in the review goes too, and not without a word.
            let apart = match sandbox.state {
                SandboxState::Approved if !self.discard => {
                    api.diff(&sandbox.id).map_or(0, |set| set.changes.len() as u64)
                }
                _ => 0,
            };
            api.remove(&sandbox.id, self.discard)?;
            if running > 0 {
                let count = counted(running, "running exec", "running execs");
                context.output.say(&format!("ended {count}"));
            }
            let with = match apart {
                0 => String::new(),
                _ => format!(
                    " with {} that {} set apart (ignored, or git's own)",
                    counted(apart, "path", "paths"),
                    if apart == 1 { "was" } else { "were" }
                ),
            };
            context.output.say(&format!("sandbox {} was removed{with}", sandbox.name));
            removed.push(sandbox.name.to_string());
        }
        if self.json.json {
            context.output.document(&RmDocument { removed })?;
        }
        Ok(0)
    }
}
