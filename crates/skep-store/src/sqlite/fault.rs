//! From what SQLite says to what a caller can act on.

use crate::StoreError;
use rusqlite::ErrorCode;
use rusqlite::ffi;
use std::path::Path;

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
        let Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) = self else { return false };
        matches!(
            error.extended_code,
            ffi::SQLITE_IOERR_FSYNC
                | ffi::SQLITE_IOERR_DIR_FSYNC
                | ffi::SQLITE_IOERR_WRITE
                | ffi::SQLITE_IOERR_TRUNCATE
        )
    }

    pub(super) fn into_error(self, operation: &'static str, path: &Path) -> StoreError {
        let error = match self {
            Self::Store(error) => return error,
            Self::Sqlite(error) => error,
        };
        let path = path.to_owned();
        // The log's index is a sparse file that is filled block by block: no space for it is
        // reported as one of these, and not as "disk full".
        let no_space = [ffi::SQLITE_IOERR_SHMSIZE, ffi::SQLITE_IOERR_SHMMAP];
        match &error {
            rusqlite::Error::SqliteFailure(failure, _)
                if no_space.contains(&failure.extended_code) =>
            {
                StoreError::Full { operation, path }
            }
            rusqlite::Error::SqliteFailure(failure, message) => match failure.code {
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt {
                    path,
                    detail: message.clone().unwrap_or_else(|| failure.to_string()),
                },
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed => StoreError::Busy { operation, path },
                ErrorCode::DiskFull => StoreError::Full { operation, path },
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
