//! `skep version`, which is also how the start of the program is measured.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::output::Output;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Version {
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct VersionDocument {
    name: &'static str,
    version: &'static str,
}

/// Whether the line is `skep version` or `skep --version` and nothing else: then no parser and no
/// surroundings are needed.
pub(crate) fn is_all_that_was_asked(line: &[OsString]) -> bool {
    matches!(line, [_, word] if word == "version" || word == "--version" || word == "-V")
}

/// Prints it.
pub(crate) fn print(output: &Output) -> Outcome {
    output.text(concat!("skep ", env!("CARGO_PKG_VERSION"), "\n"))?;
    Ok(0)
}

impl Run for Version {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        if self.json.json {
            context.output.document(&VersionDocument { name: "skep", version: VERSION })?;
            return Ok(0);
        }
        print(&context.output)
    }
}
