//! Execs. They belong to the node of their sandbox.

use super::fault::Outcome;
use super::row::{IdSearch, by_id_prefix, exists, first, rows};
use super::session::Session;
use super::{PostgresStore, ledger, sandboxes};
use crate::rules::events_of;
use crate::value::encode;
use crate::{ExecMoves, ExecStore, Finish, NewEvent, Result, StoreError, rules};
use skep_types::{Exec, ExecEnd, ExecId, Sandbox, SandboxId};

const TABLE: &str = "execs";
const SEARCH: IdSearch = IdSearch {
    what: "exec",
    exact: "SELECT e.id, e.value, e.sum FROM execs e JOIN sandboxes s ON s.id = e.sandbox
            WHERE e.id = $1 AND s.node = $2",
    range: "SELECT e.id FROM execs e JOIN sandboxes s ON s.id = e.sandbox
            WHERE e.id >= $1 AND e.id < $2 AND s.node = $3 ORDER BY e.id LIMIT 10",
};

impl ExecStore for PostgresStore {
    fn insert_exec(&self, exec: &Exec, events: &[NewEvent]) -> Result<()> {
        self.write("insert an exec", |session| {
            self.refuse_orphan(session, &exec.sandbox)?;
            insert(session, exec)?;
            ledger::append(session, events)
        })
    }

    fn adopt_execs(&self, sandbox: &SandboxId, execs: &[Exec], events: &[NewEvent]) -> Result<u64> {
        self.write("take execs in", |session| {
            self.refuse_orphan(session, sandbox)?;
            let mut new = Vec::new();
            for exec in execs {
                if !exists(session, "SELECT 1 FROM execs WHERE id = $1", &[&exec.id.as_str()])? {
                    insert(session, exec)?;
                    new.push(&exec.id);
                }
            }
            ledger::append(session, &events_of(&new, events))?;
            Ok(new.len() as u64)
        })
    }

    fn finish_exec(&self, id: &ExecId, end: &ExecEnd, events: &[NewEvent]) -> Result<Finish> {
        self.write("record the end of an exec", |session| {
            let finish = self.finish(session, id, end)?;
            if finish == Finish::Recorded {
                ledger::append(session, events)?;
            }
            Ok(finish)
        })
    }

    fn forget_execs(&self, sandbox: &SandboxId, ids: &[ExecId]) -> Result<u64> {
        let ids: Vec<&str> = ids.iter().map(ExecId::as_str).collect();
        self.write("forget execs", |session| {
            sandboxes::load_own(session, sandbox, &self.node)?;
            let sql = "DELETE FROM execs WHERE id = ANY($1) AND sandbox = $2 AND ended";
            session.execute(sql, &[&ids, &sandbox.as_str()])
        })
    }

    fn find_exec(&self, text: &str) -> Result<Exec> {
        self.read("find an exec", |session| by_id_prefix(session, TABLE, &SEARCH, text, &self.node))
    }

    fn list_execs(&self, sandbox: &SandboxId) -> Result<Vec<Exec>> {
        let sql = "SELECT id, value, sum FROM execs WHERE sandbox = $1 ORDER BY seq";
        self.read("list execs", |session| rows(session, TABLE, sql, &[&sandbox.as_str()]))
    }

    fn running_execs(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Exec>> {
        let sql = "SELECT e.id, e.value, e.sum FROM execs e JOIN sandboxes s ON s.id = e.sandbox
                   WHERE NOT e.ended AND s.node = $2 AND ($1::text IS NULL OR e.sandbox = $1)
                   ORDER BY e.seq";
        let sandbox = sandbox.map(SandboxId::as_str);
        self.read("list running execs", |session| {
            rows(session, TABLE, sql, &[&sandbox, &self.node])
        })
    }
}

fn insert(session: &mut Session, exec: &Exec) -> Outcome<()> {
    let id = exec.id.as_str();
    if exists(session, "SELECT 1 FROM execs WHERE id = $1", &[&id])? {
        let name = id.to_owned();
        return Err(StoreError::AlreadyExists { what: "exec", name }.into());
    }
    let row = encode("exec", id, exec)?;
    let (sandbox, ended) = (exec.sandbox.as_str(), exec.end.is_some());
    session.execute(
        "INSERT INTO execs (id, sandbox, ended, value, sum) VALUES ($1, $2, $3, $4, $5)",
        &[&id, &sandbox, &ended, &row.value, &row.sum],
    )?;
    Ok(())
}

impl PostgresStore {
    fn finish(&self, session: &mut Session, id: &ExecId, end: &ExecEnd) -> Outcome<Finish> {
        let found: Option<Exec> = first(session, TABLE, SEARCH.exact, &[&id.as_str(), &self.node])?;
        let mut exec =
            found.ok_or_else(|| StoreError::NotFound { what: "exec", name: id.to_string() })?;
        if let Some(end) = exec.end {
            return Ok(Finish::AlreadyEnded(end));
        }
        exec.finish(end.clone());
        let row = encode("exec", id.as_str(), &exec)?;
        session.execute(
            "UPDATE execs SET ended = TRUE, value = $2, sum = $3 WHERE id = $1",
            &[&id.as_str(), &row.value, &row.sum],
        )?;
        Ok(Finish::Recorded)
    }

    /// The execs that begin or end with a change of their sandbox.
    pub(super) fn apply_to_execs(
        &self,
        session: &mut Session,
        sandbox: &Sandbox,
        moves: ExecMoves<'_>,
    ) -> Outcome<()> {
        rules::check_moves(sandbox, &moves)?;
        for exec in moves.begun {
            insert(session, exec)?;
        }
        for (id, end, event) in moves.ended {
            if self.finish(session, id, end)? == Finish::Recorded {
                ledger::append(session, std::slice::from_ref(event))?;
            }
        }
        Ok(())
    }

    fn refuse_orphan(&self, session: &mut Session, id: &SandboxId) -> Outcome<()> {
        Ok(rules::refuse_deleted(&sandboxes::load_own(session, id, &self.node)?)?)
    }
}
