//! From the errors of the parts to what callers see: one place.

use skep_policy::SettingsError;
use skep_provider::ProviderError;
use skep_store::StoreError;
use skep_types::{Code, Problem};
use skep_workspace::{DeriveError, PlanError};
use std::io;
use std::path::Path;

/// What helps where nothing can be written.
const READ_ONLY: &str = "its filesystem is mounted read-only: make it writable, or, for skep's state, \
                         name another directory with `--home DIR`";

/// In the details of a problem: what is remembered cannot be relied on.
const DOUBT: &str = "damaged";

/// Whether a problem is that what is remembered cannot be relied on: it may be read and not changed.
pub fn is_doubt(problem: &Problem) -> bool {
    problem.details[DOUBT] == true
}

/// Says of a problem that what is remembered cannot be relied on.
pub(crate) fn doubt(problem: Problem) -> Problem {
    problem.details(serde_json::json!({ DOUBT: true }))
}

/// In the details of a problem: the store is only read.
const READS: &str = "read_only";

/// In the details of a problem: the disk of the state directory does not keep what it is told.
const FAILING: &str = "disk_failed";

/// Says of a problem that the disk of the state directory does not keep what it is told.
pub(crate) fn failing(problem: Problem) -> Problem {
    problem.details(serde_json::json!({ FAILING: true }))
}

/// Whether a problem is that the disk of the state directory does not keep what it is told. A server
/// changes nothing after it.
pub fn is_failing(problem: &Problem) -> bool {
    problem.details[FAILING] == true
}

/// Turns an error into a [`Problem`].
pub trait OrProblem<T> {
    /// The same result for the caller.
    fn or_problem(self) -> Result<T, Problem>;
}

macro_rules! or_problem {
    ($error:ty, $convert:expr) => {
        impl<T> OrProblem<T> for Result<T, $error> {
            fn or_problem(self) -> Result<T, Problem> {
                self.map_err(|error| {
                    let convert: fn(&$error) -> Problem = $convert;
                    convert(&error)
                })
            }
        }
    };
}

or_problem!(StoreError, |error| {
    let problem = Problem::from_error(error.code(), error);
    let problem = match error {
        StoreError::ScopeLocked { conflicts, .. } => {
            problem.details(serde_json::json!({ "locked_by": conflicts }))
        }
        StoreError::ReadOnly { .. } => problem.details(serde_json::json!({ READS: true })),
        _ if error.is_doubt() => doubt(problem),
        _ => problem,
    };
    match error.hint() {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
});
or_problem!(ProviderError, |error| match is_full(error) {
    true => Problem::from_error(Code::NoSpace, error),
    false if is_read_only(error) => error.problem().hint(READ_ONLY),
    false => error.problem(),
});
or_problem!(SettingsError, |error| Problem::from_error(Code::Usage, error));
or_problem!(DeriveError, derive_problem);
or_problem!(PlanError, plan_problem);

fn derive_problem(error: &DeriveError) -> Problem {
    match error {
        DeriveError::ProjectReplaced { .. } => Problem::from_error(Code::Conflict, error)
            .hint("bring the directory back to its place; the changes are kept"),
        DeriveError::Moved { .. } => Problem::from_error(Code::Conflict, error)
            .hint("nothing was changed; look at it again with `skep diff`"),
        _ if is_full(error) => Problem::from_error(Code::NoSpace, error),
        _ => Problem::from_error(Code::Io, error),
    }
}

/// Whether a full disk is at the bottom of it.
pub(crate) fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    stems_from(error, &[io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded])
}

/// Whether it is that nothing can be written there.
fn is_read_only(error: &(dyn std::error::Error + 'static)) -> bool {
    stems_from(error, &[io::ErrorKind::ReadOnlyFilesystem])
}

fn stems_from(error: &(dyn std::error::Error + 'static), kinds: &[io::ErrorKind]) -> bool {
    let of_these = |error: &io::Error| kinds.contains(&error.kind());
    std::iter::successors(Some(error), |error| error.source())
        .any(|error| error.downcast_ref::<io::Error>().is_some_and(of_these))
}

/// The same, with the sandbox's name where a hint has a word for one.
pub(crate) fn about(sandbox: &skep_types::Sandbox) -> impl Fn(Problem) -> Problem + '_ {
    |problem| match &problem.hint {
        Some(hint) => {
            let name = &sandbox.name;
            let hint = hint.replace(" NAME ", &format!(" {name} "));
            let hint = hint.replace(" NAME:", &format!(" {name}:"));
            problem.hint(hint)
        }
        None => problem,
    }
}

fn plan_problem(error: &PlanError) -> Problem {
    match error {
        PlanError::Conflicts(conflicts) => {
            let first = conflicts.first().map_or_else(String::new, |conflict| {
                format!(": `{}`: {}", conflict.path, conflict.reason)
            });
            let noun = if conflicts.len() == 1 { "path" } else { "paths" };
            let message = format!("{} conflicting {noun}{first}", conflicts.len());
            Problem::new(Code::Conflict, message)
                .hint(
                    "other paths can be approved by name, and of a file the hunks that do not meet (`--hunk ID`); `skep reject \
                     NAME --hunk ID` drops one that does; `skep reject NAME PATH` drops all that was changed there and takes the \
                     project's version in, to redo the change inside; `skep cp NAME:PATH FILE` copies the sandbox's out; `skep \
                     conflicts NAME PATH --side base|project|sandbox` prints a side",
                )
                .details(serde_json::json!({ "conflicts": conflicts }))
        }
        PlanError::Derive(error) => derive_problem(error),
        PlanError::Stale { .. } => Problem::from_error(Code::Conflict, error)
            .hint("nothing was changed; look at it again with `skep diff`"),
        PlanError::UnknownBase { path } => Problem::from_error(Code::Conflict, error).hint(format!(
            "nothing was changed; `skep reject NAME {path}` drops all that was changed in it and takes the \
             project's version in"
        )),
        PlanError::Depends { .. } => Problem::from_error(Code::Conflict, error).hint(
            "nothing was changed; name it too, or `skep reject` what cannot be taken without it",
        ),
        PlanError::NothingMatches(_) => Problem::from_error(Code::NotFound, error)
            .hint("`skep diff --name-only` lists what changed"),
        PlanError::UnknownHunk(_) => Problem::from_error(Code::NotFound, error)
            .hint("`skep diff` shows the ids; a hunk that changed has another one"),
        other => Problem::from_error(Code::Usage, other),
    }
}

/// A failed file operation, with what was being done.
pub fn io_problem(operation: impl AsRef<str>, path: &Path, error: &io::Error) -> Problem {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::NoSpace,
        _ => Code::Io,
    };
    let problem =
        Problem::new(code, format!("cannot {} `{}`: {error}", operation.as_ref(), path.display()));
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => problem.hint(READ_ONLY),
        _ => problem,
    }
}

/// On a full disk, and in a store that is only read, it cannot be written down what happened. A later start
/// does it: until then nobody is kept from looking, nor from removing what fills the disk.
pub(crate) fn unless_unwritable(noted: Result<(), Problem>) -> Result<(), Problem> {
    match noted {
        Err(problem) if problem.code == Code::NoSpace || problem.details[READS] == true => Ok(()),
        other => other,
    }
}
