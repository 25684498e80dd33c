//! Files of a workspace, as its own view shows them.
//!
//! The engine's copy does the work: it reads and writes through the view, follows no link and
//! leaves the workspace by none. What is read or written here goes through a private file.

use crate::app::Shared;
use crate::asking::{Ask, Json, Name, Query, whole};
use crate::bodies::CopyBody;
use crate::calls::Call;
use crate::failure::{Failure, Outcome};
use crate::schema::{CopyReport, Entry, Error};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use skep_types::Code;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A file that travels in one request.
const LARGEST: usize = 64 << 20;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(read, write))
        .routes(routes!(list))
        .routes(routes!(stat))
        .routes(routes!(copy))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FileQuery {
    /// Below the project; relative.
    path: String,
}

/// Read a file
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files", tag = "files",
    params(("sandbox" = String, Path), FileQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = "default", body = Error)))]
async fn read(ask: Ask, Name(sandbox): Name, Query(query): Query<FileQuery>) -> Outcome {
    let reply = ask.ask(Call::ReadFile { sandbox, path: query.path.into() }, "").await?;
    let bytes = reply.json()?.as_str().and_then(skep_client::wire::from_base64);
    let bytes = bytes.ok_or_else(|| Failure::new(Code::Internal, "a file was expected"))?;
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, kind)], bytes).into_response())
}

/// What is in a directory; the project's own is the empty path
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/list", tag = "files",
    params(("sandbox" = String, Path), FileQuery),
    responses((status = 200, body = Vec<Entry>), (status = "default", body = Error)))]
async fn list(ask: Ask, Name(sandbox): Name, Query(query): Query<FileQuery>) -> Outcome {
    ask.answer(Call::ListFiles { sandbox, path: query.path.into() }).await
}

/// What stands at a path; a link is not followed
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/stat", tag = "files",
    params(("sandbox" = String, Path), FileQuery),
    responses((status = 200, body = Entry), (status = "default", body = Error)))]
async fn stat(ask: Ask, Name(sandbox): Name, Query(query): Query<FileQuery>) -> Outcome {
    ask.answer(Call::StatFile { sandbox, path: query.path.into() }).await
}

/// Write a file into a directory that is there
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/files", tag = "files",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(("sandbox" = String, Path), FileQuery),
    responses((status = 200, body = CopyReport), (status = "default", body = Error)))]
async fn write(
    ask: Ask,
    Name(sandbox): Name,
    Query(query): Query<FileQuery>,
    request: Request,
) -> Outcome {
    let bytes = whole(request, LARGEST).await?;
    let b64 = skep_client::wire::base64(&bytes);
    ask.answer(Call::WriteFile { sandbox, path: query.path.into(), b64 }).await
}

/// Copy between a workspace and the server's host
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/copy", tag = "files", request_body = CopyBody,
    params(("sandbox" = String, Path)),
    responses((status = 200, body = CopyReport), (status = "default", body = Error)))]
async fn copy(ask: Ask, Name(sandbox): Name, Json(body, said): Json<CopyBody>) -> Outcome {
    let path = body.path;
    let call = match (body.from, body.to) {
        (Some(from), None) if from.starts_with('/') => {
            Call::CopyIn { sandbox, path, from: from.into() }
        }
        (None, Some(to)) if to.starts_with('/') => Call::CopyOut { sandbox, path, to: to.into() },
        _ => {
            return Err(Failure::new(
                Code::Usage,
                "one of `from` and `to` is expected: an absolute path of the server's host",
            ));
        }
    };
    ask.answer_to(call, &said).await
}
