//! `skep cp`: files and directories into a workspace and out of it.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::naming;
use crate::paths;
use crate::render::diff::counted;
use crate::tree::Run;
use clap::Args;
use skep_types::{Code, Problem, RelPath, Sandbox, SandboxName, escape};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Cp {
    /// What to copy: a path here, or NAME:PATH for one of a sandbox's project
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Where to: the other of the two; into it, if it is a directory
    #[arg(value_name = "DST")]
    target: OsString,
    #[command(flatten)]
    json: Json,
}

/// One side of a copy.
enum Side {
    Here(PathBuf),
    Inside(Box<Sandbox>, RelPath),
}

impl Run for Cp {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        let report = match (side(context, &self.source)?, side(context, &self.target)?) {
            (Side::Inside(sandbox, path), Side::Here(to)) => {
                api.copy_out(&sandbox.id, &path, &to)?
            }
            (Side::Here(from), Side::Inside(sandbox, path)) => {
                api.copy_in(&sandbox.id, &from, &path)?
            }
            (Side::Here(_), Side::Here(_)) => {
                return Err(Problem::new(Code::Usage, "neither side is in a sandbox")
                    .hint("name one as NAME:PATH")
                    .into());
            }
            (Side::Inside(..), Side::Inside(..)) => {
                return Err(Problem::new(Code::Usage, "both sides are in a sandbox")
                    .hint("copy out first, then in")
                    .into());
            }
        };
        if self.json.json {
            context.output.document(&report)?;
            return Ok(0);
        }
        let count = counted(report.entries, "entry", "entries");
        context.output.say(&format!("copied {count}, {} bytes", report.bytes));
        for skipped in &report.skipped {
            let skipped = escape::visible_text(skipped.as_bytes());
            context.output.say(&format!("note: left out: {skipped}"));
        }
        Ok(0)
    }
}

/// `NAME:PATH` if a sandbox can be called so (a slash before the colon makes it a path), else a path.
fn side(context: &Context, word: &OsStr) -> Result<Side, Problem> {
    let bytes = word.as_bytes();
    let cut = bytes.iter().position(|byte| *byte == b':');
    let name = cut.and_then(|at| std::str::from_utf8(&bytes[..at]).ok());
    match (name, cut) {
        (Some(name), Some(at)) if SandboxName::parse(name).is_ok() => {
            let sandbox = naming::named_or_newest(context, Some(name))?;
            let project = sandbox.project.as_path();
            let path = paths::in_project(OsStr::from_bytes(&bytes[at + 1..]), project, project)?;
            Ok(Side::Inside(Box::new(sandbox), path))
        }
        _ => {
            let word = Path::new(word);
            if word.is_relative() {
                context.surroundings.refuse_gone()?;
            }
            Ok(Side::Here(context.surroundings.directory.join(word)))
        }
    }
}
