//! The commands, one file each: what can be typed at the top, then what is done with it.

pub(crate) mod approve;
pub(crate) mod compare;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod conflicts;
pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod freeze;
pub(crate) mod gc;
pub(crate) mod history;
pub(crate) mod image;
pub(crate) mod kill;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod net;
pub(crate) mod providers;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod rebase;
pub(crate) mod receipt;
pub(crate) mod reject;
pub(crate) mod restore;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod show;
pub(crate) mod snapshot;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod template;
pub(crate) mod thaw;
pub(crate) mod token;
pub(crate) mod undo;
pub(crate) mod version;
pub(crate) mod worker;

use crate::context::Context;
use crate::exit::Outcome;
use crate::json::sandbox::SandboxDocument;
use skep_types::{Sandbox, SandboxState};

/// The provider that isolates nothing.
pub(crate) const SUBPROCESS: &str = "subprocess";

/// Says it where a sandbox stands in no way between its commands and the host.
pub(crate) fn warn_of_no_isolation(context: &Context, sandbox: &Sandbox) {
    if sandbox.provider != SUBPROCESS {
        return;
    }
    let what = match (context.host(), context.surroundings.user) {
        (Some(_), _) => "the command can do what the server's user can do",
        (None, 0) => "the command runs as root and can do anything on this machine",
        (None, _) => "the command can do what you can do",
    };
    let style = context.output.error_style;
    context
        .output
        .say(&format!("{} `{SUBPROCESS}` isolates nothing: {what}", style.yellow("skep:")));
}

/// How the lifecycle commands answer: one line, or the sandbox as JSON.
fn answer_with_sandbox(context: &Context, sandbox: &Sandbox, json: bool) -> Outcome {
    if json {
        context.output.document(&SandboxDocument::new(sandbox))?;
    } else {
        let how = sandbox.state_reason.as_deref().filter(|_| sandbox.state == SandboxState::Frozen);
        let how = how.map(|how| format!(" ({})", skep_types::escape::visible_text(how.as_bytes())));
        let how = how.unwrap_or_default();
        context.output.say(&format!("sandbox {} is {}{how}", sandbox.name, sandbox.state));
    }
    Ok(0)
}

#[cfg(test)]
mod tests;
