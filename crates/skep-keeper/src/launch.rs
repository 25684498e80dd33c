//! Bringing a keeper up: from the caller's process to a running sandbox.

use crate::channel::Channel;
use crate::failure::{Failure, Step};
use crate::identity::{IdMap, RANGE_START};
use crate::init::{self, InitSpec, Places};
use crate::keeper::{Attendants, Keeper, Membership};
use crate::known::Known;
use crate::machine;
use crate::network;
use crate::network::place::Place;
use crate::network::process::Egress;
use crate::network::publish::{self, Publisher};
use crate::protocol::{FromInit, StartReport, ToInit, to_json};
use crate::view::apply::WorkspaceParts;
use crate::view::fuse::{self, SeenOwners, Served, Server};
use crate::view::plan::{CowDirectory, CowMethod};
use crate::view::sources::{self, Below, Owners, SourceSpec};
use crate::view::{outside, system};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use skep_confine::cgroup::{CgroupHost, Group, GroupLimits, ParentName};
use skep_confine::report::{Fallback, report_limits};
use skep_machine::boot::MachineFiles;
use skep_provider::{ProviderError, RunSpec, Started};
use skep_sys::failpoint;
use skep_sys::message::MAX_DESCRIPTORS;
use skep_sys::process::{Child, Namespaces, clone_with};
use skep_sys::signal::SignalFd;
use skep_types::{
    EnforcementReport, KeeperIdentity, Layer, Limits, NetworkMode, SystemView, WorkspaceDriver,
};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// The cgroup directory all of skep's groups lie under.
pub const CGROUP_PARENT: &str = "skep";

/// Starts a keeper for `spec` and waits until its sandbox is up.
///
/// Forks without an exec, so the caller must be single threaded. On error nothing is left.
pub fn start(spec: &RunSpec) -> Result<Started, ProviderError> {
    let setup = |source| ProviderError::Setup { operation: "start the keeper".into(), source };
    let (answer, report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| setup(error.into()))?;
    // The closure owns the writing end: here it is dropped unrun, and the keeper alone has it.
    let keeper = clone_with(Namespaces::NONE, move || run(spec, report)).map_err(setup)?;
    let mut bytes = Vec::with_capacity(16 << 10);
    File::from(answer).read_to_end(&mut bytes).map_err(setup)?;
    let gone = || setup(io::Error::other("the keeper ended without a word"));
    match serde_json::from_slice(&bytes).map_err(|_| gone())? {
        StartReport::Ready(enforcement) => {
            Ok(Started { keeper: identity_of(&keeper).map_err(setup)?, enforcement })
        }
        StartReport::Failed(failure) => {
            let _ = skep_sys::process::wait_for(&keeper);
            Err(failure.into())
        }
    }
}

fn identity_of(child: &Child) -> io::Result<KeeperIdentity> {
    let pid = child.pid.as_raw_nonzero().get();
    Ok(KeeperIdentity {
        pid: pid as u32,
        start_ticks: skep_sys::process::start_ticks(pid)?,
        boot_id: skep_sys::process::boot_id()?,
    })
}

/// The keeper's life. Returns its exit code.
fn run(spec: &RunSpec, report: OwnedFd) -> i32 {
    let up = detach(report.as_fd()).and_then(|umask| bring_up(spec, umask));
    let (message, keeper) = match up {
        Ok((keeper, terminate, enforcement)) => {
            (StartReport::Ready(enforcement), Some((keeper, terminate)))
        }
        Err(failure) => (StartReport::Failed(failure), None),
    };
    // If the caller is gone, the sandbox stays: its row is there, and so is the way to find it.
    let _ = rustix::io::write(&report, &to_json(&message));
    drop(report);
    match keeper {
        Some((keeper, terminate)) => {
            keeper.serve(&terminate);
            0
        }
        None => 1,
    }
}

/// Lets go of everything that belongs to the caller: terminal, directory, descriptors, environment.
fn detach(report: rustix::fd::BorrowedFd<'_>) -> Result<u32, Failure> {
    let step = || "detach the keeper".to_owned();
    rustix::process::setsid().step(step)?;
    skep_sys::process::close_all_but(&[report]).step(step)?;
    let null =
        rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step(step)?;
    rustix::stdio::dup2_stdin(&null).step(step)?;
    rustix::stdio::dup2_stdout(&null).step(step)?;
    rustix::stdio::dup2_stderr(&null).step(step)?;
    rustix::process::chdir("/").step(step)?;
    skep_sys::memory::wipe_environment();
    // Best effort: a kernel built without checkpointing does not tell where they are.
    let _ = skep_sys::memory::set_command_line("skep: keeper");
    skep_sys::signal::reset_all();
    skep_sys::signal::ignore(libc::SIGPIPE);
    Ok(rustix::process::umask(Mode::from_raw_mode(0o077)).bits())
}

/// 1. The socket: it is also what shows that nobody else holds this sandbox.
/// 2. Ports of the host that were named: one that is taken is told before anything is made.
/// 3. The cgroup, before the first process that must be counted.
/// 4. Init, with all its namespaces; ids and cgroup are settled before it goes on.
/// 5. Its report, joined with that of the limits; what was asked for and is not there is refused.
/// 6. Those who serve the inside: from here on it can be reached, and can reach.
fn bring_up<'a>(
    spec: &'a RunSpec,
    umask: u32,
) -> Result<(Keeper<'a>, SignalFd, EnforcementReport), Failure> {
    failpoint::hit("create.keeper").step(|| "pass a failpoint".into())?;
    let terminate = SignalFd::new(&[libc::SIGTERM]).step(|| "watch for signals".into())?;
    let mut undo = Undo { spec, group: None, init: None, listening: false };
    let listener = listen(spec)?;
    undo.listening = true;
    failpoint::hit("create.socket").step(|| "pass a failpoint".into())?;
    let published = publish::take(&spec.policy.egress.publish)?;
    undo.group = make_group(spec)?;
    failpoint::hit("create.cgroup").step(|| "pass a failpoint".into())?;
    let mut plan = SourcePlan::new(spec, undo.group.is_some())?;
    let known = Known::of(spec, plan.map);
    plan.known = known.as_ref().and_then(Known::recall);
    let files = spec.machine.as_ref().map(MachineFiles::open).transpose()?;
    let (ours, theirs) = Channel::pair().step(|| "make the channel to init".into())?;
    undo.init = Some(clone_init(spec, &plan, files.as_ref(), theirs)?);
    failpoint::hit("create.init").step(|| "pass a failpoint".into())?;
    let init = undo.init.as_ref().ok_or_else(|| Failure::invalid("init is missing"))?;
    let mut place = place_of(spec, init)?;
    let publisher = match published.is_empty() {
        true => None,
        false => place.as_ref().map(|place| Publisher::start(published, place)).transpose()?,
    };
    let strict = must_join_first(spec);
    let group = undo.group.as_ref().filter(|_| strict);
    settle_init(init, &plan, group, &ours)?;
    let up = wait_until_ready(spec, &ours, plan.map, &mut place)?;
    let Up { mut report, servers, mut egress } = up;
    failpoint::hit("create.ready").step(|| "pass a failpoint".into())?;
    if let Some(known) = known.filter(|_| plan.known.as_ref() != Some(&report)) {
        known.remember(&report);
    }
    report.0.extend(limits_report(spec, undo.group.as_ref()).0);
    if let Some(egress) = &mut egress {
        network::serve(egress, &mut report)?;
    }
    refuse_what_is_missing(spec, &report)?;
    let (group, init) = undo.disarm();
    let init = init.ok_or_else(|| Failure::invalid("init is missing"))?;
    let group = group.map(|group| Membership::new(group, strict));
    let attendants = Attendants { servers, publisher, egress };
    let keeper = Keeper::new(spec, listener, ours, init, group, umask, attendants);
    Ok((keeper.counting(plan.map.lent()), terminate, report))
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
    init: Option<Child>,
    listening: bool,
}

impl Undo<'_> {
    fn disarm(&mut self) -> (Option<Group>, Option<Child>) {
        self.listening = false;
        (self.group.take(), self.init.take())
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(init) = self.init.take() {
            let _ = rustix::process::pidfd_send_signal(&init.pidfd, Signal::KILL);
            let _ = skep_sys::process::wait_for(&init);
        }
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

fn make_group(spec: &RunSpec) -> Result<Option<Group>, Failure> {
    let parent =
        ParentName::parse(CGROUP_PARENT).map_err(|e| Failure::invalid(skep_types::chain(&e)))?;
    let mut limits = GroupLimits::from(&spec.policy.limits);
    if spec.machine.is_some() {
        limits = machine::with_room(limits);
    }
    // A host without a usable cgroup is no failure here; the report will say so.
    Ok(CgroupHost::locate(parent).create(&spec.id, &limits).ok())
}

/// Everything of the host the view is made from, in the order of the sources.
struct SourcePlan {
    map: IdMap,
    sources: Vec<SourceSpec>,
    home_pieces: Vec<PathBuf>,
    copy_on_write: Vec<CowDirectory>,
    parts: WorkspaceParts,
    places: Places,
    scratch_size: u64,
    known: Option<EnforcementReport>,
}

impl SourcePlan {
    fn new(spec: &RunSpec, counted: bool) -> Result<Self, Failure> {
        let plain = |path: PathBuf| SourceSpec {
            path,
            owners: Owners::Plain,
            below: Below::Included,
            identity: None,
        };
        let mut sources = vec![
            SourceSpec {
                path: spec.project.clone(),
                owners: Owners::Mapped,
                below: Below::Excluded,
                identity: Some(spec.root_identity),
            },
            SourceSpec { below: Below::Excluded, ..plain(spec.directory.clone()) },
            plain(spec.directory.join("messages")),
        ];
        let layers: Vec<usize> = (0..spec.layers.len()).map(|index| 3 + index).collect();
        sources.extend(spec.layers.iter().cloned().map(plain));
        let pieces = spec.policy.home.iter().map(|piece| piece.as_path().to_owned());
        let home_pieces: Vec<PathBuf> =
            pieces.filter(|piece| sources::exists(&spec.home.join(piece))).collect();
        let home = sources.len();
        sources.extend(home_pieces.iter().map(|piece| plain(spec.home.join(piece))));
        let mounts = sources.len();
        sources.extend(spec.policy.mounts.iter().map(|mount| SourceSpec {
            owners: match mount.access {
                skep_types::Access::Rw => Owners::Mapped,
                skep_types::Access::Ro => Owners::Plain,
            },
            ..plain(mount.source.as_path().to_owned())
        }));
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let map = IdMap::for_caller(uid.as_raw(), gid.as_raw(), &spec.policy);
        let copy_on_write = match spec.policy.system {
            SystemView::Ro => Vec::new(),
            SystemView::Cow => system_directories(spec, map, &mut sources)?,
        };
        if spec.driver == WorkspaceDriver::OverlayRoot && map != IdMap::Range {
            return Err(Failure::missing(
                "the workspace driver `overlay-root`",
                "only root can mount it",
                "start the sandbox as root, who made it",
            ));
        }
        let ready = (spec.driver == WorkspaceDriver::OverlayRoot).then_some(sources.len());
        Ok(Self {
            map,
            sources,
            home_pieces,
            copy_on_write,
            parts: WorkspaceParts {
                driver: spec.driver,
                project: 0,
                directory: 1,
                layers,
                ready,
                masked: !spec.hidden.is_empty(),
                owners: match map {
                    IdMap::Range => SeenOwners::AsStored,
                    IdMap::Own { .. } => SeenOwners::Inside,
                },
            },
            places: Places { messages: 2, home, mounts },
            scratch_size: scratch_size(&spec.policy.limits, counted),
            known: None,
        })
    }
}

/// What `--system cow` makes writable, with its sources.
fn system_directories(
    spec: &RunSpec,
    map: IdMap,
    sources: &mut Vec<SourceSpec>,
) -> Result<Vec<CowDirectory>, Failure> {
    let how = system::method(map)?;
    let mut directories = Vec::new();
    for path in system::directories() {
        system::prepare(&spec.directory, path, how, map)?;
        let lower = sources.len();
        let owners = match how {
            CowMethod::Overlay => Owners::Mapped,
            CowMethod::Fuse => Owners::Plain,
        };
        let below = Below::Excluded;
        sources.push(SourceSpec { path: path.into(), owners, below, identity: None });
        let area = system::area(&spec.directory, path);
        sources.push(SourceSpec { path: area, owners: Owners::Plain, below, identity: None });
        directories.push(CowDirectory { path, lower, area: lower + 1, how });
    }
    Ok(directories)
}

/// Bytes for each filesystem in memory. Where a cgroup counts, they are charged to the memory limit;
/// where none does, none of them can hold more than that limit by itself.
fn scratch_size(limits: &Limits, counted: bool) -> u64 {
    let size = limits.disk.map_or(10 << 30, |size| size.0);
    match limits.memory {
        Some(memory) if !counted => size.min(memory.0),
        _ => size,
    }
}

fn clone_init(
    spec: &RunSpec,
    plan: &SourcePlan,
    files: Option<&MachineFiles>,
    channel: Channel,
) -> Result<Child, Failure> {
    let mut namespaces = Namespaces::USER
        .with(Namespaces::MOUNT)
        .with(Namespaces::PID)
        .with(Namespaces::IPC)
        .with(Namespaces::UTS)
        .with(Namespaces::CGROUP);
    if spec.policy.network != NetworkMode::Host {
        namespaces = namespaces.with(Namespaces::NETWORK);
    }
    give_upper_to_inside(spec, plan.map)?;
    clone_with(namespaces, move || {
        let init_spec = InitSpec {
            run: spec,
            map: plan.map,
            sources: &plan.sources,
            parts: plan.parts.clone(),
            places: plan.places,
            home_pieces: &plan.home_pieces,
            copy_on_write: &plan.copy_on_write,
            scratch_size: plan.scratch_size,
            known: plan.known.clone(),
            files,
        };
        init::run(&init_spec, channel)
    })
    .map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EUSERS) => Failure::missing(
            "a user namespace",
            format!("the kernel refused to make one: {error}"),
            "see `skep doctor`; often `sysctl kernel.apparmor_restrict_unprivileged_userns=0` or `sysctl user.max_user_namespaces=65536`",
        ),
        _ => Failure::Step {
            operation: "make the sandbox's namespaces".into(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        },
    })
}

/// Started by root, the upper and its work directory must belong to the ids inside; the upper's
/// own owner is what the project's root appears to have. The same goes for the mask's directories,
/// which lend theirs to the merged ones.
fn give_upper_to_inside(spec: &RunSpec, map: IdMap) -> Result<(), Failure> {
    use std::os::unix::fs::{PermissionsExt, lchown};
    if map != IdMap::Range {
        return Ok(());
    }
    let step = || "give the workspace to the user inside".to_owned();
    // To be walked through, not listed; the state directory above stays closed to everybody.
    let through = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(&spec.directory, through).step(step)?;
    let owner = |path: &std::path::Path| -> io::Result<(u32, u32)> {
        let stat = rustix::fs::lstat(path)?;
        Ok(map.outside(stat.st_uid, stat.st_gid))
    };
    if spec.driver == WorkspaceDriver::Copy {
        give_tree(&spec.directory.join("upper"), map).step(step)?;
    }
    let (uid, gid) = owner(&spec.project).step(step)?;
    let mask = (!spec.hidden.is_empty()).then_some("mask");
    for name in ["upper", "work"].into_iter().chain(mask) {
        lchown(spec.directory.join(name), Some(uid), Some(gid)).step(step)?;
    }
    for hidden in &spec.hidden {
        for parent in hidden.ancestors().filter(|parent| !parent.is_root()) {
            let (uid, gid) = owner(&spec.project.join(parent.as_path())).step(step)?;
            lchown(spec.directory.join("mask").join(parent.as_path()), Some(uid), Some(gid))
                .step(step)?;
        }
    }
    Ok(())
}

/// The owners in a copy are those of the project; here they become what the overlay would show.
/// What is already so (all that was made inside) stays.
fn give_tree(root: &std::path::Path, map: IdMap) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, lchown};
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let (uid, gid) = map.outside(metadata.uid(), metadata.gid());
            if metadata.uid() < RANGE_START {
                lchown(entry.path(), Some(uid), Some(gid))?;
            }
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(())
}

fn settle_init(
    init: &Child,
    plan: &SourcePlan,
    group: Option<&Group>,
    channel: &Channel,
) -> Result<(), Failure> {
    let pid = init.pid.as_raw_nonzero().get();
    plan.map.write_for(pid)?;
    if let Some(group) = group {
        let files = group.procs_files().map_err(|e| Failure::invalid(skep_types::chain(&e)))?;
        for file in files {
            rustix::io::write(&file, pid.to_string().as_bytes())
                .step(|| "put init into its cgroup".into())?;
        }
    }
    if plan.map == IdMap::Range {
        pass_sources(pid, plan, channel)?;
    }
    channel.send(&ToInit::Go, &[]).step(|| "let init go on".into())
}

fn pass_sources(pid: i32, plan: &SourcePlan, channel: &Channel) -> Result<(), Failure> {
    let namespace = File::open(format!("/proc/{pid}/ns/user"))
        .step(|| "open the sandbox's user namespace".into())?;
    let mut opened: Vec<OwnedFd> = plan
        .sources
        .iter()
        .map(|spec| sources::open(spec, Some(namespace.as_fd())))
        .collect::<Result<_, _>>()?;
    if plan.parts.driver == WorkspaceDriver::OverlayRoot {
        let workspace = outside::overlay(&opened, &plan.parts)?;
        opened.push(workspace);
    }
    for batch in opened.chunks(MAX_DESCRIPTORS) {
        let batch: Vec<_> = batch.iter().map(AsFd::as_fd).collect();
        channel.send(&ToInit::Sources, &batch).step(|| "pass the sources to init".into())?;
    }
    Ok(())
}

/// Where the sandbox's network is, unless it is the host's.
fn place_of(spec: &RunSpec, init: &Child) -> Result<Option<Place>, Failure> {
    if spec.policy.network == NetworkMode::Host {
        return Ok(None);
    }
    let place = Place::of(init.pid.as_raw_nonzero().get());
    place.map(Some).step(|| "find the sandbox's network".into())
}

/// What init reports, and whom it had started on the way.
struct Up {
    report: EnforcementReport,
    servers: Vec<Server>,
    egress: Option<Egress>,
}

fn wait_until_ready(
    spec: &RunSpec,
    channel: &Channel,
    map: IdMap,
    place: &mut Option<Place>,
) -> Result<Up, Failure> {
    let step = || "wait for init".to_owned();
    let mut served: Vec<Served> = Vec::new();
    let mut egress = None;
    loop {
        let (message, descriptors) = channel.receive().step(step)?;
        match message {
            FromInit::Ready(report) => {
                let servers = served.into_iter().map(|served| served.server).collect();
                return Ok(Up { report, servers, egress });
            }
            FromInit::Connect(doors) => {
                let place = place.take().ok_or_else(|| Failure::invalid("init asks twice"))?;
                let prepared = Egress::prepare(spec, doors, place, descriptors);
                let answer = prepared.as_ref().map(drop).map_err(Clone::clone);
                channel.send(&ToInit::Connected(answer), &[]).step(step)?;
                egress = Some(prepared?);
            }
            FromInit::Serve(order) => match fuse::serve(&order, map, &descriptors) {
                Ok(now) => {
                    channel.send(&ToInit::Served(Ok(())), &[now.mount.as_fd()]).step(step)?;
                    served.push(now);
                }
                Err(failure) => {
                    channel.send(&ToInit::Served(Err(failure)), &[]).step(step)?;
                }
            },
            FromInit::Failed(failure) => return Err(explain(failure, served.last())),
            other => return Err(Failure::invalid(format!("init said {other:?} too early"))),
        }
    }
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

fn limits_report(spec: &RunSpec, group: Option<&Group>) -> EnforcementReport {
    let limits = &spec.policy.limits;
    let fallback = Fallback { process_limit: limits.pids, polled: group.is_none() };
    let mut report = report_limits(group, limits, fallback);
    let counted = match spec.policy.system {
        SystemView::Ro => "the upper",
        SystemView::Cow => "the upper and those of the system",
    };
    match limits.disk {
        Some(size) => report.on(
            Layer::Disk,
            format!(
                "guard on {counted} ({size}; looked at every 5 ms to 2 s, deleted open files too), one file by RLIMIT_FSIZE"
            ),
        ),
        None => report.off(Layer::Disk, "no limit", "no limit was asked for"),
    }
    report
}

/// What the caller named must hold. Defaults may weaken; the report says so.
fn refuse_what_is_missing(spec: &RunSpec, report: &EnforcementReport) -> Result<(), Failure> {
    let asked = spec.asked.iter().filter(|_| !spec.policy.best_effort);
    // Rules about what may be reached are worth nothing if something else may be, too.
    let ruled = (spec.policy.network == NetworkMode::Allow).then_some(&Layer::Network);
    for layer in asked.chain(&spec.policy.require).chain(ruled) {
        let missing = match report.0.get(layer) {
            Some(found) if found.enforced => continue,
            Some(found) => found.reason.clone().unwrap_or_else(|| "it is not enforced".into()),
            None => "this provider does not have that layer".into(),
        };
        return Err(Failure::missing(
            format!("`{layer}`"),
            missing,
            "see `skep doctor` for the remedy, or say `--best-effort` to go without",
        ));
    }
    Ok(())
}
