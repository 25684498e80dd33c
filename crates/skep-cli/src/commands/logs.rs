//! `skep logs`: the kept output of an exec, from any offset, also while it still runs.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::ids;
use crate::json::{base64, text_and_bytes};
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_engine::api::{LogChunk, LogStream};
use skep_types::{Code, Exec, Problem};
use std::time::Duration;

/// Asked for in one go.
const PIECE: usize = 256 << 10;
/// Between two looks at an exec that prints nothing.
const PAUSE: Duration = Duration::from_millis(100);

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Exec: an id, or 6 or more characters of its beginning (`skep ps` lists them)
    #[arg(value_name = "EXEC")]
    exec: String,
    /// Go on until the exec has ended
    #[arg(short, long)]
    follow: bool,
    /// Start at this byte of the whole output
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,
    #[command(flatten)]
    json: Json,
}

/// One line of `--json`.
#[derive(Serialize)]
struct ChunkLine {
    offset: u64,
    stream: LogStream,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b64: Option<String>,
}

impl Run for Logs {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        let exec = ids::exec(context, &self.exec)?;
        let mut place = Place { next: self.from, gap_at: None };
        let mut ended = exec.end.is_some();
        loop {
            let before = place.next;
            for chunk in api.logs(&exec.id, before, PIECE)? {
                self.print(context, &chunk, &mut place)?;
            }
            if place.next > before {
                continue;
            }
            if before == self.from && self.from > 0 {
                self.refuse_past_the_end(context, &exec)?;
            }
            // Nothing new. An end that was seen before this look means that nothing will come.
            if ended || !self.follow {
                return Ok(0);
            }
            ended = api.find_exec(exec.id.as_str())?.end.is_some();
            if !ended {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// How far the output was printed.
struct Place {
    /// The offset to ask for next.
    next: u64,
    /// Where bytes that were not kept start, once that was said. Following asks for the same
    /// place again until there is something behind the gap.
    gap_at: Option<u64>,
}

impl Logs {
    /// Nothing is there from where it was asked for: at its end, or past it?
    fn refuse_past_the_end(&self, context: &Context, exec: &Exec) -> Result<(), Problem> {
        let from = self.from;
        let Some(end) = &exec.end else {
            if !self.follow {
                let what = format!("nothing was printed from byte {from} on; the exec still runs");
                context.output.say(&what);
            }
            return Ok(());
        };
        let all = end.stats.stdout_bytes + end.stats.stderr_bytes;
        if from <= all {
            return Ok(());
        }
        let message = format!("exec `{}` has {all} bytes of output, and none at {from}", exec.id);
        Err(Problem::new(Code::Usage, message).hint(format!("`--from` is 0 to {all}")))
    }

    fn print(&self, context: &Context, chunk: &LogChunk, place: &mut Place) -> Result<(), Failure> {
        let bytes = chunk.bytes.as_bytes();
        let is_gap = chunk.stream == LogStream::Dropped;
        if is_gap && place.gap_at.replace(chunk.offset) == Some(chunk.offset) {
            return Ok(());
        }
        place.next = place.next.max(chunk.offset + bytes.len() as u64);
        if self.json.json {
            return context.output.json_line(&line(chunk));
        }
        match chunk.stream {
            LogStream::Stdout => context.output.bytes(bytes)?,
            LogStream::Stderr => {
                // Standard error may be closed; the rest is still worth printing.
                let _ = context.output.error_bytes(bytes);
            }
            LogStream::Dropped => context.output.warn(&format!(
                "output from byte {} on was over the limit and not kept",
                chunk.offset
            )),
        }
        Ok(())
    }
}

fn line(chunk: &LogChunk) -> ChunkLine {
    let bytes = chunk.bytes.as_bytes();
    let (text, exact) = text_and_bytes(bytes);
    let is_text = exact.is_none();
    ChunkLine {
        offset: chunk.offset,
        stream: chunk.stream,
        text: is_text.then_some(text),
        b64: (!is_text).then(|| base64(bytes)),
    }
}
