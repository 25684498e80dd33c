//! Black-box tests: the real binary, asked from outside, as root and as an ordinary user.
//!
//! Whatever is claimed of a sandbox is found out here by means that are not skep's: `/proc`, the
//! kernel's mount table, cgroup directories, plain copies of a tree. `harness/mod.rs` says how.

// Helper functions of tests are tests too, though clippy cannot know it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs)]

mod docker;
mod egress;
mod foundation;
mod guest;
mod harness;
mod isolation;
mod microvm;
mod providers;
mod review;
mod server;
mod upkeep;
