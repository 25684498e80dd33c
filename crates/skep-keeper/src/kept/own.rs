//! The keeper that this process has just started and whose last command it stays with.
//!
//! To knock at its socket, be let in, say stop and be asked who one is, is what strangers do; it took a twentieth of a
//! short run. This one was connected before it was there, says with its last command's end that it ends too, and
//! closes that connection when nothing inside can change any more.

use super::has_ended;
use crate::client::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, recv};
use rustix::process::Pid;
use skep_sys::processors::Processors;
use skep_types::{KeeperIdentity, SandboxId};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A keeper of ours.
#[derive(Debug)]
pub(super) struct Own {
    id: SandboxId,
    identity: KeeperIdentity,
    process: OwnedFd,
    line: Line,
}

#[derive(Debug)]
enum Line {
    /// Nobody has used it yet.
    Free(Option<OwnedFd>),
    /// It is a command's; this is another handle on it, and whether the keeper has said that it ends.
    Lent(OwnedFd, Rc<Cell<bool>>),
}

impl Own {
    pub(super) fn new(
        id: &SandboxId,
        identity: &KeeperIdentity,
        process: OwnedFd,
        line: OwnedFd,
    ) -> Self {
        let line = Line::Free(Some(line));
        Self { id: id.clone(), identity: identity.clone(), process, line }
    }

    /// The connection, once, for a command in this sandbox.
    pub(super) fn line_to(&mut self, id: &SandboxId) -> Option<Client> {
        let Line::Free(line) = &mut self.line else { return None };
        if self.id != *id {
            return None;
        }
        let line = line.take()?;
        let watched = line.try_clone().ok()?;
        let client = Client::by(id, line);
        self.line = Line::Lent(watched, client.over());
        Some(client)
    }

    /// Whether this is the keeper of the row, and has said that it ends.
    pub(super) fn ends(&self, keeper: Option<&KeeperIdentity>) -> bool {
        let said = matches!(&self.line, Line::Lent(_, over) if over.get());
        said && keeper == Some(&self.identity)
    }

    /// Waits until nothing inside can change any more; false if it has not said that it ends, or takes too long.
    pub(super) fn is_still(&self, keeper: Option<&KeeperIdentity>, patience: Duration) -> bool {
        let Line::Lent(line, _) = &self.line else { return false };
        if !self.ends(keeper) {
            return false;
        }
        self.make_room();
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::new(line, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return false,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
            match recv(line, &mut [0; 64], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                // It went without having read everything that was typed.
                Err(rustix::io::Errno::CONNRESET) => return true,
                Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(_) => return has_ended(&self.process, Duration::ZERO),
            }
        }
    }

    /// What is left for it to do is done beside us, and not on the processor that we go on with. A hint.
    fn make_room(&self) {
        let pid = i32::try_from(self.identity.pid).ok().and_then(Pid::from_raw);
        // It is a child of ours that nobody has waited for, so the number is still its own.
        if let (Some(pid), Ok(all)) = (pid, Processors::own()) {
            let _ = all.move_away(pid);
        }
    }

    /// The process.
    pub(super) fn process(&self) -> &OwnedFd {
        &self.process
    }
}
