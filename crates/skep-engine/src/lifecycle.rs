//! Start, stop, freeze, thaw, remove.

use crate::api::{Disposal, SettledRun};
use crate::create::find_hidden;
use crate::hidden::{Searched, note_hidden, note_opened};
use crate::problems::{OrProblem, io_problem};
use crate::quota::Wanted;
use crate::review::{Left, Shut, counted};
use crate::shut::note_shut;
use crate::state_place::spend_reserve;
use crate::waste::Waste;
use crate::{Engine, hidden, trash, ways};
use serde_json::{Value, json};
use skep_provider::{ProviderError, Started, Stillness};
use skep_store::{ExecMoves, Expect, NewEvent, Snapshot};
use skep_sys::failpoint;
use skep_types::{
    ChangeSet, Code, ExecEnd, ExecId, Problem, RelPath, Sandbox, SandboxId, SandboxState,
    WorkspaceDriver,
};
use std::time::Duration;

/// What a freeze without a freezer is called.
const BY_SIGNALS: &str =
    "stopped by signals: no cgroup can be written here whose freezer would hold them";
/// How long those who were stopped are watched before they are called frozen.
const SETTLING: Duration = Duration::from_millis(60);
/// How often that is tried.
const FREEZES: u32 = 3;

fn forget_signals(row: &mut Sandbox) {
    row.state_reason = row.state_reason.take().filter(|reason| reason != BY_SIGNALS);
}

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
        let (sandbox, _lock) = self.lock_sandbox(&sandbox.id)?;
        // Somebody else may have started it while we waited.
        if self.is_running(&sandbox) {
            return Ok(sandbox);
        }
        let (settings, _) = self.settings(None, None)?;
        let (id, limits) = (sandbox.id.clone(), sandbox.policy.limits.clone());
        let wanted = Wanted { sandboxes: 0, runs: Some(&limits), id: Some(&id) };
        // Held until the row says that it runs.
        let _counted = self.check_quota(&settings.quota, &wanted)?;
        self.bury_execs(&sandbox)?;
        self.resume_settling(&sandbox, Shut::Left)?;
        let (sandbox, started) = self.start_keeper(sandbox)?;
        self.note_keeper(&sandbox, &started, "sandbox.started", &mut |row| {
            row.state = SandboxState::Ready;
            row.state_reason = None;
        })
    }

    /// Writes down who holds a sandbox now. A keeper that no row tells of is ended again.
    pub(crate) fn note_keeper(
        &self,
        sandbox: &Sandbox,
        started: &Started,
        kind: &str,
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox, Problem> {
        let noted = failpoint::hit("start.keeper")
            .map_err(|error| io_problem("start", self.layout().root(), &error))
            .and_then(|()| {
                self.update(&sandbox.id, kind, Value::Null, &mut |row| {
                    row.keeper = Some(started.keeper.clone());
                    row.enforcement = started.enforcement.clone();
                    change(row);
                })
            });
        if noted.is_err() {
            let directory = self.layout().sandbox(&sandbox.id);
            let ended = self
                .provider(&sandbox.provider)
                .map(|provider| provider.stop(&sandbox.id, &directory, Some(&started.keeper)));
            // Whoever starts it next ends it first.
            drop(ended);
        }
        noted
    }

    /// Starts a sandbox that no keeper holds. Whoever does so searches for secrets first, and the report
    /// says what was hidden.
    pub(crate) fn start_keeper(&self, sandbox: Sandbox) -> Result<(Sandbox, Started), Problem> {
        let (sandbox, searched) = self.hide_more(sandbox)?;
        let provider = self.provider(&sandbox.provider)?;
        // Whoever started it last may have died before it could be written down who holds it.
        let directory = self.layout().sandbox(&sandbox.id);
        provider.stop(&sandbox.id, &directory, None).or_problem()?;
        let mut started = provider.start(&self.start_spec(&sandbox)?).or_problem()?;
        note_hidden(&mut started.enforcement, sandbox.hidden.len(), &searched);
        note_opened(&mut started.enforcement, &sandbox.policy);
        let upper = self.layout().sandbox(&sandbox.id).join("upper");
        note_shut(&mut started.enforcement, &sandbox, &upper);
        Ok((sandbox, started))
    }

    /// Secrets that came into the project since the sandbox was last started are hidden too. What
    /// was hidden stays so. Nothing is mounted now, so the mask may change.
    pub(crate) fn hide_more(&self, sandbox: Sandbox) -> Result<(Sandbox, Searched), Problem> {
        let project = sandbox.project.as_path();
        let (found, searched) = find_hidden(project, &sandbox.policy, &self.layout().searched())?;
        let is_hidden = |path: &RelPath| sandbox.hidden.binary_search(path).is_ok();
        let known =
            |path: &RelPath| is_hidden(path) || path.ancestors().any(|above| is_hidden(&above));
        let new: Vec<_> = found.into_iter().filter(|path| !known(path)).collect();
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
        let sandbox = self.ensure_running(self.load(id)?)?;
        // Whoever starts it wants to see it go on, which it does not.
        crate::execs::refuse_frozen(&sandbox)?;
        Ok(sandbox)
    }

    pub(crate) fn stop_sandbox(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
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
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let last = self.spending(|| self.still(&sandbox, Unread::Fails))?;
        let looked = self.derive(&sandbox).and_then(|derived| self.judged(&sandbox, derived));
        let may_go = |changes: &ChangeSet| match disposal.discard {
            true => Ok(()),
            // Work that nobody reviewed goes only when somebody says so, as with every removal.
            false => refuse_loss(&sandbox, &Left::of(&sandbox, &changes.changes), &last.snapshots),
        };
        let goes = looked.as_ref().ok().filter(|changes| disposal.goes(changes));
        let removal = match goes.map(may_go) {
            Some(Ok(())) => {
                let removed = self.spending(|| self.delete_stilled(&sandbox, &last));
                self.chores.borrow_mut().finish();
                Some(removed)
            }
            kept => {
                self.chores.borrow_mut().finish();
                self.end_processes(&sandbox)?;
                self.spending(|| self.note_stopped(&sandbox, &last.ended))?;
                kept
            }
        };
        Ok(SettledRun { changes: looked?, removal })
    }

    /// Ends everything inside. What was approved or rejected stays so, unless something was written since.
    pub(crate) fn stop_locked(&self, sandbox: Sandbox) -> Result<Sandbox, Problem> {
        self.end_processes(&sandbox)?;
        let stopped = self.spending(|| self.note_stopped(&sandbox, &self.last_ends(&sandbox)?))?;
        if decided(&stopped).is_none() || sandbox.keeper.is_none() {
            return Ok(stopped);
        }
        // By a command that ran through the decision. What cannot be looked at is looked at before it goes.
        match self.left(&stopped) {
            Ok(left) if left.unreviewed() > 0 => {
                self.update(&stopped.id, "sandbox.stopped", Value::Null, &mut pend)
            }
            _ => Ok(stopped),
        }
    }

    /// Ends everything inside, and says what is left of it besides its changes. What is left of its
    /// keeper is on its way out.
    fn still(&self, sandbox: &Sandbox, unread: Unread) -> Result<Last, Problem> {
        let provider = self.provider(&sandbox.provider)?;
        let directory = self.layout().sandbox(&sandbox.id);
        provider.still(&sandbox.id, &directory, sandbox.keeper.as_ref()).or_problem()?;
        let snapshots = self.store.list_snapshots(Some(&sandbox.id)).or_problem()?;
        let ended = match self.last_ends(sandbox) {
            Err(problem) if unread == Unread::IsLost && problem.code != Code::NoSpace => Vec::new(),
            other => other?,
        };
        Ok(Last { ended, snapshots })
    }

    /// Ends everything inside, and waits until nothing is left of its keeper.
    fn end_processes(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let provider = self.provider(&sandbox.provider)?;
        let directory = self.layout().sandbox(&sandbox.id);
        provider.stop(&sandbox.id, &directory, sandbox.keeper.as_ref()).or_problem()
    }

    fn note_stopped(&self, sandbox: &Sandbox, ended: &[EndedExec]) -> Result<Sandbox, Problem> {
        let by_itself = sandbox.state == SandboxState::Stopped && sandbox.state_reason.is_some();
        if is_at_rest(sandbox) && ended.is_empty() && !by_itself {
            // Said twice it is done once: no event, and no other version.
            return Ok(sandbox.clone());
        }
        let stopped =
            self.update_with(&sandbox.id, ended, "sandbox.stopped", Value::Null, &mut |row| {
                // It stood still by itself; now somebody said so.
                if by_itself {
                    row.state_reason = None;
                }
                row.keeper = None;
                forget_signals(row);
                if matches!(
                    row.state,
                    SandboxState::Ready | SandboxState::Frozen | SandboxState::Error
                ) {
                    row.state = SandboxState::Stopped;
                }
            })?;
        match sandbox.state {
            SandboxState::Frozen => self.as_decided(stopped, decided(sandbox)),
            _ => Ok(stopped),
        }
    }

    pub(crate) fn freeze_sandbox(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        if !self.is_running(&sandbox) {
            return Err(not_running(&sandbox));
        }
        let decided = decided(&sandbox);
        let sandbox = self.running_on(sandbox)?;
        check_move(&sandbox, SandboxState::Frozen)?;
        // If we die before the row says so, the next command finds the mark and lets them go on.
        let mark = self.mark_stilled(&sandbox)?;
        let how = match self.freeze_for_good(&sandbox) {
            Ok(how) => how,
            Err(problem) if sandbox.state == SandboxState::Frozen => return Err(problem),
            Err(problem) => return self.as_decided(sandbox, decided).and(Err(problem)),
        };
        failpoint::hit("freeze.still").map_err(|error| io_problem("freeze", &mark, &error))?;
        if sandbox.state == SandboxState::Frozen {
            let _ = std::fs::remove_file(mark);
            return Ok(sandbox);
        }
        let data = how.map_or(Value::Null, |how| json!({ "reason": how }));
        let frozen = self.update(id, "sandbox.frozen", data, &mut |row| {
            row.state = SandboxState::Frozen;
            note_decided(row, decided);
            row.state_reason = how.map(str::to_owned).or(row.state_reason.take());
        })?;
        let _ = std::fs::remove_file(mark);
        Ok(frozen)
    }

    /// Everything was decided on, and something inside goes on: it may write again at any time.
    fn running_on(&self, sandbox: Sandbox) -> Result<Sandbox, Problem> {
        if !matches!(sandbox.state, SandboxState::Approved | SandboxState::Rejected) {
            return Ok(sandbox);
        }
        self.update(&sandbox.id, "sandbox.ready", Value::Null, &mut pend)
    }

    /// The state that says what was decided on everything, where it was: that it was paused, or stopped,
    /// decides nothing.
    fn as_decided(
        &self,
        sandbox: Sandbox,
        decided: Option<SandboxState>,
    ) -> Result<Sandbox, Problem> {
        let Some(state) = decided else { return Ok(sandbox) };
        self.update(&sandbox.id, &format!("sandbox.{state}"), Value::Null, &mut |row| {
            row.state = state;
            note_decided(row, None);
        })
    }

    /// Pauses everyone inside, and says if only signals hold them. Whoever does not stay stopped is no
    /// longer paused by us: all go on, and it is said who it was. Where nobody moves because the last
    /// command has ended, and it is being stopped, nobody is paused.
    fn freeze_for_good(&self, sandbox: &Sandbox) -> Result<Option<&'static str>, Problem> {
        let (provider, spec) = (self.provider(&sandbox.provider)?, self.run_spec(sandbox));
        let hold = || {
            provider.freeze(&spec)?;
            match provider.stood(&spec)? {
                Stillness::Stopped => {
                    std::thread::sleep(SETTLING);
                    provider.stood(&spec)
                }
                known => Ok(known),
            }
        };
        let mut result = hold();
        for _ in 1..FREEZES {
            if matches!(result, Ok(Stillness::Moved(_))) {
                result = hold();
            }
        }
        let stood = result.and_then(|stood| Ok((stood, provider.status(&spec)?.frozen)));
        let refused = match stood {
            Ok((Stillness::Moved(moved), _)) => ProviderError::Moved(moved),
            Ok((_, false)) => ProviderError::NotRunning(sandbox.id.clone()),
            Ok((Stillness::Held, true)) => return Ok(None),
            Ok((Stillness::Stopped, true)) => return Ok(Some(BY_SIGNALS)),
            Err(error) => error,
        };
        if provider.thaw(&spec).is_ok() {
            let _ = std::fs::remove_file(self.layout().stilled(&sandbox.id));
        }
        Err(refused).or_problem()
    }

    pub(crate) fn thaw_sandbox(&self, id: &SandboxId) -> Result<Sandbox, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        if sandbox.state != SandboxState::Frozen {
            check_move(&sandbox, SandboxState::Ready)?;
            // What runs is thawed already; what stands still because nobody holds it is not frozen.
            return if self.is_running(&sandbox) {
                Ok(sandbox)
            } else {
                Err(not_running(&sandbox))
            };
        }
        self.resume_settling(&sandbox, Shut::Left)?;
        // The row first: whoever dies then has said that they go on, and the mark makes that true.
        let mark = self.mark_stilled(&sandbox)?;
        let thawed = self.update(id, "sandbox.thawed", Value::Null, &mut |row| {
            row.state = SandboxState::Ready;
            forget_signals(row);
        })?;
        let thawed = self.as_decided(thawed, decided(&sandbox))?;
        failpoint::hit("thaw.row").map_err(|error| io_problem("thaw", &mark, &error))?;
        self.provider(&sandbox.provider)?.thaw(&self.run_spec(&sandbox)).or_problem()?;
        let _ = std::fs::remove_file(mark);
        Ok(thawed)
    }

    /// Without `discard` it is looked at twice: while it runs, so that a refusal disturbs nobody, and
    /// again when nothing in it can write any more. What was written in between is unreviewed work
    /// like any other; it is then kept, stopped.
    pub(crate) fn remove_sandbox(&self, id: &SandboxId, discard: bool) -> Result<(), Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        if !discard {
            let snapshots = self.store.list_snapshots(Some(id)).or_problem()?;
            refuse_loss(&sandbox, &self.left(&sandbox)?, &snapshots)?;
        }
        failpoint::hit("remove.judged")
            .map_err(|error| io_problem("remove", self.layout().root(), &error))?;
        let unread = if discard { Unread::IsLost } else { Unread::Fails };
        let still = || self.still(&sandbox, unread);
        let last = match discard {
            true => self.giving_way(&sandbox, still)?,
            false => self.spending(still)?,
        };
        let judged = match discard {
            true => Ok(()),
            false => self.derive(&sandbox).and_then(|found| {
                refuse_loss(&sandbox, &Left::of(&sandbox, &found.changes), &last.snapshots)
            }),
        };
        if let Err(problem) = judged {
            self.end_processes(&sandbox)?;
            self.spending(|| self.note_stopped(&sandbox, &last.ended))?;
            return Err(problem);
        }
        self.giving_way(&sandbox, || self.delete_stilled(&sandbox, &last))
    }

    /// On a full disk not even a row can be written: what ending and removing need is kept back, and
    /// spent.
    pub(crate) fn spending<T>(&self, work: impl Fn() -> Result<T, Problem>) -> Result<T, Problem> {
        match work() {
            Err(problem) if problem.code == Code::NoSpace && spend_reserve(self.layout()) => work(),
            other => other,
        }
    }

    /// The same where it is decided that the sandbox goes with its changes. If not even that was kept
    /// back, they go first: they make room for the row that says so.
    fn giving_way<T>(
        &self,
        sandbox: &Sandbox,
        remove: impl Fn() -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let changes = || self.layout().sandbox(&sandbox.id).join("upper");
        match self.spending(&remove) {
            Err(problem)
                if problem.code == Code::NoSpace
                    && self.end_processes(sandbox).is_ok()
                    && trash::remove(&changes()).is_ok() =>
            {
                remove()
            }
            other => other,
        }
    }

    /// Ends everything inside, and then removes the sandbox with all it has.
    pub(crate) fn delete(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let last = self.still(sandbox, Unread::Fails)?;
        self.delete_stilled(sandbox, &last)
    }

    /// Removes a sandbox in which nothing runs.
    ///
    /// 0. Nobody else has anything mounted from its directory.
    /// 1. The row says that it goes, and how its execs ended: from here on a crash goes on deleting.
    /// 2. Its keeper has gone.
    /// 3. Its directory leaves by a rename, then piece by piece.
    fn delete_stilled(&self, sandbox: &Sandbox, last: &Last) -> Result<(), Problem> {
        let provider = self.provider(&sandbox.provider)?;
        let directory = self.layout().sandbox(&sandbox.id);
        provider.refuse_removal(&sandbox.id, &directory).or_problem()?;
        failpoint::hit("delete.ends")
            .map_err(|error| io_problem("delete", self.layout().root(), &error))?;
        let data = json!({ "name": sandbox.name });
        self.update_with(&sandbox.id, &last.ended, "sandbox.deleted", data, &mut |row| {
            row.state = SandboxState::Deleted;
        })?;
        failpoint::hit("delete.row")
            .map_err(|error| io_problem("delete", self.layout().root(), &error))?;
        let mut layers = sandbox.layers.clone();
        for snapshot in &last.snapshots {
            self.store.remove_snapshot(&sandbox.id, &snapshot.label).or_problem()?;
            layers.extend(snapshot.layers.iter().cloned());
        }
        // While its keeper clears away.
        let waste = Waste::found(self.layout(), &directory);
        self.clear_away(sandbox, waste)?;
        self.sweep_layers(&layers)
    }

    /// Goes on deleting what somebody has begun to delete, and may be about to.
    pub(crate) fn finish_deleting(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        self.clear_away(sandbox, None)
    }

    /// Waits until its keeper has gone, and then the directory goes, at once or as waste.
    fn clear_away(&self, sandbox: &Sandbox, waste: Option<Waste>) -> Result<(), Problem> {
        self.end_processes(sandbox)?;
        let directory = self.layout().sandbox(&sandbox.id);
        // Before, or a crash would leave the way; and after, because whoever has just run a command in
        // it may write the way down once more, as long as there is a directory.
        ways::forget(self.layout(), sandbox);
        if !waste.is_some_and(|waste| waste.keep(&directory)) {
            trash::discard(&directory, &self.layout().trash())
                .map_err(|error| io_problem("remove", &directory, &error))?;
        }
        ways::forget(self.layout(), sandbox);
        Ok(())
    }
}

/// What becomes of ends of execs that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unread {
    /// They are worth a failure.
    Fails,
    /// They go with the rest.
    IsLost,
}

/// What is left of a sandbox in which nothing runs any more, besides its changes.
struct Last {
    /// Ends of execs that are not written down yet.
    ended: Vec<EndedExec>,
    snapshots: Vec<Snapshot>,
}

/// Unreviewed work goes only when somebody says so, that in snapshots too.
fn refuse_loss(sandbox: &Sandbox, left: &Left, snapshots: &[Snapshot]) -> Result<(), Problem> {
    let name = &sandbox.name;
    let (what, how) = match (left.unreviewed(), holding_work(snapshots)) {
        (0, 0) => return Ok(()),
        (1.., _) => return Err(left.refusal(sandbox)),
        (0, held) => (
            snapshots_with_work(held),
            format!(
                "go back to one with `skep restore {name} {0}` and review it, keep it with `skep \
                 create --from {name}:{0}`, or drop them with `skep rm --discard {name}`",
                last_label(snapshots)
            ),
        ),
    };
    let message = format!("sandbox `{name}` has {what}");
    Err(Problem::new(Code::UnreviewedChanges, message).hint(how))
}

/// Why a sandbox stays whose changes are all decided on.
pub(crate) fn snapshots_with_work(held: usize) -> String {
    let snapshots = counted(held as u64, "snapshot", "snapshots");
    format!("{snapshots} that may hold unreviewed work")
}

fn last_label(snapshots: &[Snapshot]) -> &str {
    let held = snapshots.iter().rfind(|snapshot| !snapshot.layers.is_empty());
    held.map_or("LABEL", |snapshot| snapshot.label.as_str())
}

/// How many snapshots may hold work that nobody has reviewed: one without layers is of the project as
/// it was.
pub(crate) fn holding_work(snapshots: &[Snapshot]) -> usize {
    snapshots.iter().filter(|snapshot| !snapshot.layers.is_empty()).count()
}

/// How an exec ended, with the event that tells it.
type EndedExec = (ExecId, ExecEnd, NewEvent);

/// The label that says of a frozen one what was decided on everything in it. A state cannot say both.
const DECIDED: &str = "skep.decided";

/// What was decided last, if nothing is left to review: approved or rejected.
pub(crate) fn decided(sandbox: &Sandbox) -> Option<SandboxState> {
    use SandboxState::{Approved, Frozen, Rejected};
    let said = match sandbox.state {
        Frozen => sandbox.labels.get(DECIDED)?.parse().ok()?,
        state => state,
    };
    matches!(said, Approved | Rejected).then_some(said)
}

/// Keeps what was decided on everything in a frozen one, or forgets it.
pub(crate) fn note_decided(row: &mut Sandbox, decided: Option<SandboxState>) {
    match decided {
        Some(state) => drop(row.labels.insert(DECIDED.into(), state.to_string())),
        None => drop(row.labels.remove(DECIDED)),
    }
}

/// There is something to review again.
pub(crate) fn pend(row: &mut Sandbox) {
    note_decided(row, None);
    if matches!(row.state, SandboxState::Approved | SandboxState::Rejected) {
        row.state = match row.keeper {
            Some(_) => SandboxState::Ready,
            None => SandboxState::Stopped,
        };
    }
}

/// Nobody holds it, and its state says so.
fn is_at_rest(sandbox: &Sandbox) -> bool {
    use SandboxState::{Error, Frozen, Ready};
    sandbox.keeper.is_none() && !matches!(sandbox.state, Ready | Frozen | Error)
}

fn not_running(sandbox: &Sandbox) -> Problem {
    Problem::new(Code::IllegalState, format!("sandbox `{}` is not running", sandbox.name))
        .hint(format!("start it with `skep start {}`", sandbox.name))
}

fn check_move(sandbox: &Sandbox, to: SandboxState) -> Result<(), Problem> {
    sandbox.state.check_move(to).map_err(|error| {
        Problem::new(Code::IllegalState, format!("sandbox `{}`: {error}", sandbox.name))
    })
}
