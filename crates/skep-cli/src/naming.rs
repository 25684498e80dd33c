//! Which sandbox is meant, by the conventions of CLI.md.

use crate::arguments::AfterDashes;
use crate::arguments::target::{Name, NameAndPaths};
use crate::context::{Context, show_path};
use crate::paths;
use crate::selection::{self, Ignored};
use skep_engine::api::{ListFilter, is_called};
use skep_types::{ChangeSet, Code, Problem, Sandbox, SandboxName, escape};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// From 0 to 1: names that are more alike than this may be meant for each other, as clap has it.
const ALIKE: f64 = 0.7;

/// `[NAME]`, or the newest sandbox of the project of the current directory.
pub(crate) fn sandbox(context: &Context, name: &Name) -> Result<Sandbox, Problem> {
    named_or_newest(context, name.typed())
}

/// How a word is taken for a sandbox.
pub(crate) type Find = fn(&Context, &str) -> Result<Sandbox, Problem>;

/// The sandbox with that name or id, or the only one whose id begins so.
pub(crate) fn named(context: &Context, name: &str) -> Result<Sandbox, Problem> {
    context.api()?.find(name)
}

/// The same for what destroys, ends or widens: the beginning of an id is not enough.
pub(crate) fn whole_or_newest(context: &Context, name: Option<&str>) -> Result<Sandbox, Problem> {
    match name {
        Some(name) => named_or_newest(context, Some(name)).and_then(|_| whole(context, name)),
        None => named_or_newest(context, None),
    }
}

/// The sandbox with that whole name or whole id.
pub(crate) fn whole(context: &Context, name: &str) -> Result<Sandbox, Problem> {
    let sandbox = context.api()?.find(name)?;
    if is_called(&sandbox, name) {
        return Ok(sandbox);
    }
    let message = format!("there is no sandbox `{}`", escape::visible(name.as_bytes()));
    Err(Problem::new(Code::NotFound, message).hint(format!(
        "it begins the id of `{}` (project `{}`); here the whole name or id is wanted",
        sandbox.name,
        show_path(sandbox.project.as_path())
    )))
}

/// The same for a name that was already picked out of the words.
pub(crate) fn named_or_newest(context: &Context, name: Option<&str>) -> Result<Sandbox, Problem> {
    if let Some(name) = name {
        return named(context, name).map_err(|problem| or_nearest(context, name, problem));
    }
    let sandbox = newest(context)?;
    say_newest(context, &sandbox);
    Ok(sandbox)
}

/// The newest sandbox of the project of the current directory.
fn newest(context: &Context) -> Result<Sandbox, Problem> {
    let project = context.project_here()?;
    context.api()?.newest(&project)?.ok_or_else(|| {
        let message = format!("project `{}` has no sandbox", show_path(&project));
        Problem::new(Code::NotFound, message)
            .hint("`skep ls --all` lists those of other projects; `skep run -- CMD` makes one")
    })
}

/// Says which sandbox it is, to whoever has not named one.
fn say_newest(context: &Context, sandbox: &Sandbox) {
    context.output.say(&format!("sandbox: {}", sandbox.name));
}

/// With the name that may have been meant.
fn or_nearest(context: &Context, word: &str, problem: Problem) -> Problem {
    if problem.code != Code::NotFound || !problem.details["deleted"].is_null() {
        return problem;
    }
    let project = context.project_here().ok();
    match project.and_then(|project| nearest(context, &project, word)) {
        Some(name) => {
            problem.hint(format!("did you mean sandbox `{name}`? `skep ls --all` lists them"))
        }
        None => problem,
    }
}

/// What `[NAME] [PATH…]` means.
pub(crate) struct Meant {
    /// The sandbox.
    pub(crate) sandbox: Sandbox,
    /// The paths as typed.
    pub(crate) words: Vec<OsString>,
    /// The first of them, where it would have been a name if a sandbox were called so.
    pub(crate) no_name: Option<NoName>,
    /// Whether nobody named the sandbox.
    is_newest: bool,
}

impl Meant {
    /// Says which sandbox it is, if nobody named one.
    pub(crate) fn say(self, context: &Context) -> Self {
        if self.is_newest {
            say_newest(context, &self.sandbox);
        }
        self
    }
}

/// `[NAME] [PATH…]`: the first word is a name if a sandbox is called so, else a path.
///
/// Behind `--`, and with `-s NAME`, there are only paths.
pub(crate) fn sandbox_and_paths(
    context: &Context,
    typed: &NameAndPaths,
    after: AfterDashes,
) -> Result<Meant, Problem> {
    Ok(unsaid_sandbox_and_paths(context, typed, after)?.say(context))
}

/// The same for an answer that names the sandbox itself.
pub(crate) fn unsaid_sandbox_and_paths(
    context: &Context,
    typed: &NameAndPaths,
    after: AfterDashes,
) -> Result<Meant, Problem> {
    split(context, typed, after, named)
}

/// The same where the beginning of an id is not enough.
pub(crate) fn whole_and_paths(
    context: &Context,
    typed: &NameAndPaths,
    after: AfterDashes,
) -> Result<Meant, Problem> {
    Ok(split(context, typed, after, whole)?.say(context))
}

fn split(
    context: &Context,
    typed: &NameAndPaths,
    after: AfterDashes,
    find: Find,
) -> Result<Meant, Problem> {
    let mut words = typed.words.clone();
    let first = words.first().filter(|_| typed.sandbox.is_none());
    let called = match first.and_then(|word| word.to_str()) {
        Some(word) => Some(called(context, word, find)?),
        None => None,
    };
    if let Some(Called::Sandbox(_)) = called {
        words.remove(0);
    }
    words.extend(after.0.unwrap_or_default());
    let is_newest = typed.sandbox.is_none() && !matches!(called, Some(Called::Sandbox(_)));
    let (sandbox, no_name) = match (called, &typed.sandbox) {
        (Some(Called::Sandbox(sandbox)), _) => (*sandbox, None),
        (Some(Called::None(no_name)), _) => (newest(context)?, Some(no_name)),
        (None, Some(name)) => {
            named_or_newest(context, Some(name))?;
            (find(context, name)?, None)
        }
        (None, None) => (newest(context)?, None),
    };
    Ok(Meant { sandbox, words, no_name, is_newest })
}

/// `[NAME] [WORD]`, where a single word may be either; returns the sandbox and the other word.
pub(crate) fn sandbox_and_word(
    context: &Context,
    words: &[String],
    sandbox: Option<&str>,
) -> Result<(Sandbox, Option<String>), Problem> {
    match (sandbox, words) {
        (None, [name, word]) => Ok((named_or_newest(context, Some(name))?, Some(word.clone()))),
        (None, [word]) => match called(context, word, named)? {
            Called::Sandbox(sandbox) => Ok((*sandbox, None)),
            Called::None(_) => Ok((named_or_newest(context, None)?, Some(word.clone()))),
        },
        (sandbox, words) => Ok((named_or_newest(context, sandbox)?, words.first().cloned())),
    }
}

/// `[NAME] WORD`: the last word is never a name.
pub(crate) fn name_and_last<'a>(
    words: &'a [String],
    sandbox: Option<&'a str>,
) -> Result<(Option<&'a str>, &'a str), Problem> {
    match (sandbox, words) {
        (sandbox, [last]) => Ok((sandbox, last)),
        (None, [name, last]) => Ok((Some(name), last)),
        _ => Err(Problem::new(Code::Usage, "the sandbox is named twice")
            .hint("name it before the last word or with -s, not both")),
    }
}

/// What a word is that may be a name.
enum Called {
    Sandbox(Box<Sandbox>),
    None(NoName),
}

/// A word that no sandbox is called by, and that is taken for a path.
pub(crate) struct NoName {
    word: String,
    /// When a sandbox of this name or id was deleted.
    deleted: Option<String>,
}

impl NoName {
    /// Refuses the word where something is about to be decided by it: nothing is changed at such a path, or
    /// a deleted sandbox was called so, and may be the one that was meant.
    pub(crate) fn check(
        &self,
        context: &Context,
        sandbox: &Sandbox,
        set: &ChangeSet,
    ) -> Result<(), Problem> {
        let (start, project) = (start(context, sandbox), sandbox.project.as_path());
        let words = paths::select(&[self.word.clone().into()], start, project, Some(set))?;
        let conflicts = selection::conflicts(set, &words)?;
        if !conflicts && selection::changes(set, &words, Ignored::Shown)?.is_empty() {
            return Err(self.names_nothing(context, sandbox));
        }
        let Some(at) = &self.deleted else { return Ok(()) };
        let (word, name) = (&self.word, &sandbox.name);
        let message = format!(
            "`{word}` is a changed path of sandbox `{name}`, and named a sandbox until that was \
             deleted ({at}); nothing was changed"
        );
        Err(Problem::new(Code::Usage, message)
            .hint(format!("`-- {word}` is the path, `-s NAME` names a sandbox")))
    }

    fn names_nothing(&self, context: &Context, sandbox: &Sandbox) -> Problem {
        if SandboxName::parse(&self.word).is_err() {
            return nothing_selected(sandbox, &[self.word.clone().into()]);
        }
        let (word, name) = (escape::visible(self.word.as_bytes()), &sandbox.name);
        let message = format!(
            "there is no sandbox `{word}`, and no change at path `{word}` in the newest one here, `{name}`"
        );
        let project = sandbox.project.as_path();
        let first = match (&self.deleted, nearest(context, project, &self.word)) {
            (Some(at), _) => format!("the sandbox it named was deleted ({at}); "),
            (None, Some(nearest)) => format!("did you mean sandbox `{nearest}`? "),
            (None, None) => String::new(),
        };
        Problem::new(Code::NotFound, message).hint(format!(
            "{first}`skep ls` lists the sandboxes, `skep diff {name} --name-only` the changes of `{name}`"
        ))
    }
}

/// The sandbox of a project whose name is most like a word, if one is.
fn nearest(context: &Context, project: &Path, word: &str) -> Option<SandboxName> {
    let project = Some(project.to_owned());
    let all = context.api().ok()?.list(&ListFilter { project, state: None }).ok()?;
    let likeness = |name: &SandboxName| strsim::jaro_winkler(name.as_str(), word);
    let names = all.into_iter().map(|view| view.sandbox.name);
    let near = names.filter(|name| likeness(name) > ALIKE);
    near.max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
}

/// The sandbox that a word names, if it does.
fn called(context: &Context, word: &str, find: Find) -> Result<Called, Problem> {
    let none = |deleted| Called::None(NoName { word: word.to_owned(), deleted });
    match find(context, word) {
        Ok(sandbox) => {
            let path_here = || exists_in_project(context, &sandbox, word.as_ref());
            match is_called(&sandbox, word) || !path_here() {
                true => Ok(Called::Sandbox(Box::new(sandbox))),
                false => Ok(none(None)),
            }
        }
        // Also a beginning that fits several ids is only a path here.
        Err(problem) if matches!(problem.code, Code::NotFound | Code::Usage | Code::Conflict) => {
            Ok(none(problem.details["deleted"]["at"].as_str().map(str::to_owned)))
        }
        Err(problem) => Err(problem),
    }
}

fn exists_in_project(context: &Context, sandbox: &Sandbox, word: &OsStr) -> bool {
    let project = sandbox.project.as_path();
    let start = paths::start(&context.surroundings.directory, project);
    paths::in_project(word, start, project)
        .is_ok_and(|path| std::fs::symlink_metadata(project.join(path.as_path())).is_ok())
}

/// Refuses a word that names no change of the sandbox, and no path where both sides do not merge: an answer
/// about nothing reads like a good one about whatever was meant.
pub(crate) fn refuse_unknown(
    context: &Context,
    sandbox: &Sandbox,
    set: &ChangeSet,
    word: &OsString,
    no_name: Option<&NoName>,
) -> Result<(), Problem> {
    let words = std::slice::from_ref(word);
    let (start, project) = (start(context, sandbox), sandbox.project.as_path());
    let selected = paths::select(words, start, project, Some(set))?;
    if selection::conflicts(set, &selected)?
        || !selection::changes(set, &selected, Ignored::Shown)?.is_empty()
    {
        return Ok(());
    }
    Err(match no_name.filter(|no_name| *word == *no_name.word) {
        Some(no_name) => no_name.names_nothing(context, sandbox),
        None => nothing_selected(sandbox, words),
    })
}

/// What to say when words were taken for paths and select nothing.
pub(crate) fn nothing_selected(sandbox: &Sandbox, words: &[OsString]) -> Problem {
    let words: Vec<_> = words.iter().map(|word| escape::visible(word.as_encoded_bytes())).collect();
    let message = format!("no change of sandbox `{}` is at `{}`", sandbox.name, words.join("`, `"));
    Problem::new(Code::NotFound, message).hint(format!(
        "`skep diff {} --name-only` lists the changes, `skep ls` the sandboxes",
        sandbox.name
    ))
}

/// Where relative paths of a sandbox's project are read from.
pub(crate) fn start<'a>(context: &'a Context, sandbox: &'a Sandbox) -> &'a Path {
    paths::start(&context.surroundings.directory, sandbox.project.as_path())
}
