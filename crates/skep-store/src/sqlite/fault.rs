//! From what SQLite says to what a caller can act on.

use super::open::beside;
use crate::StoreError;
use rusqlite::ErrorCode;
use rusqlite::ffi;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The operation of an [`StoreError::Io`] after which a file's content is unknown.
pub(super) const SYNC: &str = "sync";

/// An error inside a transaction, before it is known which operation and file it belongs to.
pub(super) enum Fault {
    Store(StoreError),
    Sqlite(rusqlite::Error),
}

/// The result of a step inside a transaction.
pub(super) type Outcome<T> = Result<T, Fault>;

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Fault {
    /// Whether bytes that were handed to the disk may be lost: then nothing that follows can be
    /// trusted, and a later success of the same call would prove nothing.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Store(error) => matches!(error, StoreError::Io { operation: SYNC, .. }),
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => {
                matches!(error.extended_code, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
            }
            Self::Sqlite(_) => false,
        }
    }

    pub(super) fn into_error(self, operation: &'static str, path: &Path) -> StoreError {
        let error = match self {
            Self::Store(error) => return error,
            Self::Sqlite(error) => error,
        };
        let path = path.to_owned();
        match &error {
            rusqlite::Error::SqliteFailure(failure, message) => match failure.code {
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt {
                    path,
                    detail: message.clone().unwrap_or_else(|| failure.to_string()),
                },
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed => StoreError::Busy { operation, path },
                ErrorCode::DiskFull => StoreError::Full { operation, path },
                // A quota, no inodes, or no room for the index of the log come as one of these.
                ErrorCode::SystemIoFailure | ErrorCode::CannotOpen if no_room(&path) => {
                    StoreError::Full { operation, path }
                }
                ErrorCode::ReadOnly if failure.extended_code == ffi::SQLITE_READONLY_DBMOVED => {
                    StoreError::Replaced { path }
                }
                ErrorCode::ReadOnly => StoreError::ReadOnly { operation, path },
                _ => StoreError::Backend { operation, path, source: Box::new(error) },
            },
            // A column of another type than the schema says: the bytes of the row are not ours.
            rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::Utf8Error(..) => {
                StoreError::Corrupt { path, detail: error.to_string() }
            }
            _ => StoreError::Backend { operation, path, source: Box::new(error) },
        }
    }
}

/// Asks the filesystem itself, because SQLite keeps the errno to itself: is there room for a small
/// new file beside the database?
fn no_room(path: &Path) -> bool {
    let probe = beside(path, &format!(".probe-{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&probe)
        .and_then(|mut file| file.write_all(&[1; 65_536]));
    // Left behind it would be a stray file; it is a few bytes of no meaning.
    let _ = fs::remove_file(&probe);
    written.is_err_and(|error| is_no_space(&error))
}

/// Whether an error of a file operation means that space, quota or inodes ran out.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
