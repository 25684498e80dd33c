//! Making processes: `clone3`, `fork`, `execve`, `wait4`, and what identifies one.

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::process::Pid;
use std::ffi::CString;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

bitflags_lite! {
    /// Namespaces a new process gets for itself.
    pub struct Namespaces: u64 {
        /// Users and groups.
        USER = libc::CLONE_NEWUSER as u64;
        /// Mounts.
        MOUNT = libc::CLONE_NEWNS as u64;
        /// Processes; the new one is number 1.
        PID = libc::CLONE_NEWPID as u64;
        /// System V IPC and POSIX message queues.
        IPC = libc::CLONE_NEWIPC as u64;
        /// Host name.
        UTS = libc::CLONE_NEWUTS as u64;
        /// Network.
        NETWORK = libc::CLONE_NEWNET as u64;
        /// View of the cgroup tree.
        CGROUP = libc::CLONE_NEWCGROUP as u64;
    }
}

/// A child of this process.
#[derive(Debug)]
pub struct Child {
    /// Its process id, here.
    pub pid: Pid,
    /// A handle that cannot come to mean another process.
    pub pidfd: OwnedFd,
}

/// Whether this process has one thread only.
///
/// A fork copies one thread and every lock; a lock that another thread held stays locked for ever.
/// So everything here that forks without an exec insists on being alone.
pub fn is_single_threaded() -> io::Result<bool> {
    // A directory has a link from its parent, one to itself, and one from each directory in it.
    Ok(rustix::fs::stat("/proc/self/task")?.st_nlink == 3)
}

/// Starts a process that runs `body` and exits with what it returns.
///
/// Like `fork`, the child has a copy of this process's memory and descriptors. On error nothing
/// was started.
pub fn clone_with(namespaces: Namespaces, body: impl FnOnce() -> i32) -> io::Result<Child> {
    if !is_single_threaded()? {
        return Err(io::Error::other("cannot fork: this process has several threads"));
    }
    let mut pidfd: libc::c_int = -1;
    let arguments = libc::clone_args {
        flags: namespaces.bits() | libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    // SAFETY: clone3 with no CLONE_VM and no stack behaves like fork: the child returns here on a
    // copy of this stack. We are single threaded, so no lock is held by somebody who is not there.
    // `arguments` and `pidfd` outlive the call.
    let result = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>())
    };
    match result {
        -1 => match io::Error::last_os_error() {
            error
                if error.raw_os_error() == Some(libc::ENOSYS) && namespaces == Namespaces::NONE =>
            {
                fork(body)
            }
            error => Err(error),
        },
        0 => exit_now(run_guarded(body)),
        pid => {
            // SAFETY: the kernel stored a new descriptor there that nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let pid =
                Pid::from_raw(pid as i32).ok_or_else(|| io::Error::other("clone3 gave pid 0"))?;
            Ok(Child { pid, pidfd })
        }
    }
}

/// For kernels without `clone3`, gVisor's for one: a handle on the process is its directory in
/// `/proc`, which cannot come to mean another process either.
fn fork(body: impl FnOnce() -> i32) -> io::Result<Child> {
    // SAFETY: we are single threaded (the caller looked), so no lock is held by somebody who is
    // not there; the child runs `body` and exits.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => exit_now(run_guarded(body)),
        number => {
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
            let path = format!("/proc/{number}");
            let pidfd = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
            let pid = Pid::from_raw(number).ok_or_else(|| io::Error::other("fork gave pid 0"))?;
            Ok(Child { pid, pidfd })
        }
    }
}

/// Sends a signal to the process a handle stands for.
///
/// Where a filter around us hides `pidfd_send_signal`, by its number, as the handle tells it at this
/// moment: nobody else's as long as the process has not been waited for.
pub fn send_signal(process: impl AsFd, signal: rustix::process::Signal) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(&process, signal) {
        Err(rustix::io::Errno::NOSYS) => {
            let pid = pid_of(process).ok_or(rustix::io::Errno::SRCH)?;
            Ok(rustix::process::kill_process(pid, signal)?)
        }
        other => Ok(other?),
    }
}

/// The number of the process a handle stands for, as seen from here.
pub fn pid_of(process: impl AsFd) -> Option<Pid> {
    let number = process.as_fd().as_raw_fd();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // A process that has been reaped is shown as -1.
    Pid::from_raw(number.trim().parse().ok().filter(|number| *number > 0)?)
}

/// Leaves the namespaces this process shares with others for ones of its own, copied or empty.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    let flags = libc::c_int::try_from(namespaces.bits()).map_err(io::Error::other)?;
    // SAFETY: takes an integer; of what it can unshare, `Namespaces` names only namespaces, which
    // memory safety does not depend on.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A panic must not unwind into the copy of the caller's stack: the child would go on as if it
/// were the parent.
fn run_guarded(body: impl FnOnce() -> i32) -> i32 {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(125)
}

/// Ends this process without running destructors or exit handlers, which belong to the parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Replaces this process by a program. Returns only on failure, with the reason.
pub fn execve(program: &CString, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: all three are NUL-terminated (the arrays by a null pointer) and live until the call
    // returns, which it does only on failure.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// How a child ended, with what it used.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Which child.
    pub pid: i32,
    /// Its exit code, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Processor time of it and of its waited-for children.
    pub cpu: Duration,
    /// Largest resident size of one process, in bytes.
    pub memory_peak: u64,
}

/// Reaps one ended child, if there is one. What is told of whom we trace and hold is no end.
pub fn wait_any() -> io::Result<Option<Ended>> {
    let mut status: libc::c_int = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let pid = loop {
        // SAFETY: both pointers are valid for the kernel to write to for the length of the call.
        let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) };
        if pid <= 0 || !libc::WIFSTOPPED(status) {
            break pid;
        }
    };
    match pid {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
            error => Err(error),
        },
        0 => Ok(None),
        pid => {
            // SAFETY: zeroed is a valid rusage, and the kernel has filled it in.
            let usage = unsafe { usage.assume_init() };
            let time = |value: libc::timeval| {
                Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1_000)
            };
            Ok(Some(Ended {
                pid,
                code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
                signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
                cpu: time(usage.ru_utime) + time(usage.ru_stime),
                memory_peak: usage.ru_maxrss as u64 * 1024,
            }))
        }
    }
}

/// Waits for one child of ours and returns its exit code, or 128 + the signal.
pub fn wait_for(child: &Child) -> io::Result<i32> {
    use rustix::io::Errno;
    let foreign = [Errno::BADF, Errno::INVAL, Errno::NOSYS].map(|errno| Some(errno.raw_os_error()));
    match wait_for_handle(&child.pidfd) {
        Err(error) if foreign.contains(&error.raw_os_error()) => {
            wait_until(|| rustix::process::WaitId::Pid(child.pid))
        }
        other => other,
    }
}

/// The same, by its handle.
pub fn wait_for_handle(pidfd: &OwnedFd) -> io::Result<i32> {
    wait_until(|| rustix::process::WaitId::PidFd(rustix::fd::AsFd::as_fd(pidfd)))
}

fn wait_until<'a>(id: impl Fn() -> rustix::process::WaitId<'a>) -> io::Result<i32> {
    use rustix::process::{WaitIdOptions, waitid};
    loop {
        match waitid(id(), WaitIdOptions::EXITED) {
            Ok(Some(status)) => {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                return Ok(status.exit_status().or(signal).unwrap_or(125));
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// No descriptor has a higher number. gVisor refuses larger ones, which Linux takes.
const HIGHEST: u32 = i32::MAX as u32;

/// Marks every descriptor from `first` on to be closed by the next exec.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: changes flags of descriptors only; takes plain integers.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, HIGHEST, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes over a descriptor that this process was started with, by its number.
///
/// Each number may be taken once, at the start of the process, before anything else could have
/// opened a descriptor of that number; it is closed by the next exec.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: only asks for flags; a number that is not open is an error.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if number < 3 || flags < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    if flags & libc::FD_CLOEXEC != 0 {
        // What survived an exec does not have this mark: it was opened, or taken, since.
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: changes a flag of an open descriptor.
    let result = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open, and nobody's yet: Rust marks what it opens, and what was taken here before is
    // marked too.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor from 3 on, except those in `keep`.
pub fn close_all_but(keep: &[rustix::fd::BorrowedFd<'_>]) -> io::Result<()> {
    use rustix::fd::AsRawFd;
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.into_iter().chain([HIGHEST]) {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = fd.saturating_add(1);
    }
    Ok(())
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: takes plain integers. The descriptors belong to the process image this one was
    // forked from; its copies of their owners are never dropped here, since a forked body ends in
    // `exit_now`.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts `descriptors` at the numbers from `first` on, open for the next exec, and marks every
/// later one to be closed by it.
pub fn place_from(first: i32, descriptors: &[&OwnedFd]) -> io::Result<()> {
    use rustix::fd::AsRawFd;
    let end = first + descriptors.len() as i32;
    // First out of the way: one may stand where another must go.
    let aside: Vec<OwnedFd> = descriptors
        .iter()
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, end))
        .collect::<Result<_, _>>()?;
    for (number, fd) in (first..).zip(&aside) {
        // SAFETY: `dup2` takes two numbers; the first is open, and what the second stood for is
        // given up on purpose: this process is about to become another program.
        if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    close_on_exec_from(end as u32)
}

/// Start time of a process in clock ticks since boot: with the pid and the boot it is an identity.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = read_small(&format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may itself hold any byte.
    let end = stat.iter().rposition(|byte| *byte == b')').unwrap_or(0);
    let rest = String::from_utf8_lossy(&stat[end..]).into_owned();
    rest.split_ascii_whitespace()
        .nth(20)
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::other(format!("cannot read the start time in /proc/{pid}/stat")))
}

/// The number of a process's parent, if it is there and has one.
pub fn parent_of(pid: i32) -> Option<i32> {
    let stat = read_small(&format!("/proc/{pid}/stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = String::from_utf8_lossy(&stat[end..]).into_owned();
    let parent = rest.split_ascii_whitespace().nth(2)?.parse().ok()?;
    (parent > 0).then_some(parent)
}

/// Now, in the unit of [`start_ticks`].
pub fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * ticks + now.tv_nsec as u64 * ticks / 1_000_000_000
}

/// The id of this boot.
pub fn boot_id() -> io::Result<String> {
    // It cannot change while this process lives.
    static KNOWN: OnceLock<String> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let text = read_small("/proc/sys/kernel/random/boot_id")?;
    Ok(KNOWN.get_or_init(|| String::from_utf8_lossy(&text).trim().to_owned()).clone())
}

/// A file of the kernel's that is less than a page, in one read: they have no size to ask for.
fn read_small(path: &str) -> io::Result<Vec<u8>> {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = vec![0; 4096];
    let length = rustix::io::read(&file, &mut text)?;
    text.truncate(length);
    Ok(text)
}

/// Signals every process this one may signal, except itself; from number 1 of a pid namespace,
/// that is everything inside.
pub fn signal_everyone(signal: rustix::process::Signal) -> io::Result<()> {
    // SAFETY: kill takes two integers and touches no memory.
    let result = unsafe { libc::kill(-1, signal.as_raw()) };
    match result {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

/// Moves this process into a user namespace of its own in which its one user and group id are
/// mapped to themselves.
///
/// It is the same user as before, and gains power over its own files only: what its own permission
/// bits keep it out of (`chmod 000`) can be read. If it was lent subordinate ids they are mapped
/// too, because a sandbox may have left files of theirs. It must have one thread. Once is enough: a
/// second namespace inside the first would have fewer ids.
pub fn enter_own_user_namespace() -> io::Result<()> {
    if ENTERED.load(Ordering::Relaxed) {
        return Ok(());
    }
    enter_user_namespace_once()?;
    ENTERED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Does some work in a child that has entered a user namespace of its own (see
/// [`enter_own_user_namespace`]), and waits for it. This process stays where it is, and may go on to start
/// others; what `work` changes in memory is lost.
pub fn in_child_with_own_files_open(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    use io::{Read as _, Write as _};
    let (reader, writer) = io::pipe()?;
    let mut kept = Some(writer);
    let child = clone_with(Namespaces::NONE, || {
        let done = enter_own_user_namespace().and_then(|()| work());
        let (Err(error), Some(mut writer)) = (done, kept.take()) else { return 0 };
        let _ = writer.write_all(&errno_of(&error).to_ne_bytes());
        let _ = writer.write_all(error.to_string().as_bytes());
        1
    })?;
    drop(kept);
    let mut said = Vec::new();
    let heard = (&reader).take(LONGEST_REASON).read_to_end(&mut said);
    let code = wait_for(&child)?;
    heard?;
    match said.split_first_chunk() {
        Some((errno, text)) => {
            let kind = io::Error::from_raw_os_error(i32::from_ne_bytes(*errno)).kind();
            Err(io::Error::new(kind, String::from_utf8_lossy(text).into_owned()))
        }
        None if code == 0 => Ok(()),
        None => Err(io::Error::other(format!("a process of our own ended with {code}"))),
    }
}

const LONGEST_REASON: u64 = 64 << 10;

/// The number that callers tell errors apart by, also of one that was given more words.
fn errno_of(error: &io::Error) -> i32 {
    let by_kind = match error.kind() {
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::StorageFull => libc::ENOSPC,
        io::ErrorKind::QuotaExceeded => libc::EDQUOT,
        _ => libc::EIO,
    };
    error.raw_os_error().unwrap_or(by_kind)
}

/// Whether this process has power over its own files whatever their modes say, which their owner
/// has not given it: it entered a user namespace of its own.
pub fn in_own_user_namespace() -> bool {
    ENTERED.load(Ordering::Relaxed)
}

static ENTERED: AtomicBool = AtomicBool::new(false);

fn enter_user_namespace_once() -> io::Result<()> {
    use crate::subordinate;
    if let Some(lent) = subordinate::lent()
        && subordinate::can_map(lent).is_ok()
    {
        return subordinate::enter_user_namespace(lent);
    }
    if !is_single_threaded()? {
        return Err(io::Error::other(
            "cannot enter a user namespace: this process has several threads",
        ));
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: unshare with CLONE_NEWUSER changes the credentials of this process, which has one
    // thread; it touches no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
        return Err(io::Error::last_os_error());
    }
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))
}
