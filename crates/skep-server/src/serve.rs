//! Starting, serving and stopping.

use crate::app::{App, Shared, router};
use crate::audit::Audit;
use crate::calls::Call;
use crate::canary::Canary;
use crate::following::Feed;
use crate::guard::Peer;
use crate::inputs::Inputs;
use crate::listen::Listener;
use crate::measure::Metrics;
use crate::places::Share;
use crate::pool::{Pool, WorkerCommand};
use crate::sessions::Sessions;
use crate::tokens::{Bootstrap, Tokens};
use crate::traces::Traces;
use axum::Router;
use axum::body::Body;
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skep_engine::api::{GcPart, GcRequest};
use skep_engine::{Layout, Verdicts};
use skep_sys::from_inside::Origin;
use skep_types::{ByteString, Code, Problem};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore, watch};
use tower::Service as _;

/// Requests that are under way at the end have this long.
const GRACE: Duration = Duration::from_secs(10);
/// How often what is remembered is compared with what is there.
const SETTLE: Duration = Duration::from_secs(2);
/// How often the whole store is read, at most; and of all time so much at most, one part of this many.
const CHECK: Duration = Duration::from_secs(10);
const CHECK_SHARE: u32 = 200;
/// How often what has had its time is let go, and how long after the start for the first time.
const TIDY: Duration = Duration::from_secs(3600);
const FIRST_TIDY: Duration = Duration::from_secs(60);
/// A head that takes longer to arrive is given up.
const HEAD: Duration = Duration::from_secs(15);
/// A connection that nothing was asked on yet has this long when the server ends.
const FIRST: Duration = Duration::from_secs(1);
/// Connections at a time, by TCP and by the unix socket: strangers do not shut out the owner.
const CONNECTIONS: u32 = 4096;
const OWN_CONNECTIONS: u32 = 1024;
/// After a connection that could not be taken: where descriptors have run out the next one cannot either.
const BREATH: Duration = Duration::from_millis(100);
/// An exec that somebody waits for has this long when the server ends.
const WAITED_FOR: Duration = Duration::from_secs(3);
/// For threads that wait for a worker which does not answer.
const LAST: Duration = Duration::from_secs(1);

/// What a server needs to know.
#[derive(Debug)]
pub struct Config {
    /// The state directory; one server at a time.
    pub state_dir: PathBuf,
    /// Where to listen.
    pub listeners: Vec<Listener>,
    /// A file with a token of role approver.
    pub token_file: Option<PathBuf>,
    /// How workers are started.
    pub worker: WorkerCommand,
    /// Workers at a time.
    pub workers: usize,
    /// Why what is remembered cannot be relied on: then it is served to be read, and not changed.
    pub doubt: Option<String>,
    /// A collector of OpenTelemetry to send traces to.
    pub traces: Option<String>,
    /// The process's user.
    pub user: u32,
    /// Its home directory.
    pub home: PathBuf,
    /// Its environment.
    pub environment: BTreeMap<String, ByteString>,
    /// An empty directory to be made for the canary.
    pub canary: PathBuf,
    /// The clock (RFC 3339).
    pub clock: fn() -> String,
}

/// Serves until the process is told to end (SIGTERM, SIGINT). In this order, at the end:
///
/// 1. readiness fails, streams end (their execs go on), nothing new is accepted; on a socket that was
///    passed in, whoever connects now waits for the next server;
/// 2. connections on which nothing was asked yet have a second, requests under way ten;
/// 3. sandboxes made ahead go, within ten seconds; workers finish what they began, within ten, and end. One
///    that does not answer is left: it ends by itself, for nobody asks it any more;
/// 4. socket files that we made and the canary's directory go; the last traces are sent; and with the
///    process goes its lock.
pub fn serve(config: Config) -> Result<(), Problem> {
    let _lock = lock(&config.state_dir)?;
    sweep(&config.state_dir);
    let tokens = Tokens::of(&config.state_dir);
    let bootstrap = match &config.token_file {
        Some(path) => Some(Bootstrap::read(path, config.user)?),
        None => None,
    };
    let open = config.listeners.iter().any(Listener::needs_token);
    if open && bootstrap.is_none() && tokens.list()?.is_empty() {
        return Err(Problem::new(
            Code::Refused,
            "over TCP everybody needs a token, and there is none",
        )
        .hint("name one with `--token-file FILE`, or make one with `skep token create`"));
    }
    let traces = config.traces.as_deref().map(Traces::start).transpose()?;
    let canary = canary_project(&config)?;
    let open_files = raise_open_files();
    let failed = |error: io::Error| Problem::new(Code::Io, format!("cannot serve: {error}"));
    let audit = Audit::open(&config.state_dir).map_err(failed)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let layout = Layout::open(&config.state_dir, || Ok(())).map_err(failed)?;
    let (stop, stopping) = watch::channel(false);
    let size = config.workers.max(2);
    let app = Arc::new(App {
        pool: Pool::new(config.worker, size, open_files, config.doubt),
        tokens,
        sessions: Sessions::of(&config.state_dir),
        bootstrap,
        audit,
        metrics: Metrics::start(),
        traces,
        state_dir: config.state_dir.clone(),
        user: config.user,
        home: config.home,
        environment: config.environment,
        clock: config.clock,
        stopping,
        streams: Share::streams(),
        memory: Share::memory(),
        disk: Share::disk(),
        feed: Feed::default(),
        verdicts: Mutex::new(Verdicts::start(&layout)),
        layout,
        inputs: Inputs::default(),
        canary: Canary::new(canary.clone()),
    });
    let served = runtime.block_on(run(Arc::clone(&app), config.listeners, stop, size));
    let served = served.map_err(failed);
    // Dropped, it would wait for those threads however long they take.
    runtime.shutdown_timeout(LAST);
    // On this thread, which has no runtime any more: the last ones are sent while it waits.
    if let Some(traces) = &app.traces {
        traces.stop();
    }
    let _ = fs::remove_dir(&canary);
    served
}

/// A connection needs a descriptor. Returns what the limit was, for the workers.
fn raise_open_files() -> Option<Rlimit> {
    let before = getrlimit(Resource::Nofile);
    let all = Rlimit { current: before.maximum, maximum: before.maximum };
    setrlimit(Resource::Nofile, all).ok()?;
    (before.current != before.maximum).then_some(before)
}

/// Places for connections: half of the descriptors at most for TCP, an eighth for the unix socket.
fn places() -> [(Arc<Semaphore>, u32); 2] {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = u32::try_from(files).unwrap_or(u32::MAX);
    [CONNECTIONS.min(files / 2), OWN_CONNECTIONS.min(files / 8)]
        .map(|most| (Arc::new(Semaphore::new(most as usize)), most))
}

/// Held as long as the file is open; the kernel lets go of it with the process.
fn lock(state_dir: &Path) -> Result<File, Problem> {
    let path = state_dir.join("server.lock");
    let failed = |error: io::Error| {
        Problem::new(Code::Io, format!("cannot lock `{}`: {error}", path.display()))
    };
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(Problem::new(
            Code::AlreadyExists,
            format!("another server uses the state directory `{}`", state_dir.display()),
        )
        .hint("stop it first, or name another directory with `--home`")),
        Err(fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// What a killed server's workers had put aside for a moment.
fn sweep(state_dir: &Path) {
    for entry in fs::read_dir(state_dir).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"scratch-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Where the canary's project is. Its usual name can be worked out by anybody: if somebody else has made
/// it, another one is made up, and remembered for the next server.
fn canary_project(config: &Config) -> Result<PathBuf, Problem> {
    let note = config.state_dir.join("canary");
    let noted = fs::read(&note).ok().map(|path| PathBuf::from(OsString::from_vec(path)));
    for path in noted.iter().chain([&config.canary]) {
        if make_canary(path, config.user).is_ok() {
            return Ok(path.clone());
        }
    }
    let mut name = config.canary.clone().into_os_string();
    let random = crate::tokens::random_hex(8)
        .map_err(|error| Problem::new(Code::Io, format!("cannot make up a name: {error}")))?;
    name.push(format!("-{random}"));
    let path = PathBuf::from(name);
    make_canary(&path, config.user)?;
    fs::write(&note, path.as_os_str().as_encoded_bytes()).map_err(|error| {
        Problem::new(Code::Io, format!("cannot write `{}`: {error}", note.display()))
    })?;
    Ok(path)
}

/// The canary's project: a directory of ours that nobody else can write.
fn make_canary(path: &Path, user: u32) -> Result<(), Problem> {
    let failed = |why: String| {
        Problem::new(Code::Io, format!("cannot use `{}` for the canary: {why}", path.display()))
    };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.map_err(|error| failed(error.to_string()))?,
    }
    let found = fs::symlink_metadata(path).map_err(|error| failed(error.to_string()))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(failed("it is somebody else's".into()));
    }
    Ok(())
}

async fn run(
    app: Shared,
    listeners: Vec<Listener>,
    stop: watch::Sender<bool>,
    size: usize,
) -> io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let [by_tcp, by_unix] = places();
    let router = router(Arc::clone(&app));
    let mut accepting = Vec::new();
    let mut sockets = Vec::new();
    for listener in listeners {
        let acceptor = Acceptor {
            router: router.clone(),
            stopping: app.stopping.clone(),
            connections: Arc::clone(match &listener {
                Listener::Unix(..) => &by_unix.0,
                Listener::Tcp(_) => &by_tcp.0,
            }),
            user: app.user,
        };
        accepting.push(match listener {
            Listener::Unix(socket, path) => {
                if let Some(path) = &path {
                    tracing::info!(socket = %path.display(), "listening");
                }
                sockets.extend(path);
                socket.set_nonblocking(true)?;
                let socket = tokio::net::UnixListener::from_std(socket)?;
                tokio::spawn(acceptor.unix(socket))
            }
            Listener::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                let socket = tokio::net::TcpListener::from_std(socket)?;
                tracing::info!(address = %socket.local_addr()?, "listening");
                tokio::spawn(acceptor.tcp(socket))
            }
        });
    }
    let settling = tokio::spawn(again_and_again("settling", Arc::clone(&app), settle));
    let filling = tokio::spawn(crate::filling::fill(Arc::clone(&app)));
    let tidying = tokio::spawn(again_and_again("tidying", Arc::clone(&app), tidy));
    let checking = tokio::spawn(again_and_again("checking", Arc::clone(&app), check));
    let feeding = tokio::spawn(again_and_again("feeding", Arc::clone(&app), Feed::watch));
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    match app.pool.halted() {
        None => tracing::info!("serving"),
        Some(reason) => tracing::error!(reason, "serving, to be read only"),
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let _ = stop.send(true);
    settling.abort();
    tidying.abort();
    checking.abort();
    feeding.abort();
    for task in accepting {
        task.abort();
        // Aborted: its listener is closed when this returns.
        let _ = task.await;
    }
    // Every connection holds one: when all are here, none is left.
    let all = async {
        let _ = by_tcp.0.acquire_many(by_tcp.1).await;
        let _ = by_unix.0.acquire_many(by_unix.1).await;
    };
    if tokio::time::timeout(GRACE, all).await.is_err() {
        tracing::warn!("requests were still under way");
    }
    crate::filling::drain(&app, filling).await;
    if tokio::time::timeout(GRACE, app.pool.close(size)).await.is_err() {
        tracing::warn!(
            "workers were still at work; what they began is finished or undone by the next start"
        );
    }
    for path in sockets {
        let _ = fs::remove_file(path);
    }
    tracing::info!("stopped");
    Ok(())
}

/// What is done as long as the server lives: a bug that it meets once does not end it for good, unseen.
async fn again_and_again<F: Future<Output = ()>>(what: &str, app: Shared, work: fn(Shared) -> F) {
    while AssertUnwindSafe(work(Arc::clone(&app))).catch_unwind().await.is_err() {
        tracing::error!(what, "met a bug of skep's, and begins anew");
        tokio::time::sleep(SETTLE).await;
    }
}

/// Notices keepers that were killed, deletes that were interrupted, ends nobody picked up.
async fn settle(app: Shared) {
    loop {
        // Only a test can make it fail.
        let _ = skep_sys::failpoint::hit("settle.begins");
        if app.pool.halted().is_none()
            && let Err(problem) = app.ask_own(Call::Settle).await
        {
            tracing::warn!(%problem, "cannot settle");
        }
        app.count_verdicts().await;
        tokio::time::sleep(SETTLE).await;
    }
}

/// Reads the whole store now and then, as it lies on the disk: what is damaged there may be sound in the
/// workers' memory, and go unnoticed until it is too late. A large one is read less often.
async fn check(app: Shared) {
    let mut pause = CHECK;
    loop {
        tokio::time::sleep(pause).await;
        if app.pool.halted().is_some() {
            continue;
        }
        let begun = Instant::now();
        if let Err(problem) = app.ask_own(Call::CheckStore).await {
            tracing::warn!(%problem, "cannot read the whole store");
        }
        pause = CHECK.max(begun.elapsed() * CHECK_SHARE);
    }
}

/// Lets go what grows with use and has had its time. Sandboxes that were neither approved nor rejected
/// are removed when their time to live is over (by settling), or when somebody asks.
async fn tidy(app: Shared) {
    use GcPart::{Archives, Layers, Reviewed, Rows, Trash, Undo};
    let only = [Reviewed, Undo, Layers, Archives, Trash, Rows].into_iter().collect();
    let request = GcRequest { only, ..GcRequest::default() };
    let mut pause = FIRST_TIDY;
    loop {
        tokio::time::sleep(pause).await;
        pause = TIDY;
        if app.pool.halted().is_none()
            && let Err(problem) = app.ask_own(Call::Gc { request: request.clone() }).await
        {
            tracing::warn!(%problem, "cannot tidy up");
        }
        if let Err(problem) = app.tokens.sweep(&app.now()) {
            tracing::warn!(%problem, "cannot let go of old tokens");
        }
    }
}

struct Acceptor {
    router: Router,
    stopping: watch::Receiver<bool>,
    connections: Arc<Semaphore>,
    user: u32,
}

impl Acceptor {
    async fn unix(self, listener: tokio::net::UnixListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            // The mode of the socket says the same; the kernel's word counts.
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == self.user || peer.uid() == 0 => {
                    self.serve(stream, Peer::Unix { uid: peer.uid() }).await;
                }
                Ok(peer) => tracing::warn!(uid = peer.uid(), "another user was turned away"),
                Err(error) => tracing::warn!(%error, "a caller without a name was turned away"),
            }
        }
    }

    async fn tcp(self, listener: tokio::net::TcpListener) {
        let Ok(port) = listener.local_addr().map(|address| address.port()) else { return };
        let mut looking_out = false;
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            match skep_sys::from_inside::origin(&stream) {
                Origin::Outside => looking_out = true,
                // Whoever has started this server by connecting to its socket.
                Origin::Unknown if !looking_out => {}
                Origin::Inside | Origin::Unknown => {
                    tracing::warn!(%from, "a connection out of a sandbox was turned away");
                    continue;
                }
            }
            let _ = stream.set_nodelay(true);
            self.serve(stream, Peer::Tcp { from, port }).await;
        }
    }

    /// Waits for a place, then serves a connection beside the others.
    async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
    ) {
        let Ok(place) = Arc::clone(&self.connections).acquire_owned().await else { return };
        let router = self.router.clone();
        let asked = Arc::new(Notify::new());
        let notice = Arc::clone(&asked);
        let service = tower::service_fn(move |mut request: hyper::Request<Incoming>| {
            notice.notify_one();
            request.extensions_mut().insert(peer.clone());
            router.clone().call(request.map(Body::new))
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(128 << 10)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
            .with_upgrades();
        let mut stopping = self.stopping.clone();
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(connection);
            // What a client does wrong is its own business.
            let ended = tokio::select! {
                _ = connection.as_mut() => true,
                () = told(&mut stopping) => false,
            };
            if !ended {
                // One that was taken just before is still about to ask: hyper would close it, and the
                // client would have been turned away.
                let ended = tokio::select! {
                    _ = connection.as_mut() => true,
                    () = asked.notified() => false,
                    () = tokio::time::sleep(FIRST) => false,
                };
                if !ended {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(place);
        });
    }
}

/// Until the server is about to stop and an exec that is waited for has had its time to end: most take
/// less, and who waits for such a one is answered as ever.
pub(crate) async fn told_and_waited(mut stopping: watch::Receiver<bool>) {
    told(&mut stopping).await;
    tokio::time::sleep(WAITED_FOR).await;
}

/// Until the server is about to stop.
pub(crate) async fn told(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
