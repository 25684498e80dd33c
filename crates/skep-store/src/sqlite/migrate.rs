//! Migrations: numbered, one transaction each, a backup before the first.

use super::Access;
use super::fault::{Outcome, SYNC};
use super::open::{beside, connect, io_error, sync_parent};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The step at index `n` leads from schema `n` to `n + 1`. A step that was released never changes.
pub(super) const MIGRATIONS: &[&str] =
    &[include_str!("schema-1.sql"), include_str!("schema-2.sql"), include_str!("schema-3.sql")];

pub(super) fn schema_version(connection: &Connection) -> Outcome<u32> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// Brings the schema up to date.
///
/// 1. Take the write lock: of several processes that find an old schema, one goes first, and the
///    others find the new one when they get the lock.
/// 2. Before the first step, copy the database to a file beside it and sync that: with the lock
///    held, nothing can be written that the copy lacks.
/// 3. Run one step and note its number, in the one transaction the lock belongs to. A kill
///    anywhere rolls that step back; the ones before it are whole.
pub(super) fn migrate(connection: &Connection, path: &Path, migrations: &[&str]) -> Outcome<()> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    let mut backed_up = false;
    loop {
        let tx = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
        let version = schema_version(&tx)?;
        let Some(step) = migrations.get(version as usize) else { break };
        if !backed_up {
            back_up(path, version)?;
            backed_up = true;
        }
        tx.execute_batch(step)?;
        tx.pragma_update(None, "user_version", version + 1)?;
        tx.commit()?;
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(())
}

/// Writes `skep.db.backup-v<version>`, or with a number behind it when that is taken.
fn back_up(path: &Path, version: u32) -> Outcome<PathBuf> {
    let partial = beside(path, ".backup-partial");
    // Left by a process that was killed here; we hold the write lock, so it is nobody's.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove", &partial, error).into());
        }
        _ => {}
    }
    // VACUUM INTO takes an empty file, and would make one with the mode of the umask.
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)
        .map_err(|source| io_error("make", &partial, source))?;
    let reader = connect(path, Access::ReadOnly)?;
    // Bound as text byte for byte: a path need not be UTF-8.
    let target = ToSqlOutput::Borrowed(ValueRef::Text(partial.as_os_str().as_bytes()));
    reader.execute("VACUUM INTO ?1", [target])?;
    File::open(&partial)
        .and_then(|file| file.sync_all())
        .map_err(|source| io_error(SYNC, &partial, source))?;
    let name = |count: u32| match count {
        1 => beside(path, &format!(".backup-v{version}")),
        _ => beside(path, &format!(".backup-v{version}.{count}")),
    };
    let backup = (1..=u32::MAX).map(name).find(|name| !name.exists()).unwrap_or_else(|| name(1));
    fs::rename(&partial, &backup).map_err(|source| io_error("rename", &partial, source))?;
    sync_parent(path)?;
    Ok(backup)
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Durability, NewInstance, SqliteStore};
    use super::*;
    use crate::{LedgerStore as _, StoreError};

    const NEXT: &[&str] = &[
        MIGRATIONS[0],
        "CREATE TABLE extra (a TEXT); INSERT INTO extra SELECT value FROM meta WHERE key = 'k';",
        "ALTER TABLE extra ADD COLUMN b TEXT NOT NULL DEFAULT 'x';",
    ];
    const BROKEN: &[&str] = &[MIGRATIONS[0], NEXT[1], "ALTER TABLE extra ADD COLUMN c; SELEC 1;"];

    fn open(path: &Path, migrations: &[&str]) -> crate::Result<SqliteStore> {
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        SqliteStore::open_with(path, Access::ReadWrite, &first, migrations)
    }

    #[test]
    fn an_older_schema_is_backed_up_and_migrated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        open(&path, &NEXT[..1]).unwrap().set_meta("k", "v").unwrap();

        let store = open(&path, NEXT).unwrap();
        let copied: (String, String) = store
            .read("test", |tx| {
                Ok(tx.query_row("SELECT a, b FROM extra", [], |r| Ok((r.get(0)?, r.get(1)?)))?)
            })
            .unwrap();
        assert_eq!(copied, ("v".into(), "x".into()));
        let backup = beside(&path, ".backup-v1");
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&backup).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(open(&backup, &NEXT[..1]).unwrap().meta("k").unwrap().as_deref(), Some("v"));
        // The old binary refuses what the new one made.
        let refused = open(&path, &NEXT[..1]);
        assert!(
            matches!(refused, Err(StoreError::NewerSchema { found: 3, known: 1, .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn a_step_that_fails_leaves_the_steps_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        drop(open(&path, &NEXT[..1]).unwrap());
        assert!(matches!(open(&path, BROKEN), Err(StoreError::Backend { .. })));
        let store = open(&path, &NEXT[..2]).unwrap();
        let columns: i64 = store
            .write("test", Durability::Process, |tx| {
                let sql = "SELECT count(*) FROM pragma_table_info('extra')";
                Ok(tx.query_row(sql, [], |row| row.get(0))?)
            })
            .unwrap();
        assert_eq!(columns, 1);
        drop(store);
        open(&path, NEXT).unwrap();
        assert!(beside(&path, ".backup-v2").exists());
    }

    #[test]
    fn many_find_an_old_schema_and_one_migrates() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        drop(open(&path, &NEXT[..1]).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| open(&path, NEXT).unwrap());
            }
        });
        assert!(beside(&path, ".backup-v1").exists());
        assert!(!beside(&path, ".backup-v1.2").exists());
    }

    /// Killed with a half-run step: the test starts itself again as the victim.
    #[test]
    fn a_kill_inside_a_step_rolls_it_back() {
        const VICTIM: &str = "SKEP_STORE_TEST_VICTIM";
        const TEST: &str = "sqlite::migrate::tests::a_kill_inside_a_step_rolls_it_back";
        if let Some(path) = std::env::var_os(VICTIM) {
            let connection = connect(Path::new(&path), Access::ReadWrite).ok().unwrap();
            connection.execute_batch("BEGIN IMMEDIATE").unwrap();
            connection.execute_batch(NEXT[1]).unwrap();
            connection.execute_batch("PRAGMA user_version = 2; PRAGMA cache_spill = 1;").unwrap();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        open(&path, &NEXT[..1]).unwrap().set_meta("k", "v").unwrap();
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST])
            .env(VICTIM, &path)
            .status()
            .unwrap();
        assert!(!status.success());
        let store = open(&path, &NEXT[..1]).unwrap();
        assert_eq!(store.meta("k").unwrap().as_deref(), Some("v"));
        drop(store);
        open(&path, NEXT).unwrap();
    }
}
