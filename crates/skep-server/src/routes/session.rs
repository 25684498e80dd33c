//! Logging in and out, for browsers.

use crate::app::Shared;
use crate::asking::{Ask, json};
use crate::failure::{Failure, Outcome};
use crate::incoming::whole;
use crate::schema::{Error, Session};
use crate::sessions::no_cookie;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use skep_types::Code;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Anybody may send a login, so that it is short.
const MOST: usize = 4 << 10;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(log_in, log_out))
}

/// A login.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Login {
    /// The token; it is in no URL, and nothing of it is kept.
    token: String,
}

/// Log in
///
/// Sets a cookie that scripts cannot read (`HttpOnly`, `SameSite=Strict`) and answers with a key. Both
/// are needed from then on: the key goes into the header `x-skep-session`, or for a WebSocket
/// into the protocol `skep.session.KEY`. The session may what the token may, and ends after 12 hours,
/// by logging out, or with the token.
#[utoipa::path(post, path = "/v1/session", tag = "session", security(()), request_body = Login,
    responses((status = 200, body = Session), (status = "default", body = Error)))]
async fn log_in(State(app): State<Shared>, request: Request) -> Outcome {
    let bytes = whole(&app, request, MOST).await?;
    // What was sent may be a token: nothing of it is said back.
    let login: Login = serde_json::from_slice(&bytes)
        .map_err(|_| Failure::new(Code::Usage, "the body is not `{\"token\": \"…\"}`"))?;
    let known = app.by_secret(&login.token);
    let wrong = || Failure::new(Code::Unauthenticated, "the token is wrong, expired or revoked");
    let (who, with, end) = known.ok_or_else(wrong)?;
    let opened = app.sessions.open(with, end.as_deref(), &app.now())?;
    let mut response = json(
        StatusCode::OK,
        &Session {
            name: who.name.clone(),
            role: who.role.to_string(),
            sandbox: who.bound.as_ref().map(ToString::to_string),
            key: opened.key,
            expires_at: opened.expires_at,
        },
    )?;
    response.extensions_mut().insert(who);
    let headers = response.headers_mut();
    headers.insert(header::SET_COOKIE, opened.set_cookie);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Log out
#[utoipa::path(delete, path = "/v1/session", tag = "session",
    responses((status = 204), (status = "default", body = Error)))]
async fn log_out(ask: Ask) -> Outcome {
    let Some(session) = &ask.who.session else {
        return Err(Failure::new(Code::Usage, "this request does not come by a session"));
    };
    ask.app.sessions.end(session)?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = no_cookie() {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}
