//! The order of the steps, as data.
//!
//! 1. Directories are opened for writing, parents first: a mode may lack the bits that the moves
//!    below it need.
//! 2. Removals, deepest first: a directory is empty when its turn comes.
//! 3. Everything that puts an entry in place, parents first: a directory is there when its children
//!    come. A directory that becomes a file was emptied in 2.
//! 4. Directories get their final mode, deepest first.
//!
//! Taking back is the same list backwards.

use super::journal::Record;
use skep_types::EntryState;

/// The bits the owner of a directory needs to work in it.
const OWNER_BITS: u32 = 0o700;

/// One step; the number is the record's place in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Set a directory's working mode; `back` is its mode when taken back.
    Open { record: usize, mode: u32, back: u32 },
    /// Move between slot and project.
    Move { record: usize },
    /// Set a directory's final mode; `back` is its working mode.
    Close { record: usize, mode: u32, back: u32 },
}

impl Step {
    pub fn record(self) -> usize {
        match self {
            Self::Open { record, .. } | Self::Move { record } | Self::Close { record, .. } => {
                record
            }
        }
    }
}

/// The mode a directory has while entries are moved in it.
pub(super) fn working_mode(mode: u32) -> u32 {
    mode | OWNER_BITS
}

/// Orders the records; see the module's text.
pub(super) fn plan(records: &[Record]) -> Vec<Step> {
    let depths: Vec<usize> = records.iter().map(|record| record.path.depth()).collect();
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by(|one, two| {
        (depths[*one], &records[*one].path).cmp(&(depths[*two], &records[*two].path))
    });
    let parents_first = || order.iter().copied();
    let deepest_first = || order.iter().rev().copied();

    let mut steps = Vec::with_capacity(records.len());
    steps.extend(parents_first().filter_map(|record| open(record, &records[record])));
    steps.extend(
        deepest_first()
            .filter(|record| records[*record].after.is_absent())
            .map(|record| Step::Move { record }),
    );
    steps.extend(
        parents_first()
            .filter(|record| !records[*record].after.is_absent() && moves(&records[*record]))
            .map(|record| Step::Move { record }),
    );
    steps.extend(deepest_first().filter_map(|record| close(record, &records[record])));
    steps
}

/// Whether a record is a move; a directory that stays one only changes its mode.
pub(super) fn moves(record: &Record) -> bool {
    !matches!((&record.before, &record.after), (EntryState::Dir { .. }, EntryState::Dir { .. }))
}

fn open(record: usize, entry: &Record) -> Option<Step> {
    let (mode, back) = match (&entry.before, &entry.after) {
        (EntryState::Dir { mode: back }, EntryState::Dir { mode }) => (working_mode(*mode), *back),
        (EntryState::Dir { mode }, _) => (working_mode(*mode), *mode),
        // A new directory has its working mode from staging. The step matters to a recovery that
        // finds it closed already.
        (_, EntryState::Dir { mode }) if working_mode(*mode) != *mode => {
            return Some(Step::Open {
                record,
                mode: working_mode(*mode),
                back: working_mode(*mode),
            });
        }
        _ => return None,
    };
    (mode != back).then_some(Step::Open { record, mode, back })
}

fn close(record: usize, entry: &Record) -> Option<Step> {
    match entry.after {
        EntryState::Dir { mode } if working_mode(mode) != mode => {
            Some(Step::Close { record, mode, back: working_mode(mode) })
        }
        _ => None,
    }
}
