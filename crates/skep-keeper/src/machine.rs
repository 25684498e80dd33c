//! Where commands run in a machine: what init does instead of starting them itself.
//!
//! The view, the fences and the limits around it are those of every sandbox. Inside them runs the
//! machine, and an exec is a relay to it.

use crate::confinement::Confinement;
use crate::failure::{Failure, Step};
use crate::identity::IdMap;
use crate::network::inside::{DNS_PORT, Doors};
use crate::network::{NOWHERE, OWN_ADDRESSES, process, rules};
use crate::protocol::{FromInit, SpawnOrder, SpawnStage, Whom};
use crate::spawn::{self, Newborn, Spawned, spawn_as};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, Signal};
use skep_confine::cgroup::GroupLimits;
use skep_knock::Question;
use skep_machine::boot::{Machine, MachineFiles};
use skep_machine::qemu::Place;
use skep_machine::share::SharedImage;
use skep_machine::wire::{Network, NotStarted, Order, Outcome};
use skep_machine::{Accelerator, MachineError, MachineSpec, boot, relay};
use skep_provider::RunSpec;
use skep_sys::process::{Namespaces, clone_with};
use skep_sys::stdio::Stdio;
use skep_types::{ByteSize, EnforcementReport, ExecId, Layer, TerminalSize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

/// Memory that QEMU and the share daemon need beside the guest's own.
const MEMORY_BESIDE: u64 = 640 << 20;
/// And tasks.
const TASKS_BESIDE: u64 = 128;

/// How long QEMU's end may come after that of its lines: the kernel closes them first.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// The limits of a sandbox whose commands run in a machine: the guest holds what was asked for,
/// and the group around it leaves room for what makes the guest.
pub fn with_room(limits: GroupLimits) -> GroupLimits {
    GroupLimits {
        memory: limits.memory.map(|memory| ByteSize(memory.0.saturating_add(MEMORY_BESIDE))),
        pids: limits.pids.map(|pids| pids.saturating_add(TASKS_BESIDE)),
        ..limits
    }
}

/// Devices that the view has beside the harmless ones. Only QEMU can use it: commands run in the
/// guest.
pub fn devices(machine: Option<&MachineSpec>) -> &'static [&'static str] {
    match machine.map(|machine| machine.accelerator) {
        Some(Accelerator::Kvm) => &["kvm"],
        Some(Accelerator::Emulation) | None => &[],
    }
}

impl From<MachineError> for Failure {
    fn from(error: MachineError) -> Self {
        match error {
            MachineError::Io { operation, source } => {
                Self::Step { operation, errno: source.raw_os_error().unwrap_or(libc::EIO) }
            }
            MachineError::Missing { what, reason, remedy } => Self::missing(what, reason, remedy),
            MachineError::NotUp(_) => Self::missing(
                "the machine",
                skep_types::chain(&error),
                "see `console.log` in the sandbox's directory, and `skep doctor`",
            ),
        }
    }
}

/// What a machine is booted into.
pub struct Inside<'a> {
    /// The sandbox.
    pub run: &'a RunSpec,
    /// Who it is.
    pub map: IdMap,
    /// The image whose system the guest sees, if it is not the view's.
    pub image: Option<SharedImage>,
    /// Its fences.
    pub confinement: &'a Confinement,
    /// Where its connections are led to, if it may have any.
    pub doors: Option<Doors>,
}

/// A machine, and the execs in it.
pub struct InsideMachine {
    machine: Machine,
    ids: (u32, u32),
    limits: skep_types::Limits,
    /// Where the relay of each exec says how it ended.
    outcomes: HashMap<i32, OwnedFd>,
}

impl InsideMachine {
    /// Boots it, and says so in the report.
    pub fn boot(
        spec: &MachineSpec,
        files: &MachineFiles,
        inside: &Inside<'_>,
        report: &mut EnforcementReport,
    ) -> Result<Self, Failure> {
        let nonce = nonce().step(|| "make a nonce".into())?;
        // Without Landlock: the kernel and the initial file system lie outside the view.
        let fence = || {
            inside.confinement.drop_privileges()?;
            inside.confinement.filter_system_calls()
        };
        let network = inside.doors.map(|doors| network(inside.run, &doors)).transpose()?;
        let place = Place {
            name: &inside.run.name,
            project: &inside.run.project,
            network: network.is_some(),
            image: inside.image.as_ref(),
        };
        let machine = boot::boot(spec, files, &place, &nonce, &fence)?;
        report.on(
            Layer::Kernel,
            format!(
                "a guest with its own kernel {} ({}, {} MiB, {} processors), inside this sandbox's namespaces",
                machine.ready.kernel,
                spec.accelerator.as_str(),
                spec.memory_mib,
                spec.processors
            ),
        );
        tell_of_the_inside(report);
        if let Some(network) = network {
            connect(&machine, network, report)?;
        }
        Ok(Self {
            machine,
            ids: inside.map.inside(),
            limits: inside.run.policy.limits.clone(),
            outcomes: HashMap::new(),
        })
    }

    /// What the guest said of itself.
    pub fn facts(&self) -> BTreeMap<String, String> {
        let ready = &self.machine.ready;
        BTreeMap::from([
            ("guest_kernel".to_owned(), ready.kernel.clone()),
            ("guest_boot".to_owned(), ready.boot_id.clone()),
        ])
    }

    /// The process that is the machine.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.machine.handle()
    }

    /// Whether the machine has ended, or is just about to.
    pub fn ends_soon(&self) -> bool {
        self.machine.ends_within(LAST_BREATH)
    }

    /// Whether the machine cannot be without this process.
    pub fn needs(&self, pid: i32) -> bool {
        self.machine.needs(pid)
    }

    /// Everything in the guest stands still and is written back.
    pub fn freeze(&self) -> Result<(), Failure> {
        self.machine.freeze().step(|| "pause the guest".into())
    }

    /// Signals execs. What the machine is made of is continued with everyone, and never ended.
    pub fn signal(&self, whom: &Whom, signal: Signal, running: &HashMap<i32, ExecId>) {
        if signal == Signal::CONT && matches!(whom, Whom::Everyone) {
            let _ = skep_sys::process::signal_everyone(signal);
            let _ = self.machine.thaw();
            return;
        }
        let meant = |exec: &ExecId| match whom {
            Whom::Everyone | Whom::OnlyExec(_) => true,
            Whom::Exec(one) => one == exec,
        };
        let pids = running.iter().filter(|(_, exec)| meant(exec));
        for pid in pids.filter_map(|(pid, _)| Pid::from_raw(*pid)) {
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    /// How an exec ended in the guest, if its relay was told.
    pub fn outcome_of(&mut self, relay: i32) -> Option<Outcome> {
        let mut said = Vec::new();
        File::from(self.outcomes.remove(&relay)?).read_to_end(&mut said).ok()?;
        serde_json::from_slice(&said).ok()
    }

    /// Has the guest lead its connections by other rules.
    pub fn rule(&self, rules: String) -> Result<(), Failure> {
        self.machine.rule(rules).map_err(|error| {
            Failure::invalid(format!("the guest did not take in its new rules: {error}"))
        })
    }

    /// Has hosts tried from inside the guest, and the findings written to the descriptor. Init does
    /// not wait for it; without an answer, the reader sees the end.
    pub fn knock(&self, question: &Question, confinement: &Confinement, descriptors: Vec<OwnedFd>) {
        let Some(answer) = descriptors.into_iter().next() else { return };
        let Ok(line) = self.machine.connect() else { return };
        let order = Order {
            argv: Vec::new(),
            environment: Default::default(),
            workdir: "/".into(),
            umask: 0o077,
            uid: self.ids.0,
            gid: self.ids.1,
            terminal: None,
            file_size: None,
            open_files: None,
            processes: None,
            knock: Some(crate::protocol::to_json(question).into()),
        };
        let _ = clone_with(Namespaces::NONE, move || {
            let worn = rustix::stdio::dup2_stdout(&answer)
                .map_err(io::Error::from)
                .and_then(|()| skep_sys::process::close_all_but(&[line.as_fd()]))
                .and_then(|()| confinement.drop_privileges())
                .and_then(|()| confinement.filter_system_calls());
            i32::from(worn.is_err() || relay::run(&line, &order, drop).is_err())
        });
    }

    /// Starts an exec in the guest, and its relay here.
    pub fn spawn(
        &mut self,
        order: &SpawnOrder,
        terminal: Option<TerminalSize>,
        joins: &[OwnedFd],
        stdio: &Stdio,
        confinement: &Confinement,
    ) -> Result<Spawned, (SpawnStage, i32)> {
        let failed =
            |error: io::Error| (SpawnStage::Fork, error.raw_os_error().unwrap_or(libc::EIO));
        if let Stdio::Terminal(terminal) = stdio {
            // Before anything is typed: the guest's own terminal does what a terminal does.
            skep_sys::stdio::make_raw(terminal).map_err(|error| {
                (SpawnStage::Terminal, error.raw_os_error().unwrap_or(libc::EIO))
            })?;
        }
        let line = self.machine.connect().map_err(failed)?;
        let (outcome, tell_outcome) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let wanted = self.order(order, terminal);
        // The closure owns the relay's ends: here they are dropped.
        let newborn = Newborn { order, joins, stdio, confinement: Some(confinement) };
        // A guest whose files have gone answers nothing any more.
        let spawned = spawn_as(&newborn, &self.machine.vital(), move |report| {
            be_relay(&line, &wanted, report, &tell_outcome)
        })?;
        self.outcomes.insert(spawned.child.pid.as_raw_nonzero().get(), outcome);
        Ok(spawned)
    }

    fn order(&self, order: &SpawnOrder, terminal: Option<TerminalSize>) -> Order {
        Order {
            argv: order.argv.clone(),
            environment: order.environment.clone(),
            workdir: order.workdir.clone(),
            umask: order.umask,
            uid: self.ids.0,
            gid: self.ids.1,
            terminal,
            file_size: order.file_size,
            open_files: order.open_files,
            processes: self.limits.pids,
            knock: None,
        }
    }
}

/// What was found around the guest is not what holds for a command in it, which speaks to another kernel.
fn tell_of_the_inside(report: &mut EnforcementReport) {
    report.off(
        Layer::Syscalls,
        "none in the guest; QEMU around it wears the seccomp filter",
        "commands run in the guest, whose kernel answers every call",
    );
    report.off(
        Layer::Landlock,
        "none",
        "commands run in the guest, and what QEMU boots lies outside the view",
    );
    let notes = [
        (Layer::Filesystem, "; around the guest, whose /proc, /sys and /dev are its own kernel's"),
        (Layer::Processes, "; around the guest, in which commands have no capabilities either"),
    ];
    for (layer, note) in notes {
        if let Some(found) = report.0.get_mut(&layer) {
            found.how.push_str(note);
        }
    }
}

/// The sandbox's network once more: programs in the guest find the same ports, and the same rules lead
/// them there.
fn network(run: &RunSpec, doors: &Doors) -> Result<Network, Failure> {
    let literals = process::host_loopback(&run.policy.egress.allow)?;
    let nowhere = NOWHERE.iter().filter(|to| to.is_ipv4() || doors.tcp6.is_some());
    Ok(Network {
        own: OWN_ADDRESSES,
        tcp4: doors.tcp4,
        tcp6: doors.tcp6,
        proxy: doors.proxy,
        dns: DNS_PORT,
        // Without one the guest finds that out, and says so.
        program: rules::program().unwrap_or("/usr/sbin/nft").to_owned(),
        rules: rules::ruleset(doors, &literals),
        nowhere: nowhere.copied().collect(),
    })
}

/// Gives the guest its network, and says in the report what it is.
fn connect(
    machine: &Machine,
    network: Network,
    report: &mut EnforcementReport,
) -> Result<(), Failure> {
    let networked =
        machine.connect_network(network).step(|| "give the guest its network".into())?;
    if let Some(reason) = networked.failure {
        return Err(Failure::missing(
            "`--net allow`",
            format!("the guest has no network: {reason}"),
            "see `console.log` in the sandbox's directory, or use `--provider namespace`",
        ));
    }
    if let Some(found) = report.0.get_mut(&Layer::Network) {
        found.how.push_str(&match networked.unredirected {
            None => "; the guest has no network card, and the same redirect in it".to_owned(),
            Some(reason) => format!(
                "; the guest has no network card, and proxy variables only (no redirect in it: {reason})"
            ),
        });
    }
    Ok(())
}

/// The rest of a relay's life. Everything of init's but its own ends is closed first.
fn be_relay(line: &OwnedFd, order: &Order, report: OwnedFd, outcome: &OwnedFd) -> i32 {
    let kept = [line.as_fd(), report.as_fd(), outcome.as_fd()];
    if skep_sys::process::close_all_but(&kept).is_err() {
        return 125;
    }
    let started = |result: Result<(), NotStarted>| {
        if let Err(NotStarted { workdir, errno }) = result {
            let stage = if workdir { SpawnStage::WorkingDirectory } else { SpawnStage::Program };
            spawn::tell(&report, stage, errno);
        }
        drop(report);
    };
    match relay::run(line, order, started) {
        Ok(ended) => {
            let _ = rustix::io::write(outcome, &crate::protocol::to_json(&ended));
            ended.code.unwrap_or(128 + ended.signal.unwrap_or(0))
        }
        Err(_) => 125,
    }
}

/// The end of an exec as the guest told it.
pub fn ended(exec: ExecId, outcome: &Outcome) -> FromInit {
    let felt = [(outcome.starved, "memory"), (outcome.crowded, "pids")];
    FromInit::Ended {
        exec,
        code: outcome.code,
        signal: outcome.signal,
        cpu_ms: outcome.cpu_ms,
        memory_peak: outcome.memory_peak,
        felt: felt.iter().filter(|(felt, _)| *felt).map(|(_, name)| (*name).to_owned()).collect(),
    }
}

/// Whether a relay ended by itself (with a code) without having been told how its command ended. It has lost the
/// machine then, and its code is its own. QEMU's end may be seen only after it.
pub fn is_lost(told: &Option<Outcome>, code: Option<i32>) -> bool {
    told.is_none() && code.is_some()
}

/// A word that nobody has said before.
pub fn nonce() -> io::Result<String> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relays_own_code_is_never_the_commands() {
        let told = |code| Some(Outcome { code: Some(code), ..Outcome::default() });
        // A command may end with any code, that of a relay too; and a relay may be killed with its exec.
        assert!(!is_lost(&told(125), Some(125)) && !is_lost(&told(0), Some(0)));
        assert!(!is_lost(&None, None));
        assert!(is_lost(&None, Some(125)) && is_lost(&None, Some(0)));
    }
}
