//! From decisions to one program for all ABIs of a machine.
//!
//! The architecture is asked first; each has a balanced tree of comparisons over runs of numbers
//! with the same decision, so that a call costs about eight comparisons. (The kernel also
//! remembers which numbers are always allowed and then skips the program altogether.)

use crate::assembler::{Assembler, Label, Step, Test};
use crate::policy::{Action, Case, Condition, Decision, Policy, UNKNOWN, UNSUPPORTED, Variant};

const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// `BPF_MAXINSNS`: the kernel refuses longer programs.
const LONGEST: usize = 4096;

/// A system call interface: the kernel's audit number of it, and its names by number.
///
/// x32 is not one of them: it shows as x86-64 with bit 30 set in the number, which is above every
/// number of the table and so is answered like any unknown one.
pub struct Abi {
    pub architecture: u32,
    /// Without the `r#` of names that are words of Rust (`break`).
    pub name_of: fn(usize) -> Option<&'static str>,
    pub newest: usize,
}

fn plain(name: &'static str) -> &'static str {
    name.trim_start_matches("r#")
}

/// Every ABI there is a filter for. All are little-endian: the low half of an argument comes first.
const ABIS: [Abi; 3] = [
    Abi {
        architecture: 0xc000_003e,
        name_of: |number| syscalls::x86_64::Sysno::new(number).map(|call| plain(call.name())),
        newest: syscalls::x86_64::Sysno::last().id() as usize,
    },
    Abi {
        architecture: 0x4000_0003,
        name_of: |number| syscalls::x86::Sysno::new(number).map(|call| plain(call.name())),
        newest: syscalls::x86::Sysno::last().id() as usize,
    },
    Abi {
        architecture: 0xc000_00b7,
        name_of: |number| syscalls::aarch64::Sysno::new(number).map(|call| plain(call.name())),
        newest: syscalls::aarch64::Sysno::last().id() as usize,
    },
];

/// Kernels of x86-64 run two kinds of programs.
pub const X86: &[Abi] = ABIS.split_at(2).0;
pub const ARM: &[Abi] = ABIS.split_at(2).1;

/// The whole filter of a variant, for a kernel that has these ABIs. What a kernel does not run needs no rules:
/// it would take longer to put them on.
pub fn compile(policy: &Policy, variant: Variant, abis: &[Abi]) -> Result<Vec<Step>, String> {
    check_names(policy, variant)?;
    let mut assembler = Assembler::default();
    // A process of an architecture we have no table for cannot be judged.
    let mut next = assembler.give(KILL_PROCESS);
    for abi in abis.iter().rev() {
        let runs = runs(policy, variant, abi);
        let tree = tree(&mut assembler, &runs);
        let section = assembler.load(NUMBER, u32::MAX, tree);
        next = assembler.branch(Test::Equal(abi.architecture), section, next);
    }
    let start = assembler.load(ARCHITECTURE, u32::MAX, next);
    let program = assembler.finish(start);
    if program.len() > LONGEST {
        return Err(format!("the filter has {} instructions, more than {LONGEST}", program.len()));
    }
    Ok(program)
}

/// A name that no ABI has is a misspelt decision, that is, none.
fn check_names(policy: &Policy, variant: Variant) -> Result<(), String> {
    let known = |call: &str| {
        ABIS.iter().any(|abi| (0..=abi.newest).any(|number| (abi.name_of)(number) == Some(call)))
    };
    match policy.all(variant).keys().find(|call| !known(call)) {
        None => Ok(()),
        Some(call) => Err(format!("`{call}` is no system call of any ABI")),
    }
}

/// Every call that some arguments get refused with another answer than "this kernel does not have
/// it" or "not on this filesystem": architecture, number, name; sorted.
pub fn noted(policy: &Policy) -> Vec<(u32, u32, &'static str)> {
    let refused = |action: &Action| {
        matches!(action, Action::Errno(_)) && ![UNKNOWN, UNSUPPORTED].contains(action)
    };
    let is_noted = |name: &str| match policy.decide(Variant::Default, name) {
        None => false,
        Some(Decision::Fixed(action)) => refused(action),
        Some(Decision::Checked { cases, otherwise }) => {
            refused(otherwise) || cases.iter().any(|case| refused(&case.action))
        }
    };
    let mut found = Vec::new();
    for abi in &ABIS {
        for number in 0..=abi.newest {
            if let Some(name) = (abi.name_of)(number).filter(|name| is_noted(name)) {
                found.push((abi.architecture, number as u32, name));
            }
        }
    }
    found.sort_unstable();
    found
}

struct Run {
    first: u32,
    decision: Decision,
}

/// Numbers from 0 upwards in runs of one decision; the last run is everything unknown above.
fn runs(policy: &Policy, variant: Variant, abi: &Abi) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for number in 0..=abi.newest + 1 {
        let name = (abi.name_of)(number).filter(|_| number <= abi.newest);
        let decision = name.and_then(|name| policy.decide(variant, name)).cloned();
        let decision = decision.unwrap_or(Decision::Fixed(UNKNOWN));
        if runs.last().is_none_or(|run| run.decision != decision) {
            runs.push(Run { first: number as u32, decision });
        }
    }
    runs
}

fn tree(assembler: &mut Assembler, runs: &[Run]) -> Label {
    match runs {
        [] => give(assembler, UNKNOWN),
        [run] => leaf(assembler, &run.decision),
        _ => {
            let (low, high) = runs.split_at(runs.len() / 2);
            let (low_label, high_label) = (tree(assembler, low), tree(assembler, high));
            assembler.branch(Test::GreaterOrEqual(high[0].first), high_label, low_label)
        }
    }
}

fn give(assembler: &mut Assembler, action: Action) -> Label {
    assembler.give(match action {
        Action::Allow => ALLOW,
        Action::Errno(number) => ERRNO | u32::from(number),
    })
}

fn leaf(assembler: &mut Assembler, decision: &Decision) -> Label {
    match decision {
        Decision::Fixed(action) => give(assembler, *action),
        Decision::Checked { cases, otherwise } => {
            let mut next = give(assembler, *otherwise);
            for case in cases.iter().rev() {
                next = check_case(assembler, case, next);
            }
            next
        }
    }
}

fn check_case(assembler: &mut Assembler, case: &Case, if_not: Label) -> Label {
    let mut then = give(assembler, case.action);
    for condition in case.when.iter().rev() {
        then = check_condition(assembler, condition, then, if_not);
    }
    then
}

fn check_condition(
    assembler: &mut Assembler,
    condition: &Condition,
    if_so: Label,
    if_not: Label,
) -> Label {
    let (on_match, mut next) = if condition.must_match { (if_so, if_not) } else { (if_not, if_so) };
    for value in condition.values.iter().rev() {
        next = assembler.branch(Test::Equal(*value), on_match, next);
    }
    assembler.load(ARGUMENTS + 8 * u32::from(condition.argument), condition.mask, next)
}
