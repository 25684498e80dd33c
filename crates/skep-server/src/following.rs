//! Server-sent events: what is kept is read again and again, a little less often while nothing
//! comes. So a stream can start anywhere, and go on where another one broke off.

use crate::app::Shared;
use crate::asking::Ask;
use crate::calls::Call;
use crate::failure::Failure;
use crate::places::Held;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use serde_json::Value;
use skep_types::{Code, ExecId, Problem};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Between two looks: at first, and at most.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
/// How often it is looked at whether who follows may still do so.
const AGAIN: Duration = Duration::from_secs(2);
/// Read in one go.
const PIECE: usize = 256 << 10;
const EVENTS: usize = 500;

/// Who follows the events is told when there are more: one looks for all of them.
pub(crate) struct Feed {
    /// The number of the newest event that is known of.
    newest: watch::Sender<u64>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { newest: watch::Sender::new(0) }
    }
}

impl Feed {
    /// There are events up to this number.
    fn reaches(&self, number: u64) {
        self.newest.send_if_modified(|newest| {
            let more = number > *newest;
            *newest = number.max(*newest);
            more
        });
    }

    /// Looks for new events while anybody follows them.
    pub(crate) async fn watch(app: Shared) {
        let feed = &app.feed.newest;
        let mut pause = SHORTEST;
        loop {
            tokio::time::sleep(if feed.is_closed() { LONGEST } else { pause }).await;
            // Nobody follows: the number is brought up to date by the next one who does.
            if feed.is_closed() {
                continue;
            }
            let after = *feed.borrow();
            let call = Call::Events { after, limit: EVENTS };
            // Whoever follows meets the same trouble when it asks, and tells it.
            let found = app.ask_own(call).await.and_then(|reply| reply.json());
            let last = found.ok().and_then(|found| found.as_array()?.last()?["sequence"].as_u64());
            match last {
                Some(last) => {
                    app.feed.reaches(last);
                    pause = SHORTEST;
                }
                None => pause = (pause * 2).min(LONGEST),
            }
        }
    }
}

/// Where a client that comes back goes on.
pub(crate) fn resume_at(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number
        .map(Some)
        .ok_or_else(|| Failure::new(Code::Usage, "`last-event-id` is none that this server gave"))
}

/// The exec once it has ended. The end of the stream is told when the keeper has written it down,
/// so this is one look, or two.
pub(crate) async fn ended(ask: &Ask, exec: &str) -> Result<Value, Problem> {
    let mut pause = SHORTEST;
    for _ in 0..100 {
        let found = look(ask, Call::FindExec { exec: exec.to_owned() }).await?;
        if found["running"] == false {
            return Ok(found);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
    Err(Problem::new(Code::Internal, format!("the end of exec `{exec}` was not written down")))
}

/// The end of an exec, however long that takes.
pub(crate) async fn end_of(ask: &Ask, exec: &ExecId) -> Result<Value, Problem> {
    let mut stopped = std::pin::pin!(crate::serve::told_and_waited(ask.app.stopping.clone()));
    let mut pause = SHORTEST;
    loop {
        let found = look(ask, Call::FindExec { exec: exec.to_string() }).await?;
        if found["running"] == false {
            return Ok(found);
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = &mut stopped => return Err(goes_on(exec)),
        }
        pause = (pause * 2).min(LONGEST);
    }
}

/// What whoever waits for an exec is told when the server ends first.
pub(crate) fn goes_on(exec: &ExecId) -> Problem {
    Problem::new(Code::Unavailable, "the server is about to stop; the exec goes on")
        .hint(format!("`GET /v1/execs/{exec}` tells its end"))
        .details(serde_json::json!({ "exec": exec }))
}

/// A piece of what an exec wrote.
pub(crate) async fn logs(ask: &Ask, exec: &str, from: u64) -> Result<Value, Problem> {
    look(ask, Call::Logs { exec: exec.to_owned(), from, limit: PIECE }).await
}

/// What a chunk of output holds.
pub(crate) fn bytes_of(chunk: &Value) -> Vec<u8> {
    match chunk["text"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => chunk["b64"].as_str().and_then(skep_client::wire::from_base64).unwrap_or_default(),
    }
}

/// A look that is nobody's request of its own: no key, no version.
async fn look(ask: &Ask, call: Call) -> Result<Value, Problem> {
    let mut order = crate::calls::Order::own(call);
    order.bound.clone_from(&ask.who.bound);
    ask.app.ask(order).await?.json()
}

/// A stream of events with its place among the streams.
pub(crate) type Events = Sse<axum::response::sse::KeepAliveStream<Following>>;
type Following = std::pin::Pin<Box<dyn Stream<Item = Result<Event, Infallible>> + Send>>;

struct Place {
    ask: Ask,
    exec: String,
    next: u64,
    ready: VecDeque<Event>,
    over: bool,
    pause: Duration,
    /// Whether all events that were there have been told.
    caught_up: bool,
    /// When it was last looked at whether who follows may still do so.
    looked: Instant,
    _permit: Held,
}

/// Output of an exec from an offset on, until its end.
pub(crate) fn output(ask: Ask, exec: String, from: u64, permit: Held) -> Events {
    let place = Place {
        ask,
        exec,
        next: from,
        ready: VecDeque::new(),
        over: false,
        pause: SHORTEST,
        caught_up: false,
        looked: Instant::now(),
        _permit: permit,
    };
    follow(place, |place| Box::pin(more_output(place)))
}

/// What happened, from a number on, until the server stops.
pub(crate) fn events(ask: Ask, after: u64, permit: Held) -> Events {
    let place = Place {
        ask,
        exec: String::new(),
        next: after,
        ready: VecDeque::new(),
        over: false,
        pause: SHORTEST,
        caught_up: false,
        looked: Instant::now(),
        _permit: permit,
    };
    follow(place, |place| Box::pin(more_events(place)))
}

type More<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), Problem>> + Send + 'a>>;

fn follow(place: Place, more: fn(&mut Place) -> More<'_>) -> Events {
    let stream = stream::unfold(place, move |mut place| async move {
        loop {
            if let Some(event) = place.ready.pop_front() {
                place.pause = SHORTEST;
                return Some((Ok(event), place));
            }
            if place.over || *place.ask.app.stopping.borrow() {
                return None;
            }
            if place.looked.elapsed() > AGAIN {
                place.looked = Instant::now();
                if !place.ask.app.still_is(&place.ask.who) {
                    place.over = true;
                    place.ready.push_back(named("error", &crate::guard::shut_out()));
                    continue;
                }
            }
            if let Err(problem) = more(&mut place).await {
                place.over = true;
                place.ready.push_back(named("error", &problem));
            } else if place.ready.is_empty() && !place.over {
                place.rest().await;
            }
        }
    });
    let stream: Following = Box::pin(stream);
    Sse::new(stream).keep_alive(KeepAlive::default())
}

impl Place {
    /// Waits a little, or until the server is about to stop.
    async fn rest(&mut self) {
        let mut stopping = self.ask.app.stopping.clone();
        tokio::select! {
            () = tokio::time::sleep(self.pause) => {}
            () = crate::serve::told(&mut stopping) => {}
        }
        self.pause = (self.pause * 2).min(LONGEST);
    }
}

async fn more_output(place: &mut Place) -> Result<(), Problem> {
    let logs = logs(&place.ask, &place.exec, place.next).await?;
    let before = place.next;
    for chunk in logs["chunks"].as_array().into_iter().flatten() {
        let behind = chunk["offset"].as_u64().unwrap_or(0) + bytes_of(chunk).len() as u64;
        // A gap that nothing has followed yet is told when something does.
        if behind > place.next || chunk["stream"] == "dropped" && logs["ended"] == true {
            place.next = place.next.max(behind);
            place.ready.push_back(named("output", chunk).id(place.next.to_string()));
        }
    }
    // An end that was seen before this look means that nothing will come.
    if logs["ended"] == true && place.next == before {
        let exec = look(&place.ask, Call::FindExec { exec: place.exec.clone() }).await?;
        place.ready.push_back(named("end", &exec).id(place.next.to_string()));
        place.over = true;
    }
    Ok(())
}

/// All there are are read first; then the feed tells when there are more.
async fn more_events(place: &mut Place) -> Result<(), Problem> {
    let mut newest = place.ask.app.feed.newest.subscribe();
    if place.caught_up && *newest.borrow_and_update() <= place.next {
        let mut stopping = place.ask.app.stopping.clone();
        tokio::select! {
            _ = newest.wait_for(|newest| *newest > place.next) => {}
            () = crate::serve::told(&mut stopping) => return Ok(()),
            // Whether who follows may still do so is looked at by the caller.
            () = tokio::time::sleep(AGAIN) => return Ok(()),
        }
    }
    let found = look(&place.ask, Call::Events { after: place.next, limit: EVENTS }).await?;
    for event in found.as_array().into_iter().flatten() {
        place.next = event["sequence"].as_u64().unwrap_or(place.next);
        place.ready.push_back(named("event", event).id(place.next.to_string()));
    }
    place.caught_up = place.ready.is_empty();
    if place.caught_up {
        place.ask.app.feed.reaches(place.next);
    }
    Ok(())
}

fn named(name: &str, data: &impl serde::Serialize) -> Event {
    let text = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(name).data(text)
}
