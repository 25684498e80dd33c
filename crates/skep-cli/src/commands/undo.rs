//! `skep undo`: reverses an approval (or an undo) exactly, or says what is in the way.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::approval::ApprovalDocument;
use crate::progress::Shown;
use crate::render::diff::counted;
use crate::tree::Run;
use clap::Args;
use skep_engine::api::Api;
use skep_types::{Approval, ApprovalKind, ApprovalState, Code, Problem, escape};

/// So many paths are named.
const NAMED: usize = 5;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Undo {
    /// Approval, by its whole id as `skep history` lists it (default: the newest of the project)
    #[arg(value_name = "APPROVAL")]
    approval: Option<String>,
    /// Finish it instead: for an approval that an outage left half done and that meets your own
    /// edits; the approved versions are put in place, yours are kept as backups
    #[arg(long, requires = "approval")]
    finish: bool,
    /// Give it up instead: for an approval that can be neither finished nor taken back because its
    /// journal is damaged; the project stays as it is, everything that was staged is kept
    #[arg(long, requires = "approval", conflicts_with = "finish")]
    abandon: bool,
    #[command(flatten)]
    json: Json,
}

/// The approval with that whole id: what writes into the project takes no beginning for it.
fn whole(api: &dyn Api, id: &str) -> Result<Approval, Problem> {
    let approval = api.find_approval(id).map_err(|problem| match problem.code {
        Code::NotFound => problem.hint("the whole id is wanted; `skep history` lists them"),
        _ => problem,
    })?;
    if approval.id.as_str() == id {
        return Ok(approval);
    }
    let message = format!("there is no approval `{}`", escape::visible(id.as_bytes()));
    Err(Problem::new(Code::NotFound, message)
        .hint(format!("it begins the id of `{}`; here the whole id is wanted", approval.id)))
}

/// What was undone, for whoever did not name it: of which approval and sandbox, and the first paths.
fn which(row: &Approval) -> String {
    let of = match &row.kind {
        ApprovalKind::Undo { of } => of,
        ApprovalKind::Approve => &row.id,
    };
    let named = row.paths.iter().take(NAMED).map(|applied| format!(" `{}`", applied.path));
    let named = named.collect::<Vec<_>>().join(",");
    let more = match row.paths.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(" (approval {of} of sandbox {}):{named}{more}", row.sandbox_name)
}

impl Run for Undo {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        let approval = self.approval.as_deref().map(|id| whole(api, id)).transpose()?;
        let project = match &approval {
            Some(approval) => approval.project.as_path().to_owned(),
            None => context.project_here()?,
        };
        let id = approval.as_ref().map(|approval| &approval.id);
        let shown = Shown::to(context, self.json.json);
        let report = match id {
            Some(id) if self.finish => api.finish(id)?,
            Some(id) if self.abandon => api.abandon(id)?,
            id => api.undo(id, &project)?,
        };
        drop(shown);
        if self.json.json {
            context.output.document(&ApprovalDocument::new(&report))?;
            return Ok(0);
        }
        // Taking back what an outage left half done is no undo: there is nothing to count, and nothing
        // to undo again.
        // An undo is a row of its own, and what was half done keeps its.
        // It is done, whether its row can be read or not.
        let ended = report.approval.as_ref().and_then(|id| api.find_approval(id.as_str()).ok());
        let reverted = ended.as_ref().is_some_and(|row| row.state == ApprovalState::Aborted);
        let is_undo = !self.abandon && !reverted;
        if is_undo {
            let count = counted(report.applied.len() as u64, "path was", "paths were");
            let done = if self.finish { "put in place" } else { "put back" };
            let which = ended.as_ref().map(which).unwrap_or_default();
            context.output.say(&format!("{count} {done}{which}"));
        }
        for note in &report.notes {
            context.output.say(&format!("note: {}", escape::visible_text(note.as_bytes())));
        }
        if let Some(id) = report.approval.as_ref().filter(|_| is_undo) {
            let how = if self.finish { "undo" } else { "undo the undo (apply again)" };
            context.output.say(&format!("{how} with: skep undo {id}"));
        }
        Ok(0)
    }
}
