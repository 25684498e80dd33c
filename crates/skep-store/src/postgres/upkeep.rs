//! Care of a database that has a server of its own.

use super::PostgresStore;
use super::fault::Outcome;
use super::session::Session;
use crate::value::{decode, micros};
use crate::{Housekeeping, KeptSince, Outdated, Result, Stop, Upkeep};
use serde::de::IgnoredAny;

impl Housekeeping for PostgresStore {
    fn renew(&self) -> Result<()> {
        let due = self.read("look at the lease", |session| self.is_due(session))?;
        if due { self.write("renew the lease", |_| Ok(())) } else { Ok(()) }
    }

    /// The server folds its own log.
    fn upkeep(&self) -> Result<Upkeep> {
        Ok(Upkeep::default())
    }

    fn stop(&self) -> Option<Stop> {
        self.stopped.get().copied()
    }

    /// Every commit is synced by the server.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn outdated(&self, since: &KeptSince) -> Result<Outdated> {
        self.read("count what is outdated", |session| {
            let mut count = |table: &str, before: &Option<String>| -> Outcome<u64> {
                let Some(before) = before else { return Ok(0) };
                let sql = format!("SELECT COUNT(*) FROM {table}");
                let row = session.first(&sql, &[&micros(before)?, &self.node])?;
                Ok(row.map_or(Ok(0), |row| row.try_get::<_, i64>(0))? as u64)
            };
            Ok(Outdated {
                // Everybody's: they are pruned together.
                events: count("events WHERE at_us < $1 AND $2::text <> ''", &since.events)?,
                deleted: count(
                    "sandboxes WHERE node = $2 AND state = 'deleted' AND updated_us < $1",
                    &since.deleted,
                )?,
                approvals: count(
                    "approvals WHERE node = $2 AND at_us < $1 AND NOT undo_kept
                     AND state IN ('applied', 'aborted', 'undone')",
                    &since.approvals,
                )?,
                keys: count("idempotency_keys WHERE node = $2 AND expires_us <= $1", &since.keys)?,
            })
        })
    }

    fn check(&self) -> Result<Vec<String>> {
        self.read("check", |session| {
            let mut problems = Vec::new();
            for (table, sql) in VALUE_TABLES {
                check_values(session, table, sql, &mut problems)?;
            }
            Ok(problems)
        })
    }
}

/// Tables that hold values with checksums, and how a row is named.
const VALUE_TABLES: [(&str, &str); 7] = [
    ("sandboxes", "SELECT id, value, sum FROM sandboxes"),
    ("execs", "SELECT id, value, sum FROM execs"),
    ("approvals", "SELECT id, value, sum FROM approvals"),
    ("snapshots", "SELECT sandbox || '/' || label, value, sum FROM snapshots"),
    ("templates", "SELECT name, value, sum FROM templates"),
    ("rejections", "SELECT sandbox, value, sum FROM rejections"),
    ("events", "SELECT seq::text, value, sum FROM events"),
];

fn check_values(
    session: &mut Session,
    table: &'static str,
    sql: &str,
    problems: &mut Vec<String>,
) -> Outcome<()> {
    for row in session.query(sql, &[])? {
        let (id, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        if decode::<IgnoredAny>(table, &id, &value, row.try_get(2)?).is_err() {
            problems.push(format!("the row `{id}` of table `{table}` is damaged"));
        }
    }
    Ok(())
}
