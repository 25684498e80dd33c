//! `skep conflicts`: where the project moved since the sandbox was created.

use crate::arguments::target::NameAndPaths;
use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::json::change_set::DriftView;
use crate::naming;
use crate::paths;
use crate::render::diff::counted;
use crate::render::table::table;
use crate::selection;
use crate::tree::Run;
use clap::{Args, ValueEnum};
use skep_policy::GitBooks;
use skep_types::{Code, Drift, Problem, RelPath, Sandbox, escape};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Conflicts {
    #[command(flatten)]
    target: NameAndPaths,
    /// Print one side of one PATH instead of the list
    #[arg(long, value_name = "SIDE", conflicts_with = "json")]
    side: Option<Side>,
    #[command(flatten)]
    json: Json,
}

/// The sides of a three-way merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Side {
    // As it was at create
    Base,
    // As it is in the project now
    Project,
    // As it is in the sandbox
    Sandbox,
}

impl Run for Conflicts {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        let meant = naming::sandbox_and_paths(context, &self.target, after)?;
        let (sandbox, typed) = (&meant.sandbox, &meant.words);
        if let Some(side) = self.side {
            return print_side(context, sandbox, typed, side);
        }
        let mut drift = context.api()?.conflicts(&sandbox.id)?;
        if !typed.is_empty() {
            drift = of_words(context, &meant, drift)?;
        }
        if self.json.json {
            let views: Vec<_> = drift.iter().map(DriftView::new).collect();
            context.output.document(&views)?;
            return Ok(0);
        }
        let apart = if typed.is_empty() { set_apart(context, sandbox, &mut drift)? } else { 0 };
        print_list(context, sandbox, &drift)?;
        if apart > 0 {
            let (paths, name) = (counted(apart, "path", "paths"), &sandbox.name);
            context.output.say(&format!(
                "{paths} inside .git, which git itself wrote on both sides, nobody has to solve: commits made \
                 inside come with `skep pull {name}`"
            ));
        }
        Ok(0)
    }
}

/// Takes out what git itself writes when somebody commits or looks around inside, as every review does, and counts it.
fn set_apart(context: &Context, sandbox: &Sandbox, drift: &mut Vec<Drift>) -> Result<u64, Problem> {
    let git = RelPath::parse(b".git").ok();
    if !drift.iter().any(|drift| git.as_ref().is_some_and(|git| drift.path.starts_with(git))) {
        return Ok(0);
    }
    let books = GitBooks::of(&context.api()?.diff(&sandbox.id)?.changes);
    let all = drift.len();
    drift.retain(|drift| !books.have(&drift.path));
    Ok((all - drift.len()) as u64)
}

/// What the words name of it. A word that names nothing the sandbox changed is refused: that the project did
/// not move there would read like an all-clear for a sandbox of that name.
fn of_words(
    context: &Context,
    meant: &naming::Meant,
    mut drift: Vec<Drift>,
) -> Result<Vec<Drift>, Problem> {
    let naming::Meant { sandbox, words, no_name, .. } = meant;
    let (start, project) = (naming::start(context, sandbox), sandbox.project.as_path());
    let set = context.api()?.diff(&sandbox.id)?;
    let mut named = BTreeSet::new();
    for word in words {
        let selected = selection::selector(&paths::select(
            std::slice::from_ref(word),
            start,
            project,
            Some(&set),
        )?)?;
        let path = paths::among(word, start, project, drift.iter().map(|drift| &drift.path)).ok();
        let names = |at: &RelPath| {
            selected.matches(at) || path.as_ref().is_some_and(|path| at.starts_with(path))
        };
        let found: Vec<_> = drift.iter().map(|drift| &drift.path).filter(|at| names(at)).collect();
        if found.is_empty() {
            naming::refuse_unknown(context, sandbox, &set, word, no_name.as_ref())?;
        }
        named.extend(found.into_iter().cloned());
    }
    drift.retain(|drift| named.contains(&drift.path));
    Ok(drift)
}

fn print_list(context: &Context, sandbox: &Sandbox, drift: &[Drift]) -> Result<(), Failure> {
    if drift.is_empty() {
        let name = &sandbox.name;
        context.output.say(&format!("the project did not move where {name} changed it"));
        return Ok(());
    }
    let row = |drift: &Drift| {
        let word = if drift.merges { "merges" } else { "conflict" };
        let reason = escape::visible_text(drift.reason.as_bytes());
        vec![word.to_owned(), drift.path.to_string(), reason]
    };
    let rows: Vec<_> = drift.iter().map(row).collect();
    context.output.text(&table(
        context.output.style,
        &["STATE", "PATH", "WHAT HAPPENED"],
        &rows,
    ))?;
    if drift.iter().any(|drift| !drift.merges) {
        context.output.say(&way_out(sandbox));
    }
    Ok(())
}

/// What a person can do about a conflict.
pub(crate) fn way_out(sandbox: &Sandbox) -> String {
    let name = &sandbox.name;
    format!(
        "hint: other paths can be approved by name, and of a file the hunks that do not meet (`skep approve {name} --hunk ID`); \
         `skep reject {name} --hunk ID` drops one that does; `skep reject {name} PATH` takes the project's version in (while \
         nothing runs in it), to redo the change inside; `skep cp {name}:PATH FILE` copies the sandbox's out; \
         `skep conflicts {name} PATH --side base|project|sandbox` prints a side"
    )
}

/// Text with what a terminal would act on made visible, line by line.
fn shown(bytes: &[u8]) -> String {
    let line = |line: &[u8]| match line.strip_suffix(b"\n") {
        Some(line) => escape::visible_text(line) + "\n",
        None => escape::visible_text(line),
    };
    bytes.split_inclusive(|byte| *byte == b'\n').map(line).collect()
}

fn print_side(context: &Context, sandbox: &Sandbox, typed: &[OsString], side: Side) -> Outcome {
    let [word] = typed else {
        let message = "--side wants exactly one PATH";
        return Err(Problem::new(Code::Usage, message).into());
    };
    let project = sandbox.project.as_path();
    let start = naming::start(context, sandbox);
    let path = if paths::has_two_readings(typed, start, project) {
        let set = context.api()?.diff(&sandbox.id)?;
        paths::among(word, start, project, set.changes.iter().map(|change| &change.path))?
    } else {
        paths::in_project(word, start, project)?
    };
    let [base, here, inside] = context.api()?.sides(&sandbox.id, &path)?;
    let (content, name) = match side {
        Side::Base => (base, "base"),
        Side::Project => (here, "project"),
        Side::Sandbox => (inside, "sandbox"),
    };
    match content {
        Some(bytes) if context.surroundings.terminals.stdout => {
            // A terminal would act on what the sandbox wrote; into a file or pipe go the bytes.
            context.output.text(&shown(bytes.as_bytes()))?;
            Ok(0)
        }
        Some(bytes) => {
            context.output.bytes(bytes.as_bytes())?;
            Ok(0)
        }
        None => {
            let message = format!("`{path}` has no content on the side of the {name}");
            Err(Problem::new(Code::NotFound, message).into())
        }
    }
}
