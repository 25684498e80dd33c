//! Why a sandbox could not be set up, as it travels from init to the keeper to the caller.

use serde::{Deserialize, Serialize};
use skep_provider::{Moved, ProviderError};
use std::io;

/// A failed step of the set-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// A system call failed.
    Step {
        /// Operation and object: `mount the workspace at …`.
        operation: String,
        /// What the kernel said.
        errno: i32,
    },
    /// Something failed that was no system call.
    Said {
        /// Operation and object.
        operation: String,
        /// Why.
        reason: String,
    },
    /// The request is wrong.
    Invalid(String),
    /// The request is wrong, and this is how it would be right.
    Wrong {
        /// What is wrong with what.
        message: String,
        /// What to ask for instead.
        hint: String,
    },
    /// The host cannot give what was asked for.
    Missing {
        /// What.
        what: String,
        /// Why.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// Somebody who was stopped went on by itself.
    Moved(Moved),
}

impl Failure {
    /// A wrong request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    /// A capability that is not there.
    pub fn missing(
        what: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Missing { what: what.into(), reason: reason.into(), remedy: remedy.into() }
    }

    /// The kernel made no network.
    pub fn no_network(error: io::Error) -> Self {
        let remedy = "see `skep doctor`; often `sysctl user.max_net_namespaces=65536`";
        Self::refused_namespace(error, "a network namespace", "make the sandbox's network", remedy)
    }

    /// The kernel made no namespaces.
    pub fn no_namespaces(error: io::Error) -> Self {
        let remedy = "see `skep doctor`; often `sysctl kernel.apparmor_restrict_unprivileged_userns=0` or `sysctl user.max_user_namespaces=65536`";
        Self::refused_namespace(error, "a user namespace", "make the sandbox's namespaces", remedy)
    }

    fn refused_namespace(error: io::Error, what: &str, operation: &str, remedy: &str) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EUSERS) => {
                Self::missing(what, format!("the kernel refused to make one: {error}"), remedy)
            }
            errno => Self::Step { operation: operation.into(), errno: errno.unwrap_or(libc::EIO) },
        }
    }
}

impl From<Failure> for ProviderError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Step { operation, errno } => {
                Self::Setup { operation, source: io::Error::from_raw_os_error(errno) }
            }
            Failure::Said { operation, reason } => {
                Self::Setup { operation, source: io::Error::other(reason) }
            }
            Failure::Moved(moved) => Self::Moved(moved),
            Failure::Invalid(message) => Self::Invalid(message),
            Failure::Wrong { message, hint } => Self::Wrong { message, hint },
            Failure::Missing { what, reason, remedy } => Self::Missing { what, reason, remedy },
        }
    }
}

/// Names the step that a result belongs to.
pub trait Step<T> {
    /// The same result, with the operation and object in its error.
    fn step(self, operation: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, operation: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| {
            let error: io::Error = error.into();
            match error.raw_os_error() {
                Some(errno) => Failure::Step { operation: operation(), errno },
                None => Failure::Said { operation: operation(), reason: error.to_string() },
            }
        })
    }
}
