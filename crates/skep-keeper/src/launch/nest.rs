//! A keeper and an init that are there before it is known what for.
//!
//! It takes the caller a millisecond or two to find out what to ask for, and namespaces take as long to make. Neither
//! waits for the other, and there is more than one processor. So a caller that will most likely want a sandbox in
//! namespaces has a keeper forked before anything else. It stands apart from the caller and clones an init with nothing in
//! it, and both wait. What they are for is then sent, to the one and by it to the other, where it is inherited otherwise.
//! What the keeper still has of its caller it lets go of when init is at work; init did so for itself.
//!
//! Nothing of this outlives its processes, and nothing is written anywhere. If the caller wants something else after all, or
//! dies, the end of its line ends the keeper, and with it init.

use super::arrival::WITH_THE_HOSTS_NETWORK;
use super::{Begun, CallersEnds, Come, KeepersEnds, ends, live, stand_apart};
use crate::channel::{Channel, from_file, to_file};
use crate::identity::IdMap;
use crate::init;
use crate::known::Here;
use crate::protocol::ToInit;
use crate::vessel::{Held, Vessel};
use rustix::fd::AsFd;
use serde::{Deserialize, Serialize};
use skep_provider::RunSpec;
use skep_sys::failpoint;
use skep_sys::process::{Child, Namespaces, clone_with, wait_for};
use skep_sys::processors::{Processors, Turns};
use skep_types::NetworkMode;
use std::io;

/// A keeper that waits to be told what it is for.
#[derive(Debug)]
pub struct Nest(Option<Waiting>);

#[derive(Debug)]
struct Waiting {
    keeper: Child,
    orders: Channel,
    ends: CallersEnds,
    processors: Option<Processors>,
}

/// Comes with the plan, as a descriptor.
#[derive(Debug, Serialize, Deserialize)]
struct Order;

impl Nest {
    /// Forks the keeper, so the caller must be single threaded. `stays` says whether the caller runs a command there
    /// at once and stays with it. On error nothing is left.
    pub fn make(stays: bool) -> io::Result<Self> {
        let (orders, theirs) = Channel::pair()?;
        let (ours, keepers) = ends(stays)?;
        let processors = Processors::own().ok();
        failpoint::arm();
        // The closure owns its ends: here they are dropped unrun, and the keeper alone has them.
        let keeper = clone_with(Namespaces::NONE, move || wait(theirs, keepers, processors))?;
        // A hint: where it cannot be had, one works after the other.
        let _ = processors.map(|all| all.move_away(keeper.pid));
        Ok(Self(Some(Waiting { keeper, orders, ends: ours, processors })))
    }

    /// Tells it what it is for. `None` if it does not fit, or is not there any more: then it is gone.
    pub(super) fn tell(mut self, spec: &RunSpec, vessel: &Vessel, stays: bool) -> Option<Begun> {
        let waiting = self.0.as_ref()?;
        let secrets = &spec.secrets;
        let fits = *vessel == Vessel::Namespaces
            && spec.policy.network != NetworkMode::Host
            // Their values are never written anywhere, and are inherited.
            && secrets.edge.is_empty()
            && secrets.plain.is_empty()
            && waiting.ends.line.is_some() == stays;
        if !fits {
            return None;
        }
        let plan = to_file(spec).ok()?;
        let tell = || waiting.orders.send(&Order, &[plan.as_fd()]);
        // A hint: where it was init is at work, and what we do next is not waited for yet.
        let told = match waiting.processors {
            Some(all) => all.go_first(waiting.keeper.pid, tell),
            None => tell(),
        };
        told.ok()?;
        let Waiting { keeper, ends, .. } = self.0.take()?;
        Some(Begun { keeper, ends })
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        if let Some(Waiting { keeper, orders, ends, .. }) = self.0.take() {
            drop((orders, ends));
            let _ = wait_for(&keeper);
        }
    }
}

/// The keeper's life, until it knows what it is for, and then on. Returns its exit code.
fn wait(orders: Channel, ends: KeepersEnds, processors: Option<Processors>) -> i32 {
    let mut kept = ends.all();
    kept.push(orders.as_fd());
    if stand_apart(&kept).is_err() {
        // It would hold on to what it waits for. It is begun again when it is known what for, and says why it cannot.
        return 1;
    }
    // What is made here goes where there is room.
    let everywhere = || processors.map(|all| all.use_all());
    let _ = everywhere();
    let come = Come::Apart(Blank::clone(processors).map(Box::new));
    let told = orders.receive::<Order>().map(|(_, mut plan)| plan.pop());
    // Whoever told us has put us where it is itself, and whom we make inherits what we have.
    let _ = everywhere();
    drop(orders);
    // Told nothing, it is not wanted.
    let Ok(Some(plan)) = told else { return 0 };
    match from_file::<RunSpec>(plan) {
        Ok(spec) => live(&spec, &Vessel::Namespaces, ends, Ok(come)),
        Err(_) => 1,
    }
}

/// An init in namespaces of its own that waits for its plan, and begins what nearly every plan would have it do. Gone when
/// dropped. Its network, which takes as long as all the others, it has made beside its view; until that is there it is in
/// that of the host.
pub struct Blank {
    init: Option<(Held, Channel)>,
    processors: Option<Processors>,
    map: IdMap,
    here: Option<Here>,
}

impl Blank {
    /// `None` where it cannot be had: whoever then makes it in the ordinary way says why.
    fn clone(processors: Option<Processors>) -> Option<Self> {
        let (channel, theirs) = Channel::pair().ok()?;
        let map = IdMap::usual();
        let usual = Turns::own().ok();
        let born = move || init::run_blank(theirs, map, (processors, usual));
        // Everybody waits for it, and others want its processor: the kernel takes down the networks of those that were
        // before. It has to be born so: a process that changes its turns is put behind the others. A hint, as all of this.
        let _ = usual.map(|usual| usual.soon().take());
        let child = clone_with(WITH_THE_HOSTS_NETWORK, born);
        let _ = usual.map(|usual| usual.take());
        let child = child.ok()?;
        let init = Some((Held::with_view(child), channel));
        let mut blank = Self { init, processors, map, here: None };
        blank.give_ids()?;
        // Whatever else takes a look is best taken while nobody waits for it.
        blank.here = Here::look();
        Some(blank)
    }

    /// Maps the ids that it cannot map itself, and lets it take them on.
    fn give_ids(&self) -> Option<()> {
        let (init, channel) = self.init.as_ref()?;
        if self.map == IdMap::Range {
            self.map.write_for(init.pid.as_raw_nonzero().get()).ok()?;
            channel.send(&ToInit::Go, &[]).ok()?;
        }
        Some(())
    }

    /// Whose ids it has.
    pub fn map(&self) -> IdMap {
        self.map
    }

    /// Where the keeper stands.
    pub fn here(&self) -> Option<&Here> {
        self.here.as_ref()
    }

    /// Init, and the channel to it. It is put on another processor than the keeper, which has to go on when it has told
    /// it its plan.
    pub fn take(mut self) -> Option<(Held, Channel)> {
        let (init, channel) = self.init.take()?;
        let _ = self.processors.map(|all| all.move_away(init.pid));
        Some((init, channel))
    }
}

impl Drop for Blank {
    fn drop(&mut self) {
        if let Some((mut init, _channel)) = self.init.take() {
            init.kill();
            init.wait();
        }
    }
}
