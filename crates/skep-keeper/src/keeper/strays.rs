//! Those whom no group holds: found, held, moved and ended although they fork faster than anybody looks.
//!
//! A process that forks and exits, again and again, is gone before its number can be written into a
//! group. So init looks from inside, where it can tell whether it has missed anybody, and stops
//! everyone if it may have: who is stopped cannot fork. Then a list of them is complete.

use super::Keeper;
use super::guard::Stand;
use crate::failure::{Failure, Step};
use crate::protocol::{Reply, ToInit, Whom, to_json};
use crate::vessel::Vessel;
use skep_confine::usage::{children_of, family_of};
use skep_types::{EndReason, StraysEnded};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long those who were ended for a limit may take to be gone, with all they have to give back.
const DYING_STILL: Duration = Duration::from_secs(3);
/// How often the sandbox's group is tried to be closed.
const TRIES: u32 = 5;

/// Questions to init that are not answered yet, and what became of earlier ones.
#[derive(Debug, Default)]
pub(super) struct Strays {
    asked: VecDeque<Purpose>,
    /// Whether a freeze has stopped some by signal, who must be woken.
    stopped: bool,
    failures: u32,
    /// Whether everyone is held for a look.
    look: Look,
    /// When everyone was ended for a limit.
    ended: Option<Instant>,
}

/// How far a look is for which everyone is held.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Look {
    #[default]
    None,
    /// Init was asked to hold them.
    Asked,
    /// They are.
    Held,
}

/// Why everyone is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To move those into the sandbox's group who were missed.
    Close,
    /// To end those of an exec, which was started then, who are in no exec's group.
    End(u64),
    /// To freeze, for this client.
    Freeze(u64),
    /// To look at them when nobody can move.
    Look,
}

impl Strays {
    /// Whether a client waits for init to have looked.
    pub(super) fn somebody_waits(&self) -> bool {
        self.asked.iter().any(|purpose| matches!(purpose, Purpose::Freeze(_)))
    }
}

impl Keeper<'_> {
    /// Once all that were found are in the sandbox's group, has those looked for who were not. Whoever
    /// is started later is in it from the start.
    pub(super) fn close_group(&mut self) {
        let open = self.group.as_ref().is_some_and(super::Membership::is_to_be_closed);
        let asked = self.state.strays.asked.contains(&Purpose::Close);
        if open && !asked && !self.state.frozen && !self.pauses_by_init() {
            let _ = self.hold(Purpose::Close, vec![self.spec.id.to_string()], false);
        }
    }

    /// Ends whoever was started by an exec and escaped its group.
    pub(super) fn end_strays(&mut self, born: u64) {
        let _ = self.hold(Purpose::End(born), self.names_of_groups(), self.state.frozen);
    }

    /// Groups are frozen; stops whoever is in none.
    pub(super) fn freeze_strays(&mut self, client: u64) {
        let names = self.names_of_groups();
        if let Err(failure) = self.hold(Purpose::Freeze(client), names, true) {
            self.reply(client, &Err(failure));
        }
    }

    /// Whether a freeze holds some by signal only.
    pub(super) fn has_stopped_strays(&self) -> bool {
        self.state.strays.stopped
    }

    /// Before the groups are thawed: a stop that is still pending there is taken back by this.
    pub(super) fn wake_strays(&mut self) {
        if std::mem::take(&mut self.state.strays.stopped) {
            self.wake();
        }
    }

    fn wake(&self) {
        let message = ToInit::Signal { whom: Whom::Everyone, signal: libc::SIGCONT };
        let _ = self.channel.send(&message, &[]);
    }

    fn names_of_groups(&self) -> Vec<String> {
        let execs = self.state.execs.iter().filter(|(_, running)| running.group.is_some());
        execs.map(|(exec, _)| exec.to_string()).collect()
    }

    fn hold(&mut self, purpose: Purpose, inside: Vec<String>, frozen: bool) -> Result<(), Failure> {
        let message = ToInit::Hold { inside, frozen };
        self.channel.send(&message, &[]).step(|| "hold the processes".into())?;
        self.state.strays.asked.push_back(purpose);
        Ok(())
    }

    /// Init has looked, and holds everyone if it says so.
    pub(super) fn held(&mut self, result: Result<bool, Failure>) {
        let Some(purpose) = self.state.strays.asked.pop_front() else { return };
        match (purpose, &result) {
            (Purpose::Look, _) => return self.look_at_held(&result),
            (Purpose::Freeze(client), Ok(stopped)) => {
                self.state.strays.stopped |= *stopped;
                self.look_at_still();
                return self.reply(client, &Ok(Reply::Done));
            }
            (Purpose::Freeze(client), Err(_)) => {
                self.set_frozen_groups(false);
                self.state.frozen = false;
                self.reply(client, &result.map(|_| Reply::Done));
                return self.begin_held_back();
            }
            (Purpose::Close, Ok(false)) => self.set_closed(),
            (Purpose::Close, Ok(true)) => match self.move_everyone() {
                Ok(()) => self.set_closed(),
                Err(_) => self.state.stopping = true,
            },
            (Purpose::Close, Err(_)) => self.close_later(),
            (Purpose::End(born), Ok(true)) => {
                for pid in self.unattributed(family_of(self.init.pid), born) {
                    if pid != self.init.pid {
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    }
                }
            }
            (Purpose::End(_), _) => {}
        }
        match (result, self.state.frozen, self.state.strays.look) {
            (Ok(true), false, Look::None) => self.wake(),
            (Ok(true), true, _) => self.state.strays.stopped = true,
            // The look lets them go on.
            _ => {}
        }
    }

    /// Holds everyone for a moment, if a guard cannot tell otherwise what they have. Not in a guest, which
    /// its own kernel holds.
    pub(super) fn hold_for_a_look(&mut self, now: Instant) {
        let disk = self.state.disk.as_mut().is_some_and(|guard| guard.wants_all_held(now));
        let memory = self.state.polled.as_mut().is_some_and(|guard| guard.wants_all_held(now));
        let Strays { asked, look, .. } = &self.state.strays;
        // Whoever else holds them lets them go on when it is done.
        let free = !self.state.frozen && asked.is_empty() && *look == Look::None;
        if !(disk || memory) || !free || self.vessel.machine().is_some() {
            return;
        }
        let asked = match self.pauses_by_init() {
            true => self.hold(Purpose::Look, Vec::new(), false),
            false => match self.set_frozen_groups(true) {
                None => self.hold(Purpose::Look, self.names_of_groups(), true),
                Some(failure) => Err(failure),
            },
        };
        match asked {
            Ok(()) => self.state.strays.look = Look::Asked,
            Err(_) => self.end_look(),
        }
    }

    fn look_at_held(&mut self, result: &Result<bool, Failure>) {
        let Ok(stopped) = result else { return self.end_look() };
        if self.state.strays.look == Look::None {
            // They were let go on meanwhile.
            return;
        }
        self.state.strays.stopped |= *stopped && !self.pauses_by_init();
        self.state.strays.look = Look::Held;
        self.poll_now();
        let counting = self.state.disk.as_mut().is_some_and(super::guard::DiskGuard::count_now);
        if !counting {
            self.judge_disk();
        }
    }

    /// Whether nobody can move, for a look.
    pub(super) fn stand_for_a_look(&self) -> Stand {
        if self.state.strays.look == Look::Held { Stand::Held } else { Stand::Run }
    }

    /// All go on, but where they are frozen for somebody else.
    pub(super) fn end_look(&mut self) {
        self.state.strays.look = Look::None;
        match (self.state.frozen, self.pauses_by_init()) {
            (true, _) => {}
            (false, true) => self.wake(),
            (false, false) => drop(self.set_frozen_groups(false)),
        }
    }

    /// Somebody has let them go on.
    pub(super) fn forget_look(&mut self) {
        self.state.strays.look = Look::None;
    }

    /// Whether anybody lives on although no exec runs. Whom a guest has inside cannot be seen from
    /// here, and there may always be somebody.
    pub(super) fn look_for_left(&mut self) {
        let running = self.state.execs.values().any(|running| !running.has_ended());
        let hidden = matches!(self.vessel, Vessel::Machine(_));
        self.state.left = !running && (hidden || !children_of(self.init.pid).is_empty());
    }

    /// Everyone is ended for a limit now; whether this is news, and not those who are still dying of the
    /// last time.
    pub(super) fn ends_anew(&mut self) -> bool {
        let before = self.state.strays.ended.replace(Instant::now());
        before.is_none_or(|before| before.elapsed() > DYING_STILL)
    }

    /// For whoever asks later: `skep show` says it, and an event tells it.
    pub(super) fn record_strays_ended(&self, reason: EndReason) {
        let path = self.spec.directory.join(StraysEnded::FILE);
        let before = std::fs::read(&path).ok();
        let before = before.and_then(|bytes| serde_json::from_slice::<StraysEnded>(&bytes).ok());
        let times = before.map_or(0, |before| before.times) + 1;
        let _ = std::fs::write(path, to_json(&StraysEnded { reason, times }));
    }

    fn set_closed(&mut self) {
        if let Some(membership) = &mut self.group {
            membership.closed = true;
        }
    }

    /// Somebody did not stop. Limits that may not hold are worse than no sandbox.
    fn close_later(&mut self) {
        self.state.strays.failures += 1;
        self.state.stopping |= self.state.strays.failures >= TRIES;
        if let Some(membership) = &mut self.group {
            membership.move_again();
        }
    }

    fn move_everyone(&mut self) -> Result<(), Failure> {
        if let Some(membership) = &mut self.group {
            membership.move_again();
        }
        self.join_completely()
    }
}
