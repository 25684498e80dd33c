//! How an endpoint fails, in the OpenAPI document: by its method, what it names and who may ask.

use crate::roles::{self, Needs};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Response, ResponseBuilder};

/// Each status that an error has, with its codes.
const STATUSES: &[(u16, &str)] = &[
    (400, "`usage`: malformed, unknown, too long or out of range"),
    (401, "`unauthenticated`"),
    (403, "`forbidden`, `refused`, `risky`"),
    (404, "`not_found`"),
    (409, "`already_exists`, `conflict`, `digest_mismatch`, `illegal_state`, `unreviewed_changes`"),
    (412, "`stale_version`: `If-Match` names a version that is gone"),
    (413, "`too_large`"),
    (415, "`media_type`"),
    (422, "`key_reused`, `missing_capability`, `provider_unavailable`"),
    (429, "`over_quota`, with `Retry-After`"),
    (500, "`internal`, `io`, `store`"),
    (503, "`busy`, `unavailable`, with `Retry-After`"),
    (507, "`no_space`"),
];

/// Whether an endpoint may answer so.
fn may(status: u16, method: &str, path: &str, body: bool) -> bool {
    let open = roles::needs(method, path) == Some(Needs::Open);
    let acts = method != "GET";
    let named = path.contains('{');
    match status {
        400 | 500 | 503 => true,
        401 => !open || path == "/v1/session",
        403 => !open || acts,
        404 => named || path == "/v1/config" || acts && !open,
        409 => named || acts && !open,
        412 => acts && path.contains("{sandbox}"),
        413 => body,
        // Whatever is sent without being asked for has a form too.
        415 => matches!(method, "POST" | "PUT" | "PATCH"),
        422 => named || acts && !open,
        429 => starts(path) || path.ends_with("/stream") || path.ends_with("/watch"),
        507 => acts || named,
        _ => false,
    }
}

/// Whether it may start a sandbox, or takes a place among the streams.
fn starts(path: &str) -> bool {
    ["/v1/sandboxes", "/start", "/execs", "/attach", "/fork", "/pull", "/net/test", "/approve"]
        .iter()
        .any(|end| path.ends_with(end))
}

fn name(status: u16) -> String {
    format!("Error{status}")
}

fn response(text: &str) -> RefOr<Response> {
    let content = Content::new(Some(Ref::from_schema_name("Error")));
    ResponseBuilder::new().description(text).content("application/json", content).build().into()
}

/// Says of each endpoint how it may fail.
pub(crate) fn add(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let methods = [
            ("GET", &mut item.get),
            ("PUT", &mut item.put),
            ("POST", &mut item.post),
            ("PATCH", &mut item.patch),
            ("DELETE", &mut item.delete),
        ];
        for (method, operation) in methods {
            let Some(operation) = operation else { continue };
            if path == "/health/live" {
                continue;
            }
            let body = operation.request_body.is_some();
            for (status, _) in
                STATUSES.iter().filter(|(status, _)| may(*status, method, path, body))
            {
                let told = RefOr::Ref(Ref::from_response_name(name(*status)));
                operation.responses.responses.entry(status.to_string()).or_insert(told);
            }
        }
    }
    let components = document.components.get_or_insert_with(Default::default);
    for (status, text) in STATUSES {
        components.responses.insert(name(*status), response(text));
    }
}
