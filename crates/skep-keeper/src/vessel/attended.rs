//! Init in a container that an engine outside makes.
//!
//! The engine is spoken to by a process of its own, the *attendant* (`skep __docker`): the keeper
//! has no runtime for such talk. It gets its order through a pipe, has the container made, and
//! stays. When the pipe ends, because the keeper has closed it or is gone, the attendant has the
//! container removed and ends. So a killed keeper leaves no container either.
//!
//! Descriptors cannot be handed through an engine. Init knocks instead: it connects to a socket in
//! a directory of the sandbox's, the *door*, which is mounted into the container. The first who
//! knocks is let in, and the door is closed behind it.

use super::Held;
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use crate::protocol::FromInit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use skep_sys::process::{Child, Namespaces, clone_with, execve};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory of the sandbox's in which init knocks.
pub const DOOR: &str = "door";
/// The socket there.
pub const DOOR_SOCKET: &str = "init.sock";

/// Seconds until init has to have knocked: a busy engine takes its time.
const PATIENCE: i64 = 120;

/// What an attendant is told, and by whom init is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attended {
    /// This program.
    pub skep: PathBuf,
    /// Its hidden command that is the attendant.
    pub command: String,
    /// One line, for the attendant.
    pub order: Vec<u8>,
}

/// The socket init connects to; it is gone when this is dropped.
pub struct Door {
    socket: OwnedFd,
    path: PathBuf,
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Door {
    /// Opens it in the sandbox's directory.
    pub fn open(directory: &Path) -> Result<Self, Failure> {
        let place = directory.join(DOOR);
        let step = || format!("open a door in `{}`", place.display());
        let path = place.join(DOOR_SOCKET);
        let _ = std::fs::remove_file(&path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = rustix::fs::open(&place, flags, Mode::empty()).step(step)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .step(step)?;
        // A socket's address holds 107 bytes; through the directory's descriptor any path fits.
        let address = format!("/proc/self/fd/{}/{DOOR_SOCKET}", at.as_raw_fd());
        let address = SocketAddrUnix::new(address).step(step)?;
        rustix::net::bind(&socket, &address).step(step)?;
        if rustix::process::geteuid().is_root() {
            // Whoever is in the container has the directory, and knocks as its owner.
            let owner = rustix::fs::lstat(&place).step(step)?;
            std::os::unix::fs::lchown(&path, Some(owner.st_uid), Some(owner.st_gid)).step(step)?;
        }
        rustix::net::listen(&socket, 1).step(step)?;
        Ok(Self { socket, path })
    }

    /// Waits until init has knocked and said who it is, or the attendant has given up.
    pub fn welcome(&self, held: &mut Held) -> Result<Channel, Failure> {
        let step = || "wait for init to knock".to_owned();
        self.wait_for(self.socket.as_fd(), held)?;
        let accepted = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).step(step)?;
        let channel = Channel::from(accepted);
        self.wait_for(channel.as_fd(), held)?;
        let (message, mut descriptors) = channel.receive::<FromInit>().step(step)?;
        match (message, descriptors.pop()) {
            (FromInit::Here, Some(handle)) => held.found(handle)?,
            (other, _) => return Err(Failure::invalid(format!("init said {other:?} too early"))),
        }
        Ok(channel)
    }

    fn wait_for(&self, socket: rustix::fd::BorrowedFd<'_>, held: &Held) -> Result<(), Failure> {
        let patience = Timespec { tv_sec: PATIENCE, tv_nsec: 0 };
        let mut watched = [
            PollFd::from_borrowed_fd(socket, PollFlags::IN),
            PollFd::new(&held.pidfd, PollFlags::IN),
        ];
        loop {
            match poll(&mut watched, Some(&patience)) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).step(|| "wait for init to knock".into()),
            }
        }
        match (watched[0].revents().is_empty(), watched[1].revents().is_empty()) {
            (false, _) => Ok(()),
            (true, false) => Err(Failure::invalid("the container ended before it was ready")),
            (true, true) => Err(Failure::invalid("init did not knock in time")),
        }
    }
}

/// Starts the attendant. Returns it, and the end of the pipe that it lives by.
pub fn start(attended: &Attended, said: &OwnedFd) -> io::Result<(Child, OwnedFd)> {
    let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // The order is written before anybody reads it.
    if attended.order.len() >= rustix::pipe::fcntl_getpipe_size(&ours)? {
        rustix::pipe::fcntl_setpipe_size(&ours, attended.order.len() + 1)?;
    }
    let child = clone_with(Namespaces::NONE, || {
        let error = execute(attended, &theirs, said).err().unwrap_or_else(io::Error::last_os_error);
        let text = format!("cannot execute `{}`: {error}", attended.skep.display());
        let _ = rustix::io::write(said, text.as_bytes());
        127
    })?;
    let mut rest = attended.order.as_slice();
    while !rest.is_empty() {
        let taken = rustix::io::write(&ours, rest)?;
        rest = &rest[taken..];
    }
    Ok((child, ours))
}

fn execute(attended: &Attended, order: &OwnedFd, said: &OwnedFd) -> io::Result<()> {
    let words = [attended.skep.as_os_str().as_bytes(), attended.command.as_bytes()];
    let words: Vec<CString> =
        words.into_iter().map(CString::new).collect::<Result<_, _>>().map_err(io::Error::other)?;
    rustix::stdio::dup2_stdin(order)?;
    rustix::stdio::dup2_stdout(said)?;
    rustix::stdio::dup2_stderr(said)?;
    // Above all the pipe's other end, whose closing must be seen.
    skep_sys::process::close_all_but(&[])?;
    Err(execve(&words[0], &words, &[]))
}
