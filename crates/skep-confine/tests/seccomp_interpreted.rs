//! The filter as the kernel would run it, interpreted for every number of every ABI and compared
//! with what the data file says.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // A test may.

#[path = "../build/policy.rs"]
#[allow(dead_code)]
mod policy;

use policy::{Action, Condition, Decision, Policy, UNKNOWN, Variant};
use proptest::prelude::*;
use skep_confine::seccomp::{self, Machine, SeccompVariant};
use skep_sys::seccomp::Instruction;

const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const AARCH64: u32 = 0xc000_00b7;
/// What runs which: every ABI of every machine.
const ABIS: [(Machine, u32); 3] =
    [(Machine::X86, X86_64), (Machine::X86, I386), (Machine::Arm, AARCH64)];
const X32_BIT: u32 = 0x4000_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

fn policy() -> Policy {
    Policy::parse(include_str!("../../../resources/seccomp.toml")).unwrap()
}

fn names_of(architecture: u32, number: u32) -> Option<&'static str> {
    let number = number as usize;
    let name = match architecture {
        X86_64 => syscalls::x86_64::Sysno::new(number).map(|call| call.name()),
        I386 => syscalls::x86::Sysno::new(number).map(|call| call.name()),
        AARCH64 => syscalls::aarch64::Sysno::new(number).map(|call| call.name()),
        _ => None,
    };
    name.map(|name| name.trim_start_matches("r#"))
}

/// `struct seccomp_data`, as bytes.
fn data(architecture: u32, number: u32, arguments: [u64; 6]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(number.to_le_bytes());
    bytes.extend(architecture.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    arguments.iter().for_each(|argument| bytes.extend(argument.to_le_bytes()));
    bytes
}

/// Classic BPF as described in the kernel's filter documentation; panics on anything the filter
/// has no business to contain. Returns the verdict and how many steps it took.
fn interpret(program: &[Instruction], data: &[u8]) -> (u32, usize) {
    let (mut accumulator, mut position) = (0u32, 0usize);
    for steps in 1.. {
        let step = program[position];
        position += 1;
        let jump = |taken| usize::from(if taken { step.jump_true } else { step.jump_false });
        match step.code {
            0x20 => {
                let at = step.value as usize;
                accumulator = u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
            }
            0x54 => accumulator &= step.value,
            0x05 => position += step.value as usize,
            0x15 => position += jump(accumulator == step.value),
            0x35 => position += jump(accumulator >= step.value),
            0x06 => return (step.value, steps),
            other => panic!("instruction {other:#x}"),
        }
    }
    unreachable!()
}

fn verdict(action: Action) -> u32 {
    match action {
        Action::Allow => 0x7fff_0000,
        Action::Errno(number) => 0x0005_0000 | u32::from(number),
    }
}

fn holds(condition: &Condition, arguments: &[u64; 6]) -> bool {
    let value = arguments[usize::from(condition.argument)] as u32 & condition.mask;
    condition.values.contains(&value) == condition.must_match
}

fn expected(decision: Option<&Decision>, arguments: &[u64; 6]) -> u32 {
    verdict(match decision {
        None => UNKNOWN,
        Some(Decision::Fixed(action)) => *action,
        Some(Decision::Checked { cases, otherwise }) => cases
            .iter()
            .find(|case| case.when.iter().all(|condition| holds(condition, arguments)))
            .map_or(*otherwise, |case| case.action),
    })
}

/// Argument values worth trying on every call: what the rules name, their neighbours, high bits.
fn interesting() -> Vec<u64> {
    let low = [
        0,
        1,
        2,
        3,
        5,
        8,
        10,
        16,
        17,
        28,
        35,
        38,
        40,
        57,
        58,
        62,
        132,
        262,
        0x0001_0000,
        0x0001_0400,
        0x2000,
        0x6000,
        0x61b6,
        0x1000,
        0x5401,
        0x5412,
        0x541c,
        0x541d,
        0x5423,
        0x0002_0000,
        0x1000_0000,
        0x0004_0000,
        0x00e1_0f00,
        0x7fff_ffff,
        0xffff_ffff,
    ];
    low.iter().flat_map(|value| [*value, value | 0xdead_beef_0000_0000]).collect()
}

#[test]
fn every_number_of_every_abi_answers_what_the_data_file_says() {
    let policy = policy();
    let variants =
        [(Variant::Default, SeccompVariant::Default), (Variant::Debug, SeccompVariant::Debug)];
    for (variant, compiled) in variants {
        for (machine, architecture) in ABIS {
            let program = seccomp::program_for(machine, compiled);
            for number in 0..1024 {
                let name = names_of(architecture, number);
                let decision = name.and_then(|name| policy.decide(variant, name));
                let mut tries = vec![[0u64; 6], [u64::MAX; 6]];
                if matches!(decision, Some(Decision::Checked { .. })) {
                    for first in interesting() {
                        for second in [0, 1, 2, 5, 0x5412, 0x2000, 0x61b6, first] {
                            for third in [0, 6, 9, 132, 0x2000, first] {
                                tries.push([first, second, third, 0, 0, 0]);
                            }
                        }
                    }
                }
                for arguments in tries {
                    let (given, _) = interpret(program, &data(architecture, number, arguments));
                    assert_eq!(
                        given,
                        expected(decision, &arguments),
                        "{architecture:#x} {number} {name:?} {arguments:x?} {variant:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_known_call_of_every_abi_is_decided_by_name() {
    let policy = policy();
    for (_, architecture) in ABIS {
        for number in 0..1024 {
            if let Some(name) = names_of(architecture, number) {
                assert!(policy.decide(Variant::Default, name).is_some(), "`{name}` is not listed");
            }
        }
    }
}

#[test]
fn x32_is_refused_whole_and_strange_architectures_are_killed() {
    let program = seccomp::program_for(Machine::X86, SeccompVariant::Debug);
    for number in (0..1024).map(|number| number | X32_BIT).chain([u32::MAX, 1 << 31]) {
        assert_eq!(interpret(program, &data(X86_64, number, [0; 6])).0, verdict(UNKNOWN));
    }
    // 32-bit Arm, MIPS, big-endian PowerPC, none.
    for architecture in [0x4000_0028, 0x8, 0x8000_0015, 0] {
        assert_eq!(interpret(program, &data(architecture, 0, [0; 6])).0, KILL_PROCESS);
    }
}

#[test]
fn what_a_machine_does_not_run_is_killed_there() {
    for (own, architecture) in ABIS {
        for machine in [Machine::X86, Machine::Arm].into_iter().filter(|other| *other != own) {
            for variant in [SeccompVariant::Default, SeccompVariant::Debug] {
                let program = seccomp::program_for(machine, variant);
                for number in 0..1024 {
                    let given = interpret(program, &data(architecture, number, [0; 6])).0;
                    assert_eq!(given, KILL_PROCESS, "{architecture:#x} {number}");
                }
            }
        }
    }
    let own = if cfg!(target_arch = "aarch64") { AARCH64 } else { X86_64 };
    let program = seccomp::program(SeccompVariant::Default);
    assert_ne!(interpret(program, &data(own, 0, [0; 6])).0, KILL_PROCESS);
}

#[test]
fn the_two_variants_differ_in_what_a_debugger_needs_and_nothing_else() {
    let policy = policy();
    let differing: Vec<_> = policy
        .all(Variant::Default)
        .iter()
        .filter(|(name, decision)| policy.decide(Variant::Debug, name) != Some(decision))
        .map(|(name, _)| name.as_str())
        .collect();
    let debugger = [
        "kcmp",
        "pidfd_getfd",
        "process_madvise",
        "process_vm_readv",
        "process_vm_writev",
        "ptrace",
    ];
    assert_eq!(differing, debugger);
}

#[test]
fn the_program_stays_short() {
    for variant in [SeccompVariant::Default, SeccompVariant::Debug] {
        let program = seccomp::program_for(Machine::X86, variant);
        // Each exec has it put on anew: some 0.3 µs an instruction.
        assert!(program.len() < 500, "{} instructions", program.len());
        let longest = (0..1024)
            .map(|number| interpret(program, &data(X86_64, number, [0; 6])).1)
            .max()
            .unwrap();
        assert!(longest < 32, "{longest} steps for one call");
    }
}

proptest! {
    #[test]
    fn high_halves_of_arguments_never_matter(
        number in 0u32..1024,
        low in proptest::array::uniform6(any::<u32>()),
        high in proptest::array::uniform6(any::<u32>()),
    ) {
        let plain = low.map(u64::from);
        let mut dressed = plain;
        dressed.iter_mut().zip(high).for_each(|(value, high)| *value |= u64::from(high) << 32);
        for (machine, architecture) in ABIS {
            let program = seccomp::program_for(machine, SeccompVariant::Default);
            prop_assert_eq!(
                interpret(program, &data(architecture, number, plain)).0,
                interpret(program, &data(architecture, number, dressed)).0
            );
        }
    }
}
