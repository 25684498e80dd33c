//! The workers, and how a request gets one.

use crate::calls::{Head, Order};
use crate::frame;
use bytes::Bytes;
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Resource, Rlimit};
use skep_types::{Code, Problem};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::Semaphore;

/// How a worker is started.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The program: this one, by a name that stays good when the file is replaced.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// More of them, for one that may only read.
    pub reading: Vec<OsString>,
    /// What is said by its environment: not in any list of processes.
    pub environment: Vec<(OsString, OsString)>,
}

/// What a worker answered.
#[derive(Debug)]
pub(crate) struct Reply {
    /// As JSON, to be passed on as it is.
    pub(crate) value: Bytes,
    /// Whether it is the answer to an earlier request with the same key.
    pub(crate) replayed: bool,
    /// What goes along: the live end of an exec or of a watch, or a file.
    pub(crate) stream: Option<OwnedFd>,
}

impl Reply {
    /// The value, to look into.
    pub(crate) fn json(&self) -> Result<serde_json::Value, Problem> {
        serde_json::from_slice(&self.value)
            .map_err(|error| Problem::new(Code::Internal, format!("a worker's answer: {error}")))
    }
}

/// A bounded number of workers, started when they are first needed and kept.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    command: WorkerCommand,
    idle: Mutex<Vec<Worker>>,
    permits: Arc<Semaphore>,
    /// How many files a worker may have open, if not as many as the server.
    open_files: Option<Rlimit>,
    /// Why nothing is changed any more, until the server is started again.
    halted: OnceLock<String>,
}

#[derive(Debug)]
struct Worker {
    child: Child,
    socket: tokio::net::UnixStream,
    /// Whether it may only read.
    reads: bool,
}

/// Why nothing is changed after a failed sync.
const UNSYNCED: &str = "a sync of the store failed: what was written may be lost, and nothing more is \
                        changed until the server is started again";

/// And when a part of the store turned out to be damaged.
const DAMAGED: &str = "the store is damaged, and nothing more is changed until it is whole and the server \
                       is started again";

impl Pool {
    /// At most `size` workers at a time.
    ///
    /// With a doubt nothing is changed from the start on.
    pub(crate) fn new(
        command: WorkerCommand,
        size: usize,
        open_files: Option<Rlimit>,
        doubt: Option<String>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(size));
        let halted = doubt.map_or_else(OnceLock::new, OnceLock::from);
        let idle = Mutex::default();
        Self { inner: Arc::new(Inner { command, idle, permits, open_files, halted }) }
    }

    /// Why nothing is changed any more, if that is so.
    pub(crate) fn halted(&self) -> Option<&str> {
        self.inner.halted.get().map(String::as_str)
    }

    /// Asks a worker; waits for a free one. If the caller goes away the worker still finishes what
    /// it began. A file may go along.
    pub(crate) async fn ask_with(
        &self,
        order: Order,
        file: Option<Arc<File>>,
    ) -> Result<Reply, Problem> {
        let gone = || Problem::new(Code::Unavailable, "the server is about to stop");
        let permit = Arc::clone(&self.inner.permits).acquire_owned().await.map_err(|_| gone())?;
        let inner = Arc::clone(&self.inner);
        let asked = tokio::spawn(async move {
            let result = inner.ask(&order, file.as_deref()).await;
            drop(permit);
            result
        });
        asked.await.unwrap_or_else(|error| {
            Err(Problem::new(Code::Internal, format!("asking a worker failed: {error}")))
        })
    }

    /// Takes no more questions, waits for those under way, and lets every worker end.
    pub(crate) async fn close(&self, size: usize) {
        let all = u32::try_from(size).unwrap_or(u32::MAX);
        let finished = self.inner.permits.acquire_many(all).await.is_ok();
        self.inner.permits.close();
        if finished {
            let idle = std::mem::take(&mut *self.inner.idle());
            let _ =
                tokio::task::spawn_blocking(move || idle.into_iter().for_each(Worker::end)).await;
        }
    }
}

impl Inner {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(self: &Arc<Self>, order: &Order, file: Option<&File>) -> Result<Reply, Problem> {
        if let Some(reason) = self.halted.get()
            && !order.call.only_reads()
        {
            return Err(Problem::new(Code::Store, reason.clone())
                .hint("look at the disk and the log of the server, then start it again"));
        }
        let request = serde_json::to_vec(order).map_err(|error| {
            Problem::new(Code::Internal, format!("cannot write a question: {error}"))
        })?;
        let waiting = self.idle().pop();
        let worker = match waiting {
            Some(worker) => worker,
            None => self.another().await?,
        };
        let answer = worker.ask(&request, file);
        let Ok(answer) = tokio::time::timeout(order.call.patience(), answer).await else {
            tracing::error!(call = order.call.word(), "a worker did not answer, and is ended");
            worker.give_up();
            return Err(Problem::new(Code::Unavailable, "this took too long, and was given up")
                .hint("what it needs may not answer: a dead mount, a stopped process"));
        };
        match answer {
            Ok((head, value, stream)) => {
                if head.unsynced {
                    self.halt(UNSYNCED.to_owned());
                }
                if let Some(what) = &head.damaged {
                    self.halt(format!("{DAMAGED}: {what}"));
                }
                // Looked at under the lock that halting takes: none that may write waits afterwards.
                let mut idle = self.idle();
                if head.retires || self.halted.get().is_some() && !worker.reads {
                    drop(idle);
                    worker.let_go();
                } else {
                    idle.push(worker);
                }
                match head.problem {
                    Some(problem) => Err(problem),
                    None => Ok(Reply { value, replayed: head.replayed, stream }),
                }
            }
            Err(error) => {
                tracing::error!(%error, "a worker ended while it was asked");
                worker.give_up();
                Err(Problem::new(Code::Internal, "the worker for this request ended unexpectedly"))
            }
        }
    }

    /// From now on nothing is changed. Whoever could do so ends.
    fn halt(&self, why: String) {
        if self.halted.get().is_none() {
            tracing::error!("{why}");
        }
        let _ = self.halted.set(why);
        let writers: Vec<_> = self.idle().extract_if(.., |worker| !worker.reads).collect();
        writers.into_iter().for_each(Worker::let_go);
    }

    /// A new worker. Starting a process takes a moment, which nobody else is to wait for.
    async fn another(self: &Arc<Self>) -> Result<Worker, Problem> {
        let failed = |error: std::io::Error| {
            Problem::new(Code::Unavailable, format!("cannot start a worker: {error}"))
        };
        let inner = Arc::clone(self);
        let started = tokio::task::spawn_blocking(move || inner.start()).await;
        let (child, socket, reads) =
            started.map_err(std::io::Error::other).flatten().map_err(failed)?;
        let socket = tokio::net::UnixStream::from_std(socket).map_err(failed)?;
        Ok(Worker { child, socket, reads })
    }

    fn start(&self) -> std::io::Result<(Child, UnixStream, bool)> {
        let (ours, theirs) = UnixStream::pair()?;
        let reads = self.halted.get().is_some();
        let more: &[OsString] = if reads { &self.command.reading } else { &[] };
        ours.set_nonblocking(true)?;
        let child = Command::new(&self.command.program)
            .arg0_skep()
            .args(&self.command.arguments)
            .args(more)
            // The server's own directory may be a project, and go.
            .current_dir("/")
            .envs(self.command.environment.iter().cloned())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        // What is run inside has the limit of whoever started the server, not the server's own.
        if let Some(limit) = self.open_files {
            let child = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::prlimit(Some(child), Resource::Nofile, limit);
        }
        Ok((child, ours, reads))
    }
}

/// The program is called by its path in `/proc`; in lists of processes it is skep.
trait NamedSkep {
    fn arg0_skep(&mut self) -> &mut Self;
}

impl NamedSkep for Command {
    fn arg0_skep(&mut self) -> &mut Self {
        std::os::unix::process::CommandExt::arg0(self, "skep")
    }
}

impl Worker {
    async fn ask(
        &self,
        request: &[u8],
        file: Option<&File>,
    ) -> std::io::Result<(Head, Bytes, Option<OwnedFd>)> {
        frame::ask(&self.socket, request, file.map(AsFd::as_fd)).await?;
        let (payload, stream) = frame::answer(&self.socket).await?;
        let cut = payload.iter().position(|byte| *byte == b'\n');
        let cut = cut.ok_or_else(|| std::io::Error::other("a worker's answer has no head"))?;
        let head = serde_json::from_slice(&payload[..cut])?;
        let value = Bytes::from(payload).slice(cut + 1..);
        Ok((head, value, stream))
    }

    /// Ends one that does not end by itself. In the kernel's hands it may take its time to die, which is
    /// waited for elsewhere.
    fn give_up(mut self) {
        let _ = self.child.kill();
        self.let_go();
    }

    /// Waits elsewhere for its end: it may still have something to do.
    fn let_go(self) {
        let _ = std::thread::Builder::new().name("burial".into()).spawn(move || self.end());
    }

    /// Closing its socket ends it.
    fn end(mut self) {
        drop(self.socket);
        let _ = self.child.wait();
    }
}
