//! Talking to a keeper.

use crate::failure::Failure;
use crate::launch::socket_address;
use crate::protocol::{
    FrameKind, Operation, RecordOrder, Reply, Request, VERSION, parse_frame, push_frame, to_json,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use skep_provider::{Attach, DirectExec, EgressProbe, ExecStream, ProviderError, StreamEvent};
use skep_sys::message::send_with;
use skep_types::{SandboxId, TerminalSize};
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often it is looked whether a keeper that has not answered still can.
const NOW_AND_THEN: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// What is taken from the keeper in one go.
const PIECE: usize = 64 << 10;

/// A connection to the keeper of one sandbox.
#[derive(Debug)]
pub struct Client {
    id: SandboxId,
    socket: OwnedFd,
    inbox: Vec<u8>,
    /// The keeper was told with the order that there is no input.
    no_input: bool,
    /// Whether the keeper said that it ends with the command.
    over: Rc<Cell<bool>>,
}

impl Client {
    /// Connects; [`ProviderError::NotRunning`] if nobody listens.
    pub fn connect(id: &SandboxId, directory: &Path) -> Result<Self, ProviderError> {
        let socket = connect(directory).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ECONNREFUSED) => ProviderError::NotRunning(id.clone()),
            _ => ProviderError::Keeper { operation: "reach", id: id.clone(), source: error },
        })?;
        Ok(Self::by(id, socket))
    }

    /// By a connection that is there.
    pub fn by(id: &SandboxId, socket: OwnedFd) -> Self {
        let (inbox, over) = (Vec::new(), Rc::default());
        Self { id: id.clone(), socket, inbox, no_input: false, over }
    }

    /// Becomes true when the keeper says that it ends with its command.
    pub fn over(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.over)
    }

    /// The process that holds the sandbox: who listens at the other end.
    pub fn keeper_pid(&self) -> Option<i32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket).ok()?;
        Some(peer.pid.as_raw_nonzero().get())
    }

    /// Asks and waits for the answer.
    pub fn ask(
        &mut self,
        what: &'static str,
        operation: Operation,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply, ProviderError> {
        let failed = |id: &SandboxId| {
            let id = id.clone();
            move |source| ProviderError::Keeper { operation: what, id, source }
        };
        // A keeper that ends hangs up without having read what was said last: then nothing has happened.
        let unheard = |id: &SandboxId| {
            let (gone, failed) = (ProviderError::NotRunning(id.clone()), failed(id));
            move |error: io::Error| match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => gone,
                _ => failed(error),
            }
        };
        let request = to_json(&Request { version: VERSION, operation });
        self.send(FrameKind::Request, &request, descriptors).map_err(unheard(&self.id))?;
        let answer = loop {
            match self.take().map_err(failed(&self.id))? {
                Some((FrameKind::Reply, payload)) => break payload,
                Some(_) => {}
                None => {
                    self.await_answer().map_err(failed(&self.id))?;
                    self.fill(Wait::Yes).map_err(unheard(&self.id))?;
                }
            }
        };
        let answer: Result<Reply, Failure> =
            serde_json::from_slice(&answer).map_err(|error| failed(&self.id)(error.into()))?;
        match answer? {
            Reply::OtherVersion(theirs) => {
                Err(ProviderError::Version { id: self.id.clone(), theirs, ours: VERSION })
            }
            reply => Ok(reply),
        }
    }

    /// Asks for a command that the keeper writes down itself; whether it did. `false` means that
    /// nothing has happened. An error may mean anything: it must not be asked for again.
    pub fn ask_directly(&mut self, order: &DirectExec<'_>) -> Result<bool, ProviderError> {
        let operation = Operation::Record(Box::new(RecordOrder {
            name: order.name.clone(),
            exec: order.exec.clone(),
            begun: order.begun.clone(),
            attach: order.attach != Attach::No,
            no_input: order.no_input,
        }));
        self.no_input = order.no_input;
        match self.ask("run a command in", operation, &[]) {
            Ok(Reply::AskTheStore)
            | Err(ProviderError::Version { .. } | ProviderError::NotRunning(_)) => Ok(false),
            Ok(_) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Has it tried from inside whether hosts can be reached.
    pub fn knock(&mut self, targets: &[(String, u16)]) -> Result<Vec<EgressProbe>, ProviderError> {
        let failed = |source| ProviderError::Keeper {
            operation: "knock at hosts from",
            id: self.id.clone(),
            source,
        };
        let (answer, findings) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let operation = Operation::Knock { targets: targets.to_vec() };
        self.ask("knock at hosts from", operation, &[findings.as_fd()])?;
        drop(findings);
        let failed = |source| ProviderError::Keeper {
            operation: "knock at hosts from",
            id: self.id.clone(),
            source,
        };
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(answer), &mut bytes).map_err(failed)?;
        serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))
    }

    /// Waits until the keeper has closed the connection: after `Stop`, that it is gone.
    pub fn wait_for_end(&mut self) {
        while self.fill(Wait::Yes).is_ok() {
            self.inbox.clear();
        }
    }

    /// The same, for as long as the keeper lives and patience lasts; whether it was worth it.
    pub fn wait_for_end_of(&mut self, keeper: &OwnedFd, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut watched =
                [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(keeper, PollFlags::IN)];
            match poll(&mut watched, Some(&timeout)) {
                Ok(0) => return false,
                Ok(_) if watched[0].revents().is_empty() => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
            match self.fill(Wait::No) {
                Ok(()) => self.inbox.clear(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return true,
            }
        }
    }

    /// Waits until something comes. A keeper that somebody has stopped will say nothing more; what it
    /// was asked may take its time otherwise.
    fn await_answer(&self) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&NOW_AND_THEN)) {
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if let Some(pid) = self.keeper_pid().filter(|pid| is_stopped(*pid)) {
                let message = format!(
                    "it was stopped by a signal; `kill -CONT {pid}` lets it go on, `skep stop` ends it"
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        }
    }

    /// Sends without waiting for an answer.
    pub fn tell(&mut self, operation: Operation) -> io::Result<()> {
        let request = to_json(&Request { version: VERSION, operation });
        self.send(FrameKind::Request, &request, &[])
    }

    fn send(
        &mut self,
        kind: FrameKind,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut frame = Vec::with_capacity(payload.len() + 5);
        push_frame(&mut frame, kind, payload);
        let mut sent = send_with(&self.socket, &frame, descriptors)?;
        while sent < frame.len() {
            sent += send_with(&self.socket, &frame[sent..], &[])?;
        }
        Ok(())
    }

    fn take(&mut self) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
        let parsed = parse_frame(&self.inbox).map_err(io::Error::other)?;
        let Some((kind, payload, used)) = parsed else { return Ok(None) };
        let frame = (kind, payload.to_vec());
        self.inbox.drain(..used);
        Ok(Some(frame))
    }

    /// Takes what has arrived; the end of the connection is `UnexpectedEof`.
    fn fill(&mut self, wait: Wait) -> io::Result<()> {
        self.inbox.reserve(PIECE);
        let flags = match wait {
            Wait::Yes => RecvFlags::empty(),
            Wait::No => RecvFlags::DONTWAIT,
        };
        let space = rustix::buffer::spare_capacity(&mut self.inbox);
        match rustix::net::recv(&self.socket, space, flags) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a process stands because of a signal.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().next());
    state == Some("T")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Yes,
    No,
}

fn connect(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::connect(&socket, &socket_address(&directory)?)?;
    Ok(socket)
}

/// A connection that has become an exec's terminal.
impl ExecStream for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        AsFd::as_fd(&self.socket)
    }

    fn next(&mut self) -> io::Result<Option<StreamEvent>> {
        loop {
            if let Some((kind, payload)) = self.take()? {
                return Ok(Some(match kind {
                    FrameKind::Stdout => StreamEvent::Stdout(payload),
                    FrameKind::Stderr => StreamEvent::Stderr(payload),
                    FrameKind::End => StreamEvent::Ended(serde_json::from_slice(&payload)?),
                    FrameKind::LastEnd => {
                        self.over.set(true);
                        StreamEvent::Ended(serde_json::from_slice(&payload)?)
                    }
                    _ => continue,
                }));
            }
            match self.fill(Wait::No) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn stdin(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send(FrameKind::Stdin, bytes, &[])
    }

    fn close_stdin(&mut self) -> io::Result<()> {
        match self.no_input {
            true => Ok(()),
            false => self.send(FrameKind::StdinEnd, &[], &[]),
        }
    }

    fn resize(&mut self, size: TerminalSize) -> io::Result<()> {
        self.send(FrameKind::Resize, &to_json(&size), &[])
    }

    fn signal(&mut self, signal: i32) -> io::Result<()> {
        self.send(FrameKind::Signal, &to_json(&signal), &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn client(end: UnixStream) -> Client {
        Client::by(&SandboxId::from_random([7; 10]), end.into())
    }

    /// A keeper that ends hangs up on whoever has just come, and has started nothing for them.
    #[test]
    fn who_is_hung_up_on_unheard_may_ask_elsewhere() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let gone = client(ours).ask("stop", Operation::Stop, &[]);
        assert!(matches!(gone, Err(ProviderError::NotRunning(_))), "{gone:?}");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let keeper = std::thread::spawn(move || {
            let mut watched = [PollFd::new(&theirs, PollFlags::IN)];
            poll(&mut watched, None).unwrap();
        });
        let gone = client(ours).ask("stop", Operation::Stop, &[]);
        keeper.join().unwrap();
        assert!(matches!(gone, Err(ProviderError::NotRunning(_))), "{gone:?}");
        // One that has read it may have done it.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let keeper = std::thread::spawn(move || {
            std::io::Read::read(&mut &theirs, &mut [0; 4096]).unwrap();
        });
        let unknown = client(ours).ask("stop", Operation::Stop, &[]);
        keeper.join().unwrap();
        assert!(matches!(unknown, Err(ProviderError::Keeper { .. })), "{unknown:?}");
    }
}
