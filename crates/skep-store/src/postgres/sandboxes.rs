//! Sandboxes, their names, scope locks and leases. A handle changes only those of its own node.

use super::fault::Outcome;
use super::row::{IdSearch, by_id_prefix, exists, first, rows};
use super::session::Session;
use super::{PostgresStore, layers, ledger};
use crate::rules::{
    HeldScope, changed_sandbox, check_epoch, check_version, claimed_sandbox, if_any, is_id,
    refuse_overlap, sandbox_holder, sandbox_not_found, sandbox_taken, scopes,
};
use crate::value::{encode, micros};
use crate::{
    DeletedRows, ExecMoves, Expect, Lease, NewEvent, Nodes, Result, SandboxFilter, SandboxStore,
    ScopeConflict, ScopeMode, StoreError,
};
use skep_types::{ByteString, RelPath, Sandbox, SandboxId, SandboxState};

const TABLE: &str = "sandboxes";
const BY_ID: &str = "SELECT id, value, sum FROM sandboxes WHERE id = $1";
const BY_NAME: &str = "SELECT id, value, sum FROM sandboxes WHERE name = $1 AND state <> 'deleted'";
/// Of any node: a person who names one on another node is told so.
const LIVE: IdSearch = IdSearch {
    what: "sandbox",
    exact: "SELECT id, value, sum FROM sandboxes
            WHERE id = $1 AND state <> 'deleted' AND $2::text IS NOT NULL",
    range: "SELECT id FROM sandboxes
            WHERE id >= $1 AND id < $2 AND state <> 'deleted' AND $3::text IS NOT NULL
            ORDER BY id LIMIT 10",
};

/// Of this node alone: what was deleted elsewhere is no answer here.
const DELETED: IdSearch = IdSearch {
    what: "sandbox",
    exact: "SELECT id, value, sum FROM sandboxes
            WHERE id = $1 AND state = 'deleted' AND node = $2",
    range: "SELECT id FROM sandboxes
            WHERE id >= $1 AND id < $2 AND state = 'deleted' AND node = $3
            ORDER BY id LIMIT 10",
};

impl SandboxStore for PostgresStore {
    fn insert_sandbox(
        &self,
        sandbox: &Sandbox,
        scope: ScopeMode,
        events: &[NewEvent],
    ) -> Result<u64> {
        let mut sandbox = sandbox.clone();
        sandbox.version = 1;
        self.write("insert a sandbox", |session| {
            refuse_taken(session, &sandbox)?;
            if scope == ScopeMode::Exclusive {
                self.lock_scope(session, &sandbox)?;
            }
            self.insert(session, &sandbox)?;
            self.refer_to_layers(session, &sandbox)?;
            ledger::append(session, events)?;
            Ok(sandbox.version)
        })
    }

    fn sandbox(&self, id: &SandboxId) -> Result<Sandbox> {
        self.read("read a sandbox", |session| load_own(session, id, &self.node))
    }

    fn find_sandbox(&self, text: &str) -> Result<Sandbox> {
        if text.contains('\0') {
            return Err(StoreError::NotFound { what: "sandbox", name: text.to_owned() });
        }
        self.read("find a sandbox", |session| {
            // Nobody's name stands for another's id.
            let by_id = match is_id(text) {
                true => first(session, TABLE, LIVE.exact, &[&text, &self.node])?,
                false => None,
            };
            let named = match by_id {
                Some(sandbox) => Some(sandbox),
                None => first(session, TABLE, BY_NAME, &[&text])?,
            };
            let found: Sandbox = match named {
                Some(sandbox) => sandbox,
                None => by_id_prefix(session, TABLE, &LIVE, text, &self.node)?,
            };
            load_own(session, &found.id, &self.node)
        })
    }

    fn deleted_sandbox(&self, text: &str) -> Result<Option<Sandbox>> {
        if text.contains('\0') {
            return Ok(None);
        }
        let sql = "SELECT id, value, sum FROM sandboxes
                   WHERE name = $1 AND node = $2 AND state = 'deleted' ORDER BY seq DESC LIMIT 1";
        let found = self.read("find a deleted sandbox", |session| {
            match first(session, TABLE, sql, &[&text, &self.node])? {
                Some(sandbox) => Ok(sandbox),
                None => by_id_prefix(session, TABLE, &DELETED, text, &self.node),
            }
        });
        if_any(found)
    }

    fn list_sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<Sandbox>> {
        let project = filter.project.as_ref().map(ByteString::as_bytes);
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        let states = (!states.is_empty()).then_some(states);
        let with_deleted = filter.deleted == DeletedRows::Included;
        let node = (filter.nodes == Nodes::Own).then_some(self.node.as_str());
        let sql = "SELECT id, value, sum FROM sandboxes
                   WHERE ($1::bytea IS NULL OR project = $1)
                     AND ($2::text[] IS NULL OR state = ANY($2))
                     AND ($3 OR state <> 'deleted')
                     AND ($4::text IS NULL OR node = $4)
                   ORDER BY seq";
        self.read("list sandboxes", |session| {
            rows(session, TABLE, sql, &[&project, &states, &with_deleted, &node])
        })
    }

    fn newest_sandbox(&self, project: &ByteString) -> Result<Option<Sandbox>> {
        let sql = "SELECT id, value, sum FROM sandboxes
                   WHERE node = $2 AND project = $1 AND state <> 'deleted'
                   ORDER BY seq DESC LIMIT 1";
        self.read("find the newest sandbox", |session| {
            first(session, TABLE, sql, &[&project.as_bytes(), &self.node])
        })
    }

    fn update_with_execs(
        &self,
        id: &SandboxId,
        expect: Expect,
        moves: ExecMoves<'_>,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox> {
        self.write("update a sandbox", |session| {
            let before = load_own(session, id, &self.node)?;
            check_expected(session, &before, expect)?;
            let after = changed_sandbox(&before, change)?;
            if after.name != before.name {
                refuse_taken_name(session, &after)?;
            }
            // Before the row, which may say that the sandbox is gone.
            self.apply_to_execs(session, &before, moves)?;
            self.write_back(session, &before, &after)?;
            ledger::append(session, events)?;
            Ok(after)
        })
    }

    fn claim_sandbox(
        &self,
        id: &SandboxId,
        expect: Expect,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox> {
        self.write("claim a sandbox", |session| {
            let before = load_own(session, id, &self.node)?;
            check_expected(session, &before, expect)?;
            let after = claimed_sandbox(&before, change)?;
            if after.name != before.name {
                refuse_taken_name(session, &after)?;
            }
            self.write_back(session, &before, &after)?;
            let newest = "UPDATE sandboxes SET seq = DEFAULT WHERE id = $1";
            session.execute(newest, &[&id.as_str()])?;
            ledger::append(session, events)?;
            Ok(after)
        })
    }

    fn purge_deleted(&self, before: &str) -> Result<Vec<SandboxId>> {
        self.write("purge deleted sandboxes", |session| {
            let before = micros(before)?;
            let gone: Vec<Sandbox> = rows(
                session,
                TABLE,
                "SELECT id, value, sum FROM sandboxes
                 WHERE node = $2 AND state = 'deleted' AND updated_us < $1 ORDER BY seq",
                &[&before, &self.node],
            )?;
            for sandbox in &gone {
                remove_rows(session, &sandbox.id)?;
            }
            Ok(gone.into_iter().map(|sandbox| sandbox.id).collect())
        })
    }

    fn forget_sandbox(&self, id: &SandboxId) -> Result<bool> {
        self.write("forget a sandbox", |session| {
            let sql = "SELECT 1 FROM sandboxes WHERE id = $1 AND node = $2 AND state = 'deleted'";
            let found = session.first(sql, &[&id.as_str(), &self.node])?.is_some();
            if found {
                remove_rows(session, id)?;
                session.execute("DELETE FROM events WHERE sandbox = $1", &[&id.as_str()])?;
            }
            Ok(found)
        })
    }

    fn release_scope(&self, id: &SandboxId) -> Result<()> {
        self.write("release a scope", |session| unlock_scope(session, id))
    }

    fn lease(&self, id: &SandboxId) -> Result<Lease> {
        self.read("read a lease", |session| load_lease(session, id))
    }

    fn take_lease(&self, id: &SandboxId, node: &str) -> Result<Lease> {
        self.write("take a lease", |session| {
            session.execute(
                "UPDATE sandboxes SET node = $2, lease_epoch = lease_epoch + 1 WHERE id = $1",
                &[&id.as_str(), &node],
            )?;
            load_lease(session, id)
        })
    }
}

impl PostgresStore {
    fn insert(&self, session: &mut Session, sandbox: &Sandbox) -> Outcome<()> {
        let row = encode("sandbox", sandbox.id.as_str(), sandbox)?;
        session.execute(
            "INSERT INTO sandboxes (id, name, project, state, version, updated_us, value, sum, node)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            &[
                &sandbox.id.as_str(),
                &sandbox.name.as_str(),
                &sandbox.project.as_bytes(),
                &sandbox.state.as_str(),
                &(sandbox.version as i64),
                &micros(&sandbox.updated_at)?,
                &row.value,
                &row.sum,
                &self.node,
            ],
        )?;
        Ok(())
    }

    fn write_back(&self, session: &mut Session, before: &Sandbox, after: &Sandbox) -> Outcome<()> {
        let row = encode("sandbox", after.id.as_str(), after)?;
        session.execute(
            "UPDATE sandboxes SET name = $2, project = $3, state = $4, version = $5,
                 updated_us = $6, value = $7, sum = $8
             WHERE id = $1",
            &[
                &after.id.as_str(),
                &after.name.as_str(),
                &after.project.as_bytes(),
                &after.state.as_str(),
                &(after.version as i64),
                &micros(&after.updated_at)?,
                &row.value,
                &row.sum,
            ],
        )?;
        if after.state == SandboxState::Deleted {
            unlock_scope(session, &after.id)?;
            layers::forget_holder(session, &self.node, &sandbox_holder(&after.id))?;
        } else if after.layers != before.layers {
            self.refer_to_layers(session, after)?;
        }
        Ok(())
    }

    fn refer_to_layers(&self, session: &mut Session, sandbox: &Sandbox) -> Outcome<()> {
        layers::set_holder(session, &self.node, &sandbox_holder(&sandbox.id), &sandbox.layers)
    }

    /// Projects of the same path on two nodes are two projects.
    fn lock_scope(&self, session: &mut Session, sandbox: &Sandbox) -> Outcome<()> {
        let wanted = scopes(sandbox);
        refuse_overlap(sandbox, self.in_the_way(session, &sandbox.project, &wanted)?)?;
        for scope in &wanted {
            session.execute(
                "INSERT INTO scope_locks (sandbox, node, project, scope) VALUES ($1, $2, $3, $4)
                 ON CONFLICT DO NOTHING",
                &[&sandbox.id.as_str(), &self.node, &sandbox.project.as_bytes(), &scope.as_bytes()],
            )?;
        }
        Ok(())
    }

    /// There are few of them, of all projects together.
    fn in_the_way(
        &self,
        session: &mut Session,
        project: &ByteString,
        wanted: &[RelPath],
    ) -> Outcome<Vec<ScopeConflict>> {
        let sql = "SELECT sandbox, project, scope FROM scope_locks WHERE node = $1
                   ORDER BY project, scope, sandbox";
        let mut conflicts = Vec::new();
        for row in session.query(sql, &[&self.node])? {
            let id: String = row.try_get(0)?;
            let (place, scope): (Vec<u8>, Vec<u8>) = (row.try_get(1)?, row.try_get(2)?);
            let held = HeldScope::parse(&id, place, &scope)?;
            if held.is_in_the_way_of(project, wanted) {
                let HeldScope { sandbox, scope, .. } = held;
                let sandbox_name = load_own(session, &sandbox, &self.node)?.name;
                conflicts.push(ScopeConflict { sandbox, sandbox_name, scope });
            }
        }
        Ok(conflicts)
    }
}

/// The sandbox, if it is this node's.
pub(super) fn load_own(session: &mut Session, id: &SandboxId, node: &str) -> Outcome<Sandbox> {
    let found = first(session, TABLE, BY_ID, &[&id.as_str()])?;
    let sandbox: Sandbox = found.ok_or_else(|| sandbox_not_found(id))?;
    let lease = load_lease(session, id)?;
    if lease.node != node {
        return Err(
            StoreError::OtherNode { name: sandbox.name.to_string(), node: lease.node }.into()
        );
    }
    Ok(sandbox)
}

fn load_lease(session: &mut Session, id: &SandboxId) -> Outcome<Lease> {
    let sql = "SELECT node, lease_epoch FROM sandboxes WHERE id = $1";
    let row = session.first(sql, &[&id.as_str()])?.ok_or_else(|| sandbox_not_found(id))?;
    let epoch: i64 = row.try_get(1)?;
    Ok(Lease { node: row.try_get(0)?, epoch: epoch as u64 })
}

fn check_expected(session: &mut Session, sandbox: &Sandbox, expect: Expect) -> Outcome<()> {
    check_version(sandbox, expect)?;
    if let Some(expected) = expect.lease_epoch {
        check_epoch(&sandbox.id, expected, load_lease(session, &sandbox.id)?.epoch)?;
    }
    Ok(())
}

fn refuse_taken(session: &mut Session, sandbox: &Sandbox) -> Outcome<()> {
    let sql = "SELECT 1 FROM sandboxes WHERE id = $1";
    if exists(session, sql, &[&sandbox.id.as_str()])? {
        return Err(sandbox_taken(&sandbox.id).into());
    }
    refuse_taken_name(session, sandbox)
}

fn refuse_taken_name(session: &mut Session, sandbox: &Sandbox) -> Outcome<()> {
    let sql = "SELECT 1 FROM sandboxes WHERE name = $1 AND state <> 'deleted'";
    if exists(session, sql, &[&sandbox.name.as_str()])? {
        return Err(sandbox_taken(&sandbox.name).into());
    }
    Ok(())
}

fn unlock_scope(session: &mut Session, id: &SandboxId) -> Outcome<()> {
    session.execute("DELETE FROM scope_locks WHERE sandbox = $1", &[&id.as_str()])?;
    Ok(())
}

/// The row of a sandbox, with its execs and rejections.
fn remove_rows(session: &mut Session, id: &SandboxId) -> Outcome<()> {
    for sql in [
        "DELETE FROM execs WHERE sandbox = $1",
        "DELETE FROM rejections WHERE sandbox = $1",
        "DELETE FROM sandboxes WHERE id = $1",
    ] {
        session.execute(sql, &[&id.as_str()])?;
    }
    Ok(())
}
