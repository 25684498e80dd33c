//! Errors as callers see them: a stable code, a message, a hint; one table to exit codes.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// The stable codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request itself is wrong.
    Usage,
    /// No such sandbox, exec, approval, path.
    NotFound,
    /// The name or resource is taken.
    AlreadyExists,
    /// The project or the sandbox moved, or both changed the same lines; nothing was changed.
    Conflict,
    /// The change set is not the one that was reviewed.
    DigestMismatch,
    /// The move is not in the table of states.
    IllegalState,
    /// There is unreviewed work that would be lost.
    UnreviewedChanges,
    /// A rule says no.
    Refused,
    /// A risky path needs a word of its own.
    Risky,
    /// The host cannot give what was asked for.
    MissingCapability,
    /// The provider is not there or not working.
    ProviderUnavailable,
    /// Somebody else holds it right now.
    Busy,
    /// No space, quota or inodes.
    NoSpace,
    /// The store cannot be read or written.
    Store,
    /// A file operation failed.
    Io,
    /// Nobody known asks: no token, or one that is wrong, expired or revoked.
    Unauthenticated,
    /// Whoever asks may not do that.
    Forbidden,
    /// There is no such way to ask.
    MethodNotAllowed,
    /// The thing was changed since it was looked at.
    StaleVersion,
    /// The request is larger than is taken.
    TooLarge,
    /// The request is not in a form that is taken here.
    MediaType,
    /// The idempotency key was used for another request.
    KeyReused,
    /// As many, or as much, as is allowed is there already.
    OverQuota,
    /// The server cannot be reached, or is about to stop.
    Unavailable,
    /// A bug of ours.
    Internal,
}

impl Code {
    /// The exit code of commands other than `run`, `exec` and `shell`.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::AlreadyExists
            | Self::Conflict
            | Self::DigestMismatch
            | Self::IllegalState
            | Self::UnreviewedChanges
            | Self::StaleVersion
            | Self::KeyReused => 4,
            Self::Refused
            | Self::Risky
            | Self::MissingCapability
            | Self::ProviderUnavailable
            | Self::Unauthenticated
            | Self::Forbidden => 5,
            Self::MethodNotAllowed | Self::TooLarge | Self::MediaType => 2,
            Self::Busy
            | Self::NoSpace
            | Self::Store
            | Self::Io
            | Self::Internal
            | Self::OverQuota
            | Self::Unavailable => 1,
        }
    }

    /// The status of an HTTP answer that carries it.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Usage => 400,
            Self::Unauthenticated => 401,
            Self::Refused | Self::Risky | Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::AlreadyExists
            | Self::Conflict
            | Self::DigestMismatch
            | Self::IllegalState
            | Self::UnreviewedChanges => 409,
            Self::StaleVersion => 412,
            Self::TooLarge => 413,
            Self::MediaType => 415,
            Self::KeyReused | Self::MissingCapability | Self::ProviderUnavailable => 422,
            Self::OverQuota => 429,
            Self::Store | Self::Io | Self::Internal => 500,
            Self::Busy | Self::Unavailable => 503,
            Self::NoSpace => 507,
        }
    }

    /// What helps, where it is the same whatever was being done.
    fn usual_hint(self) -> Option<&'static str> {
        match self {
            Self::NoSpace => {
                Some("free some space there; `skep gc` and `skep rm --discard NAME` make room")
            }
            _ => None,
        }
    }

    /// Whether the same request may succeed later by itself.
    pub fn retryable(self) -> bool {
        matches!(self, Self::Busy | Self::NoSpace | Self::OverQuota | Self::Unavailable)
    }
}

/// An error for the caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable.
    pub code: Code,
    /// Names the operation and the object; lower case, no full stop.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Data for programs.
    pub details: Value,
}

impl Problem {
    /// A problem without a hint.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: code.usual_hint().map(str::to_owned),
            retryable: code.retryable(),
            details: Value::Null,
        }
    }

    /// The same with a hint, instead of the usual one.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with data for programs.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// A problem from an error and its causes, in one line.
    pub fn from_error(code: Code, error: &dyn std::error::Error) -> Self {
        Self::new(code, chain(error))
    }
}

/// An error and its causes in one line: `cannot open `x`: permission denied`.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}
