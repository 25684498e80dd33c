//! The copy-on-write workspace: change sets, hunks, merges, and the journaled apply.

pub mod apply;
mod base;
mod derive;
mod error;
mod hunks;
mod markers;
mod merge;
mod plan;
mod spec;
pub mod tree;
mod union;

pub use base::capture::{CaptureSummary, capture, remember_copy};
pub use base::memory::{Partial, Settled};
pub use base::now;
pub use derive::{Derived, derive};
pub use error::{DeriveError, PlanError};
pub use hunks::{HunkMismatch, TextDiff, apply_hunks, diff_lines, is_binary};
pub use merge::{Merged, merge_text};
pub use plan::{
    Plan, Rebased, SettledPath, Settlement, Side, Sides, ViewWrite, plan, rebase, reject, settle,
    three_sides, unsettle,
};
pub use spec::{DeriveOptions, WorkspaceSpec};
