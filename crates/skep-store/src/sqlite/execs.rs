//! Execs.

use super::fault::Outcome;
use super::row::{IdSearch, by_id_prefix, execute, first, rows};
use super::{Durability, SqliteStore, ledger, sandboxes};
use crate::rules::events_of;
use crate::value::encode;
use crate::{ExecMoves, ExecStore, Finish, NewEvent, Result, StoreError, rules};
use rusqlite::{Transaction, params};
use skep_types::{Exec, ExecEnd, ExecId, Sandbox, SandboxId};

const TABLE: &str = "execs";
const BY_ID: &str = "SELECT id, value, sum FROM execs WHERE id = ?1";
const EXISTS: &str = "SELECT 1 FROM execs WHERE id = ?1";
const INSERT: &str =
    "INSERT INTO execs (id, sandbox, ended, value, sum) VALUES (?1, ?2, ?3, ?4, ?5)";
const FINISH: &str = "UPDATE execs SET ended = 1, value = ?2, sum = ?3 WHERE id = ?1";
/// Both through the index of those that run: a table that remembers thousands is not gone through.
const RUNNING: &str =
    "SELECT id, value, sum FROM execs INDEXED BY execs_running WHERE ended = 0 ORDER BY seq";
const RUNNING_IN: &str = "SELECT id, value, sum FROM execs INDEXED BY execs_running
     WHERE ended = 0 AND sandbox = ?1 ORDER BY seq";
/// What a run asks once its sandbox is up.
pub(super) const LATER: [&str; 5] = [EXISTS, INSERT, RUNNING_IN, BY_ID, FINISH];

const SEARCH: IdSearch = IdSearch {
    what: "exec",
    exact: BY_ID,
    range: "SELECT id FROM execs WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT 10",
};

impl ExecStore for SqliteStore {
    fn insert_exec(&self, exec: &Exec, events: &[NewEvent]) -> Result<()> {
        self.write("insert an exec", Durability::Process, |tx| {
            refuse_orphan(tx, &exec.sandbox)?;
            insert(tx, exec)?;
            ledger::append(tx, events)?;
            Ok(())
        })
    }

    fn adopt_execs(&self, sandbox: &SandboxId, execs: &[Exec], events: &[NewEvent]) -> Result<u64> {
        self.write("take execs in", Durability::Process, |tx| {
            refuse_orphan(tx, sandbox)?;
            let mut new = Vec::new();
            for exec in execs {
                if !tx.prepare_cached(EXISTS)?.exists(params![exec.id.as_str()])? {
                    insert(tx, exec)?;
                    new.push(&exec.id);
                }
            }
            ledger::append(tx, &events_of(&new, events))?;
            Ok(new.len() as u64)
        })
    }

    fn finish_exec(&self, id: &ExecId, end: &ExecEnd, events: &[NewEvent]) -> Result<Finish> {
        self.write("record the end of an exec", Durability::Process, |tx| {
            let finish = finish(tx, id, end)?;
            if finish == Finish::Recorded {
                ledger::append(tx, events)?;
            }
            Ok(finish)
        })
    }

    fn forget_execs(&self, sandbox: &SandboxId, ids: &[ExecId]) -> Result<u64> {
        self.write("forget execs", Durability::Process, |tx| {
            let sql = "DELETE FROM execs WHERE id = ?1 AND sandbox = ?2 AND ended = 1";
            let mut gone = 0;
            for id in ids {
                gone += execute(tx, sql, params![id.as_str(), sandbox.as_str()])? as u64;
            }
            Ok(gone)
        })
    }

    fn find_exec(&self, text: &str) -> Result<Exec> {
        self.read("find an exec", |tx| by_id_prefix(tx, TABLE, &SEARCH, text))
    }

    fn list_execs(&self, sandbox: &SandboxId) -> Result<Vec<Exec>> {
        let sql = "SELECT id, value, sum FROM execs WHERE sandbox = ?1 ORDER BY seq";
        self.read("list execs", |tx| rows(tx, TABLE, sql, params![sandbox.as_str()]))
    }

    fn running_execs(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Exec>> {
        self.read("list running execs", |tx| match sandbox {
            Some(sandbox) => rows(tx, TABLE, RUNNING_IN, params![sandbox.as_str()]),
            None => rows(tx, TABLE, RUNNING, params![]),
        })
    }
}

pub(super) fn insert(tx: &Transaction<'_>, exec: &Exec) -> Outcome<()> {
    let id = exec.id.as_str();
    if tx.prepare_cached(EXISTS)?.exists(params![id])? {
        let name = id.to_owned();
        return Err(StoreError::AlreadyExists { what: "exec", name }.into());
    }
    let row = encode("exec", id, exec)?;
    execute(
        tx,
        INSERT,
        params![id, exec.sandbox.as_str(), exec.end.is_some(), row.value, row.sum],
    )?;
    Ok(())
}

fn finish(tx: &Transaction<'_>, id: &ExecId, end: &ExecEnd) -> Outcome<Finish> {
    let found: Option<Exec> = first(tx, TABLE, SEARCH.exact, params![id.as_str()])?;
    let mut exec =
        found.ok_or_else(|| StoreError::NotFound { what: "exec", name: id.to_string() })?;
    if let Some(end) = exec.end {
        return Ok(Finish::AlreadyEnded(end));
    }
    exec.finish(end.clone());
    let row = encode("exec", id.as_str(), &exec)?;
    execute(tx, FINISH, params![id.as_str(), row.value, row.sum])?;
    Ok(Finish::Recorded)
}

/// The execs that begin or end with a change of their sandbox.
pub(super) fn apply(tx: &Transaction<'_>, sandbox: &Sandbox, moves: ExecMoves<'_>) -> Outcome<()> {
    rules::check_moves(sandbox, &moves)?;
    for exec in moves.begun {
        insert(tx, exec)?;
    }
    for (id, end, event) in moves.ended {
        if finish(tx, id, end)? == Finish::Recorded {
            ledger::append(tx, std::slice::from_ref(event))?;
        }
    }
    Ok(())
}

fn refuse_orphan(tx: &Transaction<'_>, id: &SandboxId) -> Outcome<()> {
    Ok(rules::refuse_deleted(&sandboxes::load(tx, id)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    #[test]
    fn running_execs_are_found_without_going_through_those_that_ended() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("schema-1.sql")).unwrap();
        for sql in [RUNNING, RUNNING_IN] {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let words = vec!["x"; plan.parameter_count()];
            let steps =
                plan.query_map(rusqlite::params_from_iter(words), |row| row.get(3)).unwrap();
            let steps: Vec<String> = steps.map(|step| step.unwrap()).collect();
            assert!(steps[0].contains("USING INDEX execs_running"), "{sql}: {steps:?}");
        }
    }
}
