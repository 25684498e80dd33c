//! Places among the streams (SSE, WebSocket, waiting execs), and room for bodies that arrive: bounded for
//! everybody together, and for each caller by what they may do, so that nobody shuts out the others.

use crate::guard::Principal;
use crate::roles::Role;
use skep_types::{Code, Problem};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Streams at a time; more are told to come back. The last ones are the approvers'.
const STREAMS: Bounds = Bounds { all: 512, last: 64, viewer: 64, operator: 256, agent: 32 };
/// Bytes of bodies in memory, and in files without a name.
const MEMORY: Bounds =
    Bounds { all: 256 << 20, last: 64 << 20, viewer: 8 << 20, operator: 64 << 20, agent: 16 << 20 };
const DISK: Bounds =
    Bounds { all: 8 << 30, last: 2 << 30, viewer: 1 << 20, operator: 4 << 30, agent: 2 << 30 };

/// How much there is.
struct Bounds {
    /// For all together.
    all: u64,
    /// What of it only approvers get.
    last: u64,
    /// For one of them.
    viewer: u64,
    operator: u64,
    agent: u64,
}

impl Bounds {
    /// What one caller may have, and what all may that come before the approvers.
    fn of(&self, role: Role) -> (u64, u64) {
        let common = self.all - self.last;
        match role {
            Role::Viewer => (self.viewer, common),
            Role::Operator => (self.operator, common),
            Role::Agent => (self.agent, common),
            Role::Approver => (self.all, self.all),
        }
    }
}

/// Something that there is so much of.
pub(crate) struct Share {
    bounds: Bounds,
    full: &'static str,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: u64,
    by: HashMap<String, u64>,
}

/// What somebody has of it; given back when dropped.
pub(crate) struct Held {
    share: Arc<Share>,
    who: String,
    amount: u64,
}

impl Share {
    /// Places among the streams.
    pub(crate) fn streams() -> Arc<Self> {
        Self::new(STREAMS, "too many streams are open on this server")
    }

    /// Memory for bodies.
    pub(crate) fn memory() -> Arc<Self> {
        Self::new(MEMORY, "too many bodies arrive at once")
    }

    /// Disk for bodies.
    pub(crate) fn disk() -> Arc<Self> {
        Self::new(DISK, "too many files arrive at once")
    }

    fn new(bounds: Bounds, full: &'static str) -> Arc<Self> {
        Arc::new(Self { bounds, full, taken: Mutex::default() })
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes some of it.
    pub(crate) fn take(self: &Arc<Self>, who: &Principal, amount: u64) -> Result<Held, Problem> {
        let (own, all) = self.bounds.of(who.role);
        let mut taken = self.taken();
        let has = taken.by.get(&who.name).copied().unwrap_or(0);
        if has + amount > own || taken.all + amount > all {
            return Err(Problem::new(Code::OverQuota, self.full)
                .hint("close some, or ask again in a while"));
        }
        taken.all += amount;
        *taken.by.entry(who.name.clone()).or_default() += amount;
        Ok(Held { share: Arc::clone(self), who: who.name.clone(), amount })
    }
}

/// What a request holds until it is answered.
#[derive(Clone, Default)]
pub(crate) struct Holder(Arc<Mutex<Vec<Held>>>);

impl Holder {
    /// Holds this too.
    pub(crate) fn keep(&self, held: Vec<Held>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(held);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut taken = self.share.taken();
        taken.all -= self.amount;
        if let Some(has) = taken.by.get_mut(&self.who) {
            *has -= self.amount;
            if *has == 0 {
                taken.by.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Proof;

    fn somebody(name: &str, role: Role) -> Principal {
        let (actor, bound, session) = (None, None, None);
        Principal { name: name.into(), actor, role, bound, session, proof: Proof::Peer }
    }

    #[test]
    fn nobody_takes_the_places_of_the_others() {
        let streams = Share::streams();
        let agent = somebody("token:a", Role::Agent);
        let held: Vec<_> =
            (0..32).map(|_| streams.take(&agent, 1).unwrap_or_else(|_| panic!())).collect();
        assert!(streams.take(&agent, 1).is_err(), "one agent has its share");
        let mut others = Vec::new();
        for number in 0..20 {
            let other = somebody(&format!("token:{number}"), Role::Agent);
            others.extend((0..32).filter_map(|_| streams.take(&other, 1).ok()));
        }
        assert_eq!(held.len() + others.len(), 512 - 64, "the last places are kept");
        let owner = somebody("uid:0", Role::Approver);
        assert!(streams.take(&owner, 1).is_ok());
        drop(held);
        assert!(streams.take(&agent, 1).is_ok(), "what was given back is there again");
        drop(others);
        let taken = streams.taken();
        assert_eq!((taken.all, taken.by.len()), (0, 0));
    }
}
