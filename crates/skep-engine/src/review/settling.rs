//! Writes through the view and the bases that move with them, as one.
//!
//! A rejection or a rebase brings the user's newer lines into the sandbox. Until their base is settled
//! they count as the sandbox's own, and would come back when the user takes them back. So what is about
//! to be written is noted first, durably; whoever looks next after an outage settles what was written.

use super::journal::write_durably;
use crate::Engine;
use crate::layout::may_be_there;
use crate::problems::{OrProblem, io_problem};
use serde::{Deserialize, Serialize};
use skep_sys::failpoint;
use skep_types::{EntryState, Problem, RelPath, Sandbox};
use skep_workspace::{Settlement, View, ViewWrite};

/// What is about to be written, and what counts as the base of it then.
#[derive(Debug, Serialize, Deserialize)]
struct Settling {
    written: Vec<(RelPath, EntryState)>,
    settlement: Settlement,
}

impl Engine {
    /// Notes it, before the first write.
    pub(super) fn begin_settling(
        &self,
        sandbox: &Sandbox,
        writes: &[ViewWrite],
        settlement: &Settlement,
    ) -> Result<(), Problem> {
        if settlement.paths.is_empty() {
            return Ok(());
        }
        let written = writes.iter().map(|write| (write.path.clone(), write.state.clone()));
        let noted = Settling { written: written.collect(), settlement: settlement.clone() };
        let file = self.layout().settling(&sandbox.id);
        let new = file.with_extension("new");
        let write = || {
            let _ = std::fs::remove_file(&new);
            write_durably(&new, &serde_json::to_vec(&noted)?)?;
            std::fs::rename(&new, &file)?;
            let directory = file.parent().map(std::fs::File::open).transpose()?;
            directory.map_or(Ok(()), |directory| directory.sync_all())
        };
        write().map_err(|error| io_problem("write", &file, &error))
    }

    /// After the last write.
    pub(super) fn end_settling(
        &self,
        sandbox: &Sandbox,
        settlement: &Settlement,
    ) -> Result<(), Problem> {
        failpoint::hit("settle.written")
            .map_err(|error| io_problem("settle", sandbox.project.as_path(), &error))?;
        skep_workspace::settle(&self.workspace(sandbox), settlement).or_problem()?;
        let _ = std::fs::remove_file(self.layout().settling(&sandbox.id));
        Ok(())
    }

    /// Ends what an outage cut short: of each path that has what was to be written, the base is the
    /// one that belongs to it.
    pub(super) fn resume_settling(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let file = self.layout().settling(&sandbox.id);
        if !may_be_there(&file) {
            return Ok(());
        }
        let bytes = match std::fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_problem("read", &file, &error)),
        };
        // Put in place whole; what cannot be read was not noted by this version.
        if let Ok(Settling { written, settlement }) = serde_json::from_slice::<Settling>(&bytes) {
            let workspace = self.workspace(sandbox);
            let view = View::open(&workspace).or_problem()?;
            let mut done = Settlement::default();
            for path in settlement.paths {
                let Some((_, state)) = written.iter().find(|(at, _)| *at == path.path) else {
                    continue;
                };
                if view.state(&path.path).or_problem()? == *state {
                    done.paths.push(path);
                }
            }
            skep_workspace::settle(&workspace, &done).or_problem()?;
        }
        std::fs::remove_file(&file).map_err(|error| io_problem("remove", &file, &error))
    }
}
