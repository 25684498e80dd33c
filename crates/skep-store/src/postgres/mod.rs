//! [`PostgresStore`]: a database that several nodes share.

mod approvals;
mod execs;
mod fault;
mod layers;
mod lease;
mod ledger;
mod open;
mod pool;
mod row;
mod sandboxes;
mod session;
mod upkeep;

use crate::{Result, Stop, StoreError};
use fault::{Fault, Outcome};
use pool::Pool;
use session::Session;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use open::PostgresOptions;

/// The key of the one write lock, in the namespace of advisory locks: "skep".
const WRITE_LOCK: i64 = 0x736b_6570;
/// Between two tries to ask for the outcome of a commit.
const PAUSE: Duration = Duration::from_millis(200);

/// The store in a PostgreSQL database, shared by any number of processes on any number of nodes.
///
/// How it is set up, and why:
///
/// - **One writer at a time**, as in SQLite: every change first takes one advisory lock, held to
///   the end of its transaction. What holds in one store then holds in the other, with plain
///   `READ COMMITTED`; a change is a handful of short statements. A client that stands still while
///   it holds the lock is disconnected by the server after ten seconds.
/// - **Every commit is on the server's disk.** Rows must survive the death of any process, and with
///   `synchronous_commit = off` the death of the server would take the newest of them.
/// - **At most once.** Each change writes a row with an operation id. When the connection is lost
///   at the commit, a new one takes the write lock (so the lost transaction has ended) and looks
///   for that row: it tells whether the change happened. If the server cannot be asked for
///   a quarter of a minute, the outcome is unknown, the caller is told so, and this handle takes no
///   more changes.
/// - **Nodes.** Rows of things that lie on a disk name their node; a handle reads and changes only
///   its own. Names of sandboxes are unique over all nodes.
/// - **Fencing.** A handle writes under the lease of its node. Whoever takes the node over after
///   the lease ran out raises the epoch, and every later write of the old holder is refused.
/// - **Nothing asynchronous outside.** Each connection has a runtime without threads that runs only
///   while a method waits for an answer. A method must not be called from inside another runtime's
///   task; a server calls the engine on threads of its own.
#[derive(Debug)]
pub struct PostgresStore {
    pool: Pool,
    /// The address without its password, as errors show it.
    path: PathBuf,
    node: String,
    holder: String,
    session: String,
    lease: Duration,
    settling: Duration,
    operations: AtomicU64,
    /// The epoch this handle writes under, once it has written.
    epoch: Mutex<Option<i64>>,
    /// Set by an unknown outcome or a lost lease; there is no way back.
    stopped: OnceLock<Stop>,
}

impl PostgresStore {
    /// The address of the database, without the password.
    pub fn address(&self) -> &Path {
        &self.path
    }

    /// The node whose sandboxes this handle works with.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Runs `body` on one consistent view.
    fn read<T>(
        &self,
        operation: &'static str,
        body: impl FnOnce(&mut Session) -> Outcome<T>,
    ) -> Result<T> {
        let run = || -> Outcome<T> {
            let mut lent =
                self.begin(operation, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
            let value = body(lent.session()?)?;
            lent.session()?.batch("COMMIT")?;
            Ok(value)
        };
        run().map_err(|fault| self.judge(fault.into_error(operation, &self.path)))
    }

    /// Passes an error on. After one that means damage this handle changes nothing any more.
    fn judge(&self, error: StoreError) -> StoreError {
        if error.is_doubt() {
            let _ = self.stopped.set(Stop::Damaged);
        }
        error
    }

    /// Runs `body` under the write lock and commits what it did.
    fn write<T>(
        &self,
        operation: &'static str,
        body: impl FnOnce(&mut Session) -> Outcome<T>,
    ) -> Result<T> {
        let path = || self.path.clone();
        match self.stopped.get() {
            None => {}
            Some(Stop::Damaged) => return Err(StoreError::InDoubt { operation, path: path() }),
            Some(_) => return Err(StoreError::Stopped { operation, path: path() }),
        }
        self.transact(operation, body).map_err(|fault| {
            let stop = match &fault {
                Fault::Store(StoreError::Fenced { .. }) => Some(Stop::Fenced),
                Fault::Store(StoreError::Uncertain { .. }) => Some(Stop::Unsure),
                _ => None,
            };
            if let Some(stop) = stop {
                let _ = self.stopped.set(stop);
            }
            self.judge(fault.into_error(operation, &self.path))
        })
    }

    fn transact<T>(
        &self,
        operation: &'static str,
        body: impl FnOnce(&mut Session) -> Outcome<T>,
    ) -> Outcome<T> {
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({WRITE_LOCK})"
        );
        let mut lent = self.begin(operation, &begin)?;
        let session = lent.session()?;
        let epoch = self.fence(session)?;
        let value = body(session)?;
        let id = format!("{}-{}", self.session, self.operations.fetch_add(1, Ordering::Relaxed));
        session.execute(
            "INSERT INTO operations (id, at_us)
             VALUES ($1, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint)",
            &[&id],
        )?;
        match session.batch("COMMIT") {
            Err(fault) if fault.is_lost() => {
                drop(lent);
                self.settle(operation, &id, fault)?;
            }
            other => other?,
        }
        *self.epoch.lock().unwrap_or_else(PoisonError::into_inner) = Some(epoch);
        Ok(value)
    }

    /// A connection with a transaction begun. A pooled connection may have died since its last
    /// use; nothing was asked of it yet, so another one is tried.
    fn begin(&self, operation: &'static str, sql: &str) -> Outcome<pool::Lent<'_>> {
        let mut tries = 0;
        loop {
            let mut lent = self.pool.take(operation, &self.path)?;
            let fresh = lent.is_fresh();
            match lent.session()?.batch(sql) {
                Ok(()) => return Ok(lent),
                Err(fault) if fault.is_lost() && !fresh && tries < 16 => tries += 1,
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The answer to a commit was lost: did it happen? Getting the write lock proves that the lost
    /// transaction has ended, so that its operation is there or will never be.
    fn settle(&self, operation: &'static str, id: &str, lost: Fault) -> Outcome<()> {
        let deadline = Instant::now() + self.settling;
        let ask = || -> Outcome<bool> {
            let mut session = self.pool.connect()?;
            session.batch(&format!("BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})"))?;
            let sql = "SELECT 1 FROM operations WHERE id = $1";
            let found = row::exists(&mut session, sql, &[&id])?;
            session.batch("COMMIT")?;
            Ok(found)
        };
        loop {
            match ask() {
                Ok(true) => return Ok(()),
                // It did not happen: the loss of the connection is all there is to tell.
                Ok(false) => return Err(lost),
                Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(_) => {
                    let path = self.path.clone();
                    return Err(StoreError::Uncertain { operation, path }.into());
                }
            }
        }
    }
}
