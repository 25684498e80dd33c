//! `skep gc`: cleans up, with a reason for each decision.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::render::table::table;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_engine::api::{GcDecision, GcPart, GcRequest};
use skep_types::escape::visible_text;
use skep_types::{ByteSize, Code, Problem, parse_duration};
use std::time::Duration;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Also sandboxes idle for this long (never unreviewed work)
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    older_than: Option<Duration>,
    /// Until everything together is at most this large
    #[arg(long, value_name = "S")]
    max_size: Option<ByteSize>,
    /// With --older-than or --max-size: put unreviewed work into an archive, then remove it too
    #[arg(long)]
    archive: bool,
    /// Only these jobs: sandboxes, reviewed, undo, layers, archives, trash, rows
    #[arg(long, value_name = "JOB", value_delimiter = ',', value_parser = job)]
    only: Vec<GcPart>,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct DecisionView<'a> {
    what: &'a str,
    name: &'a str,
    action: &'a str,
    reason: &'a str,
    bytes: u64,
}

impl Run for Gc {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let request = GcRequest {
            dry_run: self.dry_run,
            older_than: self.older_than,
            max_size: self.max_size,
            archive: self.archive,
            only: self.only.iter().copied().collect(),
        };
        if self.archive && self.older_than.is_none() && self.max_size.is_none() {
            let message = "`--archive` says what may be done, not with what";
            return Err(Problem::new(Code::Usage, message)
                .hint("add `--older-than D` or `--max-size S`")
                .into());
        }
        let decisions = context.api()?.gc(&request)?;
        if self.json.json {
            let views: Vec<_> = decisions.iter().map(view).collect();
            context.output.document(&views)?;
            return Ok(0);
        }
        let rows: Vec<_> = decisions.iter().map(row).collect();
        let heading = ["ACTION", "WHAT", "NAME", "SIZE", "REASON"];
        context.output.text(&table(context.output.style, &heading, &rows))?;
        let freed =
            decisions.iter().filter(|decision| matches!(&*decision.action, "remove" | "archive"));
        let freed = ByteSize(freed.map(|decision| decision.bytes).sum());
        let word = if self.dry_run { "would be freed" } else { "freed" };
        context.output.say(&format!("{freed} {word}"));
        Ok(0)
    }
}

fn job(word: &str) -> Result<GcPart, String> {
    Ok(match word {
        "sandboxes" => GcPart::Sandboxes,
        "reviewed" => GcPart::Reviewed,
        "undo" => GcPart::Undo,
        "layers" => GcPart::Layers,
        "archives" => GcPart::Archives,
        "trash" => GcPart::Trash,
        "rows" => GcPart::Rows,
        _ => {
            return Err(
                "the jobs are sandboxes, reviewed, undo, layers, archives, trash, rows".into()
            );
        }
    })
}

fn view(decision: &GcDecision) -> DecisionView<'_> {
    DecisionView {
        what: &decision.what,
        name: &decision.name,
        action: &decision.action,
        reason: &decision.reason,
        bytes: decision.bytes,
    }
}

fn row(decision: &GcDecision) -> Vec<String> {
    let safe = |text: &str| visible_text(text.as_bytes());
    vec![
        safe(&decision.action),
        safe(&decision.what),
        safe(&decision.name),
        ByteSize(decision.bytes).to_string(),
        safe(&decision.reason),
    ]
}
