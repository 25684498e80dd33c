//! `skep stats`: how many sandboxes there are, what they were promised and what they use.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::Args;
use skep_engine::{PoolFigures, Stats as Sums};
use skep_types::ByteSize;
use std::fmt::Write as _;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    json: Json,
}

impl Run for Stats {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let sums = context.api()?.stats()?;
        if self.json.json {
            context.output.document(&sums)?;
        } else {
            context.output.text(&text(&sums))?;
        }
        Ok(0)
    }
}

fn text(sums: &Sums) -> String {
    let states: Vec<_> =
        sums.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let states =
        if states.is_empty() { String::new() } else { format!(" ({})", states.join(", ")) };
    let promised =
        |size: u64| if size == 0 { "–".to_owned() } else { ByteSize(size).to_string() };
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<17}{value}");
    };
    line("sandboxes", format!("{}{states}", sums.promised.sandboxes));
    line("execs running", sums.execs.to_string());
    line("changes kept", ByteSize(sums.changed).to_string());
    line("memory promised", promised(sums.promised.memory));
    line("disk promised", promised(sums.promised.disk));
    for (name, pool) in &sums.pools {
        let PoolFigures { size, waiting, claimed } = pool;
        line(&format!("pool {name}"), format!("{waiting} of {size} waiting, {claimed} given away"));
    }
    text
}
