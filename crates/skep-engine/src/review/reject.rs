//! Dropping a selection, and taking the project's newer state in: both are written through the
//! mounted view.

use super::approve::check_digest;
use super::is_ending;
use super::progress::Progress;
use super::settling::Shut;
use crate::Engine;
use crate::api::{RebaseReport, RebasedView, RejectReport};
use crate::problems::{OrProblem, about, io_problem};
use serde_json::json;
use skep_provider::{Freshness, ProviderError, ViewWrite};
use skep_store::Rejection;
use skep_sys::failpoint;
use skep_types::{
    ChangeSetDigest, Code, Conflict, ContentHash, EntryState, Problem, RelPath, Sandbox, SandboxId,
    SandboxState, Selection, WorkspaceDriver,
};
use skep_workspace::apply::Source;
use skep_workspace::tree::TreeRoot;
use skep_workspace::{Company, Insiders, PutOff, Settlement};
use std::cell::RefCell;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;

impl Engine {
    pub(crate) fn reject_selection(
        &self,
        id: &SandboxId,
        selection: &Selection,
        digest: Option<ChangeSetDigest>,
        reason: Option<&str>,
    ) -> Result<RejectReport, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let progress = Progress::default();
        let planned = RefCell::default();
        let plan = |sandbox: &Sandbox| {
            let derived = self.derive(sandbox)?;
            check_digest(digest, sandbox, &derived)?;
            let workspace = self.workspace(sandbox);
            let company = self.company_of(sandbox)?;
            let rejected = skep_workspace::reject(&workspace, &derived, selection, company)
                .or_problem()
                .map_err(about(sandbox))?;
            self.begin_settling(sandbox, &rejected.writes, &rejected.settlement)?;
            planned.replace(rejected.rejected);
            Ok((rejected.writes, (rejected.settlement, rejected.not_taken_in)))
        };
        let settle = |(settlement, _): &(Settlement, Vec<RelPath>)| {
            self.end_settling(&sandbox, &progress.settled(settlement))
        };
        let through = self
            .through_view_noting(&sandbox, Bytes::AsPlanned, &progress, plan, settle)
            .map_err(|problem| progress.cut_short(problem, &sandbox));
        let rejected = progress.of(&planned.take());
        let note = || self.note_rejection(&sandbox, selection, reason, &rejected);
        let (_, mut not_taken_in) = match through {
            Err(problem) if rejected.is_empty() => return Err(problem),
            // Some of it is dropped: why is kept with that.
            Err(problem) => return Err(unnoted(problem, note().err())),
            Ok(said) => note().map(|()| said)?,
        };
        not_taken_in.extend(progress.stayed());
        not_taken_in.sort();
        let sandbox = self.load(id)?;
        let left = self.while_still(&sandbox, || self.derive(&sandbox))?;
        let remaining = left.changes.len() as u64;
        // Who had nothing to drop has decided nothing.
        if remaining == 0 && !rejected.is_empty() {
            self.all_reviewed(&sandbox, SandboxState::Rejected)?;
        }
        Ok(RejectReport { rejected, remaining, not_taken_in })
    }

    /// Notes what was dropped and why, and tells those inside.
    fn note_rejection(
        &self,
        sandbox: &Sandbox,
        selection: &Selection,
        reason: Option<&str>,
        rejected: &[RelPath],
    ) -> Result<(), Problem> {
        let rejection = Rejection {
            sandbox: sandbox.id.clone(),
            at: self.now(),
            selection: selection.clone(),
            reason: reason.map(str::to_owned),
            paths: rejected.to_vec(),
        };
        let event = self.event(
            "changes.rejected",
            &sandbox.id,
            None,
            json!({ "paths": rejected, "reason": reason }),
        );
        self.store.insert_rejection(&rejection, &[event]).or_problem()?;
        self.tell_inside(sandbox)
    }

    pub(crate) fn rebase_sandbox(&self, id: &SandboxId) -> Result<RebaseReport, Problem> {
        let _project = self.lock_project(&self.load(id)?.project)?;
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let plan = |sandbox: &Sandbox| {
            let derived = self.derive(sandbox)?;
            let company = self.company_of(sandbox)?;
            let rebased =
                skep_workspace::rebase(&self.workspace(sandbox), &derived, company).or_problem()?;
            let merged: Vec<RelPath> =
                rebased.writes.iter().map(|write| write.path.clone()).collect();
            self.begin_settling(sandbox, &rebased.writes, &rebased.settlement)?;
            let left = (rebased.conflicts, rebased.put_off);
            Ok((rebased.writes, (merged, left, rebased.settlement)))
        };
        let view = std::cell::Cell::new(RebasedView::AsItWas);
        let progress = Progress::default();
        type Left = (Vec<Conflict>, Vec<PutOff>);
        let settle = |(_, _, settlement): &(Vec<RelPath>, Left, Settlement)| {
            self.end_settling(&sandbox, &progress.settled(settlement))?;
            view.set(self.take_moment(&sandbox)?);
            Ok(())
        };
        let (planned, (conflicts, mut put_off), _) = self
            .through_view_noting(&sandbox, Bytes::AsPlanned, &progress, plan, settle)
            .map_err(|problem| progress.cut_short(problem, &sandbox))?;
        let merged = progress.of(&planned);
        put_off.extend(progress.stayed().into_iter().map(still_shown));
        let event = self.event(
            "sandbox.rebased",
            id,
            None,
            json!({ "merged": merged, "conflicts": conflicts, "put_off": put_off }),
        );
        self.store.append_events(&[event]).or_problem()?;
        Ok(RebaseReport { merged, conflicts, put_off, view: view.get() })
    }

    /// Who is inside. Everybody is paused.
    fn company_of(&self, sandbox: &Sandbox) -> Result<Company, Problem> {
        if !self.is_running(sandbox) {
            return Ok(Company::None);
        }
        let (provider, spec) = (self.provider(&sandbox.provider)?, self.run_spec(sandbox));
        match provider.refresh(&spec) {
            Err(error) if is_ending(&error) => Ok(Company::None),
            Ok(Freshness::Unseen | Freshness::HeldAlone) => Ok(Company::Idle),
            // Where nobody can be counted, somebody may be there.
            Ok(Freshness::Dropped | Freshness::Held) => Ok(Company::Busy),
            Err(error) => Err(error).or_problem(),
        }
    }

    /// From now on what the sandbox takes it takes from the project as it is: those inside see that, and if
    /// nobody is inside who has seen it before, it is the base of what comes. Nobody may begin meanwhile.
    fn take_moment(&self, sandbox: &Sandbox) -> Result<RebasedView, Problem> {
        let workspace = self.workspace(sandbox);
        let most = sandbox.policy.limits.disk.map(|size| size.0);
        // Before the names are dropped: what is replaced in between is newer than the moment.
        let insiders = if self.is_running(sandbox) { Insiders::Some } else { Insiders::None };
        let moment = skep_workspace::moment(&workspace, most, insiders).or_problem()?;
        let failed = |error| io_problem("settle", sandbox.project.as_path(), &error);
        failpoint::hit("rebase.moment").map_err(failed)?;
        let freshness = match self.is_running(sandbox) {
            // A copy shows nothing of the project.
            true if sandbox.driver == WorkspaceDriver::Copy => return Ok(RebasedView::AsItIs),
            true => self.provider(&sandbox.provider)?.refresh(&self.run_spec(sandbox)),
            false => Ok(Freshness::Unseen),
        };
        match freshness.or_problem()? {
            Freshness::Unseen => {
                moment.map_or(Ok(()), |moment| moment.note(&workspace)).or_problem()?;
                Ok(RebasedView::AsItIs)
            }
            Freshness::Dropped => Ok(RebasedView::ButForWhatIsOpen),
            Freshness::Held | Freshness::HeldAlone => Ok(RebasedView::AsItWas),
        }
    }

    /// Derives and writes while everything inside stands still. A stopped sandbox is started for
    /// it and stopped again: the view is where writes go, whoever makes them. What belongs to the
    /// writes is settled before anything goes on.
    pub(crate) fn through_view<T>(
        &self,
        sandbox: &Sandbox,
        bytes: Bytes,
        plan: impl FnOnce(&Sandbox) -> Result<(Vec<skep_workspace::ViewWrite>, T), Problem>,
        settle: impl FnOnce(&T) -> Result<(), Problem>,
    ) -> Result<T, Problem> {
        self.through_view_noting(sandbox, bytes, &Progress::default(), plan, settle)
    }

    /// The same, and `progress` tells how far it came, also when it fails.
    fn through_view_noting<T>(
        &self,
        sandbox: &Sandbox,
        bytes: Bytes,
        progress: &Progress,
        plan: impl FnOnce(&Sandbox) -> Result<(Vec<skep_workspace::ViewWrite>, T), Problem>,
        settle: impl FnOnce(&T) -> Result<(), Problem>,
    ) -> Result<T, Problem> {
        let was_running = self.is_running(sandbox);
        if !was_running {
            self.resume_settling(sandbox, Shut::Left)?;
            let (writes, value) = plan(sandbox)?;
            if writes.is_empty() {
                return settle(&value).map(|()| value);
            }
            let provider = self.provider(&sandbox.provider)?;
            let (sandbox, _) = self.hide_more(sandbox.clone())?;
            let mut spec = self.run_spec(&sandbox);
            // Nothing is run in it, so nothing has to be reached.
            spec.policy.network = skep_types::NetworkMode::None;
            spec.policy.egress = Default::default();
            let started = provider.start(&spec).or_problem()?;
            // Paused at once: nobody who knows the way begins a command in it.
            let paused = provider.freeze(&spec).or_problem();
            let written = paused.and_then(|()| {
                self.noting_own_writes(&sandbox.id, || {
                    write_noting(provider, &spec, writes, bytes, progress)
                })
            });
            provider.stop(&sandbox.id, &spec.directory, Some(&started.keeper)).or_problem()?;
            return written.and_then(|()| settle(&value)).map(|()| value);
        }
        self.while_still(sandbox, || {
            self.resume_settling(sandbox, Shut::Left)?;
            let (writes, value) = plan(sandbox)?;
            let (provider, spec) = (self.provider(&sandbox.provider)?, self.run_spec(sandbox));
            self.noting_own_writes(&sandbox.id, || {
                write_noting(provider, &spec, writes, bytes, progress)
            })?;
            settle(&value).map(|()| value)
        })
    }

    /// What was rejected and why, where the agent can read it: `/run/skep/feedback.json`.
    fn tell_inside(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        use std::os::unix::fs::OpenOptionsExt;
        let rejections = self.store.list_rejections(&sandbox.id).or_problem()?;
        let list: Vec<_> = rejections
            .iter()
            .map(|rejection| {
                json!({
                    "at": rejection.at,
                    "reason": rejection.reason,
                    "paths": rejection.paths,
                    "hunks": rejection.selection.hunks,
                })
            })
            .collect();
        let directory = self.layout().sandbox(&sandbox.id).join("messages");
        let (new, path) = (directory.join(".feedback.json.new"), directory.join("feedback.json"));
        let write = || -> std::io::Result<()> {
            let _ = std::fs::remove_file(&new);
            let mut file = File::options().write(true).create_new(true).mode(0o644).open(&new)?;
            file.write_all(json!({ "rejections": list }).to_string().as_bytes())?;
            rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o644))?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|error| io_problem("write", &path, &error))
    }
}

/// Which bytes of a file elsewhere are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// Whatever it has: nothing was said of them.
    AsTheyAre,
    /// Only those that the plan is about: the base that is noted for them must be theirs. The user may
    /// be saving the file right now.
    AsPlanned,
}

pub(crate) fn write_all(
    provider: &dyn skep_provider::Provider,
    spec: &skep_provider::RunSpec,
    writes: Vec<skep_workspace::ViewWrite>,
    bytes: Bytes,
) -> Result<(), Problem> {
    write_noting(provider, spec, writes, bytes, &Progress::default())
}

/// One write after the other; where it ends, `progress` has what was made.
fn write_noting(
    provider: &dyn skep_provider::Provider,
    spec: &skep_provider::RunSpec,
    writes: Vec<skep_workspace::ViewWrite>,
    bytes: Bytes,
    progress: &Progress,
) -> Result<(), Problem> {
    for write in writes {
        let failed =
            |error: std::io::Error| io_problem("read the bytes for", write.path.as_path(), &error);
        let mut content = open_source(&write.content).map_err(failed)?;
        if let (Bytes::AsPlanned, Some(file), EntryState::File { hash, .. }) =
            (bytes, &mut content, &write.state)
        {
            failpoint::hit("settle.opened").map_err(failed)?;
            content = Some(
                planned_bytes(file, &spec.directory, hash).map_err(failed)?.ok_or_else(|| {
                    let message = format!("`{}` was saved meanwhile", write.path);
                    Problem::new(Code::Conflict, message).hint("try again")
                })?,
            );
        }
        let may_stay = bytes == Bytes::AsPlanned && write.state.is_absent();
        let write = [ViewWrite { path: write.path, state: write.state, content }];
        let written = provider.write_view(spec, &write);
        let [ViewWrite { path, .. }] = write;
        match written {
            Err(error) if may_stay && is_not_empty(&error) => progress.note_stayed(path),
            Err(error) => return Err(write_problem(&error)),
            Ok(()) => progress.note(path),
        }
    }
    Ok(())
}

/// A problem, and that not even what was done can be noted.
fn unnoted(mut problem: Problem, note: Option<Problem>) -> Problem {
    if let Some(note) = note {
        problem.message = format!("{problem}; nor can that be noted: {note}");
    }
    problem
}

/// A directory that the plan knows to be empty, and that the view which is up shows something in.
fn is_not_empty(error: &ProviderError) -> bool {
    use rustix::io::Errno;
    let ProviderError::Setup { source, .. } = error else { return false };
    matches!(Errno::from_io_error(source), Some(Errno::NOTEMPTY | Errno::EXIST))
}

fn still_shown(path: RelPath) -> PutOff {
    let reason = "was removed from the project, and the view that is up still shows what was in it; it goes when the \
                  sandbox is stopped"
        .to_owned();
    PutOff { path, reason }
}

/// A copy of a file that nobody else writes to, if its bytes are those with this hash.
fn planned_bytes(
    from: &mut File,
    directory: &Path,
    hash: &ContentHash,
) -> std::io::Result<Option<File>> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let to = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR);
    let mut to = match to {
        Ok(fd) => File::from(fd),
        // A filesystem without files that have no name.
        Err(_) => File::from(rustix::fs::memfd_create("skep", rustix::fs::MemfdFlags::CLOEXEC)?),
    };
    std::io::copy(from, &mut to)?;
    to.rewind()?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut to)?;
    to.rewind()?;
    Ok((hasher.finalize().to_hex().as_str() == hash.to_string()).then_some(to))
}

/// What stands in the way of a write is the workspace's state or policy, not a fault of ours.
fn write_problem(error: &ProviderError) -> Problem {
    use rustix::io::Errno;
    let ProviderError::Setup { source, .. } = error else { return error.problem() };
    let code = match Errno::from_io_error(source) {
        Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => Code::Refused,
        Some(Errno::NOTDIR | Errno::LOOP | Errno::NOTEMPTY | Errno::ISDIR | Errno::EXIST) => {
            Code::Conflict
        }
        Some(Errno::NAMETOOLONG) => Code::Usage,
        Some(Errno::NOSPC | Errno::DQUOT) => Code::NoSpace,
        _ => return error.problem(),
    };
    let problem = Problem::from_error(code, error);
    match code {
        Code::Refused => problem.hint("it may lie outside the scope, or the directory is shut"),
        _ => problem,
    }
}

fn open_source(source: &Source) -> std::io::Result<Option<File>> {
    match source {
        Source::None => Ok(None),
        Source::Bytes(bytes) => {
            let fd = rustix::fs::memfd_create("skep", rustix::fs::MemfdFlags::CLOEXEC)?;
            let mut file = File::from(fd);
            file.write_all(bytes)?;
            file.rewind()?;
            Ok(Some(file))
        }
        Source::File { root, path } | Source::Backup { root, path } => {
            TreeRoot::open(root)?.open_file(path).map(|(file, _)| Some(file))
        }
    }
}
