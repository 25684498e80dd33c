//! The way out of a sandbox.

use crate::app::Shared;
use crate::asking::{Ask, Json, Name};
use crate::bodies::{EgressBody, ProbeBody};
use crate::calls::Call;
use crate::failure::{Failure, Outcome};
use crate::schema::Error;
use axum::extract::Path;
use skep_engine::api::EgressChange;
use skep_types::Code;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Targets of one test.
const MOST_TARGETS: usize = 32;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(show, change)).routes(routes!(test)).routes(routes!(revoke))
}

/// What a sandbox may reach, and what it tried
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/net", tag = "network",
    params(("sandbox" = String, Path)),
    responses((status = 200, body = Object), (status = "default", body = Error)))]
async fn show(ask: Ask, Name(sandbox): Name) -> Outcome {
    ask.answer(Call::Egress { sandbox }).await
}

/// Change what a sandbox may reach; connections that are no longer allowed are cut
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/net", tag = "network", request_body = EgressBody,
    params(("sandbox" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Object), (status = "default", body = Error)))]
async fn change(ask: Ask, Name(sandbox): Name, Json(body, said): Json<EgressBody>) -> Outcome {
    let change = EgressChange { allow: body.allow, deny: body.deny };
    ask.answer_to(Call::ChangeEgress { sandbox, change }, &said).await
}

/// Try from inside whether hosts can be reached
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/net/test", tag = "network", request_body = ProbeBody,
    params(("sandbox" = String, Path)),
    responses((status = 200, body = Vec<Object>), (status = "default", body = Error)))]
async fn test(ask: Ask, Name(sandbox): Name, Json(body, said): Json<ProbeBody>) -> Outcome {
    if body.targets.len() > MOST_TARGETS {
        return Err(Failure::new(Code::Usage, format!("at most {MOST_TARGETS} `targets`")));
    }
    ask.answer_to(Call::ProbeEgress { sandbox, targets: body.targets }, &said).await
}

/// Forget a secret; connections that carry it are cut
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/secrets/{name}", tag = "network",
    params(("sandbox" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Object), (status = "default", body = Error)))]
async fn revoke(ask: Ask, Path((sandbox, name)): Path<(String, String)>) -> Outcome {
    ask.answer(Call::RevokeSecret { sandbox, name }).await
}
