//! The keeper: one process, one thread, one loop, one sandbox.
//!
//! It waits for clients, for init, for output and for deadlines, and does one small thing at a
//! time. It knows nothing of the store: what others must know after it is gone, it writes into the
//! sandbox's directory (`execs/*`).

mod accountant;
mod adoption;
mod connection;
mod deadlines;
mod deleted;
mod doubt;
mod egress;
mod felt;
mod groups;
mod guard;
mod operations;
mod owners;
mod polled;
mod refusals;
mod remembered;
mod running;
mod shares;
mod starting;
mod strays;
mod streams;
mod under_way;
mod witness;

pub use accountant::{Usage, usage};
pub use adoption::Adoption;
pub use groups::{Membership, Promise};
pub use operations::make_first_room;

use crate::channel::Channel;
use crate::failure::Failure;
use crate::identity::LentIds;
use crate::network::process::Egress;
use crate::network::publish::Publisher;
use crate::protocol::{FromInit, Operation, Reply, ToInit};
use crate::vessel::{Held, Vessel};
use crate::view::fuse::Server;
use crate::view::system;
use connection::Connection;
use egress::EgressState;
use guard::DiskGuard;
use owners::ExecsSoFar;
use polled::PolledGuard;
use refusals::Refusals;
use remembered::Remembered;
use running::Running;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use skep_confine::cgroup::Group;
use skep_confine::seccomp::NotingFilter;
use skep_provider::RunSpec;
use skep_sys::signal::SignalFd;
use skep_types::{ExecId, SystemView};
use skep_workspace::{DeriveError, Insiders, NamesPass, Pass, TrackedPass};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use witness::Witness;

/// How long an init without a pid namespace may take to end everything.
const END_PATIENCE: Duration = Duration::from_secs(12);
/// How long the keeper itself goes on ending what init could not.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// A keeper whose sandbox is up.
pub struct Keeper<'a> {
    /// The sandbox.
    pub spec: &'a RunSpec,
    /// What it is in.
    pub vessel: &'a Vessel,
    /// Where clients knock.
    pub listener: OwnedFd,
    /// The way to init.
    pub channel: Channel,
    /// Init itself.
    pub init: Held,
    /// Its cgroup.
    pub group: Option<Membership>,
    /// The caller's file mode mask, which processes inside get.
    pub umask: u32,
    noting: Option<NotingFilter>,
    attendants: Attendants,
    state: State,
}

/// Processes beside init that serve the inside. They end with the keeper.
#[derive(Debug)]
pub struct Attendants {
    /// Filesystems.
    pub servers: Vec<Server>,
    /// Ports in.
    pub publisher: Option<Publisher>,
    /// The way out.
    pub egress: Option<Egress>,
}

#[derive(Default)]
struct State {
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    execs: BTreeMap<ExecId, Running>,
    /// Clients that wait for init to answer a write or a pause, in order.
    waiting: VecDeque<u64>,
    frozen: bool,
    /// Commands that were asked for while it is frozen, and by whom.
    held_back: Vec<(u64, Operation)>,
    stopping: bool,
    /// Why, where nobody has asked for it.
    ends_because: Option<String>,
    /// Since when nothing is left inside, because the last command has ended. Whoever ran it is
    /// about to say stop.
    over_since: Option<Instant>,
    /// Since when the command has ended for which the sandbox was made, or will never begin. Whoever ran it may be
    /// gone by then.
    run_ended: Option<Instant>,
    idle_since: Option<Instant>,
    /// Whether some live on although no exec runs any more: the guards stay awake for them.
    left: bool,
    disk: Option<DiskGuard>,
    /// Where there is no cgroup.
    polled: Option<PolledGuard>,
    /// Processor time that was told apart by marks, of all execs so far.
    told: Duration,
    /// How often something was to be reached without a network, as last counted.
    unreached: u64,
    /// Whether somebody may have tried since whom the next exec has nothing to do with.
    unreached_since: bool,
    /// What the group had counted when the last command ended, if nobody was left inside then.
    counted: Option<running::Counted>,
    /// The group of an engine, where skep has none.
    watched: Option<Group>,
    /// Whether init is gone without having been told to.
    init_ended: bool,
    capture: Option<Capture>,
    captor: skep_workspace::Captor,
    /// Something was approved, and nobody has looked since.
    look_due: bool,
    /// It is being frozen, and is looked at when it stands.
    still_due: bool,
    /// What the view may remember of the project.
    remembered: Remembered,
    witness: Witness,
    refusals: Refusals,
    tracked: Noting<TrackedPass>,
    names: Noting<NamesPass>,
    /// When those are noted.
    names_at: Option<Instant>,
    /// Since when whoever comes sees the project as it is, if what was remembered of it could be dropped.
    looks_anew: Option<i128>,
    /// How often init was asked to drop it and has not answered.
    unanswered: u32,
    egress: EgressState,
    so_far: ExecsSoFar,
    /// What it became, where it was made ahead.
    adoption: Option<Adoption>,
    /// When the kernel is asked next whether it killed somebody for memory.
    starved_look: Option<Instant>,
    strays: strays::Strays,
    /// The output that is kept of all execs.
    shelf: skep_provider::shelf::Shelf,
}

/// Noting how the project was at create, once: which files git had clean, while the first exec runs that takes a
/// while; which names stood where, then or after the first exec.
#[derive(Default)]
enum Noting<P> {
    #[default]
    NotBegun,
    Going(Box<P>),
    Over,
}

impl<P> Noting<P> {
    fn is_going(&self) -> bool {
        matches!(self, Self::Going(_))
    }

    fn is_to_begin(&self) -> bool {
        matches!(self, Self::NotBegun)
    }

    /// Begins, or goes on. What cannot be noted is no lost work.
    fn go_on(
        &mut self,
        begin: impl FnOnce() -> Option<P>,
        step: impl FnOnce(&mut P) -> Result<Pass, DeriveError>,
    ) {
        let pass = match std::mem::replace(self, Self::Over) {
            Self::Over => None,
            Self::NotBegun => begin().map(Box::new),
            Self::Going(pass) => Some(pass),
        };
        let Some(mut pass) = pass else { return };
        if matches!(step(&mut pass), Ok(Pass::Unfinished)) {
            *self = Self::Going(pass);
        }
    }
}

/// How many paths are looked at between two rounds of the loop: a millisecond or so.
const TRACKED_STEP: usize = 200;
/// And how many directories.
const NAMES_STEP: usize = 20;

/// When base bytes are captured next, and how long to wait after that.
#[derive(Debug, Clone, Copy)]
struct Capture {
    at: Instant,
    pause: Duration,
}

/// What became ready.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Listener,
    Init,
    InitEnded,
    Terminate,
    Counted,
    Refused(u64),
    Egress,
    Client(u64),
    Output(ExecId, usize),
    Input(ExecId),
}

impl<'a> Keeper<'a> {
    /// Takes over a sandbox whose init is ready.
    #[allow(clippy::too_many_arguments, reason = "the parts of a keeper, brought up one by one")]
    pub fn new(
        spec: &'a RunSpec,
        vessel: &'a Vessel,
        listener: OwnedFd,
        channel: Channel,
        init: Held,
        group: Option<Membership>,
        umask: u32,
        attendants: Attendants,
    ) -> Self {
        let now = Instant::now();
        let disk = DiskGuard::new(uppers(spec), &spec.policy.limits, now);
        // Without a view of its own the filesystems in memory are everybody's.
        let home = (!vessel.is_bare()).then_some(spec.home.as_path());
        let polled = group.is_none().then(|| PolledGuard::new(init.pid, home, now));
        // Apart from what is written: nobody is ended for what skep keeps.
        let captor = skep_workspace::Captor::limited(spec.policy.limits.disk.map(|size| size.0));
        let idle_since = Some(now);
        let state = State { disk: Some(disk), polled, idle_since, captor, ..State::default() };
        let noting = Self::noting_filter(spec);
        Self { spec, vessel, listener, channel, init, group, umask, noting, attendants, state }
    }

    /// Hears whoever started it by this connection, without being called upon.
    pub fn hearing(mut self, caller: Option<OwnedFd>) -> Self {
        if let Some(socket) = caller {
            let id = self.state.next_connection;
            self.state.next_connection += 1;
            self.state.connections.insert(id, Connection::of_the_caller(socket));
        }
        self
    }

    /// Counts files of these ids too.
    pub fn counting(mut self, lent: Option<LentIds>) -> Self {
        if let Some(guard) = &mut self.state.disk {
            guard.count_for(lent);
        }
        self
    }

    /// Something was tried from inside, by nobody's command.
    pub fn probed(mut self, probed: bool) -> Self {
        self.state.unreached_since = probed;
        self
    }

    /// Looks for ends by the limits of a group that is somebody else's.
    pub fn watching(mut self, group: Option<Group>) -> Self {
        self.state.watched = group;
        self
    }

    /// Until somebody says stop, init ends, or nothing has happened for too long.
    ///
    /// When this returns, no process of the sandbox is left.
    pub fn serve(mut self, terminate: &SignalFd) {
        if self.vessel.is_bare() {
            // Whom init leaves behind, or did not outlive, comes to us.
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        }
        while !self.state.stopping {
            let ready = match self.wait(terminate) {
                Ok(ready) => ready,
                Err(_) => break,
            };
            for token in ready {
                self.handle(token, terminate);
            }
            self.meet_deadlines(Instant::now());
        }
        self.end();
    }

    fn wait(&self, terminate: &SignalFd) -> io::Result<Vec<Token>> {
        let mut tokens = vec![Token::Listener, Token::Terminate];
        let mut watched =
            vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(terminate, PollFlags::IN)];
        if self.state.over_since.is_none() {
            watched.push(PollFd::new(&self.channel, PollFlags::IN));
            watched.push(PollFd::new(&self.init.pidfd, PollFlags::IN));
            tokens.extend([Token::Init, Token::InitEnded]);
        }
        if let Some(answer) = self.state.disk.as_ref().and_then(DiskGuard::answer_comes_on) {
            watched.push(PollFd::from_borrowed_fd(answer, PollFlags::IN));
            tokens.push(Token::Counted);
        }
        for (listener, token) in self.state.refusals.watched() {
            watched.push(listener);
            tokens.push(token);
        }
        if let Some(control) = self.attendants.egress.as_ref().and_then(Egress::control) {
            watched.push(PollFd::from_borrowed_fd(control, PollFlags::IN));
            tokens.push(Token::Egress);
        }
        let sockets: Vec<_> =
            self.state.connections.iter().map(|(id, client)| (*id, client.socket())).collect();
        for (id, socket) in &sockets {
            let flags = self.interest_in(*id);
            watched.push(PollFd::from_borrowed_fd(socket.as_fd(), flags));
            tokens.push(Token::Client(*id));
        }
        for (exec, running) in &self.state.execs {
            let crowded = running
                .client
                .and_then(|client| self.state.connections.get(&client))
                .is_some_and(Connection::is_crowded);
            for (index, output) in running.outputs.iter().enumerate() {
                if let (Some(from), false) = (&output.from, crowded) {
                    watched.push(PollFd::new(from, PollFlags::IN));
                    tokens.push(Token::Output(exec.clone(), index));
                }
            }
            if let Some(stdin) = running.wants_to_feed() {
                watched.push(PollFd::from_borrowed_fd(stdin, PollFlags::OUT));
                tokens.push(Token::Input(exec.clone()));
            }
        }
        let timeout = self.next_deadline().map(until);
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = watched.iter().zip(tokens).filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, token)| token).collect())
    }

    fn interest_in(&self, client: u64) -> PollFlags {
        let Some(connection) = self.state.connections.get(&client) else {
            return PollFlags::empty();
        };
        let crowded = connection
            .attached
            .as_ref()
            .and_then(|exec| self.state.execs.get(exec))
            .is_some_and(Running::is_crowded);
        let mut flags = PollFlags::empty();
        if !crowded {
            flags |= PollFlags::IN;
        }
        if connection.has_output() {
            flags |= PollFlags::OUT;
        }
        flags
    }

    fn handle(&mut self, token: Token, terminate: &SignalFd) {
        match token {
            Token::Listener => self.welcome(),
            Token::Init => self.hear_init(),
            Token::InitEnded => {
                self.state.init_ended = true;
                self.state.stopping = true;
            }
            Token::Counted => self.judge_disk(),
            Token::Refused(number) => self.refuse(number),
            Token::Egress => self.hear_egress(),
            Token::Terminate => self.state.stopping = terminate.next().ok().flatten().is_some(),
            Token::Client(id) => self.serve_client(id),
            Token::Output(exec, index) => self.pump(&exec, index),
            Token::Input(exec) => {
                if let Some(running) = self.state.execs.get_mut(&exec) {
                    running.feed();
                }
            }
        }
    }

    fn hear_init(&mut self) {
        let Ok((message, descriptors)) = self.channel.receive::<FromInit>() else {
            self.state.init_ended = true;
            self.state.stopping = true;
            return;
        };
        match message {
            FromInit::Spawned { exec, noted } => self.spawned(&exec, noted, descriptors),
            FromInit::NotSpawned { exec, stage, errno } => self.not_spawned(&exec, stage, errno),
            FromInit::Ended { exec, code, signal, cpu_ms, memory_peak, felt } => {
                let main = running::MainEnd { code, signal, cpu_ms, memory_peak, felt };
                self.main_ended(&exec, &main);
            }
            FromInit::Held(result) => self.held(result),
            FromInit::Ruled(result) => self.guest_ruled(result),
            FromInit::Stood(result) => {
                if let Some(client) = self.state.waiting.pop_front() {
                    self.reply(client, &result.map(Reply::Stood));
                }
            }
            FromInit::Refreshed(freshness) => {
                if let Some(client) = self.state.waiting.pop_front() {
                    self.reply(client, &Ok(Reply::Refreshed(freshness)));
                }
            }
            FromInit::Looked(freshness) => self.looked_anew(freshness),
            FromInit::Done(result) => {
                self.look_at_still();
                if let Some(client) = self.state.waiting.pop_front() {
                    self.reply(client, &result.map(|()| Reply::Done));
                }
            }
            // Said once, before the loop.
            FromInit::Here
            | FromInit::Workspace
            | FromInit::Ready(..)
            | FromInit::Failed(_)
            | FromInit::Serve(_)
            | FromInit::Connect(_) => {}
        }
    }

    /// Captures the base bytes of what has changed. A capture that fails is not lost work: the
    /// path will have one side less in a merge, and then be a conflict instead of a guess.
    ///
    /// How many paths were captured.
    fn capture(&mut self) -> u64 {
        self.capture_with(Insiders::Some)
    }

    /// The same, with who is inside.
    fn capture_with(&mut self, insiders: Insiders) -> u64 {
        let workspace = self.workspace();
        let captured = self.state.captor.capture(&workspace, insiders);
        captured.map_or(0, |summary| summary.captured)
    }

    /// Everybody has been made to stand: what they wrote until now is looked at before the user is told.
    fn look_at_still(&mut self) {
        if std::mem::take(&mut self.state.still_due) && self.state.frozen {
            self.capture();
        }
    }

    /// Notes some more of the files that git had clean at create.
    fn note_tracked(&mut self) {
        let workspace = self.workspace();
        let begin = || TrackedPass::begin(&workspace);
        self.state.tracked.go_on(begin, |pass| pass.step(&workspace, TRACKED_STEP));
    }

    /// Notes the names in some more directories of the project.
    fn note_names(&mut self) {
        let workspace = self.workspace();
        let begin = || NamesPass::begin(&workspace);
        self.state.names.go_on(begin, |pass| pass.step(&workspace, NAMES_STEP));
    }

    /// Ends everything and leaves nothing: processes, cgroup, socket.
    pub fn end(mut self) {
        if self.vessel.is_bare() {
            self.end_gently();
        }
        self.init.kill();
        // A frozen process cannot die.
        self.set_frozen_groups(false);
        self.init.wait();
        let Attendants { servers, publisher, egress } = self.attendants;
        drop((egress, publisher, servers));
        self.attendants = Attendants { servers: Vec::new(), publisher: None, egress: None };
        if self.vessel.is_bare() {
            crate::vessel::end_family(LAST_PATIENCE);
        }
        let execs: Vec<ExecId> = self.state.execs.keys().cloned().collect();
        for exec in execs {
            self.bury(&exec);
        }
        self.forget_first_room();
        self.capture();
        for connection in self.state.connections.values_mut() {
            let _ = connection.flush();
        }
        let Self { spec, state, group, listener, init, .. } = self;
        let State { connections, execs, .. } = state;
        // Nothing changes any more: whoever waits for that need not wait for the rest.
        drop((connections, listener));
        init.let_go();
        for group in execs.into_values().filter_map(|running| running.group) {
            let _ = group.remove();
        }
        let left = group.is_some_and(Membership::leaves_something);
        // The socket shows that something may be left (see the provider's clean-up).
        if !left {
            let _ = std::fs::remove_file(spec.directory.join("keeper.sock"));
        }
    }

    /// Without a pid namespace init ends its descendants first. It is given time for it.
    fn end_gently(&mut self) {
        self.set_frozen_groups(false);
        if self.channel.send(&ToInit::End, &[]).is_ok() {
            let patience = until(Instant::now() + END_PATIENCE);
            let _ = poll(&mut [PollFd::new(&self.init.pidfd, PollFlags::IN)], Some(&patience));
        }
    }

    fn reply(&mut self, client: u64, answer: &Result<Reply, Failure>) {
        use crate::protocol::{FrameKind, to_json};
        if let Some(connection) = self.state.connections.get_mut(&client) {
            connection.push(FrameKind::Reply, &to_json(answer));
            if connection.attached.is_none() {
                connection.closing = true;
            }
        }
        self.flush(client);
    }

    fn flush(&mut self, client: u64) {
        let Some(connection) = self.state.connections.get_mut(&client) else { return };
        let gone = connection.flush().is_err();
        let said = !connection.has_output();
        if gone || (connection.closing && said) {
            self.forget(client);
        } else if connection.of_the_caller && said && self.state.over_since.is_some() {
            // The last command has ended, and its caller knows: nobody will say stop.
            self.state.stopping = true;
        }
    }

    fn forget(&mut self, client: u64) {
        let gone = self.state.connections.remove(&client);
        if gone.is_some_and(|gone| gone.of_the_caller) && !self.state.so_far.any() {
            // It was killed before it had asked for anything, and its row cannot say that we are here.
            self.state.run_ended.get_or_insert_with(Instant::now);
        }
        for running in self.state.execs.values_mut() {
            if running.client == Some(client) {
                running.client = None;
                // Nobody will type any more.
                running.stdin_ending = true;
                running.feed();
            }
        }
    }
}

/// Where everything goes that is written inside and outlives it.
/// Directories with an `upper` each: the workspace's own, and those of a copy-on-write system.
pub fn areas(spec: &RunSpec) -> Vec<PathBuf> {
    let mut areas = vec![spec.directory.clone()];
    if spec.policy.system == SystemView::Cow {
        let system = system::directories().into_iter();
        areas.extend(system.map(|path| system::area(&spec.directory, path)));
    }
    areas
}

fn uppers(spec: &RunSpec) -> Vec<PathBuf> {
    areas(spec).into_iter().map(|area| area.join("upper")).collect()
}

fn until(deadline: Instant) -> Timespec {
    // A little late rather than a little early: else the loop would spin until the time is there.
    let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(200);
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
}
