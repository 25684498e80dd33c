//! Rejections, events, idempotency keys and facts about the store.

use super::fault::{Fault, Outcome};
use super::row::{execute, rows};
use super::{Durability, SqliteStore};
use crate::value::{decode, encode, micros};
use crate::{EventFilter, KeyClaim, LedgerStore, NewEvent, Rejection, Result, StoreError};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use serde_json::Value;
use skep_types::{ContentHash, Event, SandboxId};

impl LedgerStore for SqliteStore {
    fn insert_rejection(&self, rejection: &Rejection, events: &[NewEvent]) -> Result<()> {
        self.write("insert a rejection", Durability::Process, |tx| {
            micros(&rejection.at)?;
            let sandbox = rejection.sandbox.as_str();
            let row = encode("rejection", sandbox, rejection)?;
            tx.execute(
                "INSERT INTO rejections (sandbox, value, sum) VALUES (?1, ?2, ?3)",
                params![sandbox, row.value, row.sum],
            )?;
            append(tx, events)?;
            Ok(())
        })
    }

    fn list_rejections(&self, sandbox: &SandboxId) -> Result<Vec<Rejection>> {
        let sql = "SELECT sandbox, value, sum FROM rejections WHERE sandbox = ?1 ORDER BY seq";
        self.read("list rejections", |tx| rows(tx, "rejections", sql, params![sandbox.as_str()]))
    }

    fn append_events(&self, events: &[NewEvent]) -> Result<u64> {
        self.write("append events", Durability::Process, |tx| {
            append(tx, events)?;
            let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'events'";
            let last: Option<i64> = tx.query_row(sql, [], |row| row.get(0)).optional()?;
            Ok(last.unwrap_or(0) as u64)
        })
    }

    fn list_events(&self, filter: &EventFilter) -> Result<Vec<Event>> {
        let sql = "SELECT seq, at, kind, sandbox, exec, value, sum FROM events
                   WHERE seq > ?1 AND (?2 IS NULL OR sandbox = ?2) ORDER BY seq LIMIT ?3";
        let after = i64::try_from(filter.after).unwrap_or(i64::MAX);
        let sandbox = filter.sandbox.as_ref().map(SandboxId::as_str);
        // A negative limit is none.
        let limit = filter.limit.map_or(-1, i64::from);
        self.read("list events", |tx| {
            let mut statement = tx.prepare(sql)?;
            let mut found = statement.query(params![after, sandbox, limit])?;
            let mut events = Vec::new();
            while let Some(row) = found.next()? {
                events.push(event(row)?);
            }
            Ok(events)
        })
    }

    fn prune_events(&self, before: &str) -> Result<u64> {
        self.write("prune events", Durability::Process, |tx| {
            let before = micros(before)?;
            Ok(tx.execute("DELETE FROM events WHERE at_us < ?1", params![before])? as u64)
        })
    }

    fn claim_key(
        &self,
        key: &str,
        body: &ContentHash,
        now: &str,
        expires_at: &str,
    ) -> Result<KeyClaim> {
        self.write("claim an idempotency key", Durability::Process, |tx| {
            let (now, expires) = (micros(now)?, micros(expires_at)?);
            let sql = "SELECT body, result, COALESCE(sum, 0) FROM idempotency_keys
                       WHERE key = ?1 AND expires_us > ?2";
            let found: Option<(String, Option<String>, i64)> = tx
                .query_row(sql, params![key, now], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })
                .optional()?;
            match found {
                Some((used, ..)) if used != body.to_string() => {
                    Err(StoreError::KeyReused { key: key.to_owned() }.into())
                }
                Some((_, None, _)) => Ok(KeyClaim::InProgress),
                Some((_, Some(result), sum)) => {
                    Ok(KeyClaim::Done(decode("idempotency_keys", key, &result, sum)?))
                }
                None => {
                    tx.execute(
                        "INSERT OR REPLACE INTO idempotency_keys (key, body, expires_us)
                         VALUES (?1, ?2, ?3)",
                        params![key, body.to_string(), expires],
                    )?;
                    Ok(KeyClaim::New)
                }
            }
        })
    }

    fn finish_key(&self, key: &str, result: &Value) -> Result<()> {
        self.write("finish an idempotency key", Durability::Process, |tx| {
            let row = encode("result", key, result)?;
            let sql = "UPDATE idempotency_keys SET result = ?2, sum = ?3 WHERE key = ?1";
            match tx.execute(sql, params![key, row.value, row.sum])? {
                0 => Err(Fault::from(StoreError::NotFound {
                    what: "idempotency key",
                    name: key.to_owned(),
                })),
                _ => Ok(()),
            }
        })
    }

    fn drop_key(&self, key: &str) -> Result<()> {
        self.write("drop an idempotency key", Durability::Process, |tx| {
            tx.execute("DELETE FROM idempotency_keys WHERE key = ?1", params![key])?;
            Ok(())
        })
    }

    fn unfinished_keys(&self) -> Result<Vec<String>> {
        self.read("list idempotency keys", |tx| {
            let sql = "SELECT key FROM idempotency_keys WHERE result IS NULL ORDER BY key";
            let mut statement = tx.prepare(sql)?;
            let keys = statement.query_map([], |row| row.get(0))?;
            Ok(keys.collect::<rusqlite::Result<_>>()?)
        })
    }

    fn prune_keys(&self, now: &str) -> Result<u64> {
        self.write("prune idempotency keys", Durability::Process, |tx| {
            let now = micros(now)?;
            let sql = "DELETE FROM idempotency_keys WHERE expires_us <= ?1";
            Ok(tx.execute(sql, params![now])? as u64)
        })
    }

    fn meta(&self, key: &str) -> Result<Option<String>> {
        self.read("read a fact", |tx| {
            let sql = "SELECT value FROM meta WHERE key = ?1";
            Ok(tx.query_row(sql, params![key], |row| row.get(0)).optional()?)
        })
    }

    fn set_meta(&self, key: &str, value: &str) -> Result<()> {
        self.write("remember a fact", Durability::Process, |tx| {
            tx.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)",
                params![key, value],
            )?;
            Ok(())
        })
    }
}

/// Appends events inside the transaction of the change they tell of.
pub(super) fn append(tx: &Transaction<'_>, events: &[NewEvent]) -> Outcome<()> {
    for event in events {
        let row = encode("event", &event.kind, &event.data)?;
        execute(
            tx,
            "INSERT INTO events (at_us, at, kind, sandbox, exec, value, sum)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                micros(&event.at)?,
                event.at,
                event.kind,
                event.sandbox.as_ref().map(SandboxId::as_str),
                event.exec.as_ref().map(|exec| exec.as_str()),
                row.value,
                row.sum,
            ],
        )?;
    }
    Ok(())
}

fn event(row: &Row<'_>) -> Outcome<Event> {
    let sequence: i64 = row.get(0)?;
    let id = sequence.to_string();
    let damaged = |detail: String| StoreError::Damaged { table: "events", id: id.clone(), detail };
    let sandbox: Option<String> = row.get(3)?;
    let exec: Option<String> = row.get(4)?;
    let value: String = row.get(5)?;
    Ok(Event {
        sequence: sequence as u64,
        at: row.get(1)?,
        kind: row.get(2)?,
        sandbox: sandbox
            .map(|text| text.parse())
            .transpose()
            .map_err(|error: skep_types::IdError| damaged(error.to_string()))?,
        exec: exec
            .map(|text| text.parse())
            .transpose()
            .map_err(|error: skep_types::IdError| damaged(error.to_string()))?,
        data: decode("events", &id, &value, row.get(6)?)?,
    })
}
