//! `skep history`: who approved what, when, from which sandbox.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::approval::HistoryEntry;
use crate::paths;
use crate::render::sandbox::{day, instant};
use crate::render::style::Style;
use crate::render::table::{Cut, fits, fitted, table};
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
            let output = &context.output;
            output.text(&text(output.style, output.columns, &approvals))?;
        }
        Ok(0)
    }
}

const HEADING: [&str; 7] = ["APPROVAL", "WHAT", "STATE", "PATHS", "SANDBOX", "BY", "AT"];

/// The table, for a terminal of so many columns, if it is one. Ids stay whole: `undo` wants all of one.
fn text(style: Style, columns: Option<usize>, approvals: &[Approval]) -> String {
    let rows = |row: fn(&Approval) -> Vec<String>| approvals.iter().map(row).collect::<Vec<_>>();
    for form in [row, row_without_undone] {
        let rows = rows(form);
        if fits(columns, &HEADING, &rows) {
            return table(style, &HEADING, &rows);
        }
    }
    let cuts = [(4, Cut::Right), (5, Cut::Right)];
    fitted(style, columns, &HEADING, rows(narrow_row), &cuts)
}

/// What was undone is seen by its state.
fn row_without_undone(approval: &Approval) -> Vec<String> {
    let mut cells = row(approval);
    if let ApprovalKind::Undo { .. } = approval.kind {
        cells[1] = "undo".to_owned();
    }
    cells
}

/// And the day is enough.
fn narrow_row(approval: &Approval) -> Vec<String> {
    let mut cells = row_without_undone(approval);
    cells[6] = day(&approval.at);
    cells
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn the_history_fits_the_terminal_and_is_whole_elsewhere() {
        let approve = fake::approval("calm-petal-920");
        let of = approve.id.clone();
        let undo = Approval { kind: ApprovalKind::Undo { of: of.clone() }, ..approve.clone() };
        let approvals = [undo, approve];
        let narrow = text(Style::PLAIN, Some(80), &approvals);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains(&format!("{of}  undo ")), "{narrow}");
        let medium = text(Style::PLAIN, Some(100), &approvals);
        assert!(
            medium.contains(&format!("{of}  undo ")) && medium.contains("21:00:00Z"),
            "{medium}"
        );
        let wide = text(Style::PLAIN, Some(120), &approvals);
        assert_eq!(wide, text(Style::PLAIN, None, &approvals));
        assert!(wide.contains(&format!("undo of {of}")) && wide.contains("21:00:00Z"), "{wide}");
    }
}
