//! Errors as HTTP answers: the same problems as the command line's, by the same table.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use skep_types::{Code, Problem};

/// A problem on its way out. The body is written by [`finish`], which knows the request's id.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Problem);

/// A result of a handler.
pub(crate) type Outcome = Result<Response, Failure>;

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl Failure {
    /// From a code and a message.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Problem::new(code, message))
    }
}

#[derive(Clone)]
struct Pending(Problem);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        if let Ok(status) = StatusCode::from_u16(self.0.code.http_status()) {
            *response.status_mut() = status;
        }
        response.extensions_mut().insert(Pending(self.0));
        response
    }
}

#[derive(Serialize)]
struct Document<'a> {
    code: Code,
    message: &'a str,
    hint: Option<&'a str>,
    retryable: bool,
    details: &'a serde_json::Value,
    request_id: &'a str,
}

/// Gives an answer its id, and an error its body.
pub(crate) fn finish(mut response: Response, request_id: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert("x-request-id", value);
    }
    let Some(Pending(problem)) = response.extensions_mut().remove::<Pending>() else {
        return response;
    };
    let document = Document {
        code: problem.code,
        message: &problem.message,
        hint: problem.hint.as_deref(),
        retryable: problem.retryable,
        details: &problem.details,
        request_id,
    };
    let body = serde_json::to_vec(&document).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.remove(header::CONTENT_LENGTH);
    match problem.code {
        Code::OverQuota | Code::Unavailable => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        Code::Busy => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"))),
        Code::Unauthenticated => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        _ => {}
    }
    *response.body_mut() = Body::from(body);
    response
}
