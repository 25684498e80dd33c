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
    fn a_gone_reader_is_no_error_message() {
        let error = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(error), Failure::ReaderGone));
    }
}
