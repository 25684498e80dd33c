//! Approvals and undos: the rows that must survive power loss.

use super::fault::Outcome;
use super::row::{IdSearch, by_id_prefix, first, rows};
use super::{Durability, SqliteStore, ledger};
use crate::rules::{
    PathRange, approval_not_found, check_refusable, check_single_undo, illegal_move,
    moved_approval, reverses_at_commit, state_word, undoes, undone,
};
use crate::value::{encode, micros};
use crate::{ApprovalFilter, ApprovalStore, NewEvent, Result, StoreError};
use rusqlite::{Transaction, params};
use skep_types::{Approval, ApprovalId, ApprovalKind, ApprovalState, ByteString, SandboxId};
use std::collections::BTreeSet;

const TABLE: &str = "approvals";
/// What every start asks, for what was interrupted: not by going through all that was ever approved.
const IN_STATES: &str = "SELECT id, value, sum FROM approvals INDEXED BY approvals_state
     WHERE state IN (SELECT value FROM json_each(?1)) ORDER BY seq DESC";
const SEARCH: IdSearch = IdSearch {
    what: "approval",
    exact: "SELECT id, value, sum FROM approvals WHERE id = ?1",
    range: "SELECT id FROM approvals WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT 10",
};

impl ApprovalStore for SqliteStore {
    fn insert_approval(&self, approval: &Approval, events: &[NewEvent]) -> Result<()> {
        self.write("insert an approval", Durability::Power, |tx| {
            let id = approval.id.as_str();
            if approval.state != ApprovalState::Applying {
                let (from, to) = (ApprovalState::Applying, approval.state);
                return Err(illegal_move(approval, from, to).into());
            }
            if tx.prepare("SELECT 1 FROM approvals WHERE id = ?1")?.exists(params![id])? {
                let name = id.to_owned();
                return Err(StoreError::AlreadyExists { what: "approval", name }.into());
            }
            insert(tx, approval)?;
            write_paths(tx, approval)?;
            ledger::append(tx, events)?;
            Ok(())
        })
    }

    fn move_approval(
        &self,
        id: &ApprovalId,
        to: ApprovalState,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Approval),
    ) -> Result<Approval> {
        self.write("move an approval", Durability::Power, |tx| {
            let before = load(tx, id)?;
            let after = moved_approval(&before, to, change)?;
            if let Some(of) = reverses_at_commit(&before, to) {
                let begun = begun_undos(tx, &before)?;
                check_single_undo(&before, &load(tx, of)?, &begun)?;
            }
            write_back(tx, &after)?;
            if after.paths != before.paths {
                write_paths(tx, &after)?;
            }
            if let Some(of) = undoes(before.state, &after) {
                write_back(tx, &undone(load(tx, of)?)?)?;
            }
            ledger::append(tx, events)?;
            Ok(after)
        })
    }

    fn refuse_approval(&self, id: &ApprovalId, events: &[NewEvent]) -> Result<()> {
        self.write("forget a refused approval", Durability::Power, |tx| {
            check_refusable(&load(tx, id)?)?;
            tx.execute("DELETE FROM approval_paths WHERE approval = ?1", [id.as_str()])?;
            tx.execute("DELETE FROM approvals WHERE id = ?1", [id.as_str()])?;
            ledger::append(tx, events)?;
            Ok(())
        })
    }

    fn find_approval(&self, text: &str) -> Result<Approval> {
        self.read("find an approval", |tx| by_id_prefix(tx, TABLE, &SEARCH, text))
    }

    fn list_approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>> {
        let PathRange { path, from, until } = PathRange::below(filter.path.as_ref());
        let states: Vec<_> = filter.states.iter().map(|state| state_word(*state)).collect();
        let states = (!states.is_empty()).then(|| serde_json::json!(states).to_string());
        let project = filter.project.as_ref().map(ByteString::as_bytes);
        let sandbox = filter.sandbox.as_ref().map(SandboxId::as_str);
        if let (None, None, None, Some(states)) = (project, sandbox, &path, &states) {
            return self.read("list approvals", |tx| rows(tx, TABLE, IN_STATES, params![states]));
        }
        let sql = "SELECT id, value, sum FROM approvals
                   WHERE (?1 IS NULL OR project = ?1)
                     AND (?2 IS NULL OR sandbox = ?2)
                     AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
                     AND (?4 IS NULL OR id IN (
                         SELECT approval FROM approval_paths WHERE path = ?4
                         UNION SELECT approval FROM approval_paths WHERE path >= ?5 AND path < ?6))
                   ORDER BY seq DESC";
        self.read("list approvals", |tx| {
            rows(tx, TABLE, sql, params![project, sandbox, states, path, from, until])
        })
    }

    fn newest_undoable(&self, project: &ByteString) -> Result<Option<Approval>> {
        let sql = "SELECT id, value, sum FROM approvals
                   WHERE project = ?1 AND kind IN ('approve', 'redo') AND state = 'applied'
                     AND undo_kept
                   ORDER BY seq DESC LIMIT 1";
        self.read("find the newest approval", |tx| {
            first(tx, TABLE, sql, params![project.as_bytes()])
        })
    }

    fn undo_expired(&self, keep: u32, before: &str) -> Result<Vec<Approval>> {
        let sql = "SELECT id, value, sum FROM (
                       SELECT *, row_number() OVER (PARTITION BY project ORDER BY seq DESC) AS rank
                       FROM approvals)
                   WHERE rank > ?1 AND at_us < ?2 AND undo_kept
                     AND state IN ('applied', 'aborted', 'undone')
                   ORDER BY seq DESC";
        self.read("list approvals past their undo", |tx| {
            rows(tx, TABLE, sql, params![keep, micros(before)?])
        })
    }

    fn forget_approvals(&self, before: &str) -> Result<u64> {
        self.write("forget approvals", Durability::Process, |tx| {
            let gone = "at_us < ?1 AND NOT undo_kept AND state IN ('applied', 'aborted', 'undone')";
            let before = micros(before)?;
            let sql = format!(
                "DELETE FROM approval_paths
                 WHERE approval IN (SELECT id FROM approvals WHERE {gone})"
            );
            tx.execute(&sql, params![before])?;
            Ok(tx.execute(&format!("DELETE FROM approvals WHERE {gone}"), params![before])? as u64)
        })
    }

    fn drop_undo(&self, id: &ApprovalId) -> Result<()> {
        // Synced: the backups are removed next, and an undo that still believes in them after a
        // power loss would find nothing.
        self.write("give up an undo", Durability::Power, |tx| {
            let changed =
                tx.execute("UPDATE approvals SET undo_kept = 0 WHERE id = ?1", [id.as_str()])?;
            if changed == 0 { Err(approval_not_found(id).into()) } else { Ok(()) }
        })
    }
}

fn load(tx: &Transaction<'_>, id: &ApprovalId) -> Outcome<Approval> {
    first(tx, TABLE, SEARCH.exact, params![id.as_str()])?
        .ok_or_else(|| approval_not_found(id).into())
}

/// The undos of a project that have passed their commit point and are not done.
fn begun_undos(tx: &Transaction<'_>, undo: &Approval) -> Outcome<Vec<Approval>> {
    let sql = "SELECT id, value, sum FROM approvals
               WHERE project = ?1 AND kind IN ('undo', 'redo')
                 AND state IN ('committed', 'needs_attention')";
    rows(tx, TABLE, sql, params![undo.project.as_bytes()])
}

/// `approve`, `undo`, or `redo`: the undo of an undo applies again, and can be undone like an
/// approval.
fn direction(tx: &Transaction<'_>, approval: &Approval) -> Outcome<&'static str> {
    let ApprovalKind::Undo { of } = &approval.kind else { return Ok("approve") };
    let mut statement = tx.prepare("SELECT kind FROM approvals WHERE id = ?1")?;
    let reverses_undo = statement.exists(params![of.as_str()])?
        && statement.query_row([of.as_str()], |row| row.get::<_, String>(0))? == "undo";
    Ok(if reverses_undo { "redo" } else { "undo" })
}

fn insert(tx: &Transaction<'_>, approval: &Approval) -> Outcome<()> {
    let row = encode("approval", approval.id.as_str(), approval)?;
    let kind = direction(tx, approval)?;
    tx.execute(
        "INSERT INTO approvals (id, sandbox, project, kind, state, at_us, value, sum)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            approval.id.as_str(),
            approval.sandbox.as_str(),
            approval.project.as_bytes(),
            kind,
            state_word(approval.state),
            micros(&approval.at)?,
            row.value,
            row.sum,
        ],
    )?;
    Ok(())
}

fn write_back(tx: &Transaction<'_>, approval: &Approval) -> Outcome<()> {
    let row = encode("approval", approval.id.as_str(), approval)?;
    tx.execute(
        "UPDATE approvals SET state = ?2, at_us = ?3, value = ?4, sum = ?5 WHERE id = ?1",
        params![
            approval.id.as_str(),
            state_word(approval.state),
            micros(&approval.at)?,
            row.value,
            row.sum,
        ],
    )?;
    Ok(())
}

fn write_paths(tx: &Transaction<'_>, approval: &Approval) -> Outcome<()> {
    let id = approval.id.as_str();
    tx.execute("DELETE FROM approval_paths WHERE approval = ?1", params![id])?;
    let paths: BTreeSet<&[u8]> =
        approval.paths.iter().map(|applied| applied.path.as_bytes()).collect();
    let mut statement =
        tx.prepare("INSERT INTO approval_paths (path, approval) VALUES (?1, ?2)")?;
    for path in paths {
        statement.execute(params![path, id])?;
    }
    Ok(())
}
