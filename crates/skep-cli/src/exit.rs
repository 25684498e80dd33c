//! Exit codes: the one place that knows them (CLI.md, "Conventions").

use crate::output::Output;
use skep_types::{Code, ExecEnd, Problem};
use std::io;

/// skep failed before the command ran.
const BEFORE_THE_COMMAND: u8 = 125;
/// What a shell shows for a program that `SIGPIPE` ended.
const READER_GONE: u8 = 128 + 13;

/// Which table of exit codes a command follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// `run`, `exec`, `shell`: the code is the command's.
    Exec,
    /// Everything else.
    Other,
}

/// Exit codes and what they mean, for help and manual pages.
type Meanings = &'static [(&'static str, &'static str)];

/// Of `run`, `exec` and `shell`.
const OF_COMMANDS: Meanings = &[
    ("any", "the command's own"),
    ("2", "the command line is not understood; nothing ran"),
    ("5", "refused by policy, or a capability is missing; nothing ran"),
    ("124", "the command ran out of time"),
    ("125", "skep failed before the command ran"),
    ("126", "the command cannot be executed"),
    ("127", "the command was not found"),
    ("128+n", "the command was killed by signal n; 137 also where it ran out of memory"),
];

/// Of all others.
const OF_OTHERS: Meanings = &[
    ("0", "done"),
    ("1", "failed"),
    ("2", "the command line is not understood"),
    ("3", "not found"),
    ("4", "conflict or drift; nothing was changed"),
    ("5", "refused by policy, or a capability is missing"),
];

impl Family {
    /// What its exit codes mean.
    pub(crate) fn meanings(self) -> Meanings {
        match self {
            Self::Exec => OF_COMMANDS,
            Self::Other => OF_OTHERS,
        }
    }

    /// The same as the last lines of a help text.
    pub(crate) fn help(self) -> String {
        let line = |(code, meaning): &(&str, &str)| format!("\n  {code:<6} {meaning}");
        format!("Exit status:{}", self.meanings().iter().map(line).collect::<String>())
    }
}

/// Why a command line was not carried out.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to be said to the caller.
    Problem(Problem),
    /// What was typed is not a command line; also carries requests for help.
    Usage(Box<clap::Error>),
    /// The reader of our standard output went away: as quiet as any filter.
    ReaderGone,
}

/// What a command returns: its exit code, or why there is none.
pub(crate) type Outcome = Result<u8, Failure>;

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::Usage(Box::new(error))
    }
}

/// A failed write to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::ReaderGone
        } else {
            let message = format!("cannot write to standard output: {error}");
            Self::Problem(Problem::new(Code::Io, message))
        }
    }
}

/// Says what went wrong, if anything did, and returns the exit code.
pub(crate) fn finish(outcome: Outcome, family: Family, output: &Output) -> u8 {
    match outcome {
        Ok(code) => code,
        Err(Failure::ReaderGone) => READER_GONE,
        Err(Failure::Problem(problem)) => {
            output.problem(&problem);
            of_problem(&problem, family)
        }
        Err(Failure::Usage(error)) => {
            output.usage(&error);
            if error.use_stderr() { Code::Usage.exit_code() } else { 0 }
        }
    }
}

/// The code for an error.
pub(crate) fn of_problem(problem: &Problem, family: Family) -> u8 {
    let code = problem.code.exit_code();
    match family {
        Family::Other => code,
        // A wrong request and a refusal are told apart from a failure in `run` too: the caller
        // can mend the first and must not retry the second.
        Family::Exec if code == Code::Usage.exit_code() || code == Code::Refused.exit_code() => {
            code
        }
        Family::Exec => BEFORE_THE_COMMAND,
    }
}

/// The code for an exec that ended.
pub(crate) fn of_end(end: &ExecEnd) -> u8 {
    // The engine has already folded signals and reasons into it; only eight bits reach a parent.
    (end.exit_code & 0xff) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_keeps_usage_and_refusals_apart_from_failures() {
        let code = |code, family| of_problem(&Problem::new(code, "x"), family);
        assert_eq!(code(Code::Usage, Family::Exec), 2);
        assert_eq!(code(Code::MissingCapability, Family::Exec), 5);
        assert_eq!(code(Code::Refused, Family::Exec), 5);
        assert_eq!(code(Code::NotFound, Family::Exec), 125);
        assert_eq!(code(Code::Io, Family::Exec), 125);
        assert_eq!(code(Code::NotFound, Family::Other), 3);
        assert_eq!(code(Code::DigestMismatch, Family::Other), 4);
    }

    #[test]
    fn every_exit_code_of_an_error_has_a_meaning() {
        let known = |family: Family, code: u8| {
            family.meanings().iter().any(|(known, _)| *known == code.to_string())
        };
        for code in [Code::Usage, Code::NotFound, Code::Conflict, Code::Refused, Code::Io] {
            for family in [Family::Exec, Family::Other] {
                let exit = of_problem(&Problem::new(code, "x"), family);
                assert!(known(family, exit), "{exit}");
            }
        }
    }

    #[test]
    fn a_gone_reader_is_no_error_message() {
        let error = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(error), Failure::ReaderGone));
    }
}
