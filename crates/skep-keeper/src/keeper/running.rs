//! One exec as the keeper holds it: its pipes, its log, its limits and how it ends.

use super::shares::Share;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use skep_confine::cgroup::Group;
use skep_provider::log::{LogWriter, Stream};
use skep_provider::record::Recording;
use skep_sys::stdio::EndOfInput;
use skep_types::{
    ByteString, EndReason, EnforcementReport, ExecEnd, ExecStats, Limits, RefusedCall, TerminalSize,
};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// Input waiting for a process beyond this makes its client wait.
const CROWDED: usize = 64 << 10;
/// What the group of a sandbox counts, from its beginning on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Tasks that were refused.
    pub refused: u64,
    /// Processes that were killed for want of memory.
    pub starved: u64,
}

/// Where output comes from.
#[derive(Debug)]
pub struct Output {
    /// The reading end; `None` once it has ended.
    pub from: Option<OwnedFd>,
    /// Which stream it is.
    pub stream: Stream,
}

/// What init told about the end of the main process.
#[derive(Debug, Clone, Default)]
pub struct MainEnd {
    /// Exit code.
    pub code: Option<i32>,
    /// Signal.
    pub signal: Option<i32>,
    /// Processor time of it and the children it waited for.
    pub cpu_ms: u64,
    /// Largest resident size.
    pub memory_peak: u64,
    /// Limits of a machine that were felt.
    pub felt: Vec<String>,
}

/// An exec that has not been forgotten yet.
#[derive(Debug)]
pub struct Running {
    /// The client that is attached to it.
    pub client: Option<u64>,
    /// When it was started.
    pub started: Instant,
    /// The same by the clock that files are stamped with, where that is ours.
    pub began_at_ns: Option<i64>,
    /// Where its input goes; `None` once closed.
    pub stdin: Option<OwnedFd>,
    /// Input that the process has not taken yet.
    pub pending: Vec<u8>,
    /// Close the input when `pending` is empty.
    pub stdin_ending: bool,
    /// The end of a terminal's input, once it was said.
    pub end_of_input: Option<EndOfInput>,
    /// Its output.
    pub outputs: Vec<Output>,
    /// Whether its input is a terminal's other end; there is none until init has made it.
    pub terminal: bool,
    /// Its kept output.
    pub log: LogWriter,
    /// Where it starts.
    pub workdir: ByteString,
    /// Where it is written down, if the store was not asked.
    pub record: Option<Recording>,
    /// Its own cgroup, once it is in one.
    pub group: Option<Group>,
    /// When it is to be moved into one.
    pub join_at: Option<Instant>,
    /// When it was started, in the ticks that `/proc` counts starts of processes in.
    pub born: u64,
    /// A handle on its main process.
    pub process: Option<OwnedFd>,
    /// Whether it has a process yet; before that nothing is its own.
    pub spawned: bool,
    /// Its limits.
    pub limits: Limits,
    /// When it last printed something.
    pub last_output: Instant,
    /// Why we are ending it.
    pub verdict: Option<EndReason>,
    /// When asking turns into killing.
    pub kill_at: Option<Instant>,
    /// When one that was killed and has not ended counts as stuck in the kernel.
    pub stuck_at: Option<Instant>,
    /// Limits that were felt.
    pub limits_hit: Vec<String>,
    /// System calls that were refused, by name.
    pub refused: BTreeMap<&'static str, u64>,
    /// What the group had counted when it began.
    pub before: Counted,
    /// Processor time the sandbox had used before it started, where it is polled.
    pub cpu_before: Duration,
    /// Whether nobody else's commands ran meanwhile: then all that was used is its own.
    pub alone: bool,
    /// What its processes wear, where no cgroup counts and they are told apart by it.
    pub mark: Option<u64>,
    /// What of all that is used is its own.
    pub share: Share,
    /// Tasks of the whole sandbox with which the kernel refuses it another one, where no cgroup counts.
    pub tasks_in_all: Option<u64>,
    /// The most memory that a look has found, where there are looks.
    pub memory_seen: u64,
    /// The most processor time since it started, alike.
    pub cpu_seen: Duration,
    /// What holds of the limits that are its own.
    pub own_report: EnforcementReport,
    /// How its main process ended.
    pub end: Option<ExecEnd>,
    /// Whether everything inside ends with it.
    pub last: bool,
}

impl Running {
    /// Whether its main process has ended.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether its client sends faster than it reads.
    pub fn is_crowded(&self) -> bool {
        self.pending.len() > CROWDED
    }

    /// Hands input on, as much as the process takes now.
    pub fn feed(&mut self) {
        while let (Some(stdin), false) = (&self.stdin, self.pending.is_empty()) {
            match rustix::io::write(stdin, &self.pending) {
                Ok(taken) => drop(self.pending.drain(..taken)),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // The process has closed its input: the rest has no reader.
                Err(_) => {
                    self.pending.clear();
                    self.stdin = None;
                }
            }
        }
        if self.stdin_ending && self.pending.is_empty() {
            self.end_input();
        }
    }

    /// A pipe ends by being closed; a terminal by being told so, once it is there.
    fn end_input(&mut self) {
        match (&self.stdin, self.terminal) {
            (None, true) => return,
            (Some(terminal), true) => {
                self.end_of_input = Some(EndOfInput::say(terminal, Instant::now()));
            }
            (_, false) => self.stdin = None,
        }
        self.stdin_ending = false;
    }

    /// Whoever reads a terminal whose input has ended finds its end, the first and every later one.
    pub fn repeat_end_of_input(&mut self, now: Instant) {
        if let (Some(end), Some(terminal)) = (&mut self.end_of_input, &self.stdin) {
            end.repeat(terminal, now);
        }
    }

    /// Reads what an output has now into the room of a buffer. `Ok(false)` means: nothing now.
    pub fn read(&mut self, index: usize, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.clear();
        let Some(output) = self.outputs.get_mut(index) else { return Ok(false) };
        let Some(from) = &output.from else { return Ok(false) };
        match rustix::io::read(from, rustix::buffer::spare_capacity(buffer)) {
            // A terminal whose processes are all gone says EIO.
            Ok(0) | Err(Errno::IO) => {
                output.from = None;
                Ok(false)
            }
            Ok(_) => {
                let stream = output.stream;
                self.last_output = Instant::now();
                self.log.append(stream, buffer);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The terminal, for its size.
    pub fn resize(&self, size: TerminalSize) {
        use rustix::termios::{Winsize, tcsetwinsize};
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let (true, Some(terminal)) = (self.terminal, &self.stdin) {
            let _ = tcsetwinsize(terminal, size);
        }
    }

    /// The end, from what init saw, what we did and what the kernel counted.
    /// `starved`: the kernel killed somebody in the sandbox for want of memory meanwhile, which may
    /// have been before this exec was in a group of its own.
    pub fn conclude(&mut self, main: &MainEnd, starved: bool) -> ExecEnd {
        let own = self.group.as_ref().and_then(Group::oom_kills).unwrap_or(0) > 0;
        let oom = own || starved || main.felt.iter().any(|limit| limit == "memory");
        for limit in &main.felt {
            self.feel(limit);
        }
        if oom {
            self.feel("memory");
        }
        if self.group.as_ref().and_then(Group::pids_max_hits).unwrap_or(0) > 0 {
            self.feel("pids");
        }
        if self.log.truncated() {
            self.feel("output");
        }
        let reason = self.reason(main, oom);
        let exit_code = match (reason, main.code, main.signal) {
            (EndReason::Timeout | EndReason::SilenceTimeout | EndReason::IdleTimeout, ..) => 124,
            (_, Some(code), _) => code,
            (_, None, Some(signal)) => 128 + signal,
            (_, None, None) => 125,
        };
        let (stdout_bytes, stderr_bytes) = self.log.written();
        // The group knows all processes, but not what they did before they were in it; init knows
        // the main process and the children it waited for, from their start on.
        let group_cpu = self.group.as_ref().and_then(Group::cpu_time).unwrap_or_default();
        let group_peak = self.group.as_ref().and_then(Group::memory_peak).unwrap_or_default();
        // One that was ended, or left something behind, has children that nobody waited for.
        let own = self.verdict.is_some() || self.alone;
        let seen = if own { self.cpu_seen } else { Duration::ZERO };
        ExecEnd {
            exit_code,
            signal: main.signal,
            reason,
            message: self.unproven(main, reason),
            limits_hit: self.limits_hit.clone(),
            truncated: self.log.truncated(),
            refused: self.refused(),
            enforcement: self.own_report.clone(),
            stats: ExecStats {
                duration_ms: Some(self.started.elapsed().as_millis() as u64),
                cpu_ms: main.cpu_ms.max(group_cpu.max(seen).as_millis() as u64),
                memory_peak_bytes: main.memory_peak.max(group_peak).max(self.memory_seen),
                stdout_bytes,
                stderr_bytes,
                began_at_ns: self.began_at_ns,
                ended_at_ms: wall_ms(),
            },
        }
    }

    fn has_had_its_time(&self, main: &MainEnd) -> bool {
        let limit = self.limits.cpu_time;
        limit.is_some_and(|limit| Duration::from_millis(main.cpu_ms) >= limit)
    }

    fn reason(&mut self, main: &MainEnd, oom: bool) -> EndReason {
        if let Some(verdict) = self.verdict {
            return verdict;
        }
        match main.signal {
            // Anybody can send it; the kernel does when the time is up.
            Some(libc::SIGXCPU) if self.has_had_its_time(main) => {
                self.feel("cpu_time");
                EndReason::CpuLimit
            }
            // The same: the last look has seen whether there is as much as may be.
            Some(libc::SIGXFSZ) if self.limits_hit.iter().any(|limit| limit == "disk") => {
                EndReason::DiskLimit
            }
            Some(libc::SIGKILL) if oom => EndReason::Oom,
            Some(_) => EndReason::Signal,
            // A shell passes on that its child was killed.
            None if oom && main.code == Some(128 + libc::SIGKILL) => EndReason::Oom,
            None => EndReason::Exited,
        }
    }

    /// A file was to become larger than any may be, or somebody has sent the signal that says so.
    fn unproven(&self, main: &MainEnd, reason: EndReason) -> Option<String> {
        let signalled = main.signal == Some(libc::SIGXFSZ) && reason == EndReason::Signal;
        let limit = self.limits.disk.filter(|_| signalled)?;
        Some(format!("a single file may have at most {limit} (`--disk`)"))
    }

    fn refused(&self) -> Vec<RefusedCall> {
        let refused = self.refused.iter();
        refused.map(|(call, count)| RefusedCall { call: (*call).into(), count: *count }).collect()
    }

    /// Notes a limit once.
    pub fn feel(&mut self, limit: &str) {
        if !self.limits_hit.iter().any(|felt| felt == limit) {
            self.limits_hit.push(limit.to_owned());
        }
    }

    /// When the wall clock, the silence or the grace runs out next.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.has_ended() {
            return None;
        }
        let ending = self.verdict.is_some();
        let timeout = self.limits.timeout.filter(|_| !ending).map(|limit| self.started + limit);
        let silence =
            self.limits.silence_timeout.filter(|_| !ending).map(|limit| self.last_output + limit);
        let unread = self.end_of_input.as_ref().filter(|_| self.stdin.is_some());
        let unread = unread.map(EndOfInput::next);
        [timeout, silence, self.kill_at, self.stuck_at, unread].into_iter().flatten().min()
    }

    /// Which limit has run out by now.
    pub fn expired(&self, now: Instant) -> Option<EndReason> {
        if self.has_ended() || self.verdict.is_some() {
            return None;
        }
        if self.limits.timeout.is_some_and(|limit| now >= self.started + limit) {
            return Some(EndReason::Timeout);
        }
        let silent =
            self.limits.silence_timeout.is_some_and(|limit| now >= self.last_output + limit);
        silent.then_some(EndReason::SilenceTimeout)
    }

    /// How long a process has between being asked and being killed.
    pub fn grace(&self) -> Duration {
        self.limits.grace.unwrap_or(Duration::from_secs(2))
    }

    /// Where input can be handed on, if some waits.
    pub fn wants_to_feed(&self) -> Option<BorrowedFd<'_>> {
        if self.pending.is_empty() { None } else { self.stdin.as_ref().map(AsFd::as_fd) }
    }
}

/// The clock that starts are noted by, and that files are stamped with.
fn wall_ms() -> Option<i64> {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().ok()?;
    i64::try_from(since.as_millis()).ok()
}
