//! Snapshots: the state of a sandbox under a label.

use crate::Engine;
use crate::api::SnapshotView;
use crate::problems::OrProblem;
use serde_json::json;
use skep_store::Snapshot;
use skep_types::{Code, LayerId, Problem, Sandbox, SandboxId};

impl Engine {
    pub(crate) fn take_snapshot(
        &self,
        id: &SandboxId,
        label: Option<&str>,
    ) -> Result<SnapshotView, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        super::system::needs_plain_system(&sandbox, "a snapshot")?;
        let label = match label {
            Some(label) => {
                check_label(label)?;
                self.refuse_taken(&sandbox, label)?;
                label.to_owned()
            }
            None => self.free_label(&sandbox, "snapshot")?,
        };
        let (sandbox, layers) = self.state_as_layers(sandbox)?;
        let snapshot = self.remember_snapshot(&sandbox, label, layers)?;
        Ok(view(&sandbox, &snapshot))
    }

    pub(super) fn remember_snapshot(
        &self,
        sandbox: &Sandbox,
        label: String,
        layers: Vec<LayerId>,
    ) -> Result<Snapshot, Problem> {
        let data = json!({ "label": label, "layers": layers.len() });
        let event = self.event("snapshot.taken", &sandbox.id, None, data);
        let snapshot = self.describe(sandbox, label, layers)?;
        self.store.insert_snapshot(&snapshot, &[event]).or_problem()?;
        self.mark_copy(&sandbox.id, &snapshot.layers);
        Ok(snapshot)
    }

    pub(super) fn describe(
        &self,
        sandbox: &Sandbox,
        label: String,
        layers: Vec<LayerId>,
    ) -> Result<Snapshot, Problem> {
        let memory = self.workspace(sandbox).memory;
        Ok(Snapshot {
            sandbox: sandbox.id.clone(),
            label,
            layers,
            driver: sandbox.driver,
            base: sandbox.base.clone(),
            project: sandbox.project.clone(),
            rules: sandbox.policy.change_rules(),
            workdir: sandbox.policy.workdir.clone(),
            reach: Some(skep_workspace::reach(&memory).or_problem()?),
            created_at: self.now(),
        })
    }

    pub(crate) fn list_snapshots(&self, id: &SandboxId) -> Result<Vec<SnapshotView>, Problem> {
        let sandbox = self.load(id)?;
        let snapshots = self.store.list_snapshots(Some(id)).or_problem()?;
        Ok(snapshots.iter().map(|snapshot| view(&sandbox, snapshot)).collect())
    }

    /// `snapshot-1`, `before-restore-2`, …
    pub(super) fn free_label(&self, sandbox: &Sandbox, stem: &str) -> Result<String, Problem> {
        let taken = self.store.list_snapshots(Some(&sandbox.id)).or_problem()?;
        let free = |label: &String| !taken.iter().any(|snapshot| snapshot.label == *label);
        let found = (1..=taken.len() + 1).map(|number| format!("{stem}-{number}")).find(free);
        found.ok_or_else(|| Problem::new(Code::Internal, "no free label was found"))
    }

    /// Before anything is frozen: a layer that no label came to is only in the way.
    fn refuse_taken(&self, sandbox: &Sandbox, label: &str) -> Result<(), Problem> {
        let taken = self.store.list_snapshots(Some(&sandbox.id)).or_problem()?;
        if !taken.iter().any(|snapshot| snapshot.label == label) {
            return Ok(());
        }
        let message = format!("sandbox `{}` has a snapshot `{label}` already", sandbox.name);
        Err(Problem::new(Code::AlreadyExists, message).hint("choose another label"))
    }
}

fn view(sandbox: &Sandbox, snapshot: &Snapshot) -> SnapshotView {
    SnapshotView {
        label: snapshot.label.clone(),
        sandbox: sandbox.name.to_string(),
        created_at: snapshot.created_at.clone(),
        layers: snapshot.layers.len(),
    }
}

/// A label can stand in `NAME:LABEL` and in a terminal.
fn check_label(label: &str) -> Result<(), Problem> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = label.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if first && label.len() <= 63 && label.bytes().all(good) {
        return Ok(());
    }
    let label: String = label.chars().flat_map(char::escape_default).take(80).collect();
    let message = format!(
        "`{label}` is not a label: 1 to 63 of a-z A-Z 0-9 . _ -, starting with a letter or digit"
    );
    Err(Problem::new(Code::Usage, message))
}

#[cfg(test)]
mod tests {
    use super::check_label;

    #[test]
    fn labels_are_plain_words() {
        for good in ["a", "before-restore-1", "v1.2_x", "9"] {
            assert!(check_label(good).is_ok(), "{good}");
        }
        for bad in ["", "-x", "a:b", "a/b", "a b", "ä", "x\n", &"y".repeat(64)] {
            assert!(check_label(bad).is_err(), "{bad:?}");
        }
    }
}
