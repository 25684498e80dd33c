//! The egress process as its keeper sees it: started, told, listened to, ended.
//!
//! It is this same program, executed anew with the word for it, because what it needs (threads of
//! an async runtime, TLS) must not be in a process that forks. It dies with the keeper.

use super::inside::Doors;
use super::place::Place;
use super::unredirected::Unredirected;
use super::{NOWHERE, config, rules};
use crate::failure::{Failure, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, Signal};
use skep_policy::egress::RuleSet;
use skep_provider::RunSpec;
use skep_sys::network::original_destination;
use skep_sys::process::{Child, Namespaces, clone_with, wait_for};
use skep_types::{
    EGRESS_WORD, EgressConfig, EgressDeath, EgressDescriptors, FromEgress, MAX_EGRESS_MESSAGE,
    ToEgress, egress_message,
};
use std::ffi::CString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long it may take to be ready, or to answer.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long the doors wait for what the probe inside has sent.
const KNOCK_PATIENCE: Duration = Duration::from_secs(5);
/// The log of what was tried, in the sandbox's directory.
pub const AUDIT: &str = "egress.jsonl";
/// What programs inside are told to trust, in the messages directory.
const BUNDLE: &str = "ca.pem";

/// Everything that leads out of one sandbox.
#[derive(Debug)]
pub struct Egress {
    /// Ports of the doors, inside.
    pub doors: Doors,
    /// What it was told; holds the values of secrets.
    pub config: EgressConfig,
    /// Whether programs inside must trust the sandbox's own authority.
    pub opens_tls: bool,
    place: Place,
    sockets: Vec<OwnedFd>,
    /// Where connections cannot be redirected.
    unredirected: Option<Unredirected>,
    diagnosis: Option<OwnedFd>,
    directory: PathBuf,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    control: OwnedFd,
    inbox: Vec<u8>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = skep_sys::process::send_signal(&self.child.pidfd, Signal::KILL);
        let _ = wait_for(&self.child);
    }
}

/// How long it may take to write down what its connections were.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// With the sandbox: told by the end of its socket, so that every connection gets its line in the log; if
/// that takes too long, by a signal.
impl Drop for Egress {
    fn drop(&mut self) {
        if let Some(running) = &self.running
            && rustix::net::shutdown(&running.control, rustix::net::Shutdown::Write).is_ok()
        {
            let deadline = Instant::now() + LAST_PATIENCE;
            let _ = wait_on(running.child.pidfd.as_fd(), PollFlags::IN, deadline);
        }
    }
}

impl Egress {
    /// Leads the sandbox's connections to its doors. The process behind them is started too, but
    /// serves nobody before it is told what it may.
    pub fn prepare(
        spec: &RunSpec,
        doors: Doors,
        place: Place,
        mut sockets: Vec<OwnedFd>,
    ) -> Result<Self, Failure> {
        let diagnosis = sockets.pop();
        let config = config::egress_config(spec)?;
        let literals = host_loopback(&config.rules)?;
        let redirected = rules::load(&place, &rules::ruleset(&doors, &literals));
        let unredirected = match redirected {
            Ok(()) => None,
            Err(why) => Some(Unredirected::open(&place, &doors, &config.rules, &why)?),
        };
        forget_deaths(&spec.directory);
        let (directory, opens_tls) = (spec.directory.clone(), !config.secrets.is_empty());
        let running = None;
        let mut egress = Self {
            doors,
            config,
            opens_tls,
            place,
            sockets,
            unredirected,
            diagnosis,
            directory,
            running,
        };
        egress.launch()?;
        Ok(egress)
    }

    /// Takes in the connections that the probe inside made to nowhere: whether each door it knocked
    /// at heard it, with the address it meant.
    pub fn heard_the_probe(&self) -> bool {
        let [four, six] = NOWHERE;
        let [tcp4, tcp6] = match &self.unredirected {
            None => [self.sockets.first(), self.sockets.get(4)],
            Some(ways) => [ways.sockets().first(), ways.sockets().get(1)],
        };
        let deadline = Instant::now() + KNOCK_PATIENCE;
        let heard = |door: Option<&OwnedFd>, meant: SocketAddr| {
            let Some(door) = door else { return false };
            // The last packet of a handshake may still be on its way on a busy host.
            while wait_on(door.as_fd(), PollFlags::IN, deadline).is_ok() {
                let Ok(connection) = rustix::net::accept(door) else { continue };
                let found = match &self.unredirected {
                    None => original_destination(&connection),
                    Some(ways) => ways.meant(&connection, meant.port()),
                };
                if found.is_ok_and(|found| found == meant) {
                    return true;
                }
            }
            false
        };
        heard(tcp4, four) && (self.doors.tcp6.is_none() || heard(tcp6, six))
    }

    /// Lets the process serve, and waits until it does.
    pub fn start(&mut self) -> Result<(), Failure> {
        self.configure()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.hear().step(|| "hear of the egress process".into())? {
                Some(FromEgress::Ready { ca, key }) => {
                    self.config.authority_key = key;
                    return self.trust(ca.as_deref());
                }
                Some(FromEgress::Refused { message }) => {
                    return Err(Failure::invalid(format!("egress: {message}")));
                }
                Some(_) => {}
                None => self.wait_for_word(deadline)?,
            }
        }
    }

    /// Tells the process what it may; its answer says whether it serves.
    pub fn configure(&self) -> Result<(), Failure> {
        self.tell(&ToEgress::Configure(self.config.clone()))
            .step(|| "tell the egress process what it may".into())
    }

    /// Starts the process, instead of one that may still be there.
    pub fn launch(&mut self) -> Result<(), Failure> {
        let step = || "start the egress process".to_owned();
        self.running = None;
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .step(step)?;
        let flags =
            OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let audit = rustix::fs::open(self.directory.join(AUDIT), flags, Mode::from_raw_mode(0o600))
            .step(step)?;
        let keeper = rustix::process::getpid();
        let child = clone_with(Namespaces::NONE, || {
            let _ = become_egress(&theirs, &audit, (&self.sockets, &self.unredirected), keeper);
            1
        })
        .step(step)?;
        // It is one of several to be waited for.
        rustix::io::ioctl_fionbio(&ours, true).step(step)?;
        self.running = Some(Running { child, control: ours, inbox: Vec::new() });
        Ok(())
    }

    /// Takes what the process has said; `None` when that is no whole message yet.
    pub fn hear(&mut self) -> io::Result<Option<FromEgress>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        loop {
            if let Some((length, rest)) = running.inbox.split_first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if length > MAX_EGRESS_MESSAGE {
                    return Err(io::Error::other("the egress process said too much"));
                }
                if let Some(message) = rest.get(..length) {
                    let message = serde_json::from_slice(message)?;
                    running.inbox.drain(..4 + length);
                    return Ok(Some(message));
                }
            }
            let mut buffer = [0; 8 << 10];
            match rustix::io::read(&running.control, &mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => running.inbox.extend_from_slice(&buffer[..length]),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tells the process something; it will answer.
    pub fn tell(&self, message: &ToEgress) -> io::Result<()> {
        let Some(running) = &self.running else {
            return Err(io::Error::other("the egress process does not run"));
        };
        let bytes = egress_message(message)?;
        let mut rest = &bytes[..];
        let deadline = Instant::now() + PATIENCE;
        while !rest.is_empty() {
            match rustix::net::send(&running.control, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_on(running.control.as_fd(), PollFlags::OUT, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether what other rules name can be led here while the sandbox runs.
    pub fn can_redirect(&self, rules: &[String]) -> Result<(), Failure> {
        match &self.unredirected {
            None => Ok(()),
            Some(ways) => ways.refuse_what_is_new(rules, &self.doors),
        }
    }

    /// Takes other rules for good: loopback literals are led out, or home again.
    pub fn redirect(&self, rules: &[String]) -> Result<(), Failure> {
        match &self.unredirected {
            None => rules::load(&self.place, &rules::changed(&host_loopback(rules)?)),
            Some(ways) => ways.refuse_what_is_new(rules, &self.doors),
        }
    }

    /// How connections are led here where they cannot be redirected.
    pub fn without_redirect(&self) -> Option<String> {
        self.unredirected.as_ref().map(Unredirected::how)
    }

    /// Writes down what programs inside shall trust.
    pub fn trust(&self, own: Option<&str>) -> Result<(), Failure> {
        let Some(own) = own else { return Ok(()) };
        let path = self.directory.join("messages").join(BUNDLE);
        let step = || format!("write `{}`", path.display());
        let temporary = path.with_extension("new");
        std::fs::write(&temporary, config::bundle(&self.config, own)).step(step)?;
        std::fs::set_permissions(&temporary, PermissionsExt::from_mode(0o644)).step(step)?;
        std::fs::rename(&temporary, &path).step(step)
    }

    /// The process's number, while it runs.
    pub fn pid(&self) -> Option<rustix::process::Pid> {
        self.running.as_ref().map(|running| running.child.pid)
    }

    /// Asks the kernel about sockets inside.
    pub fn diagnosis(&self) -> Option<BorrowedFd<'_>> {
        self.diagnosis.as_ref().map(AsFd::as_fd)
    }

    /// Readable when it has said something, or is gone.
    pub fn control(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.control.as_fd())
    }

    /// Ends the process. What knocks at the doors waits.
    pub fn end(&mut self) {
        self.running = None;
    }

    /// Closes the doors for good: what knocks is refused.
    pub fn close(&mut self) {
        self.running = None;
        self.sockets.clear();
        self.unredirected = None;
    }

    fn wait_for_word(&self, deadline: Instant) -> Result<(), Failure> {
        let control = self.control().ok_or_else(|| Failure::invalid("no egress process runs"))?;
        wait_on(control, PollFlags::IN, deadline).step(|| "wait for the egress process".into())
    }
}

/// Of an earlier life of the sandbox.
fn forget_deaths(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(EgressDeath::PREFIX.as_bytes()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn wait_on(descriptor: BorrowedFd<'_>, what: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout =
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut watched = [PollFd::from_borrowed_fd(descriptor, what)];
    match poll(&mut watched, Some(&timeout)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Loopback addresses with a port that a rule names literally.
pub fn host_loopback(rules: &[String]) -> Result<Vec<SocketAddr>, Failure> {
    let rules = RuleSet::parse(rules).map_err(|error| Failure::invalid(error.to_string()))?;
    let literals = rules.literals().map(|(address, port)| SocketAddr::new(address, port));
    let mut literals: Vec<SocketAddr> =
        literals.filter(|address| address.ip().is_loopback()).collect();
    literals.sort_unstable();
    literals.dedup();
    Ok(literals)
}

/// 1. Die with the keeper.
/// 2. No core file may ever hold a secret.
/// 3. Keep the doors, the keeper's socket and the log; nothing else.
/// 4. Become this program again, with an empty environment.
fn become_egress(
    control: &OwnedFd,
    audit: &OwnedFd,
    (doors, ways): (&[OwnedFd], &Option<Unredirected>),
    keeper: rustix::process::Pid,
) -> io::Result<std::convert::Infallible> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(keeper) {
        return Err(io::Error::other("the keeper is gone"));
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    // As many connections as the host lets one process have.
    let files = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: files.maximum, maximum: files.maximum };
    let _ = rustix::process::setrlimit(Resource::Nofile, most);
    let more = ways.as_ref().map_or(&[][..], Unredirected::sockets);
    let device = ways.as_ref().and_then(Unredirected::device);
    let kept = [control, audit].into_iter().chain(doors).chain(more).chain(device);
    let kept: Vec<BorrowedFd<'_>> = kept.map(AsFd::as_fd).collect();
    skep_sys::process::close_all_but(&kept)?;
    for descriptor in &kept {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    }
    skep_sys::signal::reset_all();
    let number = |index: usize| doors.get(index).map(AsRawFd::as_raw_fd);
    let numbers = |indices: [usize; 2]| indices.into_iter().filter_map(number).collect();
    let descriptors = EgressDescriptors {
        control: control.as_raw_fd(),
        audit: audit.as_raw_fd(),
        tcp: [0, 4]
            .into_iter()
            .filter_map(number)
            .chain(more.iter().map(AsRawFd::as_raw_fd))
            .collect(),
        proxy: number(1).into_iter().collect(),
        dns_udp: numbers([2, 5]),
        dns_tcp: numbers([3, 6]),
        tun: device.map(AsRawFd::as_raw_fd).into_iter().collect(),
    };
    let mut words = vec!["skep".to_owned(), EGRESS_WORD.to_owned()];
    words.extend(descriptors.arguments());
    let words: Vec<CString> = words.into_iter().map(CString::new).collect::<Result<_, _>>()?;
    let program = CString::new(Path::new("/proc/self/exe").as_os_str().as_encoded_bytes())?;
    Err(skep_sys::process::execve(&program, &words, &[]))
}
