//! Bringing a keeper up: from the caller's process to a running sandbox.
//!
//! - [`plan`]: what the sandbox is made from, decided before anything is made.
//! - [`owners`]: the workspace belongs to the ids inside.
//! - [`arrival`]: init, from its beginning in the vessel to its report.
//! - [`quota`]: the disk limit as the filesystem keeps it, where it can.
//! - [`limits`]: what holds, and what is refused because it does not.

mod arrival;
mod limits;
mod owners;
mod plan;
mod quota;

use crate::channel::Channel;
use crate::failure::{Failure, Step};
use crate::keeper::{Attendants, Keeper, Membership};
use crate::known::Known;
use crate::machine;
use crate::network;
use crate::network::publish;
use crate::protocol::{StartReport, to_json};
use crate::vessel::{Held, Tasks, Vessel};
use arrival::{Arrival, Up};
use quota::Quota;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use skep_confine::cgroup::{CgroupHost, Group, GroupLimits, ParentName};
use skep_machine::boot::MachineFiles;
use skep_provider::{ProviderError, RunSpec, Started};
use skep_sys::failpoint;
use skep_sys::process::{Child, Namespaces, clone_with};
use skep_sys::signal::SignalFd;
use skep_types::{EnforcementReport, KeeperIdentity};
use std::fs::File;
use std::io::{self, Read};

/// The cgroup directory all of skep's groups lie under.
pub const CGROUP_PARENT: &str = "skep";

/// Tasks that a runtime with a kernel of its own may have in any case.
const RUNTIME_TASKS: u64 = 4096;

/// Starts a keeper for `spec` and waits until its sandbox is up.
///
/// Forks without an exec, so the caller must be single threaded. On error nothing is left.
/// `meanwhile` is done here once the keeper is at work.
pub fn start(
    spec: &RunSpec,
    vessel: &Vessel,
    meanwhile: &mut dyn FnMut(),
) -> Result<Started, ProviderError> {
    let setup = |source| ProviderError::Setup { operation: "start the keeper".into(), source };
    let (answer, report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| setup(error.into()))?;
    // The closure owns the writing end: here it is dropped unrun, and the keeper alone has it.
    let keeper = clone_with(Namespaces::NONE, move || run(spec, vessel, report)).map_err(setup)?;
    meanwhile();
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
fn run(spec: &RunSpec, vessel: &Vessel, report: OwnedFd) -> i32 {
    let up = detach(report.as_fd()).and_then(|umask| bring_up(spec, vessel, umask));
    let message = match &up {
        Ok(running) => StartReport::Ready(running.report.clone()),
        Err(failure) => StartReport::Failed(failure.clone()),
    };
    // If the caller is gone, the sandbox stays: its row is there, and so is the way to find it.
    let _ = rustix::io::write(&report, &to_json(&message));
    drop(report);
    match up {
        Ok(Running { keeper, terminate, quota, .. }) => {
            keeper.serve(&terminate);
            drop(quota);
            0
        }
        Err(_) => 1,
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

/// A keeper that is ready to serve.
struct Running<'a> {
    keeper: Keeper<'a>,
    terminate: SignalFd,
    report: EnforcementReport,
    /// Holds as long as anything runs.
    quota: Option<Quota>,
}

/// 1. The socket: it is also what shows that nobody else holds this sandbox.
/// 2. Ports of the host that were named: one that is taken is told before anything is made.
/// 3. The cgroup, before the first process that must be counted.
/// 4. Init, with all its namespaces; ids and cgroup are settled before it goes on.
/// 5. Its report, joined with that of the limits; what was asked for and is not there is refused.
/// 6. Those who serve the inside: from here on it can be reached, and can reach.
fn bring_up<'a>(spec: &'a RunSpec, vessel: &'a Vessel, umask: u32) -> Result<Running<'a>, Failure> {
    failpoint::hit("create.keeper").step(|| "pass a failpoint".into())?;
    let terminate = SignalFd::new(&[libc::SIGTERM]).step(|| "watch for signals".into())?;
    let mut undo = Undo { spec, group: None, init: None, listening: false };
    let listener = listen(spec)?;
    undo.listening = true;
    failpoint::hit("create.socket").step(|| "pass a failpoint".into())?;
    limits::refuse_ports(spec, vessel)?;
    let published = publish::take(&spec.policy.egress.publish)?;
    undo.group = make_group(spec, vessel)?;
    failpoint::hit("create.cgroup").step(|| "pass a failpoint".into())?;
    let mut plan = plan::make(spec, vessel, undo.group.is_some())?;
    let known = Known::of(spec, vessel, plan.map);
    plan.known = known.as_ref().and_then(Known::recall);
    let files = vessel.machine().map(MachineFiles::open).transpose()?;
    let (ours, theirs) = Channel::pair().step(|| "make the channel to init".into())?;
    owners::give_upper_to_inside(spec, plan.map)?;
    // Before the overlay makes a directory in its work area: a file cannot be moved between projects.
    let quota = quota::hold(spec, plan.map);
    let (child, mut way) = arrival::begin(vessel, &plan, files.as_ref(), theirs)?;
    undo.init = Some(match way.life.take() {
        None => Held::new(child),
        Some(life) => Held::attended(child, life),
    });
    failpoint::hit("create.init").step(|| "pass a failpoint".into())?;
    let init = undo.init.as_mut().ok_or_else(|| Failure::invalid("init is missing"))?;
    let ours = way.welcome(init, &plan)?.unwrap_or(ours);
    let init = &*init;
    let mut arrival = Arrival::new(&plan, &ours, way, published);
    arrival.look_for_place(vessel, init)?;
    let strict = must_join_first(spec);
    arrival.settle(init, undo.group.as_ref().filter(|_| strict))?;
    let Up { mut report, servers, mut egress, publisher, handle } = arrival.wait(spec)?;
    if let (Some(handle), Some(init)) = (handle, &mut undo.init) {
        init.found(handle)?;
    }
    failpoint::hit("create.ready").step(|| "pass a failpoint".into())?;
    if let Some(known) = known.filter(|_| plan.known.as_ref() != Some(&report)) {
        known.remember(&report);
    }
    let watched = match (vessel, &undo.group, &undo.init) {
        // Where skep has no group, the engine's holds; it is read, not believed.
        (Vessel::Attended(_), None, Some(init)) => CgroupHost::around(init.pid),
        _ => None,
    };
    let groups = (undo.group.as_ref(), watched.as_ref());
    report.0.extend(limits::report(spec, vessel, plan.map, groups, &quota).0);
    if let Some(egress) = &mut egress {
        network::serve(egress, &mut report)?;
    }
    limits::refuse_what_is_missing(spec, &report)?;
    let (group, init) = undo.disarm();
    let init = init.ok_or_else(|| Failure::invalid("init is missing"))?;
    let group = group.map(|group| Membership::new(group, strict));
    let attendants = Attendants { servers, publisher, egress };
    let lent = plan.map.lent();
    let keeper = Keeper::new(spec, vessel, listener, ours, init, group, umask, attendants);
    let keeper = keeper.counting(lent).watching(watched);
    Ok(Running { keeper, terminate, report, quota: quota.ok() })
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
    init: Option<Held>,
    listening: bool,
}

impl Undo<'_> {
    fn disarm(&mut self) -> (Option<Group>, Option<Held>) {
        self.listening = false;
        (self.group.take(), self.init.take())
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(mut init) = self.init.take() {
            init.kill();
            init.wait();
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

fn make_group(spec: &RunSpec, vessel: &Vessel) -> Result<Option<Group>, Failure> {
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
    // A host without a usable cgroup is no failure here; the report will say so.
    Ok(CgroupHost::locate(parent).create(&spec.id, &limits).ok())
}
