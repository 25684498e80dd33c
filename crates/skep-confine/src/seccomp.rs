//! The system call filter, compiled at build time from `resources/seccomp.toml`.
//!
//! One program serves every ABI: x86-64, i386 through a 64-bit kernel, x32 (refused whole) and
//! aarch64. That is why it is assembled here and not by `seccompiler`, which makes a program for
//! one architecture and kills on any other: an i386 program in a sandbox would die, and an ABI left
//! out would be an ABI without a filter. A process of an architecture without a table is killed.
//!
//! What each call answers, and why, is in the data file. Unknown and future calls answer ENOSYS.

use skep_sys::seccomp::{Instruction, set_mode_filter};
use std::io;

include!(concat!(env!("OUT_DIR"), "/seccomp_programs.rs"));

/// Which filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SeccompVariant {
    /// For everything.
    #[default]
    Default,
    /// With ptrace and its kin between the sandbox's own processes.
    Debug,
}

/// The program of a variant.
pub fn program(variant: SeccompVariant) -> &'static [Instruction] {
    match variant {
        SeccompVariant::Default => &DEFAULT,
        SeccompVariant::Debug => &DEBUG,
    }
}

/// Puts the filter on this process and all it starts, for good.
///
/// `no_new_privs` must be set. This comes last before the exec: the filter refuses calls that
/// building the inside needs.
pub fn install(variant: SeccompVariant) -> io::Result<()> {
    set_mode_filter(program(variant))
}
