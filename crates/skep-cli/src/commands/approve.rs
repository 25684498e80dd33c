//! `skep approve`: applies changes to the project, bound to the change set that was looked at.

use crate::arguments::target::NameAndPaths;
use crate::arguments::{AfterDashes, Json};
use crate::asking;
use crate::context::{Context, show_path};
use crate::exit::Outcome;
use crate::json::approval::ApprovalDocument;
use crate::naming::{self, Meant};
use crate::paths;
use crate::progress::Shown;
use crate::render::diff::{self, Folded, counted};
use crate::render::summary::{self, About};
use crate::selection::{self, Ignored};
use crate::tree::Run;
use clap::Args;
use skep_engine::api::{ApproveReport, ApproveRequest, CommitRequest};
use skep_policy::GitBooks;
use skep_types::{
    Change, ChangeKind, ChangeSet, Code, HunkId, Problem, RelPath, Reviewed, Sandbox, Selection,
    escape,
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
    /// Refuse if the change set, or what it would be merged with, is another one than this
    #[arg(long, value_name = "D")]
    digest: Option<String>,
    /// Say what would be applied, change nothing
    #[arg(long)]
    dry_run: bool,
    /// A risky path that is meant (may be repeated); what is `block` only by its own path, each
    #[arg(long, value_name = "PATH")]
    allow_risky: Vec<OsString>,
    /// Make a commit of what is applied
    #[arg(long, requires = "message")]
    commit: bool,
    /// Message of the commit; `{sandbox}` in it is the name, `{files}` the paths
    #[arg(short, long, value_name = "MSG", requires = "commit")]
    message: Option<String>,
    /// Undo everything if no commit can be made (otherwise the changes stay applied)
    #[arg(long, requires = "commit")]
    or_undo: bool,
    /// Apply only if this command succeeds in a fork of the sandbox
    #[arg(long, value_name = "CMD", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    check: Option<String>,
    /// Ignored paths (built artefacts) too
    #[arg(long)]
    ignored: bool,
    #[command(flatten)]
    json: Json,
}

impl Run for Approve {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        let meant = naming::whole_and_paths(context, &self.target, after)?;
        let (request, set) = self.request(context, &meant)?;
        let sandbox = meant.sandbox;
        let shown = Shown::to(context, self.json.json);
        let report = context.api()?.approve(&sandbox.id, &request)?;
        drop(shown);
        if self.json.json {
            context.output.document(&ApprovalDocument::new(&report))?;
        } else {
            self.say_report(context, &sandbox, &report, set.as_ref());
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
        meant: &Meant,
    ) -> Result<(ApproveRequest, Option<ChangeSet>), Problem> {
        let Meant { sandbox, words: typed, no_name, .. } = meant;
        let (start, project) = (naming::start(context, sandbox), sandbox.project.as_path());
        let reviewed =
            self.digest.as_deref().map(|text| parse_digest(text, sandbox)).transpose()?;
        let named = [&typed[..], &self.allow_risky].concat();
        // With a digest this look is for the summary and for words with two readings; without one it is
        // the review.
        let set = match reviewed.is_none()
            || !self.json.json
            || no_name.is_some()
            || paths::has_two_readings(&named, start, project)
        {
            true => Some(context.api()?.diff(&sandbox.id)?),
            false => None,
        };
        if let (Some(no_name), Some(set)) = (no_name, &set) {
            no_name.check(context, sandbox, set)?;
        }
        let words = paths::select(typed, start, project, set.as_ref())?;
        let mut request = ApproveRequest {
            selection: Selection { paths: words, hunks: self.hunk.clone(), ignored: self.ignored },
            digest: reviewed.map(|reviewed| reviewed.digest),
            beside: reviewed.and_then(|reviewed| reviewed.beside),
            dry_run: self.dry_run,
            allow_risky: paths::select(&self.allow_risky, start, project, set.as_ref())?,
            commit: self
                .message
                .clone()
                .map(|message| CommitRequest { message, or_undo: self.or_undo }),
            check: self.check.clone(),
        };
        // With another digest than the typed one there is nothing to show: it will be refused.
        let fits = |set: &&ChangeSet| reviewed.is_none_or(|one| one.digest == set.digest);
        if let Some(set) = set.as_ref().filter(fits) {
            if reviewed.is_none() {
                (request.digest, request.beside) = (Some(set.digest), set.beside);
            }
            self.look(context, sandbox, set, typed, &request)?;
        }
        Ok((request, set))
    }

    /// Shows exactly what will be applied, and asks where there is somebody to ask and no digest was
    /// typed. The approval is bound to the digest of what was shown, and to nothing newer.
    fn look(
        &self,
        context: &Context,
        sandbox: &Sandbox,
        set: &ChangeSet,
        typed: &[OsString],
        request: &ApproveRequest,
    ) -> Result<(), Problem> {
        let ignored = if self.ignored { Ignored::Shown } else { Ignored::Apart };
        let selected = selection::changes(set, &request.selection.paths, ignored)?;
        if !typed.is_empty() && selected.is_empty() {
            return Err(naming::nothing_selected(sandbox, typed));
        }
        if self.json.json {
            return Ok(());
        }
        let style = context.output.error_style;
        let taken = match request.selection.is_everything() {
            true => everything(set, &selected, request),
            false => {
                let trial = ApproveRequest { dry_run: true, check: None, ..request.clone() };
                match context.api()?.approve(&sandbox.id, &trial) {
                    Ok(report) => taken_over(set, &report),
                    Err(problem) => {
                        let shown = Folded::nothing(&selected);
                        let risks = summary::risks(style, set, &shown, About::Taken);
                        if !risks.is_empty() {
                            context.output.say(risks.trim_end());
                        }
                        return Err(problem);
                    }
                }
            }
        };
        let about = match request.selection.is_everything() {
            true => About::All,
            false => About::Taken,
        };
        let text = summary::before_approval(style, set, about, &taken, &self.hunk);
        context.output.say(text.trim_end());
        let asks = self.digest.is_none() && !self.dry_run && !taken.is_empty();
        if request.selection.is_everything() && asks {
            // What will be refused is refused before anybody has answered.
            if asking::somebody(context) {
                let trial = ApproveRequest { dry_run: true, check: None, ..request.clone() };
                context.api()?.approve(&sandbox.id, &trial)?;
            }
            let count = counted(taken.len() as u64, "change", "changes");
            let project = show_path(sandbox.project.as_path());
            let question = format!("apply {count} of {} to {project}?", set.sandbox);
            asking::ask(context, &question, "not approved; nothing was changed")?;
        }
        Ok(())
    }

    /// What an approval did, counted as it was shown before.
    fn say_report(
        &self,
        context: &Context,
        sandbox: &Sandbox,
        report: &ApproveReport,
        set: Option<&ChangeSet>,
    ) {
        let output = &context.output;
        let count = match set {
            Some(set) => counted(taken_over(set, report).len() as u64, "change", "changes"),
            None => counted(report.applied.len() as u64, "path", "paths"),
        };
        match &report.approval {
            Some(id) => output.say(&format!("applied {count} (approval {id})")),
            None if self.dry_run => {
                output.say(&format!("{count} would be applied; nothing was changed"));
            }
            None => output.say("there was nothing to apply; nothing was changed"),
        }
        for note in &report.notes {
            output.say(&format!("note: {}", escape::visible_text(note.as_bytes())));
        }
        if let Some(commit) = &report.commit {
            output.say(&format!("commit {commit}"));
        }
        let in_git = set.map_or(0, |set| {
            let taken = taken_over(set, report);
            diff::in_git(set).filter(|change| !taken.contains(change)).count() as u64
        });
        let changes = report.remaining.saturating_sub(in_git);
        if let Some(left) = diff::apart(changes, in_git, report.remaining_ignored) {
            output.say(&format!("left in {}: {left}", sandbox.name));
        }
        if let Some(id) = &report.approval {
            output.say(&format!("undo with: skep undo {id}"));
        }
    }
}

/// Everything that an approval without words takes over.
fn everything<'a>(
    set: &ChangeSet,
    selected: &[&'a Change],
    request: &ApproveRequest,
) -> Vec<&'a Change> {
    let books = GitBooks::of(&set.changes);
    let meant = |change: &Change| {
        let bytes = change.path.as_bytes();
        request.allow_risky.iter().any(|word| word.as_bytes() == bytes)
    };
    let applied = |change: &&&Change| {
        change.kind != ChangeKind::Special && (!books.hold(change) || meant(change))
    };
    selected.iter().filter(applied).copied().collect()
}

/// The changes that were applied, or would be: directories made for them are not counted.
fn taken_over<'a>(set: &'a ChangeSet, report: &ApproveReport) -> Vec<&'a Change> {
    let hit = |path: &RelPath| report.applied.binary_search(path).is_ok();
    let taken =
        |change: &&Change| hit(&change.path) || change.renamed_from.as_ref().is_some_and(hit);
    set.changes.iter().filter(taken).collect()
}

/// A digest that is none cannot be that of the change set: the answer is the one for another
/// digest, not for a mistake in the command line.
fn parse_digest(text: &str, sandbox: &Sandbox) -> Result<Reviewed, Problem> {
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
