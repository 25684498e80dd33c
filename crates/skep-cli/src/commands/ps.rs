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
use skep_types::{EndReason, Exec, ExecEnd};

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

/// The number is an exit code where there is one of its own, and a signal's where one ended it.
fn ended(end: &ExecEnd) -> String {
    match (end.reason, end.signal) {
        (EndReason::Exited | EndReason::StartFailed, _) => {
            format!("{} {}", end.reason, end.exit_code)
        }
        (EndReason::Signal, Some(signal)) => format!("{} {signal}", end.reason),
        _ => end.reason.to_string(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn a_signal_is_told_by_its_number_and_not_by_an_exit_code() {
        let end =
            |reason, exit_code, signal| ended(&ExecEnd { reason, signal, ..fake::end(exit_code) });
        assert_eq!(end(EndReason::Exited, 3, None), "exited 3");
        assert_eq!(end(EndReason::Signal, 130, Some(2)), "signal 2");
        assert_eq!(end(EndReason::Killed, 137, Some(9)), "killed");
        assert_eq!(end(EndReason::Oom, 137, Some(9)), "oom");
        assert_eq!(end(EndReason::StartFailed, 127, None), "start_failed 127");
    }
}
