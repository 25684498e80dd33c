//! Sandboxes, their names, scope locks and leases.

use super::fault::Outcome;
use super::row::{IdSearch, by_id_prefix, execute, first, rows, sound_rows};
use super::{Access, Durability, SqliteStore, execs, layers, ledger};
use crate::rules::{
    HeldScope, changed_sandbox, check_epoch, check_version, claimed_sandbox, if_any, is_id,
    refuse_overlap, sandbox_holder, sandbox_not_found, sandbox_taken, scopes,
};
use crate::value::{encode, micros};
use crate::{
    DeletedRows, ExecMoves, Expect, Lease, NewEvent, Result, SandboxFilter, SandboxStore,
    ScopeConflict, ScopeMode, StoreError,
};
use rusqlite::{OptionalExtension as _, Transaction, params};
use skep_types::{ByteString, RelPath, Sandbox, SandboxId, SandboxName, SandboxState};

const TABLE: &str = "sandboxes";
const BY_ID: &str = "SELECT id, value, sum FROM sandboxes WHERE id = ?1";
const BY_NAME: &str = "SELECT id, value, sum FROM sandboxes WHERE name = ?1 AND state <> 'deleted'";
const ELSEWHERE: &str = "SELECT node FROM sandboxes
     WHERE id = ?1 AND node <> (SELECT value FROM meta WHERE key = 'node')";
const WRITE_BACK: &str = "UPDATE sandboxes SET name = ?2, project = ?3, state = ?4, version = ?5,
         updated_us = ?6, value = ?7, sum = ?8
     WHERE id = ?1";
const UNLOCK: &str = "DELETE FROM scope_locks WHERE sandbox = ?1";
/// What a run asks once its sandbox is up.
pub(super) const LATER: [&str; 4] = [BY_ID, ELSEWHERE, WRITE_BACK, UNLOCK];

const LIVE: IdSearch = IdSearch {
    what: "sandbox",
    exact: "SELECT id, value, sum FROM sandboxes WHERE id = ?1 AND state <> 'deleted'",
    range: "SELECT id FROM sandboxes WHERE id >= ?1 AND id < ?2 AND state <> 'deleted'
            ORDER BY id LIMIT 10",
};

const DELETED: IdSearch = IdSearch {
    what: "sandbox",
    exact: "SELECT id, value, sum FROM sandboxes WHERE id = ?1 AND state = 'deleted'",
    range: "SELECT id FROM sandboxes WHERE id >= ?1 AND id < ?2 AND state = 'deleted'
            ORDER BY id LIMIT 10",
};

/// A list that is longer leaves nothing of it in SQLite's cache.
const MANY: usize = 50;

impl SandboxStore for SqliteStore {
    fn insert_sandbox(
        &self,
        sandbox: &Sandbox,
        scope: ScopeMode,
        events: &[NewEvent],
    ) -> Result<u64> {
        let mut sandbox = sandbox.clone();
        sandbox.version = 1;
        self.write("insert a sandbox", Durability::Process, |tx| {
            refuse_taken(tx, &sandbox)?;
            if scope == ScopeMode::Exclusive {
                lock_scope(tx, &sandbox)?;
            }
            insert(tx, &sandbox)?;
            refer_to_layers(tx, &sandbox)?;
            ledger::append(tx, events)?;
            Ok(sandbox.version)
        })
    }

    fn sandbox(&self, id: &SandboxId) -> Result<Sandbox> {
        self.read("read a sandbox", |tx| load(tx, id))
    }

    fn find_sandbox(&self, text: &str) -> Result<Sandbox> {
        self.read("find a sandbox", |tx| {
            // Nobody's name stands for another's id.
            if is_id(text)
                && let Some(sandbox) = first(tx, TABLE, LIVE.exact, params![text])?
            {
                return Ok(sandbox);
            }
            match first(tx, TABLE, BY_NAME, params![text])? {
                Some(sandbox) => Ok(sandbox),
                None => by_id_prefix(tx, TABLE, &LIVE, text),
            }
        })
    }

    fn deleted_sandbox(&self, text: &str) -> Result<Option<Sandbox>> {
        let sql = "SELECT id, value, sum FROM sandboxes
                   WHERE name = ?1 AND state = 'deleted' ORDER BY seq DESC LIMIT 1";
        let found =
            self.read("find a deleted sandbox", |tx| match first(tx, TABLE, sql, params![text])? {
                Some(sandbox) => Ok(sandbox),
                None => by_id_prefix(tx, TABLE, &DELETED, text),
            });
        if_any(found)
    }

    fn list_sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<Sandbox>> {
        let project = filter.project.as_ref().map(ByteString::as_bytes);
        // A set of states is few words from a closed list; as JSON it is one parameter.
        let states: Vec<_> = filter.states.iter().map(|state| state.as_str()).collect();
        let states = (!states.is_empty()).then(|| serde_json::json!(states).to_string());
        // Every start of skep asks for sandboxes in some states, when thousands may be deleted: the
        // index of the living keeps the answer from growing with the dead. It has no checksums, as
        // the rows have: a list of everything is read from the rows.
        let sql = match (filter.deleted, &states) {
            (DeletedRows::Hidden, Some(_)) => {
                "SELECT id, value, sum FROM sandboxes INDEXED BY sandboxes_name
                 WHERE state <> 'deleted'
                   AND (?1 IS NULL OR project = ?1)
                   AND state IN (SELECT value FROM json_each(?2))
                 ORDER BY seq"
            }
            (DeletedRows::Hidden, None) => {
                "SELECT id, value, sum FROM sandboxes
                 WHERE (?1 IS NULL OR project = ?1) AND ?2 IS NULL AND +state <> 'deleted'
                 ORDER BY seq"
            }
            (DeletedRows::Included, _) => {
                "SELECT id, value, sum FROM sandboxes
                 WHERE (?1 IS NULL OR project = ?1)
                   AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
                 ORDER BY seq"
            }
        };
        let found: Vec<Sandbox> = self.read("list sandboxes", |tx| match self.access {
            Access::ReadWrite => rows(tx, TABLE, sql, params![project, states]),
            Access::ReadOnly => sound_rows(tx, TABLE, sql, params![project, states]),
        })?;
        if found.len() > MANY {
            // Pages that were read for this alone; a process that is forked next would keep them.
            // Failing to let go of them costs memory and nothing else.
            let _ = self.connection().execute_batch("PRAGMA shrink_memory");
        }
        Ok(found)
    }

    fn newest_sandbox(&self, project: &ByteString) -> Result<Option<Sandbox>> {
        let sql = "SELECT id, value, sum FROM sandboxes
                   WHERE project = ?1 AND state <> 'deleted' ORDER BY seq DESC LIMIT 1";
        self.read("find the newest sandbox", |tx| {
            first(tx, TABLE, sql, params![project.as_bytes()])
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
        self.write("update a sandbox", Durability::Process, |tx| {
            let before: Sandbox = load(tx, id)?;
            refuse_other_node(tx, &before)?;
            check_expected(tx, &before, expect)?;
            let after = changed_sandbox(&before, change)?;
            if after.name != before.name {
                refuse_taken_name(tx, &after)?;
            }
            // Before the row, which may say that the sandbox is gone.
            execs::apply(tx, &before, moves)?;
            write_back(tx, &before, &after)?;
            ledger::append(tx, events)?;
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
        self.write("claim a sandbox", Durability::Process, |tx| {
            let before: Sandbox = load(tx, id)?;
            refuse_other_node(tx, &before)?;
            check_expected(tx, &before, expect)?;
            let after = claimed_sandbox(&before, change)?;
            if after.name != before.name {
                refuse_taken_name(tx, &after)?;
            }
            write_back(tx, &before, &after)?;
            let newest =
                "UPDATE sandboxes SET seq = (SELECT MAX(seq) + 1 FROM sandboxes) WHERE id = ?1";
            execute(tx, newest, params![id.as_str()])?;
            ledger::append(tx, events)?;
            Ok(after)
        })
    }

    fn purge_deleted(&self, before: &str) -> Result<Vec<SandboxId>> {
        self.write("purge deleted sandboxes", Durability::Process, |tx| {
            let before = micros(before)?;
            let gone: Vec<Sandbox> = rows(
                tx,
                TABLE,
                "SELECT id, value, sum FROM sandboxes
                 WHERE state = 'deleted' AND updated_us < ?1 ORDER BY seq",
                params![before],
            )?;
            for sandbox in &gone {
                remove_rows(tx, &sandbox.id)?;
            }
            Ok(gone.into_iter().map(|sandbox| sandbox.id).collect())
        })
    }

    fn forget_sandbox(&self, id: &SandboxId) -> Result<bool> {
        self.write("forget a sandbox", Durability::Process, |tx| {
            let sql = "SELECT COUNT(*) FROM sandboxes WHERE id = ?1 AND state = 'deleted'";
            let found: i64 = tx.query_row(sql, params![id.as_str()], |row| row.get(0))?;
            if found > 0 {
                remove_rows(tx, id)?;
                tx.execute("DELETE FROM events WHERE sandbox = ?1", params![id.as_str()])?;
            }
            Ok(found > 0)
        })
    }

    fn release_scope(&self, id: &SandboxId) -> Result<()> {
        self.write("release a scope", Durability::Process, |tx| unlock_scope(tx, id))
    }

    fn lease(&self, id: &SandboxId) -> Result<Lease> {
        self.read("read a lease", |tx| load_lease(tx, id))
    }

    fn take_lease(&self, id: &SandboxId, node: &str) -> Result<Lease> {
        self.write("take a lease", Durability::Process, |tx| {
            tx.execute(
                "UPDATE sandboxes SET node = ?2, lease_epoch = lease_epoch + 1 WHERE id = ?1",
                params![id.as_str(), node],
            )?;
            load_lease(tx, id)
        })
    }
}

pub(super) fn load(tx: &Transaction<'_>, id: &SandboxId) -> Outcome<Sandbox> {
    find(tx, id)?.ok_or_else(|| sandbox_not_found(id).into())
}

pub(super) fn find(tx: &Transaction<'_>, id: &SandboxId) -> Outcome<Option<Sandbox>> {
    first(tx, TABLE, BY_ID, params![id.as_str()])
}

fn load_lease(tx: &Transaction<'_>, id: &SandboxId) -> Outcome<Lease> {
    let sql = "SELECT node, lease_epoch FROM sandboxes WHERE id = ?1";
    let found: Option<(String, i64)> =
        tx.query_row(sql, params![id.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (node, epoch) = found.ok_or_else(|| sandbox_not_found(id))?;
    Ok(Lease { node, epoch: epoch as u64 })
}

/// A sandbox that was handed to another node is that node's to change.
fn refuse_other_node(tx: &Transaction<'_>, sandbox: &Sandbox) -> Outcome<()> {
    let mut statement = tx.prepare_cached(ELSEWHERE)?;
    let other = statement.query_row(params![sandbox.id.as_str()], |row| row.get(0)).optional()?;
    match other {
        Some(node) => Err(StoreError::OtherNode { name: sandbox.name.to_string(), node }.into()),
        None => Ok(()),
    }
}

fn check_expected(tx: &Transaction<'_>, sandbox: &Sandbox, expect: Expect) -> Outcome<()> {
    check_version(sandbox, expect)?;
    if let Some(expected) = expect.lease_epoch {
        check_epoch(&sandbox.id, expected, load_lease(tx, &sandbox.id)?.epoch)?;
    }
    Ok(())
}

fn refuse_taken(tx: &Transaction<'_>, sandbox: &Sandbox) -> Outcome<()> {
    let sql = "SELECT 1 FROM sandboxes WHERE id = ?1";
    if tx.prepare_cached(sql)?.exists(params![sandbox.id.as_str()])? {
        return Err(sandbox_taken(&sandbox.id).into());
    }
    refuse_taken_name(tx, sandbox)
}

fn refuse_taken_name(tx: &Transaction<'_>, sandbox: &Sandbox) -> Outcome<()> {
    match is_taken(tx, &sandbox.name)? {
        true => Err(sandbox_taken(&sandbox.name).into()),
        false => Ok(()),
    }
}

/// Whether a sandbox that is not deleted has the name.
pub(super) fn is_taken(tx: &Transaction<'_>, name: &SandboxName) -> Outcome<bool> {
    let sql = "SELECT 1 FROM sandboxes WHERE name = ?1 AND state <> 'deleted'";
    Ok(tx.prepare_cached(sql)?.exists(params![name.as_str()])?)
}

pub(super) fn insert(tx: &Transaction<'_>, sandbox: &Sandbox) -> Outcome<()> {
    let row = encode("sandbox", sandbox.id.as_str(), sandbox)?;
    execute(
        tx,
        "INSERT INTO sandboxes
             (id, name, project, state, version, updated_us, value, sum, node)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
             COALESCE((SELECT value FROM meta WHERE key = 'node'), ''))",
        params![
            sandbox.id.as_str(),
            sandbox.name.as_str(),
            sandbox.project.as_bytes(),
            sandbox.state.as_str(),
            sandbox.version as i64,
            micros(&sandbox.updated_at)?,
            row.value,
            row.sum,
        ],
    )?;
    Ok(())
}

pub(super) fn write_back(tx: &Transaction<'_>, before: &Sandbox, after: &Sandbox) -> Outcome<()> {
    let row = encode("sandbox", after.id.as_str(), after)?;
    execute(
        tx,
        WRITE_BACK,
        params![
            after.id.as_str(),
            after.name.as_str(),
            after.project.as_bytes(),
            after.state.as_str(),
            after.version as i64,
            micros(&after.updated_at)?,
            row.value,
            row.sum,
        ],
    )?;
    if after.state == SandboxState::Deleted {
        unlock_scope(tx, &after.id)?;
        layers::forget_holder(tx, &sandbox_holder(&after.id))?;
    } else if after.layers != before.layers {
        refer_to_layers(tx, after)?;
    }
    Ok(())
}

pub(super) fn refer_to_layers(tx: &Transaction<'_>, sandbox: &Sandbox) -> Outcome<()> {
    layers::set_holder(tx, &sandbox_holder(&sandbox.id), &sandbox.layers)
}

fn unlock_scope(tx: &Transaction<'_>, id: &SandboxId) -> Outcome<()> {
    execute(tx, UNLOCK, params![id.as_str()])?;
    Ok(())
}

fn lock_scope(tx: &Transaction<'_>, sandbox: &Sandbox) -> Outcome<()> {
    let wanted = scopes(sandbox);
    refuse_overlap(sandbox, in_the_way(tx, &sandbox.project, &wanted)?)?;
    for scope in &wanted {
        tx.execute(
            "INSERT OR IGNORE INTO scope_locks (sandbox, project, scope) VALUES (?1, ?2, ?3)",
            params![sandbox.id.as_str(), sandbox.project.as_bytes(), scope.as_bytes()],
        )?;
    }
    Ok(())
}

/// There are few of them, of all projects together.
fn in_the_way(
    tx: &Transaction<'_>,
    project: &ByteString,
    wanted: &[RelPath],
) -> Outcome<Vec<ScopeConflict>> {
    let sql = "SELECT sandbox, project, scope FROM scope_locks ORDER BY project, scope, sandbox";
    let mut statement = tx.prepare(sql)?;
    let held: Vec<(String, Vec<u8>, Vec<u8>)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut conflicts = Vec::new();
    for (id, place, scope) in held {
        let held = HeldScope::parse(&id, place, &scope)?;
        if held.is_in_the_way_of(project, wanted) {
            let HeldScope { sandbox, scope, .. } = held;
            let sandbox_name = load(tx, &sandbox)?.name;
            conflicts.push(ScopeConflict { sandbox, sandbox_name, scope });
        }
    }
    Ok(conflicts)
}

/// The row of a sandbox, with its execs and rejections.
fn remove_rows(tx: &Transaction<'_>, id: &SandboxId) -> Outcome<()> {
    for sql in [
        "DELETE FROM execs WHERE sandbox = ?1",
        "DELETE FROM rejections WHERE sandbox = ?1",
        "DELETE FROM sandboxes WHERE id = ?1",
    ] {
        tx.execute(sql, params![id.as_str()])?;
    }
    Ok(())
}
