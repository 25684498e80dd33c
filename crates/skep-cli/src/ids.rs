//! Execs and approvals by what was typed for them, and what helps where there is no such one.

use crate::context::Context;
use skep_engine::api::is_called;
use skep_types::{Approval, Code, Exec, Problem, Sandbox};

/// So much of an id must be typed: a word of a letter or two begins some id sooner or later. It is the store
/// that holds to it.
const LEAST: usize = 6;
/// So many execs are named.
const NAMED: usize = 5;

/// The exec with that id, or the only one whose id begins so.
pub(crate) fn exec(context: &Context, word: &str) -> Result<Exec, Problem> {
    let found = context.api()?.find_exec(word);
    found.map_err(|problem| match problem.code {
        Code::NotFound => no_exec(context, word, problem),
        _ => problem,
    })
}

/// The same for an approval.
pub(crate) fn approval(context: &Context, word: &str) -> Result<Approval, Problem> {
    let found = context.api()?.find_approval(word);
    found.map_err(|problem| match problem.code {
        Code::NotFound => problem.hint(listed_by(word, "`skep history` lists them")),
        _ => problem,
    })
}

fn no_exec(context: &Context, word: &str, problem: Problem) -> Problem {
    let sandbox = context.api().and_then(|api| api.find(word)).ok();
    match sandbox.filter(|sandbox| is_called(sandbox, word)) {
        Some(sandbox) => is_sandbox(context, &sandbox),
        None => problem.hint(listed_by(word, "`skep ps [NAME]` lists them")),
    }
}

/// A sandbox has many execs, and the one that is meant is not guessed.
fn is_sandbox(context: &Context, sandbox: &Sandbox) -> Problem {
    let name = &sandbox.name;
    let execs = context.api().and_then(|api| api.execs(&sandbox.id));
    let mut execs = execs.unwrap_or_default();
    execs.sort_by(|one, other| other.started_at.cmp(&one.started_at));
    let ids: Vec<String> = execs.iter().take(NAMED).map(|exec| format!("`{}`", exec.id)).collect();
    let hint = match ids.as_slice() {
        [] => "nothing was run in it".to_owned(),
        ids => format!(
            "its execs, newest first: {}; `skep ps {name}` tells them apart",
            ids.join(", ")
        ),
    };
    Problem::new(Code::NotFound, format!("`{name}` is a sandbox, and an exec is wanted")).hint(hint)
}

fn listed_by(word: &str, list: &str) -> String {
    match word.chars().count() < LEAST {
        true => format!("at least {LEAST} characters of an id are needed; {list}"),
        false => list.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::fake::{FakeApi, skep};

    #[test]
    fn a_word_that_is_too_short_is_said_to_be() {
        for (line, list) in [
            ("skep logs zz", "`skep ps [NAME]` lists them"),
            ("skep kill zz", "`skep ps [NAME]` lists them"),
            ("skep receipt zz", "`skep history` lists them"),
        ] {
            let done = skep(FakeApi::default(), line);
            let hint = format!("hint: at least 6 characters of an id are needed; {list}\n");
            assert_eq!(done.code, 3);
            assert!(done.stderr.ends_with(&hint), "{}", done.stderr);
            let done = skep(FakeApi::default(), &format!("{line}zzzz"));
            assert!(done.stderr.ends_with(&format!("hint: {list}\n")), "{}", done.stderr);
        }
        let done = skep(FakeApi::default(), "skep undo zz");
        assert!(done.stderr.ends_with("hint: the whole id is wanted; `skep history` lists them\n"));
    }

    #[test]
    fn a_sandbox_instead_of_an_exec_is_told_its_execs() {
        let id = skep(FakeApi::default(), "skep exec -d bar1 -- true").stdout;
        for line in ["skep logs older", "skep kill older"] {
            let done = skep(FakeApi::default(), line);
            let expected = format!(
                "error: `older` is a sandbox, and an exec is wanted\n\
                 hint: its execs, newest first: `{}`; `skep ps older` tells them apart\n",
                id.trim_end()
            );
            assert_eq!((done.code, done.stderr), (3, expected));
            assert!(done.asked.lines().is_empty(), "nothing is killed");
        }
    }
}
