//! What skep remembers: the [`Store`] trait, SQLite behind it, and PostgreSQL by an address.
//!
//! The engine decides, the keepers act, and the store remembers: which sandboxes exist and in
//! which state, which execs ran and how they ended, what was approved and can be undone, which
//! layers somebody still stands on. Several `skep` processes (command lines and a server) use one
//! store at the same time, without a daemon between them; its transactions are what they agree by.
//!
//! # What it promises
//!
//! - **Intent before effect.** A row is written before the first directory, mount or process is
//!   made, so whatever a crash leaves behind has a row that explains it.
//! - **No lost update.** Every change reads and writes under one lock; a caller that decided on
//!   something it read earlier says so ([`Expect`]) and is refused when it is stale.
//! - **States move along the table.** [`skep_types::TRANSITIONS`] for sandboxes,
//!   [`APPROVAL_MOVES`] for approvals; an end of an exec is recorded once.
//! - **Two durabilities.** Sandbox, exec and event rows survive the death of any process, and cost
//!   no fsync. Approvals are on the disk when the method returns: they are the commit point of a
//!   change to the user's project. How SQLite is made to do both is told in [`SqliteStore`].
//! - **Doubt deletes nothing.** A damaged, foreign, newer, replaced or remote database is a typed
//!   error. Rows carry a checksum, so a flipped bit is an error and not a wrong answer. An older
//!   schema is backed up before it is migrated.
//! - **A failed sync is final.** After a write or sync error the handle takes no more changes; a
//!   second fsync that succeeds would prove nothing about the pages the first one lost.
//!
//! # Example
//!
//! ```
//! use skep_store::{Access, LedgerStore, NewInstance, NewEvent, SqliteStore};
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("skep.db");
//! let first = NewInstance { instance: "q4k2".into(), node: "box-1".into() };
//! let store = SqliteStore::open(&path, Access::ReadWrite, &first)?;
//! assert_eq!(store.meta("instance")?.as_deref(), Some("q4k2"));
//! store.append_events(&[NewEvent {
//!     at: "2026-01-02T03:04:05Z".into(),
//!     kind: "engine.started".into(),
//!     sandbox: None,
//!     exec: None,
//!     data: serde_json::json!({}),
//! }])?;
//! # Ok::<(), skep_store::StoreError>(())
//! ```
//!
//! # What it does not do
//!
//! It decides nothing, reads no clock, no environment and no randomness, never prints, and knows
//! nothing of directories other than the one its database is in. Secrets never come here.
//!
//! Both implementations pass one conformance suite (feature `suite`, module `suite`). PostgreSQL is
//! behind the feature `postgres`: only the binary that may be given an address links it.

mod deferred;
mod error;
#[cfg(feature = "postgres")]
mod postgres;
mod rules;
mod sqlite;
mod store;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
mod value;

pub use deferred::DeferredStore;
pub use error::StoreError;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore};
pub use sqlite::{Access, NewInstance, SqliteStore, is_in_doubt};
pub use store::*;
