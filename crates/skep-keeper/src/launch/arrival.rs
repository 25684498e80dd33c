//! Init, from its beginning in the vessel to its report.

use super::workspace;
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use crate::identity::IdMap;
use crate::init::{self, InitSpec, Manner};
use crate::network::inside;
use crate::network::place::Place;
use crate::network::process::Egress;
use crate::network::publish::{Publisher, Taken};
use crate::owner::{Owner, OwnerMaps};
use crate::protocol::{FromInit, ToInit};
use crate::vessel::{self, Door, Held, Runtime, Vessel};
use crate::view::fuse::{self, Served, Server};
use crate::view::outside;
use crate::view::sources;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::Pid;
use skep_confine::cgroup::Group;
use skep_machine::boot::MachineFiles;
use skep_provider::RunSpec;
use skep_sys::message::MAX_DESCRIPTORS;
use skep_sys::process::{Child, Namespaces, clone_with};
use skep_types::{EnforcementReport, NetworkMode, WorkspaceDriver};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;

/// Seconds that a program which was to execute init may take between two words.
const START_PATIENCE: i64 = 60;

/// How init is reached until it is ready.
#[derive(Default)]
pub struct Way {
    /// What programs on the way have said.
    said: Option<OwnedFd>,
    /// Opened when ids and cgroup are settled, for a program that cannot wait for a message.
    gate: Option<OwnedFd>,
    /// The user namespace it will be in, where that exists already.
    namespace: Option<OwnedFd>,
    /// Whether init is there and waits for its plan.
    sends_plan: bool,
    /// Whether its ids are mapped already.
    mapped: bool,
    /// Where it knocks, if the channel could not be handed on.
    door: Option<Door>,
    /// What our child lives by.
    pub life: Option<OwnedFd>,
}

impl Way {
    /// To an init that has its ids and waits for its plan.
    pub fn to_blank() -> Self {
        Self { sends_plan: true, mapped: true, ..Self::default() }
    }

    /// The channel to an init that has to knock, and with it init itself.
    pub fn welcome(
        &mut self,
        held: &mut Held,
        plan: &InitSpec<'_>,
    ) -> Result<Option<Channel>, Failure> {
        let Some(door) = self.door.take() else { return Ok(None) };
        match door.welcome(held) {
            Ok(channel) => Ok(Some(channel)),
            Err(failure) => {
                // It says what went wrong before it ends, and it ends when it is told to.
                held.kill();
                held.wait();
                match self.said.as_ref().map(vessel::said).filter(|said| !said.is_empty()) {
                    Some(said) => Err(not_started(plan, &said)),
                    None => Err(failure),
                }
            }
        }
    }
}

fn not_started(plan: &InitSpec<'_>, said: &str) -> Failure {
    Failure::missing(
        format!("the provider `{}`", plan.run.provider),
        format!("it did not start the sandbox: {said}"),
        "see `skep providers` for what works here",
    )
}

/// Begins it: our child is init itself, or whoever will execute it.
pub fn begin(
    vessel: &Vessel,
    plan: &InitSpec<'_>,
    files: Option<&MachineFiles>,
    channel: Channel,
) -> Result<(Child, Way), Failure> {
    let forked = |child| (child, Way::default());
    match vessel {
        Vessel::Namespaces | Vessel::Machine(_) => {
            clone_init(all_namespaces(plan), plan, files, channel).map(forked)
        }
        Vessel::Bare { mounts: false } => {
            clone_init(Namespaces::NONE, plan, None, channel).map(forked)
        }
        Vessel::Bare { mounts: true } => {
            let namespaces = match plan.map {
                IdMap::Host => Namespaces::MOUNT,
                _ => Namespaces::MOUNT.with(Namespaces::USER),
            };
            clone_init(namespaces, plan, None, channel).map(forked)
        }
        Vessel::Bubblewrap { bwrap, skep } => {
            let said = words()?;
            let (gate, opener) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                .step(|| "make a gate".into())?;
            let namespace = match plan.map {
                IdMap::Range => Some(Owner::ROOT.namespace()?),
                _ => None,
            };
            let order = vessel::BubblewrapOrder {
                bwrap,
                skep,
                map: plan.map,
                network: plan.run.policy.network,
                said: said.as_fd(),
                channel: channel.as_fd(),
                gate: gate.as_fd(),
            };
            let child = vessel::start_bubblewrap(&order, namespace.as_ref())
                .step(|| "start bwrap".into())?;
            let way = Way {
                said: Some(said),
                gate: Some(opener),
                namespace,
                sends_plan: true,
                ..Way::default()
            };
            Ok((child, way))
        }
        Vessel::Runtime(runtime) => {
            let said = words()?;
            let copy = said.try_clone().step(|| "make room for messages".into())?;
            let child = clone_stage(runtime, plan, channel, copy)?;
            Ok((child, Way { said: Some(said), ..Way::default() }))
        }
        Vessel::Attended(attended) => {
            let door = Some(Door::open(&plan.run.directory)?);
            let said = words()?;
            let (child, life) = vessel::start_attended(attended, &said)
                .step(|| "start the container's attendant".into())?;
            let (said, life) = (Some(said), Some(life));
            Ok((child, Way { said, life, door, sends_plan: true, ..Way::default() }))
        }
    }
}

/// Room for what programs on the way say.
fn words() -> Result<OwnedFd, Failure> {
    rustix::fs::memfd_create("said", rustix::fs::MemfdFlags::CLOEXEC)
        .step(|| "make room for messages".into())
}

/// Those of a sandbox that has a network of its own.
const ALL_NAMESPACES: Namespaces = WITH_THE_HOSTS_NETWORK.with(Namespaces::NETWORK);

/// Those of one that has the host's, or makes its own later.
pub(super) const WITH_THE_HOSTS_NETWORK: Namespaces = Namespaces::USER
    .with(Namespaces::MOUNT)
    .with(Namespaces::PID)
    .with(Namespaces::IPC)
    .with(Namespaces::UTS)
    .with(Namespaces::CGROUP);

fn all_namespaces(plan: &InitSpec<'_>) -> Namespaces {
    match plan.run.policy.network {
        NetworkMode::Host => WITH_THE_HOSTS_NETWORK,
        _ => ALL_NAMESPACES,
    }
}

fn clone_init(
    namespaces: Namespaces,
    plan: &InitSpec<'_>,
    files: Option<&MachineFiles>,
    channel: Channel,
) -> Result<Child, Failure> {
    clone_with(namespaces, move || init::run(plan, files, channel)).map_err(Failure::no_namespaces)
}

fn clone_stage(
    runtime: &Runtime,
    plan: &InitSpec<'_>,
    channel: Channel,
    said: OwnedFd,
) -> Result<Child, Failure> {
    let stage = move || vessel::run_stage(plan, runtime, channel, said);
    clone_with(all_namespaces(plan), stage).map_err(Failure::no_namespaces)
}

/// Init on its way.
pub struct Arrival<'a> {
    plan: &'a InitSpec<'a>,
    channel: &'a Channel,
    way: Way,
    /// Where the sandbox's network is, if somebody outside has to do with it.
    place: Option<Place>,
    published: Vec<Taken>,
    publisher: Option<Publisher>,
    /// The way out, where init has no power to make it.
    egress: Option<Egress>,
}

/// What init reports when it is up, and whom it had started on the way.
pub struct Up {
    pub report: EnforcementReport,
    /// What else was seen.
    pub facts: BTreeMap<String, String>,
    pub servers: Vec<Server>,
    pub egress: Option<Egress>,
    pub publisher: Option<Publisher>,
    /// Init itself, where it is not our child.
    pub handle: Option<OwnedFd>,
}

impl<'a> Arrival<'a> {
    /// It has begun. `published` are ports of the host that shall lead inside.
    pub fn new(
        plan: &'a InitSpec<'a>,
        channel: &'a Channel,
        way: Way,
        published: Vec<Taken>,
    ) -> Self {
        Self { plan, channel, way, place: None, published, publisher: None, egress: None }
    }

    /// Where the sandbox's network is, if it is made together with our child.
    pub fn look_for_place(&mut self, vessel: &Vessel, child: &Held) -> Result<(), Failure> {
        match vessel {
            Vessel::Namespaces | Vessel::Machine(_) | Vessel::Runtime(_) => {
                self.found_place(child.pid)
            }
            // The engine's containers have no powers; the doors are made from here, before anything runs.
            Vessel::Attended(_) if self.plan.run.policy.network == NetworkMode::Allow => {
                let step = || "find the container's network".to_owned();
                let place = Place::of(child.pid.as_raw_nonzero().get()).step(step)?;
                let (doors, sockets) = inside::open_doors_at(&place)?;
                self.egress = Some(Egress::prepare(&self.plan.run, doors, place, sockets)?);
                Ok(())
            }
            Vessel::Bubblewrap { .. } | Vessel::Bare { .. } | Vessel::Attended(_) => Ok(()),
        }
    }

    fn found_place(&mut self, pid: Pid) -> Result<(), Failure> {
        let wanted = self.plan.run.policy.network == NetworkMode::Allow;
        if !wanted && self.published.is_empty() {
            return Ok(());
        }
        let place =
            Place::of(pid.as_raw_nonzero().get()).step(|| "find the sandbox's network".into())?;
        if !self.published.is_empty() {
            let published = std::mem::take(&mut self.published);
            self.publisher = Some(Publisher::start(published, &place)?);
        }
        self.place = Some(place);
        Ok(())
    }

    /// Settles ids and cgroup, and lets it go on.
    pub fn settle(&self, init: &Held, group: Option<&Group>) -> Result<(), Failure> {
        self.try_settle(init, group).map_err(|failure| or_last_word(self.channel, failure))
    }

    fn try_settle(&self, init: &Held, group: Option<&Group>) -> Result<(), Failure> {
        let Self { plan, channel, way, .. } = self;
        let pid = init.pid.as_raw_nonzero().get();
        if way.namespace.is_none() && !way.mapped {
            plan.map.write_for(pid)?;
        }
        if let Some(group) = group {
            let files = group.procs_files().map_err(|e| Failure::invalid(skep_types::chain(&e)))?;
            for file in files {
                rustix::io::write(&file, pid.to_string().as_bytes())
                    .step(|| "put init into its cgroup".into())?;
            }
        }
        let mut sources = Vec::new();
        if plan.map == IdMap::Range {
            let there = |index: &usize| !plan.late.contains(index);
            let there: Vec<usize> = (0..plan.sources.len()).filter(there).collect();
            sources = open_sources(self.namespace(init)?, plan, &there)?;
        }
        // All that it needs in one go: once it works, it does not wait.
        if way.sends_plan {
            send_plan(plan, channel)?;
        }
        pass_sources(sources, channel)?;
        self.go_on()?;
        match &way.gate {
            Some(gate) => vessel::open_gate(gate).step(|| "let init go on".into()),
            None => Ok(()),
        }
    }

    /// The late sources are there now.
    pub fn catch_up(&self, init: &Held) -> Result<(), Failure> {
        let pass = || match self.plan.map {
            IdMap::Range => {
                let sources = open_sources(self.namespace(init)?, self.plan, &self.plan.late)?;
                pass_sources(sources, self.channel)
            }
            _ => Ok(()),
        };
        let passed = pass().and_then(|()| self.go_on());
        passed.map_err(|failure| or_last_word(self.channel, failure))
    }

    fn go_on(&self) -> Result<(), Failure> {
        self.channel.send(&ToInit::Go, &[]).step(|| "let init go on".into())
    }

    /// The user namespace it is in, or will be.
    fn namespace(&self, init: &Held) -> Result<OwnedFd, Failure> {
        let opened = match &self.way.namespace {
            Some(namespace) => namespace.try_clone(),
            None => {
                let number = init.pid.as_raw_nonzero();
                File::open(format!("/proc/{number}/ns/user")).map(OwnedFd::from)
            }
        };
        opened.step(|| "open the sandbox's user namespace".into())
    }

    /// Until it is ready.
    pub fn wait(self, spec: &RunSpec) -> Result<Up, Failure> {
        let channel = self.channel;
        self.try_wait(spec).map_err(|failure| or_last_word(channel, failure))
    }

    fn try_wait(mut self, spec: &RunSpec) -> Result<Up, Failure> {
        let step = || "wait for init".to_owned();
        let mut served: Vec<Served> = Vec::new();
        let (mut egress, mut handle) = (self.egress.take(), None);
        let mut checked = !self.plan.is_mounted_by_others();
        loop {
            let (message, mut descriptors) = self.receive()?;
            match message {
                FromInit::Here => {
                    handle = descriptors.pop();
                    self.is_here(handle.as_ref())?;
                }
                FromInit::Workspace => {
                    let seen = descriptors.pop();
                    let seen = seen.ok_or_else(|| Failure::invalid("init shows no workspace"))?;
                    workspace::check(spec, &seen)?;
                    checked = true;
                }
                FromInit::Ready(..) if !checked => {
                    return Err(Failure::invalid("init did not show its workspace"));
                }
                FromInit::Ready(report, mut facts) => {
                    if let Some(pid) = descriptors.pop().as_ref().and_then(vessel::pid_of) {
                        facts.insert("vm_pid".into(), pid.as_raw_nonzero().to_string());
                    }
                    let servers = served.into_iter().map(|served| served.server).collect();
                    let publisher = self.publisher;
                    return Ok(Up { report, facts, servers, egress, publisher, handle });
                }
                FromInit::Connect(doors) => {
                    let place = self.place.take();
                    let place = place.ok_or_else(|| Failure::invalid("init asks twice"))?;
                    let prepared = Egress::prepare(spec, doors, place, descriptors);
                    let answer = prepared.as_ref().map(drop).map_err(Clone::clone);
                    self.channel.send(&ToInit::Connected(answer), &[]).step(step)?;
                    egress = Some(prepared?);
                }
                FromInit::Serve(order) => match fuse::serve(&order, self.plan.map, &descriptors) {
                    Ok(now) => {
                        let mount = [now.mount.as_fd()];
                        self.channel.send(&ToInit::Served(Ok(())), &mount).step(step)?;
                        served.push(now);
                    }
                    Err(failure) => {
                        self.channel.send(&ToInit::Served(Err(failure)), &[]).step(step)?;
                    }
                },
                FromInit::Failed(failure) => return Err(explain(failure, served.last())),
                other => return Err(Failure::invalid(format!("init said {other:?} too early"))),
            }
        }
    }

    /// An executed init has shown itself, with a handle on itself where one can be sent.
    fn is_here(&mut self, handle: Option<&OwnedFd>) -> Result<(), Failure> {
        if matches!(self.plan.manner, Manner::Contained(_)) {
            return send_plan(self.plan, self.channel);
        }
        match handle.and_then(vessel::pid_of) {
            Some(pid) => self.found_place(pid),
            None => Ok(()),
        }
    }

    fn receive(&self) -> Result<(FromInit, Vec<OwnedFd>), Failure> {
        // Whoever was to execute init may have lost it without ending.
        if self.way.said.is_some() {
            let patience = Timespec { tv_sec: START_PATIENCE, tv_nsec: 0 };
            let heard = poll(&mut [PollFd::new(self.channel, PollFlags::IN)], Some(&patience));
            if heard == Ok(0) {
                return Err(self.unheard(&io::ErrorKind::TimedOut.into()));
            }
        }
        self.channel.receive().map_err(|error| self.unheard(&error))
    }

    /// Init, or who should have executed it, is gone without a word to us; it may have had some to
    /// say.
    fn unheard(&self, error: &io::Error) -> Failure {
        let said = self.way.said.as_ref().map(vessel::said).unwrap_or_default();
        if said.is_empty() && error.kind() == io::ErrorKind::TimedOut {
            return not_started(
                self.plan,
                &format!("it said nothing for {START_PATIENCE} seconds"),
            );
        }
        if said.is_empty() {
            let reason = match error.kind() {
                io::ErrorKind::UnexpectedEof => "it ended without a word".to_owned(),
                _ => error.to_string(),
            };
            return Failure::Said { operation: "wait for init".into(), reason };
        }
        not_started(self.plan, &said)
    }
}

/// Whoever fails tells us before it ends. What we were about to do fails because of that, and the
/// first reason is the one to report.
fn or_last_word(channel: &Channel, failure: Failure) -> Failure {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    while poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&now)) == Ok(1) {
        match channel.receive::<FromInit>() {
            Ok((FromInit::Failed(first), _)) => return first,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    failure
}

fn send_plan(plan: &InitSpec<'_>, channel: &Channel) -> Result<(), Failure> {
    let step = || "send the plan to init".to_owned();
    let file = crate::channel::to_file(plan).step(step)?;
    channel.send(&ToInit::Spec, &[file.as_fd()]).step(step)
}

fn open_sources(
    namespace: OwnedFd,
    plan: &InitSpec<'_>,
    which: &[usize],
) -> Result<Vec<OwnedFd>, Failure> {
    let chosen = which.iter().filter_map(|index| plan.sources.get(*index));
    let mut owners = OwnerMaps::new(namespace);
    let mut opened: Vec<OwnedFd> =
        chosen.map(|spec| sources::open(spec, Some(&mut owners))).collect::<Result<_, _>>()?;
    if plan.parts.driver == WorkspaceDriver::OverlayRoot {
        let workspace = outside::overlay(&opened, &plan.parts)?;
        opened.push(workspace);
    }
    Ok(opened)
}

fn pass_sources(opened: Vec<OwnedFd>, channel: &Channel) -> Result<(), Failure> {
    for batch in opened.chunks(MAX_DESCRIPTORS) {
        let batch: Vec<_> = batch.iter().map(AsFd::as_fd).collect();
        channel.send(&ToInit::Sources, &batch).step(|| "pass the sources to init".into())?;
    }
    Ok(())
}

/// A program that ended instead of serving has usually said why.
fn explain(failure: Failure, served: Option<&Served>) -> Failure {
    match (failure, served.map(Served::said)) {
        (Failure::Step { operation, errno }, Some(said))
            if operation.contains("fuse-overlayfs") && !said.is_empty() =>
        {
            Failure::Step { operation: format!("{operation} (it said `{said}`)"), errno }
        }
        (failure, _) => failure,
    }
}
