//! Review: what changed, and what is taken over.

use crate::app::Shared;
use crate::asking::{Ask, Json, Name, Query, absolute, json};
use crate::bodies::{ApproveBody, ProjectBody, PullBody, RejectBody};
use crate::calls::Call;
use crate::failure::{Failure, Outcome};
use crate::schema::{
    Approval, ApproveReport, Change, ChangeSet, Drift, Error, PullReport, RebaseReport,
    RejectReport, Sides,
};
use axum::http::StatusCode;
use serde::Deserialize;
use skep_types::Code;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(changes))
        .routes(routes!(file))
        .routes(routes!(approve))
        .routes(routes!(reject))
        .routes(routes!(conflicts))
        .routes(routes!(sides))
        .routes(routes!(rebase))
        .routes(routes!(history))
        .routes(routes!(approval))
        .routes(routes!(receipt))
        .routes(routes!(undo))
        .routes(routes!(undo_newest))
        .routes(routes!(finish))
        .routes(routes!(abandon))
        .routes(routes!(pull))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ChangesQuery {
    /// Without the lines: `hunks` are empty, whatever changed.
    #[serde(default)]
    brief: bool,
}

/// What a sandbox changed
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/changes", tag = "review",
    params(("sandbox" = String, Path), ChangesQuery),
    responses((status = 200, body = ChangeSet), (status = "default", body = Error)))]
async fn changes(ask: Ask, Name(sandbox): Name, Query(query): Query<ChangesQuery>) -> Outcome {
    ask.answer(Call::Diff { sandbox, brief: query.brief }).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PathQuery {
    /// Below the project; relative.
    path: String,
}

/// What a sandbox changed at one path
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/changes/file", tag = "review",
    params(("sandbox" = String, Path), PathQuery),
    responses((status = 200, body = Change), (status = "default", body = Error)))]
async fn file(ask: Ask, Name(sandbox): Name, Query(query): Query<PathQuery>) -> Outcome {
    let set = ask.ask(Call::Diff { sandbox, brief: false }, "").await?.json()?;
    let mut changes = set["changes"].as_array().into_iter().flatten();
    match changes.find(|change| change["path"] == query.path.as_str()) {
        Some(change) => json(StatusCode::OK, change),
        None => {
            let path = skep_types::escape::visible(query.path.as_bytes());
            Err(Failure::new(Code::NotFound, format!("`{path}` is not changed")))
        }
    }
}

/// Take a selection over into the project
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/approve", tag = "review", request_body = ApproveBody,
    params(("sandbox" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = ApproveReport), (status = "default", body = Error)))]
async fn approve(ask: Ask, Name(sandbox): Name, Json(body, said): Json<ApproveBody>) -> Outcome {
    ask.answer_to(Call::Approve { sandbox, request: Box::new(body.into()) }, &said).await
}

/// Drop a selection from the sandbox
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/reject", tag = "review", request_body = RejectBody,
    params(("sandbox" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = RejectReport), (status = "default", body = Error)))]
async fn reject(ask: Ask, Name(sandbox): Name, Json(body, said): Json<RejectBody>) -> Outcome {
    let call = Call::Reject {
        sandbox,
        selection: body.selection.into(),
        digest: body.digest,
        reason: body.reason,
    };
    ask.answer_to(call, &said).await
}

/// Where the project moved since create
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/conflicts", tag = "review",
    params(("sandbox" = String, Path)),
    responses((status = 200, body = Vec<Drift>), (status = "default", body = Error)))]
async fn conflicts(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.answer(Call::Conflicts { sandbox }).await
}

/// The three sides of a drifted path
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/sides", tag = "review",
    params(("sandbox" = String, Path), PathQuery),
    responses((status = 200, body = Sides), (status = "default", body = Error)))]
async fn sides(ask: Ask, Name(sandbox): Name, Query(query): Query<PathQuery>) -> Outcome {
    ask.answer(Call::Sides { sandbox, path: query.path.into() }).await
}

/// Take the project's newer state in
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/rebase", tag = "review",
    params(("sandbox" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = RebaseReport), (status = "default", body = Error)))]
async fn rebase(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.answer(Call::Rebase { sandbox }).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// The project's directory on the server's host.
    project: String,
    /// Only what touched this path, or something below it.
    path: Option<String>,
}

/// Approvals of a project, newest first
#[utoipa::path(get, path = "/v1/approvals", tag = "review", params(HistoryQuery),
    responses((status = 200, body = Vec<Approval>), (status = "default", body = Error)))]
async fn history(ask: Ask, Query(query): Query<HistoryQuery>) -> Outcome {
    let path = query.path.map(Into::into);
    ask.answer(Call::History { project: absolute(query.project)?, path }).await
}

/// One approval
#[utoipa::path(get, path = "/v1/approvals/{approval}", tag = "review",
    params(("approval" = String, Path)),
    responses((status = 200, body = Approval), (status = "default", body = Error)))]
async fn approval(ask: Ask, Name(approval): Name) -> Outcome {
    ask.answer(Call::Approval { approval }).await
}

/// The signed statement of an approval
#[utoipa::path(get, path = "/v1/approvals/{approval}/receipt", tag = "review",
    params(("approval" = String, Path)),
    responses((status = 200, body = Object), (status = "default", body = Error)))]
async fn receipt(ask: Ask, Name(approval): Name) -> Outcome {
    ask.answer(Call::Receipt { approval }).await
}

/// Reverse an approval
#[utoipa::path(post, path = "/v1/approvals/{approval}/undo", tag = "review",
    params(("approval" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = ApproveReport), (status = "default", body = Error)))]
async fn undo(ask: Ask, Name(approval): Name) -> Outcome {
    ask.answer(Call::Undo { approval: Some(approval), project: "/".into() }).await
}

/// Reverse the newest approval of a project
#[utoipa::path(post, path = "/v1/undo", tag = "review", request_body = ProjectBody,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = ApproveReport), (status = "default", body = Error)))]
async fn undo_newest(ask: Ask, Json(body, said): Json<ProjectBody>) -> Outcome {
    ask.answer_to(Call::Undo { approval: None, project: absolute(body.project)? }, &said).await
}

/// Finish an approval that needs attention: the approved versions are put in place
#[utoipa::path(post, path = "/v1/approvals/{approval}/finish", tag = "review",
    params(("approval" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = ApproveReport), (status = "default", body = Error)))]
async fn finish(ask: Ask, Name(approval): Name) -> Outcome {
    ask.answer(Call::Finish { approval }).await
}

/// Give up an approval that can be neither finished nor taken back; everything is kept
#[utoipa::path(post, path = "/v1/approvals/{approval}/abandon", tag = "review",
    params(("approval" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = ApproveReport), (status = "default", body = Error)))]
async fn abandon(ask: Ask, Name(approval): Name) -> Outcome {
    ask.answer(Call::Abandon { approval }).await
}

/// Fetch the commits made inside as `refs/skep/NAME/*`
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/pull", tag = "review", request_body = PullBody,
    params(("sandbox" = String, Path)),
    responses((status = 200, body = PullReport), (status = "default", body = Error)))]
async fn pull(ask: Ask, Name(sandbox): Name, Json(body, said): Json<PullBody>) -> Outcome {
    ask.answer_to(Call::Pull { sandbox, branch: body.branch }, &said).await
}
