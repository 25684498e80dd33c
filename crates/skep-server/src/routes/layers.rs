//! Snapshots, forks, comparisons, templates.

use crate::app::Shared;
use crate::asking::{Ask, Json, Name};
use crate::bodies::{CompareBody, ForkBody, RestoreBody, SnapshotBody, TemplateBody};
use crate::calls::Call;
use crate::failure::{Failure, Outcome};
use crate::schema::{Comparison, Error, Sandbox, Snapshot};
use axum::http::StatusCode;
use skep_types::{Code, SandboxName};
use std::collections::BTreeSet;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Sandboxes that one request may make.
const MOST_FORKS: u32 = 100;

/// Sandboxes that one request may compare.
const MOST_COMPARED: usize = 100;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(snapshots, snapshot))
        .routes(routes!(restore))
        .routes(routes!(fork))
        .routes(routes!(compare))
        .routes(routes!(templates))
        .routes(routes!(save_template, remove_template))
}

/// Snapshots of a sandbox
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/snapshots", tag = "layers",
    params(("sandbox" = String, Path)),
    responses((status = 200, body = Vec<Snapshot>), (status = "default", body = Error)))]
async fn snapshots(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.answer(Call::Snapshots { sandbox }).await
}

/// Freeze the upper as a layer with a label
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/snapshots", tag = "layers", request_body = SnapshotBody,
    params(("sandbox" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = Snapshot), (status = "default", body = Error)))]
async fn snapshot(ask: Ask, Name(sandbox): Name, Json(body, said): Json<SnapshotBody>) -> Outcome {
    ask.answer_to(Call::Snapshot { sandbox, label: body.label }, &said).await
}

/// Go back to a label
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/restore", tag = "layers", request_body = RestoreBody,
    params(("sandbox" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Sandbox), (status = "default", body = Error)))]
async fn restore(ask: Ask, Name(sandbox): Name, Json(body, said): Json<RestoreBody>) -> Outcome {
    ask.sandbox(Call::Restore { sandbox, label: body.label }, StatusCode::OK, &said).await
}

/// Start new sandboxes on the same layers
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/fork", tag = "layers", request_body = ForkBody,
    params(("sandbox" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = Vec<Sandbox>), (status = "default", body = Error)))]
async fn fork(ask: Ask, Name(sandbox): Name, Json(body, said): Json<ForkBody>) -> Outcome {
    let count = body.count.unwrap_or(1);
    if !(1..=MOST_FORKS).contains(&count) {
        return Err(Failure::new(Code::Usage, format!("`count` is from 1 to {MOST_FORKS}")));
    }
    ask.answer_to(Call::Fork { sandbox, count, name: body.name }, &said).await
}

/// Sandboxes side by side
#[utoipa::path(post, path = "/v1/compare", tag = "layers", request_body = CompareBody,
    responses((status = 200, body = Comparison), (status = "default", body = Error)))]
async fn compare(ask: Ask, Json(body, said): Json<CompareBody>) -> Outcome {
    let different: BTreeSet<_> = body.sandboxes.iter().collect();
    if !(2..=MOST_COMPARED).contains(&body.sandboxes.len())
        || different.len() < body.sandboxes.len()
    {
        let message = format!("`sandboxes` are 2 to {MOST_COMPARED}, each once");
        return Err(Failure::new(Code::Usage, message));
    }
    ask.answer_to(Call::Compare { sandboxes: body.sandboxes }, &said).await
}

/// Named states to create sandboxes from
#[utoipa::path(get, path = "/v1/templates", tag = "layers",
    responses((status = 200, body = Vec<Snapshot>), (status = "default", body = Error)))]
async fn templates(ask: Ask) -> Outcome {
    ask.answer(Call::Templates).await
}

fn parse(name: &str) -> Result<SandboxName, Failure> {
    SandboxName::parse(name).map_err(|error| Failure::new(Code::Usage, error.to_string()))
}

/// Save the state of a sandbox under a name
#[utoipa::path(put, path = "/v1/templates/{name}", tag = "layers", request_body = TemplateBody,
    params(("name" = String, Path)),
    responses((status = 200, body = Snapshot), (status = "default", body = Error)))]
async fn save_template(
    ask: Ask,
    Name(name): Name,
    Json(body, said): Json<TemplateBody>,
) -> Outcome {
    let call = Call::SaveTemplate { sandbox: body.sandbox, name: parse(&name)? };
    ask.answer_to(call, &said).await
}

/// Forget a template
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "layers",
    params(("name" = String, Path)),
    responses((status = 204), (status = "default", body = Error)))]
async fn remove_template(ask: Ask, Name(name): Name) -> Outcome {
    ask.done(Call::RemoveTemplate { name: parse(&name)? }).await
}
