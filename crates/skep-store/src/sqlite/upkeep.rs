//! Folding the log, and the check of everything.

use super::fault::Outcome;
use super::open::{BEGUN, BUSY_TIMEOUT, beside, connect, io_error};
use super::{Access, Durability, SqliteStore, execs, layers, sandboxes};
use crate::value::{checksum, decode, micros};
use crate::{Housekeeping, KeptSince, Outdated, Result, Stop, StoreError, Upkeep, Work};
use rusqlite::{Connection, OptionalExtension as _, Transaction};
use serde::de::IgnoredAny;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// From this size on the log is folded into the database. The first process that opens a database
/// reads its whole log, page by page: about half a millisecond per mebibyte on top of the half
/// millisecond that opening costs anyway. So the bound of the log is the bound of that wait. And
/// folding syncs, which takes some five milliseconds: a smaller bound would pay them more often.
const LOG_BYTES: u64 = 1 << 20;
/// How long folding waits for readers; it is tried again at the next occasion.
const FOLD_PATIENCE: Duration = Duration::from_millis(50);

impl Housekeeping for SqliteStore {
    /// Compiling a dozen statements takes as long as running them.
    fn rehearse(&self) {
        let connection = self.connection();
        for sql in sandboxes::LATER.iter().chain(&execs::LATER).chain([&layers::OF_SANDBOX]) {
            // One that cannot be compiled will say so when it is needed.
            let _ = connection.prepare_cached(sql);
        }
    }

    fn upkeep(&self) -> Result<Upkeep> {
        let log = beside(self.path(), "-wal");
        let log_bytes = fs::metadata(log).map_or(0, |found| found.len());
        if log_bytes < LOG_BYTES || !self.takes_changes() {
            return Ok(Upkeep { log_bytes, folded: false });
        }
        self.check_file()?;
        let folded = {
            let connection = self.connection();
            let folded = fold(&connection);
            connection
                .busy_timeout(BUSY_TIMEOUT)
                .map_err(Into::into)
                .and(folded)
                .map_err(|fault| self.settle("fold the log into", fault))?
        };
        if folded {
            self.restart_log()?;
        }
        Ok(Upkeep { log_bytes, folded })
    }

    fn take_in_runs(&self) -> Result<u64> {
        self.take_in()
    }

    fn look_around(&self) {
        self.note_others();
    }

    fn note_settled(&self) {
        *self.settled.lock().unwrap_or_else(PoisonError::into_inner) = self.settled_now();
    }

    fn begin_work(&self) -> Work {
        match self.access {
            Access::ReadWrite => Work::held(self.take_work()),
            Access::ReadOnly => Work::default(),
        }
    }

    fn vouch(&self) {
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(settled) = settled.filter(|_| self.takes_changes()) {
            // Whoever finds no note opens the database, as always.
            let _ = self.note_looks(&settled);
        }
    }

    fn stop(&self) -> Option<Stop> {
        self.stopped.get().copied()
    }

    fn takes_changes(&self) -> bool {
        self.access == Access::ReadWrite && self.stopped.get().is_none()
    }

    /// A commit that changes nothing writes nothing: the count makes it one.
    fn sync(&self) -> Result<()> {
        self.write("sync", Durability::Power, |tx| {
            tx.execute(
                "INSERT INTO meta (key, value) VALUES ('syncs', '1')
                 ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1",
                [],
            )?;
            Ok(())
        })
    }

    fn outdated(&self, since: &KeptSince) -> Result<Outdated> {
        self.read("count what is outdated", |tx| {
            let count = |sql: &str, before: &Option<String>| -> Outcome<u64> {
                let Some(before) = before else { return Ok(0) };
                let found: i64 = tx.query_row(sql, [micros(before)?], |row| row.get(0))?;
                Ok(found as u64)
            };
            Ok(Outdated {
                events: count("SELECT COUNT(*) FROM events WHERE at_us < ?1", &since.events)?,
                deleted: count(
                    "SELECT COUNT(*) FROM sandboxes WHERE state = 'deleted' AND updated_us < ?1",
                    &since.deleted,
                )?,
                approvals: count(
                    "SELECT COUNT(*) FROM approvals WHERE at_us < ?1 AND NOT undo_kept
                     AND state IN ('applied', 'aborted', 'undone')",
                    &since.approvals,
                )?,
                keys: count(
                    "SELECT COUNT(*) FROM idempotency_keys WHERE expires_us <= ?1",
                    &since.keys,
                )?,
            })
        })
    }

    fn check(&self) -> Result<Vec<String>> {
        self.check_file()?;
        let read = || -> Outcome<Vec<String>> {
            // One of its own: what this handle has in memory may be sound where the file is not.
            let mut connection = connect(&self.path, Access::ReadOnly)?;
            let tx = connection.transaction()?;
            let mut problems = quick_check(&tx)?;
            for (table, key) in VALUE_TABLES {
                check_values(&tx, table, key, &mut problems)?;
            }
            Ok(problems)
        };
        let checked = read().map_err(|fault| fault.into_error("check", &self.path));
        let problems = match checked {
            // SQLite gives up on the first page it cannot read at all; that is a finding, too.
            Err(StoreError::Corrupt { detail, .. }) => vec![detail],
            other => other?,
        };
        if !problems.is_empty() {
            self.stop_in_doubt();
        }
        Ok(problems)
    }
}

impl SqliteStore {
    /// SQLite syncs a log when it writes its first frame, also with `synchronous=NORMAL`. Writing
    /// it here keeps that wait out of the next `skep run`. How often a log was begun is also written
    /// beside the database: by that a file without its log is known.
    pub(super) fn restart_log(&self) -> Result<()> {
        let begun: u64 = self.write("restart the log", Durability::Power, |tx| {
            tx.execute(
                "INSERT INTO meta (key, value) VALUES ('log_restarts', '1')
                 ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1",
                [],
            )?;
            restarts(tx)
        })?;
        note_begun(&beside(self.path(), BEGUN), begun)
    }

    /// How often the log was begun, as the database knows it.
    pub(super) fn log_restarts(&self) -> Result<u64> {
        self.read("look when its log was begun", restarts)
    }
}

fn restarts(tx: &Transaction<'_>) -> Outcome<u64> {
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'log_restarts'";
    let found: Option<i64> = tx.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or(0) as u64)
}

/// Replaced as a whole. A number that is too small is a loss seen too late; one that is too large
/// never stands there, because the commit came first.
fn note_begun(path: &Path, begun: u64) -> Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let draft = beside(path, &format!(".{}-{count}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| file.write_all(begun.to_string().as_bytes()))
        .and_then(|()| fs::rename(&draft, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&draft);
        io_error("note the beginning of the log in", path, source)
    })
}

/// Whether the whole log went into the database and was cut to nothing. With somebody still
/// reading or writing, as much as possible is folded and the log stays.
fn fold(connection: &Connection) -> Outcome<bool> {
    connection.busy_timeout(FOLD_PATIENCE)?;
    let busy: i64 =
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    Ok(busy == 0)
}

/// Tables that hold values with checksums, and how a row is named.
const VALUE_TABLES: [(&str, &str); 7] = [
    ("sandboxes", "SELECT id, value, sum FROM sandboxes"),
    ("execs", "SELECT id, value, sum FROM execs"),
    ("approvals", "SELECT id, value, sum FROM approvals"),
    ("snapshots", "SELECT sandbox || '/' || label, value, sum FROM snapshots"),
    ("templates", "SELECT name, value, sum FROM templates"),
    ("rejections", "SELECT sandbox, value, sum FROM rejections"),
    ("events", "SELECT CAST(seq AS TEXT), value, sum FROM events"),
];

fn quick_check(tx: &Transaction<'_>) -> Outcome<Vec<String>> {
    let mut statement = tx.prepare("PRAGMA quick_check")?;
    let lines: Vec<String> =
        statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}

fn check_values(
    tx: &Transaction<'_>,
    table: &'static str,
    sql: &str,
    problems: &mut Vec<String>,
) -> Outcome<()> {
    let mut statement = tx.prepare(sql)?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let (id, value, sum): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if checksum(value.as_bytes()) != sum
            || decode::<IgnoredAny>(table, &id, &value, sum).is_err()
        {
            problems.push(format!("the row `{id}` of table `{table}` is damaged"));
        }
    }
    Ok(())
}
