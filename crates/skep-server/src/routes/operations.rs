//! Events, upkeep, the host and the server itself.

use crate::app::Shared;
use crate::asking::{Ask, Json, Query, absolute, from_files, stream_place};
use crate::bodies::GcBody;
use crate::calls::Call;
use crate::failure::{Failure, Outcome};
use crate::following;
use crate::schema::{Error, Event, Finding, GcDecision, Provider, Setting, StatsDocument};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use skep_types::Code;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Events in one answer, unless asked otherwise; and at most.
const EVENTS: usize = 500;
const MOST_EVENTS: usize = 5000;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(events))
        .routes(routes!(event_stream))
        .routes(routes!(gc))
        .routes(routes!(doctor))
        .routes(routes!(providers))
        .routes(routes!(config))
        .routes(routes!(stats))
        .routes(routes!(audit))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Only those behind this number.
    #[serde(default)]
    after: u64,
    /// At most this many.
    #[param(minimum = 1, maximum = 5000)]
    limit: Option<usize>,
}

/// What happened
#[utoipa::path(get, path = "/v1/events", tag = "operations", params(EventsQuery),
    responses((status = 200, body = Vec<Event>), (status = "default", body = Error)))]
async fn events(ask: Ask, Query(query): Query<EventsQuery>) -> Outcome {
    let limit = query.limit.unwrap_or(EVENTS);
    if !(1..=MOST_EVENTS).contains(&limit) {
        return Err(Failure::new(Code::Usage, format!("`limit` is from 1 to {MOST_EVENTS}")));
    }
    ask.answer(Call::Events { after: query.after, limit }).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FollowQuery {
    /// Only those behind this number; `Last-Event-ID` counts for more.
    #[serde(default)]
    after: u64,
}

/// What happens, as server-sent events; their id is the event's number
#[utoipa::path(get, path = "/v1/events/stream", tag = "operations",
    params(FollowQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, body = String, content_type = "text/event-stream"), (status = "default", body = Error)))]
async fn event_stream(
    ask: Ask,
    Query(query): Query<FollowQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let after = following::resume_at(&headers)?.unwrap_or(query.after);
    let place = stream_place(&ask)?;
    Ok(following::events(ask, after, place).into_response())
}

/// Clean up
#[utoipa::path(post, path = "/v1/gc", tag = "operations", request_body = GcBody,
    responses((status = 200, body = Vec<GcDecision>), (status = "default", body = Error)))]
async fn gc(ask: Ask, Json(body, said): Json<GcBody>) -> Outcome {
    ask.answer_to(Call::Gc { request: body.resolve()? }, &said).await
}

/// Probe what works on the server's host
#[utoipa::path(get, path = "/v1/doctor", tag = "operations",
    responses((status = 200, body = Vec<Finding>), (status = "default", body = Error)))]
async fn doctor(ask: Ask) -> Outcome {
    ask.answer(Call::Doctor).await
}

/// Where sandboxes can run
#[utoipa::path(get, path = "/v1/providers", tag = "operations",
    responses((status = 200, body = Vec<Provider>), (status = "default", body = Error)))]
async fn providers(ask: Ask) -> Outcome {
    ask.answer(Call::Providers).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ConfigQuery {
    /// With what this project's own file says.
    project: Option<String>,
}

/// The settings in force
#[utoipa::path(get, path = "/v1/config", tag = "operations", params(ConfigQuery),
    responses((status = 200, body = Vec<Setting>), (status = "default", body = Error)))]
async fn config(ask: Ask, Query(query): Query<ConfigQuery>) -> Outcome {
    let project = query.project.map(absolute).transpose()?;
    ask.answer(Call::Config { project }).await
}

/// Sums over all sandboxes
#[utoipa::path(get, path = "/v1/stats", tag = "operations",
    responses((status = 200, body = StatsDocument), (status = "default", body = Error)))]
async fn stats(ask: Ask) -> Outcome {
    ask.answer(Call::Stats).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// Instead of acts: who was turned away without being known.
    #[serde(default)]
    strangers: bool,
}

/// Who did what, when and from where: one JSON object per line
///
/// Lines are numbered; a number that is missing is a line that was let go. Kept are 8 files of 64 MiB,
/// of strangers 16 MiB.
#[utoipa::path(get, path = "/v1/audit", tag = "operations", params(AuditQuery),
    responses((status = 200, body = String, content_type = "application/x-ndjson"), (status = "default", body = Error)))]
async fn audit(ask: Ask, Query(query): Query<AuditQuery>) -> Outcome {
    let files = ask.app.audit.files(query.strangers);
    let files =
        files.map_err(|error| Failure::new(Code::Io, format!("cannot read the audit: {error}")))?;
    let kind = HeaderValue::from_static("application/x-ndjson");
    Ok(([(header::CONTENT_TYPE, kind)], from_files(files)).into_response())
}
