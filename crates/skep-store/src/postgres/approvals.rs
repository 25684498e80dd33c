//! Approvals and undos of this node: the rows that must survive power loss.

use super::fault::Outcome;
use super::row::{IdSearch, by_id_prefix, exists, first, rows};
use super::session::Session;
use super::{PostgresStore, ledger};
use crate::rules::{
    PathRange, approval_not_found, check_refusable, check_single_undo, illegal_move,
    moved_approval, reverses_at_commit, state_word, undoes, undone,
};
use crate::value::{encode, micros};
use crate::{ApprovalFilter, ApprovalStore, NewEvent, Result, StoreError};
use skep_types::{Approval, ApprovalId, ApprovalKind, ApprovalState, ByteString, SandboxId};
use std::collections::BTreeSet;

const TABLE: &str = "approvals";
const SEARCH: IdSearch = IdSearch {
    what: "approval",
    exact: "SELECT id, value, sum FROM approvals WHERE id = $1 AND node = $2",
    range: "SELECT id FROM approvals WHERE id >= $1 AND id < $2 AND node = $3
            ORDER BY id LIMIT 10",
};

impl ApprovalStore for PostgresStore {
    fn insert_approval(&self, approval: &Approval, events: &[NewEvent]) -> Result<()> {
        self.write("insert an approval", |session| {
            let id = approval.id.as_str();
            if approval.state != ApprovalState::Applying {
                let (from, to) = (ApprovalState::Applying, approval.state);
                return Err(illegal_move(approval, from, to).into());
            }
            if exists(session, "SELECT 1 FROM approvals WHERE id = $1", &[&id])? {
                let name = id.to_owned();
                return Err(StoreError::AlreadyExists { what: "approval", name }.into());
            }
            self.insert_row(session, approval)?;
            write_paths(session, approval)?;
            ledger::append(session, events)
        })
    }

    fn move_approval(
        &self,
        id: &ApprovalId,
        to: ApprovalState,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Approval),
    ) -> Result<Approval> {
        self.write("move an approval", |session| {
            let before = self.load_approval(session, id)?;
            let after = moved_approval(&before, to, change)?;
            if let Some(of) = reverses_at_commit(&before, to) {
                let begun = self.begun_undos(session, &before)?;
                check_single_undo(&before, &self.load_approval(session, of)?, &begun)?;
            }
            write_back(session, &after)?;
            if after.paths != before.paths {
                write_paths(session, &after)?;
            }
            if let Some(of) = undoes(before.state, &after) {
                let reversed = self.load_approval(session, of)?;
                write_back(session, &undone(reversed)?)?;
            }
            ledger::append(session, events)?;
            Ok(after)
        })
    }

    fn refuse_approval(&self, id: &ApprovalId, events: &[NewEvent]) -> Result<()> {
        self.write("forget a refused approval", |session| {
            check_refusable(&self.load_approval(session, id)?)?;
            session.execute("DELETE FROM approval_paths WHERE approval = $1", &[&id.as_str()])?;
            session.execute("DELETE FROM approvals WHERE id = $1", &[&id.as_str()])?;
            ledger::append(session, events)
        })
    }

    fn find_approval(&self, text: &str) -> Result<Approval> {
        self.read("find an approval", |session| {
            by_id_prefix(session, TABLE, &SEARCH, text, &self.node)
        })
    }

    fn list_approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>> {
        let PathRange { path, from, until } = PathRange::below(filter.path.as_ref());
        let states: Vec<_> = filter.states.iter().map(|state| state_word(*state)).collect();
        let states = (!states.is_empty()).then_some(states);
        let project = filter.project.as_ref().map(ByteString::as_bytes);
        let sandbox = filter.sandbox.as_ref().map(SandboxId::as_str);
        let sql = "SELECT id, value, sum FROM approvals
                   WHERE node = $7
                     AND ($1::bytea IS NULL OR project = $1)
                     AND ($2::text IS NULL OR sandbox = $2)
                     AND ($3::text[] IS NULL OR state = ANY($3))
                     AND ($4::bytea IS NULL OR id IN (
                         SELECT approval FROM approval_paths WHERE path = $4
                         UNION SELECT approval FROM approval_paths WHERE path >= $5 AND path < $6))
                   ORDER BY seq DESC";
        self.read("list approvals", |session| {
            rows(
                session,
                TABLE,
                sql,
                &[&project, &sandbox, &states, &path, &from, &until, &self.node],
            )
        })
    }

    fn newest_undoable(&self, project: &ByteString) -> Result<Option<Approval>> {
        let sql = "SELECT id, value, sum FROM approvals
                   WHERE node = $2 AND project = $1 AND kind IN ('approve', 'redo')
                     AND state = 'applied' AND undo_kept
                   ORDER BY seq DESC LIMIT 1";
        self.read("find the newest approval", |session| {
            first(session, TABLE, sql, &[&project.as_bytes(), &self.node])
        })
    }

    fn undo_expired(&self, keep: u32, before: &str) -> Result<Vec<Approval>> {
        let sql = "SELECT id, value, sum FROM (
                       SELECT *, row_number() OVER (PARTITION BY project ORDER BY seq DESC) AS rank
                       FROM approvals WHERE node = $3) AS ranked
                   WHERE rank > $1 AND at_us < $2 AND undo_kept
                     AND state IN ('applied', 'aborted', 'undone')
                   ORDER BY seq DESC";
        self.read("list approvals past their undo", |session| {
            rows(session, TABLE, sql, &[&i64::from(keep), &micros(before)?, &self.node])
        })
    }

    fn forget_approvals(&self, before: &str) -> Result<u64> {
        self.write("forget approvals", |session| {
            let gone = "node = $2 AND at_us < $1 AND NOT undo_kept
                        AND state IN ('applied', 'aborted', 'undone')";
            let before = micros(before)?;
            let sql = format!(
                "DELETE FROM approval_paths
                 WHERE approval IN (SELECT id FROM approvals WHERE {gone})"
            );
            session.execute(&sql, &[&before, &self.node])?;
            session.execute(&format!("DELETE FROM approvals WHERE {gone}"), &[&before, &self.node])
        })
    }

    fn drop_undo(&self, id: &ApprovalId) -> Result<()> {
        // Synced: the backups are removed next, and an undo that still believes in them after a
        // power loss would find nothing.
        self.write("give up an undo", |session| {
            let sql = "UPDATE approvals SET undo_kept = FALSE WHERE id = $1 AND node = $2";
            match session.execute(sql, &[&id.as_str(), &self.node])? {
                0 => Err(approval_not_found(id).into()),
                _ => Ok(()),
            }
        })
    }
}

impl PostgresStore {
    fn load_approval(&self, session: &mut Session, id: &ApprovalId) -> Outcome<Approval> {
        let found = first(session, TABLE, SEARCH.exact, &[&id.as_str(), &self.node])?;
        found.ok_or_else(|| approval_not_found(id).into())
    }

    /// The undos of a project that have passed their commit point and are not done.
    fn begun_undos(&self, session: &mut Session, undo: &Approval) -> Outcome<Vec<Approval>> {
        let sql = "SELECT id, value, sum FROM approvals
                   WHERE node = $2 AND project = $1 AND kind IN ('undo', 'redo')
                     AND state IN ('committed', 'needs_attention')";
        rows(session, TABLE, sql, &[&undo.project.as_bytes(), &self.node])
    }

    fn insert_row(&self, session: &mut Session, approval: &Approval) -> Outcome<()> {
        let row = encode("approval", approval.id.as_str(), approval)?;
        let kind = direction(session, approval)?;
        session.execute(
            "INSERT INTO approvals (id, node, sandbox, project, kind, state, at_us, value, sum)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            &[
                &approval.id.as_str(),
                &self.node,
                &approval.sandbox.as_str(),
                &approval.project.as_bytes(),
                &kind,
                &state_word(approval.state),
                &micros(&approval.at)?,
                &row.value,
                &row.sum,
            ],
        )?;
        Ok(())
    }
}

/// `approve`, `undo`, or `redo`: the undo of an undo applies again, and can be undone like an
/// approval.
fn direction(session: &mut Session, approval: &Approval) -> Outcome<&'static str> {
    let ApprovalKind::Undo { of } = &approval.kind else { return Ok("approve") };
    let sql = "SELECT 1 FROM approvals WHERE id = $1 AND kind = 'undo'";
    Ok(if exists(session, sql, &[&of.as_str()])? { "redo" } else { "undo" })
}

fn write_back(session: &mut Session, approval: &Approval) -> Outcome<()> {
    let row = encode("approval", approval.id.as_str(), approval)?;
    session.execute(
        "UPDATE approvals SET state = $2, at_us = $3, value = $4, sum = $5 WHERE id = $1",
        &[
            &approval.id.as_str(),
            &state_word(approval.state),
            &micros(&approval.at)?,
            &row.value,
            &row.sum,
        ],
    )?;
    Ok(())
}

fn write_paths(session: &mut Session, approval: &Approval) -> Outcome<()> {
    let id = approval.id.as_str();
    session.execute("DELETE FROM approval_paths WHERE approval = $1", &[&id])?;
    let paths: BTreeSet<&[u8]> =
        approval.paths.iter().map(|applied| applied.path.as_bytes()).collect();
    let paths: Vec<&[u8]> = paths.into_iter().collect();
    // One statement, however many paths there are.
    session.execute(
        "INSERT INTO approval_paths (path, approval) SELECT unnest($1::bytea[]), $2",
        &[&paths, &id],
    )?;
    Ok(())
}
