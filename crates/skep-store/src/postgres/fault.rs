//! From what PostgreSQL says, or does not say, to what a caller can act on.

use crate::StoreError;
use std::io;
use std::path::Path;
use tokio_postgres::error::SqlState;

/// An error inside a transaction, before it is known which operation it belongs to.
#[derive(Debug)]
pub(super) enum Fault {
    Store(StoreError),
    Database(tokio_postgres::Error),
    /// No answer within the patience.
    Stalled,
    Io(io::Error),
}

/// The result of a step inside a transaction.
pub(super) type Outcome<T> = Result<T, Fault>;

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl Fault {
    /// Whether the answer to the last request is unknown because the connection is.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Stalled | Self::Io(_) => true,
            Self::Store(_) => false,
            Self::Database(error) => match error.code() {
                // Shut down, crashed, or ended because the client stood still.
                Some(code) => {
                    code.code().starts_with("57P")
                        || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
                }
                // Not an answer of the server at all.
                None => true,
            },
        }
    }

    pub(super) fn into_error(self, operation: &'static str, path: &Path) -> StoreError {
        let path = path.to_owned();
        let lost = self.is_lost();
        let source: Box<dyn std::error::Error + Send + Sync> = match self {
            Self::Store(error) => return error,
            Self::Stalled => "no answer came in time".into(),
            Self::Io(error) => Box::new(error),
            Self::Database(error) => {
                if let Some(known) = error.code().and_then(|code| known(code, operation, &path)) {
                    return known;
                }
                Box::new(error)
            }
        };
        if lost {
            StoreError::Unreachable { operation, path, source }
        } else {
            StoreError::Backend { operation, path, source }
        }
    }
}

/// Codes of PostgreSQL's appendix A that callers can do something about.
fn known(code: &SqlState, operation: &'static str, path: &Path) -> Option<StoreError> {
    let path = path.to_owned();
    let busy = [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::TOO_MANY_CONNECTIONS,
    ];
    let full = [SqlState::DISK_FULL, SqlState::OUT_OF_MEMORY, SqlState::INSUFFICIENT_RESOURCES];
    let damaged = [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED];
    if busy.contains(code) {
        return Some(StoreError::Busy { operation, path });
    }
    if full.contains(code) {
        return Some(StoreError::Full { operation, path });
    }
    if damaged.contains(code) {
        let detail = format!("the server answered with code {}", code.code());
        return Some(StoreError::Corrupt { path, detail });
    }
    (*code == SqlState::READ_ONLY_SQL_TRANSACTION)
        .then_some(StoreError::ReadOnly { operation, path })
}
