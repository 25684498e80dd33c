//! `skep events`: what happened, one line each.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Failure;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use skep_types::Event;
use skep_types::escape::visible_text;
use std::time::Duration;

/// Asked for in one go.
const PIECE: usize = 1000;
/// Between two looks when nothing happens.
const PAUSE: Duration = Duration::from_millis(250);

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Go on with what happens from now on
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct EventLine<'a> {
    sequence: u64,
    at: &'a str,
    kind: &'a str,
    sandbox: Option<&'a str>,
    exec: Option<&'a str>,
    data: &'a Value,
}

impl Run for Events {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        let mut after = 0;
        loop {
            let events = api.events(after, PIECE)?;
            for event in &events {
                after = after.max(event.sequence);
                print(context, event, self.json)?;
            }
            if events.is_empty() {
                if !self.follow {
                    return Ok(0);
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn print(context: &Context, event: &Event, json: Json) -> Result<(), Failure> {
    let sandbox = event.sandbox.as_ref().map(skep_types::SandboxId::as_str);
    let exec = event.exec.as_ref().map(skep_types::ExecId::as_str);
    if json.json {
        let (sequence, at, kind, data) = (event.sequence, &event.at, &event.kind, &event.data);
        return context.output.json_line(&EventLine { sequence, at, kind, sandbox, exec, data });
    }
    let data = if event.data.is_null() { String::new() } else { event.data.to_string() };
    let line = [event.at.as_str(), &event.kind, sandbox.unwrap_or(""), exec.unwrap_or(""), &data];
    let line: Vec<_> = line.into_iter().filter(|word| !word.is_empty()).collect();
    context.output.text(&format!("{}\n", visible_text(line.join("  ").as_bytes())))
}
