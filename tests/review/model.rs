//! What should happen, written a second time and in another way: a file is a row of slots between
//! lines that never change, so that every edit is one hunk and every merge can be told by looking.

use super::desk::Random;
use std::collections::BTreeMap;

/// Slots in a file, and fixed lines between two of them: more than two hunks' context.
const SLOTS: usize = 5;
const BETWEEN: usize = 9;

/// What stands in a slot: some lines, each naming who wrote them.
pub(super) type Slot = Vec<String>;

/// One side's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) slots: Vec<Slot>,
    pub(super) executable: bool,
}

impl Text {
    fn random(random: &mut Random, who: &str) -> Self {
        Self { slots: (0..SLOTS).map(|at| slot(random, who, at)).collect(), executable: false }
    }

    /// Its bytes. The path is in every line: no file is taken for another one renamed.
    pub(super) fn bytes(&self, path: &str) -> Vec<u8> {
        let mut text = String::new();
        for (at, slot) in self.slots.iter().enumerate() {
            (0..BETWEEN).for_each(|line| text += &format!("{path} fixed {at}.{line}\n"));
            slot.iter().for_each(|line| text += &format!("{path} {line}\n"));
        }
        (0..BETWEEN).for_each(|line| text += &format!("{path} fixed end.{line}\n"));
        text.into_bytes()
    }

    pub(super) fn mode(&self) -> u32 {
        if self.executable { 0o755 } else { 0o644 }
    }
}

/// Up to three lines that nobody else writes. `«N»` is the number of the slot.
fn slot(random: &mut Random, who: &str, at: usize) -> Slot {
    let salt = random.below(1_000_000_000);
    let lines = 1 + random.below(3);
    (0..lines).map(|line| format!("{who} «{at}» {salt}.{line}")).collect()
}

/// One file on three sides; `None` is no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) base: Option<Text>,
    pub(super) sandbox: Option<Text>,
    pub(super) project: Option<Text>,
    /// Whether the sandbox wrote to it. Until then it shows the project's file, whatever that is.
    pub(super) touched: bool,
    /// Whether the user wrote to it before the sandbox did. What stood there at create is not known
    /// then; `diff_6_a_host_edit_before_the_stale_write_is_not_reverted` is about that.
    pub(super) users: bool,
    /// Whether its removal was approved, and nothing was put there since.
    gone: bool,
    /// Whether the sandbox removed a file of its own where the user has one that it never had: then there is a mark
    /// that nothing is there, and nothing tells whose was meant.
    hides: bool,
}

/// What the review says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    Nothing,
    Change,
    Conflict,
}

impl File {
    pub(super) fn new(random: &mut Random) -> Self {
        let base = (!random.chance(5)).then(|| Text::random(random, "base"));
        let (sandbox, project) = (base.clone(), base.clone());
        Self { base, sandbox, project, touched: false, users: false, gone: false, hides: false }
    }

    /// Both hands came to the same. It is nobody's change now; whether the base has moved along shows
    /// only when one of them goes on, and either answer keeps everything. The model stays out of it.
    fn converged(&self) -> bool {
        self.sandbox == self.project && self.sandbox != self.base
    }

    /// The agent works on it, unless it is the user's.
    pub(super) fn agent(&mut self, random: &mut Random) {
        if !self.users && !self.converged() {
            let before = self.sandbox.clone();
            Self::edit(random, &mut self.sandbox, "agent");
            self.touched |= self.sandbox != before;
            let removed = before.is_some() && self.sandbox.is_none();
            self.hides |= removed && self.base.is_none() && self.project.is_some() && !self.gone;
            self.hides &= self.sandbox.is_none();
        }
    }

    /// The user works on it.
    pub(super) fn user(&mut self, random: &mut Random) {
        if self.converged() {
            return;
        }
        Self::edit(random, &mut self.project, "user");
        if !self.touched {
            self.users = true;
            self.base.clone_from(&self.project);
            self.sandbox.clone_from(&self.project);
        }
    }

    /// A hand at work on one side.
    fn edit(random: &mut Random, side: &mut Option<Text>, who: &str) {
        match side {
            None => *side = Some(Text::random(random, who)),
            Some(_) if random.chance(8) => *side = None,
            Some(text) => {
                for at in 0..SLOTS {
                    if random.chance(3) {
                        text.slots[at] = slot(random, who, at);
                    }
                }
                text.executable ^= random.chance(6);
            }
        }
    }

    /// The slots in which the sandbox's work differs from the base.
    pub(super) fn pending(&self) -> Vec<usize> {
        match (&self.base, &self.sandbox) {
            (Some(base), Some(sandbox)) => {
                (0..SLOTS).filter(|at| base.slots[*at] != sandbox.slots[*at]).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn says(&self) -> Says {
        if self.hides && self.project.is_some() {
            return Says::Conflict;
        }
        if self.sandbox == self.base || self.sandbox == self.project {
            return Says::Nothing;
        }
        if self.project == self.base {
            return Says::Change;
        }
        match (&self.base, &self.sandbox, &self.project) {
            (Some(base), Some(sandbox), Some(project)) => {
                let collide = |at: &usize| {
                    let here = &project.slots[*at];
                    *here != base.slots[*at] && *here != sandbox.slots[*at]
                };
                let conflict = self.pending().iter().any(collide);
                // Executable or not: two values cannot collide.
                if conflict { Says::Conflict } else { Says::Change }
            }
            _ => Says::Conflict,
        }
    }

    /// Some hunks are taken over; `None` means the whole file.
    pub(super) fn approve(&mut self, hunks: Option<&[usize]>) {
        let (base, project) = (&mut self.base, &mut self.project);
        match (&self.sandbox, base, project) {
            (Some(sandbox), Some(base), Some(project)) => {
                let all = (0..SLOTS).collect::<Vec<_>>();
                let whole = hunks.is_none();
                for at in hunks.unwrap_or(&all) {
                    if base.slots[*at] != sandbox.slots[*at] {
                        project.slots[*at] = sandbox.slots[*at].clone();
                    }
                    base.slots[*at] = sandbox.slots[*at].clone();
                }
                if whole {
                    if base.executable != sandbox.executable {
                        project.executable = sandbox.executable;
                    }
                    base.executable = sandbox.executable;
                }
            }
            (sandbox, base, project) => {
                project.clone_from(sandbox);
                base.clone_from(sandbox);
                self.gone = sandbox.is_none();
            }
        }
    }

    /// Some hunks are dropped.
    pub(super) fn reject(&mut self, hunks: &[usize]) {
        if let (Some(base), Some(sandbox)) = (&self.base, &mut self.sandbox) {
            for at in hunks {
                sandbox.slots[*at] = base.slots[*at].clone();
            }
        }
    }
}

impl File {
    /// The sandbox's work is dropped: it has what the project has now, and starts from there.
    pub(super) fn drop_all(&mut self) {
        self.sandbox.clone_from(&self.project);
        self.base.clone_from(&self.project);
    }
}

/// All files by path.
pub(super) type World = BTreeMap<String, File>;
