//! `skep history`: who approved what, when, from which sandbox.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::approval::HistoryEntry;
use crate::paths;
use crate::render::sandbox::instant;
use crate::render::table::table;
use crate::tree::Run;
use clap::Args;
use skep_types::{Approval, ApprovalKind, ApprovalState, escape};
use std::ffi::OsString;
use std::path::Path;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct History {
    /// Only approvals that touched this path
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    #[command(flatten)]
    json: Json,
}

impl Run for History {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let project = context.project_here()?;
        let start = paths::start(&context.surroundings.directory, &project);
        let read = |from: &Path| {
            self.path.as_ref().map(|word| paths::in_project(word, from, &project)).transpose()
        };
        let api = context.api()?;
        let mut approvals = api.history(&project, read(start)?.as_ref())?;
        // Paths are shown from the root, and what was shown can be typed.
        if approvals.is_empty() && start != project {
            approvals = match read(&project) {
                Ok(path) => api.history(&project, path.as_ref())?,
                Err(_) => approvals,
            };
        }
        if self.json.json {
            let entries: Vec<_> = approvals.iter().map(HistoryEntry::new).collect();
            context.output.document(&entries)?;
        } else if let (true, Some(word)) = (approvals.is_empty(), &self.path) {
            let word = escape::visible(word.as_encoded_bytes());
            context.output.say(&format!("no approval touched `{word}`"));
        } else if approvals.is_empty() {
            context.output.say("nothing was approved yet");
        } else {
            let rows: Vec<_> = approvals.iter().map(row).collect();
            let heading = ["APPROVAL", "WHAT", "STATE", "PATHS", "SANDBOX", "BY", "AT"];
            context.output.text(&table(context.output.style, &heading, &rows))?;
        }
        Ok(0)
    }
}

fn row(approval: &Approval) -> Vec<String> {
    let what = match &approval.kind {
        ApprovalKind::Approve => "approve".to_owned(),
        ApprovalKind::Undo { of } => format!("undo of {of}"),
    };
    vec![
        approval.id.to_string(),
        what,
        state(approval.state).to_owned(),
        approval.paths.len().to_string(),
        approval.sandbox_name.to_string(),
        escape::visible(approval.approver.as_bytes()),
        instant(&approval.at),
    ]
}

fn state(state: ApprovalState) -> &'static str {
    match state {
        ApprovalState::Applying => "applying",
        ApprovalState::Committed => "committed",
        ApprovalState::Applied => "applied",
        ApprovalState::Aborted => "aborted",
        ApprovalState::Undone => "undone",
        ApprovalState::NeedsAttention => "needs attention",
    }
}
