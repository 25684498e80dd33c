//! The system call filter, compiled at build time from `resources/seccomp.toml`.
//!
//! One program serves every ABI that the kernel of a machine has: x86-64, i386 through a 64-bit kernel
//! and x32 (refused whole), or aarch64. That is why it is assembled here and not by `seccompiler`, which
//! makes a program for one architecture and kills on any other: an i386 program in a sandbox would die,
//! and an ABI left out would be an ABI without a filter. A process of an architecture without a table is
//! killed.
//!
//! What each call answers, and why, is in the data file. Unknown and future calls answer ENOSYS.

use rustix::fd::OwnedFd;
use skep_sys::seccomp::{Instruction, Waiting, set_mode_filter, set_mode_filter_listening};
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

/// What a kernel was built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// Runs x86-64 and i386.
    X86,
    /// Runs aarch64. Programs for 32 bits have no table, and are killed.
    Arm,
}

/// This one.
const OWN: Machine = if cfg!(target_arch = "aarch64") { Machine::Arm } else { Machine::X86 };

/// The program of a variant, for this machine.
pub fn program(variant: SeccompVariant) -> &'static [Instruction] {
    program_for(OWN, variant)
}

/// The same for any.
pub fn program_for(machine: Machine, variant: SeccompVariant) -> &'static [Instruction] {
    match (machine, variant) {
        (Machine::X86, SeccompVariant::Default) => &X86_DEFAULT,
        (Machine::X86, SeccompVariant::Debug) => &X86_DEBUG,
        (Machine::Arm, SeccompVariant::Default) => &ARM_DEFAULT,
        (Machine::Arm, SeccompVariant::Debug) => &ARM_DEBUG,
    }
}

/// Puts the filter on this process and all it starts, for good.
///
/// `no_new_privs` must be set. This comes last before the exec: the filter refuses calls that
/// building the inside needs.
pub fn install(variant: SeccompVariant) -> io::Result<()> {
    set_mode_filter(program(variant))
}

/// What the kernel answers when a call is handed to the listener of its filter.
const RETURN: u16 = 0x06;
const ACTION: u32 = 0xffff_0000;
const ERRNO: u32 = 0x0005_0000;
const USER_NOTIFICATION: u32 = 0x7fc0_0000;
/// "This kernel does not have it": programs try and fall back, some of them all the time.
const NOT_THERE: u32 = 38;
/// "Not on this filesystem": the same.
const UNSUPPORTED: u32 = 95;

/// Whether nobody is told of a refusal with this number.
fn is_quiet(errno: u32) -> bool {
    matches!(errno, NOT_THERE | UNSUPPORTED)
}

/// The same filter, but for refused calls being handed to a listener, who refuses them and keeps
/// count. Allowed calls, and those that answer ENOSYS or EOPNOTSUPP, never get there.
///
/// It refuses no less than the plain one. A listener cannot be added inside (the filter refuses
/// that), ours knows no other answer than [`NotingFilter::errno`], and with ours gone the kernel
/// answers ENOSYS.
#[derive(Debug)]
pub struct NotingFilter {
    plain: &'static [Instruction],
    noting: Vec<Instruction>,
}

impl NotingFilter {
    /// Of a variant; `None` where the kernel has no listeners.
    pub fn prepare(variant: SeccompVariant) -> Option<Self> {
        let plain = program(variant);
        let hand_over = |step: &Instruction| match *step {
            Instruction { code: RETURN, value, .. }
                if value & ACTION == ERRNO && !is_quiet(value & !ACTION) =>
            {
                Instruction { value: USER_NOTIFICATION, ..*step }
            }
            other => other,
        };
        skep_sys::seccomp::listening_is_supported()
            .then(|| Self { plain, noting: plain.iter().map(hand_over).collect() })
    }

    /// Puts it on this process and all it starts, for good. What is returned has to be watched:
    /// refused calls wait until they are answered.
    pub fn install(&self) -> io::Result<OwnedFd> {
        set_mode_filter_listening(&self.noting)
    }

    /// What is put on.
    pub fn program(&self) -> &[Instruction] {
        &self.noting
    }

    /// What a call that was handed over is refused with.
    pub fn errno(&self, call: &Waiting) -> i32 {
        errno_of(self.plain, call)
    }
}

/// Never a number that would mean success, and never "let it through".
fn errno_of(program: &[Instruction], call: &Waiting) -> i32 {
    match verdict(program, call) {
        Some(verdict) if verdict & ACTION == ERRNO && verdict & !ACTION != 0 => {
            (verdict & !ACTION) as i32
        }
        _ => NOT_THERE as i32,
    }
}

/// The name of a call that the filter refuses.
pub fn name_of_refused(call: &Waiting) -> &'static str {
    let found =
        NOTED.binary_search_by_key(&(call.architecture, call.number), |entry| (entry.0, entry.1));
    found.map_or("unknown", |index| NOTED[index].2)
}

/// Runs a filter as the kernel would: classic BPF, of which filters here use six instructions.
/// `None` for a program that is none of ours.
pub fn verdict(program: &[Instruction], call: &Waiting) -> Option<u32> {
    let word = |offset: u32| -> Option<u32> {
        Some(match offset {
            0 => call.number,
            4 => call.architecture,
            16..64 if offset.is_multiple_of(4) => {
                let argument = call.arguments[(offset as usize - 16) / 8];
                if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
            }
            _ => return None,
        })
    };
    let (mut accumulator, mut position) = (0u32, 0usize);
    loop {
        let step = program.get(position)?;
        position += 1;
        let jump = |taken| usize::from(if taken { step.jump_true } else { step.jump_false });
        match step.code {
            0x20 => accumulator = word(step.value)?,
            0x54 => accumulator &= step.value,
            0x05 => position += step.value as usize,
            0x15 => position += jump(accumulator == step.value),
            0x35 => position += jump(accumulator >= step.value),
            RETURN => return Some(step.value),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u32, arguments: [u64; 6]) -> Waiting {
        Waiting { id: 1, number, architecture: 0xc000_003e, arguments }
    }

    #[test]
    fn the_noting_filter_hands_over_what_the_plain_one_refuses_and_allows_nothing_more() {
        for variant in [SeccompVariant::Default, SeccompVariant::Debug] {
            let noting = NotingFilter::prepare(variant).unwrap();
            for number in 0..1024 {
                for architecture in [0xc000_003e, 0x4000_0003, 0xc000_00b7] {
                    for first in [0, 1, 2, 16, 0x2000, 0x1000_0000] {
                        let arguments = [first, first, first, 0, 0, 0];
                        let call = Waiting { id: 0, number, architecture, arguments };
                        let plain = verdict(noting.plain, &call).unwrap();
                        let refused = plain & ACTION == ERRNO && !is_quiet(plain & !ACTION);
                        let wanted = if refused { USER_NOTIFICATION } else { plain };
                        assert_eq!(verdict(&noting.noting, &call), Some(wanted), "{call:?}");
                        if refused {
                            assert_eq!(noting.errno(&call), (plain & !ACTION) as i32);
                            let named = name_of_refused(&call) != "unknown";
                            assert!(named || variant == SeccompVariant::Debug, "{call:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_allowed_is_still_refused_if_it_ever_comes_to_a_listener() {
        let noting = NotingFilter::prepare(SeccompVariant::Default).unwrap();
        let read = call(0, [0; 6]);
        assert_eq!(verdict(noting.plain, &read), Some(0x7fff_0000));
        assert_eq!(noting.errno(&read), 38);
        let mount = call(165, [0; 6]);
        assert_eq!((noting.errno(&mount), name_of_refused(&mount)), (1, "mount"));
    }

    #[test]
    fn a_listener_inside_is_refused_by_the_kernel_itself() {
        let noting = NotingFilter::prepare(SeccompVariant::Default).unwrap();
        let listener = call(317, [1, 8, 0, 0, 0, 0]);
        assert_eq!(verdict(&noting.noting, &listener), Some(ERRNO | NOT_THERE));
        let plain = call(317, [1, 1, 0, 0, 0, 0]);
        assert_eq!(verdict(&noting.noting, &plain), Some(0x7fff_0000));
    }
}
