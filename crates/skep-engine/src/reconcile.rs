//! Settling what a crash left: the store, the keepers and the disk are compared, and every
//! difference has a decision. Runs whenever an engine opens; running it twice changes nothing.

use crate::layout::{self, may_be_there};
use crate::problems::{OrProblem, unless_unwritable};
use crate::{Engine, spare, trash};
use serde_json::{Value, json};
use skep_store::SandboxFilter;
use skep_types::{IdleStop, Problem, Sandbox, SandboxState, WorkspaceDriver};
use std::collections::HashSet;

/// Rows of so many sandboxes are a megabyte, which whatever is forked next would keep.
const MANY: usize = 50;

impl Engine {
    /// Every sandbox that is not at rest is looked at. The rows are read once: with a thousand sandboxes
    /// that is most of what a start costs.
    pub(crate) fn reconcile(&self) -> Result<(), Problem> {
        // Read before anything is written: a row that cannot be read is met here.
        let mut live = self.living()?;
        if self.take_in_all() {
            live = self.living()?;
        }
        spare::clear_unfinished(self.layout());
        unless_unwritable(self.note_what_happened(&live))?;
        self.settle_layers()?;
        self.reconcile_approvals()?;
        self.reconcile_deleted(&live)?;
        self.expire(&live);
        if live.len() > MANY {
            drop(live);
            skep_sys::memory::give_back();
        }
        Ok(())
    }

    fn living(&self) -> Result<Vec<Sandbox>, Problem> {
        let states = SandboxState::ALL.into_iter().filter(|state| *state != SandboxState::Deleted);
        let filter = SandboxFilter { states: states.collect(), ..SandboxFilter::default() };
        self.store.list_sandboxes(&filter).or_problem()
    }

    fn note_what_happened(&self, live: &[Sandbox]) -> Result<(), Problem> {
        use SandboxState::{Creating, Frozen, Ready};
        let restless = live.iter().filter(|one| matches!(one.state, Creating | Ready | Frozen));
        for sandbox in restless {
            self.reconcile_sandbox(sandbox)?;
        }
        Ok(())
    }

    fn reconcile_sandbox(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let Ok(provider) = self.provider(&sandbox.provider) else {
            // A provider this skep does not have: not ours to judge.
            return Ok(());
        };
        let directory = self.layout().sandbox(&sandbox.id);
        let alive = |keeper| provider.is_alive(keeper, &directory);
        let alive = sandbox.keeper.as_ref().is_some_and(alive);
        if alive {
            self.egress_death(sandbox)?;
            // Its maker, or whoever started it, may die over it yet.
            self.amiss.set(self.amiss.get() || sandbox.state == SandboxState::Creating);
            // A keeper that does not answer is no reason to see no sandbox at all, nor to keep it from
            // being stopped. The mark stays for the next one who looks.
            let _ = self.whole(self.wake_forgotten(sandbox));
            return Ok(());
        }
        if sandbox.state == SandboxState::Creating {
            // The row was read before we looked for its maker, who may have finished and gone in
            // between. Its maker is dead now: a row that is still the same stays so.
            let now = self.store.sandbox(&sandbox.id).or_problem()?;
            return match now.version == sandbox.version {
                true if has_lived(&directory) || has_work(sandbox, &directory) => {
                    self.keep_forgotten(sandbox)
                }
                true => {
                    self.tear_down(sandbox, "interrupted while it was being created");
                    Ok(())
                }
                false => Ok(()),
            };
        }
        let Ok(_lock) = self.lock_now(&sandbox.id) else {
            // Somebody is starting or stopping it right now.
            return Ok(());
        };
        let sandbox = self.store.sandbox(&sandbox.id).or_problem()?;
        let still = !self.is_running(&sandbox)
            && matches!(sandbox.state, SandboxState::Ready | SandboxState::Frozen);
        if !still {
            return Ok(());
        }
        let rebooted = sandbox.keeper.as_ref().is_some_and(|keeper| {
            skep_sys::process::boot_id().is_ok_and(|boot| boot != keeper.boot_id)
        });
        // The upper is not synced while work goes on (see `docs/design/performance.md`).
        let idle = self.layout().sandbox(&sandbox.id).join(IdleStop::FILE);
        let mut reason = match (rebooted, idle_stop(&idle, &sandbox)) {
            (true, _) => {
                "the host was restarted; after a power loss the last half minute may be missing"
                    .to_owned()
            }
            (false, Some(stop)) => stop.reason(),
            (false, None) => "its keeper was gone".to_owned(),
        };
        // One that lives is that of another directory: this is a copy.
        provider.stop(&sandbox.id, &directory, sandbox.keeper.as_ref()).or_problem()?;
        if let Err(problem) = self.bury_execs(&sandbox) {
            reason.push_str(&format!("; some of its execs are not known: {}", problem.message));
        }
        self.update(&sandbox.id, "sandbox.stopped", json!({ "reason": reason }), &mut |row| {
            row.state = SandboxState::Stopped;
            row.state_reason = Some(reason.clone());
            row.keeper = None;
        })?;
        let _ = std::fs::remove_file(idle);
        Ok(())
    }

    /// A command begins after the row says that the sandbox is ready: where one has run, the row is from
    /// before. So it is where something was written from outside, or where a fork was made. The newest commits were lost, with the power or the end of a log; the work was not.
    fn keep_forgotten(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let directory = self.layout().sandbox(&sandbox.id);
        self.provider(&sandbox.provider)?.stop(&sandbox.id, &directory, None).or_problem()?;
        let reason = "what was remembered of it is older than its work, which is kept";
        self.update(&sandbox.id, "sandbox.stopped", json!({ "reason": reason }), &mut |row| {
            row.state = SandboxState::Stopped;
            row.state_reason = Some(reason.to_owned());
            row.keeper = None;
        })
        .map(drop)
    }

    /// Deleting goes on where it was interrupted. A directory without a row is left alone: with a
    /// lost database it may be the only copy of somebody's work.
    fn reconcile_deleted(&self, live: &[Sandbox]) -> Result<(), Problem> {
        let live: HashSet<&str> = live.iter().map(|sandbox| sandbox.id.as_str()).collect();
        let names = directory_names(&self.layout().sandboxes());
        // Of one that was made since the rows were read, its row is asked too.
        let unknown = names.into_iter().filter(|name| !live.contains(name.as_str()));
        for name in unknown {
            let Ok(id) = name.parse() else { continue };
            let Ok(sandbox) = self.store.sandbox(&id) else { continue };
            if sandbox.state == SandboxState::Deleted {
                self.finish_deleting(&sandbox)?;
                let event = self.event("sandbox.deleting_finished", &id, None, Value::Null);
                self.store.append_events(&[event]).or_problem()?;
            }
        }
        if !directory_names(&self.layout().trash()).is_empty() {
            // Whatever cannot be removed now is tried again next time.
            let _ = trash::empty(&self.layout().trash());
        }
        Ok(())
    }
}

/// Whether something lies in the upper, which is empty until a sandbox is ready; but for a copy, which is
/// made before that.
fn has_work(sandbox: &Sandbox, directory: &std::path::Path) -> bool {
    sandbox.driver != WorkspaceDriver::Copy
        && match std::fs::read_dir(directory.join("upper")) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
}

/// Whether a sandbox was ever ready: a command was begun in it, something was written into it from outside,
/// or it became a fork. What cannot be looked at may have been.
fn has_lived(directory: &std::path::Path) -> bool {
    let has_run = |name: &&str| match std::fs::read_dir(directory.join(name)) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    ["execs", "begun"].iter().any(has_run)
        || [layout::OWN_WRITES, layout::FORKED]
            .iter()
            .any(|name| may_be_there(&directory.join(name)))
}

/// That this very keeper ended because nothing ran.
fn idle_stop(file: &std::path::Path, sandbox: &Sandbox) -> Option<IdleStop> {
    let stop: IdleStop = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    sandbox.keeper.as_ref().is_some_and(|keeper| keeper.pid == stop.keeper).then_some(stop)
}

pub(crate) fn directory_names(path: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
