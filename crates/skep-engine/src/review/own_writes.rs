//! When skep itself wrote into a sandbox: a rebase, a rejected hunk, a restored copy.
//!
//! Which exec wrote a path is told by the time of its entry. Skep writes while everything inside stands
//! still, so what has such a time was not written by whatever exec happened to be alive then.

use super::judge::nanoseconds;
use crate::Engine;
use skep_types::{Problem, SandboxId};
use std::io::Write as _;

impl Engine {
    /// Notes from when to when `write` ran. Without the note a path may be attributed wrongly, which is
    /// no reason to fail what was done.
    pub(crate) fn noting_own_writes<T>(
        &self,
        id: &SandboxId,
        write: impl FnOnce() -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let start = self.now();
        let result = write();
        let file = self.layout().own_writes(id);
        let opened = std::fs::File::options().append(true).create(true).open(file);
        let _ = opened.and_then(|mut file| writeln!(file, "{start} {}", self.now()));
        result
    }

    /// Those times, in nanoseconds.
    pub(super) fn own_writes(&self, id: &SandboxId) -> Vec<(i128, i128)> {
        let text = std::fs::read_to_string(self.layout().own_writes(id)).unwrap_or_default();
        let times = |line: &str| {
            let (start, end) = line.split_once(' ')?;
            Some((nanoseconds(start)?, nanoseconds(end)?))
        };
        text.lines().filter_map(times).collect()
    }
}
