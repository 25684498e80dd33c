//! One apply, from the row to the settled bases; and picking up one that was interrupted.
//!
//! 1. The approval's row (`applying`), durable, before anything is made.
//! 2. Staging beside the project, and the journal.
//! 3. The row says `committed`: from here on a crash rolls forward.
//! 4. Publishing.
//! 5. The sandbox's bases are settled (or, for an undo, unsettled).
//! 6. The row says `applied`.

use crate::problems::{OrProblem, failing, io_problem, is_full};
use crate::{Engine, layout};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skep_store::{ApprovalFilter, SandboxFilter};
use skep_sys::failpoint;
use skep_types::{
    AppliedPath, Approval, ApprovalId, ApprovalKind, ApprovalState, ByteString, Code, EntryState,
    Problem, RelPath, Sandbox, SandboxId, SandboxState,
};
use skep_workspace::Settlement;
use skep_workspace::apply::{self, Applied, ApplyError, ApplyRequest, Recovered, Target};
use std::collections::BTreeMap;
use std::path::Path;

/// What goes with the journal, so that a recovery can finish the job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Note {
    pub settlement: Settlement,
    pub direction: Direction,
    /// Whether nothing is left to review when it is done.
    #[serde(default)]
    pub all: bool,
}

/// Which way the bases move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Direction {
    /// Changes become part of the base.
    Settle,
    /// They are pending again.
    Unsettle,
}

impl Direction {
    pub(super) fn reversed(self) -> Self {
        match self {
            Self::Settle => Self::Unsettle,
            Self::Unsettle => Self::Settle,
        }
    }
}

/// The file beside a journal that an undo reads the note from.
const NOTE: &str = "note.json";

impl Engine {
    /// Applies targets under an approval. The caller holds the project's lock.
    pub(super) fn apply(
        &self,
        mut approval: Approval,
        root_identity: (u64, u64),
        targets: Vec<Target>,
        note: &Note,
    ) -> Result<(Approval, Applied), Problem> {
        self.settle_project(&approval.project)?;
        approval.state = ApprovalState::Applying;
        open_closed_files(&targets);
        let event = self.event(
            "approval.applying",
            &approval.sandbox,
            None,
            json!({ "approval": approval.id }),
        );
        self.store.insert_approval(&approval, &[event]).or_problem()?;
        self.note_under_way(&approval.id);
        let applied = self.apply_noted(approval, root_identity, targets, note);
        // What was interrupted stays noted, until whoever comes next has settled it.
        self.forget_what_is_over();
        applied
    }

    fn apply_noted(
        &self,
        approval: Approval,
        root_identity: (u64, u64),
        targets: Vec<Target>,
        note: &Note,
    ) -> Result<(Approval, Applied), Problem> {
        let directory = self.layout().approval(&approval.id);
        let staged = self.stage(&approval, root_identity, &directory, targets, note);
        let staged = match staged {
            Ok(staged) => staged,
            Err(problem) => {
                // Before the row: whoever finds the directory is to know whose it is.
                let _ = crate::trash::discard(&directory, &self.layout().trash());
                match problem.code {
                    Code::Conflict => self.refuse(&approval),
                    _ => self.abort(&approval.id),
                }
                return Err(problem);
            }
        };
        if let Err(error) =
            self.store.move_approval(&approval.id, ApprovalState::Committed, &[], &mut |_| {})
        {
            staged.abort().map_err(|error| apply_problem(&error))?;
            self.abort(&approval.id);
            return Err(error).or_problem();
        }
        failpoint::hit("approve.committed")
            .map_err(|error| io_problem("apply", &directory, &error))?;
        match staged.publish_with(&mut |progress| (self.config.progress)(progress)) {
            Ok(applied) => {
                let touched = skep_workspace::beginning();
                let approval = self
                    .conclude(&approval.id, note, &applied, note.all)
                    .map_err(|problem| not_written_down(&approval.id, problem))?;
                // What the sandbox makes next in these directories is told from what stood there by
                // having a later time.
                if let Ok(touched) = touched {
                    skep_workspace::wait_past(&touched);
                }
                Ok((approval, applied))
            }
            // Not taken back: the row stays committed, and the next start goes on.
            Err(error @ ApplyError::HalfWay { .. }) => Err(apply_problem(&error)),
            Err(error) => {
                self.abort(&approval.id);
                Err(apply_problem(&error))
            }
        }
    }

    fn stage(
        &self,
        approval: &Approval,
        root_identity: (u64, u64),
        directory: &Path,
        targets: Vec<Target>,
        note: &Note,
    ) -> Result<apply::Staged, Problem> {
        layout::make_private(directory).map_err(|error| io_problem("make", directory, &error))?;
        let note = serde_json::to_value(note).unwrap_or(Value::Null);
        write_durably(&directory.join(NOTE), note.to_string().as_bytes())
            .map_err(|error| io_problem("write", &directory.join(NOTE), &error))?;
        let request = ApplyRequest {
            id: &approval.id,
            project: approval.project.as_path(),
            root_identity,
            journal_dir: directory,
            targets,
            note,
            progress: &mut |progress| (self.config.progress)(progress),
        };
        apply::stage(request).map_err(|error| apply_problem(&error))
    }

    /// The project is not as reviewed, and nothing was staged: that is told by the events, and is no part of what
    /// was done to the project.
    fn refuse(&self, approval: &Approval) {
        let data = json!({ "approval": approval.id });
        let event = self.event("approval.refused", &approval.sandbox, None, data);
        if self.store.refuse_approval(&approval.id, &[event]).is_err() {
            self.abort(&approval.id);
        }
    }

    fn abort(&self, id: &ApprovalId) {
        // A row that cannot be moved now is settled by the next start.
        let _ = self.store.move_approval(id, ApprovalState::Aborted, &[], &mut |_| {});
    }

    /// After the project is changed: bases, then the sandbox's state if `all` of it is reviewed now, then
    /// the row, which says that nothing is left to be done.
    fn conclude(
        &self,
        id: &ApprovalId,
        note: &Note,
        applied: &Applied,
        all: bool,
    ) -> Result<Approval, Problem> {
        let approval = self.store.find_approval(id.as_str()).or_problem()?;
        failpoint::hit("approve.published")
            .map_err(|error| io_problem("settle", Path::new(""), &error))?;
        if let Some(sandbox) = self.load_if_there(&approval.sandbox)? {
            self.move_bases(&sandbox, note, &approval.kind)?;
            if all {
                self.all_reviewed(&sandbox, SandboxState::Approved)?;
            }
        }
        if matches!(approval.kind, ApprovalKind::Undo { .. }) {
            self.move_bases_of_forks(&approval, note)?;
        }
        failpoint::hit("approve.settled")
            .map_err(|error| io_problem("settle", Path::new(""), &error))?;
        let data = json!({ "approval": id, "paths": applied.paths.len() });
        let event = self.event("approval.applied", &approval.sandbox, None, data);
        self.store
            .move_approval(id, ApprovalState::Applied, &[event], &mut |row| {
                // There may be hundreds of thousands: one look for each.
                let mut done: BTreeMap<&RelPath, &AppliedPath> =
                    applied.paths.iter().map(|path| (&path.path, path)).collect();
                for known in &mut row.paths {
                    if let Some(path) = done.remove(&known.path) {
                        known.before = path.before.clone();
                        known.after = path.after.clone();
                    }
                }
                row.paths.extend(done.into_values().cloned());
            })
            .or_problem()
    }

    /// Forks that were made since the approval have its work in their layers and its bases: what is undone is
    /// pending in them again, too. So in a sandbox of which the same was approved.
    fn move_bases_of_forks(&self, approval: &Approval, note: &Note) -> Result<(), Problem> {
        let project = Some(approval.project.clone());
        let filter = SandboxFilter { project, ..SandboxFilter::default() };
        let others = self.store.list_sandboxes(&filter).or_problem()?;
        for other in others.iter().filter(|other| other.id != approval.sandbox) {
            // One that cannot be read says so to whoever looks at it.
            let here = skep_workspace::settled_here(&self.workspace(other), &note.settlement);
            let Some(settlement) = here.ok().filter(|here| !here.paths.is_empty()) else {
                continue;
            };
            // Whoever has it for longer than that does not move its bases: that needs the project.
            let _lock = self.lock_sandbox(&other.id).ok();
            let note = Note { settlement, direction: note.direction, all: false };
            self.move_bases(other, &note, &approval.kind)?;
        }
        Ok(())
    }

    fn move_bases(
        &self,
        sandbox: &Sandbox,
        note: &Note,
        kind: &ApprovalKind,
    ) -> Result<(), Problem> {
        let (workspace, settlement) = (self.workspace(sandbox), &note.settlement);
        match (note.direction, kind) {
            (Direction::Settle, ApprovalKind::Approve) => {
                skep_workspace::settle(&workspace, settlement).or_problem()
            }
            (Direction::Settle, ApprovalKind::Undo { .. }) => {
                skep_workspace::settle_again(&workspace, settlement).or_problem()
            }
            (Direction::Unsettle, _) => {
                skep_workspace::unsettle(&workspace, settlement).or_problem()?;
                if crate::lifecycle::decided(sandbox).is_some() {
                    let pend = &mut crate::lifecycle::pend;
                    self.update(&sandbox.id, "sandbox.pending", Value::Null, pend)?;
                }
                Ok(())
            }
        }
    }

    /// The note of an earlier approval.
    pub(super) fn note_of(&self, id: &ApprovalId) -> Result<Note, Problem> {
        let path = self.layout().approval(id).join(NOTE);
        let bytes = Self::read_file(&path, "the note of an approval")?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Problem::new(Code::Internal, format!("`{}` is damaged: {error}", path.display()))
        })
    }

    /// Finishes or takes back what a crash interrupted. An apply that is going on right now holds
    /// its project's lock and is left alone.
    ///
    /// One that cannot be settled now (its disk is away, its journal is damaged) does not keep skep
    /// from working elsewhere: its row stays, nothing more is applied to that project before it, and
    /// whoever looks at a sandbox of that project is told.
    pub(crate) fn reconcile_approvals(&self) -> Result<(), Problem> {
        let states =
            [ApprovalState::Applying, ApprovalState::Committed, ApprovalState::NeedsAttention];
        for approval in self.in_states(None, &states)? {
            if approval.state == ApprovalState::NeedsAttention {
                self.unsettled.borrow_mut().push((approval, met_edits()));
                continue;
            }
            let _lock = match self.lock_project_now(&approval.project) {
                Ok(lock) => lock,
                Err(problem) if problem.code == Code::Busy => continue,
                Err(problem) => {
                    self.unsettled.borrow_mut().push((approval, problem));
                    continue;
                }
            };
            let approval = self.store.find_approval(approval.id.as_str()).or_problem()?;
            match self.recover_approval(&approval) {
                Err(problem) => self.unsettled.borrow_mut().push((approval, problem)),
                Ok(()) => {
                    let ended = self.store.find_approval(approval.id.as_str()).or_problem()?;
                    if ended.state == ApprovalState::NeedsAttention {
                        self.unsettled.borrow_mut().push((ended, met_edits()));
                    }
                }
            }
        }
        self.forget_what_is_over();
        Ok(())
    }

    /// The sandbox of an approval, unless it was deleted. One that cannot be read now is not gone: to
    /// leave its bases alone would take its work out of the review.
    pub(super) fn load_if_there(&self, id: &SandboxId) -> Result<Option<Sandbox>, Problem> {
        match self.load(id) {
            Ok(sandbox) => Ok(Some(sandbox)),
            Err(problem) if problem.code == Code::NotFound => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// What is to be said of a project whose last approval could not be settled.
    pub(crate) fn unsettled_warnings(&self, project: &ByteString) -> Vec<String> {
        let unsettled = self.unsettled.borrow();
        let here = unsettled.iter().filter(|(approval, _)| approval.project == *project);
        here.map(|(approval, problem)| {
            let (id, reason) = (&approval.id, &problem.message);
            let next = match approval.state {
                ApprovalState::NeedsAttention => format!(
                    "`skep undo {id}` takes it back and leaves your edits, `skep undo {id} --finish` \
                     puts the approved versions in place"
                ),
                _ => "the next command tries again".to_owned(),
            };
            format!(
                "approval `{id}` was interrupted and is not settled yet, so that the project may hold \
                 a part of it: {reason}; {next}"
            )
        })
        .collect()
    }

    fn interrupted(&self, project: Option<&ByteString>) -> Result<Vec<Approval>, Problem> {
        self.in_states(project, &[ApprovalState::Applying, ApprovalState::Committed])
    }

    fn in_states(
        &self,
        project: Option<&ByteString>,
        states: &[ApprovalState],
    ) -> Result<Vec<Approval>, Problem> {
        let (states, project) = (states.to_vec(), project.cloned());
        let filter = ApprovalFilter { states, project, ..ApprovalFilter::default() };
        self.store.list_approvals(&filter).or_problem()
    }

    /// Whoever holds the project's lock and finds an unfinished approval there finishes it first.
    fn settle_project(&self, project: &ByteString) -> Result<(), Problem> {
        self.interrupted(Some(project))?
            .iter()
            .try_for_each(|approval| self.recover_approval(approval))?;
        let Some(half_done) = self.needing_attention(project)? else { return Ok(()) };
        let id = &half_done.id;
        let message = format!(
            "approval `{id}` was interrupted and the project may hold a part of it: {}",
            met_edits().message
        );
        Err(Problem::new(Code::Conflict, message).hint(format!(
            "nothing was changed; `skep undo {id}` takes it back and leaves your edits, `skep undo \
             {id} --finish` puts the approved versions in place"
        )))
    }

    /// The newest approval of a project that a person has to decide on.
    pub(super) fn needing_attention(
        &self,
        project: &ByteString,
    ) -> Result<Option<Approval>, Problem> {
        let found = self.in_states(Some(project), &[ApprovalState::NeedsAttention])?;
        Ok(found.into_iter().next())
    }

    pub(super) fn recover_approval(&self, approval: &Approval) -> Result<(), Problem> {
        let committed = match approval.state {
            ApprovalState::Applying => false,
            ApprovalState::Committed => true,
            _ => return Ok(()),
        };
        let directory = self.layout().approval(&approval.id);
        match apply::recover(&directory, committed) {
            Ok(recovered) => self.record_recovery(approval, recovered),
            Err(error @ ApplyError::Journal { .. }) => {
                self.needs_attention(approval, json!([{ "reason": skep_types::chain(&error) }]))
            }
            Err(error) => Err(apply_problem(&error)),
        }
    }

    fn needs_attention(&self, approval: &Approval, reasons: Value) -> Result<(), Problem> {
        let event = self.event("approval.needs_attention", &approval.sandbox, None, reasons);
        let state = ApprovalState::NeedsAttention;
        self.store.move_approval(&approval.id, state, &[event], &mut |_| {}).map(drop).or_problem()
    }

    /// Whether nothing became of the sandbox since an approval began: a command may have left more to
    /// review, and somebody may have decided on it.
    fn nothing_came(&self, approval: &Approval) -> Result<bool, Problem> {
        let waits =
            |sandbox: Sandbox| matches!(sandbox.state, SandboxState::Ready | SandboxState::Stopped);
        if !self.load_if_there(&approval.sandbox)?.is_some_and(waits) {
            return Ok(false);
        }
        let execs = self.store.list_execs(&approval.sandbox).or_problem()?;
        let time = |text: &str| text.parse::<jiff::Timestamp>().ok();
        Ok(execs.iter().all(|exec| time(&exec.started_at) < time(&approval.at)))
    }

    /// Brings the row and the bases in line with what a recovery did.
    pub(super) fn record_recovery(
        &self,
        approval: &Approval,
        recovered: Recovered,
    ) -> Result<(), Problem> {
        let directory = self.layout().approval(&approval.id);
        match recovered {
            Recovered::Applied { note, applied } => {
                let note: Note = serde_json::from_value(note).map_err(|error| {
                    Problem::new(
                        Code::Internal,
                        format!("journal of `{}` is damaged: {error}", approval.id),
                    )
                })?;
                let all = note.all && self.nothing_came(approval)?;
                self.conclude(&approval.id, &note, &applied, all).map(drop)
            }
            Recovered::Nothing | Recovered::Aborted { .. } => {
                // The journal goes last: while the row is open, it alone can say what was done.
                let state = ApprovalState::Aborted;
                let moved = self.store.move_approval(&approval.id, state, &[], &mut |_| {});
                moved.or_problem()?;
                // What stood there before a revert and could not go back stays as long as an undo's
                // backups do; where it cannot be said, too.
                if apply::kept_backups(&directory).is_ok_and(|kept| kept.is_empty()) {
                    let _ = crate::trash::discard(&directory, &self.layout().trash());
                }
                Ok(())
            }
            Recovered::NeedsAttention { paths, .. } => {
                let reasons: Vec<_> = paths
                    .iter()
                    .map(|path| json!({ "path": path.path, "reason": path.reason }))
                    .collect();
                self.needs_attention(approval, json!(reasons))
            }
        }
    }
}

/// The project is changed, and that could not be written down: asking again would find nothing to do.
fn not_written_down(id: &ApprovalId, mut problem: Problem) -> Problem {
    problem.message = format!(
        "approval `{id}` is in the project, and that could not be written down: {}",
        problem.message
    );
    problem.retryable = false;
    problem.details(json!({ "approval": id })).hint("the next skep command goes on with it")
}

/// Why an approval needs a person.
fn met_edits() -> Problem {
    Problem::new(Code::Conflict, "its journal is damaged, or you have edited its paths since")
}

/// Files that their own mode shuts even to their owner must be read to be verified and kept. Where
/// no user namespace can be had, the apply will name the file it cannot read.
fn open_closed_files(targets: &[Target]) {
    let closed = |state: &EntryState| match state {
        EntryState::File { mode, .. } => mode & 0o400 == 0,
        EntryState::Dir { mode } => mode & 0o700 != 0o700,
        _ => false,
    };
    let any = targets.iter().any(|target| closed(&target.before) || closed(&target.after));
    if any && !rustix::process::geteuid().is_root() {
        let _ = skep_sys::process::enter_own_user_namespace();
    }
}

pub(super) fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// Apply errors for callers: conflicts change nothing and exit with 4.
pub(super) fn apply_problem(error: &ApplyError) -> Problem {
    let code = match error {
        ApplyError::Conflict(_) | ApplyError::RootChanged { .. } => Code::Conflict,
        ApplyError::DigestMismatch { .. } => Code::DigestMismatch,
        ApplyError::Refused { .. } => Code::Refused,
        ApplyError::NoSpace { .. } => Code::NoSpace,
        ApplyError::Path { .. } | ApplyError::Own { .. } if is_full(error) => Code::NoSpace,
        ApplyError::Path { .. } | ApplyError::Own { .. } => Code::Io,
        ApplyError::Journal { .. } | ApplyError::HalfWay { .. } => Code::Io,
    };
    let problem = Problem::from_error(code, error);
    match error {
        ApplyError::Conflict(conflicts) => {
            let list: Vec<_> = conflicts
                .iter()
                .map(|conflict| json!({ "path": conflict.path, "reason": conflict.reason }))
                .collect();
            problem.details(json!({ "conflicts": list })).hint(
                "nothing was changed; look again (`skep diff`), which merges what you have edited \
                 meanwhile or says where it cannot",
            )
        }
        ApplyError::HalfWay { .. } => problem.hint("the next skep command goes on with it"),
        ApplyError::Journal { .. } => problem.hint(
            "`skep undo APPROVAL --abandon` gives it up; the project stays as it is and both \
             versions are kept",
        ),
        // What the disk was told before may be lost too.
        ApplyError::Own { source, .. } if source.raw_os_error() == Some(EIO) => failing(problem),
        _ => problem,
    }
}
