//! Files of a workspace, as its own view shows them.
//!
//! The engine's copy does the work: it reads and writes through the view, follows no link and
//! leaves the workspace by none. Bytes that travel are kept in files without a name.

use crate::app::Shared;
use crate::asking::{Ask, Json, Name, Query, from_file, respond, stream_place};
use crate::bodies::{CopyBody, DirectoryBody, MoveBody};
use crate::calls::Call;
use crate::failure::{Failure, Outcome};
use crate::incoming::into_file;
use crate::pool::Reply;
use crate::schema::{CopyReport, Entry, Error};
use crate::{streaming, watching};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use skep_types::Code;
use std::sync::Arc;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A file that travels in one request.
const LARGEST: u64 = 64 << 20;
/// An archive that travels in one request.
const LARGEST_TAR: u64 = 1 << 30;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(read, write, remove))
        .routes(routes!(make_directory))
        .routes(routes!(rename))
        .routes(routes!(pack, unpack))
        .routes(routes!(watch))
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
    carried(reply, "application/octet-stream")
}

/// The file that came with an answer.
fn carried(mut reply: Reply, kind: &'static str) -> Outcome {
    let file = reply.stream.take();
    let file = file.ok_or_else(|| Failure::new(Code::Internal, "a file was expected"))?;
    let kind = HeaderValue::from_static(kind);
    Ok(([(header::CONTENT_TYPE, kind)], from_file(file.into())).into_response())
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
    let kept = into_file(&ask.app, request, LARGEST).await?;
    let call = Call::WriteFile { sandbox, path: query.path.into() };
    let reply = ask.ask_with(call, &kept.hash, Some(Arc::clone(&kept.file))).await?;
    Ok(respond(StatusCode::OK, reply))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// Below the project; relative.
    path: String,
    /// A directory with what is in it.
    #[serde(default)]
    recursive: bool,
}

/// Remove a file, a link or a directory
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/files", tag = "files",
    params(("sandbox" = String, Path), RemoveQuery, ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = CopyReport), (status = "default", body = Error)))]
async fn remove(ask: Ask, Name(sandbox): Name, Query(query): Query<RemoveQuery>) -> Outcome {
    let (path, recursive) = (query.path, query.recursive);
    let said = format!("{recursive} {path}");
    ask.answer_to(Call::RemoveFile { sandbox, path: path.into(), recursive }, &said).await
}

/// Make a directory
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/directory", tag = "files",
    request_body = DirectoryBody,
    params(("sandbox" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 201, body = Entry), (status = "default", body = Error)))]
async fn make_directory(
    ask: Ask,
    Name(sandbox): Name,
    Json(body, said): Json<DirectoryBody>,
) -> Outcome {
    let call = Call::MakeDirectory { sandbox, path: body.path, parents: body.parents };
    Ok(respond(StatusCode::CREATED, ask.ask(call, &said).await?))
}

/// Move an entry to a path where nothing is
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/move", tag = "files",
    request_body = MoveBody,
    params(("sandbox" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = CopyReport), (status = "default", body = Error)))]
async fn rename(ask: Ask, Name(sandbox): Name, Json(body, said): Json<MoveBody>) -> Outcome {
    let call = Call::MoveFile { sandbox, from: body.from, to: body.to };
    ask.answer_to(call, &said).await
}

/// A file, or what is in a directory, as a tar
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/tar", tag = "files",
    params(("sandbox" = String, Path), FileQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/x-tar"), (status = "default", body = Error)))]
async fn pack(ask: Ask, Name(sandbox): Name, Query(query): Query<FileQuery>) -> Outcome {
    let reply = ask.ask(Call::Pack { sandbox, path: query.path.into() }, "").await?;
    carried(reply, "application/x-tar")
}

/// Put what is in a tar below a directory, which is made if it is not there
///
/// Files, directories and links; what else is in it is named in `skipped`. What would leave the
/// directory, or go through a link, is refused, and nothing is written.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/files/tar", tag = "files",
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    params(("sandbox" = String, Path), FileQuery, ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = CopyReport), (status = "default", body = Error)))]
async fn unpack(
    ask: Ask,
    Name(sandbox): Name,
    Query(query): Query<FileQuery>,
    request: Request,
) -> Outcome {
    let kept = into_file(&ask.app, request, LARGEST_TAR).await?;
    let call = Call::Unpack { sandbox, path: query.path.into() };
    let reply = ask.ask_with(call, &kept.hash, Some(Arc::clone(&kept.file))).await?;
    Ok(respond(StatusCode::OK, reply))
}

/// What changes at a path and below it, as server-sent events
///
/// `change` events hold a path and what happened: `created`, `modified` or `deleted`. They are told
/// from when the answer begins; several changes of one path in a short time are one. The last event is
/// `end`, when the workspace has gone.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/watch", tag = "files",
    params(("sandbox" = String, Path), FileQuery),
    responses((status = 200, body = String, content_type = "text/event-stream"), (status = "default", body = Error)))]
async fn watch(ask: Ask, Name(sandbox): Name, Query(query): Query<FileQuery>) -> Outcome {
    let place = stream_place(&ask)?;
    let mut reply = ask.ask(Call::Watch { sandbox, path: query.path.into() }, "").await?;
    let stream = reply.stream.take();
    let stream = stream.ok_or_else(|| Failure::new(Code::Internal, "a watch was expected"))?;
    Ok(watching::follow(ask, streaming::adopt(stream)?, place).await?.into_response())
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
