//! How the server is. Answered to anybody, so it says next to nothing.

use crate::app::Shared;
use crate::asking::{Ask, json};
use crate::canary::Canary;
use crate::failure::{Failure, Outcome};
use crate::schema::{Error, Health, WhoAmI};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use skep_types::Code;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(live))
        .routes(routes!(ready))
        .routes(routes!(metrics))
        .routes(routes!(openapi))
        .routes(routes!(whoami))
}

/// The process answers
#[utoipa::path(get, path = "/health/live", tag = "health", security(()),
    responses((status = 200, body = Health)))]
async fn live() -> Outcome {
    json(StatusCode::OK, &Health { status: "ok" })
}

/// A sandbox can be created, run and deleted: tried, and remembered for some seconds
#[utoipa::path(get, path = "/health/ready", tag = "health", security(()),
    responses((status = 200, body = Health), (status = "default", body = Error)))]
async fn ready(State(app): State<Shared>) -> Outcome {
    // Whoever changes nothing any more is not ready, however well it was some seconds ago.
    let over = *app.stopping.borrow() || app.pool.halted().is_some();
    if !over && Canary::sings(&app).await && app.pool.halted().is_none() {
        return json(StatusCode::OK, &Health { status: "ok" });
    }
    // Why is in the log: this is answered to anybody.
    Err(Failure::new(Code::Unavailable, "the server is not ready"))
}

/// Figures for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, body = String, content_type = "text/plain"), (status = "default", body = Error)))]
async fn metrics(State(app): State<Shared>) -> Response {
    update_tally(&app).await;
    app.count_verdicts().await;
    let mut response = app.metrics.render().into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn update_tally(app: &Shared) {
    let tally = app.ask_own(crate::calls::Call::Tally).await;
    if let Some(tally) = tally.ok().and_then(|reply| serde_json::from_slice(&reply.value).ok()) {
        app.metrics.tally(tally);
    }
}

/// This document
#[utoipa::path(get, path = "/v1/openapi.json", tag = "health",
    responses((status = 200, body = Object), (status = "default", body = Error)))]
async fn openapi() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], crate::openapi()).into_response()
}

/// Who one is to this server
#[utoipa::path(get, path = "/v1/whoami", tag = "health",
    responses((status = 200, body = WhoAmI), (status = "default", body = Error)))]
async fn whoami(ask: Ask) -> Outcome {
    let who = &ask.who;
    json(
        StatusCode::OK,
        &WhoAmI {
            name: who.name.clone(),
            role: who.role.to_string(),
            sandbox: who.bound.as_ref().map(ToString::to_string),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    )
}
