//! Rejections, events, idempotency keys and facts about the store.

use super::PostgresStore;
use super::fault::Outcome;
use super::row::{original, rows, stored};
use super::session::Session;
use crate::value::{decode, encode, micros};
use crate::{EventFilter, KeyClaim, LedgerStore, NewEvent, Rejection, Result, StoreError};
use serde_json::Value;
use skep_types::{ContentHash, Event, SandboxId};
use tokio_postgres::Row;

/// Operations are looked for seconds after their commit, if at all.
const OPERATION_LIFE_US: i64 = 3_600_000_000;

impl LedgerStore for PostgresStore {
    fn insert_rejection(&self, rejection: &Rejection, events: &[NewEvent]) -> Result<()> {
        self.write("insert a rejection", |session| {
            micros(&rejection.at)?;
            let sandbox = rejection.sandbox.as_str();
            let row = encode("rejection", sandbox, rejection)?;
            session.execute(
                "INSERT INTO rejections (sandbox, value, sum) VALUES ($1, $2, $3)",
                &[&sandbox, &row.value, &row.sum],
            )?;
            append(session, events)
        })
    }

    fn list_rejections(&self, sandbox: &SandboxId) -> Result<Vec<Rejection>> {
        let sql = "SELECT sandbox, value, sum FROM rejections WHERE sandbox = $1 ORDER BY seq";
        self.read("list rejections", |session| {
            rows(session, "rejections", sql, &[&sandbox.as_str()])
        })
    }

    fn append_events(&self, events: &[NewEvent]) -> Result<u64> {
        self.write("append events", |session| {
            append(session, events)?;
            Ok(last_event(session)? as u64)
        })
    }

    fn list_events(&self, filter: &EventFilter) -> Result<Vec<Event>> {
        let sql = "SELECT seq, at, kind, sandbox, exec, value, sum FROM events
                   WHERE seq > $1 AND ($2::text IS NULL OR sandbox = $2) ORDER BY seq LIMIT $3";
        let after = i64::try_from(filter.after).unwrap_or(i64::MAX);
        let sandbox = filter.sandbox.as_ref().map(SandboxId::as_str);
        // No limit is NULL.
        let limit = filter.limit.map(i64::from);
        self.read("list events", |session| {
            session.query(sql, &[&after, &sandbox, &limit])?.iter().map(event).collect()
        })
    }

    fn prune_events(&self, before: &str) -> Result<u64> {
        self.write("prune events", |session| {
            session.execute("DELETE FROM events WHERE at_us < $1", &[&micros(before)?])
        })
    }

    fn claim_key(
        &self,
        key: &str,
        body: &ContentHash,
        now: &str,
        expires_at: &str,
    ) -> Result<KeyClaim> {
        self.write("claim an idempotency key", |session| {
            let (now, expires) = (micros(now)?, micros(expires_at)?);
            let sql = "SELECT body, result, COALESCE(sum, 0) FROM idempotency_keys
                       WHERE node = $3 AND key = $1 AND expires_us > $2";
            let Some(row) = session.first(sql, &[&stored(key), &now, &self.node])? else {
                session.execute(
                    "INSERT INTO idempotency_keys (node, key, body, expires_us)
                     VALUES ($1, $2, $3, $4)
                     ON CONFLICT (node, key) DO UPDATE
                     SET body = $3, expires_us = $4, result = NULL, sum = NULL",
                    &[&self.node, &stored(key), &body.to_string(), &expires],
                )?;
                return Ok(KeyClaim::New);
            };
            let (used, result): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
            if used != body.to_string() {
                return Err(StoreError::KeyReused { key: key.to_owned() }.into());
            }
            match result {
                None => Ok(KeyClaim::InProgress),
                Some(result) => {
                    let sum = row.try_get(2)?;
                    Ok(KeyClaim::Done(decode("idempotency_keys", key, &result, sum)?))
                }
            }
        })
    }

    fn finish_key(&self, key: &str, result: &Value) -> Result<()> {
        self.write("finish an idempotency key", |session| {
            let row = encode("result", key, result)?;
            let sql = "UPDATE idempotency_keys SET result = $2, sum = $3
                       WHERE node = $4 AND key = $1";
            match session.execute(sql, &[&stored(key), &row.value, &row.sum, &self.node])? {
                0 => {
                    let name = key.to_owned();
                    Err(StoreError::NotFound { what: "idempotency key", name }.into())
                }
                _ => Ok(()),
            }
        })
    }

    fn drop_key(&self, key: &str) -> Result<()> {
        self.write("drop an idempotency key", |session| {
            let sql = "DELETE FROM idempotency_keys WHERE node = $2 AND key = $1";
            session.execute(sql, &[&stored(key), &self.node]).map(drop)
        })
    }

    fn unfinished_keys(&self) -> Result<Vec<String>> {
        let sql = "SELECT key FROM idempotency_keys
                   WHERE node = $1 AND result IS NULL ORDER BY key";
        self.read("list idempotency keys", |session| {
            let found = session.query(sql, &[&self.node])?;
            let keys = found.iter().map(|row| row.try_get(0).map(original));
            Ok(keys.collect::<std::result::Result<_, tokio_postgres::Error>>()?)
        })
    }

    fn prune_keys(&self, now: &str) -> Result<u64> {
        self.write("prune idempotency keys", |session| {
            let now = micros(now)?;
            // Nobody asks for these any more either.
            session.execute(
                "DELETE FROM operations
                 WHERE at_us < (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint - $1",
                &[&OPERATION_LIFE_US],
            )?;
            let sql = "DELETE FROM idempotency_keys WHERE node = $2 AND expires_us <= $1";
            session.execute(sql, &[&now, &self.node])
        })
    }

    fn meta(&self, key: &str) -> Result<Option<String>> {
        if key == "node" {
            return Ok(Some(self.node.clone()));
        }
        self.read("read a fact", |session| {
            let row = session.first("SELECT value FROM meta WHERE key = $1", &[&stored(key)])?;
            Ok(row.map(|row| row.try_get(0).map(original)).transpose()?)
        })
    }

    fn set_meta(&self, key: &str, value: &str) -> Result<()> {
        self.write("remember a fact", |session| {
            session.execute(
                "INSERT INTO meta (key, value) VALUES ($1, $2)
                 ON CONFLICT (key) DO UPDATE SET value = $2",
                &[&stored(key), &stored(value)],
            )?;
            Ok(())
        })
    }
}

fn last_event(session: &mut Session) -> Outcome<i64> {
    let row = session.first("SELECT value FROM counters WHERE name = 'events'", &[])?;
    let damaged = || StoreError::Damaged {
        table: "counters",
        id: "events".to_owned(),
        detail: "it is not there".to_owned(),
    };
    Ok(row.ok_or_else(damaged)?.try_get(0)?)
}

/// Appends events inside the transaction of the change they tell of. The write lock is held, so
/// numbers are given in the order of commits: who follows the events misses none.
pub(super) fn append(session: &mut Session, events: &[NewEvent]) -> Outcome<()> {
    if events.is_empty() {
        return Ok(());
    }
    let mut sequence = last_event(session)?;
    for event in events {
        sequence += 1;
        let row = encode("event", &event.kind, &event.data)?;
        let sandbox = event.sandbox.as_ref().map(SandboxId::as_str);
        let exec = event.exec.as_ref().map(|exec| exec.as_str());
        session.execute(
            "INSERT INTO events (seq, at_us, at, kind, sandbox, exec, value, sum)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &sequence,
                &micros(&event.at)?,
                &event.at,
                &stored(&event.kind),
                &sandbox,
                &exec,
                &row.value,
                &row.sum,
            ],
        )?;
    }
    session.execute("UPDATE counters SET value = $1 WHERE name = 'events'", &[&sequence])?;
    Ok(())
}

fn event(row: &Row) -> Outcome<Event> {
    let sequence: i64 = row.try_get(0)?;
    let id = sequence.to_string();
    let damaged = |error: skep_types::IdError| StoreError::Damaged {
        table: "events",
        id: id.clone(),
        detail: error.to_string(),
    };
    let (sandbox, exec): (Option<String>, Option<String>) = (row.try_get(3)?, row.try_get(4)?);
    let value: String = row.try_get(5)?;
    Ok(Event {
        sequence: sequence as u64,
        at: row.try_get(1)?,
        kind: row.try_get(2).map(original)?,
        sandbox: sandbox.map(|text| text.parse()).transpose().map_err(damaged)?,
        exec: exec.map(|text| text.parse()).transpose().map_err(damaged)?,
        data: decode("events", &id, &value, row.try_get(6)?)?,
    })
}
