//! What can go wrong between skep and a Docker engine.

use skep_provider::ProviderError;
use skep_types::{Code, Problem};
use std::io;

/// Why the engine, or something it was asked for, could not be had.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// The engine is somewhere else, or could be, or anybody's.
    #[error("the Docker engine at `{address}` cannot be used: {reason}")]
    Remote {
        /// As it was named.
        address: String,
        /// How that is known.
        reason: String,
    },
    /// Nobody answers.
    #[error("no Docker engine answers at `{address}`: {reason}")]
    Absent {
        /// Where it was looked for.
        address: String,
        /// What was seen.
        reason: String,
    },
    /// It answered, and not as hoped.
    #[error("the Docker engine could not {operation}: {reason}")]
    Refused {
        /// Operation and object.
        operation: String,
        /// In its words.
        reason: String,
    },
    /// No such image here.
    #[error("there is no image `{0}` here")]
    NoImage(String),
    /// A program that is needed is not here.
    #[error("{tool} is missing: {reason}")]
    Tool {
        /// Which.
        tool: &'static str,
        /// How that is known.
        reason: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Something on this host.
    #[error("cannot {operation}")]
    Io {
        /// Operation and object.
        operation: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Names what was being done when a file could not be used.
pub(crate) trait At<T> {
    fn at(self, operation: impl FnOnce() -> String) -> Result<T, DockerError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, operation: impl FnOnce() -> String) -> Result<T, DockerError> {
        self.map_err(|source| DockerError::Io { operation: operation(), source })
    }
}

/// The same for the engine's answers.
pub(crate) trait Asked<T> {
    fn asked(self, operation: impl FnOnce() -> String) -> Result<T, DockerError>;
}

impl<T> Asked<T> for Result<T, bollard::errors::Error> {
    fn asked(self, operation: impl FnOnce() -> String) -> Result<T, DockerError> {
        self.map_err(|error| DockerError::Refused { operation: operation(), reason: said(&error) })
    }
}

/// What the engine said, without the client's own words around it.
pub(crate) fn said(error: &bollard::errors::Error) -> String {
    use bollard::errors::Error;
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        other => skep_types::chain(other),
    }
}

/// The status of an answer that says no.
pub(crate) fn status(error: &bollard::errors::Error) -> Option<u16> {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

impl DockerError {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Remote { .. } => {
                "a sandbox's files lie on this host; name an engine of this host with `DOCKER_HOST=unix:///path` (or a port of it with TLS), or use `--provider namespace`"
            }
            Self::Absent { .. } => {
                "start it (`systemctl start docker`), name its socket with `DOCKER_HOST=unix:///path`, or join the group `docker`"
            }
            Self::NoImage(_) => {
                "`skep image pull REF` fetches one, `skep image import FILE REF` takes one from a file"
            }
            Self::Tool { remedy, .. } => remedy,
            Self::Refused { .. } | Self::Invalid(_) | Self::Io { .. } => "see `skep doctor`",
        }
    }

    /// The error as callers of `skep image` see it.
    pub fn problem(&self) -> Problem {
        let code = match self {
            Self::Remote { .. } | Self::Absent { .. } | Self::Tool { .. } => {
                Code::MissingCapability
            }
            Self::NoImage(_) => Code::NotFound,
            Self::Invalid(_) => Code::Usage,
            Self::Refused { .. } | Self::Io { .. } => Code::Io,
        };
        let problem = Problem::from_error(code, self);
        match self {
            Self::Remote { .. } | Self::Absent { .. } | Self::NoImage(_) | Self::Tool { .. } => {
                problem.hint(self.remedy())
            }
            _ => problem,
        }
    }
}

impl From<skep_images::ImageError> for DockerError {
    fn from(error: skep_images::ImageError) -> Self {
        match error {
            skep_images::ImageError::Io { operation, source } => Self::Io { operation, source },
            other => Self::Invalid(skep_types::chain(&other)),
        }
    }
}

impl From<DockerError> for ProviderError {
    fn from(error: DockerError) -> Self {
        match error {
            DockerError::Invalid(text) => Self::Invalid(text),
            DockerError::Io { operation, source } => Self::Setup { operation, source },
            other => Self::Missing {
                what: "the provider `docker`".into(),
                remedy: other.remedy().into(),
                reason: other.to_string(),
            },
        }
    }
}
