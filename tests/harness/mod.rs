//! What black-box tests stand on.
//!
//! - [`for_both`] runs a test as root and as an ordinary user, each in a [`Lab`] of its own: a
//!   scratch directory with a project, a state directory, a home full of canaries and a copy of the
//!   binary. The half that cannot run here is skipped aloud, or fails with `SKEP_TEST_STRICT=1`.
//! - [`Lab::skep`] prepares a call of the binary; [`Call::run`] runs it under a deadline and gives
//!   a [`Ran`] to assert on.
//! - [`Tree`] is a directory read by plain means: the oracle for projects and homes.
//! - [`outside`] asks the kernel what is left of a lab: processes, mounts, cgroups.
//! - [`Lab::audit`] removes every sandbox and asserts that nothing is left. [`for_both`] calls it.
//! - [`wait_for`] waits for a condition; tests do not sleep.
//! - [`attack`] compiles `tests/attack/NAME.c` once per run.
//!
//! Others extend the harness by adding files.
#![allow(dead_code, unused_imports)]

pub(crate) mod attack;
mod call;
mod canary;
mod docker;
mod fuse;
mod guest;
mod held;
mod hosted;
mod kinds;
mod lab;
mod nft;
pub(crate) mod outside;
pub(crate) mod postgres;
mod server;
mod skip;
mod sweep;
mod terminal;
mod tree;
mod wait;
mod who;

pub(crate) use call::{Call, Ran};
pub(crate) use canary::Canary;
pub(crate) use docker::Docker;
pub(crate) use guest::{Disk, Guest};
pub(crate) use held::Held;
pub(crate) use hosted::noticed;
pub(crate) use kinds::{EVERY_KIND, plant_every_kind};
pub(crate) use lab::{Lab, entries, for_both, for_each};
pub(crate) use nft::WITHOUT_NFT;
pub(crate) use server::{Reply, Server, TOKEN};
pub(crate) use skip::{long, skip, soak};
pub(crate) use sweep::{Fault, Sweep, plan};
pub(crate) use terminal::Terminal;
pub(crate) use tree::{Kind, Node, Tree};
pub(crate) use wait::{wait_for, wait_for_empty};
pub(crate) use who::{Who, running_as_root};
