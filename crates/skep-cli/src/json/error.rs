//! `{ "error": { code, message, hint, retryable, details } }`.

use serde::Serialize;
use serde_json::Value;
use skep_types::{Code, Problem};

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorDocument<'a> {
    error: ErrorView<'a>,
}

/// What stands in it.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorView<'a> {
    code: Code,
    message: &'a str,
    hint: Option<&'a str>,
    retryable: bool,
    details: &'a Value,
}

impl<'a> ErrorDocument<'a> {
    /// Of a problem.
    pub(crate) fn new(problem: &'a Problem) -> Self {
        Self { error: ErrorView::new(problem) }
    }
}

impl<'a> ErrorView<'a> {
    /// Of a problem.
    pub(crate) fn new(problem: &'a Problem) -> Self {
        Self {
            code: problem.code,
            message: &problem.message,
            hint: problem.hint.as_deref(),
            retryable: problem.retryable,
            details: &problem.details,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_there() {
        let problem = Problem::new(Code::NotFound, "no such sandbox `x`");
        let json = serde_json::to_value(ErrorDocument::new(&problem)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({ "error": {
                "code": "not_found", "message": "no such sandbox `x`", "hint": null,
                "retryable": false, "details": null } })
        );
    }
}
