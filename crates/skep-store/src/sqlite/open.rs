//! Opening a database: made whole or not at all, refused when in doubt.

use super::fault::{Fault, Outcome, SYNC, is_no_space};
use super::{FileId, SqliteStore, doubt, migrate};
use crate::{Result, StoreError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// "skep" in the header of the file, so that no other program's database is taken for ours.
const APPLICATION_ID: i32 = 0x736b_6570;
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Behind the name of the database: how often its log was begun.
pub(super) const BEGUN: &str = "-begun";

/// What a handle may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read and change; makes and migrates the database where needed.
    ReadWrite,
    /// Read only; never makes, migrates or repairs anything.
    ReadOnly,
}

/// What a database is told about itself when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInstance {
    /// Random and global: owned resources outside (containers, cgroups) are marked with it.
    pub instance: String,
    /// The node that new sandboxes belong to.
    pub node: String,
}

impl SqliteStore {
    /// Opens the database at `path`. With [`Access::ReadWrite`] it is made when it is not there
    /// (`first` is then written into it) and migrated, after a backup beside it, when its schema
    /// is older. The directory must exist. On error nothing was deleted or repaired.
    ///
    /// Errors: `Corrupt` (also for an empty or foreign file), `NewerSchema`, `NotLocal`, `Busy`,
    /// `Full`, `Io`, `Backend`.
    pub fn open(path: &Path, access: Access, first: &NewInstance) -> Result<Self> {
        Self::open_with(path, access, first, migrate::MIGRATIONS).inspect_err(|error| {
            let doubt = error.is_doubt() || error.is_another();
            if doubt && access == Access::ReadWrite {
                doubt::note(path);
            }
        })
    }

    pub(super) fn open_with(
        path: &Path,
        access: Access,
        first: &NewInstance,
        migrations: &[&str],
    ) -> Result<Self> {
        // Each transaction looks the path up again; a change of directory must not mislead it.
        let path = &std::path::absolute(path)
            .map_err(|source| io_error("find the directory of", path, source))?;
        if access == Access::ReadWrite {
            refuse_remote(path)?;
        }
        let found = match fs::metadata(path) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && access == Access::ReadWrite =>
            {
                match refuse_in_place_of_a_lost_one(path) {
                    Ok(()) => None,
                    // Or somebody has made one between the two looks.
                    Err(lost) => Some(fs::metadata(path).map_err(|_| lost)?),
                }
            }
            other => Some(other.map_err(|error| io_error("open", path, error))?),
        };
        let is_new = found.is_none();
        match found {
            Some(found) => check_existing(path, access, found.len(), found.permissions().mode())?,
            None => {
                create(path, first, migrations).map_err(|fault| fault.into_error("make", path))?;
            }
        }
        // Asked before SQLite makes a new one.
        let has_log = fs::metadata(beside(path, "-wal")).is_ok_and(|found| found.len() > 0);
        let store = Self::attach(path, access)?;
        let found = store.find_schema(migrations)?;
        if !is_new && access == Access::ReadWrite {
            store.refuse_older()?;
            store.settle_doubt()?;
        }
        store.bring_up_to_date(found, migrations)?;
        if !has_log && !is_new && access == Access::ReadWrite {
            // Somebody else folded it. On a full disk there is no log to be lost either.
            let _ = store.restart_log();
        }
        if is_new {
            // The very first commit makes the log and syncs it and its directory entry.
            store.restart_log()?;
        }
        Ok(store)
    }

    fn attach(path: &Path, access: Access) -> Result<Self> {
        let gone = || StoreError::Replaced { path: path.to_owned() };
        let before = FileId::of(path)?.ok_or_else(gone)?;
        let connection = connect(path, access).map_err(|fault| fault.into_error("open", path))?;
        if FileId::of(path)? != Some(before) {
            return Err(gone());
        }
        Ok(Self {
            connection: Mutex::new(connection),
            path: path.to_owned(),
            access,
            file: before,
            stopped: OnceLock::new(),
            durable_commits: AtomicU64::new(0),
            settled: Mutex::default(),
            looked: Mutex::default(),
            begun: AtomicU64::default(),
        })
    }

    /// The schema that was found: one of ours, and none that is newer.
    fn find_schema(&self, migrations: &[&str]) -> Result<u32> {
        let connection = self.connection();
        let (found, application) = header(&connection)
            .map_err(|fault| fault.into_error("read the schema version", &self.path))?;
        if application != APPLICATION_ID || found == 0 {
            let detail = "it is not a database of skep".to_owned();
            return Err(StoreError::Corrupt { path: self.path.clone(), detail });
        }
        let known = migrations.len() as u32;
        if found > known {
            return Err(StoreError::NewerSchema { path: self.path.clone(), found, known });
        }
        Ok(found)
    }

    fn bring_up_to_date(&self, found: u32, migrations: &[&str]) -> Result<()> {
        let connection = self.connection();
        if found < migrations.len() as u32 {
            if self.access == Access::ReadOnly {
                let operation = "migrate";
                return Err(StoreError::ReadOnly { operation, path: self.path.clone() });
            }
            migrate::migrate(&connection, &self.path, migrations)
                .map_err(|fault| fault.into_error("migrate", &self.path))?;
        }
        self.ensure_log(&connection)
            .map_err(|fault| fault.into_error("start the write-ahead log of", &self.path))
    }
}

impl SqliteStore {
    /// A log always has commits that the file has not, the one that began it among them. So a file
    /// without its log (or with one that cannot be read: SQLite passes it over) is whole only if somebody
    /// else folded it, and then it knows of the last beginning. Which one that was stands beside it: see
    /// [`SqliteStore::restart_log`]. What stands there and is no number says nothing.
    fn refuse_older(&self) -> Result<()> {
        let begun = match fs::read_to_string(beside(&self.path, BEGUN)) {
            Ok(text) => text.trim().parse::<u64>().unwrap_or(0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error("read", &beside(&self.path, BEGUN), error)),
        };
        match self.log_restarts()? < begun {
            false => Ok(()),
            true => {
                let (path, log) = (self.path.clone(), beside(&self.path, "-wal"));
                Err(StoreError::Older { path, log })
            }
        }
    }

    /// A database that was restored from a backup has no write-ahead log yet.
    fn ensure_log(&self, connection: &Connection) -> Outcome<()> {
        let mode: String = connection.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
        if mode != "wal" && self.access == Access::ReadWrite {
            connection.pragma_update(None, "journal_mode", "WAL")?;
        }
        Ok(())
    }
}

pub(crate) fn io_error(operation: &'static str, path: &Path, source: io::Error) -> StoreError {
    if is_no_space(&source) {
        return StoreError::Full { operation, path: path.to_owned() };
    }
    StoreError::Io { operation, path: path.to_owned(), source }
}

/// No new database is made where the log of another one lies, or the note that there was one: what is there
/// would be taken for the new one's, or be forgotten.
fn refuse_in_place_of_a_lost_one(path: &Path) -> Result<()> {
    let log = beside(path, "-wal");
    let has_log = fs::metadata(&log).is_ok_and(|found| found.len() > 0);
    let note = beside(path, BEGUN);
    match (has_log, note.exists()) {
        (true, _) => Err(StoreError::Lost { path: path.to_owned(), beside: log }),
        (false, true) => Err(StoreError::Lost { path: path.to_owned(), beside: note }),
        (false, false) => Ok(()),
    }
}

fn check_existing(path: &Path, access: Access, size: u64, mode: u32) -> Result<()> {
    // Ours is never empty, see `create`; SQLite would take an empty file for a new database, and a
    // truncated one would quietly become "no sandboxes".
    if size == 0 {
        let detail = "it is empty".to_owned();
        return Err(StoreError::Corrupt { path: path.to_owned(), detail });
    }
    if access == Access::ReadWrite && mode & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .map_err(|source| io_error("restrict the mode of", path, source))?;
    }
    Ok(())
}

pub(super) fn connect(path: &Path, access: Access) -> Outcome<Connection> {
    let mode = match access {
        Access::ReadWrite => OpenFlags::SQLITE_OPEN_READ_WRITE,
        Access::ReadOnly => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    // Our own mutex guards the connection.
    let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // More than a run uses, so that none of them is compiled twice.
    connection.set_prepared_statement_cache_capacity(64);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.execute_batch("PRAGMA wal_autocheckpoint=0; PRAGMA synchronous=NORMAL;")?;
    Ok(connection)
}

fn header(connection: &Connection) -> Outcome<(u32, i32)> {
    let version = migrate::schema_version(connection)?;
    let application = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    Ok((version, application))
}

/// Makes a database under another name and moves it to `path` when it is whole and on the disk.
/// If somebody else was faster, theirs stays. A kill leaves at most a stray file beside it.
fn create(path: &Path, first: &NewInstance, migrations: &[&str]) -> Outcome<()> {
    let draft = Draft::new(path)?;
    let mut connection = connect(&draft.path, Access::ReadWrite)?;
    // The draft's own log is folded and removed when its only connection is closed.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let tx = connection.transaction()?;
    for sql in migrations {
        tx.execute_batch(sql)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", migrations.len() as u32)?;
    for (key, value) in [("instance", &first.instance), ("node", &first.node)] {
        tx.execute("INSERT INTO meta (key, value) VALUES (?1, ?2)", [key, value])?;
    }
    tx.commit()?;
    connection.close().map_err(|(_, error)| error)?;
    File::open(&draft.path)
        .and_then(|file| file.sync_all())
        .map_err(|source| io_error(SYNC, &draft.path, source))?;
    draft.publish(path)?;
    sync_parent(path)
}

/// Syncs the directory a file is in.
pub(super) fn sync_parent(path: &Path) -> Outcome<()> {
    let parent = parent(path);
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    Ok(synced.map_err(|source| io_error(SYNC, parent, source))?)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// `path` with `suffix` behind its last name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A file that is removed, with SQLite's companions, unless it was published.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn new(path: &Path) -> Outcome<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let draft = beside(path, &format!(".new-{}-{count}", std::process::id()));
            // SQLite gives its companions the mode of the database, so it must be right before.
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft) {
                Ok(_) => return Ok(Self { path: draft }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error("make", &draft, error).into()),
            }
        }
    }

    fn publish(self, path: &Path) -> Outcome<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(Fault::from(io_error("publish", path, error.into()))),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm"] {
            // Not there is the usual case; what cannot be removed is a stray file of no meaning.
            let _ = fs::remove_file(beside(&self.path, suffix));
        }
    }
}

/// SQLite's locks and its memory-mapped log index need a filesystem of this kernel.
fn refuse_remote(path: &Path) -> Result<()> {
    let directory = parent(path);
    let found = rustix::fs::statfs(directory)
        .map_err(|error| io_error("examine the filesystem of", directory, error.into()))?;
    match remote_filesystem(found.f_type as u64 & 0xffff_ffff) {
        None => Ok(()),
        Some(filesystem) => Err(StoreError::NotLocal { path: path.to_owned(), filesystem }),
    }
}

/// The kind of a filesystem where locks or shared mappings may not hold; magics of statfs(2).
fn remote_filesystem(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => "SMB",
        0x6573_5546 => "FUSE",
        0x0102_1997 => "9P",
        0x00c3_6400 => "Ceph",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_filesystems_are_known() {
        assert_eq!(remote_filesystem(0x6969), Some("NFS"));
        assert_eq!(remote_filesystem(0x6573_5546), Some("FUSE"));
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert_eq!(remote_filesystem(local), None);
        }
    }
}
