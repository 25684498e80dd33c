//! What is begun before the caller has written down that the sandbox will be.
//!
//! Making namespaces and mounting what does not depend on the sandbox takes as long as opening the
//! store and writing the row, and there is more than one processor. So init is cloned at once and
//! builds its view, up to the point where it needs the sandbox's directory. Nothing of this outlives
//! init: if the caller dies or thinks better of it, the keeper ends, init with it, and there never
//! was a sandbox.
//!
//! This is done where nothing else is needed to begin: in namespaces of the keeper's, with the
//! system read-only and the network off, when a start a moment ago told what can be had. One thing
//! has to be guessed, whether there will be a cgroup to count memory, because the size of the
//! filesystems in memory depends on it. A wrong guess costs a second init.

use super::arrival::{Arrival, Way};
use super::nest::Blank;
use super::{Arrived, Undo, owners, plan, quota};
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use crate::init::InitSpec;
use crate::keeper::make_first_room;
use crate::known::{Found, Here, Known};
use crate::vessel::Vessel;
use skep_provider::RunSpec;
use skep_types::{SystemView, WorkspaceDriver};

/// An init that is at work while the caller is.
pub struct Ahead<'a> {
    spec: &'a RunSpec,
    plan: InitSpec<'a>,
    known: Known,
    found: Found,
    channel: Channel,
}

impl<'a> Ahead<'a> {
    /// Begins, where that can be done, with an init that waits if there is one whose ids are right: they cannot be changed any
    /// more. `stays` says whether a command follows at once.
    pub fn begin(
        spec: &'a RunSpec,
        vessel: &'a Vessel,
        (blank, stays): (Option<Blank>, bool),
        undo: &mut Undo<'_>,
    ) -> Result<Option<Self>, Failure> {
        let policy = &spec.policy;
        let plain = *vessel == Vessel::Namespaces
            && policy.system == SystemView::Ro
            && policy.egress.publish.is_empty()
            && spec.driver == WorkspaceDriver::OverlayUserns;
        if !plain {
            return Ok(None);
        }
        let mut plan = plan::make(spec, vessel, true)?;
        // Not for those who typed a limit or want a way out: see there.
        let now = if blank.is_none() { Here::look() } else { None };
        let here = blank.as_ref().and_then(Blank::here).or(now.as_ref());
        let Some(known) = Known::of(spec, vessel, plan.map, here) else { return Ok(None) };
        let Some(found) = known.recall() else { return Ok(None) };
        plan.scratch_size = plan::scratch_size(&policy.limits, found.counted);
        plan.known = Some(found.report.clone());
        plan.first = stays;
        plan.late = vec![plan.parts.directory, plan.places.messages];
        let (channel, way) = match blank {
            Some(blank) => undo.take_init(blank)?,
            None => {
                let pair = Channel::pair();
                let (channel, theirs) = pair.step(|| "make the channel to init".into())?;
                (channel, undo.begin_init(vessel, &plan, None, theirs)?)
            }
        };
        let init = undo.init.as_ref().ok_or_else(|| Failure::invalid("init is missing"))?;
        Arrival::new(&plan, &channel, way, Vec::new()).settle(init, None)?;
        Ok(Some(Self { spec, plan, known, found, channel }))
    }

    /// The sandbox's directory is there: init goes on, while the cgroup is made where none was promised,
    /// and reports. `None` if it was begun on a wrong guess, and is gone.
    pub fn catch_up(
        self,
        vessel: &Vessel,
        undo: &mut Undo<'_>,
    ) -> Result<Option<Arrived<'a>>, Failure> {
        let Self { spec, plan, known, found, channel } = self;
        owners::give_upper_to_inside(spec, plan.map)?;
        let quota = quota::hold(spec, plan.map);
        let init = undo.init.as_ref().ok_or_else(|| Failure::invalid("init is missing"))?;
        let arrival = Arrival::new(&plan, &channel, Way::default(), Vec::new());
        arrival.catch_up(init)?;
        if plan.first {
            make_first_room(&spec.directory);
        }
        // One that was promised is made when somebody is to be in it.
        let promised = found.limits.clone().filter(|_| found.counted);
        if promised.is_none() {
            undo.make_group(vessel)?;
            if undo.group.is_some() != found.counted {
                undo.end_init();
                return Ok(None);
            }
        }
        let up = arrival.wait(spec)?;
        let known = (Some(known), Some(found));
        Ok(Some(Arrived { plan, known, channel, up, quota, joined: false, promised }))
    }
}
