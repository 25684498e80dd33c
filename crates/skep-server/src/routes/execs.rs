//! Execs: started, followed, ended.

use crate::app::Shared;
use crate::asking::{Ask, Json, Name, Query, json, respond, stream_place};
use crate::attach;
use crate::bodies::{ExecBody, SignalBody};
use crate::calls::{Call, Company};
use crate::failure::{Failure, Outcome};
use crate::incoming::whole;
use crate::pool::Reply;
use crate::relay::Kind;
use crate::schema::{Error, Exec, Logs};
use crate::shown::Shown;
use crate::{following, streaming};
use axum::extract::{Request, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::Value;
use skep_types::{Code, ExecId, Problem};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Kept output in one answer, unless asked otherwise; and at most.
const PIECE: usize = 256 << 10;
const LARGEST_PIECE: usize = 8 << 20;
/// Bytes for standard input in one request.
const INPUT: usize = 8 << 20;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list, start))
        .routes(routes!(attach_to_new))
        .routes(routes!(show))
        .routes(routes!(signal))
        .routes(routes!(kill))
        .routes(routes!(stdin))
        .routes(routes!(logs))
        .routes(routes!(stream))
}

/// The execs of a sandbox, oldest first
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs", tag = "execs",
    params(("sandbox" = String, Path)),
    responses((status = 200, body = Vec<Exec>), (status = "default", body = Error)))]
async fn list(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.answer(Call::Execs { sandbox }).await
}

/// Run a command; the sandbox is started if it is stopped
///
/// The exec goes on whatever becomes of the connection or the server. With `wait` the answer
/// comes when it has ended, with status 200 and its output; the same key again waits for the same
/// exec. A server that ends answers 503 after three seconds, and `details.exec` names the exec, which goes on.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/execs", tag = "execs", request_body = ExecBody,
    params(("sandbox" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = Exec), (status = 201, body = Exec), (status = "default", body = Error)))]
async fn start(ask: Ask, Name(sandbox): Name, Json(body, said): Json<ExecBody>) -> Outcome {
    let (wait, stdin, last) = (body.wait, body.stdin, body.last);
    if last && !wait {
        let message = "`last` is for whoever stays with the command";
        return Err(Failure::new(Code::Usage, message));
    }
    let place = if wait { Some(stream_place(&ask)?) } else { None };
    let spec = Box::new(body.resolve()?);
    let company = match (wait, stdin) {
        (true, _) => Company::Waiting,
        (false, true) => Company::Attached,
        (false, false) => Company::Nobody,
    };
    skep_sys::failpoint::hit("request.exec")
        .map_err(|error| Failure::new(Code::Io, format!("cannot ask: {error}")))?;
    let call = Call::Exec { sandbox, spec, company, clocked: true, last };
    let mut reply = ask.ask(call, &said).await?;
    let Some(stream) = reply.stream.take() else {
        return match wait {
            false => Ok(respond(StatusCode::CREATED, reply)),
            // It ended while its worker was with it.
            true if !reply.replayed && reply.json()?["running"] == false => {
                Ok(respond(StatusCode::OK, reply))
            }
            true => waited_for_again(&ask, reply).await,
        };
    };
    let stream = streaming::adopt(stream)?;
    if wait {
        let exec = reply.json()?;
        let outcome = waited_for(&ask, stream, exec).await;
        drop(place);
        return outcome;
    }
    ask.app.inputs.keep(exec_id(&reply.json()?)?, stream);
    Ok(respond(StatusCode::CREATED, reply))
}

fn exec_id(exec: &Value) -> Result<ExecId, Problem> {
    exec["id"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Problem::new(Code::Internal, "an exec without an id"))
}

async fn waited_for(ask: &Ask, stream: tokio::net::UnixStream, exec: Value) -> Outcome {
    let id = exec_id(&exec)?;
    let (mut output, mut input) = streaming::split(stream);
    input.send(Kind::StdinEnd, &[]).await?;
    let mut shown = Shown::default();
    let mut stopped = std::pin::pin!(crate::serve::told_and_waited(ask.app.stopping.clone()));
    loop {
        let next = tokio::select! {
            next = output.next() => next?,
            () = &mut stopped => return Err(following::goes_on(&id).into()),
        };
        match next {
            Some((Kind::Stdout, bytes)) => shown.add("stdout", &bytes),
            Some((Kind::Stderr, bytes)) => shown.add("stderr", &bytes),
            _ => break,
        }
    }
    json(StatusCode::OK, &shown.with(following::ended(ask, id.as_str()).await?))
}

/// The same request again: the exec that the first one started is waited for, and its output is read
/// from what was kept.
async fn waited_for_again(ask: &Ask, reply: Reply) -> Outcome {
    let id = exec_id(&reply.json()?)?;
    let exec = following::end_of(ask, &id).await?;
    let mut shown = Shown::default();
    let mut from = 0;
    loop {
        let logs = following::logs(ask, id.as_str(), from).await?;
        let before = from;
        for chunk in logs["chunks"].as_array().into_iter().flatten() {
            let bytes = following::bytes_of(chunk);
            from = chunk["offset"].as_u64().unwrap_or(from) + bytes.len() as u64;
            shown.add(chunk["stream"].as_str().unwrap_or_default(), &bytes);
        }
        if from == before {
            break;
        }
    }
    let value = serde_json::to_vec(&shown.with(exec))
        .map_err(|error| Failure::new(Code::Internal, format!("cannot write JSON: {error}")))?;
    Ok(respond(StatusCode::OK, Reply { value: value.into(), ..reply }))
}

/// Run a command over a WebSocket
///
/// The first message is text: the command, as for `POST …/execs`. The server answers
/// `{"exec": …}` or `{"error": …}`. Then binary messages carry a byte for the stream (0 input,
/// 1 output, 2 errors) and the bytes; text messages are `{"resize": {"rows", "columns"}}`,
/// `{"signal": N}`, `{"stdin_end": true}` and, last, the server's `{"end": …}`.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/attach", tag = "execs",
    params(("sandbox" = String, Path)),
    responses((status = 101), (status = "default", body = Error)))]
async fn attach_to_new(
    ask: Ask,
    Name(sandbox): Name,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Outcome {
    let place = stream_place(&ask)?;
    let upgrade = upgrade.map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    // A browser gives up where the protocol that it named is not confirmed.
    let protocol = crate::sessions::sent_protocol(&headers).map(str::to_owned);
    Ok(upgrade
        .protocols(protocol)
        .max_message_size(1 << 20)
        .on_upgrade(move |socket| attach::serve(socket, ask, sandbox, place))
        .into_response())
}

/// One exec, by id or unique beginning of an id
#[utoipa::path(get, path = "/v1/execs/{exec}", tag = "execs", params(("exec" = String, Path)),
    responses((status = 200, body = Exec), (status = "default", body = Error)))]
async fn show(ask: Ask, Name(exec): Name) -> Outcome {
    ask.answer(Call::FindExec { exec }).await
}

/// Send a signal to every process of an exec
#[utoipa::path(post, path = "/v1/execs/{exec}/signal", tag = "execs", request_body = SignalBody,
    params(("exec" = String, Path)),
    responses((status = 204), (status = "default", body = Error)))]
async fn signal(ask: Ask, Name(exec): Name, Json(body, _): Json<SignalBody>) -> Outcome {
    if !(1..=64).contains(&body.signal) {
        return Err(Failure::new(Code::Usage, "`signal` is from 1 to 64"));
    }
    ask.done(Call::Kill { exec, signal: body.signal }).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct KillQuery {
    /// Ask to end, instead of ending.
    #[serde(default)]
    gently: bool,
}

/// End an exec with everything it started
#[utoipa::path(post, path = "/v1/execs/{exec}/kill", tag = "execs",
    params(("exec" = String, Path), KillQuery),
    responses((status = 204), (status = "default", body = Error)))]
async fn kill(ask: Ask, Name(exec): Name, Query(query): Query<KillQuery>) -> Outcome {
    let signal = if query.gently { SIGTERM } else { SIGKILL };
    ask.done(Call::Kill { exec, signal }).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StdinQuery {
    /// No more will come.
    #[serde(default)]
    close: bool,
}

/// Bytes for the standard input of an exec that was started with `stdin`
#[utoipa::path(post, path = "/v1/execs/{exec}/stdin", tag = "execs",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(("exec" = String, Path), StdinQuery),
    responses((status = 204), (status = "default", body = Error)))]
async fn stdin(
    ask: Ask,
    Name(exec): Name,
    Query(query): Query<StdinQuery>,
    request: Request,
) -> Outcome {
    if ask.key.is_some() {
        return Err(Failure::new(
            Code::Usage,
            "input has no `idempotency-key`: the same bytes sent twice are input twice",
        ));
    }
    let bytes = whole(&ask.app, request, INPUT).await?;
    let found = ask.ask(Call::FindExec { exec }, "").await?.json()?;
    ask.app.inputs.give(exec_id(&found)?.as_str(), &bytes, query.close).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogsQuery {
    /// From this byte of the whole output on.
    #[serde(default)]
    from: u64,
    /// About as many bytes.
    #[param(minimum = 1, maximum = 8_388_608)]
    limit: Option<usize>,
}

/// Kept output from an offset on
#[utoipa::path(get, path = "/v1/execs/{exec}/logs", tag = "execs",
    params(("exec" = String, Path), LogsQuery),
    responses((status = 200, body = Logs), (status = "default", body = Error)))]
async fn logs(ask: Ask, Name(exec): Name, Query(query): Query<LogsQuery>) -> Outcome {
    let limit = query.limit.unwrap_or(PIECE);
    if !(1..=LARGEST_PIECE).contains(&limit) {
        return Err(Failure::new(Code::Usage, format!("`limit` is from 1 to {LARGEST_PIECE}")));
    }
    ask.answer(Call::Logs { exec, from: query.from, limit }).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamQuery {
    /// From this byte of the whole output on; `Last-Event-ID` counts for more.
    #[serde(default)]
    from: u64,
}

/// Output as it comes, as server-sent events
///
/// `output` events hold a chunk; their id is the offset behind it, so that a client that comes
/// back with `Last-Event-ID` misses nothing and gets nothing twice. The last event is `end`, with
/// the exec.
#[utoipa::path(get, path = "/v1/execs/{exec}/stream", tag = "execs",
    params(("exec" = String, Path), StreamQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, body = String, content_type = "text/event-stream"), (status = "default", body = Error)))]
async fn stream(
    ask: Ask,
    Name(exec): Name,
    Query(query): Query<StreamQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let from = following::resume_at(&headers)?.unwrap_or(query.from);
    let found = ask.ask(Call::FindExec { exec }, "").await?.json()?;
    let id = exec_id(&found)?;
    let place = stream_place(&ask)?;
    Ok(following::output(ask, id.to_string(), from, place).into_response())
}
