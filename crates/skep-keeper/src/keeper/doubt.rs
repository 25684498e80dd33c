//! Whose the room is that is gone, where somebody inside may hide files.
//!
//! The filesystem says how much is gone and not who took it. Nobody shall be ended for what others write,
//! and nobody shall write without a limit because it cannot be seen. So, while everyone inside is held:
//!
//! 1. Who goes on losing the host room now is not inside. If others take it at such a pace that they may
//!    have taken at least half of what is gone, in the time in which it went, it is theirs.
//! 2. Otherwise there are a few more looks, each a moment later: a connection that was not accepted yet, or a
//!    program that nobody may read, is mostly gone by then, and the look is whole.
//! 3. Then it is the sandbox's.
//!
//! Whoever hides files while others write as fast gets more this way than its limit. What was forgiven so is
//! kept, and counts when the host itself runs short, and then nothing more is forgiven: its reserve holds in any case.

use std::time::{Duration, Instant};

/// How long is watched what others take.
const PACE: Duration = Duration::from_millis(40);
/// More looks before somebody is ended for what nobody has seen.
const MORE_LOOKS: u32 = 3;
/// So much comes and goes without meaning anything.
const LITTLE: u64 = 16 << 20;

/// What was found out so far.
#[derive(Debug)]
pub(super) struct Doubt {
    /// When next to nothing was missing.
    since: Instant,
    looks: u32,
    forgiven: u64,
}

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The sandbox's.
    Theirs,
    /// Somebody else's.
    Others,
    /// Not known yet.
    LookAgain,
}

impl Doubt {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, looks: 0, forgiven: 0 }
    }

    /// Somebody has looked at the filesystem, and so much is gone that no count explains.
    pub(super) fn note(&mut self, now: Instant, missing: u64) {
        if missing <= LITTLE {
            self.since = now;
        }
    }

    /// A look was whole, and nobody hides anything.
    pub(super) fn forget(&mut self) {
        (self.looks, self.forgiven) = (0, 0);
    }

    /// What was taken for others' although it may have been the sandbox's.
    pub(super) fn forgiven(&self) -> u64 {
        self.forgiven
    }

    /// Everyone is held, and somebody may hide files. `room` is what the filesystem has left. Who is to be
    /// `strict` forgives nothing.
    pub(super) fn judge(&mut self, missing: u64, strict: bool, room: impl Fn() -> u64) -> Verdict {
        let (lasted, start, before) = (self.since.elapsed(), Instant::now(), room());
        std::thread::sleep(PACE);
        let taken = before.saturating_sub(room());
        self.weigh(missing, strict, lasted, (taken, start.elapsed()))
    }

    fn weigh(
        &mut self,
        missing: u64,
        strict: bool,
        lasted: Duration,
        (taken, watched): (u64, Duration),
    ) -> Verdict {
        let times = lasted.as_secs_f64() / watched.as_secs_f64().max(f64::EPSILON);
        let others = (taken as f64 * times) as u64;
        if !strict && others >= missing / 2 {
            self.forgiven = self.forgiven.saturating_add(missing);
            self.looks = 0;
            return Verdict::Others;
        }
        self.looks += 1;
        if self.looks <= MORE_LOOKS {
            return Verdict::LookAgain;
        }
        self.looks = 0;
        Verdict::Theirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn weigh(doubt: &mut Doubt, missing: u64, short: bool, taken: u64) -> Verdict {
        doubt.weigh(missing, short, Duration::from_millis(400), (taken, PACE))
    }

    #[test]
    fn res_5_what_others_take_as_fast_is_theirs() {
        let mut doubt = Doubt::new(Instant::now());
        assert_eq!(weigh(&mut doubt, 100 * MIB, false, 10 * MIB), Verdict::Others);
        assert_eq!(doubt.forgiven(), 100 * MIB);
        doubt.forget();
        assert_eq!(doubt.forgiven(), 0);
    }

    #[test]
    fn res_5_what_nobody_else_takes_is_the_sandboxs_after_some_looks() {
        for (short, taken) in [(false, MIB), (true, 10 * MIB)] {
            let mut doubt = Doubt::new(Instant::now());
            for _ in 0..MORE_LOOKS {
                assert_eq!(weigh(&mut doubt, 100 * MIB, short, taken), Verdict::LookAgain);
            }
            assert_eq!(weigh(&mut doubt, 100 * MIB, short, taken), Verdict::Theirs);
        }
    }
}
