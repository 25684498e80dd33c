//! Start, stop, freeze, thaw, remove.

use crate::api::{Disposal, SettledRun};
use crate::create::find_hidden;
use crate::hidden::{Searched, note_hidden};
use crate::problems::{OrProblem, io_problem};
use crate::state_place::spend_reserve;
use crate::{Engine, hidden, trash};
use serde_json::{Value, json};
use skep_provider::Started;
use skep_store::{ExecMoves, Expect, NewEvent};
use skep_sys::failpoint;
use skep_types::{
    ChangeSet, Code, ExecEnd, ExecId, Problem, Sandbox, SandboxId, SandboxState, WorkspaceDriver,
};

impl Engine {
    /// Changes a sandbox's row.
    pub(crate) fn update(
        &self,
        id: &SandboxId,
        kind: &str,
        data: Value,
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox, Problem> {
        self.update_with(id, &[], kind, data, change)
    }

    /// The same, with the ends of execs that come with it.
    fn update_with(
        &self,
        id: &SandboxId,
        ended: &[EndedExec],
        kind: &str,
        data: Value,
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox, Problem> {
        let event = self.event(kind, id, None, data);
        let now = self.now();
        let moves = ExecMoves { begun: &[], ended };
        self.store
            .update_with_execs(id, Expect::default(), moves, &[event], &mut |row| {
                change(row);
                row.updated_at.clone_from(&now);
            })
            .or_problem()
    }

    /// Makes sure that a keeper holds the sandbox.
    pub(crate) fn ensure_running(&self, sandbox: Sandbox) -> Result<Sandbox, Problem> {
        if self.is_running(&sandbox) {
            return Ok(sandbox);
        }
        let _lock = self.lock_sandbox(&sandbox)?;
        // Somebody else may have started it while we waited.
        let sandbox = self.load(&sandbox.id)?;
        if self.is_running(&sandbox) {
            return Ok(sandbox);
        }
        self.bury_execs(&sandbox)?;
        let (sandbox, started) = self.start_keeper(sandbox)?;
        self.update(&sandbox.id, "sandbox.started", Value::Null, &mut |row| {
            row.state = SandboxState::Ready;
            row.state_reason = None;
            row.keeper = Some(started.keeper.clone());
            row.enforcement = started.enforcement.clone();
        })
    }

    /// Starts a sandbox that no keeper holds. Whoever does so searches for secrets first, and the report
    /// says what was hidden.
    pub(crate) fn start_keeper(&self, sandbox: Sandbox) -> Result<(Sandbox, Started), Problem> {
        let (sandbox, searched) = self.hide_more(sandbox)?;
        let provider = self.provider(&sandbox.provider)?;
        let mut started = provider.start(&self.start_spec(&sandbox)?).or_problem()?;
        note_hidden(&mut started.enforcement, sandbox.hidden.len(), &searched);
        Ok((sandbox, started))
    }

    /// Secrets that came into the project since the sandbox was last started are hidden too. What
    /// was hidden stays so. Nothing is mounted now, so the mask may change.
    fn hide_more(&self, sandbox: Sandbox) -> Result<(Sandbox, Searched), Problem> {
        let project = sandbox.project.as_path();
        let (found, searched) = find_hidden(project, &sandbox.policy, &self.layout().searched())?;
        let new: Vec<_> =
            found.into_iter().filter(|path| sandbox.hidden.binary_search(path).is_err()).collect();
        // A copy was made without what was hidden then, and has nothing newer.
        if new.is_empty() || sandbox.driver == WorkspaceDriver::Copy {
            return Ok((sandbox, searched));
        }
        let mask = self.layout().sandbox(&sandbox.id).join("mask");
        hidden::make_mask(&mask, project, &new)
            .map_err(|error| io_problem("hide secrets in", &mask, &error))?;
        let data = json!({ "paths": new });
        let sandbox = self.update(&sandbox.id, "sandbox.hidden", data, &mut |row| {
            row.hidden.extend(new.iter().cloned());
            row.hidden.sort();
        })?;
        Ok((sandbox, searched))
    }

    pub(crate) fn start_sandbox(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        self.ensure_running(self.load(id)?)
    }

    pub(crate) fn stop_sandbox(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        let sandbox = self.load(id)?;
        let _lock = self.lock_sandbox(&sandbox)?;
        self.stop_locked(sandbox)
    }

    /// Under one lock, and with no row written that the next one would overwrite: if this process
    /// dies before the last one, the next finds a row whose keeper is gone, and settles that. What was
    /// changed is looked at while the keeper still clears away.
    pub(crate) fn settle_after_run(
        &self,
        id: &SandboxId,
        disposal: Disposal,
    ) -> Result<SettledRun, Problem> {
        let sandbox = self.load(id)?;
        let _lock = self.lock_sandbox(&sandbox)?;
        let directory = self.layout().sandbox(&sandbox.id);
        let provider = self.provider(&sandbox.provider)?;
        provider.still(&sandbox.id, &directory, sandbox.keeper.as_ref()).or_problem()?;
        let ended = self.last_ends(&sandbox)?;
        let looked = self.derive(&sandbox).and_then(|derived| self.judged(&sandbox, derived));
        let goes = |changes: &ChangeSet| disposal.goes(changes);
        // Changes that nobody reviewed go only when somebody says so, as with every removal.
        let may_go = |changes: &ChangeSet| disposal.discard || changes.changes.is_empty();
        match looked {
            Ok(changes) if goes(&changes) && may_go(&changes) => {
                let removal = Some(self.delete_or_spend(&sandbox, &ended));
                Ok(SettledRun { changes, removal })
            }
            looked => {
                self.end_processes(&sandbox)?;
                let sandbox = self.note_stopped(sandbox, &ended)?;
                let changes = looked?;
                let removal = goes(&changes).then(|| self.refuse_unreviewed(&sandbox));
                Ok(SettledRun { changes, removal })
            }
        }
    }

    /// Ends everything inside. What was approved or rejected stays so.
    pub(crate) fn stop_locked(&self, sandbox: Sandbox) -> Result<Sandbox, Problem> {
        self.end_processes(&sandbox)?;
        let ended = self.last_ends(&sandbox)?;
        self.note_stopped(sandbox, &ended)
    }

    fn end_processes(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let provider = self.provider(&sandbox.provider)?;
        let directory = self.layout().sandbox(&sandbox.id);
        provider.stop(&sandbox.id, &directory, sandbox.keeper.as_ref()).or_problem()
    }

    fn note_stopped(&self, sandbox: Sandbox, ended: &[EndedExec]) -> Result<Sandbox, Problem> {
        self.update_with(&sandbox.id, ended, "sandbox.stopped", Value::Null, &mut |row| {
            row.keeper = None;
            if matches!(row.state, SandboxState::Ready | SandboxState::Frozen | SandboxState::Error)
            {
                row.state = SandboxState::Stopped;
            }
        })
    }

    pub(crate) fn freeze_sandbox(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        let sandbox = self.load(id)?;
        let _lock = self.lock_sandbox(&sandbox)?;
        if !self.is_running(&sandbox) {
            let message = format!("sandbox `{}` is not running", sandbox.name);
            return Err(
                Problem::new(Code::IllegalState, message).hint("start it with `skep start`")
            );
        }
        check_move(&sandbox, SandboxState::Frozen)?;
        // If we die before the row says so, the next command finds the mark and lets them go on.
        let mark = self.mark_stilled(&sandbox)?;
        self.provider(&sandbox.provider)?.freeze(&self.run_spec(&sandbox)).or_problem()?;
        failpoint::hit("freeze.still").map_err(|error| io_problem("freeze", &mark, &error))?;
        let frozen = self.update(id, "sandbox.frozen", Value::Null, &mut |row| {
            row.state = SandboxState::Frozen;
        })?;
        let _ = std::fs::remove_file(mark);
        Ok(frozen)
    }

    pub(crate) fn thaw_sandbox(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        let sandbox = self.load(id)?;
        let _lock = self.lock_sandbox(&sandbox)?;
        if sandbox.state != SandboxState::Frozen {
            check_move(&sandbox, SandboxState::Ready)?;
            return Ok(sandbox);
        }
        // The row first: whoever dies then has said that they go on, and the mark makes that true.
        let mark = self.mark_stilled(&sandbox)?;
        let thawed = self.update(id, "sandbox.thawed", Value::Null, &mut |row| {
            row.state = SandboxState::Ready;
        })?;
        failpoint::hit("thaw.row").map_err(|error| io_problem("thaw", &mark, &error))?;
        self.provider(&sandbox.provider)?.thaw(&self.run_spec(&sandbox)).or_problem()?;
        let _ = std::fs::remove_file(mark);
        Ok(thawed)
    }

    pub(crate) fn remove_sandbox(&self, id: &SandboxId, discard: bool) -> Result<(), Problem> {
        let sandbox = self.load(id)?;
        let _lock = self.lock_sandbox(&sandbox)?;
        if !discard {
            self.refuse_unreviewed(&sandbox)?;
        }
        self.delete_or_spend(&sandbox, &[])
    }

    fn delete_or_spend(&self, sandbox: &Sandbox, ended: &[EndedExec]) -> Result<(), Problem> {
        match self.delete_with(sandbox, ended) {
            // On a full disk not even a row can be written: what removing needs is kept back.
            Err(problem) if problem.code == Code::NoSpace && spend_reserve(self.layout()) => {
                self.delete_with(sandbox, ended)
            }
            other => other,
        }
    }

    /// Unreviewed work goes only when somebody says so.
    fn refuse_unreviewed(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let count = self.unreviewed(sandbox)?;
        if count == 0 {
            return Ok(());
        }
        let message = format!("sandbox `{}` has {count} unreviewed change(s)", sandbox.name);
        Err(Problem::new(Code::UnreviewedChanges, message).hint(format!(
            "see `skep diff {0}`, take over with `skep approve {0}`, or drop them with `skep rm --discard {0}`",
            sandbox.name
        )))
    }

    /// 1. The row says that it goes: from here on a crash goes on deleting.
    /// 2. Everything inside ends.
    /// 3. Its directory leaves by a rename, then piece by piece.
    pub(crate) fn delete(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        self.delete_with(sandbox, &[])
    }

    /// The same, with the ends of execs that are not written down yet.
    fn delete_with(&self, sandbox: &Sandbox, ended: &[EndedExec]) -> Result<(), Problem> {
        crate::ways::forget(self.layout(), &sandbox.name);
        let snapshots = self.store.list_snapshots(Some(&sandbox.id)).or_problem()?;
        let data = json!({ "name": sandbox.name });
        self.update_with(&sandbox.id, ended, "sandbox.deleted", data, &mut |row| {
            row.state = SandboxState::Deleted;
        })?;
        failpoint::hit("delete.row")
            .map_err(|error| io_problem("delete", self.layout().root(), &error))?;
        let mut layers = sandbox.layers.clone();
        for snapshot in snapshots {
            self.store.remove_snapshot(&sandbox.id, &snapshot.label).or_problem()?;
            layers.extend(snapshot.layers);
        }
        self.end_all(sandbox)?;
        self.discard_directory(sandbox)?;
        self.sweep_layers(&layers)
    }

    pub(crate) fn finish_deleting(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        self.end_all(sandbox)?;
        self.discard_directory(sandbox)
    }

    fn end_all(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let directory = self.layout().sandbox(&sandbox.id);
        let provider = self.provider(&sandbox.provider)?;
        let keeper = sandbox.keeper.as_ref().filter(|_| sandbox.state != SandboxState::Creating);
        provider.stop(&sandbox.id, &directory, keeper).or_problem()
    }

    fn discard_directory(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let directory = self.layout().sandbox(&sandbox.id);
        trash::discard(&directory, &self.layout().trash())
            .map_err(|error| io_problem("remove", &directory, &error))?;
        let _ = std::fs::remove_file(self.layout().sandbox_lock(&sandbox.id));
        Ok(())
    }
}

/// How an exec ended, with the event that tells it.
type EndedExec = (ExecId, ExecEnd, NewEvent);

/// There is something to review again.
pub(crate) fn pend(row: &mut Sandbox) {
    if matches!(row.state, SandboxState::Approved | SandboxState::Rejected) {
        row.state = match row.keeper {
            Some(_) => SandboxState::Ready,
            None => SandboxState::Stopped,
        };
    }
}

fn check_move(sandbox: &Sandbox, to: SandboxState) -> Result<(), Problem> {
    sandbox.state.check_move(to).map_err(|error| {
        Problem::new(Code::IllegalState, format!("sandbox `{}`: {error}", sandbox.name))
    })
}
