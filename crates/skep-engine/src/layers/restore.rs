//! Going back to a snapshot, without losing the present.

use super::{copy_tree, is_empty};
use crate::Engine;
use crate::execs::refuse_frozen;
use crate::problems::{OrProblem, io_problem};
use crate::review::{Place, Shut};
use serde_json::json;
use skep_store::{Snapshot, StoreError};
use skep_sys::failpoint;
use skep_types::{Code, Problem, Sandbox, SandboxId, WorkspaceDriver};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};

impl Engine {
    /// The present state is kept under a label of its own first, unless it is that of a snapshot
    /// already. Bases stay as they are, for what was approved since is in the project; but where the
    /// project's newer state was taken in since, they go back too.
    pub(crate) fn restore_snapshot(&self, id: &SandboxId, label: &str) -> Result<Sandbox, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let snapshot = match self.store.snapshot(id, label) {
            Err(StoreError::NotFound { .. }) => return Err(self.no_such_label(&sandbox, label)),
            other => other.or_problem()?,
        };
        refuse_frozen(&sandbox)?;
        self.resume_settling(&sandbox, Shut::Left)?;
        self.at_rest(sandbox, |sandbox| match sandbox.driver {
            WorkspaceDriver::Copy => self.restore_copy(sandbox, &snapshot),
            _ => self.restore_layers(sandbox, &snapshot),
        })?;
        self.load(id)
    }

    fn restore_layers(&self, sandbox: Sandbox, snapshot: &Snapshot) -> Result<Sandbox, Problem> {
        let sandbox = self.freeze_upper(sandbox)?;
        if sandbox.layers == snapshot.layers {
            self.lend_mode(&sandbox, snapshot)?;
            return Ok(sandbox);
        }
        let known = self.store.list_snapshots(Some(&sandbox.id)).or_problem()?;
        if !known.iter().any(|known| known.layers == sandbox.layers) {
            let label = self.free_label(&sandbox, "before-restore")?;
            self.remember_snapshot(&sandbox, label, sandbox.layers.clone())?;
        }
        failpoint::hit("restore.kept")
            .map_err(|error| io_problem("restore", self.layout().root(), &error))?;
        self.begin_restoring(&sandbox, snapshot, Place::Layers(snapshot.layers.clone()))?;
        self.lend_mode(&sandbox, snapshot)?;
        self.now_at(&sandbox, snapshot)
    }

    /// The upper, empty now, lends its mode to the root inside: that of the state it goes back to.
    fn lend_mode(&self, sandbox: &Sandbox, snapshot: &Snapshot) -> Result<(), Problem> {
        let upper = self.layout().sandbox(&sandbox.id).join("upper");
        let like = match snapshot.layers.first() {
            Some(layer) => self.layout().layer(layer),
            None => sandbox.project.as_path().to_owned(),
        };
        let mode = std::fs::metadata(&like).map(|found| found.mode() & 0o7777);
        mode.and_then(|mode| std::fs::set_permissions(&upper, PermissionsExt::from_mode(mode)))
            .map_err(|error| io_problem("set the mode of", &upper, &error))
    }

    /// 1. The present copy is kept as a layer, under a label.
    /// 2. The snapshot is copied beside the upper.
    /// 3. Both change places by one rename; what was there goes, and the bases with it.
    fn restore_copy(&self, sandbox: Sandbox, snapshot: &Snapshot) -> Result<Sandbox, Problem> {
        let directory = self.layout().sandbox(&sandbox.id);
        let (upper, new) = (directory.join("upper"), directory.join("upper.new"));
        let failed = |error: std::io::Error| io_problem("restore", &upper, &error);
        if !is_empty(&upper).map_err(failed)? {
            let layers = self.copy_state(&sandbox)?;
            let label = self.free_label(&sandbox, "before-restore")?;
            self.remember_snapshot(&sandbox, label, layers)?;
        }
        crate::trash::discard(&new, &self.layout().trash()).map_err(failed)?;
        match snapshot.layers.first() {
            Some(layer) => self.noting_own_writes(&sandbox.id, || {
                copy_tree(&self.layout().layer(layer), &new).map_err(failed)
            })?,
            None => super::new_upper(&new, &upper).map_err(failed)?,
        }
        let inode = std::fs::metadata(&new).map_err(failed)?.ino();
        self.begin_restoring(&sandbox, snapshot, Place::Upper { inode })?;
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, &new, rustix::fs::CWD, &upper, flags)
            .map_err(|error| failed(error.into()))?;
        crate::trash::discard(&new, &self.layout().trash()).map_err(failed)?;
        self.now_at(&sandbox, &Snapshot { layers: Vec::new(), ..snapshot.clone() })
    }

    fn now_at(&self, sandbox: &Sandbox, snapshot: &Snapshot) -> Result<Sandbox, Problem> {
        let data = json!({ "label": snapshot.label });
        let sandbox = self.update(&sandbox.id, "sandbox.restored", data, &mut |row| {
            row.layers.clone_from(&snapshot.layers);
            crate::lifecycle::pend(row);
        })?;
        failpoint::hit("restore.moved")
            .map_err(|error| io_problem("restore", self.layout().root(), &error))?;
        self.resume_settling(&sandbox, Shut::Left)?;
        Ok(sandbox)
    }

    fn no_such_label(&self, sandbox: &Sandbox, label: &str) -> Problem {
        let known = self.store.list_snapshots(Some(&sandbox.id)).unwrap_or_default();
        let labels: Vec<_> = known.iter().map(|known| known.label.as_str()).collect();
        let hint = match labels.is_empty() {
            true => "it has no snapshots; take one with `skep snapshot`".to_owned(),
            false => format!("it has: {}", labels.join(", ")),
        };
        let hint = match self.store.find_sandbox(label) {
            Ok(other) => format!("that is a sandbox: `skep restore {} LABEL`; {hint}", other.name),
            Err(_) => hint,
        };
        let label: String = label.chars().flat_map(char::escape_default).take(80).collect();
        let message = format!("sandbox `{}` has no snapshot `{label}`", sandbox.name);
        Problem::new(Code::NotFound, message).hint(hint)
    }
}
