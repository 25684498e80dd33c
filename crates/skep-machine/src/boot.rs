//! From a view that stands to a guest that answers.
//!
//! 1. The share daemon, with the powers of this user namespace over this user's files, and none
//!    beyond it.
//! 2. QEMU, with no powers at all: fenced as a command of the sandbox would be.
//! 3. The switchboard, likewise.
//! 4. The guest's first words. They hold the configuration it was booted with and a nonce that it
//!    could only have read through the share; anything else is not our machine.

use crate::console::Console;
use crate::qemu::Place;
use crate::switchboard::{self, Announcement, Answer, Instruction};
use crate::{Accelerator, At, MachineError, MachineSpec, guest, qemu, share, wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use skep_sys::process::{Child, Namespaces, clone_with, exit_now};
use skep_sys::program::Program;
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Files of the host that are opened before the view takes the host's tree away.
#[derive(Debug)]
pub struct MachineFiles {
    kernel: File,
    initramfs: File,
    console: Console,
}

impl MachineFiles {
    /// Opens them.
    pub fn open(machine: &MachineSpec) -> Result<Self, MachineError> {
        let read = |path: &Path| readable(path).at(|| format!("read `{}`", path.display()));
        let console = Console::open(&machine.console)?;
        Ok(Self { kernel: read(&machine.kernel)?, initramfs: read(&machine.initramfs)?, console })
    }

    /// Their descriptors, to be kept open.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let files = [self.kernel.as_fd(), self.initramfs.as_fd()];
        files.into_iter().chain(self.console.descriptors()).collect()
    }
}

/// QEMU opens it once more, as a user who owns nothing of the host: what only its owner may read
/// is copied into memory.
fn readable(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::PermissionsExt;
    let mut file = File::open(path)?;
    if file.metadata()?.permissions().mode() & 0o004 != 0 {
        return Ok(file);
    }
    let copy = rustix::fs::memfd_create("skep", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut copy = File::from(copy);
    io::copy(&mut file, &mut copy)?;
    copy.rewind()?;
    Ok(copy)
}

/// A machine that is up, held by the sandbox's init.
#[derive(Debug)]
pub struct Machine {
    control: OwnedFd,
    qemu: Child,
    parts: Vec<Child>,
    /// Of the last question.
    number: Cell<u64>,
    /// What the guest said of itself.
    pub ready: wire::Ready,
}

/// How long a guest may take to come up.
fn patience(accelerator: Accelerator) -> Duration {
    match accelerator {
        Accelerator::Kvm => Duration::from_secs(30),
        // A busy host may be twenty times slower than an idle one.
        Accelerator::Emulation => Duration::from_secs(180),
    }
}

/// How long what a machine said last may take to be kept, when it did not come up.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long it may take to stand still with everything written back.
const FREEZE_PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take to take in rules: a program is started in it.
const RULES_PATIENCE: Duration = Duration::from_secs(90);

/// Boots `machine` in the view of the caller, who is number 1 of its pid namespace and has all
/// capabilities in its user namespace. `fence` is called in the children that need none.
pub fn boot(
    machine: &MachineSpec,
    files: &MachineFiles,
    place: &Place<'_>,
    nonce: &str,
    fence: &dyn Fn() -> io::Result<()>,
) -> Result<Machine, MachineError> {
    let nonce_file = Path::new("/").join(guest::NONCE);
    // A failpoint stands for a share that is not this view: another tree, or an empty one.
    let written = skep_sys::failpoint::hit("machine.nonce").map_or("another", |()| nonce);
    std::fs::write(&nonce_file, written).at(|| "put the nonce into the view".into())?;
    let (listener, connection) = share::sockets().at(|| "make the share's socket".into())?;
    let daemon = start_share(machine, files, place, &listener)?;
    drop(listener);
    let (ours, theirs) = socket_pair(SocketType::STREAM).at(|| "make the serial line".into())?;
    let qemu = start_qemu(machine, files, place, &theirs, &connection, fence)?;
    drop((theirs, connection));
    let (control, other) = socket_pair(SocketType::SEQPACKET).at(|| "make a channel".into())?;
    let board = clone_with(Namespaces::NONE, || {
        let console = &files.console;
        let mut kept = vec![ours.as_fd(), other.as_fd()];
        kept.extend(console.descriptors());
        let ready = fence().and_then(|()| skep_sys::process::close_all_but(&kept));
        match ready.and_then(|()| console.keeper()) {
            Ok(console) => switchboard::run(reopen(&ours), reopen(&other), Some(console)),
            Err(_) => 1,
        }
    })
    .at(|| "start the switchboard".into())?;
    let parts = [(&qemu, "QEMU has ended"), (&daemon, "the share daemon has ended")];
    let seen = rustix::fs::lstat(place.project).at(|| "look at the workspace".into())?;
    let shared = Shared { nonce, project: seen.st_ino };
    let ready = first_words(machine, files, (&control, &board), parts, &shared);
    let _ = std::fs::remove_file(&nonce_file);
    let machine =
        Machine { control, qemu, parts: vec![daemon, board], number: Cell::new(0), ready: ready? };
    Ok(machine)
}

impl Machine {
    /// A line for a new exec: the relay's end.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = socket_pair(SocketType::STREAM)?;
        switchboard::instruct(&self.control, &Instruction::Connect, &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// Every process in the guest stands still, and what they wrote has arrived.
    pub fn freeze(&self) -> io::Result<()> {
        match self.ask(Instruction::Freeze, FREEZE_PATIENCE)? {
            Some(Answer::Frozen) => Ok(()),
            Some(_) => Err(unexpected()),
            None => {
                // It may still obey, when nobody waits for it any more.
                self.thaw()?;
                Err(io::Error::new(io::ErrorKind::TimedOut, "the guest does not stand still"))
            }
        }
    }

    /// Gives the guest its network, and says what became of it.
    pub fn connect_network(&self, network: wire::Network) -> io::Result<wire::Networked> {
        let question = |number| Instruction::Network(number, Box::new(network));
        match self.ask(question, RULES_PATIENCE)? {
            Some(Answer::Networked(networked)) => Ok(networked),
            Some(_) => Err(unexpected()),
            None => Err(no_answer()),
        }
    }

    /// Has the guest take in other rules.
    pub fn rule(&self, rules: String) -> io::Result<()> {
        match self.ask(|number| Instruction::Rules(number, rules), RULES_PATIENCE)? {
            Some(Answer::Ruled(None)) => Ok(()),
            Some(Answer::Ruled(Some(reason))) => Err(io::Error::other(reason)),
            Some(_) => Err(unexpected()),
            None => Err(no_answer()),
        }
    }

    /// Asks, and waits for the answer to this very question: one to a question that was given up on may
    /// still come. `None` if there is none in time.
    fn ask(
        &self,
        question: impl FnOnce(u64) -> Instruction,
        patience: Duration,
    ) -> io::Result<Option<Answer>> {
        let number = self.number.get() + 1;
        self.number.set(number);
        switchboard::instruct(&self.control, &question(number), &[])?;
        answer_to(&self.control, number, Instant::now() + patience)
    }

    /// They go on.
    pub fn thaw(&self) -> io::Result<()> {
        switchboard::instruct(&self.control, &Instruction::Thaw, &[])
    }

    /// Whether this process is one the machine cannot be without.
    pub fn needs(&self, pid: i32) -> bool {
        let all = self.parts.iter().chain([&self.qemu]);
        all.into_iter().any(|child| child.pid.as_raw_pid() == pid)
    }

    /// Whether one of these has ended, or does so in that time.
    pub fn ends_within(&self, patience: Duration) -> bool {
        let vital = self.vital();
        let mut watched: Vec<_> =
            vital.into_iter().map(|part| PollFd::from_borrowed_fd(part, PollFlags::IN)).collect();
        poll(&mut watched, Some(&timespec(patience))).is_ok_and(|ended| ended > 0)
    }

    /// QEMU.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.qemu.pidfd.as_fd()
    }

    /// The processes it cannot be without, readable when they have ended.
    pub fn vital(&self) -> Vec<BorrowedFd<'_>> {
        self.parts.iter().chain([&self.qemu]).map(|child| child.pidfd.as_fd()).collect()
    }
}

fn socket_pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// A fork has a copy of every descriptor of ours, which are values of the parent.
fn reopen(fd: &OwnedFd) -> OwnedFd {
    loop {
        if let Ok(copy) = fd.try_clone() {
            return copy;
        }
    }
}

fn start_share(
    machine: &MachineSpec,
    files: &MachineFiles,
    place: &Place<'_>,
    listener: &OwnedFd,
) -> Result<Child, MachineError> {
    let prepare = || {
        share::make_tree(place.image)?;
        // A failpoint stands for a share in which the workspace was not mounted.
        if skep_sys::failpoint::hit("machine.share").is_err() {
            share::empty(place.project)?;
        }
        share::keep_groups()
    };
    let arguments = qemu::share_arguments();
    let daemon =
        Start { program: &machine.share_daemon, own: Namespaces::MOUNT, prepare: &prepare };
    daemon.with(&arguments, files, &[listener])
}

/// Makes the powers of init, which reach no further than its user namespace, those of the share
/// daemon: a program keeps them over an exec only if they are ambient. To be called before the
/// bounding set is emptied; everything else that init starts gives them up.
pub fn keep_capabilities() -> io::Result<()> {
    use rustix::thread::{
        CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities,
    };
    let own = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: own.permitted, ..own })?;
    for capability in own.permitted.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

fn start_qemu(
    machine: &MachineSpec,
    files: &MachineFiles,
    place: &Place<'_>,
    serial: &OwnedFd,
    share: &OwnedFd,
    fence: &dyn Fn() -> io::Result<()>,
) -> Result<Child, MachineError> {
    // Through descriptors: the host's tree is not there any more.
    let inside = MachineSpec {
        kernel: "/proc/self/fd/5".into(),
        initramfs: "/proc/self/fd/6".into(),
        ..machine.clone()
    };
    let mut arguments = qemu::arguments(&inside, place);
    // The configuration is that of the machine as asked for.
    if let Some(line) = arguments.last_mut() {
        let (given, wanted) = (qemu::configuration(&inside), qemu::configuration(machine));
        *line = line.to_string_lossy().replace(&given, &wanted).into();
    }
    let (kernel, initramfs) = (files.kernel.as_fd(), files.initramfs.as_fd());
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().at(|| "copy a descriptor".into());
    let (kernel, initramfs) = (copy(kernel)?, copy(initramfs)?);
    let qemu = Start { program: &machine.qemu, own: Namespaces::NONE, prepare: fence };
    qemu.with(&arguments, files, &[serial, share, &kernel, &initramfs])
}

/// A program that is part of the machine.
struct Start<'a> {
    program: &'a Path,
    /// Namespaces that it has for itself.
    own: Namespaces,
    /// What is done in its process before it runs.
    prepare: &'a dyn Fn() -> io::Result<()>,
}

impl Start<'_> {
    /// Starts it with `descriptors` from 3 on, its output in the console's file.
    fn with(
        &self,
        arguments: &[OsString],
        files: &MachineFiles,
        descriptors: &[&OwnedFd],
    ) -> Result<Child, MachineError> {
        let Self { program, own, prepare } = self;
        let step = || format!("start `{}`", program.display());
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .at(step)?;
        let words = [program.as_os_str()].into_iter().chain(arguments.iter().map(AsRef::as_ref));
        // Left to itself glibc asks, once it has several heaps for threads, how many processors there are; the share
        // daemon's own filter of system calls kills it for that (seen with Debian's 7.2).
        let heaps = ("MALLOC_ARENA_MAX", b"4".as_slice());
        let environment = [("PATH", b"/usr/bin:/bin".as_slice()), ("TMPDIR", b"/tmp"), heaps];
        let program = Program::new(words.map(OsStrExt::as_bytes), environment, b"");
        clone_with(*own, || {
            let console = files.console.entrance();
            let placed = put(descriptors, null.as_fd(), console);
            match placed.and_then(|()| prepare()) {
                Ok(()) => program.run(),
                // The console is where the reason of a machine that did not come up is looked for.
                Err(error) => {
                    let line = format!("skep: cannot start a part of the machine: {error}\n");
                    rustix::io::write(console, line.as_bytes()).map_or(1, |_| 1)
                }
            };
            exit_now(127)
        })
        .at(step)
    }
}

/// Puts descriptors where the program expects them. First out of the way of each other.
fn put(descriptors: &[&OwnedFd], null: BorrowedFd<'_>, console: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    skep_sys::signal::reset_all();
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(console)?;
    rustix::stdio::dup2_stderr(console)?;
    skep_sys::process::place_from(3, descriptors)
}

fn first_words(
    machine: &MachineSpec,
    files: &MachineFiles,
    (control, board): (&OwnedFd, &Child),
    parts: [(&Child, &str); 2],
    shared: &Shared<'_>,
) -> Result<wire::Ready, MachineError> {
    let not_up = |reason: &str| {
        // It keeps what was said last, then it ends, if the machine has.
        let _ = speaks(board.pidfd.as_fd(), LAST_WORDS);
        MachineError::NotUp(format!("{reason}{}", last_lines(files)))
    };
    let deadline = Instant::now() + patience(machine.accelerator);
    let [first, second] = parts.map(|(part, _)| PollFd::new(&part.pidfd, PollFlags::IN));
    let mut watched = [PollFd::new(control, PollFlags::IN), first, second];
    let left = deadline.saturating_duration_since(Instant::now());
    let ready = poll(&mut watched, Some(&timespec(left))).at(|| "wait for the guest".into())?;
    if ready == 0 {
        return Err(not_up("the guest said nothing in time"));
    }
    if watched[0].revents().is_empty() {
        let ended = parts.iter().zip(&watched[1..]).find(|(_, poll)| !poll.revents().is_empty());
        return Err(not_up(ended.map_or("it has ended", |((_, what), _)| what)));
    }
    let ready = match switchboard::hear(control) {
        Ok(Announcement::Up(ready)) => ready,
        Ok(_) | Err(_) => return Err(not_up("the guest was lost")),
    };
    if let Some(failure) = &ready.failure {
        return Err(not_up(failure));
    }
    match is_asked_for(&ready, machine, shared) {
        true => Ok(ready),
        false => Err(not_up("another machine answered than the one that was asked for")),
    }
}

/// What a guest that sees this view has seen.
struct Shared<'a> {
    nonce: &'a str,
    /// The inode of the workspace's root.
    project: u64,
}

/// Whether a guest was booted with this configuration, and sees this view with the workspace in it.
fn is_asked_for(ready: &wire::Ready, machine: &MachineSpec, shared: &Shared<'_>) -> bool {
    ready.configuration == qemu::configuration(machine)
        && ready.nonce == shared.nonce
        && ready.project == shared.project
}

fn answer_to(control: &OwnedFd, number: u64, deadline: Instant) -> io::Result<Option<Answer>> {
    while speaks(control.as_fd(), deadline.saturating_duration_since(Instant::now()))? {
        match switchboard::hear(control)? {
            Announcement::Answer(to, answer) if to == number => return Ok(Some(answer)),
            Announcement::Answer(..) | Announcement::Up(_) => {}
        }
    }
    Ok(None)
}

fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the guest does not answer")
}

fn unexpected() -> io::Error {
    io::Error::other("the guest says something else than it was asked")
}

fn speaks(fd: BorrowedFd<'_>, patience: Duration) -> io::Result<bool> {
    let mut watched = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(poll(&mut watched, Some(&timespec(patience)))? > 0)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

/// What the console said last, for a message.
fn last_lines(files: &MachineFiles) -> String {
    let text = files.console.last().unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" / ");
    if !last.is_empty() {
        return format!(" (console: {last})");
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest behind a switchboard of its own thread: what it says is written to the returned end.
    fn board() -> (OwnedFd, OwnedFd) {
        let (serial, guest) = socket_pair(SocketType::STREAM).unwrap();
        let (control, other) = socket_pair(SocketType::SEQPACKET).unwrap();
        std::thread::spawn(move || switchboard::run(serial, other, None));
        (control, guest)
    }

    fn says(guest: &OwnedFd, numbers: &[u64]) {
        let mut bytes = Vec::new();
        for number in numbers {
            wire::push_json(&mut bytes, 0, wire::Kind::Frozen, number);
        }
        rustix::io::write(guest, &bytes).unwrap();
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Waits until the guest was asked this.
    fn hears(guest: &OwnedFd, wanted: u64) {
        let mut inbox = wire::Inbox::default();
        loop {
            let mut buffer = [0; 256];
            let length = rustix::io::read(guest, &mut buffer).unwrap();
            inbox.push(&buffer[..length]);
            while let Some(frame) = inbox.take().unwrap() {
                if serde_json::from_slice::<u64>(frame.payload).unwrap() == wanted {
                    return;
                }
            }
        }
    }

    #[test]
    fn clean_8_only_the_machine_that_was_asked_for_is_taken() {
        let machine = MachineSpec {
            qemu: "/qemu".into(),
            version: "QEMU 7".into(),
            share_daemon: "/virtiofsd".into(),
            kernel: "/vmlinuz".into(),
            initramfs: "/a.cpio".into(),
            image: None,
            accelerator: Accelerator::Emulation,
            memory_mib: 512,
            processors: 2,
            console: "/console.log".into(),
        };
        let said = |configuration: String, nonce: &str| wire::Ready {
            configuration,
            nonce: nonce.into(),
            project: 7,
            boot_id: "b".into(),
            kernel: "6.1".into(),
            failure: None,
        };
        let own = qemu::configuration(&machine);
        let shared = Shared { nonce: "n", project: 7 };
        assert!(is_asked_for(&said(own.clone(), "n"), &machine, &shared));
        for other in ["", "another"] {
            assert!(!is_asked_for(&said(own.clone(), other), &machine, &shared));
            assert!(!is_asked_for(&said(other.into(), "n"), &machine, &shared));
        }
        let elsewhere = Shared { project: 8, ..shared };
        assert!(!is_asked_for(&said(own.clone(), "n"), &machine, &elsewhere));
        let image = MachineSpec { image: Some("/images/rootfs/x/root".into()), ..machine.clone() };
        assert!(!is_asked_for(&said(own, "n"), &image, &shared));
    }

    #[test]
    fn an_answer_that_came_too_late_is_not_one_to_the_next_question() {
        let (control, guest) = board();
        let freeze = |number| {
            switchboard::instruct(&control, &Instruction::Freeze(number), &[]).unwrap();
            hears(&guest, number);
        };
        // Given up on; what was said to it is in the channel when the next is asked.
        freeze(1);
        says(&guest, &[1]);
        assert!(speaks(control.as_fd(), Duration::from_secs(20)).unwrap());
        freeze(2);
        let none = answer_to(&control, 2, Instant::now() + Duration::from_millis(50)).unwrap();
        assert_eq!(none, None);
        // What nobody has asked is not passed on, however often it is said.
        says(&guest, &[1, 3, 4, 1, 2]);
        assert_eq!(answer_to(&control, 2, soon()).unwrap(), Some(Answer::Frozen));
        says(&guest, &[2, 3]);
        freeze(3);
        assert!(!speaks(control.as_fd(), Duration::ZERO).unwrap());
        says(&guest, &[3]);
        assert_eq!(answer_to(&control, 3, soon()).unwrap(), Some(Answer::Frozen));
    }
}
