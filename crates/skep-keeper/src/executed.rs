//! Init as a program: executed by bubblewrap or by an OCI runtime, with the channel as its
//! standard input; or by an engine, which hands nothing on: then init knocks at a door.

use crate::channel::Channel;
use crate::init;
use crate::protocol::FromInit;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::io;
use std::path::Path;

/// The life of an executed init. Returns its exit code.
pub fn run_executed(door: Option<&Path>) -> i32 {
    // Whoever executed us may hand on what is said there. Number 3 may be the channel.
    let said = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 4);
    run(door).unwrap_or_else(|error| {
        if let Ok(said) = said {
            let _ = rustix::io::write(said, format!("init: {error}\n").as_bytes());
        }
        125
    })
}

fn run(door: Option<&Path>) -> io::Result<i32> {
    let channel = take_channel(door)?;
    skep_sys::memory::wipe_environment();
    skep_sys::signal::reset_all();
    // Another kernel may know no such handle, or may not let it out.
    let own = pidfd_open(getpid(), PidfdFlags::empty()).ok();
    let attached: Vec<_> = own.iter().map(AsFd::as_fd).collect();
    if channel.send(&FromInit::Here, &attached).is_err() {
        channel.send(&FromInit::Here, &[])?;
    }
    let spec = init::receive_plan(&channel)?;
    Ok(init::run(&spec, None, channel))
}

/// The channel, moved away from the standard descriptors, which lead nowhere from here on.
fn take_channel(door: Option<&Path>) -> io::Result<Channel> {
    let is_channel = |descriptor: BorrowedFd<'_>| {
        use rustix::net::{SocketType, sockopt::socket_type};
        socket_type(descriptor).is_ok_and(|kind| kind == SocketType::SEQPACKET)
    };
    let input = rustix::stdio::stdin();
    let channel: OwnedFd = match (door, is_channel(input)) {
        (Some(door), _) => knock(door)?,
        (None, true) => rustix::io::fcntl_dupfd_cloexec(input, 4)?,
        (None, false) => skep_sys::process::inherited(3)
            .ok()
            .filter(|inherited| is_channel(inherited.as_fd()))
            .ok_or_else(|| io::Error::other("no channel to a keeper was handed on"))?,
    };
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(Channel::from(channel))
}

/// A new channel to the keeper that waits behind a socket.
fn knock(door: &Path) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(door)?)?;
    // Away from the standard descriptors, which may not be open here.
    Ok(rustix::io::fcntl_dupfd_cloexec(&socket, 4)?)
}
