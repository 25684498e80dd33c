//! The execs of the guest, one per line.

use super::Knock;
use super::groups::{Group, Groups};
use crate::wire::{self, Frame, Kind, NotStarted, Order, Outcome, PIECE, WINDOW};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::termios::{Winsize, tcsetwinsize};
use skep_sys::process::{Ended, Namespaces, clone_with, exit_now};
use skep_sys::program::Program;
use skep_sys::stdio::{Stdio, open_terminal};
use skep_types::TerminalSize;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// How long a process may take to stand still.
const FREEZE_PATIENCE: Duration = Duration::from_secs(10);

/// All of them.
pub(super) struct Lines {
    groups: Groups,
    knock: Knock,
    lines: BTreeMap<u32, Line>,
    /// Of execs that have ended and left processes behind: those go on, as they do elsewhere.
    lingering: Vec<Group>,
}

struct Line {
    main: Pid,
    group: Option<Group>,
    input: Option<OwnedFd>,
    pending: Vec<u8>,
    input_ends: bool,
    outputs: Vec<Output>,
    terminal: bool,
    /// Bytes sent that the host has not passed on yet.
    ahead: usize,
    outcome: Option<Outcome>,
    /// The host has asked it to end: then nothing of it stays.
    asked_to_end: bool,
}

struct Output {
    from: OwnedFd,
    kind: Kind,
}

impl Lines {
    pub(super) fn new(groups: Groups, knock: Knock) -> Self {
        Self { groups, knock, lines: BTreeMap::new(), lingering: Vec::new() }
    }

    /// What to wait for.
    pub(super) fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.lines.values().flat_map(|line| {
            let open = line.ahead < WINDOW;
            let outputs = line.outputs.iter().filter(move |_| open);
            let outputs = outputs.map(|output| (output.from.as_fd(), PollFlags::IN));
            let input = line.input.as_ref().filter(|_| !line.pending.is_empty());
            outputs.chain(input.map(|input| (input.as_fd(), PollFlags::OUT)))
        })
    }

    /// Does what one frame says. An error is one of the protocol, and ends the machine.
    pub(super) fn obey(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> io::Result<()> {
        match frame.kind {
            Kind::Start => self.start(frame.line, &serde_json::from_slice(frame.payload)?, out),
            Kind::Freeze => {
                let number: u64 = serde_json::from_slice(frame.payload)?;
                self.freeze();
                wire::push_json(out, 0, Kind::Frozen, &number);
            }
            Kind::Thaw => self.each_group().for_each(|group| group.freeze(false)),
            _ => {
                // A line that has ended may still be talked to: the words crossed on the way.
                if let Some(line) = self.lines.get_mut(&frame.line) {
                    line.obey(frame, out)?;
                }
            }
        }
        Ok(())
    }

    fn each_group(&self) -> impl Iterator<Item = &Group> {
        self.lines.values().filter_map(|line| line.group.as_ref()).chain(&self.lingering)
    }

    /// Everybody stands still, and what was written has reached the host.
    fn freeze(&self) {
        self.each_group().for_each(|group| group.freeze(true));
        let deadline = Instant::now() + FREEZE_PATIENCE;
        let moving = |group: &Group| !group.is_frozen() && !group.is_empty();
        while self.each_group().any(moving) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        rustix::fs::sync();
    }

    fn start(&mut self, number: u32, order: &Order, out: &mut Vec<u8>) {
        let group = self.groups.create(number, order.processes);
        match Line::start(order, group, self.knock) {
            Ok(line) => {
                self.lines.insert(number, line);
                wire::push(out, number, Kind::Started, b"");
            }
            Err((group, failure)) => {
                self.lingering.extend(group);
                wire::push_json(out, number, Kind::NotStarted, &failure);
            }
        }
    }

    /// A process ended; if it was the main one of an exec, the exec is over.
    pub(super) fn ended(&mut self, ended: &Ended) {
        let line = self.lines.values_mut().find(|line| line.main.as_raw_pid() == ended.pid);
        let Some(line) = line else { return };
        let group = line.group.as_ref();
        if let Some(group) = group.filter(|_| line.asked_to_end) {
            group.kill();
        }
        line.outcome = Some(Outcome {
            code: ended.code,
            signal: ended.signal,
            cpu_ms: ended.cpu.as_millis() as u64,
            memory_peak: group.and_then(Group::memory_peak).unwrap_or(ended.memory_peak),
            starved: group.is_some_and(Group::starved),
            crowded: group.is_some_and(Group::crowded),
        });
    }

    /// Moves bytes, and tells the ends.
    pub(super) fn pump(&mut self, out: &mut Vec<u8>) {
        for (number, line) in &mut self.lines {
            line.feed(*number, out);
            line.drain(*number, out);
        }
        let over = |line: &Line| line.outcome.is_some() && line.ahead < WINDOW;
        let numbers: Vec<u32> =
            self.lines.iter().filter(|(_, line)| over(line)).map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(line) = self.lines.remove(&number) else { continue };
            if let Some(outcome) = line.outcome {
                wire::push_json(out, number, Kind::Ended, &outcome);
            }
            self.lingering.extend(line.group);
        }
        for group in self.lingering.extract_if(.., |group| group.is_empty()) {
            self.groups.remove(&group);
        }
    }
}

impl Line {
    fn start(
        order: &Order,
        group: Option<Group>,
        knock: Knock,
    ) -> Result<Self, (Option<Group>, NotStarted)> {
        let failed = |error: io::Error| NotStarted {
            workdir: false,
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        };
        let (stdio, ends) = match Ends::new(order.terminal) {
            Ok(made) => made,
            Err(error) => return Err((group, failed(error))),
        };
        match spawn(order, &stdio, group.as_ref(), knock) {
            Ok(main) => Ok(Self {
                main,
                group,
                input: Some(ends.input),
                pending: Vec::new(),
                input_ends: false,
                outputs: ends.outputs,
                terminal: order.terminal.is_some(),
                ahead: 0,
                outcome: None,
                asked_to_end: false,
            }),
            Err(failure) => Err((group, failure)),
        }
    }

    fn obey(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> io::Result<()> {
        match frame.kind {
            Kind::Stdin => self.pending.extend_from_slice(frame.payload),
            Kind::StdinEnd => self.input_ends = true,
            Kind::Credit => {
                let passed: usize = serde_json::from_slice(frame.payload)?;
                self.ahead = self.ahead.saturating_sub(passed);
            }
            Kind::Resize => self.resize(serde_json::from_slice(frame.payload)?),
            Kind::Signal => self.signal(serde_json::from_slice(frame.payload)?),
            Kind::Kill => self.kill(),
            // Everything else is said by us.
            _ => return Err(io::Error::other("the host said something only a guest says")),
        }
        self.feed(frame.line, out);
        Ok(())
    }

    fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = self.input.as_ref().filter(|_| self.terminal) {
            let size =
                Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
            let _ = tcsetwinsize(terminal, size);
        }
    }

    fn signal(&mut self, number: i32) {
        // A command that ends in its grace may leave daemons that did not hear it.
        self.asked_to_end |= number == libc::SIGTERM;
        if let Some(signal) = Signal::from_named_raw(number) {
            let _ = rustix::process::kill_process_group(self.main, signal);
        }
    }

    fn kill(&self) {
        let _ = rustix::process::kill_process_group(self.main, Signal::KILL);
        if let Some(group) = &self.group {
            group.kill();
        }
    }

    /// Passes input on as far as the command reads it.
    fn feed(&mut self, number: u32, out: &mut Vec<u8>) {
        let mut passed = 0;
        while let Some(input) = self.input.as_ref().filter(|_| passed < self.pending.len()) {
            match rustix::io::write(input, &self.pending[passed..]) {
                Ok(length) => passed += length,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                // It has closed its input: what is left goes nowhere.
                Err(_) => passed = self.pending.len(),
            }
        }
        self.pending.drain(..passed);
        if passed > 0 {
            wire::push_json(out, number, Kind::Credit, &passed);
        }
        if self.input_ends && self.pending.is_empty() && !self.terminal {
            self.input = None;
        }
    }

    /// Passes output on, within the window.
    fn drain(&mut self, number: u32, out: &mut Vec<u8>) {
        let mut buffer = vec![0; PIECE];
        let mut index = 0;
        while let Some(output) = self.outputs.get(index) {
            if self.ahead >= WINDOW {
                return;
            }
            match rustix::io::read(&output.from, &mut buffer) {
                Ok(length) if length > 0 => {
                    wire::push(out, number, output.kind, &buffer[..length]);
                    self.ahead += length;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => index += 1,
                // The end; of a terminal it is an error.
                Ok(_) | Err(_) => drop(self.outputs.remove(index)),
            }
        }
    }
}

/// Our ends of an exec's standard descriptors.
struct Ends {
    input: OwnedFd,
    outputs: Vec<Output>,
}

impl Ends {
    fn new(terminal: Option<TerminalSize>) -> io::Result<(Stdio, Self)> {
        if let Some(size) = terminal {
            let (stdio, master) = open_terminal(size.rows, size.columns)?;
            rustix::io::ioctl_fionbio(&master, true)?;
            let outputs = vec![Output { from: master.try_clone()?, kind: Kind::Stdout }];
            return Ok((stdio, Self { input: master, outputs }));
        }
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let ((input, feed), (out, stdout), (err, stderr)) = (pipe()?, pipe()?, pipe()?);
        for end in [&feed, &out, &err] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let outputs = vec![
            Output { from: out, kind: Kind::Stdout },
            Output { from: err, kind: Kind::Stderr },
        ];
        Ok((Stdio::Pipes(vec![input, stdout, stderr]), Self { input: feed, outputs }))
    }
}

fn spawn(
    order: &Order,
    stdio: &Stdio,
    group: Option<&Group>,
    knock: Knock,
) -> Result<Pid, NotStarted> {
    let failed = |error: io::Error| NotStarted {
        workdir: false,
        errno: error.raw_os_error().unwrap_or(libc::EAGAIN),
    };
    let path = order.environment.get("PATH").map(|path| path.as_bytes()).unwrap_or_default();
    let environment =
        order.environment.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let program = Program::new(order.argv.iter().map(|word| word.as_bytes()), environment, path);
    // Closed by a successful exec; written to by a failed one.
    let (verdict, report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| failed(error.into()))?;
    let child = clone_with(Namespaces::NONE, || {
        let failure = match become_user(order, stdio, group) {
            Ok(()) => {
                if let Some(question) = &order.knock {
                    exit_now(answer(question.as_bytes(), knock));
                }
                NotStarted { workdir: false, errno: program.run() }
            }
            Err(failure) => failure,
        };
        let _ = rustix::io::write(&report, &serde_json::to_vec(&failure).unwrap_or_default());
        exit_now(127)
    })
    .map_err(failed)?;
    drop(report);
    let mut said = Vec::new();
    let _ = io::Read::read_to_end(&mut std::fs::File::from(verdict), &mut said);
    match serde_json::from_slice(&said) {
        Ok(failure) => {
            let _ = skep_sys::process::wait_for(&child);
            Err(failure)
        }
        Err(_) => Ok(child.pid),
    }
}

/// Instead of a command, as the same user. The report is closed first: who waits for it also serves
/// what is tried here.
fn answer(question: &[u8], knock: Knock) -> i32 {
    let answered = skep_sys::process::close_all_but(&[]).and_then(|()| {
        let answer = knock(question);
        io::Write::write_all(&mut io::stdout(), &answer)?;
        io::Write::flush(&mut io::stdout())
    });
    i32::from(answered.is_err())
}

/// The machine is the fence; still, a command is nobody special inside it.
fn become_user(order: &Order, stdio: &Stdio, group: Option<&Group>) -> Result<(), NotStarted> {
    let step = |error: io::Error| NotStarted {
        workdir: false,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    };
    stdio.enter_session().map_err(step)?;
    if let Some(group) = group {
        group.join().map_err(step)?;
    }
    stdio.take().map_err(step)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(order.umask));
    let limits = [
        (Resource::Core, Some(0)),
        (Resource::Fsize, order.file_size),
        (Resource::Nofile, order.open_files),
    ];
    for (resource, limit) in limits {
        if limit.is_some() {
            let both = Rlimit { current: limit, maximum: limit };
            rustix::process::setrlimit(resource, both).map_err(|error| step(error.into()))?;
        }
    }
    skep_sys::signal::reset_all();
    drop_privileges(order.uid, order.gid).map_err(step)?;
    // As the user: a directory it cannot enter is no place to start in.
    rustix::process::chdir(order.workdir.as_path())
        .map_err(|error| NotStarted { workdir: true, errno: error.raw_os_error() })
}

fn drop_privileges(uid: u32, gid: u32) -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets};
    let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
    for capability in CapabilitySet::all().iter() {
        // Newer kernels have more, older ones fewer.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}
