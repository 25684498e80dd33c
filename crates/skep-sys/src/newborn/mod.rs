//! A process on its way to its program: what it does between its birth and `execve`, as data.
//!
//! A fork copies the page tables of the parent, has both of them pay for every page that either writes to
//! afterwards, and takes the copy down again when the program is executed: half of what a small command costs. The
//! newborn here has the parent's memory itself (`CLONE_VM`) and a stack of its own, as `posix_spawn` does it.
//!
//! What makes that sound: all that the newborn does is in a list of [`Step`]s, made before it is born. It goes through
//! them, each a system call or two, and calls `execve`. It allocates nothing, frees nothing, takes no lock and
//! changes no memory but its own stack and a number that says how far it is; so it may be killed at any point, and the parent may go on meanwhile. The
//! parent does not let go of the list and the stack before the newborn has left its memory, which it sees by the end
//! of the connection that both have: the kernel takes a process out of its memory before it closes its descriptors,
//! in `execve` and at its end. Should one be stuck, both are left to it for good.
//!
//! Nobody else may look into or change that memory through the newborn, which has the user of those inside: the parent
//! must not be dumpable (`prctl(2)`), so that the kernel asks for power over its own user namespace.

mod beside;

pub use beside::{Errand, Waiting};

use crate::message::{receive_with, send_with};
use crate::process::{Child, exit_now};
use crate::processors::{Processors, Turns};
use crate::program::Program;
use crate::seccomp::Instruction;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::CapabilitySet;
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// One thing a newborn does to itself.
#[derive(Debug)]
pub enum Step<'a> {
    /// Leads a session of its own.
    Session,
    /// Has this terminal as the session's.
    Terminal(BorrowedFd<'a>),
    /// Joins the cgroup whose list of processes this is.
    Join(BorrowedFd<'a>),
    /// Has these as its first three descriptors; every other one closes with the program's start.
    Descriptors([BorrowedFd<'a>; 3]),
    /// Starts in this directory.
    Directory(CString),
    /// What new files may not be.
    Umask(u32),
    /// May have so much and no more.
    Limit(Resource, Rlimit),
    /// The same, where the kernel knows the limit.
    LimitIfKnown(Resource, Rlimit),
    /// Takes these signals as programs expect it, and holds none back.
    Signals(&'a [i32]),
    /// Has these capabilities at most, and can gain none.
    Privileges(CapabilitySet),
    /// Wears these Landlock rules.
    Fence(BorrowedFd<'a>),
    /// Wears this system call filter.
    Filter(&'a [Instruction]),
    /// The same, the parent being sent where refused calls wait.
    NotedFilter(&'a [Instruction]),
    /// Goes on on these processors. A hint: where it cannot, it stays.
    Processors(Processors),
    /// Takes its turns so. A hint.
    Turns(Turns),
    /// Has a network of its own, with nothing in it but a loopback that is on; the parent is sent it.
    Network,
}

/// Steps in order, each with a mark that tells where one failed.
#[derive(Debug)]
pub struct Steps<'a>(pub Vec<(u8, Step<'a>)>);

impl Steps<'_> {
    /// Takes them all; `report` is where a listener is sent. On error some were taken.
    pub fn take(&self, report: BorrowedFd<'_>) -> Result<(), (u8, i32)> {
        self.take_counting(report, &AtomicUsize::new(0))
    }

    fn take_counting(&self, report: BorrowedFd<'_>, taken: &AtomicUsize) -> Result<(), (u8, i32)> {
        for (mark, step) in &self.0 {
            step.take(report).map_err(|errno| (*mark, errno.raw_os_error()))?;
            taken.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Step<'_> {
    /// Nothing here may allocate, or change memory that is not on the stack (`Life::taken` is all there is).
    fn take(&self, report: BorrowedFd<'_>) -> rustix::io::Result<()> {
        match self {
            Self::Session => crate::stdio::lead_session(),
            Self::Terminal(terminal) => rustix::process::ioctl_tiocsctty(terminal),
            Self::Join(processes) => rustix::io::write(processes, b"0").map(drop),
            Self::Descriptors(three) => crate::stdio::place(*three),
            Self::Directory(path) => rustix::process::chdir(path.as_c_str()),
            Self::Umask(mask) => {
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(*mask));
                Ok(())
            }
            Self::Limit(resource, limit) => rustix::process::setrlimit(*resource, *limit),
            Self::LimitIfKnown(resource, limit) => {
                let _ = rustix::process::setrlimit(*resource, *limit);
                Ok(())
            }
            Self::Signals(signals) => {
                crate::signal::reset(signals);
                Ok(())
            }
            Self::Privileges(kept) => {
                crate::privileges::drop_held_but(*kept).map_err(|(_, errno)| errno)
            }
            Self::Fence(rules) => crate::landlock::restrict_self(*rules).map_err(errno),
            Self::Filter(program) => crate::seccomp::set_mode_filter(program).map_err(errno),
            Self::NotedFilter(program) => {
                let listener = crate::seccomp::set_mode_filter_listening(program).map_err(errno)?;
                send_with(report, &[0], &[listener.as_fd()]).map(drop).map_err(errno)
            }
            Self::Processors(processors) => {
                let _ = processors.use_all();
                Ok(())
            }
            Self::Turns(turns) => {
                let _ = turns.take();
                Ok(())
            }
            Self::Network => {
                let network = crate::network::new_namespace()?;
                send_with(report, &[0], &[network.as_fd()]).map(drop).map_err(errno)
            }
        }
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}

/// Says at `report` where something failed, and why.
pub fn tell(report: impl AsFd, mark: u8, errno: i32) {
    let [a, b, c, d] = errno.to_le_bytes();
    let _ = send_with(report, &[mark, a, b, c, d], &[]);
}

fn failure_in(word: &[u8; 5]) -> Stillborn {
    let [mark, errno @ ..] = *word;
    (Some(mark), i32::from_le_bytes(errno))
}

/// A process that has become its program.
#[derive(Debug)]
pub struct Born {
    /// Itself.
    pub child: Child,
    /// Where its refused system calls wait for their answer.
    pub listener: Option<OwnedFd>,
}

/// The mark of the step that failed, or that it was at when it was not waited for any longer, and why. None if it
/// came to no step.
pub type Stillborn = (Option<u8>, i32);

/// How long one that was killed may take to let go of our memory before it is left to it for good.
const LAST_PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Starts a process that takes these steps and becomes this program, whose failure has this mark; returns when it
/// has, or with what failed. `wait` waits until something can be read from the newborn, or its end, or says why it
/// is not to be waited for any longer.
pub fn start(
    steps: Steps<'_>,
    program: (Program, u8),
    wait: impl FnMut(BorrowedFd<'_>, &Child) -> Result<(), i32>,
) -> Result<Born, Stillborn> {
    Guest::bear(steps, Then::Become(program)).map_err(unborn)?.0.attend(wait)
}

fn unborn(error: io::Error) -> Stillborn {
    (None, error.raw_os_error().unwrap_or(libc::EAGAIN))
}

/// What one that waits says, and what it is told.
const WAITS: u8 = 1;

/// A newborn in our memory, until its end is waited for. Dropped before that it is ended.
#[derive(Debug)]
struct Guest<'a>(Option<Within<'a>>);

/// A newborn, and what it uses of our memory.
#[derive(Debug)]
struct Within<'a> {
    verdict: OwnedFd,
    child: Child,
    stack: Stack,
    life: Box<Life<'a>>,
    /// What it was told later.
    rest: Option<Box<Life<'a>>>,
}

impl<'a> Guest<'a> {
    /// On error there is none.
    fn bear(steps: Steps<'a>, then: Then) -> io::Result<(Self, Pid)> {
        let (verdict, report) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let stack = SPARE.take().map_or_else(Stack::new, Ok)?;
        let life = Life::new(steps, then, report.as_raw_fd());
        let (pid, pidfd) = clone_onto(&stack, &life)?;
        // The newborn has descriptors of its own; this was the other copy.
        drop(report);
        match handle_on((pid, pidfd)) {
            Ok(child) => Ok((Self(Some(Within { verdict, child, stack, life, rest: None })), pid)),
            Err(error) => {
                // Ours, and nobody has waited for it: the number is still its own.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                if !has_left(&verdict) {
                    std::mem::forget((stack, life));
                }
                Err(error)
            }
        }
    }

    fn hear(&self, word: &mut [u8; 5]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let within = self.0.as_ref().ok_or(io::ErrorKind::NotFound)?;
        receive_with(&within.verdict, word)
    }

    /// Tells one that waits what is left.
    fn tell(
        &mut self,
        steps: Steps<'a>,
        program: (Program, u8),
        descriptors: [BorrowedFd<'_>; 3],
    ) -> io::Result<()> {
        let within = self.0.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let rest = Life::new(steps, Then::Become(program), within.life.report);
        if let Then::Wait(_, next) = &within.life.then {
            let rest: *const Life<'_> = &raw const **within.rest.insert(rest);
            next.store(rest.cast_mut().cast(), Ordering::Release);
        }
        send_with(&within.verdict, &[WAITS], &descriptors).map(drop)
    }

    /// Hears what becomes of it.
    fn attend(
        mut self,
        wait: impl FnMut(BorrowedFd<'_>, &Child) -> Result<(), i32>,
    ) -> Result<Born, Stillborn> {
        let Some(within) = self.0.take() else { return Err((None, libc::ECHILD)) };
        let Within { verdict, child, stack, life, rest } = within;
        let at = || Some(rest.as_ref().unwrap_or(&life).is_at());
        let born = attend(&verdict, child, wait).map_err(|(mark, errno)| (mark.or_else(at), errno));
        match &born {
            // It has memory of its own by now, or none.
            Ok(_) => SPARE.set(Some(stack)),
            Err(_) if has_left(&verdict) => {}
            Err(_) => std::mem::forget((stack, life, rest)),
        }
        born
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let Some(Within { verdict, child, stack, life, rest }) = self.0.take() else { return };
        let _ = crate::process::send_signal(&child.pidfd, Signal::KILL);
        match has_left(&verdict) {
            true => drop(crate::process::wait_for(&child)),
            false => std::mem::forget((stack, life, rest)),
        }
    }
}

thread_local! {
    /// The stack of the last one, for the next: to map, fence and fault in another costs as much as to clone.
    static SPARE: Cell<Option<Stack>> = const { Cell::new(None) };
}

/// Hears by `verdict` what becomes of a newborn that has the other end. On error it is dead, or about to be.
pub fn attend(
    verdict: &OwnedFd,
    child: Child,
    mut wait: impl FnMut(BorrowedFd<'_>, &Child) -> Result<(), i32>,
) -> Result<Born, Stillborn> {
    let mut listener = None;
    let mut word = [0; 5];
    loop {
        let heard = wait(verdict.as_fd(), &child).map_err(|errno| (None, errno)).and_then(|()| {
            let failed = |error: io::Error| (None, error.raw_os_error().unwrap_or(libc::EIO));
            receive_with(verdict, &mut word).map_err(failed)
        });
        let failed = match heard {
            Ok((0, _)) => return Ok(Born { child, listener }),
            Ok((1, descriptors)) => {
                listener = descriptors.into_iter().next();
                continue;
            }
            Ok(_) => failure_in(&word),
            Err(failed) => failed,
        };
        // It may have been stopped on its way to its end.
        let _ = crate::process::send_signal(&child.pidfd, Signal::KILL);
        return Err(failed);
    }
}

/// Whether a newborn that is about to die has let go of our memory.
fn has_left(verdict: &OwnedFd) -> bool {
    let mut word = [0; 5];
    loop {
        match poll(&mut [PollFd::new(verdict, PollFlags::IN)], Some(&LAST_PATIENCE)) {
            Ok(0) => return false,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        match receive_with(verdict, &mut word) {
            Ok((0, _)) => return true,
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => return true,
            Err(_) => return false,
        }
    }
}

/// All that a newborn knows.
#[derive(Debug)]
struct Life<'a> {
    steps: Steps<'a>,
    then: Then,
    /// Its number is the same there.
    report: RawFd,
    /// How many of the steps were taken.
    taken: AtomicUsize,
}

/// What comes after its steps.
#[derive(Debug)]
enum Then {
    /// Its end.
    End,
    /// This program, whose failure has this mark.
    Become((Program, u8)),
    /// Its descriptors, whose failure has this mark, and what its parent says: another [`Life`] will be here.
    Wait(u8, AtomicPtr<c_void>),
}

impl<'a> Life<'a> {
    fn new(steps: Steps<'a>, then: Then, report: RawFd) -> Box<Self> {
        Box::new(Self { steps, then, report, taken: AtomicUsize::new(0) })
    }

    fn lead(&self) -> i32 {
        // SAFETY: the copy of the descriptor that this process was born with; nobody closes it here.
        let report = unsafe { BorrowedFd::borrow_raw(self.report) };
        let failed = match (self.steps.take_counting(report, &self.taken), &self.then) {
            (Err(failed), _) => failed,
            (Ok(()), Then::End) => return 0,
            (Ok(()), Then::Become((program, mark))) => (*mark, program.run()),
            (Ok(()), Then::Wait(mark, next)) => match wait_for_word(report) {
                Ok(true) => {
                    let next = next.load(Ordering::Acquire).cast::<Life<'_>>();
                    // SAFETY: our parent has put a life there before it said so, and keeps it as it keeps this one.
                    match unsafe { next.as_ref() } {
                        Some(next) => return next.lead(),
                        None => (*mark, libc::EINVAL),
                    }
                }
                // It is not wanted, and nobody hears any more.
                Ok(false) => return 127,
                Err(errno) => (*mark, errno.raw_os_error()),
            },
        };
        let (mark, errno) = failed;
        tell(report, mark, errno);
        127
    }

    /// The mark of the step it is at; after the last one, that of its program.
    fn is_at(&self) -> u8 {
        let taken = self.taken.load(Ordering::Relaxed);
        let last = match &self.then {
            Then::Become((_, mark)) => *mark,
            Then::Wait(mark, _) => *mark,
            Then::End => 0,
        };
        self.steps.0.get(taken).map_or(last, |(mark, _)| *mark)
    }
}

/// Says that it waits, and does; then has the descriptors that come with the word as its first three. False if no word
/// comes any more. Allocates nothing.
fn wait_for_word(report: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    send_with(report, &[WAITS], &[]).map_err(errno)?;
    let mut descriptors = [const { None }; 3];
    if !crate::message::receive_three(report, &mut descriptors)? {
        return Ok(false);
    }
    let [Some(input), Some(output), Some(errors)] = &descriptors else { return Err(Errno::BADF) };
    crate::stdio::place([input.as_fd(), output.as_fd(), errors.as_fd()])?;
    Ok(true)
}

extern "C" fn be_born(life: *mut c_void) -> libc::c_int {
    // SAFETY: `clone_onto` was given a `Life`, and whoever called that keeps it until this process has left its memory.
    let life = unsafe { &*life.cast::<Life<'_>>() };
    exit_now(life.lead())
}

/// Room for the calls of one newborn, below a page that nobody may touch.
#[derive(Debug)]
struct Stack(*mut c_void);

/// Steps need a few kilobytes; the largest frame is that of a message with descriptors.
const ROOM: usize = 128 << 10;
const GUARD: usize = 16 << 10;

impl Stack {
    fn new() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), GUARD + ROOM, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(start);
        // SAFETY: the first part of what was just mapped.
        match unsafe { libc::mprotect(start, GUARD, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// It grows down from here.
    fn top(&self) -> *mut c_void {
        // SAFETY: the end of the same mapping.
        unsafe { self.0.byte_add(GUARD + ROOM) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: ours, and whoever stood on it has left.
        unsafe { libc::munmap(self.0, GUARD + ROOM) };
    }
}

/// A newborn's number, and a handle on it where the kernel gives one.
type Number = (Pid, Option<OwnedFd>);

fn clone_onto(stack: &Stack, life: &Life<'_>) -> io::Result<Number> {
    match clone_with(libc::CLONE_PIDFD, stack, life) {
        // A kernel that does not know the flag: gVisor's, for one.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => clone_with(0, stack, life),
        other => other,
    }
}

fn handle_on((pid, pidfd): Number) -> io::Result<Child> {
    let pidfd = match pidfd {
        Some(pidfd) => pidfd,
        // Its directory cannot come to mean another process either.
        None => {
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
            let path = format!("/proc/{}", pid.as_raw_nonzero());
            rustix::fs::open(path, flags, rustix::fs::Mode::empty())?
        }
    };
    Ok(Child { pid, pidfd })
}

fn clone_with(also: libc::c_int, stack: &Stack, life: &Life<'_>) -> io::Result<Number> {
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_VM | also | libc::SIGCHLD;
    let life: *const Life<'_> = life;
    // SAFETY: the stack is big enough and nobody else's; `life` outlives the newborn's time in our memory (`start`
    // sees to both). The newborn changes nothing in it but an atomic number (`Step::take`), and has our thread-local storage, of which it
    // touches `errno` only, which nobody here relies on across calls.
    let number =
        unsafe { libc::clone(be_born, stack.top(), flags, life.cast_mut().cast(), &raw mut pidfd) };
    let Some(pid) = Pid::from_raw(number).filter(|_| number > 0) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the kernel stored a new descriptor there that nobody else owns.
    let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
    Ok((pid, pidfd))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::process::wait_for;

    pub(super) fn program(words: &[&str]) -> Program {
        Program::new(words.iter().map(|word| word.as_bytes()), [("A", &b"b"[..])], b"/usr/bin:/bin")
    }

    pub(super) fn until_readable(verdict: BorrowedFd<'_>, _: &Child) -> Result<(), i32> {
        let mut watched = [PollFd::from_borrowed_fd(verdict, PollFlags::IN)];
        poll(&mut watched, None).map(drop).map_err(Errno::raw_os_error)
    }

    #[test]
    fn it_takes_its_steps_and_becomes_its_program() {
        let directory = std::env::temp_dir().join(format!("skep-newborn-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = CString::new(directory.as_os_str().as_encoded_bytes()).unwrap();
        let steps = Steps(vec![
            (1, Step::Session),
            (2, Step::Directory(path)),
            (3, Step::Umask(0o077)),
            (4, Step::Signals(&[libc::SIGPIPE])),
            (5, Step::Limit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })),
        ]);
        let script = "touch here && test $A = b && test $(ulimit -c) = 0 && exit 7";
        let born = start(steps, (program(&["sh", "-c", script]), 9), until_readable).unwrap();
        assert_eq!(wait_for(&born.child).unwrap(), 7);
        let made = std::fs::metadata(directory.join("here")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&made) & 0o777, 0o600);
        assert_ne!(std::env::current_dir().unwrap(), directory);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_failed_is_told_with_its_mark_and_nothing_is_left() {
        let nowhere = Steps(vec![(1, Step::Session), (2, Step::Directory(c"/no/such".into()))]);
        let failed = start(nowhere, (program(&["true"]), 9), until_readable).unwrap_err();
        assert_eq!(failed, (Some(2), libc::ENOENT));
        let failed = start(Steps(vec![]), (program(&["no-such-program"]), 9), until_readable);
        assert_eq!(failed.unwrap_err(), (Some(9), libc::ENOENT));
    }

    /// A program whose file somebody holds by a lease is not opened before that one lets go.
    #[test]
    fn one_that_is_not_waited_for_any_longer_tells_how_far_it_came() {
        let path = std::env::temp_dir().join(format!("skep-leased-{}", std::process::id()));
        std::fs::copy("/bin/true", &path).unwrap();
        let held = std::fs::File::options().write(true).open(&path).unwrap();
        let control = |command, number: libc::c_int| {
            // SAFETY: both commands take a number, and the descriptor is ours.
            unsafe { libc::fcntl(held.as_raw_fd(), command, number) }
        };
        // The default would end whoever holds it (fcntl(2), F_SETSIG, which libc does not name).
        assert_eq!(control(10, libc::SIGURG), 0);
        assert_eq!(control(libc::F_SETLEASE, libc::F_WRLCK), 0);
        let moment = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
        let a_moment = |verdict: BorrowedFd<'_>, _: &Child| {
            let mut watched = [PollFd::from_borrowed_fd(verdict, PollFlags::IN)];
            match poll(&mut watched, Some(&moment)) {
                Ok(0) => Err(libc::ETIMEDOUT),
                _ => Ok(()),
            }
        };
        let steps = || Steps(vec![(1, Step::Session), (2, Step::Umask(0o077))]);
        let words = [path.to_str().unwrap()];
        let failed = start(steps(), (program(&words), 9), a_moment).unwrap_err();
        assert_eq!(failed, (Some(9), libc::ETIMEDOUT));
        assert_eq!(control(libc::F_SETLEASE, libc::F_UNLCK), 0);
        drop(held);
        let born = start(steps(), (program(&words), 9), a_moment).unwrap();
        assert_eq!(wait_for(&born.child).unwrap(), 0);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn one_that_is_killed_on_its_way_hurts_nobody() {
        for round in 0..200 {
            let text = vec![b'x'; 1 << (round % 16)];
            let killed = |verdict: BorrowedFd<'_>, child: &Child| {
                crate::process::send_signal(&child.pidfd, Signal::KILL).map_err(|_| libc::EIO)?;
                until_readable(verdict, child)
            };
            // One that does not end by itself before the signal comes.
            let words = [&b"sh"[..], b"-c", b"exec sleep 600", &text];
            let words = Program::new(words, [], b"/usr/bin:/bin");
            let steps = Steps(vec![(1, Step::Session), (2, Step::Umask(0))]);
            let born = start(steps, (words, 9), killed).unwrap();
            assert_eq!(wait_for(&born.child).unwrap(), 128 + 9);
            assert!(text.iter().all(|byte| *byte == b'x'));
        }
    }
}
