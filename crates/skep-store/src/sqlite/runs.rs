//! Sandboxes that were made without asking the database ([`crate::DeferredStore`]): their records
//! become rows.
//!
//! A record is read, written as rows and removed while its lock is held, so that its writer adds no
//! line that nobody will read. Whoever dies between the rows and the removal leaves a record that is
//! behind its rows or ahead of them: the next one writes what is newer, and nothing twice.

use super::fault::Outcome;
use super::{Access, Durability, SqliteStore, execs, ledger, sandboxes};
use crate::deferred::{Held, Moves, Record, Story};
use crate::value::micros;
use crate::{ExecMoves, NewEvent, Result};
use rusqlite::Transaction;
use skep_types::{Exec, SandboxName, SandboxState};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the records lie, beside the database.
pub(crate) const DIRECTORY: &str = "runs";
/// Records of one transaction: each is held meanwhile, and has a file open.
const BATCH: usize = 128;
/// A line is written in no time; the database is locked meanwhile.
const A_LINE: Duration = Duration::from_millis(100);
/// A record in which nothing stands after so long was never begun.
const NEVER_BEGUN: Duration = Duration::from_secs(600);

impl SqliteStore {
    /// Where the records of this database lie.
    pub(super) fn runs(&self) -> PathBuf {
        directory_of(self.path())
    }

    /// Takes in every record. One that cannot be read stays where it is, for somebody to look at; so
    /// does one whose writer does not let go of it.
    pub(super) fn take_in(&self) -> Result<u64> {
        if self.access == Access::ReadOnly {
            return Ok(0);
        }
        let Ok(entries) = fs::read_dir(self.runs()) else { return Ok(0) };
        let names: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        let mut taken = 0;
        for batch in names.chunks(BATCH) {
            taken += self.take_in_batch(batch)?;
        }
        Ok(taken)
    }

    fn take_in_batch(&self, paths: &[PathBuf]) -> Result<u64> {
        let records: Vec<Record> =
            paths.iter().filter_map(|path| Record::open(path).ok().flatten()).collect();
        let mut held: Vec<(Held<'_>, Story)> = Vec::with_capacity(records.len());
        // Their locks are taken when it is our turn to write: whoever writes a line does not wait for others.
        self.write("take runs in", Durability::Process, |tx| {
            hold_all(&records, &mut held)?;
            let mut events = Vec::new();
            for (_, story) in &held {
                events.extend(adopt(tx, story)?);
            }
            events.sort_by_cached_key(|event| micros(&event.at).ok());
            ledger::append(tx, &events)
        })?;
        skep_sys::failpoint::hit("runs.rows").map_err(|source| {
            super::open::io_error("remove what was taken in from", self.path(), source)
        })?;
        for (lock, _) in &held {
            lock.remove()?;
        }
        Ok(held.len() as u64)
    }
}

/// Locks and reads records; what began first was first. One that cannot be read stays where it is, and so does
/// one that somebody else holds.
fn hold_all<'a>(records: &'a [Record], held: &mut Vec<(Held<'a>, Story)>) -> Result<()> {
    for record in records {
        let Ok(Some(lock)) = record.hold_within(A_LINE) else { continue };
        match lock.story() {
            Ok(Some(story)) => held.push((lock, story)),
            Ok(None) if is_older(record.path(), NEVER_BEGUN) => lock.remove()?,
            Ok(None) | Err(_) => {}
        }
    }
    held.sort_by_cached_key(|(_, story)| micros(&story.row.created_at).ok());
    Ok(())
}

/// Where the records of a database lie.
pub(crate) fn directory_of(database: &Path) -> PathBuf {
    database.with_file_name(DIRECTORY)
}

fn is_older(path: &Path, age: Duration) -> bool {
    let changed = fs::metadata(path).and_then(|found| found.modified());
    changed.is_ok_and(|at| at.elapsed().is_ok_and(|since| since > age))
}

/// The rows of one record, as far as they are not there; returns the events that are new.
fn adopt(tx: &Transaction<'_>, story: &Story) -> Outcome<Vec<NewEvent>> {
    let mut row = story.row.clone();
    let Some(there) = sandboxes::find(tx, &row.id)? else {
        if row.state != SandboxState::Deleted && sandboxes::is_taken(tx, &row.name)? {
            row.name = another_name(&row.name, row.id.as_str())?;
        }
        sandboxes::insert(tx, &row)?;
        sandboxes::refer_to_layers(tx, &row)?;
        for exec in execs_of(&story.moves) {
            execs::insert(tx, &exec)?;
        }
        return Ok(story.moves.iter().flat_map(events_of).collect());
    };
    // Nobody else may have moved it on meanwhile; what is gone stays gone.
    let newer: Vec<&Moves> =
        story.moves.iter().filter(|moves| moves.version > there.version).collect();
    if newer.is_empty() || there.state == SandboxState::Deleted {
        return Ok(Vec::new());
    }
    for moves in &newer {
        execs::apply(tx, &there, ExecMoves { begun: &moves.begun, ended: &moves.ended })?;
    }
    row.name = there.name.clone();
    sandboxes::write_back(tx, &there, &row)?;
    Ok(newer.into_iter().flat_map(|moves| moves.events.clone()).collect())
}

/// A name was made up, and somebody has it: the id makes it another one.
fn another_name(name: &SandboxName, id: &str) -> Result<SandboxName> {
    let text = format!("{name}-{id}");
    SandboxName::parse(&text).map_err(|error| crate::StoreError::Damaged {
        table: "runs",
        id: id.to_owned(),
        detail: error.to_string(),
    })
}

/// The execs of a record, with their ends.
fn execs_of(story: &[Moves]) -> Vec<Exec> {
    let mut execs: Vec<Exec> = story.iter().flat_map(|moves| moves.begun.clone()).collect();
    for (id, end, _) in story.iter().flat_map(|moves| &moves.ended) {
        if let Some(exec) = execs.iter_mut().find(|exec| exec.id == *id && exec.end.is_none()) {
            exec.finish(end.clone());
        }
    }
    execs
}

fn events_of(moves: &Moves) -> Vec<NewEvent> {
    let ends = moves.ended.iter().map(|(_, _, event)| event.clone());
    ends.chain(moves.events.iter().cloned()).collect()
}
