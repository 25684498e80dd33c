//! From a fork of init to the caller's program.

use crate::confinement::Confinement;
use crate::protocol::{SpawnOrder, SpawnStage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, Signal, getpid};
use skep_confine::usage::state_of;
use skep_sys::message::{receive_with, send_with};
use skep_sys::process::{Child, Namespaces, clone_with, send_signal, signal_everyone};
use skep_sys::program::Program;
use skep_sys::stdio::Stdio;
use skep_types::Limits;
use std::io;
use std::time::{Duration, Instant};

/// Starts a process; returns when the program runs, or with the step that failed and why.
pub fn spawn(
    order: &SpawnOrder,
    joins: &[OwnedFd],
    stdio: &Stdio,
    confinement: &Confinement,
) -> Result<Spawned, (SpawnStage, i32)> {
    let program = program_of(order);
    spawn_as(&Newborn { order, joins, stdio, confinement }, &[], |report| {
        tell(&report, SpawnStage::Program, program.run());
        127
    })
}

/// Starts a process that goes on as `rest` says, which closes the descriptor it is given when it
/// is what it should be, or tells there why not. It is not waited for once one of the `vital`
/// processes has ended.
pub fn spawn_as(
    newborn: &Newborn<'_>,
    vital: &[BorrowedFd<'_>],
    rest: impl FnOnce(OwnedFd) -> i32,
) -> Result<Spawned, (SpawnStage, i32)> {
    let forked =
        |error: io::Error| (SpawnStage::Fork, error.raw_os_error().unwrap_or(libc::EAGAIN));
    // Closed by a successful exec; a failed one says what failed.
    let (verdict, report) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|e| forked(e.into()))?;
    // The closure owns the child's end: here it is dropped unrun.
    let child = clone_with(Namespaces::NONE, move || match newborn.prepare(report.as_fd()) {
        Ok(()) => rest(report),
        Err((stage, errno)) => {
            tell(&report, stage, errno);
            127
        }
    })
    .map_err(forked)?;
    let mut listener = None;
    let mut word = [0; 5];
    let mut others = Others::default();
    loop {
        if let Err(errno) = wait_for_word(verdict.as_fd(), vital, &child, &mut others) {
            let _ = send_signal(&child.pidfd, Signal::KILL);
            return Err((SpawnStage::Fork, errno));
        }
        match receive_with(&verdict, &mut word) {
            Ok((0, _)) => return Ok(Spawned { child, listener }),
            Ok((1, descriptors)) => listener = descriptors.into_iter().next(),
            Ok(_) => {
                let _ = skep_sys::process::wait_for(&child);
                let stage = SpawnStage::from_byte(word[0]).unwrap_or(SpawnStage::Fork);
                return Err((stage, i32::from_le_bytes([word[1], word[2], word[3], word[4]])));
            }
            Err(error) => return Err(forked(error)),
        }
    }
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
    let [a, b, c, d] = errno.to_le_bytes();
    let _ = send_with(report, &[stage as u8, a, b, c, d], &[]);
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
    /// Its fences.
    pub confinement: &'a Confinement,
}

impl Newborn<'_> {
    /// In this order, each step before the one that would forbid it:
    ///
    /// 1. A session of its own, and its terminal: no signal or ioctl reaches another one.
    /// 2. The cgroup, so that all that follows is counted.
    /// 3. Standard descriptors; every other one closes with the exec.
    /// 4. Working directory and file mode mask.
    /// 5. Resource limits; that of open files after the last descriptor was passed to init.
    /// 6. Capabilities and the right to gain any; Landlock; last the system call filter, which would
    ///    refuse the steps above.
    fn prepare(&self, report: BorrowedFd<'_>) -> Result<(), (SpawnStage, i32)> {
        let Self { order, joins, stdio, confinement } = self;
        at(SpawnStage::Terminal, stdio.enter_session())?;
        at(SpawnStage::Cgroup, skep_confine::cgroup::join(joins))?;
        at(SpawnStage::Terminal, stdio.take())?;
        at(SpawnStage::WorkingDirectory, rustix::process::chdir(order.workdir.as_path()))?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(order.umask));
        at(SpawnStage::Limits, set_limits(order))?;
        // All that the keeper and init have changed since the keeper put everything back.
        skep_sys::signal::reset(&[libc::SIGPIPE]);
        at(SpawnStage::Privileges, confinement.drop_privileges())?;
        at(SpawnStage::Landlock, confinement.raise_fence())?;
        let listener = at(SpawnStage::Seccomp, confinement.filter_and_note())?;
        match listener {
            None => {}
            Some(listener) => {
                let sent = send_with(report, &[0], &[listener.as_fd()]).map(drop);
                at(SpawnStage::Seccomp, sent)?;
            }
        }
        at(SpawnStage::Limits, limit_open_files(order))
    }
}

fn at<T, E: Into<io::Error>>(
    stage: SpawnStage,
    result: Result<T, E>,
) -> Result<T, (SpawnStage, i32)> {
    result.map_err(|error| {
        let error: io::Error = error.into();
        (stage, error.raw_os_error().unwrap_or(libc::EINVAL))
    })
}

/// Memory that cannot be swapped, of all processes inside.
const MEMLOCK: u64 = 8 << 20;

fn set_limits(order: &SpawnOrder) -> io::Result<()> {
    let wanted = [
        (Resource::Core, Some(0)),
        (Resource::Fsize, order.file_size),
        (Resource::Cpu, order.cpu_seconds),
        (Resource::Nproc, order.processes),
    ];
    leave_to_the_caller();
    for (resource, limit) in wanted {
        let Some(limit) = limit else { continue };
        let now = rustix::process::getrlimit(resource);
        // A hard limit can be lowered by anyone and raised by nobody here. Processes are counted for the
        // caller too, who must be able to start one more.
        let most = |hard: u64| if resource == Resource::Nproc { hard - hard / 4 } else { hard };
        let limit = now.maximum.map_or(limit, |hard| most(hard).min(limit));
        let both = Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::setrlimit(resource, both)?;
    }
    Ok(())
}

/// What is counted for the caller too, whoever inside takes it: most of it is left to it. Lowering a limit
/// is nothing Linux refuses; gVisor, which counts for itself, does not know all of these.
fn leave_to_the_caller() {
    let parts = [
        (Resource::Sigpending, share(Resource::Sigpending, 16).max(256)),
        (Resource::Msgqueue, share(Resource::Msgqueue, 4)),
        (Resource::Memlock, MEMLOCK),
    ];
    for (resource, part) in parts {
        let hard = rustix::process::getrlimit(resource).maximum;
        let limit = Some(hard.map_or(part, |hard| hard.min(part)));
        let _ = rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit });
    }
}

/// A part of what this process may have; of what has no limit, enough for anybody.
fn share(resource: Resource, part: u64) -> u64 {
    rustix::process::getrlimit(resource).maximum.unwrap_or(1 << 20) / part
}

fn limit_open_files(order: &SpawnOrder) -> io::Result<()> {
    let most = rustix::process::getrlimit(Resource::Nofile).maximum.map(Limits::most_open_files);
    let Some(limit) = order.open_files.into_iter().chain(most).min() else { return Ok(()) };
    let both = Rlimit { current: Some(limit), maximum: Some(limit) };
    Ok(rustix::process::setrlimit(Resource::Nofile, both)?)
}

/// Made before the fork.
fn program_of(order: &SpawnOrder) -> Program {
    let path = order.environment.get("PATH").map(|path| path.as_bytes()).unwrap_or_default();
    let environment =
        order.environment.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    Program::new(order.argv.iter().map(|word| word.as_bytes()), environment, path)
}
