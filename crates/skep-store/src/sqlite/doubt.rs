//! What is known to be damaged is not changed: by nobody, until it was read as a whole and found sound.
//!
//! Most commands read a few rows, and a running server has most of them in memory: whoever meets damage
//! leaves a note beside the database. As long as it is there, opening the database to change it begins
//! with reading all of it; and commands that need no database (`skep exec` in a running sandbox) see
//! with one look that they are not to go past it.

use super::open::beside;
use super::{Access, SqliteStore};
use crate::{Housekeeping as _, Result, Stop, StoreError};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Behind the name of the database: somebody met damage in it.
const DOUBT: &str = "-doubt";

/// Whether somebody met damage in the database at `path`, and nobody has found it sound since.
pub fn is_in_doubt(path: &Path) -> bool {
    // A look that fails is no reason to keep anybody from what runs.
    fs::symlink_metadata(beside(path, DOUBT)).is_ok()
}

/// Notes that something is wrong with a database. Where that cannot be written, whoever comes next meets it
/// by itself.
pub(super) fn note(path: &Path) {
    let noted = beside(path, DOUBT);
    drop(OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(noted));
}

impl SqliteStore {
    /// Passes an error on. After one that means damage this handle changes nothing any more.
    pub(super) fn judge(&self, error: StoreError) -> StoreError {
        if error.is_doubt() {
            self.stop_in_doubt();
        }
        error
    }

    /// Changes nothing any more, and tells others.
    pub(super) fn stop_in_doubt(&self) {
        if self.access == Access::ReadWrite && self.stopped.set(Stop::Damaged).is_ok() {
            note(&self.path);
        }
    }

    /// Reads everything if somebody met damage here, and takes the note away if there is none any more.
    pub(super) fn settle_doubt(&self) -> Result<()> {
        if self.access == Access::ReadOnly || !is_in_doubt(&self.path) {
            return Ok(());
        }
        let problems = self.check()?;
        if !problems.is_empty() {
            let detail = problems.join("; ");
            return Err(StoreError::Corrupt { path: self.path.clone(), detail });
        }
        // Left behind, it would cost the next one the same look.
        let _ = fs::remove_file(beside(&self.path, DOUBT));
        Ok(())
    }
}
