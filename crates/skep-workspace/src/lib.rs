//! The copy-on-write workspace: change sets, hunks, merges, and the journaled apply.
//!
//! A sandbox looks at the user's *project* through a stack: its own writable *upper*, frozen
//! *layers* below it, and the project at the bottom, read-only. This crate is the host's side of
//! that stack. It answers what the sandbox changed, and takes approved changes over.
//!
//! # Review
//!
//! [`derive()`] reads the upper and the layers (never the whole project) and compares three states of
//! every path they speak of:
//!
//! - the *sandbox's*: what the view shows, with the overlay's marks understood;
//! - the *base's*: what the project was at create. It was not copied. It is what stands in the
//!   project as long as change times prove that it is old; else what [`capture`] put aside while
//!   that was still so; else what an approval settled. See the module `base`;
//! - the *project's*: what stands there now, for the user goes on working.
//!
//! Where only the sandbox moved there is a change; where both moved, a three-way merge or a
//! conflict. A base that cannot be told is a conflict, never a guess.
//!
//! [`plan`] turns a selection of a change set into [`apply::Target`]s and a [`Settlement`];
//! [`apply`] carries the targets out; [`settle`] then moves the bases, so that what was approved is
//! no change any more, and [`unsettle`] goes back after an undo. [`reject`] and [`rebase`] give
//! [`ViewWrite`]s instead, which the keeper writes through the mounted view: the upper of a mounted
//! overlay is never touched from outside. The bases that come with them ([`settle_taken_in`]) are of that
//! state of the sandbox; who goes back to an earlier one goes back to its bases ([`rewind`]).
//!
//! ```no_run
//! # fn review(spec: &skep_workspace::WorkspaceSpec) -> Result<(), Box<dyn std::error::Error>> {
//! use skep_workspace::{DeriveOptions, derive, plan};
//! let derived = derive(spec, &DeriveOptions::default())?;
//! let plan = plan(spec, &derived, &skep_types::Selection::default())?;
//! assert!(plan.targets.iter().all(|target| target.before != target.after));
//! # Ok(())
//! # }
//! ```
//!
//! # What it leans on
//!
//! - Everything in an upper or a layer was written by somebody who may be hostile. It is reached
//!   only below a pinned directory ([`tree::TreeRoot`]); FIFOs, devices and sockets are never opened.
//! - Nothing writes to the workspace while a change set is derived: the caller freezes it.
//! - No program is run on what is found there: no `git`, no `diff`, no `patch`.
//!
//! # What it does not do
//!
//! It mounts nothing, decides nothing about risk or policy, and knows no sandbox by name. A file
//! that cannot be read is an error that names it, never "unchanged".

pub mod apply;
pub mod base;
mod derive;
mod error;
mod git;
pub mod glance;
pub mod held;
mod holes;
mod hunk_ids;
mod hunks;
mod markers;
mod merge;
mod plan;
pub mod remembered;
mod spec;
pub mod tree;
mod union;
mod view;
mod watch;

pub use base::capture::{Captor, CaptureSummary, Insiders, capture, remember_copy};
pub use base::memory::{Partial, Settled, Step, Stretch};
pub use base::moment::{NewMoment, moment};
pub use base::names::NamesPass;
pub use base::rewind::{is_behind, reach, rewind};
pub use base::tracked::{Pass, TrackedPass};
pub use base::{beginning, clock_ns, now, wait_past, wait_past_by};
pub use derive::{Derived, derive};
pub use error::{DeriveError, PlanError};
pub use git::isolated;
pub use hunks::{HunkMismatch, TextDiff, apply_hunks, diff_lines, is_binary};
pub use merge::{Merged, merge_text};
pub use plan::{
    Company, Plan, PutOff, Rebased, Rejected, SettledPath, Settlement, Side, Sides, ViewWrite,
    plan, plan_leaving, rebase, reject, settle, settle_again, settle_taken_in, settled_here,
    three_sides, unsettle,
};
pub use spec::{DeriveOptions, WorkspaceSpec};
pub use union::LONGEST_PATH;
pub use view::View;
pub use watch::{Noticed, NoticedKind, Watch};
