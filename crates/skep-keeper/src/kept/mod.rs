//! Sandboxes held by a keeper on this host, behind the `Provider` trait.
//!
//! Everything that providers of this host have in common: starting a keeper, finding it again,
//! talking to it, and making sure that it is gone. Finding goes by identity: process id, start time
//! and boot id together, through a pidfd, so that a recycled number is never signalled. What they
//! differ in is a [`Kind`]: mostly which vessel init is put into.

mod drivers;
mod made_from;
mod own;

pub use made_from::{file_identity, find_image, version_of};

use crate::keeper::Adoption;
use crate::launch::{Launched, identity_of};
use crate::vessel::Vessel;
use crate::{CGROUP_PARENT, Client, Nest, Operation, Reply};
use own::Own;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use skep_confine::cgroup::{CgroupHost, Group, ParentName};
use skep_confine::usage::family_of;
use skep_provider::{
    Attach, Beside, Capabilities, Direct, DirectExec, DriverChoice, EgressProbe, ExecStream,
    Finding, Freshness, Look, Provider, ProviderError, RunSpec, Started, Status, Stillness,
    ViewWrite, Withdrawn,
};
use skep_sys::process::send_signal;
use skep_types::{ExecId, ExecSpec, KeeperIdentity, Layer, SandboxId, WorkspaceDriver};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a keeper may take to end everything before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long those inside may take to die after it.
const DYING: Duration = Duration::from_secs(2);
/// How many are looked at above a process.
const MOST_ABOVE: usize = 64;
/// What a keeper calls itself.
const KEEPER_TITLE: &[u8] = b"skep: keeper";

/// What one provider of this host does in its own way. See [`Provider`] for the contracts.
pub trait Kind {
    /// The word for it.
    fn name(&self) -> &'static str;
    /// All words worth listing.
    fn words(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }
    /// Whether a word means it.
    fn serves(&self, word: &str) -> bool {
        word == self.name()
    }
    /// What it can do.
    fn capabilities(&self, word: &str) -> Capabilities;
    /// Whether it works here.
    fn probe(&self, word: &str) -> Result<(), ProviderError>;
    /// Whether it seems to work, found quickly, and what was done to find out.
    fn look(&self, word: &str) -> Result<Look, ProviderError>;
    /// What an answer of `probe` holds for.
    fn circumstances(&self, word: &str) -> String {
        word.to_owned()
    }
    /// What init is put into. Everything that can be refused early is refused here.
    fn vessel(&self, spec: &RunSpec) -> Result<Vessel, ProviderError>;
    /// Whether `vessel` makes anything in the sandbox's directory, which must be known of before.
    fn makes_files(&self) -> bool {
        true
    }
    /// Refuses a command that it could not run as asked.
    fn refuse(&self, command: &ExecSpec) -> Result<(), ProviderError> {
        let _ = command;
        Ok(())
    }
    /// Whether it can use a copy-on-write driver at all.
    fn can_use(&self, driver: WorkspaceDriver) -> bool {
        let _ = driver;
        true
    }
    /// What else it depends on.
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
    /// Takes away what a sandbox has left besides its cgroup and its socket. Nobody holds it any
    /// more. Succeeds if nothing is there.
    fn clear(&self, id: &SandboxId, directory: &Path) -> Result<(), ProviderError> {
        let _ = (id, directory);
        Ok(())
    }
    /// Refuses a removal while something of the sandbox's directory is still mounted by somebody else.
    fn refuse_removal(&self, id: &SandboxId, directory: &Path) -> Result<(), ProviderError> {
        let _ = (id, directory);
        Ok(())
    }
    /// What there is to know of a running sandbox. `seen` is what was when it started.
    fn facts(&self, spec: &RunSpec, seen: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let _ = spec;
        seen
    }
}

/// Where the keeper makes namespaces, they must work; found by making them.
pub fn probe_namespaces(word: &str) -> Result<(), ProviderError> {
    let probe = skep_confine::probe::user_namespace();
    if probe.ok {
        return Ok(());
    }
    Err(ProviderError::Missing {
        what: format!("the provider `{word}`"),
        reason: probe.reason.unwrap_or_else(|| "user namespaces do not work".into()),
        remedy: probe.remedy.unwrap_or_else(|| "see `skep doctor`".into()),
    })
}

/// A provider of some kind whose sandboxes are held by keepers.
#[derive(Debug)]
pub struct Kept<K> {
    kind: K,
    forced: Option<WorkspaceDriver>,
    own: RefCell<Option<Own>>,
    nest: Rc<RefCell<Option<Nest>>>,
}

impl<K: Kind> Kept<K> {
    /// A provider of this kind.
    pub fn new(kind: K) -> Self {
        Self { kind, forced: None, own: RefCell::default(), nest: Rc::default() }
    }

    /// Takes a keeper from here for the next sandbox, if there is one.
    pub fn with_nest(self, nest: Rc<RefCell<Option<Nest>>>) -> Self {
        Self { nest, ..self }
    }

    /// Uses this copy-on-write driver and no other.
    pub fn force_driver(self, driver: Option<WorkspaceDriver>) -> Self {
        Self { forced: driver, ..self }
    }
}

impl<K: Kind> Provider for Kept<K> {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn words(&self) -> Vec<String> {
        self.kind.words()
    }

    fn serves(&self, word: &str) -> bool {
        self.kind.serves(word)
    }

    fn capabilities(&self, word: &str) -> Capabilities {
        self.kind.capabilities(word)
    }

    fn probe(&self, word: &str) -> Result<(), ProviderError> {
        self.kind.probe(word)
    }

    fn look(&self, word: &str) -> Result<Look, ProviderError> {
        self.kind.look(word)
    }

    fn circumstances(&self, word: &str) -> String {
        self.kind.circumstances(word)
    }

    fn facts(&self, spec: &RunSpec) -> BTreeMap<String, String> {
        let keeper = Client::connect(&spec.id, &spec.directory).ok();
        let Some(pid) = keeper.and_then(|client| client.keeper_pid()) else {
            return BTreeMap::new();
        };
        let mut facts = self.kind.facts(spec, crate::seen::read(&spec.directory, pid));
        facts.insert("keeper_pid".into(), pid.to_string());
        facts
    }

    fn findings(&self) -> Vec<Finding> {
        self.kind.findings()
    }

    fn choose_driver(
        &self,
        project: &Path,
        directory: &Path,
    ) -> Result<WorkspaceDriver, ProviderError> {
        let choice = self.drivers(project, directory)?;
        Ok(choice.drivers.first().copied().unwrap_or(WorkspaceDriver::Copy))
    }

    fn drivers(&self, project: &Path, directory: &Path) -> Result<DriverChoice, ProviderError> {
        if let Some(driver) = self.forced {
            return Ok(DriverChoice { drivers: vec![driver], passed_over: Vec::new() });
        }
        let mut choice = drivers::find(project, directory).map_err(|source| {
            let operation = format!("look at the filesystem of `{}`", directory.display());
            ProviderError::Setup { operation, source }
        })?;
        let (able, unable): (Vec<_>, Vec<_>) =
            choice.drivers.into_iter().partition(|driver| self.kind.can_use(*driver));
        choice.drivers = able;
        let refused = |driver: WorkspaceDriver| {
            format!("{}: the provider `{}` cannot use it", driver.as_str(), self.kind.name())
        };
        choice.passed_over.extend(unable.into_iter().map(refused));
        Ok(choice)
    }

    fn start(&self, spec: &RunSpec) -> Result<Started, ProviderError> {
        let beside = Beside { intend: &mut || Ok(()), meanwhile: &mut || (), stays: false };
        self.start_beside(spec, beside)
    }

    fn start_beside(&self, spec: &RunSpec, beside: Beside<'_>) -> Result<Started, ProviderError> {
        // The socket of a keeper that was killed is only a name.
        match Client::connect(&spec.id, &spec.directory) {
            Err(ProviderError::NotRunning(_)) => {
                // What its cgroup still holds would keep the new one from being made.
                let _ = clear_leftovers(&spec.id, &spec.directory);
                self.kind.clear(&spec.id, &spec.directory)?;
            }
            Err(error) => return Err(error),
            Ok(_) => {
                return Err(ProviderError::Invalid(format!(
                    "sandbox `{}` is already running",
                    spec.id
                )));
            }
        }
        let Beside { intend, meanwhile, stays } = beside;
        let mut known = || Ok(());
        let intend: &mut dyn FnMut() -> Result<(), Withdrawn> = match self.kind.makes_files() {
            true => {
                intend().map_err(|Withdrawn| ProviderError::Withdrawn)?;
                &mut known
            }
            false => intend,
        };
        let vessel = self.kind.vessel(spec)?;
        let launched =
            crate::start(spec, &vessel, Beside { intend, meanwhile, stays }, self.nest.take())?;
        let Launched { mut started, process, line } = launched;
        self.own.replace(line.map(|line| Own::new(&spec.id, &started.keeper, process, line)));
        // The best one needs no excuse.
        if spec.driver != WorkspaceDriver::OverlayUserns
            && let Some(layer) = started.enforcement.0.get_mut(&Layer::Filesystem)
            && layer.reason.is_none()
        {
            layer.reason = drivers::why_not_better(
                spec.driver,
                &self.drivers(&spec.project, &spec.directory).unwrap_or_default(),
            );
        }
        Ok(started)
    }

    fn exec(
        &self,
        spec: &RunSpec,
        exec: &ExecId,
        command: &ExecSpec,
        attach: Attach,
    ) -> Result<Option<Box<dyn ExecStream>>, ProviderError> {
        self.kind.refuse(command)?;
        let line = self.own.borrow_mut().as_mut().and_then(|own| own.line_to(&spec.id));
        let mut client = match line {
            Some(client) => client,
            None => Client::connect(&spec.id, &spec.directory)?,
        };
        let operation = Operation::Exec {
            exec: exec.clone(),
            command: Box::new(command.clone()),
            attach: attach != Attach::No,
            last: attach == Attach::Last,
        };
        client.ask("run a command in", operation, &[])?;
        Ok(match attach {
            Attach::Yes | Attach::Last => Some(Box::new(client)),
            Attach::No => None,
        })
    }

    fn exec_directly(&self, order: &DirectExec<'_>) -> Result<Direct, ProviderError> {
        // Whatever stands in the way, whoever has the store says it better.
        if self.kind.refuse(&order.begun.spec).is_err() {
            return Ok(Direct::AskTheStore);
        }
        let Ok(mut client) = Client::connect(order.id, order.directory) else {
            return Ok(Direct::AskTheStore);
        };
        Ok(match (client.ask_directly(order)?, order.attach) {
            (false, _) => Direct::AskTheStore,
            (true, Attach::Yes | Attach::Last) => Direct::Started(Some(Box::new(client))),
            (true, Attach::No) => Direct::Started(None),
        })
    }

    fn adopt(&self, spec: &RunSpec) -> Result<KeeperIdentity, ProviderError> {
        let mut client = Client::connect(&spec.id, &spec.directory)?;
        let pid = client.keeper_pid();
        let adoption = Adoption {
            name: spec.name.clone(),
            environment: spec.environment.clone(),
            base: spec.base.clone(),
        };
        client.ask("adopt", Operation::Adopt(Box::new(adoption)), &[])?;
        let identity = pid.ok_or(io::ErrorKind::NotFound.into());
        let identity = identity.and_then(|pid| identity_of(pid, &spec.directory));
        identity.map_err(|source| ProviderError::Keeper {
            operation: "adopt",
            id: spec.id.clone(),
            source,
        })
    }

    fn signal(&self, spec: &RunSpec, exec: &ExecId, signal: i32) -> Result<(), ProviderError> {
        let operation = Operation::Signal { exec: exec.clone(), signal };
        match ask(spec, "signal", operation) {
            Ok(_) | Err(ProviderError::NotRunning(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn freeze(&self, spec: &RunSpec) -> Result<(), ProviderError> {
        ask(spec, "freeze", Operation::Freeze).map(drop)
    }

    fn thaw(&self, spec: &RunSpec) -> Result<(), ProviderError> {
        ask(spec, "thaw", Operation::Thaw).map(drop)
    }

    fn stood(&self, spec: &RunSpec) -> Result<Stillness, ProviderError> {
        match ask(spec, "look at", Operation::Stood)? {
            Reply::Stood(stillness) => Ok(stillness),
            _ => Ok(Stillness::Held),
        }
    }

    fn refresh(&self, spec: &RunSpec) -> Result<Freshness, ProviderError> {
        match ask(spec, "refresh", Operation::Refresh)? {
            Reply::Refreshed(freshness) => Ok(freshness),
            _ => Ok(Freshness::Held),
        }
    }

    fn status(&self, spec: &RunSpec) -> Result<Status, ProviderError> {
        match ask(spec, "look at", Operation::Status)? {
            Reply::Status { running, frozen } => Ok(Status { running, frozen }),
            _ => Ok(Status::default()),
        }
    }

    fn write_view(&self, spec: &RunSpec, writes: &[ViewWrite]) -> Result<(), ProviderError> {
        for write in writes {
            let mut client = Client::connect(&spec.id, &spec.directory)?;
            let operation =
                Operation::Write { path: write.path.clone(), state: write.state.clone() };
            let descriptors: Vec<_> = write.content.iter().map(AsFd::as_fd).collect();
            client.ask("write into", operation, &descriptors)?;
        }
        Ok(())
    }

    fn reach(&self, spec: &RunSpec, rules: &[String]) -> Result<u64, ProviderError> {
        let operation = Operation::Reach { rules: rules.to_vec() };
        Ok(connections_cut(&ask(spec, "change the rules of", operation)?))
    }

    fn revoke(&self, spec: &RunSpec, secret: &str) -> Result<u64, ProviderError> {
        let operation = Operation::Revoke { name: secret.to_owned() };
        Ok(connections_cut(&ask(spec, "revoke a secret of", operation)?))
    }

    fn knock(
        &self,
        spec: &RunSpec,
        targets: &[(String, u16)],
    ) -> Result<Vec<EgressProbe>, ProviderError> {
        let mut client = Client::connect(&spec.id, &spec.directory)?;
        client.knock(targets)
    }

    fn still(
        &self,
        id: &SandboxId,
        directory: &Path,
        keeper: Option<&KeeperIdentity>,
    ) -> Result<(), ProviderError> {
        if self.own.borrow().as_ref().is_some_and(|own| own.is_still(keeper, STOP_PATIENCE)) {
            return Ok(());
        }
        let process = keeper.and_then(|keeper| open_keeper(keeper, directory).ok().flatten());
        let client = Client::connect(id, directory);
        if let (Some(process), Ok(mut client)) = (process, client)
            && client.tell(Operation::Stop).is_ok()
            && client.wait_for_end_of(&process, STOP_PATIENCE)
        {
            return Ok(());
        }
        // Nobody answers: what is left is found and ended.
        self.stop(id, directory, keeper)
    }

    fn stop(
        &self,
        id: &SandboxId,
        directory: &Path,
        keeper: Option<&KeeperIdentity>,
    ) -> Result<(), ProviderError> {
        let failed = |source| ProviderError::Keeper { operation: "stop", id: id.clone(), source };
        if let Some(own) = self.own.take().filter(|own| own.ends(keeper)) {
            end_process(own.process()).map_err(failed)?;
            clear_leftovers(id, directory).map_err(failed)?;
            return self.kind.clear(id, directory);
        }
        let process = keeper.map(|keeper| open_keeper(keeper, directory)).transpose();
        let mut process = process.map_err(failed)?.flatten();
        if let Ok(mut client) = Client::connect(id, directory) {
            // One that no row tells of clears away after it has hung up: its socket's name, too, which
            // would be the next one's by then.
            if process.is_none() {
                let pid = client.keeper_pid().and_then(Pid::from_raw);
                process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            }
            client.tell(Operation::Stop).or_else(if_gone).map_err(failed)?;
            if process.is_none() {
                client.wait_for_end();
            }
        }
        if let Some(process) = process {
            end_process(&process).map_err(failed)?;
        }
        let of_another = keeper.is_some_and(|keeper| !may_hold(keeper, directory));
        let cleared = match of_another {
            true => remove_socket(directory),
            false => clear_leftovers(id, directory),
        };
        cleared.map_err(failed)?;
        self.kind.clear(id, directory)
    }

    fn refuse_removal(&self, id: &SandboxId, directory: &Path) -> Result<(), ProviderError> {
        self.kind.refuse_removal(id, directory)
    }

    fn is_alive(&self, keeper: &KeeperIdentity, directory: &Path) -> bool {
        !matches!(open_keeper(keeper, directory), Ok(None))
    }

    fn list_owned(&self) -> Result<Vec<SandboxId>, ProviderError> {
        Ok(cgroups().map(|host| host.find_owned().into_iter().collect()).unwrap_or_default())
    }

    fn reap(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let group = cgroups().and_then(|host| host.open(id));
        // Somebody in it is somebody else's: a copy of a state directory has the same ids.
        let Some(group) = group.filter(|group| group.pids().is_empty()) else { return Ok(()) };
        group.remove().map_err(|error| ProviderError::Keeper {
            operation: "reap",
            id: id.clone(),
            source: io::Error::other(error),
        })
    }
}

/// A keeper that ended between our knock and our word has done what it was to be told.
fn if_gone(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(()),
        _ => Err(error),
    }
}

fn connections_cut(reply: &Reply) -> u64 {
    match reply {
        Reply::Reached { cut } => *cut as u64,
        _ => 0,
    }
}

fn ask(spec: &RunSpec, what: &'static str, operation: Operation) -> Result<Reply, ProviderError> {
    Client::connect(&spec.id, &spec.directory)?.ask(what, operation, &[])
}

/// Whether it is this directory that a keeper holds, as far as that can be told.
fn may_hold(keeper: &KeeperIdentity, directory: &Path) -> bool {
    let here = rustix::fs::stat(directory).ok().map(|here| (here.st_dev, here.st_ino));
    keeper.directory.is_none_or(|held| here.is_none_or(|here| here == held))
}

/// A handle on the keeper, if that very process still runs and it is this directory that it holds. In a
/// copy of a state directory the row names the keeper of the original. What cannot be found out is an error: a keeper that
/// is taken for gone is one that nobody ends any more.
fn open_keeper(keeper: &KeeperIdentity, directory: &Path) -> io::Result<Option<OwnedFd>> {
    if !may_hold(keeper, directory) || skep_sys::process::boot_id()? != keeper.boot_id {
        return Ok(None);
    }
    let Some(pid) = Pid::from_raw(keeper.pid as i32) else { return Ok(None) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH | Errno::INVAL | Errno::NOSYS) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Looked at after the handle is open: from here on the number cannot come to mean another.
    match skep_sys::process::start_ticks(keeper.pid as i32) {
        Ok(ticks) if ticks == keeper.start_ticks => {
            Ok(Some(process).filter(|process| !has_ended(process, Duration::ZERO)))
        }
        Err(error) if has_too_much_open(&error) => Err(error),
        _ => Ok(None),
    }
}

fn has_too_much_open(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Whether a process has ended, or a pipe has something to say, in time.
fn has_ended(process: &OwnedFd, patience: Duration) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    let timeout =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    poll(&mut watched, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Waits for a keeper that was told to stop; kills it if it does not.
///
/// A keeper waits for init, and init for everybody inside. One that waits in the kernel for what does
/// not answer cannot be killed: then it is said who is left.
fn end_process(process: &OwnedFd) -> io::Result<()> {
    let deadline = Instant::now() + STOP_PATIENCE;
    while Instant::now() < deadline {
        if has_ended(process, deadline - Instant::now()) {
            reap(process);
            return Ok(());
        }
    }
    let held: Vec<(Pid, OwnedFd)> = crate::vessel::pid_of(process)
        .map(family_of)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
        .collect();
    let _ = send_signal(process, Signal::KILL);
    if !has_ended(process, STOP_PATIENCE) {
        return Err(io::Error::other("the keeper does not die"));
    }
    reap(process);
    let deadline = Instant::now() + DYING;
    let lives = |(_, process): &&(Pid, OwnedFd)| {
        !has_ended(process, deadline.saturating_duration_since(Instant::now()))
    };
    let left: Vec<String> =
        held.iter().filter(lives).map(|(pid, _)| pid.as_raw_nonzero().to_string()).collect();
    if left.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "process {} was killed and waits in the kernel for something that does not answer (a \
         filesystem or a device); it ends when that lets it go, then stop the sandbox again",
        left.join(", ")
    )))
}

/// If the keeper is a child of ours, take its exit status, so that no zombie stays.
fn reap(process: &OwnedFd) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

fn cgroups() -> Option<CgroupHost> {
    ParentName::parse(CGROUP_PARENT).ok().map(CgroupHost::locate)
}

/// A keeper makes its socket before its cgroup and removes it after: where there is no socket,
/// nothing was left. The same order here, or whoever comes after one that died between the two would
/// find nothing to do.
fn clear_leftovers(id: &SandboxId, directory: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(directory.join("keeper.sock")) {
        Ok(_) => {
            remove_group(id)?;
            remove_socket(directory)
        }
        Err(error) => unless_gone(error),
    }
}

fn remove_socket(directory: &Path) -> io::Result<()> {
    std::fs::remove_file(directory.join("keeper.sock")).or_else(unless_gone)
}

/// A keeper that is just ending may remove both while we look.
fn unless_gone(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Whether a keeper lives above those in a group. None of this directory does, or this would not be asked:
/// it is that of a copy, or of the original, which has the same ids.
fn is_held(group: &Group) -> bool {
    let is_keeper = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.starts_with(KEEPER_TITLE))
    };
    let above = |pid: &i32| skep_sys::process::parent_of(*pid);
    let chain = |pid: Pid| std::iter::successors(Some(pid.as_raw_nonzero().get()), above);
    group.pids().into_iter().any(|pid| chain(pid).take(MOST_ABOVE).any(|pid| is_keeper(&pid)))
}

fn remove_group(id: &SandboxId) -> io::Result<()> {
    let Some(host) = cgroups() else { return Ok(()) };
    if let Some(group) = host.open(id).filter(|group| !is_held(group)) {
        let _ = group.kill();
        group.remove().map_err(io::Error::other)?;
    }
    Ok(())
}
