//! Reversing an approval, or an undo.

use super::journal::{Note, apply_problem};
use crate::Engine;
use crate::api::ApproveReport;
use crate::problems::OrProblem;
use serde_json::Value;
use skep_store::ApprovalFilter;
use skep_types::{
    AppliedPath, Approval, ApprovalId, ApprovalKind, ApprovalState, ByteString, Code, Problem,
    RelPath, Selection,
};
use skep_workspace::apply::{
    Recovered, Resolution, Target, kept_backups, left_behind, resolve, undo_targets,
};
use skep_workspace::tree::TreeRoot;
use std::collections::BTreeSet;
use std::path::Path;

impl Engine {
    pub(crate) fn undo_approval(
        &self,
        approval: Option<&ApprovalId>,
        project: &Path,
    ) -> Result<ApproveReport, Problem> {
        let approval = match approval {
            Some(id) => self.store.find_approval(id.as_str()).or_problem()?,
            None => self.newest(project)?,
        };
        let _project = self.lock_project(&approval.project)?;
        let approval = self.store.find_approval(approval.id.as_str()).or_problem()?;
        if approval.state == ApprovalState::NeedsAttention {
            return self.resolve_locked(&approval, Resolution::Revert);
        }
        check_undoable(&approval)?;
        let locked = match self.lock_sandbox(&approval.sandbox) {
            // It is gone; what was taken over from it is not.
            Err(problem) if problem.code == Code::NotFound => None,
            other => Some(other?),
        };
        let mut targets =
            undo_targets(&self.layout().approval(&approval.id)).map_err(|e| apply_problem(&e))?;
        let note = self.note_of(&approval.id)?;
        let direction = note.direction.reversed();
        let note = Note { settlement: note.settlement, direction, all: false };
        let root = approval.project.as_path();
        let opened = |error| crate::problems::io_problem("open project", root, &error);
        let tree = TreeRoot::open(root).map_err(opened)?;
        let identity = tree.identity().map_err(opened)?;
        leave_put_back(&mut targets, &tree);
        let undo = Approval {
            id: ApprovalId::from_random((self.config.random)()),
            kind: ApprovalKind::Undo { of: approval.id.clone() },
            selection: Selection::default(),
            paths: targets
                .iter()
                .map(|target| AppliedPath {
                    path: target.path.clone(),
                    before: target.before.clone(),
                    after: target.after.clone(),
                    exec: None,
                })
                .collect(),
            commit: None,
            approver: self.approver(),
            at: self.now(),
            ..approval.clone()
        };
        let (undo, applied) = self
            .apply(undo, identity, targets, &note)
            .map_err(|problem| self.in_the_way(&approval, problem))?;
        // The undo stands, whether or not the rest can be counted.
        let remaining = locked.and_then(|(sandbox, _lock)| self.left(&sandbox).ok());
        let remaining = remaining.map_or(0, |left| left.changes + left.ignored + left.git);
        let commit_stays = approval.commit.iter().map(|commit| {
            format!(
                "the commit {commit} stays: if it is the newest, `git reset {commit}^` takes it back; \
                 otherwise commit the files as they are now, which is what `git revert` does"
            )
        });
        Ok(ApproveReport {
            approval: Some(undo.id),
            digest: approval.digest,
            applied: applied.paths.into_iter().map(|path| path.path).collect(),
            remaining,
            remaining_ignored: 0,
            commit: None,
            notes: commit_stays.collect(),
        })
    }

    /// What was approved cannot be taken back because it is not there any more: by whose doing, and what to do.
    fn in_the_way(&self, approval: &Approval, problem: Problem) -> Problem {
        let conflicts = problem.details.get("conflicts").and_then(Value::as_array);
        let Some(conflicts) = conflicts.filter(|_| problem.code == Code::Conflict) else {
            return problem;
        };
        let paths: BTreeSet<RelPath> = conflicts
            .iter()
            .filter_map(|conflict| serde_json::from_value(conflict["path"].clone()).ok())
            .collect();
        let hint = match self.later(approval, &paths) {
            Some((later, path)) => format!(
                "nothing was changed; approval `{later}` changed `{path}` after it: `skep undo {later}` \
                 first"
            ),
            None => "nothing was changed; what is to be taken back must be there as it was approved: keep \
                     a copy of your files, take your own edits out of them, try again, then bring \
                     them back"
                .to_owned(),
        };
        problem.hint(hint)
    }

    /// The newest approval after this one that stands and has to do with one of the paths, and which.
    fn later(
        &self,
        approval: &Approval,
        paths: &BTreeSet<RelPath>,
    ) -> Option<(ApprovalId, RelPath)> {
        let filter = ApprovalFilter {
            project: Some(approval.project.clone()),
            states: vec![ApprovalState::Applied],
            ..ApprovalFilter::default()
        };
        let all = self.store.list_approvals(&filter).ok()?;
        all.into_iter().take_while(|one| one.id != approval.id).find_map(|one| {
            let touched = one.paths.into_iter().find(|applied| paths.contains(&applied.path))?;
            Some((one.id, touched.path))
        })
    }

    /// The way out of an approval that needs attention, in either direction.
    pub(crate) fn resolve_approval(
        &self,
        id: &ApprovalId,
        resolution: Resolution,
    ) -> Result<ApproveReport, Problem> {
        let approval = self.store.find_approval(id.as_str()).or_problem()?;
        let _project = self.lock_project(&approval.project)?;
        let approval = self.store.find_approval(id.as_str()).or_problem()?;
        if approval.state != ApprovalState::NeedsAttention {
            let message = format!("approval `{id}` needs no attention");
            return Err(Problem::new(Code::IllegalState, message).hint("see `skep history`"));
        }
        self.resolve_locked(&approval, resolution)
    }

    fn resolve_locked(
        &self,
        approval: &Approval,
        resolution: Resolution,
    ) -> Result<ApproveReport, Problem> {
        let directory = self.layout().approval(&approval.id);
        let recovered = resolve(&directory, resolution).map_err(|error| apply_problem(&error))?;
        // What was decided before an outage stands, whatever is asked for now.
        let (applied, note): (Vec<_>, _) = match &recovered {
            Recovered::Applied { applied, .. } => (
                applied.paths.iter().map(|path| path.path.clone()).collect(),
                "finished; what you had changed is kept as the backup",
            ),
            _ => (Vec::new(), "taken back; what you had changed stays"),
        };
        let mut notes = vec![note.to_owned()];
        if !matches!(recovered, Recovered::Applied { .. }) {
            let kept = kept_backups(&directory).map_err(|error| apply_problem(&error))?;
            notes.extend(kept.iter().map(|kept| {
                let (path, at) = (&kept.path, ByteString::from(kept.at.as_path()));
                format!("what stood at `{path}` before the approval is kept: `{at}`")
            }));
        }
        self.record_recovery(approval, recovered)?;
        Ok(settled(approval, applied, notes))
    }

    /// Gives up an approval that can be neither finished nor taken back: its journal is damaged, or
    /// the directory it was meant for is another one now. The project stays as it is, everything that
    /// was staged or taken out is kept and named, and the project can be worked on again.
    pub(crate) fn abandon_approval(&self, id: &ApprovalId) -> Result<ApproveReport, Problem> {
        let approval = self.store.find_approval(id.as_str()).or_problem()?;
        let _project = self.lock_project(&approval.project)?;
        // It may just not have been recovered yet: then there is a better end.
        let stuck =
            self.recover_approval(&self.store.find_approval(id.as_str()).or_problem()?).is_err();
        let approval = self.store.find_approval(id.as_str()).or_problem()?;
        if !stuck && approval.state != ApprovalState::NeedsAttention {
            let message = format!("approval `{id}` is finished; there is nothing to give up");
            return Err(Problem::new(Code::IllegalState, message).hint("see `skep history`"));
        }
        let mut kept = left_behind(approval.project.as_path(), id);
        let journal = self.layout().approval(id);
        kept.extend(Some(journal).filter(|path| crate::layout::may_be_there(path)));
        let kept: Vec<ByteString> = kept.into_iter().map(ByteString::from).collect();
        let data = serde_json::json!({ "approval": id, "kept": kept });
        let event = self.event("approval.abandoned", &approval.sandbox, None, data);
        self.store.move_approval(id, ApprovalState::Aborted, &[event], &mut |_| {}).or_problem()?;
        let mut notes =
            vec!["given up; the project stays as it is, and may hold a part of it".to_owned()];
        notes.extend(kept.iter().map(|path| format!("kept: `{path}`")));
        notes.push("`skep diff` shows what differs; remove what is kept when you are done".into());
        Ok(settled(&approval, Vec::new(), notes))
    }

    /// The newest approval of a project that can be undone, or that an outage left half done: that one
    /// comes first, nothing is applied before it is settled.
    fn newest(&self, project: &Path) -> Result<Approval, Problem> {
        let project = std::fs::canonicalize(project).unwrap_or_else(|_| project.to_owned());
        let name = ByteString::from(project.as_path());
        if let Some(half_done) = self.needing_attention(&name)? {
            return Ok(half_done);
        }
        let found = self.store.newest_undoable(&name).or_problem()?;
        found.ok_or_else(|| {
            let message = format!("no approval of project `{}` can be undone", project.display());
            Problem::new(Code::NotFound, message).hint("see `skep history`")
        })
    }
}

/// The report of an approval that was brought to an end.
fn settled(approval: &Approval, applied: Vec<RelPath>, notes: Vec<String>) -> ApproveReport {
    ApproveReport {
        approval: Some(approval.id.clone()),
        digest: approval.digest,
        applied,
        remaining: 0,
        remaining_ignored: 0,
        commit: None,
        notes,
    }
}

/// What the user put back is undone. What came by a rename and is gone may have been moved on, unless it
/// is back where it came from: that is for the user to say.
fn leave_put_back(targets: &mut Vec<Target>, tree: &TreeRoot) {
    let back = |target: &Target| tree.state(&target.path).is_ok_and(|state| state == target.after);
    let missing: BTreeSet<String> = targets
        .iter()
        .filter(|target| !back(target))
        .map(|target| format!("{:?}", target.after))
        .collect();
    targets.retain(|target| {
        let moved_on =
            target.after.is_absent() && missing.contains(&format!("{:?}", target.before));
        !back(target) || moved_on
    });
}

fn check_undoable(approval: &Approval) -> Result<(), Problem> {
    let problem = |message: String| Err(Problem::new(Code::Conflict, message));
    match approval.state {
        ApprovalState::Applied => Ok(()),
        ApprovalState::Undone => problem(format!("approval `{}` was undone already", approval.id)),
        ApprovalState::Aborted => {
            problem(format!("approval `{}` never reached the project", approval.id))
        }
        ApprovalState::Applying | ApprovalState::Committed | ApprovalState::NeedsAttention => {
            problem(format!("approval `{}` is not finished", approval.id))
        }
    }
}
