//! From a fork of init to the caller's program.

use crate::confinement::Confinement;
use crate::protocol::{SpawnOrder, SpawnStage};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};
use skep_sys::process::{Child, Namespaces, clone_with, exit_now};
use skep_types::TerminalSize;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;

/// What the new process has as its first three descriptors.
#[derive(Debug)]
pub enum Stdio {
    /// Input, output and error.
    Pipes(Vec<OwnedFd>),
    /// One terminal for all three.
    Terminal(OwnedFd),
}

impl Stdio {
    fn nth(&self, index: usize) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Pipes(pipes) => pipes.get(index).map(AsFd::as_fd),
            Self::Terminal(terminal) => Some(terminal.as_fd()),
        }
    }
}

/// A terminal of the sandbox's own, and its other end.
pub fn open_terminal(size: TerminalSize) -> io::Result<(Stdio, Option<OwnedFd>)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let terminal = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size)?;
    Ok((Stdio::Terminal(terminal), Some(master)))
}

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
    let program = Program::new(order);
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
    at(SpawnStage::Terminal)(enter_session(stdio))?;
    at(SpawnStage::Cgroup)(skep_confine::cgroup::join(joins))?;
    at(SpawnStage::Terminal)(take_stdio(stdio))?;
    at(SpawnStage::WorkingDirectory)(rustix::process::chdir(order.workdir.as_path()))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(order.umask));
    at(SpawnStage::Limits)(set_limits(order))?;
    skep_sys::signal::reset_all();
    at(SpawnStage::Privileges)(confinement.drop_privileges())?;
    at(SpawnStage::Landlock)(confinement.raise_fence())?;
    at(SpawnStage::Seccomp)(confinement.filter_system_calls())
}

fn enter_session(stdio: &Stdio) -> io::Result<()> {
    rustix::process::setsid()?;
    if let Stdio::Terminal(terminal) = stdio {
        rustix::process::ioctl_tiocsctty(terminal)?;
    }
    Ok(())
}

fn take_stdio(stdio: &Stdio) -> io::Result<()> {
    let missing = || io::Error::from_raw_os_error(libc::EBADF);
    rustix::stdio::dup2_stdin(stdio.nth(0).ok_or_else(missing)?)?;
    rustix::stdio::dup2_stdout(stdio.nth(1).ok_or_else(missing)?)?;
    rustix::stdio::dup2_stderr(stdio.nth(2).ok_or_else(missing)?)?;
    skep_sys::process::close_on_exec_from(3)
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

/// The program in the form the kernel takes, made before the fork.
struct Program {
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    fn new(order: &SpawnOrder) -> Self {
        // A NUL byte cannot be passed; the edges refuse it, and here it would only cut the text.
        let text = |bytes: &[u8]| {
            CString::new(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
                .unwrap_or_default()
        };
        let name = order.argv.first().map(|word| word.as_bytes()).unwrap_or_default();
        let path = order.environment.get("PATH").map(|path| path.as_bytes()).unwrap_or_default();
        let candidates = if name.contains(&b'/') {
            vec![text(name)]
        } else {
            let join = |directory: &[u8]| {
                text(
                    std::path::Path::new(std::ffi::OsStr::from_bytes(directory))
                        .join(std::ffi::OsStr::from_bytes(name))
                        .as_os_str()
                        .as_bytes(),
                )
            };
            path.split(|byte| *byte == b':').filter(|part| !part.is_empty()).map(join).collect()
        };
        let environment = order
            .environment
            .iter()
            .map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
        Self {
            candidates,
            arguments: order.argv.iter().map(|word| text(word.as_bytes())).collect(),
            environment: environment.collect(),
        }
    }

    /// Tries every candidate; returns why none ran. Like a shell, "found but not executable" wins
    /// over "not found".
    fn run(&self) -> i32 {
        let mut verdict = libc::ENOENT;
        for candidate in &self.candidates {
            let error = skep_sys::process::execve(candidate, &self.arguments, &self.environment);
            match error.raw_os_error().unwrap_or(libc::EIO) {
                libc::ENOENT | libc::ENOTDIR => {}
                errno => verdict = errno,
            }
        }
        verdict
    }
}
