//! From a fork of init to the caller's program.

use crate::confinement::Confinement;
use crate::protocol::{SpawnOrder, SpawnStage};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use skep_sys::process::{Child, Namespaces, clone_with, exit_now};
use skep_sys::program::Program;
use skep_sys::stdio::Stdio;
use std::io;

/// Starts a process; returns when the program runs, or with the step that failed and why.
pub fn spawn(
    order: &SpawnOrder,
    joins: &[OwnedFd],
    stdio: &Stdio,
    confinement: &Confinement,
) -> Result<Child, (SpawnStage, i32)> {
    let forked =
        |error: io::Error| (SpawnStage::Fork, error.raw_os_error().unwrap_or(libc::EAGAIN));
    // Closed by a successful exec; written to by a failed one.
    let (verdict, report) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| forked(e.into()))?;
    let program = program_of(order);
    let child = clone_with(Namespaces::NONE, || {
        let (stage, errno) = become_program(order, &program, joins, stdio, confinement);
        let [a, b, c, d] = errno.to_le_bytes();
        let _ = rustix::io::write(&report, &[stage as u8, a, b, c, d]);
        exit_now(127)
    })
    .map_err(forked)?;
    drop(report);
    let mut failure = [0; 5];
    match read_all(verdict.as_fd(), &mut failure) {
        Ok(0) => Ok(child),
        Ok(_) => {
            let _ = skep_sys::process::wait_for(&child);
            let stage = SpawnStage::from_byte(failure[0]).unwrap_or(SpawnStage::Fork);
            Err((stage, i32::from_le_bytes([failure[1], failure[2], failure[3], failure[4]])))
        }
        Err(error) => Err(forked(error)),
    }
}

fn read_all(from: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(from, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// In this order, each step before the one that would forbid it:
///
/// 1. A session of its own, and its terminal: no signal or ioctl reaches another one.
/// 2. The cgroup, so that all that follows is counted.
/// 3. Standard descriptors; every other one closes with the exec.
/// 4. Working directory and file mode mask.
/// 5. Resource limits.
/// 6. Capabilities and the right to gain any; Landlock; last the system call filter, which would
///    refuse the steps above.
fn become_program(
    order: &SpawnOrder,
    program: &Program,
    joins: &[OwnedFd],
    stdio: &Stdio,
    confinement: &Confinement,
) -> (SpawnStage, i32) {
    match prepare(order, joins, stdio, confinement) {
        Ok(()) => (SpawnStage::Program, program.run()),
        Err(failure) => failure,
    }
}

fn prepare(
    order: &SpawnOrder,
    joins: &[OwnedFd],
    stdio: &Stdio,
    confinement: &Confinement,
) -> Result<(), (SpawnStage, i32)> {
    fn at<T, E: Into<io::Error>>(
        stage: SpawnStage,
    ) -> impl FnOnce(Result<T, E>) -> Result<T, (SpawnStage, i32)> {
        move |result| {
            result.map_err(|error| {
                let error: io::Error = error.into();
                (stage, error.raw_os_error().unwrap_or(libc::EINVAL))
            })
        }
    }
    at(SpawnStage::Terminal)(stdio.enter_session())?;
    at(SpawnStage::Cgroup)(skep_confine::cgroup::join(joins))?;
    at(SpawnStage::Terminal)(stdio.take())?;
    at(SpawnStage::WorkingDirectory)(rustix::process::chdir(order.workdir.as_path()))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(order.umask));
    at(SpawnStage::Limits)(set_limits(order))?;
    skep_sys::signal::reset_all();
    at(SpawnStage::Privileges)(confinement.drop_privileges())?;
    at(SpawnStage::Landlock)(confinement.raise_fence())?;
    at(SpawnStage::Seccomp)(confinement.filter_system_calls())
}

fn set_limits(order: &SpawnOrder) -> io::Result<()> {
    let wanted = [
        (Resource::Core, Some(0)),
        (Resource::Fsize, order.file_size),
        (Resource::Nofile, order.open_files),
        (Resource::Cpu, order.cpu_seconds),
        (Resource::Nproc, order.processes),
    ];
    for (resource, limit) in wanted {
        let Some(limit) = limit else { continue };
        let now = rustix::process::getrlimit(resource);
        // A hard limit can be lowered by anyone and raised by nobody here.
        let limit = now.maximum.map_or(limit, |hard| hard.min(limit));
        let both = Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::setrlimit(resource, both)?;
    }
    Ok(())
}

/// Made before the fork.
fn program_of(order: &SpawnOrder) -> Program {
    let path = order.environment.get("PATH").map(|path| path.as_bytes()).unwrap_or_default();
    let environment =
        order.environment.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    Program::new(order.argv.iter().map(|word| word.as_bytes()), environment, path)
}
