//! [`SqliteStore`]: one connection, two kinds of transaction.

mod approvals;
mod doubt;
mod execs;
mod fault;
mod layers;
mod ledger;
mod migrate;
mod open;
mod row;
mod runs;
mod sandboxes;
mod upkeep;
mod vouch;
mod work;

use crate::{Result, Stop, StoreError};
use fault::{Fault, Outcome};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub use doubt::is_in_doubt;
pub(crate) use open::io_error;
pub use open::{Access, NewInstance};
pub(crate) use runs::directory_of as runs_of;
pub(crate) use vouch::is_vouched_for;

/// The store in one SQLite file, shared by any number of processes of this host.
///
/// How it is set up, and why:
///
/// - **Write-ahead log.** Readers and one writer do not wait for each other. Every write begins
///   with `BEGIN IMMEDIATE`, so that it reads what it is going to change; it waits up to ten
///   seconds for another writer, then it is `Busy`.
/// - **`synchronous=NORMAL`, normally.** A commit is then a write into the log without an fsync:
///   it survives the death of every process, and power loss may take the newest commits (never
///   the order, never half of one). For approvals the connection is switched to
///   `synchronous=FULL` for that one transaction: the log, with everything committed before, is
///   synced before the method returns.
/// - **No surprising fsync.** Folding the log into the database syncs both files, so it never
///   happens by itself: automatic checkpoints are off, and closing the last connection neither
///   folds nor removes the log (`SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE`). [`crate::Housekeeping::upkeep`]
///   does it once the log has grown, and also pays for the one fsync with which SQLite starts a
///   log anew. A log that is never folded would also slow down opening, because the first process
///   to open a database reads its log.
/// - **Opening is cheap.** With a current schema: open, three pragmas. No schema work, no
///   integrity check (that is [`crate::Housekeeping::check`]), statements prepared when needed.
/// - **Locks belong to the process.** SQLite locks by POSIX record locks, which a process loses
///   when it closes *any* descriptor of the file: nothing else here opens it. A handle must not be
///   used on the other side of a `fork`; locks die with their process, so none is ever stale.
/// - **The file is watched.** Each transaction first looks whether the path still leads to the
///   file that was opened; a store that was moved or replaced is not written to blindly.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Mutex<Connection>,
    path: PathBuf,
    access: Access,
    file: FileId,
    /// Set by a failed sync, or by damage that was met; there is no way back.
    stopped: OnceLock<Stop>,
    durable_commits: AtomicU64,
    /// What was there when whoever has this handle had settled everything.
    settled: Mutex<Option<vouch::Settled>>,
    /// What others had begun when it set about settling, if none of them was at it still.
    looked: Mutex<Option<u64>>,
    /// How often this handle began something.
    begun: AtomicU64,
}

/// What the owner of the file may do: read and write.
const OWNERS: u32 = 0o600;

/// Which file a path led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// `None` if there is no file; one that cannot be looked at now is not gone. Whoever shuts it means
    /// everybody, also those who have it open, and root.
    fn of(path: &Path) -> Result<Option<Self>> {
        match std::fs::metadata(path) {
            Ok(found) if found.mode() & OWNERS != OWNERS => {
                Err(StoreError::Shut { path: path.to_owned(), mode: found.mode() & 0o777 })
            }
            Ok(found) => Ok(Some(Self { device: found.dev(), inode: found.ino() })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(open::io_error("look at", path, error)),
        }
    }
}

/// What a commit must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// The death of every process.
    Process,
    /// Power loss.
    Power,
}

impl SqliteStore {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many commits of this handle were synced to the disk.
    pub fn durable_commits(&self) -> u64 {
        self.durable_commits.load(Ordering::Relaxed)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // A panic in a caller's closure rolled its transaction back; the connection is sound.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_file(&self) -> Result<()> {
        if FileId::of(&self.path)? == Some(self.file) {
            Ok(())
        } else {
            Err(StoreError::Replaced { path: self.path.clone() })
        }
    }

    /// Runs `body` on one consistent view.
    fn read<T>(
        &self,
        operation: &'static str,
        body: impl FnOnce(&Transaction<'_>) -> Outcome<T>,
    ) -> Result<T> {
        self.check_file()?;
        let connection = self.connection();
        Transaction::new_unchecked(&connection, TransactionBehavior::Deferred)
            .map_err(Into::into)
            .and_then(|tx| body(&tx))
            .map_err(|fault| self.judge(fault.into_error(operation, &self.path)))
    }

    /// Runs `body` under the write lock and commits what it did.
    fn write<T>(
        &self,
        operation: &'static str,
        durability: Durability,
        body: impl FnOnce(&Transaction<'_>) -> Outcome<T>,
    ) -> Result<T> {
        let path = || self.path.clone();
        if self.access == Access::ReadOnly {
            return Err(StoreError::ReadOnly { operation, path: path() });
        }
        match self.stopped.get() {
            None => {}
            Some(Stop::Damaged) => return Err(StoreError::InDoubt { operation, path: path() }),
            Some(_) => return Err(StoreError::Stopped { operation, path: path() }),
        }
        let connection = self.connection();
        let done = match durability {
            Durability::Process => self.transact(&connection, durability, body),
            // The level cannot change inside a transaction. Staying at FULL by mistake would only
            // be slow, so putting it back is not a reason to fail.
            Durability::Power => set_synchronous(&connection, "FULL").and_then(|()| {
                let done = self.transact(&connection, durability, body);
                let _ = set_synchronous(&connection, "NORMAL");
                done
            }),
        };
        done.map_err(|fault| self.settle(operation, fault))
    }

    /// The error for the caller; one that cannot be recovered from stops the store.
    fn settle(&self, operation: &'static str, fault: Fault) -> StoreError {
        if fault.is_final() {
            let _ = self.stopped.set(Stop::Unsynced);
        }
        self.judge(fault.into_error(operation, &self.path))
    }

    fn transact<T>(
        &self,
        connection: &Connection,
        durability: Durability,
        body: impl FnOnce(&Transaction<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        let tx = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
        // After the lock was taken: the wait may have been long enough to move the file.
        self.check_file()?;
        let value = body(&tx)?;
        if durability == Durability::Power {
            // SQLite syncs the directory only for a log it made itself in this connection.
            open::sync_parent(&self.path)?;
        }
        tx.commit()?;
        if durability == Durability::Power {
            self.durable_commits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(value)
    }
}

fn set_synchronous(connection: &Connection, level: &'static str) -> Outcome<()> {
    Ok(connection.pragma_update(None, "synchronous", level)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synchronous(tx: &Transaction<'_>) -> Outcome<i64> {
        Ok(tx.pragma_query_value(None, "synchronous", |row| row.get(0))?)
    }

    #[test]
    fn only_power_commits_are_synced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let store = SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
        let before = store.durable_commits();
        assert_eq!(store.write("test", Durability::Process, synchronous).unwrap(), 1);
        assert_eq!(store.durable_commits(), before);
        assert_eq!(store.write("test", Durability::Power, synchronous).unwrap(), 2);
        assert_eq!(store.durable_commits(), before + 1);
        assert_eq!(store.write("test", Durability::Process, synchronous).unwrap(), 1);
        let connection = store.connection();
        let pragma = |name: &str| -> String {
            let read = |row: &rusqlite::Row<'_>| row.get::<_, rusqlite::types::Value>(0);
            format!("{:?}", connection.pragma_query_value(None, name, read).unwrap())
        };
        assert_eq!(pragma("wal_autocheckpoint"), "Integer(0)");
        assert_eq!(pragma("journal_mode"), "Text(\"wal\")");
        assert_eq!(pragma("busy_timeout"), "Integer(10000)");
    }

    #[test]
    fn damage_that_was_met_stops_all_further_changes_until_it_is_sound_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let store = SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
        assert!(crate::Housekeeping::takes_changes(&store));
        let met: Result<()> = store.read("test", |_| {
            let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            Err(rusqlite::Error::SqliteFailure(error, None).into())
        });
        assert!(matches!(met, Err(StoreError::Corrupt { .. })), "{met:?}");
        assert_eq!(crate::Housekeeping::stop(&store), Some(Stop::Damaged));
        assert!(!crate::Housekeeping::takes_changes(&store));
        let next = store.write("test", Durability::Process, |_| Ok(()));
        assert!(matches!(next, Err(StoreError::InDoubt { .. })), "{next:?}");
        store.read("test", |_| Ok(())).unwrap();
        assert!(is_in_doubt(&path));
        // Whoever opens it next reads all of it, and finds that it is sound.
        let again = SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
        again.write("test", Durability::Process, |_| Ok(())).unwrap();
        assert!(!is_in_doubt(&path));
        // What is not sound is refused, also where nobody would have looked at it yet.
        let spoil = "INSERT INTO events (kind, at, at_us, value, sum) VALUES ('x', '', 0, '{}', 0)";
        again.write("test", Durability::Process, |tx| Ok(tx.execute_batch(spoil)?)).unwrap();
        drop(SqliteStore::open(&path, Access::ReadWrite, &first).unwrap());
        assert_eq!(crate::Housekeeping::check(&again).unwrap().len(), 1);
        assert!(is_in_doubt(&path));
        let refused = SqliteStore::open(&path, Access::ReadWrite, &first);
        assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
        SqliteStore::open(&path, Access::ReadOnly, &first).unwrap();
    }

    #[test]
    fn a_failed_sync_stops_all_further_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let store = SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
        let failed: Result<()> = store.write("test", Durability::Process, |_| {
            let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
            Err(rusqlite::Error::SqliteFailure(error, None).into())
        });
        assert!(matches!(failed, Err(StoreError::Backend { .. })), "{failed:?}");
        assert_eq!(crate::Housekeeping::stop(&store), Some(Stop::Unsynced));
        let next = store.write("test", Durability::Process, |_| Ok(()));
        assert!(matches!(next, Err(StoreError::Stopped { .. })), "{next:?}");
        store.read("test", |_| Ok(())).unwrap();
    }
}
