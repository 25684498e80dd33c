//! Sandboxes: made, listed, moved through their states, deleted.

use crate::app::Shared;
use crate::asking::{Ask, Json, Name, Query, absolute};
use crate::bodies::{CreateBody, PatchBody, ProjectBody};
use crate::calls::Call;
use crate::failure::{Failure, Outcome};
use crate::roles::Role;
use crate::schema::{Error, Sandbox, SandboxPage};
use axum::http::StatusCode;
use serde::Deserialize;
use skep_engine::api::ListFilter;
use skep_engine::{Page, PageEnd};
use skep_types::{Code, Problem, SandboxState};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Sandboxes on one page, unless asked otherwise; and at most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(newest))
        .routes(routes!(show, patch, remove))
        .routes(routes!(start))
        .routes(routes!(stop))
        .routes(routes!(freeze))
        .routes(routes!(thaw))
}

/// Create a sandbox and start it
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key and body again give the same sandbox")),
    responses((status = 201, body = Sandbox), (status = "default", body = Error)))]
async fn create(ask: Ask, Json(body, said): Json<CreateBody>) -> Outcome {
    if body.widens() && ask.who.role < Role::Approver {
        return Err(Failure::new(
            Code::Forbidden,
            "what shows parts of the host, opens a way out or runs outside a fence is asked for by \
             role `approver` only",
        ));
    }
    let app = &ask.app;
    let request = body.resolve(app.home.clone(), app.environment.clone(), ask.create_key())?;
    ask.sandbox(Call::Create { request: Box::new(request) }, StatusCode::CREATED, &said).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Of this project only.
    project: Option<String>,
    /// In this state only.
    #[param(value_type = Option<String>)]
    state: Option<SandboxState>,
    /// With this label only: `key=value`, or `key`.
    label: Option<String>,
    /// At most this many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Where the page before said that this one starts.
    cursor: Option<String>,
}

/// List sandboxes, newest first
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, body = SandboxPage), (status = "default", body = Error)))]
async fn list(ask: Ask, Query(query): Query<ListQuery>) -> Outcome {
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(Failure::new(Code::Usage, format!("`limit` is from 1 to {LARGEST_PAGE}")));
    }
    let project = query.project.map(absolute).transpose()?;
    let filter = ListFilter { project, state: query.state };
    let after = query.cursor.as_deref().map(page_end).transpose()?;
    let page = Page { label: query.label, limit, after };
    ask.answer(Call::Page { filter, page }).await
}

/// What a cursor says: when the last sandbox of a page was made, and which of that moment were shown.
fn page_end(cursor: &str) -> Result<PageEnd, Problem> {
    let malformed = || Problem::new(Code::Usage, "`cursor` is none that this server gave");
    let bytes = skep_client::wire::from_base64(cursor).ok_or_else(malformed)?;
    let text = String::from_utf8(bytes).map_err(|_| malformed())?;
    let mut lines = text.split('\n');
    let at = lines.next().unwrap_or_default().to_owned();
    at.parse::<jiff::Timestamp>().map_err(|_| malformed())?;
    let shown: Result<Vec<_>, _> = lines.map(|id| id.parse().map_err(|_| malformed())).collect();
    Ok(PageEnd { at, shown: shown? })
}

/// The newest sandbox of a project, or `null`
#[utoipa::path(get, path = "/v1/newest", tag = "sandboxes", params(ProjectBody),
    responses((status = 200, body = Option<Sandbox>), (status = "default", body = Error)))]
async fn newest(ask: Ask, Query(query): Query<ProjectBody>) -> Outcome {
    ask.answer(Call::Newest { project: absolute(query.project)? }).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ShowQuery {
    /// Only what is remembered; sizes and warnings need a look.
    #[serde(default)]
    brief: bool,
}

/// A sandbox, by name, id, or unique beginning of an id
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes",
    params(("sandbox" = String, Path), ShowQuery),
    responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
async fn show(ask: Ask, Name(sandbox): Name, Query(query): Query<ShowQuery>) -> Outcome {
    let call = if query.brief { Call::Find { sandbox } } else { Call::Show { sandbox } };
    ask.sandbox(call, StatusCode::OK, "").await
}

/// Change labels, the time to live, limits and the network
///
/// Labels and the time to live at any moment; limits and the network while it is stopped. A running
/// sandbox answers 409, and `details.needs_restart` names what it cannot take. Rules of what may be
/// reached change by `POST …/net`, also while it runs.
#[utoipa::path(patch, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes", request_body = PatchBody,
    params(("sandbox" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
async fn patch(ask: Ask, Name(sandbox): Name, Json(body, said): Json<PatchBody>) -> Outcome {
    if body.widens() && ask.who.role < Role::Approver {
        return Err(Failure::new(
            Code::Forbidden,
            "a way out is given to a sandbox by role `approver` only",
        ));
    }
    let patch = Box::new(body.resolve()?);
    ask.sandbox(Call::Patch { sandbox, patch }, StatusCode::OK, &said).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// Unreviewed changes may go.
    #[serde(default)]
    discard: bool,
}

/// Delete; unreviewed changes need `discard`
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes",
    params(("sandbox" = String, Path), RemoveQuery, ("If-Match" = Option<String>, Header)),
    responses((status = 204), (status = "default", body = Error)))]
async fn remove(ask: Ask, Name(sandbox): Name, Query(query): Query<RemoveQuery>) -> Outcome {
    ask.done(Call::Remove { sandbox, discard: query.discard }).await
}

/// Start a stopped sandbox
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/start", tag = "sandboxes",
    params(("sandbox" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
async fn start(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.sandbox(Call::Start { sandbox }, StatusCode::OK, "").await
}

/// End everything inside; the changes are kept
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/stop", tag = "sandboxes",
    params(("sandbox" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
async fn stop(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.sandbox(Call::Stop { sandbox }, StatusCode::OK, "").await
}

/// Pause every process
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/freeze", tag = "sandboxes",
    params(("sandbox" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
async fn freeze(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.sandbox(Call::Freeze { sandbox }, StatusCode::OK, "").await
}

/// Let them go on
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/thaw", tag = "sandboxes",
    params(("sandbox" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
async fn thaw(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.sandbox(Call::Thaw { sandbox }, StatusCode::OK, "").await
}
