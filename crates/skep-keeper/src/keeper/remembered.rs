//! What the view remembers of the project while nobody is inside.
//!
//! The kernel remembers which names were looked up, and what stood there. While a command runs that stays so. After some
//! time without one the user may have replaced or removed what is remembered, and the next command shall see the project as
//! it is, so everything is let go of. That takes as long as names were looked up (some 15 ms for 10,000 files), and nobody waits
//! for it: it is done when the time is over, not when a command comes. One that comes before that, or where it could not
//! be done, has it done first.

use super::Keeper;
use crate::protocol::ToInit;
use skep_provider::Freshness;
use skep_workspace::Insiders;
use std::time::{Duration, Instant};

/// After so long without a command the project is looked at anew: to look costs, and names that were looked up have
/// to be looked up again.
const SOME_TIME: Duration = Duration::from_millis(250);

/// What may be remembered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Remembered {
    /// Nothing: nobody has been inside yet, or everything was let go of since.
    #[default]
    Nothing,
    /// Something may be, looked up until then by others than commands.
    Something(Option<Instant>),
    /// Init is to let go of it, and has not answered.
    BeingDropped,
    /// Something may be, and not before the next command is it tried again to let go of it.
    Held,
}

impl Keeper<'_> {
    /// Where nobody is inside and some time has gone by, the user may have replaced or removed what the kernel
    /// remembers: the command that begins now shall see the project as it is, and what it makes is then made from that.
    pub(super) fn look_anew(&mut self) {
        let remembered = std::mem::replace(&mut self.state.remembered, Remembered::Something(None));
        if !self.nobody_is_left() {
            return;
        }
        let anew = !self.state.so_far.any() || self.is_idle(Instant::now());
        let workspace = self.workspace();
        if !std::mem::take(&mut self.state.look_due) && !anew {
            // What cannot be noted is still late, which loses nothing.
            let _ = self.state.captor.nobody_now(&workspace);
            return;
        }
        let now = skep_workspace::clock_ns();
        // What is there by now is not of those who come: an earlier keeper may have left it unnoted, or somebody who
        // outlived a command.
        if workspace.has_work() || workspace.has_notes() {
            self.capture_with(Insiders::None);
        }
        if anew && remembered == Remembered::Nothing {
            self.state.captor.nobody_before(now);
        } else if anew && self.ask_to_look_anew() {
            self.state.looks_anew = Some(now);
        }
    }

    /// Init has let go of what was remembered, or could not.
    pub(super) fn looked_anew(&mut self, freshness: Freshness) {
        self.state.unanswered = self.state.unanswered.saturating_sub(1);
        let unseen = freshness == Freshness::Unseen;
        if self.state.remembered == Remembered::BeingDropped {
            self.state.remembered = if unseen { Remembered::Nothing } else { Remembered::Held };
        }
        // It was asked again when a command came, and names may have been looked up in between.
        if self.state.unanswered > 0 {
            return;
        }
        let since = self.state.looks_anew.take();
        if let Some(since) = since.filter(|_| unseen) {
            self.state.captor.nobody_before(since);
        }
    }

    /// Something is looked up in the view by somebody who is not a command.
    pub(super) fn look_up(&mut self) {
        self.state.remembered = Remembered::Something(Some(Instant::now()));
    }

    /// When everything is let go of that may be remembered, if no command comes.
    pub(super) fn forgetting_deadline(&self) -> Option<Instant> {
        let Remembered::Something(looked_up) = self.state.remembered else { return None };
        let is_quiet = self.nobody_is_left() && !self.state.frozen && !self.is_about_to_end();
        let idle_since = self.state.idle_since.filter(|_| is_quiet)?;
        Some(looked_up.map_or(idle_since, |at| at.max(idle_since)) + SOME_TIME)
    }

    pub(super) fn let_go(&mut self) {
        self.state.remembered = match self.ask_to_look_anew() {
            true => Remembered::BeingDropped,
            false => Remembered::Held,
        };
    }

    fn ask_to_look_anew(&mut self) -> bool {
        let asked = self.channel.send(&ToInit::LookAnew, &[]).is_ok();
        self.state.unanswered += u32::from(asked);
        asked
    }

    fn is_idle(&self, now: Instant) -> bool {
        let idle = self.state.idle_since.map(|since| now.saturating_duration_since(since));
        idle.is_some_and(|idle| idle >= SOME_TIME)
    }
}
