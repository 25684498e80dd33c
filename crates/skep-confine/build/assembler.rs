//! A small assembler for classic BPF, back to front.
//!
//! Jumps only go forward in classic BPF. Writing the last instruction first means that every
//! target is already placed when a jump to it is written, so distances are known at once and a
//! jump too far for its eight bits gets a stepping stone in front of it.

/// `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub value: u32,
}

// Codes from the kernel's `linux/bpf_common.h`, written out as class | size or source | operation.
const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Leaves room for the two stepping stones one jump may need.
const REACH: usize = 250;

/// A placed instruction: how many were written before it, that is, come after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// What a conditional jump asks of the accumulator.
#[derive(Debug, Clone, Copy)]
pub enum Test {
    Equal(u32),
    GreaterOrEqual(u32),
}

/// A program being written from its end.
#[derive(Debug, Default)]
pub struct Assembler {
    reversed: Vec<Step>,
    returns: Vec<(u32, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u16, jump_true: u8, jump_false: u8, value: u32) -> Label {
        self.reversed.push(Step { code, jump_true, jump_false, value });
        Label(self.reversed.len() - 1)
    }

    /// Instructions to skip from the one written next to reach `target`.
    fn distance(&self, target: Label) -> usize {
        self.reversed.len() - target.0 - 1
    }

    fn within_reach(&mut self, target: Label) -> Label {
        let distance = self.distance(target);
        if distance < REACH { target } else { self.push(JUMP_ALWAYS, 0, 0, distance as u32) }
    }

    /// An instruction that ends the program with `value`; one nearby is shared.
    pub fn give(&mut self, value: u32) -> Label {
        let near = self.returns.iter().rev().find(|(known, _)| *known == value).copied();
        match near {
            Some((_, label)) if self.distance(label) < REACH => label,
            _ => {
                let label = self.push(RETURN, 0, 0, value);
                self.returns.push((value, label));
                label
            }
        }
    }

    /// A two-way branch.
    pub fn branch(&mut self, test: Test, if_true: Label, if_false: Label) -> Label {
        let if_true = self.within_reach(if_true);
        let if_false = self.within_reach(if_false);
        let (code, value) = match test {
            Test::Equal(value) => (JUMP_EQUAL, value),
            Test::GreaterOrEqual(value) => (JUMP_GREATER_OR_EQUAL, value),
        };
        let (jump_true, jump_false) = (self.distance(if_true) as u8, self.distance(if_false) as u8);
        self.push(code, jump_true, jump_false, value)
    }

    /// Loads a word of `struct seccomp_data`, masks it, and goes on to `next`.
    pub fn load(&mut self, offset: u32, mask: u32, next: Label) -> Label {
        if self.distance(next) != 0 {
            let distance = self.distance(next) as u32;
            self.push(JUMP_ALWAYS, 0, 0, distance);
        }
        if mask != u32::MAX {
            self.push(AND, 0, 0, mask);
        }
        self.push(LOAD_WORD, 0, 0, offset)
    }

    /// The program, first instruction first.
    pub fn finish(mut self, start: Label) -> Vec<Step> {
        self.reversed.truncate(start.0 + 1);
        self.reversed.reverse();
        self.reversed
    }
}
