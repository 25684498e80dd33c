//! The review: what is shown is what is taken over, and nothing of anybody's is lost on the way.

mod desk;
mod digest;
mod drift;
mod hunks;
mod rebase;
