//! Writes through the view and the bases that move with them, as one.
//!
//! A rejection or a rebase brings the user's newer lines into the sandbox. Until their base is settled
//! they count as the sandbox's own, and would come back when the user takes them back. So what is about
//! to be written is noted first, durably; whoever comes next after an outage, and before anything runs
//! again, settles what was written. The same for a restore, which brings back a state without those lines.

use super::journal::write_durably;
use crate::layout::may_be_there;
use crate::problems::{OrProblem, io_problem};
use crate::{Engine, closed};
use serde::{Deserialize, Serialize};
use skep_provider::ProviderError;
use skep_store::Snapshot;
use skep_sys::failpoint;
use skep_types::{Code, EntryState, ExecId, LayerId, Problem, RelPath, Sandbox};
use skep_workspace::{DeriveError, Settlement, View, ViewWrite, WorkspaceSpec};
use std::os::unix::fs::MetadataExt as _;

/// What is about to be written, and what counts as the base of it then.
#[derive(Debug, Serialize, Deserialize)]
struct Settling {
    written: Vec<(RelPath, EntryState)>,
    settlement: Settlement,
}

/// A restore that is about to be made. Where the project's newer state was taken in since that snapshot,
/// the bases go back with the sandbox, or the user's lines would count as removed by it.
#[derive(Debug, Serialize, Deserialize)]
struct Restoring {
    /// How far the bases go back.
    reach: u64,
    place: Place,
}

/// By what it is seen that the sandbox is at the snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Place {
    /// It stands on these layers.
    Layers(Vec<LayerId>),
    /// This directory is its upper.
    Upper { inode: u64 },
}

/// What is under way; one thing at a time.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Pending {
    Writes(Settling),
    Restore(Restoring),
}

/// Files that the agent shut by their mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shut {
    /// Are read from a user namespace of this process's own, for whoever only looks.
    Opened,
    /// Are left shut, for whoever starts something afterwards.
    Left,
}

impl Engine {
    /// Notes it, before the first write.
    pub(super) fn begin_settling(
        &self,
        sandbox: &Sandbox,
        writes: &[ViewWrite],
        settlement: &Settlement,
    ) -> Result<(), Problem> {
        if settlement.is_empty() {
            return Ok(());
        }
        let written = writes.iter().map(|write| (write.path.clone(), write.state.clone()));
        let noted = Settling { written: written.collect(), settlement: settlement.clone() };
        self.note_pending(sandbox, &Pending::Writes(noted))
    }

    /// Notes a restore, before the sandbox is anywhere else. Who has made it calls
    /// [`Self::resume_settling`].
    pub(crate) fn begin_restoring(
        &self,
        sandbox: &Sandbox,
        snapshot: &Snapshot,
        place: Place,
    ) -> Result<(), Problem> {
        let Some(reach) = snapshot.reach else { return Ok(()) };
        let memory = self.workspace(sandbox).memory;
        match skep_workspace::is_behind(&memory, reach).or_problem()? {
            true => self.note_pending(sandbox, &Pending::Restore(Restoring { reach, place }))?,
            false => return Ok(()),
        }
        failpoint::hit("restore.noted")
            .map_err(|error| io_problem("restore", self.layout().root(), &error))
    }

    fn note_pending(&self, sandbox: &Sandbox, pending: &Pending) -> Result<(), Problem> {
        let file = self.layout().settling(&sandbox.id);
        let new = file.with_extension("new");
        let write = || {
            let _ = std::fs::remove_file(&new);
            write_durably(&new, &serde_json::to_vec(pending)?)?;
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
        let workspace = self.workspace(sandbox);
        skep_workspace::settle_taken_in(&workspace, settlement).or_problem()?;
        let _ = std::fs::remove_file(self.layout().settling(&sandbox.id));
        Ok(())
    }

    /// Ends what an outage cut short: of each path that has what was to be written, the base is the
    /// one that belongs to it. Whoever lets anything run, or takes the state elsewhere, does this
    /// before: what is written over cannot be recognised any more. The caller holds the sandbox's lock.
    pub(crate) fn resume_settling(&self, sandbox: &Sandbox, shut: Shut) -> Result<(), Problem> {
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
        match serde_json::from_slice::<Pending>(&bytes) {
            Ok(Pending::Writes(noted)) => self.resume_writes(sandbox, &noted, shut)?,
            Ok(Pending::Restore(noted)) => self.resume_restoring(sandbox, &noted)?,
            Err(_) => {}
        }
        std::fs::remove_file(&file).map_err(|error| io_problem("remove", &file, &error))
    }

    fn resume_writes(
        &self,
        sandbox: &Sandbox,
        noted: &Settling,
        shut: Shut,
    ) -> Result<(), Problem> {
        self.await_writes(sandbox)?;
        let workspace = self.workspace(sandbox);
        let done = match written(&workspace, noted) {
            Err(DeriveError::Unreadable { .. })
                if shut == Shut::Opened
                    && !rustix::process::geteuid().is_root()
                    && skep_sys::process::enter_own_user_namespace().is_ok() =>
            {
                written(&workspace, noted)
            }
            other => other,
        };
        let done = done.or_problem().map_err(|problem| {
            let name = &sandbox.name;
            problem.hint(format!(
                "a rebase or a rejection was cut short; `skep diff {name}` brings it to its end"
            ))
        })?;
        skep_workspace::settle_taken_in(&workspace, &done).or_problem()
    }

    fn resume_restoring(&self, sandbox: &Sandbox, noted: &Restoring) -> Result<(), Problem> {
        let is_there = match &noted.place {
            Place::Layers(layers) => sandbox.layers == *layers,
            Place::Upper { inode } => {
                let upper = self.layout().sandbox(&sandbox.id).join("upper");
                let found = std::fs::metadata(&upper);
                found.map_err(|error| io_problem("look at", &upper, &error))?.ino() == *inode
            }
        };
        if !is_there {
            return Ok(());
        }
        let workspace = self.workspace(sandbox);
        closed::noted(|| skep_workspace::rewind(&workspace, noted.reach))
    }

    /// Whoever died may have sent a write that is not made yet. Those inside make one after the other:
    /// behind one that does nothing there is none.
    fn await_writes(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let provider = self.provider(&sandbox.provider)?;
        if !self.is_running(sandbox) {
            // One that was started for the writes alone.
            let directory = self.layout().sandbox(&sandbox.id);
            return provider.stop(&sandbox.id, &directory, sandbox.keeper.as_ref()).or_problem();
        }
        let nowhere = format!("{}/settled", ExecId::from_random((self.config.random)()));
        let path = RelPath::parse(nowhere.as_bytes())
            .map_err(|error| Problem::from_error(Code::Internal, &error))?;
        let write = skep_provider::ViewWrite { path, state: EntryState::Absent, content: None };
        match provider.write_view(&self.run_spec(sandbox), &[write]) {
            Err(ProviderError::NotRunning(_)) => Ok(()),
            other => other.or_problem(),
        }
    }
}

/// What was written of what was to be, with its bases.
fn written(workspace: &WorkspaceSpec, noted: &Settling) -> Result<Settlement, DeriveError> {
    let view = View::open(workspace)?;
    let is_written = |path: &RelPath| match noted.written.iter().find(|(at, _)| at == path) {
        Some((_, state)) => Ok(view.state(path)? == *state),
        None => Ok(false),
    };
    let mut done = Settlement::default();
    for path in &noted.settlement.paths {
        if is_written(&path.path)? {
            done.paths.push(path.clone());
        }
    }
    for given in &noted.settlement.given {
        if is_written(&given.path)? {
            done.given.push(given.clone());
        }
    }
    Ok(done)
}
