//! What clients can ask for.

use super::Keeper;
use super::running::{MainEnd, Output, Running};
use crate::channel::to_file;
use crate::failure::{Failure, Step};
use crate::protocol::{
    FrameKind, RecordOrder, Reply, SpawnOrder, SpawnStage, ToInit, Whom, WriteOrder, no_process,
    to_json,
};
use crate::vessel::{Tasks, Vessel};
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use skep_confine::cgroup::Group;
use skep_provider::ProviderError;
use skep_provider::log::{LogWriter, Stream};
use skep_provider::record::Recording;
use skep_sys::failpoint;
use skep_types::{
    ByteString, EndReason, EntryState, ExecEnd, ExecId, ExecSpec, Limits, NetworkMode, RelPath,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// Output kept of an exec that has no limit of its own.
const DEFAULT_OUTPUT: u64 = 64 << 20;
/// The first capture comes this long after a start, later ones at doubling distances.
const FIRST_CAPTURE: Duration = Duration::from_secs(1);

impl Keeper<'_> {
    pub(super) fn start_exec(
        &mut self,
        client: u64,
        exec: ExecId,
        command: ExecSpec,
        attach: bool,
    ) {
        match self.try_start(client, &exec, &command, attach) {
            Ok(()) => self.started(client, exec, attach),
            Err(failure) => self.reply(client, &Err(failure)),
        }
    }

    /// Starts a command that nobody has written down.
    ///
    /// 1. Only in the sandbox that was meant, and only if nothing keeps it from starting: whoever has
    ///    the store knows what to say otherwise.
    /// 2. The record, as the row would have been: before the effect.
    /// 3. The start. One that fails is an exec that failed.
    pub(super) fn start_recorded(&mut self, client: u64, order: RecordOrder) {
        let RecordOrder { name, exec, begun, attach, no_input } = order;
        let ends = self.state.stopping || self.state.over_since.is_some();
        let meant = name == self.spec.name && !self.state.frozen && !ends;
        let record = || Recording::begin(&self.spec.directory, &exec, &begun);
        let recording = meant.then(record).and_then(Result::ok);
        let Some(mut recording) = recording else {
            return self.reply(client, &Ok(Reply::AskTheStore));
        };
        let started = failpoint::hit("record.written")
            .step(|| format!("start exec `{exec}`"))
            .and_then(|()| self.try_start(client, &exec, &begun.spec, attach));
        if let Err(failure) = started {
            let message = ProviderError::from(failure.clone()).problem().message;
            let _ = recording.end(&no_process(EndReason::StartFailed, 125, message));
            return self.reply(client, &Err(failure));
        }
        if let Some(running) = self.state.execs.get_mut(&exec) {
            running.record = Some(recording);
            running.stdin_ending |= no_input;
            running.feed();
        }
        self.started(client, exec, attach);
    }

    fn started(&mut self, client: u64, exec: ExecId, attach: bool) {
        if let Some(connection) = self.state.connections.get_mut(&client) {
            connection.attached = attach.then_some(exec);
        }
        self.reply(client, &Ok(Reply::Done));
    }

    fn try_start(
        &mut self,
        client: u64,
        exec: &ExecId,
        command: &ExecSpec,
        attach: bool,
    ) -> Result<(), Failure> {
        if self.state.execs.contains_key(exec) {
            return Err(Failure::invalid(format!("exec `{exec}` is already running")));
        }
        let limits = narrowed(&self.spec.policy.limits, &command.limits);
        let group = self.group_first(exec, &command.limits)?;
        let joins = group.as_ref().map(Group::procs_files).transpose();
        let joins =
            joins.map_err(|error| Failure::invalid(skep_types::chain(&error)))?.unwrap_or_default();
        let (theirs, running) =
            self.make_running(exec, command, limits, group, attach.then_some(client))?;
        let step = || "pass the command to init".to_owned();
        let order = Box::new(self.order(command, &running));
        let (order, file) = match order.is_large() {
            true => (None, Some(to_file(&order).step(step)?)),
            false => (Some(order), None),
        };
        if let Some(guard) = &mut self.state.disk {
            guard.wake(Instant::now());
        }
        let mut descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        descriptors.extend(joins.iter().map(AsFd::as_fd));
        descriptors.extend(theirs.iter().map(AsFd::as_fd));
        let (joins, terminal) = (joins.len(), command.tty);
        let message = ToInit::Spawn { exec: exec.clone(), joins, terminal, order };
        self.channel.send(&message, &descriptors).step(step)?;
        let mut running = running;
        if let (Some(guard), Some(_)) = (&mut self.state.polled, running.limits.cpu_time) {
            running.cpu_before = guard.measure(None).cpu;
        }
        self.state.execs.insert(exec.clone(), running);
        self.state.so_far.one_more(exec);
        self.look_for_starved_later(Instant::now());
        self.state.idle_since = None;
        self.schedule_capture();
        Ok(())
    }

    /// The process's ends of its pipes, and the rest. With a terminal, init makes the ends.
    fn make_running(
        &self,
        exec: &ExecId,
        command: &ExecSpec,
        limits: Limits,
        group: Option<Group>,
        client: Option<u64>,
    ) -> Result<(Vec<OwnedFd>, Running), Failure> {
        let step = || format!("prepare exec `{exec}`");
        let kept = limits.output.map_or(DEFAULT_OUTPUT, |size| size.0);
        let log = LogWriter::create(&self.spec.directory.join("execs"), exec.as_str(), kept)
            .step(step)?;
        let now = Instant::now();
        let mut running = Running {
            client,
            started: now,
            stdin: None,
            pending: Vec::new(),
            stdin_ending: client.is_none(),
            outputs: Vec::new(),
            terminal: command.tty.is_some(),
            log,
            record: None,
            join_at: if group.is_some() { None } else { self.join_soon() },
            born: skep_sys::process::ticks_since_boot(),
            process: None,
            group,
            limits,
            last_output: now,
            verdict: None,
            kill_at: None,
            limits_hit: Vec::new(),
            refused: BTreeMap::new(),
            refused_before: self.refused_forks(),
            starved_before: self.memory_kills(),
            cpu_before: Duration::ZERO,
            end: None,
            last: false,
        };
        let pipe = || pipe_with(PipeFlags::CLOEXEC).step(step);
        let relayed = self.vessel.tasks() == Tasks::Foreign;
        if command.tty.is_some() && relayed {
            let ((input, feed), (out, stdout)) = (pipe()?, pipe()?);
            for end in [&feed, &out] {
                rustix::io::ioctl_fionbio(end, true).step(step)?;
            }
            running.stdin = Some(feed);
            running.outputs = vec![Output { from: Some(out), stream: Stream::Stdout }];
            running.feed();
            return Ok((vec![input, stdout], running));
        }
        if command.tty.is_some() {
            return Ok((Vec::new(), running));
        }
        let ((input, feed), (out, stdout), (err, stderr)) = (pipe()?, pipe()?, pipe()?);
        for end in [&feed, &out, &err] {
            rustix::io::ioctl_fionbio(end, true).step(step)?;
        }
        running.stdin = Some(feed);
        running.outputs = vec![
            Output { from: Some(out), stream: Stream::Stdout },
            Output { from: Some(err), stream: Stream::Stderr },
        ];
        running.feed();
        Ok((vec![input, stdout, stderr], running))
    }

    /// What every process inside has. The caller's own settings win over ours, but not over
    /// secrets: they were asked for by name.
    fn environment(&self) -> BTreeMap<String, ByteString> {
        let mut environment = BTreeMap::new();
        for (name, value) in self.egress_variables() {
            environment.insert(name, ByteString::from(value.as_str()));
        }
        environment.extend(self.spec.environment.clone());
        for (name, value) in self.secret_variables() {
            environment.insert(name, value);
        }
        environment
    }

    fn order(&self, command: &ExecSpec, running: &Running) -> SpawnOrder {
        let mut environment = self.environment();
        environment.extend(command.env.clone());
        let workdir = command.workdir.clone().map(|workdir| self.place_of(workdir));
        let counted = self.group.is_some();
        SpawnOrder {
            argv: command.argv.clone(),
            environment,
            workdir: workdir.unwrap_or_else(|| self.place_of(self.spec.project.as_path().into())),
            umask: self.umask,
            file_size: running.limits.disk.map(|size| size.0),
            open_files: running.limits.open_files,
            cpu_seconds: running
                .limits
                .cpu_time
                .filter(|_| !counted)
                // A second more than allowed: the guard that polls comes first and says why.
                .map(|time| time.as_secs() + 1),
            // Counted in the sandbox's own user namespace. Where a cgroup counts too, it shall be
            // the one that refuses, because it tells; this one holds until it is joined.
            processes: running.limits.pids.map(|limit| limit.saturating_add(u64::from(counted))),
            allow_ptrace: self.spec.policy.allow_ptrace,
            marked: !self.has_exec_groups() && self.vessel.machine().is_none(),
        }
    }

    /// Where a path is found inside: elsewhere, if it is the project's and the workspace could not
    /// be put in the project's place.
    fn place_of(&self, path: ByteString) -> ByteString {
        match path.as_path().strip_prefix(&self.spec.project) {
            Ok(below) if self.vessel.is_elsewhere() => {
                let upper = self.spec.directory.join("upper");
                let place = if below.as_os_str().is_empty() { upper } else { upper.join(below) };
                place.into()
            }
            _ => path,
        }
    }

    pub(super) fn spawned(&mut self, exec: &ExecId, noted: bool, descriptors: Vec<OwnedFd>) {
        let mut descriptors = descriptors.into_iter();
        let process = descriptors.next();
        if noted && let Some(listener) = descriptors.next() {
            self.state.refusals.watch(listener, exec.clone());
        }
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        running.process = process;
        let Some(terminal) = descriptors.next() else { return };
        let _ = rustix::io::ioctl_fionbio(&terminal, true);
        if let Ok(from) = terminal.try_clone() {
            running.outputs = vec![Output { from: Some(from), stream: Stream::Stdout }];
        }
        running.stdin = Some(terminal);
        running.feed();
    }

    pub(super) fn not_spawned(&mut self, exec: &ExecId, stage: SpawnStage, errno: i32) {
        let code = match (stage, errno) {
            (SpawnStage::Program, libc::ENOENT | libc::ENOTDIR) => 127,
            (SpawnStage::Program, _) => 126,
            _ => 125,
        };
        let error = std::io::Error::from_raw_os_error(errno);
        let message = format!("cannot {}: {error}", stage.operation());
        self.finish(exec, no_process(EndReason::StartFailed, code, message));
    }

    pub(super) fn main_ended(&mut self, exec: &ExecId, main: &MainEnd) {
        self.drain(exec);
        let (refused, kills) = (self.refused_forks(), self.memory_kills());
        let unreached = if main.code == Some(0) { 0 } else { self.unreached() };
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        if refused > running.refused_before {
            running.feel("pids");
        }
        if unreached > 0 {
            running.refused.insert("network", unreached);
        }
        let end = running.conclude(main, kills > running.starved_before);
        if running.verdict.is_some() {
            // It was ended, and so are those that its end was not told to.
            self.kill(exec, end.reason);
        }
        // Before anybody hears of the end: whoever waits for it may edit the project the next
        // moment, and then the base of what was changed here could no longer be proven.
        self.capture();
        self.finish(exec, end);
        self.schedule_capture();
        if main.code == Some(0) {
            // What it tried is not the next one's.
            self.unreached();
        }
    }

    /// Writes the end down, tells the client, and keeps the exec only if it left something behind.
    fn finish(&mut self, exec: &ExecId, end: ExecEnd) {
        let _ = self.record_end(exec, &end);
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        let client = running.client.take();
        running.end = Some(end.clone());
        running.join_at = None;
        let (born, grouped) = (running.born, running.group.is_some());
        let last = running.last && client.is_some() && self.state.execs.len() == 1;
        if let Some(id) = client {
            if let Some(connection) = self.state.connections.get_mut(&id) {
                connection.push(FrameKind::End, &to_json(&end));
                connection.closing = true;
            }
            self.flush(id);
        }
        if last {
            return self.be_over(exec);
        }
        if !grouped && self.has_exec_groups() && !self.orphans_since(born).is_empty() {
            // What it left behind is its own, not the next one's.
            self.state.stopping |= self.join_exec(exec).is_err();
        }
        self.forget_if_quiet(exec);
        if self.state.execs.is_empty() {
            self.state.idle_since = Some(Instant::now());
        }
    }

    /// The last command has ended, and whoever ran it is about to say stop. Nobody has to wait for
    /// the others inside to die: they are ended now.
    fn be_over(&mut self, exec: &ExecId) {
        if *self.vessel == Vessel::Namespaces {
            self.init.kill();
            self.state.over_since = Some(Instant::now());
        }
        self.forget_if_quiet(exec);
    }

    /// Atomic, so that a reader sees an end or none.
    fn record_end(&mut self, exec: &ExecId, end: &ExecEnd) -> std::io::Result<()> {
        let running = self.state.execs.get_mut(exec);
        if let Some(recording) = running.and_then(|running| running.record.as_mut()) {
            return recording.end(end);
        }
        let directory = self.spec.directory.join("execs");
        let temporary = directory.join(format!("{exec}.end.new"));
        let _ = std::fs::remove_file(&temporary);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&to_json(end))?;
        std::fs::rename(temporary, directory.join(format!("{exec}.end")))
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
            self.state.idle_since = Some(Instant::now());
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
        let end = running.conclude(&main, starved);
        self.finish(exec, end);
    }

    /// Processes of the sandbox that the kernel has killed for want of memory.
    pub(super) fn memory_kills(&self) -> u64 {
        let own = self.group.as_ref().filter(|membership| membership.used);
        let group = own.map(|membership| &membership.group).or(self.state.watched.as_ref());
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
    fn refused_forks(&self) -> u64 {
        let own = self.group.as_ref().filter(|membership| membership.used);
        let group = own.map(|membership| &membership.group).or(self.state.watched.as_ref());
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
        let alone = self.state.execs.len() == 1;
        if !alone {
            // Only a group tells one exec's processes from another's.
            let _ = self.join_all();
        }
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        running.verdict.get_or_insert(reason);
        running.kill_at = None;
        let (born, grouped) = (running.born, running.group.is_some());
        let all_in = grouped && running.join_at.is_none();
        if let Some(group) = &running.group {
            let _ = group.kill();
        }
        if grouped && !alone {
            self.end_strays(born);
        }
        if alone || !all_in {
            // Without a cgroup init knows an exec's processes by a mark, where it could give one; if
            // there is no other exec, everyone is meant.
            let whom = if alone { Whom::Everyone } else { Whom::Exec(exec.clone()) };
            let _ = self.channel.send(&ToInit::Signal { whom, signal: libc::SIGKILL }, &[]);
        }
    }

    pub(super) fn operate_freeze(&mut self, client: u64, freeze: bool) {
        if freeze && self.pauses_by_init() {
            return self.ask_pause(client);
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
        self.reply(client, &Ok(Reply::Status { running, frozen: self.state.frozen }));
    }

    pub(super) fn operate_write(&mut self, client: u64, path: RelPath, state: EntryState) {
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

    fn schedule_capture(&mut self) {
        let next = super::Capture { at: Instant::now() + FIRST_CAPTURE, pause: FIRST_CAPTURE };
        self.state.capture = Some(next);
    }
}

/// An exec's own limits count where it has them, the sandbox's elsewhere; whole-sandbox limits
/// (memory, pids, rate) are held by the sandbox's group in any case.
fn narrowed(sandbox: &Limits, exec: &Limits) -> Limits {
    let smaller = |one: Option<Duration>, other: Option<Duration>| match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    Limits {
        memory: exec.memory.or(sandbox.memory),
        cpus: exec.cpus.or(sandbox.cpus),
        cpu_time: smaller(exec.cpu_time, sandbox.cpu_time),
        pids: exec.pids.or(sandbox.pids),
        disk: exec.disk.or(sandbox.disk),
        inodes: exec.inodes.or(sandbox.inodes),
        open_files: exec.open_files.or(sandbox.open_files),
        timeout: smaller(exec.timeout, sandbox.timeout),
        grace: exec.grace.or(sandbox.grace),
        idle_timeout: sandbox.idle_timeout,
        silence_timeout: smaller(exec.silence_timeout, sandbox.silence_timeout),
        output: exec.output.or(sandbox.output),
    }
}
