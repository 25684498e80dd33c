//! From an order to a running command.

use super::Keeper;
use super::running::{Output, Running};
use super::shares::Share;
use crate::channel::to_file;
use crate::failure::{Failure, Step};
use crate::protocol::{RecordOrder, Reply, SpawnOrder, SpawnStage, ToInit, no_process};
use crate::vessel::Tasks;
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use skep_confine::cgroup::Group;
use skep_confine::usage::{self, family_of, poll_usage};
use skep_provider::ProviderError;
use skep_provider::log::{LogWriter, Stream};
use skep_provider::record::Recording;
use skep_sys::failpoint;
use skep_types::{ByteSize, ByteString, EndReason, EnforcementReport, ExecId, ExecSpec, Limits};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Output kept of an exec that has no limit of its own.
const DEFAULT_OUTPUT: u64 = 64 << 20;

impl Keeper<'_> {
    pub(super) fn start_exec(
        &mut self,
        client: u64,
        exec: ExecId,
        command: ExecSpec,
        attach: bool,
    ) {
        let room = self.make_room_for_end(&exec);
        let started = room
            .step(|| format!("make room for the end of exec `{exec}`"))
            .and_then(|()| self.try_start(client, &exec, &command, attach));
        match started {
            Ok(()) => self.started(client, exec, attach),
            Err(failure) => {
                let _ = std::fs::remove_file(self.room_for_end(&exec));
                self.reply(client, &Err(failure));
            }
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
        let meant = name == *self.name() && !self.state.frozen && !ends;
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
        if std::mem::take(&mut self.state.unreached_since) {
            self.unreached();
        }
        let limits = narrowed(&self.spec.policy.limits, &command.limits);
        let output = limits.output;
        let group = self.group_first(exec, &command.limits)?;
        if let Err(failure) = self.refuse_unheld(&command.limits, group.as_ref()) {
            drop(group.map(Group::remove));
            return Err(failure);
        }
        let joins = group.as_ref().map(Group::procs_files).transpose();
        let joins =
            joins.map_err(|error| Failure::invalid(skep_types::chain(&error)))?.unwrap_or_default();
        let (theirs, mut running) =
            self.make_running(exec, command, limits, group, attach.then_some(client))?;
        let step = || "pass the command to init".to_owned();
        let order = Box::new(self.order(command, &running));
        running.tasks_in_all = order.processes.filter(|_| self.group.is_none());
        let (order, file) = match order.is_large() {
            true => (None, Some(to_file(&order).step(step)?)),
            false => (Some(order), None),
        };
        let own = self.own_disk(&running);
        let others = self.state.execs.values().filter(|running| !running.has_ended());
        let least = others.filter_map(|running| self.own_disk(running)).chain(own).min();
        if let Some(guard) = &mut self.state.disk {
            guard.tighten(least);
            guard.wake(Instant::now());
        }
        let mut descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        descriptors.extend(joins.iter().map(AsFd::as_fd));
        descriptors.extend(theirs.iter().map(AsFd::as_fd));
        let (joins, terminal) = (joins.len(), command.tty);
        let message = ToInit::Spawn { exec: exec.clone(), joins, terminal, order };
        self.look_anew();
        self.channel.send(&message, &descriptors).step(step)?;
        running.alone = !self.state.left && self.state.execs.is_empty();
        self.state.execs.values_mut().for_each(|other| other.alone = false);
        self.note_beginning(&mut running, &command.limits);
        self.state.execs.insert(exec.clone(), running);
        self.state.so_far.one_more(exec);
        self.look_for_starved_later(Instant::now());
        self.state.idle_since = None;
        self.schedule_capture();
        // It has printed nothing yet.
        self.make_room_for_output(output);
        Ok(())
    }

    /// The logs of all execs together have a bound: the oldest go. What cannot be removed now keeps nobody
    /// from starting a command.
    fn make_room_for_output(&mut self, next: Option<ByteSize>) {
        let (Some(own), Some(next)) = (self.spec.policy.limits.output, next) else { return };
        let directory = self.spec.directory.join("execs");
        let execs = &self.state.execs;
        let runs = |exec: &str| execs.keys().any(|running| running.as_str() == exec);
        let _ = self.state.shelf.make_room(&directory, own.0, next.0, runs);
    }

    /// Of a machine's files its own kernel may keep the time.
    fn stamp_now(&self) -> Option<i64> {
        let ours = self.vessel.machine().is_none() && self.vessel.tasks() != Tasks::Foreign;
        ours.then(|| self.state.witness.stamp()).flatten()
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
            began_at_ns: self.stamp_now(),
            stdin: None,
            pending: Vec::new(),
            stdin_ending: client.is_none(),
            end_of_input: None,
            outputs: Vec::new(),
            terminal: command.tty.is_some(),
            log,
            workdir: self.workdir(command),
            record: None,
            join_at: if group.is_some() { None } else { self.join_soon() },
            born: skep_sys::process::ticks_since_boot(),
            process: None,
            spawned: false,
            group,
            limits,
            last_output: now,
            verdict: None,
            kill_at: None,
            stuck_at: None,
            limits_hit: Vec::new(),
            refused: BTreeMap::new(),
            before: self.counted_before(),
            cpu_before: Duration::ZERO,
            alone: false,
            mark: None,
            share: Share::default(),
            tasks_in_all: None,
            memory_seen: 0,
            cpu_seen: Duration::ZERO,
            own_report: EnforcementReport::default(),
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
            // A pipe to whoever has the terminal.
            running.terminal = false;
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
        environment.extend(self.given_environment().clone());
        for (name, value) in self.secret_variables() {
            environment.insert(name, value);
        }
        environment
    }

    fn order(&self, command: &ExecSpec, running: &Running) -> SpawnOrder {
        let mut environment = self.environment();
        environment.extend(command.env.clone());
        let counted = self.group.is_some();
        SpawnOrder {
            argv: command.argv.clone(),
            environment,
            workdir: running.workdir.clone(),
            umask: self.umask,
            file_size: running.limits.disk.map(|size| size.0),
            open_files: running.limits.open_files,
            cpu_seconds: running
                .limits
                .cpu_time
                .filter(|_| !counted)
                // A second more than allowed: the guard that polls comes first and says why.
                .map(|time| time.as_secs() + 1),
            processes: self.process_limit(running),
            allow_ptrace: self.spec.policy.allow_ptrace,
            marked: !self.has_exec_groups() && self.vessel.machine().is_none(),
        }
    }

    /// What the kernel is to count for a command: all tasks of the sandbox's own user namespace, also
    /// those of other execs. Where a cgroup counts too, it shall be the one that refuses, because it
    /// tells; this one holds until it is joined.
    fn process_limit(&self, running: &Running) -> Option<u64> {
        let (limit, sandbox) = (running.limits.pids?, self.spec.policy.limits.pids);
        if self.group.is_some() {
            // An exec's own group holds its own limit.
            let held = running.group.as_ref().and(sandbox).map_or(limit, |all| all.max(limit));
            return Some(held.saturating_add(1));
        }
        if running.limits.pids == sandbox {
            return Some(limit);
        }
        let others: Vec<_> =
            family_of(self.init.pid).into_iter().filter(|pid| *pid != self.init.pid).collect();
        Some(limit.saturating_add(poll_usage(&others).threads))
    }

    /// Where a command starts: where it says, else where its sandbox says, else in the project.
    fn workdir(&self, command: &ExecSpec) -> ByteString {
        let named = command.workdir.as_ref().or(self.spec.policy.workdir.as_ref());
        self.place_of(named.cloned().unwrap_or_else(|| self.spec.project.as_path().into()))
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
        let told_apart = self.tells_execs_apart();
        let Some(running) = self.state.execs.get_mut(exec) else { return };
        let counts = told_apart && self.state.polled.is_some();
        running.mark = process.as_ref().filter(|_| counts).and_then(mark_of);
        (running.process, running.spawned) = (process, true);
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
        let error = match (stage, errno) {
            (SpawnStage::WorkingDirectory | SpawnStage::Program, libc::ETIMEDOUT) => {
                NOT_OPENED.to_owned()
            }
            _ => std::io::Error::from_raw_os_error(errno).to_string(),
        };
        let object = match (stage, self.state.execs.get(exec)) {
            (SpawnStage::WorkingDirectory, Some(running)) => format!(" `{}`", running.workdir),
            _ => String::new(),
        };
        let message = format!("cannot {}{object}: {error}", stage.operation());
        self.finish(exec, no_process(EndReason::StartFailed, code, message));
    }
}

/// Why a process did not get on with its way to its program.
const NOT_OPENED: &str = "it could not be opened for 10 s: somebody holds it by a lease (`fcntl(2)`), or its \
                          filesystem does not answer";

/// The mark that a process wears, by which init tells whose it is (`init/marks.rs`).
fn mark_of(process: &OwnedFd) -> Option<u64> {
    let pid = crate::vessel::pid_of(process)?;
    usage::host_names_of(pid)
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
        io_weight: sandbox.io_weight,
    }
}
