//! `skep kill`: ends an exec with everything it started.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::ids;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;

const SIGKILL: i32 = 9;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// Exec: an id, or 6 or more characters of its beginning (`skep ps` lists them)
    #[arg(value_name = "EXEC")]
    exec: String,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct KillDocument<'a> {
    exec: &'a str,
    killed: bool,
}

impl Run for Kill {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        let exec = ids::exec(context, &self.exec)?;
        let running = exec.end.is_none();
        if running {
            api.kill(&exec.id, SIGKILL)?;
        }
        if self.json.json {
            context.output.document(&KillDocument { exec: exec.id.as_str(), killed: running })?;
        } else if running {
            context.output.say(&format!("exec {} was killed", exec.id));
        } else {
            context.output.say(&format!("exec {} had already ended", exec.id));
        }
        Ok(0)
    }
}
