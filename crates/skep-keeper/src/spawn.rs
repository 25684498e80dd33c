//! From a fork of init to the caller's program.

use crate::confinement::Confinement;
use crate::protocol::{SpawnOrder, SpawnStage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, Signal, getpid};
use skep_confine::usage::state_of;
use skep_sys::newborn::{self, Born, Step, Steps, Waiting};
use skep_sys::process::{Child, Namespaces, clone_with, send_signal, signal_everyone};
use skep_sys::processors::Turns;
use skep_sys::program::Program;
use skep_sys::stdio::Stdio;
use skep_types::Limits;
use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

/// Starts a process; returns when the program runs, or with the step that failed and why. One that wears its fences
/// already is used where nothing has to be done before they are on.
pub fn spawn(
    order: &SpawnOrder,
    joins: &[OwnedFd],
    stdio: &Stdio,
    confinement: &Confinement,
    waiting: Option<Waiting>,
) -> Result<Spawned, (SpawnStage, i32)> {
    let plain = joins.is_empty() && stdio.terminal().is_none() && !order.marked;
    let waiting = waiting.filter(|waiting| plain && waiting.is_there());
    let confinement = Some(confinement).filter(|_| waiting.is_none());
    let steps = Newborn { order, joins, stdio, confinement }.steps()?;
    let mut others = Others::default();
    let wait = |from: BorrowedFd<'_>, child: &Child| wait_for_word(from, &[], child, &mut others);
    let program = (program_of(order), SpawnStage::Program as u8);
    let born = match waiting {
        Some(waiting) => waiting.go_on(descriptors(stdio)?, steps, program, wait),
        None => newborn::start(steps, program, wait),
    };
    match born {
        Ok(Born { child, listener }) => Ok(Spawned { child, listener }),
        Err((mark, errno)) => Err((stage_of(mark), errno)),
    }
}

/// A process that wears these fences and waits for its command; it takes its turns as is `usual`, where we do not. Without
/// it the command's own puts them on, or says why it cannot.
pub fn prepare(confinement: &'static Confinement, usual: Option<Turns>) -> Option<Waiting> {
    // Before the filter, which may refuse it.
    let turns = usual.map(|usual| (SpawnStage::Fork, Step::Turns(usual)));
    let steps = turns.into_iter().chain(confinement.steps());
    Waiting::begin(marked(steps), SpawnStage::Terminal as u8).ok()
}

fn marked<'a>(steps: impl IntoIterator<Item = (SpawnStage, Step<'a>)>) -> Steps<'a> {
    Steps(steps.into_iter().map(|(stage, step)| (stage as u8, step)).collect())
}

/// Starts a process that goes on as `rest` says, which closes the descriptor it is given when it
/// is what it should be, or tells there why not. It is not waited for once one of the `vital`
/// processes has ended.
///
/// It goes on in our program and not in another, and so has a copy of our memory.
pub fn spawn_as(
    newborn: &Newborn<'_>,
    vital: &[BorrowedFd<'_>],
    rest: impl FnOnce(OwnedFd) -> i32,
) -> Result<Spawned, (SpawnStage, i32)> {
    let forked =
        |error: io::Error| (SpawnStage::Fork, error.raw_os_error().unwrap_or(libc::EAGAIN));
    let steps = newborn.steps()?;
    // Closed by a successful exec; a failed one says what failed.
    let (verdict, report) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|e| forked(e.into()))?;
    // The closure owns the child's end: here it is dropped unrun.
    let child = clone_with(Namespaces::NONE, move || match steps.take(report.as_fd()) {
        Ok(()) => rest(report),
        Err((mark, errno)) => {
            newborn::tell(&report, mark, errno);
            127
        }
    })
    .map_err(forked)?;
    let mut others = Others::default();
    let wait = |from: BorrowedFd<'_>, child: &Child| wait_for_word(from, vital, child, &mut others);
    match newborn::attend(&verdict, child, wait) {
        Ok(Born { child, listener }) => Ok(Spawned { child, listener }),
        Err((mark, errno)) => Err((stage_of(mark), errno)),
    }
}

fn stage_of(mark: Option<u8>) -> SpawnStage {
    mark.and_then(SpawnStage::from_byte).unwrap_or(SpawnStage::Fork)
}

/// How long a newborn may take: whoever waits for it can do nothing else meanwhile. Its program may lie on
/// a filesystem that hangs, or be one that somebody inside keeps from being opened (`fcntl(2)`, leases).
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at one that does not speak.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Waits until something comes, or its end; not when one of these processes ends first.
fn wait_for_word(
    from: BorrowedFd<'_>,
    vital: &[BorrowedFd<'_>],
    newborn: &Child,
    others: &mut Others,
) -> Result<(), i32> {
    let all = std::iter::once(&from).chain(vital);
    let mut watched: Vec<_> =
        all.map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
    let start = Instant::now();
    loop {
        match poll(&mut watched, Some(&PAUSE)) {
            Ok(0) if start.elapsed() > PATIENCE => return Err(libc::ETIMEDOUT),
            Ok(0) => others.keep_off(newborn),
            Ok(_) if watched[0].revents().is_empty() => return Err(libc::EIO),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.raw_os_error()),
        }
    }
}

/// Everyone else inside: they may stop a newborn, which has their user, before it is anybody's.
#[derive(Default)]
struct Others {
    stopped: bool,
}

impl Others {
    /// Lets a newborn go on that was stopped, while nobody can stop it again.
    fn keep_off(&mut self, newborn: &Child) {
        let stopped = state_of(newborn.pid).is_some_and(|(state, _)| state == b'T');
        // Elsewhere "everyone" are the caller's own.
        if stopped && getpid().is_init() {
            self.stopped = true;
            let _ = signal_everyone(Signal::STOP);
            let _ = send_signal(&newborn.pidfd, Signal::CONT);
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        if self.stopped {
            let _ = signal_everyone(Signal::CONT);
        }
    }
}

/// Says why a process did not become what it should.
pub fn tell(report: &OwnedFd, stage: SpawnStage, errno: i32) {
    newborn::tell(report, stage as u8, errno);
}

/// A process that runs its program.
#[derive(Debug)]
pub struct Spawned {
    /// Itself.
    pub child: Child,
    /// Where its refused system calls wait for their answer.
    pub listener: Option<OwnedFd>,
}

/// Between fork and exec.
pub struct Newborn<'a> {
    /// What it shall be.
    pub order: &'a SpawnOrder,
    /// Cgroup files to join.
    pub joins: &'a [OwnedFd],
    /// Its first descriptors.
    pub stdio: &'a Stdio,
    /// Its fences; of one that wears them already its descriptors go with its order too.
    pub confinement: Option<&'a Confinement>,
}

impl<'a> Newborn<'a> {
    /// In this order, each step before the one that would forbid it:
    ///
    /// 1. A session of its own, and its terminal: no signal or ioctl reaches another one.
    /// 2. The cgroup, so that all that follows is counted.
    /// 3. Standard descriptors; every other one closes with the exec.
    /// 4. The file mode mask.
    /// 5. Resource limits; that of open files after the last descriptor was passed to init.
    /// 6. Capabilities and the right to gain any; Landlock; last the system call filter, which would
    ///    refuse the steps above.
    /// 7. The working directory, with no more rights than the program has: init's would open what is
    ///    shut to its own user.
    fn steps(&self) -> Result<Steps<'a>, (SpawnStage, i32)> {
        let Self { order, joins, stdio, confinement } = self;
        let directory = CString::new(order.workdir.as_bytes());
        let directory = directory.map_err(|_| (SpawnStage::WorkingDirectory, libc::EINVAL))?;
        let descriptors = descriptors(stdio)?;
        let mut steps = vec![(SpawnStage::Terminal, Step::Session)];
        let terminal = stdio.terminal().map(Step::Terminal);
        steps.extend(terminal.map(|step| (SpawnStage::Terminal, step)));
        steps.extend(joins.iter().map(|file| (SpawnStage::Cgroup, Step::Join(file.as_fd()))));
        if confinement.is_some() {
            steps.push((SpawnStage::Terminal, Step::Descriptors(descriptors)));
        }
        steps.push((SpawnStage::WorkingDirectory, Step::Umask(order.umask)));
        steps.extend(limits(order).map(|step| (SpawnStage::Limits, step)));
        // All that the keeper and init have changed since the keeper put everything back.
        steps.push((SpawnStage::Privileges, Step::Signals(&[libc::SIGPIPE])));
        steps.extend(confinement.iter().flat_map(|confinement| confinement.steps()));
        steps.extend(open_files(order).map(|step| (SpawnStage::Limits, step)));
        steps.push((SpawnStage::WorkingDirectory, Step::Directory(directory)));
        Ok(marked(steps))
    }
}

fn descriptors(stdio: &Stdio) -> Result<[BorrowedFd<'_>; 3], (SpawnStage, i32)> {
    stdio.all().ok_or((SpawnStage::Terminal, libc::EBADF))
}

/// Memory that cannot be swapped, of all processes inside.
const MEMLOCK: u64 = 8 << 20;

/// The limits of a new process, which has ours until then.
fn limits<'a>(order: &SpawnOrder) -> impl Iterator<Item = Step<'a>> {
    let wanted = [
        (Resource::Core, Some(0)),
        (Resource::Fsize, order.file_size),
        (Resource::Cpu, order.cpu_seconds),
        (Resource::Nproc, order.processes),
    ];
    left_to_the_caller().into_iter().chain(wanted.into_iter().filter_map(|(resource, limit)| {
        let now = rustix::process::getrlimit(resource);
        // A hard limit can be lowered by anyone and raised by nobody here. Processes are counted for the
        // caller too, who must be able to start one more.
        let most = |hard: u64| if resource == Resource::Nproc { hard - hard / 4 } else { hard };
        let limit = limit?;
        let limit = now.maximum.map_or(limit, |hard| most(hard).min(limit));
        Some(Step::Limit(resource, both(limit)))
    }))
}

/// What is counted for the caller too, whoever inside takes it: most of it is left to it. Lowering a limit
/// is nothing Linux refuses; gVisor, which counts for itself, does not know all of these.
fn left_to_the_caller<'a>() -> [Step<'a>; 3] {
    let parts = [
        (Resource::Sigpending, share(Resource::Sigpending, 16).max(256)),
        (Resource::Msgqueue, share(Resource::Msgqueue, 4)),
        (Resource::Memlock, MEMLOCK),
    ];
    parts.map(|(resource, part)| {
        let hard = rustix::process::getrlimit(resource).maximum;
        Step::LimitIfKnown(resource, both(hard.map_or(part, |hard| hard.min(part))))
    })
}

/// A part of what this process may have; of what has no limit, enough for anybody.
fn share(resource: Resource, part: u64) -> u64 {
    rustix::process::getrlimit(resource).maximum.unwrap_or(1 << 20) / part
}

fn open_files<'a>(order: &SpawnOrder) -> Option<Step<'a>> {
    let most = rustix::process::getrlimit(Resource::Nofile).maximum.map(Limits::most_open_files);
    let limit = order.open_files.into_iter().chain(most).min()?;
    Some(Step::Limit(Resource::Nofile, both(limit)))
}

fn both(limit: u64) -> Rlimit {
    Rlimit { current: Some(limit), maximum: Some(limit) }
}

/// Made before the fork.
fn program_of(order: &SpawnOrder) -> Program {
    let path = order.environment.get("PATH").map(|path| path.as_bytes()).unwrap_or_default();
    let environment =
        order.environment.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    Program::new(order.argv.iter().map(|word| word.as_bytes()), environment, path)
}
