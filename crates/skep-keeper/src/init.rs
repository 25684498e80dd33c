//! Process number 1 of a sandbox: builds the view, starts processes, reaps.
//!
//! It is a fork of the keeper that never executes anything itself, so its memory is mostly shared
//! with the keeper's. It dies with the keeper, and with it, because it is number 1 of its pid
//! namespace, everything inside.

use crate::channel::{Channel, from_file};
use crate::confinement::Confinement;
use crate::failure::{Failure, Step};
use crate::identity::{self, IdMap};
use crate::machine::{self, Inside, InsideMachine};
use crate::network::{self, inside, knock};
use crate::pause;
use crate::probe;
use crate::protocol::{FromInit, SpawnOrder, SpawnStage, ToInit, Whom, WriteOrder};
use crate::spawn::{self, Spawned};
use crate::view::apply::{self, WorkspaceParts};
use crate::view::fuse::FuseOrder;
use crate::view::plan::{self, CowDirectory, ViewSpec};
use crate::view::sources::{self, SourceSpec};
use crate::writer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{DumpableBehavior, Pid, Signal};
use skep_machine::boot::MachineFiles;
use skep_provider::RunSpec;
use skep_sys::signal::SignalFd;
use skep_sys::stdio::{Stdio, open_terminal};
use skep_types::{EnforcementReport, ExecId, NetworkMode, SystemView, TerminalSize};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// What init needs to know, decided by the keeper before the fork.
pub struct InitSpec<'a> {
    /// The sandbox.
    pub run: &'a RunSpec,
    /// Who it is.
    pub map: IdMap,
    /// Everything of the host that the view shows, in order.
    pub sources: &'a [SourceSpec],
    /// Which of them make the workspace.
    pub parts: WorkspaceParts,
    /// Index of the messages directory, the first home piece, the first extra mount.
    pub places: Places,
    /// Home pieces that exist, relative to the home.
    pub home_pieces: &'a [PathBuf],
    /// Directories of the system that can be written.
    pub copy_on_write: &'a [CowDirectory],
    /// Size of each private filesystem in memory.
    pub scratch_size: u64,
    /// What an earlier start found inside.
    pub known: Option<EnforcementReport>,
    /// What a machine is booted from, where commands run in one.
    pub files: Option<&'a MachineFiles>,
}

/// Indices into the sources.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// Shown at `/run/skep`.
    pub messages: usize,
    /// First home piece.
    pub home: usize,
    /// First extra mount.
    pub mounts: usize,
}

/// The life of init. Returns its exit code.
pub fn run(spec: &InitSpec<'_>, channel: Channel) -> i32 {
    match set_up(spec, &channel) {
        Ok((init, report)) => {
            if channel.send(&FromInit::Ready(report), &[]).is_err() {
                return 1;
            }
            init.serve(&channel)
        }
        Err(failure) => {
            // If the keeper is gone too, nobody is left to tell.
            let _ = channel.send(&FromInit::Failed(failure), &[]);
            1
        }
    }
}

/// 1. Die with the keeper, from the very start.
/// 2. Map the own id, or wait until the keeper has mapped the range.
/// 3. Open what the view is made from, while the host's tree is still there.
/// 4. Become the user that all processes inside are (root's range only).
/// 5. Build the view and leave the host's tree.
/// 6. Name and loopback; nothing inside can read init's memory or descriptors from here on.
/// 7. Prepare the fences once, and probe them from a child that wears them, unless that was done
///    under the same circumstances a moment ago.
/// 8. Boot the machine, where commands run in one.
fn set_up(spec: &InitSpec<'_>, channel: &Channel) -> Result<(Init, EnforcementReport), Failure> {
    die_with_parent()?;
    let mut kept = vec![channel.as_fd()];
    kept.extend(spec.files.iter().flat_map(|files| files.descriptors()));
    skep_sys::process::close_all_but(&kept).step(|| "close inherited descriptors".into())?;
    spec.map.write_own()?;
    let passed = wait_for_go(channel)?;
    let opened = match spec.map {
        IdMap::Range => passed,
        IdMap::Own { .. } => spec
            .sources
            .iter()
            .map(|source| sources::open(source, None))
            .collect::<Result<_, _>>()?,
    };
    if spec.map == IdMap::Range {
        identity::become_inside_root()?;
    }
    let project = build_view(spec, opened, channel)?;
    rustix::system::sethostname(spec.run.name.as_str().as_bytes())
        .step(|| "set the host name".into())?;
    connect(spec.run.policy.network, channel)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "hide init from the inside".into())?;
    // Changing ids has cleared the death signal.
    die_with_parent()?;
    if spec.files.is_some() {
        skep_machine::boot::keep_capabilities()
            .step(|| "keep the capabilities of the share daemon".into())?;
    }
    let confinement = Confinement::prepare(&spec.run.policy, &spec.run.project, &spec.run.home)?;
    let known = spec.known.clone();
    let mut report = match known.filter(|known| probe::fits(known, spec.run, &confinement)) {
        Some(known) => known,
        None => probe::from_inside(spec.run, &confinement, spec.map)?,
    };
    let machine = match (&spec.run.machine, spec.files) {
        (Some(machine), Some(files)) => {
            let inside = Inside { run: spec.run, map: spec.map, confinement: &confinement };
            Some(InsideMachine::boot(machine, files, &inside, &mut report)?)
        }
        _ => None,
    };
    let signals = SignalFd::new(&[libc::SIGCHLD]).step(|| "watch for ended processes".into())?;
    Ok((Init { running: HashMap::new(), signals, project, confinement, machine }, report))
}

fn die_with_parent() -> Result<(), Failure> {
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
fn connect(network: NetworkMode, channel: &Channel) -> Result<(), Failure> {
    if network == NetworkMode::Host {
        return Ok(());
    }
    skep_sys::network::loopback_up().step(|| "switch the loopback on".into())?;
    if network == NetworkMode::None {
        return Ok(());
    }
    let (doors, sockets) = inside::open_doors()?;
    let step = || "pass the doors to the keeper".to_owned();
    let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    channel.send(&FromInit::Connect(doors), &descriptors).step(step)?;
    // Ours are closed here: with the egress process gone for good, nobody must seem to listen.
    drop(sockets);
    match channel.receive().step(step)?.0 {
        ToInit::Connected(result) => result,
        other => Err(Failure::invalid(format!("init was told {other:?} too early"))),
    }
}

fn build_view(
    spec: &InitSpec<'_>,
    opened: Vec<OwnedFd>,
    channel: &Channel,
) -> Result<OwnedFd, Failure> {
    let entries = sources::system_entries();
    let ops = plan::plan(&ViewSpec {
        project: &spec.run.project,
        scope: &spec.run.policy.scope,
        home: &spec.run.home,
        scratch_size: spec.scratch_size,
        devices: machine::devices(spec.run),
        system_entries: &entries,
        copy_on_write: spec.copy_on_write,
        mounts: &spec.run.policy.mounts,
        mounts_from: spec.places.mounts,
        home_pieces: spec.home_pieces,
        home_from: spec.places.home,
        messages: spec.places.messages,
        files: own_files(spec.run),
        // The sandbox's directory is `sandboxes/ID` there.
        state: spec.run.directory.ancestors().nth(2).unwrap_or(&spec.run.directory),
    });
    apply::build(&ops, opened, &spec.parts, &|order| have_served(order, channel))?;
    let flags = rustix::fs::OFlags::PATH
        | rustix::fs::OFlags::DIRECTORY
        | rustix::fs::OFlags::NOFOLLOW
        | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(&spec.run.project, flags, rustix::fs::Mode::empty())
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
fn have_served(order: &FuseOrder, channel: &Channel) -> Result<OwnedFd, Failure> {
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

struct Init {
    /// Main processes by pid.
    running: HashMap<i32, ExecId>,
    signals: SignalFd,
    project: OwnedFd,
    confinement: Confinement,
    machine: Option<InsideMachine>,
}

impl Init {
    /// Until the keeper is gone.
    fn serve(mut self, channel: &Channel) -> i32 {
        loop {
            let mut watched =
                [PollFd::new(channel, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return 1,
            }
            let message = !watched[0].revents().is_empty();
            let ended = !watched[1].revents().is_empty();
            if ended && self.reap(channel).is_err() {
                return 1;
            }
            if message && self.obey(channel).is_err() {
                return 1;
            }
        }
    }

    fn reap(&mut self, channel: &Channel) -> io::Result<()> {
        while self.signals.next()?.is_some() {}
        while let Some(ended) = skep_sys::process::wait_any()? {
            if self.machine.as_ref().is_some_and(|machine| machine.needs(ended.pid)) {
                // Without it nothing can go on; the end of init is the end of everything here.
                return Err(io::Error::other("the machine has ended"));
            }
            let Some(exec) = self.running.remove(&ended.pid) else { continue };
            let told = self.machine.as_mut().and_then(|machine| machine.outcome_of(ended.pid));
            let message = match told {
                Some(outcome) => machine::ended(exec, &outcome),
                None => FromInit::Ended {
                    exec,
                    code: ended.code,
                    signal: ended.signal,
                    cpu_ms: ended.cpu.as_millis() as u64,
                    memory_peak: ended.memory_peak,
                    felt: Vec::new(),
                },
            };
            channel.send(&message, &[])?;
        }
        Ok(())
    }

    fn obey(&mut self, channel: &Channel) -> io::Result<()> {
        let (message, descriptors) = channel.receive::<ToInit>()?;
        match message {
            ToInit::Spawn { exec, joins, terminal } => {
                self.spawn(channel, exec, joins, terminal, descriptors)
            }
            ToInit::Signal { whom, signal } => {
                self.signal(&whom, signal);
                Ok(())
            }
            ToInit::Write => {
                let result = self.write(descriptors);
                channel.send(&FromInit::Done(result), &[])
            }
            ToInit::Knock { targets, proxy } => {
                knock::start(&targets, proxy, &self.confinement, descriptors);
                Ok(())
            }
            ToInit::Pause => channel.send(&FromInit::Done(self.pause()), &[]),
            ToInit::Go | ToInit::Sources | ToInit::Served(_) | ToInit::Connected(_) => Ok(()),
        }
    }

    fn spawn(
        &mut self,
        channel: &Channel,
        exec: ExecId,
        joins: usize,
        terminal: Option<TerminalSize>,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let mut descriptors = descriptors.into_iter();
        let failed = |exec, stage, errno| FromInit::NotSpawned { exec, stage, errno };
        let order = descriptors
            .next()
            .ok_or(io::ErrorKind::InvalidData.into())
            .and_then(from_file::<SpawnOrder>);
        let order = match order {
            Ok(order) => order,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                return channel.send(&failed(exec, SpawnStage::Fork, errno), &[]);
            }
        };
        let joins: Vec<OwnedFd> = descriptors.by_ref().take(joins).collect();
        let stdio = match terminal {
            Some(size) => {
                open_terminal(size.rows, size.columns).map(|(stdio, master)| (stdio, Some(master)))
            }
            None => Ok((Stdio::Pipes(descriptors.collect()), None)),
        };
        let (stdio, master) = match stdio {
            Ok(stdio) => stdio,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                return channel.send(&failed(exec, SpawnStage::Terminal, errno), &[]);
            }
        };
        let spawned = match &mut self.machine {
            Some(machine) => machine.spawn(&order, terminal, &joins, &stdio, &self.confinement),
            None => spawn::spawn(&order, &joins, &stdio, &self.confinement),
        };
        match spawned {
            Ok(Spawned { child, listener }) => {
                self.running.insert(child.pid.as_raw_nonzero().get(), exec.clone());
                let mut attached = vec![child.pidfd.as_fd()];
                attached.extend(listener.iter().chain(&master).map(AsFd::as_fd));
                let noted = listener.is_some();
                channel.send(&FromInit::Spawned { exec, noted }, &attached)
            }
            Err((stage, errno)) => channel.send(&failed(exec, stage, errno), &[]),
        }
    }

    /// A guest first writes everything back.
    fn pause(&self) -> Result<(), Failure> {
        if let Some(machine) = &self.machine {
            machine.freeze()?;
        }
        pause::pause_everyone()
    }

    fn signal(&self, whom: &Whom, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        if let Some(machine) = &self.machine {
            // Everyone in the guest is meant, not what the guest is made of.
            return machine.signal(whom, signal, &self.running);
        }
        match whom {
            // To -1 from number 1: everyone in this pid namespace but itself.
            Whom::Everyone => drop(skep_sys::process::signal_everyone(signal)),
            Whom::Exec(exec) => {
                let pids = self.running.iter().filter(|(_, running)| *running == exec);
                for pid in pids.filter_map(|(pid, _)| Pid::from_raw(*pid)) {
                    // Each exec leads a session and so a group of its own.
                    let _ = rustix::process::kill_process_group(pid, signal);
                }
            }
        }
    }

    fn write(&self, descriptors: Vec<OwnedFd>) -> Result<(), Failure> {
        let mut descriptors = descriptors.into_iter();
        let order = descriptors
            .next()
            .ok_or_else(|| Failure::invalid("a write came without its order"))
            .and_then(|order| {
                from_file::<WriteOrder>(order).step(|| "read a write's order".into())
            })?;
        writer::write(&self.project, &order.path, &order.state, descriptors.next().map(File::from))
    }
}
