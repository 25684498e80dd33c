//! A worker: one process, one thread, one engine, one question at a time.
//!
//! The engine forks keepers and probes, and may have to enter a user namespace for good to read
//! what its owner's own mode bits shut. None of that is sound in a process with threads, and the
//! last cannot be taken back. So the server, which has threads, never runs the engine itself: it
//! asks a worker, and a worker that gave something up says so and ends. A worker that panics or is
//! killed costs one request.

use crate::answer::{Given, Live, answer};
use crate::calls::{Head, Order};
use crate::frame;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use skep_engine::{Engine, Stop};
use skep_sys::signal::SignalFd;
use skep_types::{Code, Problem};
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

const SIGCHLD: i32 = 17;
/// An answer of so many bytes is one about many sandboxes.
const LARGE: usize = 64 << 10;
/// How long what failed is tried to be taken back, and how often.
const UNDOING: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// Answers questions from `socket` until the server has gone.
///
/// `open` makes the engine, before the first question; where it cannot, every question is answered
/// with the reason. `renew` brings in settings files as they are now, before every further one: workers
/// that started at different times say the same.
pub fn run(
    socket: OwnedFd,
    open: impl Fn() -> Result<Engine, Problem>,
    renew: impl Fn(&mut Engine) -> Result<(), Problem>,
) -> io::Result<()> {
    let _ = skep_sys::memory::set_command_line("skep: worker");
    // Whoever stops the server by the keyboard, or all of its group, means the server, which then lets its workers end.
    for signal in [1, 2, 13, 15] {
        skep_sys::signal::ignore(signal);
    }
    let children = SignalFd::new(&[SIGCHLD])?;
    let mut engine = None;
    let namespace = user_namespace();
    loop {
        wait(&socket, &children)?;
        reap(&children)?;
        let Some((request, file)) = frame::receive(&socket)? else { return Ok(()) };
        let given = match ready(&mut engine, &open, &renew) {
            Ok(engine) => handle(engine, &request, file.map(Into::into)).inspect_err(|_| {
                engine.note_failure();
            }),
            Err(problem) => Err(problem),
        };
        reap(&children)?;
        // Nobody could tell what it left undone from what it works on: it is asked nothing more.
        let undone = engine
            .as_ref()
            .is_some_and(|engine| engine.has_undone() && engine.finish_undone().is_err());
        let stop = engine.as_ref().and_then(Engine::stop);
        // Another handle of the store may go on where this one cannot tell what became of a change.
        let retires = undone || stop == Some(Stop::Unsure) || user_namespace() != namespace;
        let failing = given.as_ref().is_err_and(skep_engine::is_failing);
        let halts = Halts {
            unsynced: failing || stop == Some(Stop::Unsynced),
            damaged: damage(&given).or_else(|| {
                (stop == Some(Stop::Damaged)).then(|| "a part of it cannot be read".to_owned())
            }),
        };
        let size = send(&socket, given, retires, halts)?;
        // A keeper that is forked next would keep what this answer took, for its whole life.
        if size > LARGE {
            skep_sys::memory::give_back();
        }
        if undone && let Some(engine) = &engine {
            finish(engine);
        }
        if retires {
            return Ok(());
        }
    }
}

/// Why nobody is to change anything any more.
struct Halts {
    unsynced: bool,
    damaged: Option<String>,
}

fn damage(given: &Result<Given, Problem>) -> Option<String> {
    let problem = given.as_ref().err()?;
    skep_engine::is_doubt(problem).then(|| problem.message.clone())
}

/// Takes back what failed while the store was away, as soon as it answers. What is left when this gives
/// up is a dead maker's, and settled as such.
fn finish(engine: &Engine) {
    let deadline = Instant::now() + UNDOING;
    while engine.finish_undone().is_err() && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
    }
}

fn ready<'a>(
    engine: &'a mut Option<Engine>,
    open: &impl Fn() -> Result<Engine, Problem>,
    renew: &impl Fn(&mut Engine) -> Result<(), Problem>,
) -> Result<&'a mut Engine, Problem> {
    match engine {
        Some(engine) => renew(engine)?,
        None => *engine = Some(open()?),
    }
    engine.as_mut().ok_or_else(|| Problem::new(Code::Internal, "the engine was not opened"))
}

fn handle(engine: &mut Engine, request: &[u8], file: Option<File>) -> Result<Given, Problem> {
    let order: Order = match serde_json::from_slice(request) {
        Ok(order) => order,
        Err(error) => {
            let message = format!("the server asked what this worker does not know: {error}");
            return Err(Problem::new(Code::Internal, message));
        }
    };
    engine.acting_for(order.actor.as_deref());
    let Some(key) = order.key.clone() else { return answer(engine, &order, file) };
    let mut stream = None;
    let once = engine.once(&key.key, key.request.as_bytes(), || {
        let given = answer(engine, &order, file)?;
        stream = given.stream;
        Ok(given.value)
    });
    once.map(|once| Given { value: once.value, stream, replayed: once.replayed })
}

fn send(
    socket: &OwnedFd,
    given: Result<Given, Problem>,
    retires: bool,
    halts: Halts,
) -> io::Result<usize> {
    let replayed = given.as_ref().is_ok_and(|given| given.replayed);
    let (problem, value, relayed) = match given {
        Ok(Given { value, stream, .. }) => (None, value, stream.map(Live::descriptor).transpose()?),
        Err(problem) => (Some(for_caller(problem)), serde_json::Value::Null, None),
    };
    let Halts { unsynced, damaged } = halts;
    let mut payload = serde_json::to_vec(&Head { problem, replayed, retires, unsynced, damaged })?;
    payload.push(b'\n');
    serde_json::to_writer(&mut payload, &value)?;
    frame::send(socket, &payload, relayed.as_ref().map(AsFd::as_fd))?;
    Ok(payload.len())
}

/// What is wrong with the server's own settings is not the caller's mistake.
fn for_caller(problem: Problem) -> Problem {
    if !skep_engine::is_of_owner(&problem) {
        return problem;
    }
    let message = format!("the server's settings cannot be used: {}", problem.message);
    Problem::new(Code::Unavailable, message).hint("its owner is told by `skep doctor`, too")
}

/// Until there is a question. Children that end meanwhile (keepers, relays) are taken note of, so
/// that none stays as a zombie.
fn wait(socket: &OwnedFd, children: &SignalFd) -> io::Result<()> {
    loop {
        let mut watched =
            [PollFd::new(socket, PollFlags::IN), PollFd::new(children, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [question, child] = watched.map(|one| !one.revents().is_empty());
        if child {
            reap(children)?;
        }
        if question {
            return Ok(());
        }
    }
}

/// Only between questions: while one is answered, the engine waits for its children itself.
fn reap(children: &SignalFd) -> io::Result<()> {
    while children.next()?.is_some() {}
    while skep_sys::process::wait_any()?.is_some() {}
    Ok(())
}

fn user_namespace() -> Option<std::path::PathBuf> {
    std::fs::read_link("/proc/self/ns/user").ok()
}
