//! Process number 1 of a sandbox: builds the view, starts processes, reaps.
//!
//! It is a fork of the keeper that never executes anything itself, so its memory is mostly shared
//! with the keeper's; in some vessels it is this program, executed anew by somebody else. It dies with the keeper, and with it, because it is number 1 of its pid
//! namespace, everything inside.

mod marks;
mod serve;

use crate::caller;
use crate::channel::{Channel, from_file};
use crate::confinement::Confinement;
use crate::failure::{Failure, Step};
use crate::identity::{self, IdMap};
use crate::machine::{self, Inside, InsideMachine};
use crate::network::inside::Doors;
use crate::network::{self, inside};
use crate::probe;
use crate::protocol::{FromInit, ToInit};
use crate::spawn;
use crate::vessel;
use crate::view::apply::{self, Opened, WorkspaceParts};
use crate::view::fuse::FuseOrder;
use crate::view::ground::{Begun, Left};
use crate::view::image::ImageParts;
use crate::view::plan::{self, CowDirectory, GroundSpec, SystemEntry, ViewOp, ViewSpec};
use crate::view::sources::{self, SourceSpec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Signal};
use serde::{Deserialize, Serialize};
use serve::Init;
use skep_machine::boot::MachineFiles;
use skep_provider::RunSpec;
use skep_sys::newborn::{Errand, Step as Newborn, Steps};
use skep_sys::processors::{Processors, Turns};
use skep_sys::signal::SignalFd;
use skep_types::{EnforcementReport, MachineSpec, NetworkMode, SystemView};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// What init needs to know, decided by the keeper before the fork, or sent to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InitSpec<'a> {
    /// The sandbox.
    pub run: Cow<'a, RunSpec>,
    /// The machine its commands run in, if they do.
    pub machine: Option<Cow<'a, MachineSpec>>,
    /// How it came to be.
    pub manner: Manner,
    /// Who it is.
    pub map: IdMap,
    /// Everything of the host that the view shows, in order.
    pub sources: Vec<SourceSpec>,
    /// Which of them make the workspace.
    pub parts: WorkspaceParts,
    /// Index of the messages directory, the first home piece, the first extra mount.
    pub places: Places,
    /// What of the home is shown, relative to it.
    #[serde(with = "skep_provider::paths::many")]
    pub home_pieces: Vec<PathBuf>,
    /// Directories around them that have more in them than is shown.
    #[serde(with = "skep_provider::paths::many")]
    pub home_directories: Vec<PathBuf>,
    /// Links in those.
    pub home_links: Vec<crate::view::home::Link>,
    /// The image whose system is shown instead of the host's.
    pub image: Option<ImageParts>,
    /// Directories of the system that can be written.
    pub copy_on_write: Vec<CowDirectory>,
    /// Size of each private filesystem in memory.
    pub scratch_size: u64,
    /// Those of the sources that come later, with a second word to go on: the caller makes them while
    /// the view is being built.
    pub late: Vec<usize>,
    /// Whether a command follows at once, in namespaces of the keeper's.
    pub first: bool,
    /// What an earlier start found inside.
    pub known: Option<EnforcementReport>,
    /// The release of the host's kernel, where another one may answer inside.
    pub host_kernel: Option<String>,
}

/// How init came to be, and so what is left for it to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// A fork of the keeper in new namespaces, which it fills itself.
    Forked,
    /// Executed in namespaces that somebody else made and whose ids are mapped.
    Wrapped,
    /// A fork of the keeper without namespaces, or with one for mounts.
    Bare {
        /// Whether the workspace stands in the project's place.
        mounts: bool,
    },
    /// Executed in a container whose view is finished.
    Contained(Outlet),
}

/// Whether descriptors can be sent out of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outlet {
    /// They can.
    Open,
    /// They cannot: handles on processes stay inside, terminals are relayed through pipes.
    Closed,
}

impl InitSpec<'_> {
    /// Whether the workspace stands elsewhere than at the project's path.
    pub fn elsewhere(&self) -> bool {
        self.manner == Manner::Bare { mounts: false }
    }

    /// Whether neither we nor anybody we started has mounted the workspace.
    pub fn is_mounted_by_others(&self) -> bool {
        self.map == IdMap::Host && matches!(self.manner, Manner::Contained(_))
    }

    fn is_bare(&self) -> bool {
        matches!(self.manner, Manner::Bare { .. })
    }

    fn outlet(&self) -> Outlet {
        match self.manner {
            Manner::Contained(outlet) => outlet,
            _ => Outlet::Open,
        }
    }
}

/// Indices into the sources.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Places {
    /// Shown at `/run/skep`.
    pub messages: usize,
    /// First home piece.
    pub home: usize,
    /// First extra mount.
    pub mounts: usize,
    /// This program, where an OCI runtime executes it as init.
    pub init_program: Option<usize>,
}

/// The life of init. `files` are what a machine is booted from. Returns its exit code.
pub fn run(spec: &InitSpec<'_>, files: Option<&MachineFiles>, channel: Channel) -> i32 {
    go_on(spec, files, channel, None, None)
}

fn go_on(
    spec: &InitSpec<'_>,
    files: Option<&MachineFiles>,
    channel: Channel,
    before: Option<Beforehand>,
    usual: Option<Turns>,
) -> i32 {
    match set_up(spec, files, &channel, before) {
        Ok((mut init, report, left)) => {
            let (facts, handle) = match &init.machine {
                Some(machine) => (machine.facts(), vec![machine.handle()]),
                None => Default::default(),
            };
            if channel.send(&FromInit::Ready(report, facts), &handle).is_err() {
                return 1;
            }
            // While the keeper gets ready too. Nothing is started before; if it fails, nothing ever is.
            if left.is_some_and(|left| left.forget().is_err()) {
                return 1;
            }
            if spec.first {
                // While its order is on the way.
                init.waiting = spawn::prepare(init.confinement, usual);
            }
            let _ = usual.map(|usual| usual.take());
            init.serve(&channel)
        }
        Err(failure) => fail(&channel, failure),
    }
}

/// The life of an init that is there before its plan. Until then it does what nearly every plan would have it do: it takes
/// on the ids of `map`, has a network made, and begins a view. `processors` are those that it may use once it is
/// ready, and from then on it takes its turns as is `usual`, and so does what it starts. Returns its exit code.
pub fn run_blank(
    channel: Channel,
    map: IdMap,
    (processors, usual): (Option<Processors>, Option<Turns>),
) -> i32 {
    let alone = || skep_sys::process::close_all_but(&[channel.as_fd()]);
    // The end of the channel ends it too, should the keeper have died before this.
    if die_with_parent().is_err() || alone().is_err() || caller::leave().is_err() {
        return 1;
    }
    let before = match Beforehand::make(map, &channel, processors) {
        Ok(before) => before,
        Err(failure) => return fail(&channel, failure),
    };
    let Ok(plan) = receive_plan(&channel) else { return 1 };
    // Commands inherit what it has. Where they are others by now, what it has is as good.
    let _ = processors.map(|all| all.use_all());
    go_on(&plan, None, channel, Some(before), usual)
}

/// Says why nothing comes of it. Returns its exit code.
fn fail(channel: &Channel, failure: Failure) -> i32 {
    // If the keeper is gone too, nobody is left to tell.
    let _ = channel.send(&FromInit::Failed(failure), &[]);
    1
}

/// What an init that was there before its plan has done.
struct Beforehand {
    system_entries: Vec<SystemEntry>,
    /// Whoever makes its network beside it: that takes as long as all other namespaces together.
    network: Errand,
    /// `None` if it could not be begun: whoever builds it from the beginning says why.
    begun: Option<Begun>,
}

impl Beforehand {
    fn make(
        map: IdMap,
        channel: &Channel,
        processors: Option<Processors>,
    ) -> Result<Self, Failure> {
        leave_watches_for_the_caller();
        map.write_own()?;
        if map == IdMap::Range {
            wait_for_go(channel)?;
            identity::become_inside_root()?;
            // Changing ids has cleared the death signal.
            die_with_parent()?;
        }
        // First of all: it takes as long as the whole view. A child may be put on our processor, and go first.
        let elsewhere = processors.and_then(|all| all.others()).map(Newborn::Processors);
        let steps = elsewhere.into_iter().chain([Newborn::Network]);
        let network = Errand::send(Steps(steps.map(|step| (0, step)).collect()));
        let network = network.step(|| "make a process".into())?;
        let system_entries = sources::system_entries();
        let begun = Begun::with(plan::ground(&GroundSpec::usual(&system_entries))).ok();
        Ok(Self { system_entries, network, begun })
    }
}

/// Enters the network that was made meanwhile.
fn enter(network: Errand) -> Result<(), Failure> {
    let made = network.finish().map_err(|(mark, errno)| match mark {
        Some(_) => Failure::no_network(io::Error::from_raw_os_error(errno)),
        None => Failure::Said {
            operation: "make the sandbox's network".into(),
            reason: "the process that was to make it was killed".into(),
        },
    })?;
    let made = made.ok_or_else(|| Failure::invalid("no network was brought"))?;
    skep_sys::network::enter_namespace(&made).step(|| "enter the sandbox's network".into())
}

/// Waits for the plan.
pub fn receive_plan(channel: &Channel) -> io::Result<InitSpec<'static>> {
    loop {
        let (message, mut descriptors) = channel.receive::<ToInit>()?;
        if let (ToInit::Spec, Some(plan)) = (message, descriptors.pop()) {
            return from_file(plan);
        }
    }
}

/// 1. Die with the keeper, from the very start.
/// 2. Map the own id, or wait until the keeper has mapped the range.
/// 3. Open what the view is made from, while the host's tree is still there.
/// 4. Become the user that all processes inside are (root's range only).
/// 5. Build the view and leave the host's tree.
/// 6. The network, if it was made beside the view; name and loopback; nothing inside can read init's memory or descriptors
///    from here on.
/// 7. Prepare the fences once, and probe them from a child that wears them, unless that was done
///    under the same circumstances a moment ago: then, and only then, the host's tree is still
///    mounted, for the caller to forget before anything is started.
/// 8. Boot the machine, where commands run in one.
fn set_up(
    spec: &InitSpec<'_>,
    files: Option<&MachineFiles>,
    channel: &Channel,
    before: Option<Beforehand>,
) -> Result<(Init, EnforcementReport, Option<Left>), Failure> {
    if !spec.is_bare() {
        die_with_parent()?;
    }
    if before.is_none() {
        let mut kept = vec![channel.as_fd()];
        kept.extend(files.iter().flat_map(|files| files.descriptors()));
        skep_sys::process::close_all_but(&kept).step(|| "close inherited descriptors".into())?;
    }
    let Taken { project, doors, mut left } = take_place(spec, channel, before)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "hide init from the inside".into())?;
    if !spec.is_bare() {
        // Changing ids has cleared the death signal.
        die_with_parent()?;
    }
    if files.is_some() {
        skep_machine::boot::keep_capabilities()
            .step(|| "keep the capabilities of the share daemon".into())?;
    }
    // It is worn until init ends.
    let confinement: &'static Confinement = Box::leak(Box::new(confinement_for(spec)?));
    let known = spec.known.clone();
    let mut report = match known.filter(|known| probe::fits(known, &spec.run, confinement)) {
        Some(known) if files.is_none() => known,
        known => {
            left.take().map_or(Ok(()), Left::forget)?;
            known.map_or_else(|| probe::from_inside(spec, confinement), Ok)?
        }
    };
    let machine = match (&spec.machine, files) {
        (Some(machine), Some(files)) => {
            let inside = Inside {
                run: &spec.run,
                map: spec.map,
                image: spec.image.as_ref().map(ImageParts::shared),
                confinement,
                doors,
            };
            Some(InsideMachine::boot(machine, files, &inside, &mut report)?)
        }
        _ => None,
    };
    let signals = SignalFd::new(&[libc::SIGCHLD]).step(|| "watch for ended processes".into())?;
    let init = Init {
        running: HashMap::new(),
        terminals: HashMap::new(),
        marks: marks::Marks::default(),
        signals,
        project,
        confinement,
        waiting: None,
        machine,
        outlet: spec.outlet(),
        bare: spec.is_bare(),
        stopped: None,
        moved: None,
        told: false,
        held: Default::default(),
        host_ids: spec.map == IdMap::Host,
    };
    Ok((init, report, left))
}

/// What [`take_place`] comes to.
struct Taken {
    /// The project as it is inside.
    project: OwnedFd,
    /// The doors, where init has made any.
    doors: Option<Doors>,
    /// The host's tree, where init has left it.
    left: Option<Left>,
}

/// Steps 2 to 6, as far as they are left for init.
fn take_place(
    spec: &InitSpec<'_>,
    channel: &Channel,
    before: Option<Beforehand>,
) -> Result<Taken, Failure> {
    let serve = |order: &FuseOrder| have_served(order, channel);
    match spec.manner {
        Manner::Forked | Manner::Wrapped => {
            let place = late_place(spec)?;
            let later = || late_sources(spec, channel, place.as_ref());
            let (mut opened, system_entries, network, begun): (Opened<'_>, _, _, _) = match before {
                Some(Beforehand { system_entries, network, begun, .. }) => {
                    let opened = opened(spec, wait_for_go(channel)?)?;
                    (opened.into(), system_entries, Some(network), begun)
                }
                None => {
                    let opened = settle(spec, channel)?;
                    leave_watches_for_the_caller();
                    (opened.into(), sources::system_entries(), None, None)
                }
            };
            if !spec.late.is_empty() {
                spec.late.iter().for_each(|index| opened.now.insert(*index, None));
                opened.later = Some(&later);
            }
            let ops = plan_with(spec, &system_entries);
            let plan = (ops.as_slice(), spec.scratch_size);
            let left = Some(apply::build(plan, begun, opened, &spec.parts, &serve)?);
            let connected = network.map(enter).transpose()?.is_some();
            rustix::system::sethostname(spec.run.name.as_str().as_bytes())
                .step(|| "set the host name".into())?;
            let doors = match (spec.run.policy.network, connected) {
                // The loopback is on.
                (NetworkMode::None, true) => None,
                (network, _) => connect(network, channel)?,
            };
            Ok(Taken { project: open_project(spec)?, doors, left })
        }
        Manner::Bare { .. } => {
            let opened = settle(spec, channel)?;
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
                .step(|| "adopt orphans".into())?;
            let project = vessel::bare_workspace(spec, opened, &serve)?;
            Ok(Taken { project, doors: None, left: None })
        }
        Manner::Contained(_) => {
            identity::take_on(spec.map, spec.run.policy.user)?;
            let project = open_project(spec)?;
            if spec.is_mounted_by_others() {
                // The keeper looks whether it is the workspace.
                channel
                    .send(&FromInit::Workspace, &[project.as_fd()])
                    .step(|| "show the keeper the workspace".into())?;
            }
            Ok(Taken { project, doors: None, left: None })
        }
    }
}

fn confinement_for(spec: &InitSpec<'_>) -> Result<Confinement, Failure> {
    let whole = || Confinement::prepare(&spec.run.policy, &spec.run.project, &spec.run.home);
    match (spec.manner, spec.map) {
        (Manner::Bare { .. }, IdMap::Host) => Ok(Confinement::none()),
        (Manner::Bare { .. }, _) => Confinement::privileges_only(),
        (Manner::Contained(Outlet::Closed), _) => whole().map(Confinement::without_notes),
        (Manner::Forked | Manner::Wrapped | Manner::Contained(Outlet::Open), _) => whole(),
    }
}

/// Steps 2 to 4: with the ids of the sandbox, and with everything open that the view shows.
///
/// Without isolation init does not die with the keeper but ends what it has started, then itself.
pub fn settle(spec: &InitSpec<'_>, channel: &Channel) -> Result<Vec<OwnedFd>, Failure> {
    if spec.manner != Manner::Wrapped {
        spec.map.write_own()?;
    }
    let opened = opened(spec, wait_for_go(channel)?)?;
    if spec.map == IdMap::Range {
        identity::become_inside_root()?;
    }
    Ok(opened)
}

/// What the view is made from, but for what comes late: passed by the keeper, or opened here.
fn opened(spec: &InitSpec<'_>, passed: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, Failure> {
    match spec.map {
        IdMap::Range => Ok(passed),
        // Nothing is mounted, so nothing has to be cloned for it.
        _ if spec.elsewhere() => Ok(Vec::new()),
        IdMap::Own { .. } | IdMap::Host => {
            let there = spec.sources.iter().enumerate();
            let there = there.filter(|(index, _)| !spec.late.contains(index));
            there.map(|(_, source)| sources::open(source, None)).collect()
        }
    }
}

/// Watches of files are counted for the caller too, whoever makes them: without a limit of its own a
/// sandbox would take all the caller has, and editors and servers outside would get none. A sixteenth each:
/// several sandboxes run at a time, and nobody counts them together; eight at most leave the caller half.
///
/// What is written here holds for the writer's user namespace. A kernel without these files counts
/// otherwise.
fn leave_watches_for_the_caller() {
    let shares = [
        ("max_user_instances", "max_inotify_instances", 16),
        ("max_user_watches", "max_inotify_watches", 16),
    ];
    for (host, own, share) in shares {
        let most = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{host}")).ok();
        let most = most.and_then(|text| text.trim().parse::<u64>().ok());
        if let Some(most) = most {
            let _ = std::fs::write(format!("/proc/sys/user/{own}"), (most / share).to_string());
        }
    }
}

/// Where late sources will lie, opened while nothing covers the way there; the keeper passes them
/// where it is the one to open them.
fn late_place(spec: &InitSpec<'_>) -> Result<Option<OwnedFd>, Failure> {
    if spec.late.is_empty() || spec.map == IdMap::Range {
        return Ok(None);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = spec.run.directory.parent().unwrap_or(Path::new("/"));
    let opened = rustix::fs::open(place, flags, Mode::empty());
    opened.map(Some).step(|| format!("open `{}`", place.display()))
}

/// Waits for the late sources.
fn late_sources(
    spec: &InitSpec<'_>,
    channel: &Channel,
    place: Option<&OwnedFd>,
) -> Result<Vec<(usize, OwnedFd)>, Failure> {
    let passed = wait_for_go(channel)?;
    let late = spec.late.iter().copied();
    let Some(place) = place else { return Ok(late.zip(passed).collect()) };
    let parent = spec.run.directory.parent().unwrap_or(Path::new("/"));
    late.map(|index| {
        let source = spec.sources.get(index);
        let source = source.ok_or_else(|| Failure::invalid("a late source is not in the plan"))?;
        let below = source.path.strip_prefix(parent).unwrap_or(&source.path);
        Ok((index, sources::open_at(place.as_fd(), below, source, None)?))
    })
    .collect()
}

pub(crate) fn die_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "bind init's life to the keeper's".into())
}

fn wait_for_go(channel: &Channel) -> Result<Vec<OwnedFd>, Failure> {
    let mut sources = Vec::new();
    loop {
        let (message, descriptors) = channel.receive().step(|| "wait for the keeper".into())?;
        sources.extend(descriptors);
        match message {
            ToInit::Sources => {}
            ToInit::Go => return Ok(sources),
            other => return Err(Failure::invalid(format!("init was told {other:?} too early"))),
        }
    }
}

/// The sandbox's own network: `lo`, and where something may be reached, the doors to it.
pub(crate) fn connect(network: NetworkMode, channel: &Channel) -> Result<Option<Doors>, Failure> {
    if network == NetworkMode::Host {
        return Ok(None);
    }
    skep_sys::network::loopback_up().step(|| "switch the loopback on".into())?;
    if network == NetworkMode::None {
        return Ok(None);
    }
    let (doors, sockets) = inside::open_doors()?;
    let step = || "pass the doors to the keeper".to_owned();
    let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    channel.send(&FromInit::Connect(doors), &descriptors).step(step)?;
    // Ours are closed here: with the egress process gone for good, nobody must seem to listen.
    drop(sockets);
    match channel.receive().step(step)?.0 {
        ToInit::Connected(result) => result.map(|()| Some(doors)),
        other => Err(Failure::invalid(format!("init was told {other:?} too early"))),
    }
}

/// The steps that build the view.
pub fn plan_of(spec: &InitSpec<'_>) -> Vec<ViewOp> {
    plan_with(spec, &sources::system_entries())
}

fn plan_with(spec: &InitSpec<'_>, system_entries: &[SystemEntry]) -> Vec<ViewOp> {
    plan::plan(&ViewSpec {
        project: &spec.run.project,
        scope: &spec.run.policy.scope,
        home: &spec.run.home,
        ground: GroundSpec {
            devices: machine::devices(spec.machine.as_deref()),
            system_entries,
            copy_on_write: &spec.copy_on_write,
            image: spec.image.as_ref(),
            init_program: spec.places.init_program,
        },
        mounts: &spec.run.policy.mounts,
        mounts_from: spec.places.mounts,
        home_pieces: &spec.home_pieces,
        home_directories: &spec.home_directories,
        home_links: &spec.home_links,
        home_from: spec.places.home,
        messages: spec.places.messages,
        files: own_files(&spec.run),
        // The sandbox's directory is `sandboxes/ID` there.
        state: spec.run.directory.ancestors().nth(2).unwrap_or(&spec.run.directory),
    })
}

fn open_project(spec: &InitSpec<'_>) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(&spec.run.project, flags, Mode::empty())
        .step(|| format!("open the project `{}` inside", spec.run.project.display()))
}

/// Whom names are asked of, and which are known: not what the host says. A system that can be
/// changed keeps its own list of hosts, because that is something to change.
fn own_files(run: &RunSpec) -> Vec<(&'static str, String)> {
    let resolver = match run.policy.network {
        NetworkMode::Host => return Vec::new(),
        NetworkMode::Allow => network::RESOLV_CONF,
        NetworkMode::None => network::NO_RESOLV_CONF,
    };
    let mut files = vec![("/etc/resolv.conf", resolver.to_owned())];
    if run.policy.system == SystemView::Ro {
        files.push(("/etc/hosts", network::hosts_file(run.name.as_str())));
    }
    files
}

/// Asks the keeper to start fuse-overlayfs, and waits until it answers.
pub fn have_served(order: &FuseOrder, channel: &Channel) -> Result<OwnedFd, Failure> {
    let step = || format!("mount the {} by fuse-overlayfs", order.what);
    let own = |name| File::open(Path::new("/proc/self/ns").join(name)).step(step);
    let (user, mount) = (own("user")?, own("mnt")?);
    let order = FromInit::Serve(order.clone());
    channel.send(&order, &[user.as_fd(), mount.as_fd()]).step(step)?;
    let (answer, mut mount) = channel.receive().step(step)?;
    match answer {
        ToInit::Served(result) => result?,
        other => return Err(Failure::invalid(format!("init was told {other:?} too early"))),
    }
    let mount = mount.pop().ok_or_else(|| Failure::invalid("a mount came without itself"))?;
    // Waits for the program; an error means that it has ended.
    rustix::fs::fstatfs(&mount).step(step)?;
    rustix::fs::fstat(&mount).step(step)?;
    Ok(mount)
}
