//! `skep ps`: the execs of a sandbox, running and ended.

use crate::arguments::target::Name;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::exec::ExecEntry;
use crate::naming;
use crate::render::sandbox::instant;
use crate::render::summary::took;
use crate::render::table::{Cut, fitted};
use crate::tree::Run;
use clap::Args;
use skep_types::{Exec, ExecEnd};

/// How much of a command is shown.
const WIDTH: usize = 60;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    json: Json,
}

impl Run for Ps {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sandbox = naming::sandbox(context, &self.name)?;
        let execs = context.api()?.execs(&sandbox.id)?;
        if self.json.json {
            let entries: Vec<_> = execs.iter().map(ExecEntry::new).collect();
            context.output.document(&entries)?;
        } else {
            let rows: Vec<_> = execs.iter().map(row).collect();
            let heading = ["EXEC", "STATE", "TIME", "STARTED", "COMMAND"];
            let output = &context.output;
            let cuts = [(4, Cut::Right)];
            output.text(&fitted(output.style, output.columns, &heading, rows, &cuts))?;
        }
        Ok(0)
    }
}

fn row(exec: &Exec) -> Vec<String> {
    vec![
        exec.id.to_string(),
        exec.end.as_ref().map_or_else(|| "running".to_owned(), ended),
        exec.end.as_ref().map(took).unwrap_or_default(),
        instant(&exec.started_at),
        command(exec),
    ]
}

fn ended(end: &ExecEnd) -> String {
    format!("{} {}", end.reason, end.exit_code)
}

/// The command in one line, every word made safe, cut where it gets long.
pub(crate) fn command(exec: &Exec) -> String {
    let words: Vec<_> = exec.spec.argv.iter().map(ToString::to_string).collect();
    let line = words.join(" ");
    if line.chars().count() <= WIDTH {
        return line;
    }
    line.chars().take(WIDTH - 1).chain(['…']).collect()
}
