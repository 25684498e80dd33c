//! Init at work: starts processes as it is told, reaps them, writes through the view.

use super::Outlet;
use super::marks::Marks;
use crate::census::Census;
use crate::channel::{Channel, from_file};
use crate::confinement::Confinement;
use crate::failure::{Failure, Step};
use crate::held::Held;
use crate::machine::{self, InsideMachine};
use crate::network::knock;
use crate::pause;
use crate::protocol::{FromInit, SpawnOrder, SpawnStage, ToInit, Whom, WriteOrder};
use crate::refresh;
use crate::relay;
use crate::spawn::{self, Spawned};
use crate::vessel;
use crate::writer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, Signal};
use skep_provider::{Freshness, Moved, Stillness};
use skep_sys::newborn::Waiting;
use skep_sys::signal::SignalFd;
use skep_sys::stdio::{Stdio, open_terminal};
use skep_types::{ExecId, TerminalSize};
use std::collections::HashMap;
use std::fs::File;
use std::io;

/// Init, with its sandbox up.
pub(super) struct Init {
    /// Main processes by pid.
    pub(super) running: HashMap<i32, ExecId>,
    /// Terminals that are relayed.
    pub(super) terminals: HashMap<ExecId, OwnedFd>,
    /// Whose processes are whose.
    pub(super) marks: Marks,
    pub(super) signals: SignalFd,
    pub(super) project: OwnedFd,
    pub(super) confinement: &'static Confinement,
    /// Wears the fences already and waits for the first command. As long as it is there nobody else has been.
    pub(super) waiting: Option<Waiting>,
    pub(super) machine: Option<InsideMachine>,
    pub(super) outlet: Outlet,
    pub(super) bare: bool,
    /// Who is held for a freeze.
    pub(super) held: Held,
    /// Who was stopped by signal alone, and is to stand.
    pub(super) stopped: Option<Census>,
    /// Who of them was found to have moved.
    pub(super) moved: Option<Moved>,
    /// Whether that was told: then they are to be stopped again, and not before.
    pub(super) told: bool,
    /// There is no user namespace: a limit on processes would count all of this user's.
    pub(super) host_ids: bool,
}

impl Init {
    /// Until the keeper is gone, or says that this is the end.
    pub(super) fn serve(mut self, channel: &Channel) -> i32 {
        let code = self.serve_until_end(channel);
        if self.bare {
            vessel::end_family(vessel::END_PATIENCE);
        }
        code
    }

    fn serve_until_end(&mut self, channel: &Channel) -> i32 {
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
        self.held.release_latecomers();
        while let Some(ended) = skep_sys::process::wait_any()? {
            if self.machine.as_ref().is_some_and(|machine| machine.needs(ended.pid)) {
                // Without it nothing can go on; the end of init is the end of everything here.
                return Err(io::Error::other("the machine has ended"));
            }
            let Some(exec) = self.running.remove(&ended.pid) else { continue };
            self.terminals.remove(&exec);
            let told = self.machine.as_mut().and_then(|machine| machine.outcome_of(ended.pid));
            let (mut code, mut signal) = (ended.code, ended.signal);
            if let Some(machine) = self.machine.as_ref().filter(|_| machine::is_lost(&told, code)) {
                if machine.ends_soon() {
                    return Err(io::Error::other("the machine has ended"));
                }
                (code, signal) = (None, Some(libc::SIGKILL));
            }
            let message = match told {
                Some(outcome) => machine::ended(exec, &outcome),
                None => FromInit::Ended {
                    exec,
                    code,
                    signal,
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
        if !matches!(message, ToInit::Spawn { .. }) {
            // Whoever looks who is inside is not to find somebody who is nobody's.
            self.waiting = None;
        }
        match message {
            ToInit::Spawn { exec, joins, terminal, order } => {
                let mut descriptors = descriptors.into_iter();
                let order = match order {
                    Some(order) => Ok(*order),
                    None => descriptors
                        .next()
                        .ok_or(io::ErrorKind::InvalidData.into())
                        .and_then(from_file::<SpawnOrder>),
                };
                self.spawn(channel, exec, order, joins, terminal, descriptors)
            }
            ToInit::Signal { whom, signal } => {
                self.signal(&whom, signal);
                Ok(())
            }
            ToInit::Write => {
                let result = self.write(descriptors);
                channel.send(&FromInit::Done(result), &[])
            }
            ToInit::Knock(question) => {
                match &self.machine {
                    Some(machine) => machine.knock(&question, self.confinement, descriptors),
                    None => knock::start(&question, self.confinement, descriptors),
                }
                Ok(())
            }
            ToInit::Rules(rules) => {
                let ruled = self.machine.as_ref().map_or(Ok(()), |machine| machine.rule(rules));
                channel.send(&FromInit::Ruled(ruled), &[])
            }
            ToInit::Pause => {
                let paused = self.pause(&[], &[]).map(drop);
                channel.send(&FromInit::Done(paused), &[])
            }
            ToInit::Refresh => channel.send(&FromInit::Refreshed(self.refresh()), &[]),
            ToInit::LookAnew => channel.send(&FromInit::Looked(self.refresh()), &[]),
            ToInit::Stood => channel.send(&FromInit::Stood(self.stood()), &[]),
            ToInit::Hold { inside, frozen } => {
                let still = if frozen { inside.as_slice() } else { &[] };
                let held = self.pause(&inside, still);
                channel.send(&FromInit::Held(held), &[])
            }
            ToInit::Resize { exec, size } => {
                if let Some(terminal) = self.terminals.get(&exec) {
                    let _ = relay::resize(terminal, size);
                }
                Ok(())
            }
            ToInit::End => Err(io::ErrorKind::UnexpectedEof.into()),
            ToInit::Go
            | ToInit::Sources
            | ToInit::Served(_)
            | ToInit::Connected(_)
            | ToInit::Spec => Ok(()),
        }
    }

    fn spawn(
        &mut self,
        channel: &Channel,
        exec: ExecId,
        order: io::Result<SpawnOrder>,
        joins: usize,
        terminal: Option<TerminalSize>,
        mut descriptors: std::vec::IntoIter<OwnedFd>,
    ) -> io::Result<()> {
        let failed = |exec, stage, errno| FromInit::NotSpawned { exec, stage, errno };
        let order = match order {
            Ok(order) if self.host_ids => SpawnOrder { processes: None, ..order },
            Ok(order) => order,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                return channel.send(&failed(exec, SpawnStage::Fork, errno), &[]);
            }
        };
        let joins: Vec<OwnedFd> = descriptors.by_ref().take(joins).collect();
        let rest: Vec<OwnedFd> = descriptors.collect();
        let (stdio, master, pipes) = match terminal {
            Some(size) => match open_terminal(size.rows, size.columns) {
                Ok((stdio, master)) => (stdio, Some(master), rest),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return channel.send(&failed(exec, SpawnStage::Terminal, errno), &[]);
                }
            },
            None => (Stdio::Pipes(rest), None, Vec::new()),
        };
        if order.marked && !self.bare {
            self.marks.give(&exec, &self.running);
        }
        let spawned = match &mut self.machine {
            Some(machine) => machine.spawn(&order, terminal, &joins, &stdio, self.confinement),
            None => {
                let waiting = self.waiting.take();
                spawn::spawn(&order, &joins, &stdio, self.confinement, waiting)
            }
        };
        match spawned {
            Ok(Spawned { child, listener }) => {
                self.running.insert(child.pid.as_raw_nonzero().get(), exec.clone());
                self.announce(channel, exec, Spawned { child, listener }, master, pipes)
            }
            Err((stage, errno)) => channel.send(&failed(exec, stage, errno), &[]),
        }
    }

    /// Tells that a process runs, with a handle on it where one can be sent.
    fn announce(
        &mut self,
        channel: &Channel,
        exec: ExecId,
        spawned: Spawned,
        master: Option<OwnedFd>,
        pipes: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let Spawned { child, listener } = spawned;
        let noted = listener.is_some();
        if self.outlet == Outlet::Open {
            let mut attached = vec![child.pidfd.as_fd()];
            attached.extend(listener.iter().chain(&master).map(AsFd::as_fd));
            return channel.send(&FromInit::Spawned { exec, noted }, &attached);
        }
        if let Some(master) = master {
            relay::start(&master, pipes)?;
            self.terminals.insert(exec.clone(), master);
        }
        channel.send(&FromInit::Spawned { exec, noted: false }, &[])
    }

    /// Stops everyone, unless they are all in the cgroups of these names; says whether it did. Those
    /// in the cgroups `still` are not waited for. A guest first writes everything back.
    fn pause(&mut self, inside: &[String], still: &[String]) -> Result<bool, Failure> {
        if let Some(machine) = &self.machine {
            machine.freeze()?;
        }
        let reach = self.reach();
        if !inside.is_empty() && pause::all_are_inside(reach, inside) {
            return Ok(false);
        }
        if std::mem::take(&mut self.told) {
            self.moved = None;
        } else if let Some(before) = &self.stopped
            && self.moved.is_none()
        {
            // Stopped once more: what happened before that is not forgotten.
            self.moved = before.moved().unwrap_or_default();
        }
        self.stopped = match self.machine {
            Some(_) => Some(pause::watch_everyone(reach, still)?),
            None => pause::hold_everyone(reach, still, &mut self.held)?,
        };
        Ok(true)
    }

    /// Drops what the kernel remembers of the project's names, as far as nobody has them open.
    fn refresh(&self) -> Freshness {
        let reach = self.reach();
        // A guest remembers names of its own, and its processes are not seen from here.
        let guest = self.machine.is_some();
        // Nor are those that gVisor's kernel lists all there are: one that had lost its parent was not among them.
        let counted = !guest && self.outlet == Outlet::Open;
        let alone = counted && Census::take(reach, &[]).is_ok_and(|census| census.is_empty());
        let dropped = !guest && refresh::drop_names(&self.project).is_ok();
        match (dropped, alone) {
            (true, true) if reach == pause::Reach::Everyone => Freshness::Unseen,
            (true, false) => Freshness::Dropped,
            (false, false) => Freshness::Held,
            (_, true) => Freshness::HeldAlone,
        }
    }

    fn reach(&self) -> pause::Reach {
        match self.bare {
            true => pause::Reach::Descendants,
            false => pause::Reach::Everyone,
        }
    }

    /// Whether everybody has stood since they were stopped. If somebody has not, that is so until all
    /// are stopped again.
    fn stood(&mut self) -> Result<Stillness, Failure> {
        if self.moved.is_none()
            && let Some(stopped) = &self.stopped
        {
            self.moved = stopped.moved().step(|| "look at the processes".into())?;
        }
        if let Some(moved) = &self.moved {
            self.told = true;
            return Ok(Stillness::Moved(moved.clone()));
        }
        Ok(if self.stopped.is_some() { Stillness::Stopped } else { Stillness::Held })
    }

    fn signal(&mut self, whom: &Whom, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        let go_on = matches!(whom, Whom::Everyone) && signal == Signal::CONT;
        if go_on {
            (self.stopped, self.moved, self.told) = (None, None, false);
        }
        if let Some(machine) = &self.machine {
            // Everyone in the guest is meant, not what the guest is made of.
            return machine.signal(whom, signal, &self.running);
        }
        // Nobody of them can fork, and nobody is to go on.
        let still = self.held.holds() || self.stopped.is_some();
        match whom {
            Whom::Exec(exec) | Whom::OnlyExec(exec)
                if signal == Signal::KILL && self.marks.kill(exec, still) => {}
            // To -1 from number 1: everyone in this pid namespace but itself.
            Whom::Everyone | Whom::OnlyExec(_) if self.bare => vessel::signal_family(signal),
            Whom::Everyone | Whom::OnlyExec(_) => {
                drop(skep_sys::process::signal_everyone(signal));
            }
            Whom::Exec(exec) => {
                let pids = self.running.iter().filter(|(_, running)| *running == exec);
                for pid in pids.filter_map(|(pid, _)| Pid::from_raw(*pid)) {
                    // Each exec leads a session and so a group of its own.
                    let _ = rustix::process::kill_process_group(pid, signal);
                }
            }
        }
        if go_on {
            // After the signal, which ends their stop: who is let go before that stops once more.
            self.held.release();
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
