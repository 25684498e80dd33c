//! File locks: several `skep` processes share one state directory.

use skep_types::{Code, Problem};
use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Held until dropped; the kernel lets go of it when the process dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Takes a lock, waiting for a while.
pub fn take(path: &Path, what: &str, patience: Duration) -> Result<Lock, Problem> {
    let open = File::options().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = open.map_err(|error| crate::problems::io_problem("open lock", path, &error))?;
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lock { _file: file }),
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
