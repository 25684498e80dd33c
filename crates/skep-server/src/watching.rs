//! A watched workspace, carried from a worker to the server: a process of its own looks, and writes
//! what it noticed to a socket, a line of JSON each. The first line is `null`: from there on nothing
//! is missed.

use crate::asking::Ask;
use crate::documents;
use crate::places::Held;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::Value;
use skep_engine::{Noticed, ToWatch};
use skep_sys::process::{Namespaces, clone_with};
use skep_types::{Code, Problem};
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};

/// Between two looks at a workspace that is large, at most.
const PATIENCE: Duration = Duration::from_secs(5);

/// Forks the looker and returns the server's end. It ends when that is closed, or when the workspace
/// has gone.
pub(crate) fn start(watched: &ToWatch) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    clone_with(Namespaces::NONE, || {
        let told = skep_sys::process::close_all_but(&[theirs.as_fd()])
            .and_then(|()| tell(watched, UnixStream::from(theirs)));
        match told {
            Ok(()) => 0,
            Err(_) => 1,
        }
    })?;
    Ok(ours)
}

fn tell(watched: &ToWatch, mut server: UnixStream) -> io::Result<()> {
    let _ = skep_sys::memory::set_command_line("skep: watch");
    let mut watch = watched.begin().map_err(io::Error::other)?;
    server.write_all(b"null\n")?;
    while !has_gone(&server) {
        // A workspace that cannot be looked at any more is the end, and the server says so.
        for noticed in watch.next(PATIENCE).map_err(io::Error::other)? {
            server.write_all(&line(&noticed)?)?;
        }
    }
    Ok(())
}

fn line(noticed: &Noticed) -> io::Result<Vec<u8>> {
    let document = documents::plain(noticed).map_err(io::Error::other)?;
    let mut line = serde_json::to_vec(&document)?;
    line.push(b'\n');
    Ok(line)
}

/// Nothing is ever said from there: what can be read is the end.
fn has_gone(server: &UnixStream) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

struct Watching {
    ask: Ask,
    lines: Lines<BufReader<tokio::net::UnixStream>>,
    over: bool,
    _place: Held,
}

/// What is noticed, as events, until the workspace goes or the server stops.
pub(crate) async fn follow(
    ask: Ask,
    stream: tokio::net::UnixStream,
    place: Held,
) -> Result<impl axum::response::IntoResponse, Problem> {
    let mut lines = BufReader::new(stream).lines();
    let begun = lines.next_line().await.ok().flatten();
    if begun.is_none() {
        return Err(Problem::new(Code::Conflict, "the workspace cannot be watched now")
            .hint("it may just have been deleted or replaced"));
    }
    let watching = Watching { ask, lines, over: false, _place: place };
    let events = stream::unfold(watching, |mut watching| async move {
        if watching.over {
            return None;
        }
        let mut stopping = watching.ask.app.stopping.clone();
        let line = tokio::select! {
            line = watching.lines.next_line() => line.ok().flatten(),
            () = crate::serve::told(&mut stopping) => return None,
            () = watching.ask.until_shut_out() => {
                watching.over = true;
                let problem = serde_json::to_string(&crate::guard::shut_out()).unwrap_or_default();
                let event = Event::default().event("error").data(problem);
                return Some((Ok(event), watching));
            }
        };
        let event = match line {
            Some(line) => Event::default().event("change").data(line),
            None => {
                watching.over = true;
                Event::default().event("end").data(Value::Null.to_string())
            }
        };
        Some((Ok::<_, Infallible>(event), watching))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}
