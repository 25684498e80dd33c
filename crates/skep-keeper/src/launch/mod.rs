//! Bringing a keeper up: from the caller's process to a running sandbox.
//!
//! - [`plan`]: what the sandbox is made from, decided before anything is made.
//! - [`owners`]: the workspace belongs to the ids inside.
//! - [`nest`]: what is begun before the caller knows what it wants.
//! - [`ahead`]: what is begun before the caller has written anything down.
//! - [`arrival`]: init, from its beginning in the vessel to its report.
//! - [`quota`]: the disk limit as the filesystem keeps it, where it can.
//! - [`absent`]: which calls are not there, when one of them was needed.
//! - [`limits`]: what holds, and what is refused because it does not.

mod absent;
mod ahead;
mod arrival;
mod limits;
mod nest;
mod owners;
mod plan;
mod quota;
mod workspace;

use crate::caller;
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use crate::init::InitSpec;
use crate::keeper::{Attendants, Keeper, Membership, Promise};
use crate::known::{Found, Here, Known};
use crate::machine;
use crate::network;
use crate::network::publish::{self, Taken};
use crate::protocol::{StartReport, to_json};
use crate::seen;
use crate::vessel::{Held, Tasks, Vessel};
use ahead::Ahead;
use arrival::{Arrival, Up, Way};
use limits::Holders;
use nest::Blank;
pub use nest::Nest;
use quota::Quota;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use skep_confine::cgroup::{CgroupError, CgroupHost, Group, GroupLimits, ParentName};
use skep_machine::boot::MachineFiles;
use skep_provider::{Beside, ProviderError, RunSpec, Started};
use skep_sys::failpoint;
use skep_sys::process::{Child, Namespaces, clone_with};
use skep_sys::signal::SignalFd;
use skep_types::{EnforcementReport, KeeperIdentity};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The cgroup directory all of skep's groups lie under.
pub const CGROUP_PARENT: &str = "skep";

/// Tasks that a runtime with a kernel of its own may have in any case.
const RUNTIME_TASKS: u64 = 4096;

/// Starts a keeper for `spec` and waits until its sandbox is up. One that waits in a `nest` is used if it fits.
///
/// Forks without an exec, so the caller must be single threaded. On error nothing is left.
///
/// The keeper waits at a gate before it makes anything that would outlive it. The caller opens it
/// when it has done what `beside` asks of it first; if the caller dies, the gate falls shut, and the
/// keeper ends with all it has made.
pub fn start(
    spec: &RunSpec,
    vessel: &Vessel,
    beside: Beside<'_>,
    nest: Option<Nest>,
) -> Result<Launched, ProviderError> {
    let setup = |source| ProviderError::Setup { operation: "start the keeper".into(), source };
    failpoint::hit("create.fork").map_err(setup)?;
    let begun = match nest.and_then(|nest| nest.tell(spec, vessel, beside.stays)) {
        Some(begun) => begun,
        None => begin(spec, vessel, beside.stays).map_err(setup)?,
    };
    let Begun { keeper, ends: CallersEnds { answer, opener, line } } = begun;
    if (beside.intend)().is_err() {
        drop(opener);
        let _ = skep_sys::process::wait_for(&keeper);
        return Err(ProviderError::Withdrawn);
    }
    // A keeper that has ended meanwhile has said why.
    let _ = rustix::io::write(&opener, &[1]);
    drop(opener);
    (beside.meanwhile)();
    let mut bytes = Vec::with_capacity(16 << 10);
    File::from(answer).read_to_end(&mut bytes).map_err(setup)?;
    let gone = || setup(io::Error::other("the keeper ended without a word"));
    match serde_json::from_slice(&bytes).map_err(|_| gone())? {
        StartReport::Ready(enforcement) => {
            let identity = identity_of(keeper.pid.as_raw_nonzero().get(), &spec.directory);
            let started = Started { keeper: identity.map_err(setup)?, enforcement };
            Ok(Launched { started, process: keeper.pidfd, line })
        }
        StartReport::Failed(failure) => {
            let _ = skep_sys::process::wait_for(&keeper);
            Err(absent::explain(failure).into())
        }
    }
}

/// A keeper whose sandbox is up.
#[derive(Debug)]
pub struct Launched {
    /// What is said of it.
    pub started: Started,
    /// Itself, a child of ours.
    pub process: OwnedFd,
    /// A connection to it, where the caller stays.
    pub line: Option<OwnedFd>,
}

/// A keeper that has begun.
struct Begun {
    keeper: Child,
    ends: CallersEnds,
}

/// What the caller holds of its connections to the keeper.
#[derive(Debug)]
struct CallersEnds {
    /// The report comes here.
    answer: OwnedFd,
    /// The gate is opened here.
    opener: OwnedFd,
    /// Commands are ordered here, where the caller stays.
    line: Option<OwnedFd>,
}

/// What the keeper holds of them.
struct KeepersEnds {
    report: OwnedFd,
    gate: OwnedFd,
    caller: Option<OwnedFd>,
}

impl KeepersEnds {
    fn all(&self) -> Vec<BorrowedFd<'_>> {
        let pipes = [&self.report, &self.gate].into_iter();
        pipes.chain(&self.caller).map(OwnedFd::as_fd).collect()
    }
}

/// The connections of a caller and a keeper that is not there yet.
fn ends(stays: bool) -> io::Result<(CallersEnds, KeepersEnds)> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (answer, report) = pipe()?;
    let (gate, opener) = pipe()?;
    let (line, caller) = match stays {
        true => Some(line()?).unzip(),
        false => (None, None),
    };
    Ok((CallersEnds { answer, opener, line }, KeepersEnds { report, gate, caller }))
}

fn line() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::io::ioctl_fionbio(&theirs, true)?;
    Ok((ours, theirs))
}

/// Forks a keeper that knows what it is for.
fn begin(spec: &RunSpec, vessel: &Vessel, stays: bool) -> io::Result<Begun> {
    let (ours, keepers) = ends(stays)?;
    // The closure owns its ends: here they are dropped unrun, and the keeper alone has them.
    let keeper = clone_with(Namespaces::NONE, move || {
        let come = stand_apart(&keepers.all()).and_then(|()| Detached::from_caller());
        live(spec, vessel, keepers, come.map(Come::Detached))
    })?;
    Ok(Begun { keeper, ends: ours })
}

/// Who a keeper is, beyond its number: the process, and what it holds.
pub(crate) fn identity_of(pid: i32, directory: &Path) -> io::Result<KeeperIdentity> {
    let held = rustix::fs::stat(directory)?;
    Ok(KeeperIdentity {
        directory: Some((held.st_dev, held.st_ino)),
        pid: pid as u32,
        start_ticks: skep_sys::process::start_ticks(pid)?,
        boot_id: skep_sys::process::boot_id()?,
    })
}

/// The keeper's life. Returns its exit code.
fn live(spec: &RunSpec, vessel: &Vessel, ends: KeepersEnds, come: Result<Come, Failure>) -> i32 {
    let KeepersEnds { report, gate, caller } = ends;
    let up = come.and_then(|come| bring_up(spec, vessel, come, (gate, caller.is_some())));
    let message = match &up {
        Ok(running) => StartReport::Ready(running.report.clone()),
        Err(failure) => StartReport::Failed(failure.clone()),
    };
    // A caller that is gone has written down that it makes a sandbox, and not that there is one: whoever reads
    // that clears away. Nobody would ever use this one.
    let heard = rustix::io::write(&report, &to_json(&message)).is_ok();
    drop(report);
    match up {
        Ok(Running { keeper, terminate, quota, image, .. }) => {
            match heard {
                true => keeper.hearing(caller).serve(&terminate),
                false => keeper.end(),
            }
            drop((quota, image));
            0
        }
        Err(_) => 1,
    }
}

/// How far a keeper has come when it learns what it is for.
enum Come {
    /// Nothing of its caller's is left.
    Detached(Detached),
    /// It stands apart, perhaps with an init that waits; the rest is done while that is at work.
    Apart(Option<Box<Blank>>),
}

impl Come {
    /// One that waits is not wanted, and is gone.
    fn detached(self) -> Result<Detached, Failure> {
        match self {
            Self::Detached(detached) => Ok(detached),
            Self::Apart(_) => Detached::from_caller(),
        }
    }
}

fn stand_apart(kept: &[BorrowedFd<'_>]) -> Result<(), Failure> {
    caller::stand_apart(kept).step(|| "stand apart from the caller".into())
}

/// A keeper that has nothing of its caller's any more.
struct Detached {
    /// The caller's, for commands.
    umask: u32,
    terminate: SignalFd,
}

impl Detached {
    /// Lets go of what still belongs to the caller of one that stands apart.
    fn from_caller() -> Result<Self, Failure> {
        let umask = caller::leave().step(|| "detach the keeper".into())?;
        failpoint::hit("create.keeper").step(|| "pass a failpoint".into())?;
        let terminate = SignalFd::new(&[libc::SIGTERM]).step(|| "watch for signals".into())?;
        Ok(Self { umask, terminate })
    }
}

/// A keeper that is ready to serve.
struct Running<'a> {
    keeper: Keeper<'a>,
    terminate: SignalFd,
    report: EnforcementReport,
    /// Holds as long as anything runs.
    quota: Option<Quota>,
    /// The image that is shown is not removed as long as this is open.
    image: Option<File>,
}

/// 1. What dies with its processes, as far as it can be made ahead (see [`ahead`]).
/// 2. The gate: from here on the caller has written down that this sandbox will be.
/// 3. The socket: it is also what shows that nobody else holds this sandbox.
/// 4. Ports of the host that were named: one that is taken is told before anything is made.
/// 5. Init and the cgroup, and init's report.
/// 6. Those who serve the inside: from here on it can be reached, and can reach.
fn bring_up<'a>(
    spec: &'a RunSpec,
    vessel: &'a Vessel,
    come: Come,
    (gate, stays): (OwnedFd, bool),
) -> Result<Running<'a>, Failure> {
    let mut undo = Undo { spec, group: None, ungrouped: None, init: None, listening: false };
    let (ahead, detached) = match come {
        Come::Apart(Some(blank)) if blank.map() == plan::map_for(spec, vessel) => {
            let ahead = Ahead::begin(spec, vessel, (Some(*blank), stays), &mut undo)?;
            (ahead, Detached::from_caller()?)
        }
        // An init that is forked now would keep what we have of the caller.
        come => {
            let detached = come.detached()?;
            (Ahead::begin(spec, vessel, (None, stays), &mut undo)?, detached)
        }
    };
    pass(gate)?;
    let listener = listen(spec)?;
    undo.listening = true;
    failpoint::hit("create.socket").step(|| "pass a failpoint".into())?;
    limits::refuse_ports(spec, vessel)?;
    let image = vessel.image().map(hold_image).transpose()?;
    let published = publish::take(&spec.policy.egress.publish)?;
    let arrived = match ahead {
        Some(ahead) => ahead.catch_up(vessel, &mut undo)?,
        None => None,
    };
    let arrived = match arrived {
        Some(arrived) => arrived,
        None => arrive(spec, vessel, published, &mut undo)?,
    };
    let running = take_over(arrived, spec, vessel, (detached, listener), undo)?;
    Ok(Running { image, ..running })
}

fn hold_image(root: &Path) -> Result<File, Failure> {
    skep_images::hold(root).map_err(|error| {
        Failure::missing(
            "the image",
            format!("it was removed meanwhile: {error}"),
            "import it again (`skep image import`)",
        )
    })
}

/// Waits until the caller has written down that this sandbox will be. If it died, or thought better
/// of it, that is the end.
fn pass(gate: OwnedFd) -> Result<(), Failure> {
    let step = || "wait for the word to go on".to_owned();
    File::from(gate).read_exact(&mut [0]).step(step)
}

/// A sandbox whose init is up.
struct Arrived<'a> {
    plan: InitSpec<'a>,
    /// Where what was found is kept, and what was kept there.
    known: (Option<Known>, Option<Found>),
    channel: Channel,
    up: Up,
    quota: Result<Quota, String>,
    joined: bool,
    /// What is known of a group that was not made yet.
    promised: Option<EnforcementReport>,
}

/// 1. The cgroup, before the first process that must be counted.
/// 2. Init, with all its namespaces; ids and cgroup are settled before it goes on.
/// 3. Its report.
fn arrive<'a>(
    spec: &'a RunSpec,
    vessel: &'a Vessel,
    published: Vec<Taken>,
    undo: &mut Undo<'_>,
) -> Result<Arrived<'a>, Failure> {
    if undo.group.is_none() {
        undo.make_group(vessel)?;
    }
    let mut plan = plan::make(spec, vessel, undo.group.is_some())?;
    let known = Known::of(spec, vessel, plan.map, Here::look().as_ref());
    let found = known.as_ref().and_then(Known::recall);
    plan.known = found.as_ref().map(|found| found.report.clone());
    let files = vessel.machine().map(MachineFiles::open).transpose()?;
    let (ours, theirs) = Channel::pair().step(|| "make the channel to init".into())?;
    owners::give_upper_to_inside(spec, plan.map)?;
    // Before the overlay makes a directory in its work area: a file cannot be moved between projects.
    let quota = quota::hold(spec, plan.map);
    let mut way = undo.begin_init(vessel, &plan, files.as_ref(), theirs)?;
    let group = undo.group.as_ref();
    let init = undo.init.as_mut().ok_or_else(|| Failure::invalid("init is missing"))?;
    let channel = way.welcome(init, &plan)?.unwrap_or(ours);
    let mut arrival = Arrival::new(&plan, &channel, way, published);
    arrival.look_for_place(vessel, init)?;
    let joined = must_join_first(spec);
    arrival.settle(init, group.filter(|_| joined))?;
    let up = arrival.wait(spec)?;
    let known = (known, found);
    Ok(Arrived { plan, known, channel, up, quota, joined, promised: None })
}

/// Joins init's report with that of the limits; what was asked for and is not there is refused.
fn take_over<'a>(
    arrived: Arrived<'a>,
    spec: &'a RunSpec,
    vessel: &'a Vessel,
    (Detached { umask, terminate }, listener): (Detached, OwnedFd),
    mut undo: Undo<'_>,
) -> Result<Running<'a>, Failure> {
    let Arrived { plan, known: (known, found), channel, up, quota, joined, promised } = arrived;
    let Up { mut report, facts, servers, mut egress, publisher, handle } = up;
    if let (Some(handle), Some(init)) = (handle, &mut undo.init) {
        init.found(handle)?;
    }
    failpoint::hit("create.ready").step(|| "pass a failpoint".into())?;
    let inside = report.clone();
    let counted = undo.group.is_some() || promised.is_some();
    let watched = match (vessel, &undo.group, &undo.init) {
        // Where skep has no group, the engine's holds; it is read, not believed.
        (Vessel::Attended(_), None, Some(init)) => CgroupHost::around(init.pid),
        _ => None,
    };
    let holders = Holders {
        own: undo.group.as_ref(),
        watched: watched.as_ref(),
        promised: promised.as_ref(),
    };
    let beside = limits::fallback(spec, plan.map, &holders);
    let mut held = limits::report(spec, vessel, plan.map, holders, &quota);
    limits::note_what_is_in_the_way(&mut held, undo.ungrouped.as_deref());
    let limits = limits::held(&held).filter(|_| counted);
    let now = Found { report: inside, counted, limits };
    if let Some(known) = known.as_ref().filter(|_| found.as_ref() != Some(&now)) {
        known.remember(&now);
    }
    report.0.extend(held.0);
    limits::note_signals(&mut report, vessel, counted);
    if let Some(egress) = &mut egress {
        network::serve(egress, &mut report)?;
    }
    limits::refuse_what_is_missing(spec, &report)?;
    seen::write(spec, vessel.facts().into_iter().chain(facts).collect())?;
    let (group, init) = undo.disarm();
    let init = init.ok_or_else(|| Failure::invalid("init is missing"))?;
    let promise = |reported: EnforcementReport| {
        let remembered = known.as_ref()?.path().to_owned();
        Some(Promise { limits: spec.policy.limits.clone(), beside, reported, remembered })
    };
    let group = match group {
        Some(group) => Some(Membership::new(group, joined)),
        None => promised.and_then(promise).map(Membership::promised),
    };
    let attendants = Attendants { servers, publisher, egress };
    let lent = plan.map.lent();
    let keeper = Keeper::new(spec, vessel, listener, channel, init, group, umask, attendants);
    let keeper = keeper.counting(lent).watching(watched).probed(plan.known.is_none());
    Ok(Running { keeper, terminate, report, quota: quota.ok(), image: None })
}

/// Joining a cgroup makes the kernel wait for all processors (some 15 ms), so it is left for a
/// moment later (see [`Membership`]) unless the caller counts on it: limits that were typed, or
/// layers that were required, hold from the first instruction on.
fn must_join_first(spec: &RunSpec) -> bool {
    !spec.asked.is_empty() || !spec.policy.require.is_empty()
}

/// What has to be taken away again if bringing up fails.
struct Undo<'a> {
    spec: &'a RunSpec,
    group: Option<Group>,
    /// Why there is none although one can be made.
    ungrouped: Option<String>,
    init: Option<Held>,
    listening: bool,
}

impl Undo<'_> {
    /// Init begins its life, and is ended if we fail.
    fn begin_init(
        &mut self,
        vessel: &Vessel,
        plan: &InitSpec<'_>,
        files: Option<&MachineFiles>,
        channel: Channel,
    ) -> Result<Way, Failure> {
        let (child, mut way) = arrival::begin(vessel, plan, files, channel)?;
        self.hold(match (way.life.take(), vessel) {
            (None, Vessel::Namespaces) => Held::with_view(child),
            (None, _) => Held::new(child),
            (Some(life), _) => Held::attended(child, life),
        })?;
        Ok(way)
    }

    /// One that waits for its plan is taken, and ended if we fail.
    fn take_init(&mut self, blank: Blank) -> Result<(Channel, Way), Failure> {
        let taken = blank.take();
        let (init, channel) = taken.ok_or_else(|| Failure::invalid("init is missing"))?;
        self.hold(init)?;
        Ok((channel, Way::to_blank()))
    }

    fn hold(&mut self, init: Held) -> Result<(), Failure> {
        self.init = Some(init);
        failpoint::hit("create.init").step(|| "pass a failpoint".into())
    }

    /// The sandbox's cgroup is made, if one can be, and is removed if we fail.
    fn make_group(&mut self, vessel: &Vessel) -> Result<(), Failure> {
        match make_group(self.spec, vessel)? {
            Ok(group) => self.group = Some(group),
            Err(CgroupError::LimitsNothing { reason }) => self.ungrouped = Some(reason),
            // A host without a usable cgroup is no failure here; the report will say so.
            Err(_) => {}
        }
        failpoint::hit("create.cgroup").step(|| "pass a failpoint".into())
    }

    fn end_init(&mut self) {
        if let Some(mut init) = self.init.take() {
            init.kill();
            init.wait();
        }
    }

    fn disarm(&mut self) -> (Option<Group>, Option<Held>) {
        self.listening = false;
        (self.group.take(), self.init.take())
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.end_init();
        if let Some(group) = self.group.take() {
            let _ = group.remove();
        }
        if self.listening {
            let _ = std::fs::remove_file(self.spec.directory.join("keeper.sock"));
        }
    }
}

/// A socket's address holds 107 bytes; through the directory's descriptor any path fits.
pub fn socket_address(directory: &OwnedFd) -> io::Result<SocketAddrUnix> {
    use rustix::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}/keeper.sock", directory.as_raw_fd());
    Ok(SocketAddrUnix::new(path)?)
}

fn listen(spec: &RunSpec) -> Result<OwnedFd, Failure> {
    let step = || format!("listen in `{}`", spec.directory.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&spec.directory, flags, Mode::empty()).step(step)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .step(step)?;
    rustix::net::bind(&socket, &socket_address(&directory).step(step)?).step(step)?;
    rustix::net::listen(&socket, 64).step(step)?;
    Ok(socket)
}

/// Makes the group of a sandbox; a host that has none to give is no failure here.
pub(crate) fn make_group(
    spec: &RunSpec,
    vessel: &Vessel,
) -> Result<Result<Group, CgroupError>, Failure> {
    let parent =
        ParentName::parse(CGROUP_PARENT).map_err(|e| Failure::invalid(skep_types::chain(&e)))?;
    let mut limits = GroupLimits::from(&spec.policy.limits);
    if vessel.machine().is_some() {
        limits = machine::with_room(limits);
    }
    if vessel.tasks() == Tasks::Foreign {
        // The tasks counted here are the runtime's own.
        limits.pids = limits.pids.map(|pids| pids.max(RUNTIME_TASKS));
    }
    Ok(CgroupHost::locate(parent).create(&spec.id, &limits))
}
