//! File locks: several `skep` processes share one state directory.

use crate::Layout;
use skep_store::Work;
use skep_types::{Code, Problem, SandboxId};
use std::fmt::Display;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Held until dropped; the kernel lets go of it when the process dies.
#[derive(Debug)]
pub struct Lock {
    /// Let go of first: who gets the lock next is no reason not to vouch.
    _work: Work,
    _file: File,
}

impl Lock {
    /// Says with it that something is being done that takes several steps.
    pub fn at(self, work: Work) -> Self {
        Self { _work: work, ..self }
    }
}

/// Takes the lock of a sandbox, waiting for a while: its directory, so that no file is made for it.
///
/// Where the directory is gone there is only the row to be settled, and the directory of all sandboxes
/// stands for it. Who waited for a directory that was removed meanwhile, or only waits for that
/// (`waste.rs`), finds that out from the row, and lets go.
pub fn take_sandbox(
    layout: &Layout,
    id: &SandboxId,
    what: impl Display,
    patience: Duration,
) -> Result<Lock, Problem> {
    let mut path = layout.sandbox(id);
    let mut opened = File::open(&path);
    if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        path = layout.sandboxes();
        opened = File::open(&path);
    }
    let file = opened.map_err(|error| crate::problems::io_problem("open", &path, &error))?;
    wait_for(file, &path, what, patience)
}

/// Takes a lock, waiting for a while.
pub fn take(path: &Path, what: impl Display, patience: Duration) -> Result<Lock, Problem> {
    let open = File::options().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = open.map_err(|error| crate::problems::io_problem("open lock", path, &error))?;
    wait_for(file, path, what, patience)
}

/// Takes a directory as a lock, so that no file is made for it.
pub fn take_directory(
    path: &Path,
    what: impl Display,
    patience: Duration,
) -> Result<Lock, Problem> {
    let file =
        File::open(path).map_err(|error| crate::problems::io_problem("open", path, &error))?;
    wait_for(file, path, what, patience)
}

fn wait_for(
    file: File,
    path: &Path,
    what: impl Display,
    patience: Duration,
) -> Result<Lock, Problem> {
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lock { _work: Work::default(), _file: file }),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Problem::new(
                    Code::Busy,
                    format!("{what} is being changed by another skep"),
                )
                .hint("try again when that is done"));
            }
            Err(TryLockError::Error(error)) => {
                return Err(crate::problems::io_problem("lock", path, &error));
            }
        }
    }
}
