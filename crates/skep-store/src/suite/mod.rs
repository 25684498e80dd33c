//! The conformance suite: what every implementation of [`Store`] must do.
//!
//! ```ignore
//! #[test]
//! fn conforms() {
//!     skep_store::suite::store_suite(|| Box::new(open_an_empty_store()));
//! }
//! ```
//!
//! Panics at the first thing that is not as the contract says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite is test code")]

mod approvals;
mod execs;
mod ledger;
pub mod sample;
mod sandboxes;

use crate::Store;

/// Runs every check, each on a store of its own; `make` gives an empty one each time.
pub fn store_suite(make: impl Fn() -> Box<dyn Store>) {
    for (name, check) in CHECKS {
        // The name of the check is otherwise not in the message of a panic.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&*make())));
        if let Err(panic) = outcome {
            let words = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            panic!("check `{name}` failed: {words}");
        }
    }
}

type Check = fn(&dyn Store);

const CHECKS: &[(&str, Check)] = &[
    ("sandbox round trip", sandboxes::round_trip),
    ("names are unique among the living", sandboxes::unique_names),
    ("find by name, id, prefix", sandboxes::find),
    ("list with filters", sandboxes::list),
    ("newest of a project", sandboxes::newest),
    ("update checks version and state", sandboxes::update),
    ("a claimed one is the newest", sandboxes::claim),
    ("hostile texts are only texts", sandboxes::hostile_texts),
    ("scope locks", sandboxes::scope_locks),
    ("leases fence", sandboxes::leases),
    ("purge", sandboxes::purge),
    ("a forgotten sandbox was never there", sandboxes::forget),
    ("what is outdated is counted", sandboxes::outdated),
    ("no lost update", sandboxes::no_lost_update),
    ("one winner of a name", sandboxes::name_race),
    ("exec life", execs::life),
    ("first end of an exec wins", execs::first_end_wins),
    ("execs move with their sandbox", execs::with_their_sandbox),
    ("execs are taken in once", execs::taken_in_once),
    ("approval moves", approvals::moves),
    ("approval history", approvals::history),
    ("a refused approval is forgotten", approvals::refused),
    ("undo settles both", approvals::undo),
    ("undo retention", approvals::retention),
    ("snapshots and templates hold layers", ledger::layers),
    ("rejections", ledger::rejections),
    ("events", ledger::events),
    ("a refused change leaves no event", ledger::events_are_in_the_transaction),
    ("idempotency keys", ledger::keys),
    ("facts", ledger::facts),
    ("care", ledger::care),
];
