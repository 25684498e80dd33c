//! The review: what changed, what is taken over, what is dropped, what is taken back.

mod approve;
mod beside;
mod journal;
mod judge;
mod left;
mod own_writes;
mod progress;
mod reject;
mod settings;
mod settling;
mod siblings;
mod under_way;
mod undo;

pub(crate) use left::{Left, PULLED, all_pulled, counted, references};
pub(crate) use reject::{Bytes, write_all};
pub(crate) use settling::{Place, Shut};

use crate::Engine;
use crate::layout::may_be_there;
use crate::problems::OrProblem;
use skep_provider::{Moved, ProviderError, Stillness};
use skep_sys::failpoint;
use skep_types::{
    ByteString, ChangeSet, Code, Drift, Problem, RelPath, Sandbox, SandboxId, SandboxState,
};
use skep_workspace::{DeriveError, DeriveOptions, Derived};
use std::io;
use std::path::PathBuf;

/// How often a change set is derived before somebody is said to go on by itself.
const LOOKS: u32 = 3;
/// Whether a keeper is gone, or has hung up because it ends.
fn is_ending(error: &ProviderError) -> bool {
    match error {
        ProviderError::NotRunning(_) => true,
        ProviderError::Keeper { source, .. } => hung_up(source),
        _ => false,
    }
}

fn hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// What is said of paths that were written while several commands ran.
fn unknown_writer(paths: &[RelPath]) -> Option<String> {
    let first = paths.first()?;
    let more = match paths.len() {
        1 => String::new(),
        many => format!(" and {} more", many - 1),
    };
    Some(format!(
        "`{first}`{more}: several commands ran about then, and which one wrote is not known"
    ))
}

impl Engine {
    /// Runs `look` while nothing inside can write: a change set is a consistent cut.
    ///
    /// The caller holds the sandbox's lock. Whatever happens in `look`, the processes go on
    /// afterwards (unless they were frozen before, or what was written for them cannot be settled).
    pub(crate) fn while_still<T>(
        &self,
        sandbox: &Sandbox,
        look: impl FnOnce() -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        if sandbox.state == SandboxState::Frozen || !self.is_running(sandbox) {
            return look();
        }
        let provider = self.provider(&sandbox.provider)?;
        let spec = self.run_spec(sandbox);
        // If we die in between, the next command finds the mark and lets them go on.
        let mark = self.mark_stilled(sandbox)?;
        let stands = || {
            failpoint::hit("look.still")
                .map_err(|error| crate::problems::io_problem("look into", &mark, &error))
        };
        let begins = failpoint::hit("look.begins")
            .map_err(|error| crate::problems::io_problem("look into", &mark, &error));
        let frozen = begins.and_then(|()| match provider.freeze(&spec) {
            // Its keeper has ended since we looked, or is about to: then nobody is left to be paused.
            Err(error) if is_ending(&error) => {
                provider.still(&sandbox.id, &spec.directory, sandbox.keeper.as_ref()).or_problem()
            }
            other => other.or_problem(),
        });
        let frozen = frozen.and_then(|()| stands());
        let result = frozen.and_then(|()| look());
        // Somebody died over a rebase here, or this one failed: what they go on with is settled first.
        if let Err(problem) = self.resume_settling(sandbox, Shut::Left) {
            return result.and(Err(problem));
        }
        let thawed = match provider.thaw(&spec) {
            Err(error) if is_ending(&error) => Ok(()),
            other => other.or_problem(),
        };
        if thawed.is_ok() {
            let _ = std::fs::remove_file(&mark);
        }
        let value = result?;
        thawed.map(|()| value)
    }

    /// The same for whoever only reads: what was read while somebody went on is not given out.
    pub(crate) fn while_standing<T>(
        &self,
        sandbox: &Sandbox,
        look: impl FnOnce() -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        self.while_still(sandbox, || {
            let seen = look();
            self.refuse_moved(sandbox)?;
            seen
        })
    }

    /// Refuses if somebody who was stopped has moved since. A frozen sandbox is stopped once more, so
    /// that the next look may find it standing.
    pub(crate) fn refuse_moved(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let Some(moved) = self.moved(sandbox)? else { return Ok(()) };
        if sandbox.state == SandboxState::Frozen {
            let _ = self.provider(&sandbox.provider)?.freeze(&self.run_spec(sandbox));
        }
        Err(ProviderError::Moved(moved)).or_problem()
    }

    /// Notes that processes are about to be paused.
    pub(crate) fn mark_stilled(&self, sandbox: &Sandbox) -> Result<PathBuf, Problem> {
        let mark = self.layout().stilled(&sandbox.id);
        std::fs::write(&mark, b"")
            .map_err(|error| crate::problems::io_problem("write", &mark, &error))?;
        Ok(mark)
    }

    /// Processes that were paused for a look by a command that died go on, once it is settled what that
    /// command wrote.
    pub(crate) fn wake_forgotten(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let mark = self.layout().stilled(&sandbox.id);
        if !may_be_there(&mark) {
            return Ok(());
        }
        let Ok(_lock) = self.lock_now(&sandbox.id) else {
            // Whoever pauses them is alive.
            return Ok(());
        };
        let sandbox = self.load(&sandbox.id)?;
        let stilled = mark
            .try_exists()
            .map_err(|error| crate::problems::io_problem("look at", &mark, &error))?;
        if stilled && sandbox.state != SandboxState::Frozen && self.is_running(&sandbox) {
            self.resume_settling(&sandbox, Shut::Left)?;
            self.provider(&sandbox.provider)?.thaw(&self.run_spec(&sandbox)).or_problem()?;
        }
        let _ = std::fs::remove_file(&mark);
        Ok(())
    }

    /// Derives the change set: of one moment, or not at all. Where those inside are stopped by signals
    /// only, whoever went on meanwhile is stopped once more and it is looked again.
    pub(crate) fn derive(&self, sandbox: &Sandbox) -> Result<Derived, Problem> {
        self.resume_settling(sandbox, Shut::Opened)?;
        let mut looks = 0;
        loop {
            let derived = self.derive_once(sandbox);
            let Some(moved) = self.moved(sandbox)? else { return derived };
            looks += 1;
            if looks == LOOKS {
                return Err(ProviderError::Moved(moved)).or_problem();
            }
            self.provider(&sandbox.provider)?.freeze(&self.run_spec(sandbox)).or_problem()?;
        }
    }

    /// Somebody who was stopped and has moved since.
    pub(crate) fn moved(&self, sandbox: &Sandbox) -> Result<Option<Moved>, Problem> {
        // Otherwise nobody was stopped for a look: it is stopped, or about to be.
        let stilled =
            sandbox.state == SandboxState::Frozen || self.layout().stilled(&sandbox.id).exists();
        if !stilled || !self.is_running(sandbox) {
            return Ok(None);
        }
        match self.provider(&sandbox.provider)?.stood(&self.run_spec(sandbox)) {
            Ok(Stillness::Moved(moved)) => Ok(Some(moved)),
            // All inside end with it.
            Err(error) if is_ending(&error) => Ok(None),
            Ok(Stillness::Held | Stillness::Stopped) => Ok(None),
            Err(error) => Err(error).or_problem(),
        }
    }

    /// The agent may have shut files of ours by their mode (`chmod 000`). Root reads them anyway;
    /// an ordinary user does so from a user namespace of its own, where it has power over exactly
    /// its own files.
    fn derive_once(&self, sandbox: &Sandbox) -> Result<Derived, Problem> {
        let (workspace, options) = (self.workspace(sandbox), DeriveOptions::default());
        match skep_workspace::derive(&workspace, &options) {
            Err(DeriveError::Unreadable { .. })
                if !rustix::process::geteuid().is_root()
                    && skep_sys::process::enter_own_user_namespace().is_ok() =>
            {
                match skep_workspace::derive(&workspace, &options) {
                    Err(error @ DeriveError::Unreadable { .. }) => Err(error).or_problem().map_err(
                        |problem: Problem| {
                            problem.hint(
                                "if it belongs to a subordinate id you were lent, put the line back into `/etc/subuid` and `/etc/subgid`",
                            )
                        },
                    ),
                    other => other.or_problem(),
                }
            }
            other => other.or_problem(),
        }
    }

    /// What nobody has decided on.
    pub(crate) fn left(&self, sandbox: &Sandbox) -> Result<Left, Problem> {
        let derived = self.while_still(sandbox, || self.derive(sandbox))?;
        Ok(Left::of(sandbox, &derived.changes))
    }

    pub(crate) fn change_set(&self, id: &SandboxId) -> Result<ChangeSet, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let derived = self.while_still(&sandbox, || self.derive(&sandbox))?;
        self.judged(&sandbox, derived)
    }

    pub(crate) fn judged(&self, sandbox: &Sandbox, derived: Derived) -> Result<ChangeSet, Problem> {
        let beside = beside::beside(&derived);
        let Derived { mut changes, kept, .. } = derived;
        let unknown = self.judge(sandbox, &mut changes, &kept)?;
        drop(kept);
        let mut warnings = self.sibling_warnings(sandbox, &changes)?;
        warnings.extend(unknown_writer(&unknown));
        warnings.extend(self.unsettled_warnings(&sandbox.project));
        warnings.extend(self.mount_warnings(sandbox));
        Ok(ChangeSet {
            sandbox: sandbox.name.clone(),
            base: derived.base_word,
            digest: derived.digest,
            beside,
            changes,
            conflicts: derived.conflicts,
            drift: derived.drift,
            warnings,
            totals: derived.totals,
        })
    }

    /// What of the project is not in the view because it is another filesystem.
    pub(crate) fn mount_warnings(&self, sandbox: &Sandbox) -> Vec<String> {
        let mounts = crate::submounts::below(sandbox.project.as_path());
        let warning = |path: &RelPath| {
            format!(
                "another filesystem is mounted at `{path}`: it is not seen inside and not changed"
            )
        };
        mounts.iter().map(warning).collect()
    }

    pub(crate) fn drift_of(&self, id: &SandboxId) -> Result<Vec<Drift>, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let derived = self.while_still(&sandbox, || self.derive(&sandbox))?;
        Ok(derived.drift)
    }

    pub(crate) fn sides_of(
        &self,
        id: &SandboxId,
        path: &RelPath,
    ) -> Result<[Option<ByteString>; 3], Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let sides = self.while_standing(&sandbox, || {
            let derived = self.derive(&sandbox)?;
            skep_workspace::three_sides(&self.workspace(&sandbox), &derived, path).or_problem()
        })?;
        let sides = sides.ok_or_else(|| {
            let message = format!("`{path}` has no change in sandbox `{}`", sandbox.name);
            Problem::new(Code::NotFound, message)
        })?;
        let bytes = |side: skep_workspace::Side| side.bytes.map(ByteString::from);
        Ok([sides.base.and_then(bytes), bytes(sides.project), bytes(sides.sandbox)])
    }
}
