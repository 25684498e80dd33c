//! One step of a publish: done at most once, checked afterwards, and taken back the same way.

use super::journal::{Journal, Mark, Record};
use super::plan::{Step, moves, working_mode};
use super::staging::{Staging, set_dir_mode};
use super::verify::differs;
use crate::tree::{TreeRoot, means_absent, permission_bits, stat_name};
use rustix::fs::{FileType, RenameFlags, Stat, renameat_with};
use rustix::io::Errno;
use skep_sys::failpoint;
use skep_types::{EntryState, RelPath};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A file whose last write is this close to the verification may have been written in the same
/// tick of the clock; its bytes are looked at again. Coarse kernel clocks tick every 1 to 10 ms.
const TICK_NANOSECONDS: i128 = 20_000_000;

/// Why a step was not made.
#[derive(Debug)]
pub(super) enum StepError {
    /// Something else is in the project; it was left, or put back.
    Conflict(String),
    /// The system refused.
    Io { operation: &'static str, source: io::Error },
}

/// Whether what stands in the way stops a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// Only what was reviewed is replaced.
    Reviewed,
    /// The person decided: whatever is there becomes the backup.
    Decided,
}

fn io_error(operation: &'static str) -> impl FnOnce(io::Error) -> StepError {
    move |source| StepError::Io { operation, source }
}

fn conflict<T>(reason: impl Into<String>) -> Result<T, StepError> {
    Err(StepError::Conflict(reason.into()))
}

/// The project, its staging directory and the journal: what steps work on.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub root: &'a TreeRoot,
    pub staging: &'a Staging,
    pub journal: &'a Journal,
    pub guard: Guard,
}

impl Scene<'_> {
    /// Makes a step, if it is not made yet.
    pub fn perform(&self, step: Step) -> Result<(), StepError> {
        let record = &self.journal.records[step.record()];
        match step {
            Step::Open { mode, .. } => self.set_mode(record, mode),
            Step::Close { mode, .. } => self.set_mode(record, mode),
            Step::Move { .. } => {
                if self.staging.is_moved(record).map_err(io_error("look at the slot of"))? {
                    return Ok(());
                }
                match (record.found, record.staged) {
                    (_, Some(_)) if self.guard == Guard::Decided => self.put_by_decision(record),
                    (None, _) => self.add(record),
                    (Some(_), Some(_)) => self.replace(record),
                    (Some(_), None) => self.take(record),
                }
            }
        }
    }

    /// Takes a step back, if it is made.
    pub fn revert(&self, step: Step) -> Result<(), StepError> {
        let record = &self.journal.records[step.record()];
        match step {
            Step::Open { back, .. } | Step::Close { back, .. } => self.set_mode(record, back),
            Step::Move { .. } => {
                if !self.staging.is_moved(record).map_err(io_error("look at the slot of"))? {
                    return Ok(());
                }
                match (record.found, record.staged) {
                    (None, _) => self.take_back(record),
                    (Some(_), Some(_)) => self.exchange_back(record),
                    (Some(_), None) => self.put_back(record),
                }
            }
        }
    }

    /// Something for nothing: never replaces.
    fn add(&self, record: &Record) -> Result<(), StepError> {
        let parent = self.parent(&record.path)?;
        self.slot_to_project(record, parent.as_fd())
    }

    /// Something for something: exchanged in one moment, then what came out is looked at.
    fn replace(&self, record: &Record) -> Result<(), StepError> {
        let parent = self.parent(&record.path)?;
        let stat = self.expect_before(record, parent.as_fd())?;
        failpoint::hit("apply.looked").map_err(io_error("replace"))?;
        self.exchange(record, parent.as_fd())?;
        if let Err(error) = self.check_taken(record, &stat) {
            self.exchange(record, parent.as_fd())?;
            return Err(error);
        }
        Ok(())
    }

    /// Nothing for something: moved out, then looked at.
    fn take(&self, record: &Record) -> Result<(), StepError> {
        let parent = self.parent(&record.path)?;
        if self.guard == Guard::Decided
            && stat_name(parent.as_fd(), name_of(record)).map_err(io_error("look at"))?.is_none()
        {
            return Ok(());
        }
        let stat = self.expect_before(record, parent.as_fd())?;
        failpoint::hit("apply.looked").map_err(io_error("remove"))?;
        self.project_to_slot(record, parent.as_fd())?;
        if let Err(error) = self.check_taken(record, &stat) {
            self.slot_to_project(record, parent.as_fd())?;
            return Err(error);
        }
        Ok(())
    }

    /// The approved version goes in, whatever is there comes out.
    fn put_by_decision(&self, record: &Record) -> Result<(), StepError> {
        let parent = self.parent(&record.path)?;
        match self.exchange(record, parent.as_fd()) {
            Err(StepError::Conflict(_)) => self.slot_to_project(record, parent.as_fd()),
            result => result,
        }
    }

    fn exchange_back(&self, record: &Record) -> Result<(), StepError> {
        let parent = self.parent(&record.path)?;
        self.expect_ours(record, parent.as_fd())?;
        self.exchange(record, parent.as_fd())?;
        if let Err(error) = self.check_ours_in_slot(record) {
            self.exchange(record, parent.as_fd())?;
            return Err(error);
        }
        Ok(())
    }

    fn take_back(&self, record: &Record) -> Result<(), StepError> {
        let parent = self.parent(&record.path)?;
        self.expect_ours(record, parent.as_fd())?;
        self.project_to_slot(record, parent.as_fd())?;
        if let Err(error) = self.check_ours_in_slot(record) {
            self.slot_to_project(record, parent.as_fd())?;
            return Err(error);
        }
        Ok(())
    }

    fn put_back(&self, record: &Record) -> Result<(), StepError> {
        let parent = self.parent(&record.path)?;
        self.slot_to_project(record, parent.as_fd())
    }

    fn parent(&self, path: &RelPath) -> Result<OwnedFd, StepError> {
        let parent = path.parent().unwrap_or_default();
        match self.root.open_dir(&parent) {
            Ok(fd) => Ok(fd),
            Err(error) if means_absent(&error) => {
                conflict(format!("cannot be reached: the directory `{parent}` is gone"))
            }
            Err(source) => Err(StepError::Io { operation: "open the directory of", source }),
        }
    }

    fn exchange(&self, record: &Record, parent: BorrowedFd<'_>) -> Result<(), StepError> {
        let (slot, name) = (record.slot_name(), name_of(record));
        match renameat_with(self.staging.fd(), slot, parent, name, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => conflict("is gone"),
            Err(errno) => Err(StepError::Io { operation: "replace", source: errno.into() }),
        }
    }

    fn slot_to_project(&self, record: &Record, parent: BorrowedFd<'_>) -> Result<(), StepError> {
        let (slot, name) = (record.slot_name(), name_of(record));
        match renameat_with(self.staging.fd(), slot, parent, name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => conflict("exists now"),
            Err(errno) => Err(StepError::Io { operation: "create", source: errno.into() }),
        }
    }

    fn project_to_slot(&self, record: &Record, parent: BorrowedFd<'_>) -> Result<(), StepError> {
        let (slot, name) = (record.slot_name(), name_of(record));
        match renameat_with(parent, name, self.staging.fd(), slot, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => conflict("is gone"),
            Err(errno) => Err(StepError::Io { operation: "remove", source: errno.into() }),
        }
    }

    /// Before a move: is it still what was verified? Gives the `lstat` of it.
    fn expect_before(&self, record: &Record, parent: BorrowedFd<'_>) -> Result<Stat, StepError> {
        let Some(stat) = stat_name(parent, name_of(record)).map_err(io_error("look at"))? else {
            return conflict("is gone");
        };
        if self.guard == Guard::Decided {
            return Ok(stat);
        }
        if let EntryState::Dir { mode } = record.before {
            let now = permission_bits(&stat);
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory
                || (now != mode && now != working_mode(mode))
            {
                return conflict("was changed");
            }
            if !self.root.list(&record.path).map_err(io_error("list"))?.is_empty() {
                return conflict("holds entries that are not part of the approval");
            }
            return Ok(stat);
        }
        if record.found == Some(Mark::of(&stat)) && !self.written_near_verification(&stat) {
            return Ok(stat);
        }
        // Touched: the time of change also moves for a new hard link, or for our own move and its
        // reversal in an earlier attempt. The bytes decide.
        let (state, now) = self.root.state_and_stat(&record.path).map_err(io_error("read"))?;
        match now {
            Some(now) if state == record.before => Ok(now),
            _ => conflict(differs(&record.path, &record.before, &state).reason),
        }
    }

    /// After a move: is what came out the thing that was looked at before?
    fn check_taken(&self, record: &Record, expected: &Stat) -> Result<(), StepError> {
        let slot = self.staging.slot(record).map_err(io_error("look at the slot of"))?;
        let Some(slot) = slot else { return conflict("is gone") };
        if self.guard == Guard::Decided {
            return Ok(());
        }
        if let EntryState::Dir { .. } = record.before {
            let empty = slot.ino == expected.st_ino && self.slot_is_empty(record)?;
            return if empty { Ok(()) } else { conflict("was changed while it was removed") };
        }
        if slot.same_bytes(&Mark::of(expected)) && !self.written_near_verification(expected) {
            return Ok(());
        }
        let state = self.staging.state(record).map_err(io_error("read"))?;
        if state == record.before { Ok(()) } else { conflict("was saved meanwhile") }
    }

    /// Before taking back: is it still exactly what we put there?
    fn expect_ours(&self, record: &Record, parent: BorrowedFd<'_>) -> Result<(), StepError> {
        let stat = stat_name(parent, name_of(record)).map_err(io_error("look at"))?;
        let (Some(stat), Some(staged)) = (stat, record.staged) else {
            return conflict("was removed after it was published");
        };
        let is_dir = matches!(record.after, EntryState::Dir { .. });
        let ours = if is_dir {
            stat.st_ino == staged.ino
                && self.root.list(&record.path).map_err(io_error("list"))?.is_empty()
        } else {
            Mark::of(&stat).same_bytes(&staged)
        };
        if ours { Ok(()) } else { conflict("was changed after it was published") }
    }

    fn check_ours_in_slot(&self, record: &Record) -> Result<(), StepError> {
        let slot = self.staging.slot(record).map_err(io_error("look at the slot of"))?;
        let (Some(slot), Some(staged)) = (slot, record.staged) else {
            return conflict("was removed after it was published");
        };
        let ours = if matches!(record.after, EntryState::Dir { .. }) {
            slot.ino == staged.ino && self.slot_is_empty(record)?
        } else {
            slot.same_bytes(&staged)
        };
        if ours { Ok(()) } else { conflict("was changed after it was published") }
    }

    /// Sets the mode of a directory that has one of the modes it can have on the way.
    fn set_mode(&self, record: &Record, mode: u32) -> Result<(), StepError> {
        let stat = self.root.stat(&record.path).map_err(io_error("look at"))?;
        let own = [record.found, record.staged].into_iter().flatten();
        let known = |stat: &Stat| own.clone().any(|mark| mark.ino == stat.st_ino);
        let Some(stat) = stat.filter(|stat| known(stat)) else {
            // A directory that comes or goes as a whole has its mode elsewhere at this moment.
            return if moves(record) || self.guard == Guard::Decided {
                Ok(())
            } else {
                conflict("is no longer the directory that was reviewed")
            };
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Ok(());
        }
        let now = permission_bits(&stat);
        let expected = [&record.before, &record.after]
            .into_iter()
            .filter_map(|state| state.mode())
            .any(|known| now == known || now == working_mode(known));
        if !expected && self.guard == Guard::Reviewed {
            return conflict("has another mode now");
        }
        if now == mode {
            return Ok(());
        }
        set_dir_mode(self.root, &record.path, mode).map_err(io_error("change the mode of"))
    }

    fn slot_is_empty(&self, record: &Record) -> Result<bool, StepError> {
        self.staging.list(record).map(|names| names.is_empty()).map_err(io_error("list"))
    }

    fn written_near_verification(&self, stat: &Stat) -> bool {
        let nanoseconds =
            |(seconds, rest): (i64, u64)| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        let written = nanoseconds(Mark::of(stat).mtime);
        written + TICK_NANOSECONDS >= nanoseconds(self.journal.verified_from)
    }
}

fn name_of(record: &Record) -> &[u8] {
    record.path.file_name().unwrap_or_default()
}
