//! The egress process: what it inherits, and what it gives up before it reads a byte.

use crate::audit::Clock;
use crate::serve::{Sockets, run};
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::thread::{Gid, Uid};
use skep_types::{DescriptorError, EgressDescriptors};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use tokio::net::{TcpListener, UdpSocket, UnixStream};

/// Whom a process of root becomes: it needs no right of root's.
const NOBODY: u32 = 65534;

/// Where certificate authorities of a host lie, and the kernel's random numbers, which a statically
/// linked program may ask for by file: the only files that may be read.
const READABLE: [&str; 10] = [
    "/dev/random",
    "/dev/urandom",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/lib/ssl",
    "/usr/share/pki",
];

/// Why it cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The command line.
    #[error(transparent)]
    Arguments(#[from] DescriptorError),
    /// A descriptor.
    #[error("cannot take over descriptor {number}: {source}")]
    Descriptor {
        /// Which.
        number: i32,
        /// Why.
        source: io::Error,
    },
    /// Something to give up.
    #[error("cannot {step}: {source}")]
    Confine {
        /// What.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The runtime, or the conversation with the keeper.
    #[error("cannot serve: {0}")]
    Serve(#[from] io::Error),
}

/// Runs the process with the arguments after [`skep_types::EGRESS_WORD`]. It has to be called
/// first thing in `main`, with one thread.
pub fn main(words: &[String], clock: Clock) -> Result<(), ProcessError> {
    let numbers = EgressDescriptors::parse(words)?;
    let descriptors = Descriptors::take(&numbers)?;
    confine()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (sockets, control) = descriptors.open(clock)?;
        Ok(run(sockets, control).await?)
    })
}

struct Descriptors {
    control: OwnedFd,
    audit: OwnedFd,
    tcp: Vec<OwnedFd>,
    dns_udp: Vec<OwnedFd>,
    dns_tcp: Vec<OwnedFd>,
    proxy: Vec<OwnedFd>,
    tun: Vec<OwnedFd>,
}

impl Descriptors {
    fn take(numbers: &EgressDescriptors) -> Result<Self, ProcessError> {
        let one = |number: i32| {
            skep_sys::process::inherited(number)
                .map_err(|source| ProcessError::Descriptor { number, source })
        };
        let all = |numbers: &[i32]| -> Result<Vec<OwnedFd>, ProcessError> {
            numbers.iter().copied().map(one).collect()
        };
        let taken = Self {
            control: one(numbers.control)?,
            audit: one(numbers.audit)?,
            tcp: all(&numbers.tcp)?,
            dns_udp: all(&numbers.dns_udp)?,
            dns_tcp: all(&numbers.dns_tcp)?,
            proxy: all(&numbers.proxy)?,
            tun: all(&numbers.tun)?,
        };
        let lists = [&taken.tcp, &taken.dns_udp, &taken.dns_tcp, &taken.proxy, &taken.tun];
        let keep: Vec<_> = [&taken.control, &taken.audit]
            .into_iter()
            .chain(lists.into_iter().flatten())
            .map(|descriptor| descriptor.as_fd())
            .collect();
        let step = "close what else it inherited";
        skep_sys::process::close_all_but(&keep)
            .map_err(|source| ProcessError::Confine { step, source })?;
        Ok(taken)
    }

    fn open(self, clock: Clock) -> io::Result<(Sockets, UnixStream)> {
        let listeners = |list: Vec<OwnedFd>| -> io::Result<Vec<TcpListener>> {
            list.into_iter()
                .map(|descriptor| {
                    let listener = std::net::TcpListener::from(descriptor);
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                })
                .collect()
        };
        let udp = |descriptor: OwnedFd| {
            let socket = std::net::UdpSocket::from(descriptor);
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket)
        };
        let control = std::os::unix::net::UnixStream::from(self.control);
        control.set_nonblocking(true)?;
        let sockets = Sockets {
            tcp: listeners(self.tcp)?,
            dns_udp: self.dns_udp.into_iter().map(udp).collect::<io::Result<_>>()?,
            dns_tcp: listeners(self.dns_tcp)?,
            proxy: listeners(self.proxy)?,
            tun: self.tun.into_iter().next(),
            audit: File::from(self.audit),
            // Where nothing is redirected, we listen at the very address that was meant.
            destination: Arc::new(|stream| {
                skep_sys::network::original_destination(stream).or_else(|_| stream.local_addr())
            }),
            clock,
        };
        Ok((sockets, UnixStream::from_std(control)?))
    }
}

/// Gives up what is not needed. In this order:
///
/// 1. As many open files as the host lets it have, and no core dumps.
/// 2. Root, while the ids can still be changed.
/// 3. Not dumpable: changing ids would have set it back. Other processes of the user can neither
///    trace it nor read its memory, where secrets are.
/// 4. Dying with the keeper: changing ids clears that too. The end of the control socket says
///    the same, should the keeper have died before this line.
/// 5. No new privileges, and no files but the certificate authorities of the host.
fn confine() -> Result<(), ProcessError> {
    let failed = |step: &'static str| {
        move |error: rustix::io::Errno| ProcessError::Confine { step, source: error.into() }
    };
    let files = getrlimit(Resource::Nofile);
    let most = Rlimit { current: files.maximum, maximum: files.maximum };
    // Fewer files mean fewer connections, and that is counted with.
    let _ = setrlimit(Resource::Nofile, most);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(failed("switch core dumps off"))?;
    if rustix::process::geteuid().is_root() && is_real_root() {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[]).map_err(failed("leave root's groups"))?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed("leave root's group"))?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed("stop being root"))?;
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(failed("hide its memory"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(failed("ask to die with the keeper"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("give up new privileges"))?;
    fence().map_err(|error| ProcessError::Confine {
        step: "put up its fence",
        source: io::Error::other(error),
    })
}

/// Whether ids are those of the host; in a user namespace root is somebody else outside.
fn is_real_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Landlock where the kernel has it: no file can be opened for writing or run, and only
/// certificate authorities and random numbers can be read. A kernel without it is no reason to serve nobody.
fn fence() -> Result<(), landlock::RulesetError> {
    let all = AccessFs::from_all(ABI::V3);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .create()?;
    for path in READABLE {
        let Ok(opened) = PathFd::new(path) else { continue };
        let is_file = !std::path::Path::new(path).is_dir();
        let access = if is_file { AccessFs::ReadFile.into() } else { read };
        rules = rules.add_rule(PathBeneath::new(opened, access))?;
    }
    rules.restrict_self().map(|_| ())
}
