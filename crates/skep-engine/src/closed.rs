//! What the agent has shut by its mode: `chmod 000` of a file, or a directory that nobody may enter.
//!
//! Root passes by that. An ordinary user owns such files and still cannot read them; from a user
//! namespace of its own it can. Who only looks may enter one for good. Here it is a child that does, so
//! that whoever asked can go on to start a sandbox.

use crate::problems::OrProblem;
use skep_sys::process::in_child_with_own_files_open;
use skep_types::Problem;
use skep_workspace::DeriveError;
use std::io;
use std::path::Path;

/// Whether permission bits are in the way that the owner can pass.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root()
}

/// Does the work, and where something is shut once more in a child, after `undo` of the first try. What it
/// changes in memory may be lost.
pub(crate) fn opened(
    work: impl Fn() -> io::Result<()>,
    undo: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    match work() {
        Err(error) if is_closed(&error) => {
            undo()?;
            in_child_with_own_files_open(work)
        }
        other => other,
    }
}

/// The same for what is noted of a workspace.
pub(crate) fn noted(work: impl Fn() -> Result<(), DeriveError>) -> Result<(), Problem> {
    match work() {
        Err(error @ DeriveError::Unreadable { .. }) if !rustix::process::geteuid().is_root() => {
            let done = in_child_with_own_files_open(|| work().map_err(io::Error::other));
            // The first reason names the file in any case.
            done.map_err(|_| error).or_problem()
        }
        other => other.or_problem(),
    }
}

/// A directory that gets another parent is written to.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    opened(|| std::fs::rename(from, to), || Ok(()))
}
