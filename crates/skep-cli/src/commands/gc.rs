//! `skep gc`: cleans up, with a reason for each decision.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::render::table::table;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_engine::api::{GcDecision, GcRequest};
use skep_types::escape::visible_text;
use skep_types::{ByteSize, parse_duration};
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
        };
        let decisions = context.api()?.gc(&request)?;
        if self.json.json {
            let views: Vec<_> = decisions.iter().map(view).collect();
            context.output.document(&views)?;
            return Ok(0);
        }
        let rows: Vec<_> = decisions.iter().map(row).collect();
        let heading = ["ACTION", "WHAT", "NAME", "SIZE", "REASON"];
        context.output.text(&table(context.output.style, &heading, &rows))?;
        let freed = decisions.iter().filter(|decision| decision.action == "remove");
        let freed = ByteSize(freed.map(|decision| decision.bytes).sum());
        let word = if self.dry_run { "would be freed" } else { "freed" };
        context.output.say(&format!("{freed} {word}"));
        Ok(0)
    }
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
