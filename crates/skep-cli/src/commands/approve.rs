//! `skep approve`: applies changes to the project, bound to the change set that was looked at.

use crate::arguments::target::NameAndPaths;
use crate::arguments::{AfterDashes, Json};
use crate::asking;
use crate::context::{Context, show_path};
use crate::exit::Outcome;
use crate::json::approval::ApprovalDocument;
use crate::naming;
use crate::paths;
use crate::render::diff::{self, Folded, counted};
use crate::render::summary;
use crate::selection::{self, Ignored};
use crate::tree::Run;
use clap::Args;
use skep_engine::api::{ApproveReport, ApproveRequest, CommitRequest};
use skep_types::{
    ByteString, ChangeSet, ChangeSetDigest, Code, HunkId, Problem, Sandbox, Selection, escape,
};
use std::ffi::OsString;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Approve {
    #[command(flatten)]
    target: NameAndPaths,
    /// Only this hunk, as `skep diff` shows its id (may be repeated)
    #[arg(long, value_name = "ID")]
    hunk: Vec<HunkId>,
    /// Refuse if the change set is another one than this
    #[arg(long, value_name = "D")]
    digest: Option<String>,
    /// Say what would be applied, change nothing
    #[arg(long)]
    dry_run: bool,
    /// A risky path that is meant (may be repeated)
    #[arg(long, value_name = "PATH")]
    allow_risky: Vec<OsString>,
    /// Make a commit of what is applied
    #[arg(long, requires = "message")]
    commit: bool,
    /// Message of the commit
    #[arg(short, long, value_name = "MSG", requires = "commit")]
    message: Option<String>,
    /// Undo everything if no commit can be made (otherwise the changes stay applied)
    #[arg(long, requires = "commit")]
    or_undo: bool,
    /// Apply only if this command succeeds in a fork of the sandbox
    #[arg(long, value_name = "CMD")]
    check: Option<String>,
    /// Ignored paths (built artefacts) too
    #[arg(long)]
    ignored: bool,
    #[command(flatten)]
    json: Json,
}

impl Run for Approve {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        let (sandbox, typed) = naming::sandbox_and_paths(context, &self.target, after)?;
        let request = self.request(context, &sandbox, &typed)?;
        let report = context.api()?.approve(&sandbox.id, &request)?;
        if self.json.json {
            context.output.document(&ApprovalDocument::new(&report))?;
        } else {
            say_report(context, &sandbox, &report);
        }
        match &report.approval {
            // The apply stands, but not all that was asked for was done.
            Some(id) if self.commit && report.commit.is_none() => {
                if !self.json.json {
                    context.output.always(&format!(
                        "hint: the apply stands; commit the files with git, or take it back with: \
                         skep undo {id}"
                    ));
                }
                Ok(Code::Internal.exit_code())
            }
            _ => Ok(0),
        }
    }
}

impl Approve {
    fn request(
        &self,
        context: &Context,
        sandbox: &Sandbox,
        typed: &[OsString],
    ) -> Result<ApproveRequest, Problem> {
        let (start, project) = (naming::start(context, sandbox), sandbox.project.as_path());
        let reviewed =
            self.digest.as_deref().map(|text| parse_digest(text, sandbox)).transpose()?;
        let named = [typed, &self.allow_risky].concat();
        let set = if reviewed.is_none() || paths::has_two_readings(&named, start, project) {
            Some(context.api()?.diff(&sandbox.id)?)
        } else {
            None
        };
        let words = paths::select(typed, start, project, set.as_ref())?;
        let digest = match (reviewed, &set) {
            (None, Some(set)) => Some(self.look(context, sandbox, set, typed, &words)?),
            (reviewed, _) => reviewed,
        };
        Ok(ApproveRequest {
            selection: Selection { paths: words, hunks: self.hunk.clone(), ignored: self.ignored },
            digest,
            dry_run: self.dry_run,
            allow_risky: paths::select(&self.allow_risky, start, project, set.as_ref())?,
            commit: self
                .message
                .clone()
                .map(|message| CommitRequest { message, or_undo: self.or_undo }),
            check: self.check.clone(),
        })
    }

    /// Shows what is there, asks where there is somebody to ask, and returns the digest of what
    /// was shown: an approval is of that and of nothing newer.
    fn look(
        &self,
        context: &Context,
        sandbox: &Sandbox,
        set: &ChangeSet,
        typed: &[OsString],
        words: &[ByteString],
    ) -> Result<ChangeSetDigest, Problem> {
        let ignored = if self.ignored { Ignored::Shown } else { Ignored::Apart };
        let selected = selection::changes(set, words, ignored)?;
        if !typed.is_empty() && selected.is_empty() {
            return Err(naming::nothing_selected(sandbox, typed));
        }
        if !self.json.json {
            let listed =
                if typed.is_empty() { diff::fold(&selected) } else { Folded::nothing(&selected) };
            let text = summary::before_approval(context.output.error_style, set, &listed);
            context.output.say(text.trim_end());
        }
        let everything = typed.is_empty() && self.hunk.is_empty();
        if everything && !self.json.json && !self.dry_run && !selected.is_empty() {
            let count = counted(selected.len() as u64, "change", "changes");
            let project = show_path(sandbox.project.as_path());
            let question = format!("apply {count} of {} to {project}?", set.sandbox);
            asking::ask(context, &question, "not approved; nothing was changed")?;
        }
        Ok(set.digest)
    }
}

/// A digest that is none cannot be that of the change set: the answer is the one for another
/// digest, not for a mistake in the command line.
fn parse_digest(text: &str, sandbox: &Sandbox) -> Result<ChangeSetDigest, Problem> {
    text.parse().map_err(|_| {
        let message = format!(
            "the change set of sandbox `{}` is not `{}`",
            sandbox.name,
            escape::visible(text.as_bytes())
        );
        Problem::new(Code::DigestMismatch, message)
            .hint(format!("look again: skep diff {}", sandbox.name))
    })
}

/// What an approval, or an undo, did.
pub(crate) fn say_report(context: &Context, sandbox: &Sandbox, report: &ApproveReport) {
    let output = &context.output;
    let count = counted(report.applied.len() as u64, "path", "paths");
    match &report.approval {
        Some(id) => output.say(&format!("applied {count} (approval {id})")),
        None => output.say(&format!("{count} would be applied; nothing was changed")),
    }
    for note in &report.notes {
        output.say(&format!("note: {}", escape::visible_text(note.as_bytes())));
    }
    if let Some(commit) = &report.commit {
        output.say(&format!("commit {commit}"));
    }
    if report.remaining > 0 {
        let left = counted(report.remaining, "change is", "changes are");
        output.say(&format!(
            "{left} left in {} ({} ignored)",
            sandbox.name, report.remaining_ignored
        ));
    }
    if let Some(id) = &report.approval {
        output.say(&format!("undo with: skep undo {id}"));
    }
}
