//! Safe wrappers around the system calls skep needs, named after them.
//!
//! This is the only crate of the workspace with `unsafe` in it. Most calls come from `rustix`,
//! which wraps them already; what stands here is the rest: `clone3`, `execve`, `wait4` with usage,
//! `close_range`, `mount_setattr`, `signalfd`, `ptrace`, Landlock, seccomp and capabilities. Each block does one thing
//! and says why it may.
//!
//! Two habits. Descriptors and processes are values with owners: a function takes a
//! `BorrowedFd` or returns an `OwnedFd`, never a number. And whatever forks without an exec
//! first makes sure that it is alone in its process ([`process::is_single_threaded`]), because a
//! lock held by a thread that does not exist in the child is never released. What becomes another program at once
//! does without a copy of our memory: [`newborn`].
//!
//! ```
//! use skep_sys::process::{Namespaces, clone_with, wait_for};
//! # if skep_sys::process::is_single_threaded().unwrap() {
//! let child = clone_with(Namespaces::NONE, || 7).unwrap();
//! assert_eq!(wait_for(&child).unwrap(), 7);
//! # }
//! ```
//!
//! [`failpoint`] is here too, although it calls nothing of the kernel: everything above may need
//! to be made to fail.

#[macro_use]
mod flags;

pub mod failpoint;
pub mod file_ids;
pub mod from_inside;
pub mod keyring;
pub mod landlock;
pub mod memory;
pub mod message;
pub mod mount;
pub mod names;
pub mod network;
pub mod newborn;
pub mod peek;
pub mod privileges;
pub mod process;
pub mod processors;
pub mod program;
pub mod quota;
pub mod raw;
pub mod route;
pub mod seccomp;
pub mod signal;
pub mod socket_diag;
pub mod stdio;
pub mod subordinate;
pub mod trace;
pub mod tun;
