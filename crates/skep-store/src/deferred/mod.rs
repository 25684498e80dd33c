//! [`DeferredStore`]: a run that changes nothing need not open the database.
//!
//! Opening it, reading its log, and writing three rows took a fifth of `skep run -- true`. What stands in
//! those rows is of no use to anybody until somebody asks; so it is written into a file of its own, the
//! *record* of the run, and becomes rows when the next one opens the database
//! ([`crate::Housekeeping::take_in_runs`]), or when this one asks for anything that is not in it.
//!
//! What makes this as good as a row: the record is there before anything is made for the sandbox, it is as
//! durable as a row that is not synced, and whoever looks at the store has taken it in before. What makes
//! it safe: it is used only while the database is as it was when somebody last vouched for it
//! ([`crate::Housekeeping::vouch`]), so that nothing that it would have said goes unheard.
//!
//! `docs/design/run-records.md` has the whole of it.

mod passed_on;
mod record;

use record::Step;
pub(crate) use record::{Held, Moves, Record, Story};

use crate::rules::{changed_sandbox, check_moves, check_version};
use crate::sqlite::{is_in_doubt, is_vouched_for, runs_of};
use crate::{
    Access, ExecMoves, Expect, Housekeeping as _, NewEvent, NewInstance, Result, ScopeMode,
    SqliteStore, StoreError,
};
use rustix::fs::{Mode, OFlags, RawDir};
use skep_types::{Exec, ExecId, Sandbox, SandboxId, SandboxState};
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// So many records wait at most: then a run opens the database again, and takes them in.
const MOST: usize = 64;

/// Stands for the database of a state directory until that must be asked.
#[derive(Debug)]
pub struct DeferredStore {
    database: PathBuf,
    first: NewInstance,
    runs: PathBuf,
    blank: Option<PathBuf>,
    kept: Mutex<Option<Kept>>,
    opened: OnceLock<SqliteStore>,
}

/// How many names a directory has. Every run asks, so nothing is allocated for any of them.
fn how_many(directory: &Path) -> io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let mut room = [MaybeUninit::uninit(); 4 << 10];
    let mut entries = RawDir::new(directory, &mut room);
    let mut names = 0_usize;
    while let Some(entry) = entries.next() {
        entry?;
        names += 1;
    }
    // Itself, and the one above.
    Ok(names.saturating_sub(2))
}

/// The one sandbox that is known here.
#[derive(Debug)]
struct Kept {
    record: Record,
    row: Sandbox,
    execs: Vec<Exec>,
}

impl DeferredStore {
    /// `None` where the database has something to say, or may have: nobody has vouched for it as it is
    /// now, or enough records wait. `runs`, where they lie, must be there: whoever opens the database makes it.
    pub fn instead_of(database: &Path, first: NewInstance) -> Option<Self> {
        let runs = runs_of(database);
        if how_many(&runs).ok()? >= MOST || !is_vouched_for(database) || is_in_doubt(database) {
            return None;
        }
        let (kept, opened) = (Mutex::default(), OnceLock::new());
        Some(Self { database: database.to_owned(), first, runs, blank: None, kept, opened })
    }

    /// An empty file that somebody has made ahead becomes the record, if it is still there: to make one takes
    /// the longer, the more were removed around it lately.
    pub fn beginning_in(self, blank: Option<PathBuf>) -> Self {
        Self { blank, ..self }
    }

    /// Where the record of a sandbox lies, if it has one.
    #[cfg(test)]
    fn record(database: &Path, id: &SandboxId) -> PathBuf {
        runs_of(database).join(id.as_str())
    }

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database itself. What is known here is there too from then on.
    fn database(&self) -> Result<&SqliteStore> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let store = SqliteStore::open(&self.database, Access::ReadWrite, &self.first)?;
        store.take_in_runs()?;
        let kept = self.kept().take();
        if let Some(known) = kept {
            let waits = known.record.is_ours().map_err(|error| self.failed("look at", error))?;
            if waits {
                let path = known.record.path().to_owned();
                *self.kept() = Some(known);
                return Err(StoreError::Busy { operation: "take the record of a run in", path });
            }
        }
        Ok(self.opened.get_or_init(|| store))
    }

    /// Asks the record of a sandbox; `None` if it is not known here, or no longer.
    fn ask<T>(&self, id: &SandboxId, answer: impl FnOnce(&mut Kept) -> T) -> Result<Option<T>> {
        let mut kept = self.kept();
        let Some(known) = kept.as_mut().filter(|known| known.row.id == *id) else {
            return Ok(None);
        };
        match known.record.is_ours().map_err(|error| self.failed("look at", error))? {
            true => Ok(Some(answer(known))),
            // Somebody has taken it in, and may have changed its row since.
            false => {
                *kept = None;
                Ok(None)
            }
        }
    }

    fn insert(
        &self,
        sandbox: &Sandbox,
        scope: ScopeMode,
        events: &[NewEvent],
    ) -> Result<Option<u64>> {
        let mut kept = self.kept();
        let is_first = kept.is_none() && self.opened.get().is_none();
        let is_plain = scope == ScopeMode::Shared
            && sandbox.state == SandboxState::Creating
            && sandbox.layers.is_empty();
        if !is_first || !is_plain {
            return Ok(None);
        }
        let row = Sandbox { version: 1, ..sandbox.clone() };
        let step = Step { sandbox: row, begun: vec![], ended: vec![], events: events.to_vec() };
        // Whoever cannot write here cannot write there either, and the database knows what to say.
        let Ok(record) = Record::create(&self.runs, self.blank.as_deref(), &step) else {
            return Ok(None);
        };
        *kept = Some(Kept { record, row: step.sandbox, execs: Vec::new() });
        Ok(Some(1))
    }

    fn update(
        &self,
        id: &SandboxId,
        expect: Expect,
        moves: ExecMoves<'_>,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Option<Sandbox>> {
        if expect.lease_epoch.is_some() {
            return self.database().map(|_| None);
        }
        let mut kept = self.kept();
        let Some(known) = kept.as_mut().filter(|known| known.row.id == *id) else {
            return Ok(None);
        };
        let failed = |error| self.failed("write the record of a run in", error);
        let Some(held) = known.record.hold().map_err(failed)? else {
            *kept = None;
            return Ok(None);
        };
        check_version(&known.row, expect)?;
        check_moves(&known.row, &moves)?;
        let after = changed_sandbox(&known.row, change)?;
        let running =
            |id: &ExecId| known.execs.iter().any(|exec| exec.id == *id && exec.end.is_none());
        let ended = moves.ended.iter().filter(|(id, ..)| running(id)).cloned().collect();
        let begun = moves.begun.to_vec();
        let step = Step { sandbox: after, begun, ended, events: events.to_vec() };
        held.append(&step, Some(&known.row)).map_err(failed)?;
        drop(held);
        known.execs.extend(step.begun);
        for (id, end, _) in step.ended {
            if let Some(exec) = known.execs.iter_mut().find(|exec| exec.id == id) {
                exec.finish(end);
            }
        }
        known.row = step.sandbox;
        Ok(Some(known.row.clone()))
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> StoreError {
        crate::sqlite::io_error(operation, &self.runs, source)
    }
}

#[cfg(test)]
mod tests;
