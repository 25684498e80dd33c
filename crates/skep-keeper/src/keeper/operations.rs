//! What clients can ask for, and what happens when a command has ended.

use super::running::{Counted, MainEnd, Running};
use super::{Keeper, Membership};
use crate::channel::to_file;
use crate::failure::{Failure, Step};
use crate::protocol::{FrameKind, Reply, ToInit, Whom, WriteOrder, to_json};
use crate::vessel::{Tasks, Vessel};
use rustix::fd::AsFd;
use skep_confine::usage::state_of;
use skep_provider::Stillness;
use skep_types::{EndReason, EntryState, ExecEnd, ExecId, NetworkMode, RelPath};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the processes of an exec may take to die. Who is killed while it waits in the kernel for
/// something that no signal ends (a FUSE server that does not answer) dies when that lets it go.
const DYING: Duration = Duration::from_secs(2);
/// What the end of such an exec says.
const STUCK: &str = "it was killed and waits in the kernel, for a filesystem or a device that does not \
                     answer; it ends as soon as that lets it go, and cannot run any more";

/// The same of one of which no more is known.
const NOT_ENDED: &str = "it was killed and has not ended yet; `skep stop` ends the whole sandbox";

/// The first capture comes this long after a start, and one after another that found something; else at doubling
/// distances.
pub(super) const FIRST_CAPTURE: Duration = Duration::from_secs(1);

/// Makes the room for the end of a first exec that is sure to come, while nobody waits for it. Where that fails it is made
/// in its turn, and said.
pub fn make_first_room(directory: &Path) {
    let path = first_room(directory);
    if make_room_at(&path).is_err() {
        let _ = std::fs::remove_file(path);
    }
}

/// Nobody shall take it for what a command has left.
fn first_room(directory: &Path) -> PathBuf {
    directory.join("first.room")
}

fn make_room_at(path: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    skep_provider::record::make_room(&file)
}

impl Keeper<'_> {
    pub(super) fn main_ended(&mut self, exec: &ExecId, main: &MainEnd) {
        if self.state.execs.get(exec).is_some_and(Running::has_ended) {
            // It was stuck, and its end has been told.
            return self.forget_if_quiet(exec);
        }
        self.drain(exec);
        self.last_look(exec, main);
        let counted = self.count();
        let unreached = if main.code == Some(0) { 0 } else { self.unreached() };
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        if counted.refused > running.before.refused {
            running.feel("pids");
        }
        if unreached > 0 {
            running.refused.insert("network", unreached);
        }
        let mut end = running.conclude(main, counted.starved > running.before.starved);
        let (limit, ended) = (running.limits.memory, running.verdict.is_some());
        if let Some(limit) = limit.filter(|_| self.holds_memory()) {
            // Pages of files that others have paid for are in what the kernel says of a process.
            end.stats.memory_peak_bytes = end.stats.memory_peak_bytes.min(limit.0);
        }
        if ended {
            // It was ended, and so are those that its end was not told to.
            self.kill(exec, end.reason);
        }
        let over = self.ends_with_caller(exec);
        if over {
            // They die while the end is written down. What was changed is looked at when they are gone, and the
            // caller, who has the end by then, waits for that.
            self.init.kill_beside();
        } else {
            // Before anybody hears of the end: whoever waits for it may edit the project the next
            // moment, and then the base of what was changed here could no longer be proven.
            self.capture();
        }
        self.finish(exec, end);
        if over && !self.state.stopping {
            // The caller is gone, or has not heard everything yet: that look may be long in coming.
            self.capture();
        }
        self.schedule_capture();
        let alone = self.nobody_is_left();
        self.state.counted = Some(counted).filter(|_| alone);
        // What it tried is not the next one's. Nobody waits for this now, and somebody will then.
        match main.code == Some(0) {
            true if alone && self.state.over_since.is_none() => drop(self.unreached()),
            tried => self.state.unreached_since |= tried,
        }
    }

    /// Whether nobody is inside who could use or try anything before the next command.
    pub(super) fn nobody_is_left(&self) -> bool {
        self.state.execs.is_empty() && !self.state.left
    }

    /// What the sandbox's group has counted so far: as it was at the end of the last command, if nobody was inside since.
    pub(super) fn counted_before(&self) -> Counted {
        self.state.counted.filter(|_| self.nobody_is_left()).unwrap_or_else(|| self.count())
    }

    fn count(&self) -> Counted {
        Counted { refused: self.refused_forks(), starved: self.memory_kills() }
    }

    /// Nobody waits for ever for one that cannot die: its end is told, and that it is not gone.
    pub(super) fn give_up(&mut self, exec: &ExecId) {
        self.drain(exec);
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        let main = MainEnd { signal: Some(libc::SIGKILL), ..MainEnd::default() };
        let mut end = running.conclude(&main, false);
        let state = running.process.as_ref().and_then(crate::vessel::pid_of).and_then(state_of);
        let waits = state.is_some_and(|(state, _)| state == b'D');
        end.message = Some(if waits { STUCK } else { NOT_ENDED }.to_owned());
        self.capture();
        self.finish(exec, end);
    }

    /// Writes the end down, tells the client, and keeps the exec only if it left something behind.
    pub(super) fn finish(&mut self, exec: &ExecId, end: ExecEnd) {
        let _ = self.record_end(exec, &end);
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        let client = running.client.take();
        running.end = Some(end.clone());
        running.join_at = None;
        if running.last {
            self.state.run_ended.get_or_insert_with(Instant::now);
        }
        let (born, grouped) = (running.born, running.group.is_some());
        let last = running.last && client.is_some() && self.state.execs.len() == 1;
        let over = last && self.may_be_over();
        if let Some(connection) = client.and_then(|id| self.state.connections.get_mut(&id)) {
            // Whoever started us hears by the end of the connection that nothing is left.
            let stays = over && connection.of_the_caller;
            let kind = if stays { FrameKind::LastEnd } else { FrameKind::End };
            connection.push(kind, &to_json(&end));
            connection.closing = !stays;
        }
        if over {
            self.init.kill();
            self.state.over_since = Some(Instant::now());
        }
        if let Some(id) = client {
            self.flush(id);
        }
        if last {
            return self.forget_if_quiet(exec);
        }
        // Whoever waited for the end goes first: on some machines it is given this very processor.
        rustix::thread::sched_yield();
        if !grouped && self.has_exec_groups() && !self.orphans_since(born).is_empty() {
            // What it left behind is its own, not the next one's.
            self.state.stopping |= self.join_exec(exec).is_err();
        }
        self.forget_if_quiet(exec);
        // Whoever is left behind is no exec.
        if self.state.execs.values().all(Running::has_ended) {
            self.state.idle_since.get_or_insert_with(Instant::now);
        }
        self.look_for_left();
    }

    /// Whether everything ends with this command, and whoever started us stays with it until that is so.
    fn ends_with_caller(&self, exec: &ExecId) -> bool {
        let Some(running) = self.state.execs.get(exec) else { return false };
        let client = running.client.and_then(|id| self.state.connections.get(&id));
        let alone = self.state.execs.len() == 1;
        let stays = client.is_some_and(|connection| connection.of_the_caller);
        running.last && alone && stays && self.may_be_over()
    }

    /// The last command has ended, and whoever ran it is about to say stop. Nobody has to wait for
    /// the others inside to die: they are ended now. Not while somebody waits for init's answer, which would
    /// never come: then the stop ends them.
    fn may_be_over(&self) -> bool {
        *self.vessel == Vessel::Namespaces && !self.somebody_waits_for_init()
    }

    fn somebody_waits_for_init(&self) -> bool {
        !self.state.waiting.is_empty() || self.state.strays.somebody_waits()
    }

    /// Atomic, so that a reader sees an end or none.
    fn record_end(&mut self, exec: &ExecId, end: &ExecEnd) -> std::io::Result<()> {
        let running = self.state.execs.get_mut(exec);
        if let Some(recording) = running.and_then(|running| running.record.as_mut()) {
            return recording.end(end);
        }
        let temporary = self.room_for_end(exec);
        // Made with room for it when the exec was started.
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&temporary)?;
        let bytes = to_json(end);
        file.write_all(&bytes)?;
        file.set_len(bytes.len() as u64)?;
        let end = temporary.with_extension("");
        std::fs::rename(temporary, end)
    }

    /// The file that an end is written to before it is shown.
    pub(super) fn room_for_end(&self, exec: &ExecId) -> PathBuf {
        self.spec.directory.join("execs").join(format!("{exec}.end.new"))
    }

    /// Makes it for an exec that has a row: on a disk that is full by then it could not be.
    pub(super) fn make_room_for_end(&self, exec: &ExecId) -> std::io::Result<()> {
        let path = self.room_for_end(exec);
        let first = !self.state.so_far.any();
        if first && std::fs::rename(first_room(&self.spec.directory), &path).is_ok() {
            return Ok(());
        }
        make_room_at(&path)
    }

    /// What was made for a first exec that never came.
    pub(super) fn forget_first_room(&self) {
        if !self.state.so_far.any() {
            let _ = std::fs::remove_file(first_room(&self.spec.directory));
        }
    }

    /// An exec whose main process has ended is kept while others of its processes live: they are
    /// still counted, frozen and ended with it.
    pub(super) fn forget_if_quiet(&mut self, exec: &ExecId) {
        let Some(running) = self.state.execs.get(exec) else { return };
        let silent = running.outputs.iter().all(|output| output.from.is_none());
        let alone = running.group.as_ref().is_none_or(|group| group.pids().is_empty());
        if !(running.has_ended() && alone && (silent || running.group.is_some())) {
            return;
        }
        if let Some(group) = self.state.execs.remove(exec).and_then(|running| running.group) {
            let _ = group.remove();
        }
        if self.state.execs.is_empty() {
            self.state.idle_since.get_or_insert_with(Instant::now);
        }
    }

    /// The sandbox ends before the exec did.
    pub(super) fn bury(&mut self, exec: &ExecId) {
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        if running.has_ended() {
            return;
        }
        self.drain(exec);
        // Files in memory cannot be freed by killing an exec: the kernel then takes number 1.
        let starved = self.state.init_ended && self.memory_kills() > 0;
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        if starved {
            running.feel("memory");
        }
        running.verdict.get_or_insert(if starved { EndReason::Oom } else { EndReason::Killed });
        let main = MainEnd { signal: Some(libc::SIGKILL), ..MainEnd::default() };
        let mut end = running.conclude(&main, starved);
        end.message = end.message.or_else(|| self.state.ends_because.clone());
        self.finish(exec, end);
    }

    /// Processes of the sandbox that the kernel has killed for want of memory.
    pub(super) fn memory_kills(&self) -> u64 {
        let own = self.group.as_ref().filter(|membership| membership.used);
        let group = own.and_then(Membership::group).or(self.state.watched.as_ref());
        group.and_then(|group| group.oom_kills()).unwrap_or(0)
    }

    /// What was tried to reach without a network since this was last asked. The counters are those of
    /// the sandbox's own network, where nothing has a way out.
    pub(super) fn unreached(&mut self) -> u64 {
        let counted = self.spec.policy.network == NetworkMode::None
            && !self.vessel.is_bare()
            && self.vessel.tasks() == Tasks::Host
            && self.vessel.machine().is_none();
        if !counted {
            return 0;
        }
        let tried = crate::network::unreached(self.init.pid);
        tried.saturating_sub(std::mem::replace(&mut self.state.unreached, tried))
    }

    /// Forks refused by the limit on tasks, which is the sandbox's and not the exec's.
    pub(super) fn refused_forks(&self) -> u64 {
        let own = self.group.as_ref().filter(|membership| membership.used);
        let group = own.and_then(Membership::group).or(self.state.watched.as_ref());
        group.and_then(|group| group.pids_max_hits()).unwrap_or(0)
    }

    pub(super) fn operate_signal(&mut self, exec: &ExecId, signal: i32) {
        if signal == libc::SIGKILL {
            return self.kill(exec, EndReason::Killed);
        }
        let message = ToInit::Signal { whom: Whom::Exec(exec.clone()), signal };
        let _ = self.channel.send(&message, &[]);
    }

    /// Ends every process of an exec, now.
    pub(super) fn kill(&mut self, exec: &ExecId, reason: EndReason) {
        let only = self.state.execs.len() == 1;
        if !only {
            // Only a group tells one exec's processes from another's.
            let _ = self.join_all();
        }
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        running.verdict.get_or_insert(reason);
        running.kill_at = None;
        if !running.has_ended() {
            running.stuck_at.get_or_insert(Instant::now() + DYING);
        }
        let (born, grouped, alone) = (running.born, running.group.is_some(), running.alone);
        let all_in = grouped && running.join_at.is_none();
        if let Some(group) = &running.group {
            let _ = group.kill_within(DYING);
        }
        if grouped && !only {
            self.end_strays(born);
        }
        if only || !all_in {
            // Without a cgroup init knows an exec's processes by a mark, where it could give one. If
            // nobody else has been inside meanwhile, everyone is meant.
            let whom = match (alone, only) {
                (true, _) => Whom::Everyone,
                (false, true) => Whom::OnlyExec(exec.clone()),
                (false, false) => Whom::Exec(exec.clone()),
            };
            let _ = self.channel.send(&ToInit::Signal { whom, signal: libc::SIGKILL }, &[]);
        }
    }

    pub(super) fn operate_freeze(&mut self, client: u64, freeze: bool) {
        // Nobody looks while it stands, and the user may edit meanwhile.
        self.state.still_due = freeze && self.may_change();
        if freeze && self.pauses_by_init() {
            return self.ask_pause(client);
        }
        if !freeze {
            self.forget_look();
        }
        let failure = self.set_frozen_groups(freeze);
        self.state.frozen = freeze;
        if freeze && failure.is_none() {
            return self.freeze_strays(client);
        }
        let answer = match failure {
            None => Ok(Reply::Done),
            Some(failure) => Err(failure),
        };
        self.reply(client, &answer);
        if !freeze {
            self.begin_held_back();
        }
        self.close_group();
    }

    /// Where the host cannot freeze each exec, and where a guest must first write everything back.
    pub(super) fn pauses_by_init(&self) -> bool {
        !self.has_exec_groups() || self.vessel.machine().is_some()
    }

    /// Init stops everyone and says when they stand.
    fn ask_pause(&mut self, client: u64) {
        self.state.frozen = true;
        match self.channel.send(&ToInit::Pause, &[]).step(|| "pause the processes".into()) {
            Ok(()) => self.state.waiting.push_back(client),
            Err(failure) => self.reply(client, &Err(failure)),
        }
    }

    /// Whether everybody has stood since the freeze. Whom a freezer holds cannot move; whom init has
    /// stopped by signal, it has counted.
    pub(super) fn operate_stood(&mut self, client: u64) {
        let held = self.vessel.machine().is_some()
            || !(self.pauses_by_init() || self.has_stopped_strays());
        if held {
            return self.reply(client, &Ok(Reply::Stood(Stillness::Held)));
        }
        match self.channel.send(&ToInit::Stood, &[]).step(|| "look at the processes".into()) {
            Ok(()) => self.state.waiting.push_back(client),
            Err(failure) => self.reply(client, &Err(failure)),
        }
    }

    /// Freezes or thaws every exec; init stays awake, it has work to do.
    pub(super) fn set_frozen_groups(&mut self, freeze: bool) -> Option<Failure> {
        if freeze && let Err(failure) = self.join_completely() {
            return Some(failure);
        }
        if self.pauses_by_init() {
            // Freezing was asked of init, which answers by itself.
            let message = ToInit::Signal { whom: Whom::Everyone, signal: libc::SIGCONT };
            let sent = self.channel.send(&message, &[]);
            return sent.step(|| "wake the processes".into()).err();
        }
        if !freeze {
            self.wake_strays();
        }
        let groups = self.state.execs.values().filter_map(|running| running.group.as_ref());
        for group in groups {
            let result = if freeze { group.freeze() } else { group.thaw() };
            if let Err(error) = result {
                return Some(Failure::invalid(skep_types::chain(&error)));
            }
        }
        None
    }

    pub(super) fn operate_status(&mut self, client: u64) {
        let execs = self.state.execs.iter();
        let running =
            execs.filter(|(_, exec)| !exec.has_ended()).map(|(id, _)| id.clone()).collect();
        let frozen = self.state.frozen && !self.is_about_to_end();
        self.reply(client, &Ok(Reply::Status { running, frozen }));
    }

    pub(super) fn operate_write(&mut self, client: u64, path: RelPath, state: EntryState) {
        self.look_up();
        let content = self
            .state
            .connections
            .get_mut(&client)
            .map(|connection| std::mem::take(&mut connection.descriptors))
            .unwrap_or_default();
        let sent = to_file(&WriteOrder { path, state }).and_then(|order| {
            let mut descriptors = vec![order.as_fd()];
            descriptors.extend(content.iter().map(AsFd::as_fd));
            self.channel.send(&ToInit::Write, &descriptors)
        });
        match sent.step(|| "pass the write to init".into()) {
            Ok(()) => self.state.waiting.push_back(client),
            Err(failure) => self.reply(client, &Err(failure)),
        }
    }

    /// Something was approved, or taken in: what comes beside it later is told by this look to have come later.
    pub(super) fn operate_refresh(&mut self, client: u64) {
        match self.nobody_is_left() {
            // Before the next command: the clock of files has moved on by then.
            true => self.state.look_due = true,
            false => drop(self.capture()),
        }
        match self.channel.send(&ToInit::Refresh, &[]).step(|| "pass it to init".into()) {
            Ok(()) => self.state.waiting.push_back(client),
            Err(failure) => self.reply(client, &Err(failure)),
        }
    }

    pub(super) fn schedule_capture(&mut self) {
        let next = super::Capture { at: Instant::now() + FIRST_CAPTURE, pause: FIRST_CAPTURE };
        self.state.capture = Some(next);
        self.state.names_at.get_or_insert(next.at);
    }
}
