//! What becomes of processes that outlive their exec.

use crate::EndReason;
use serde::{Deserialize, Serialize};

/// That a limit ended processes while no exec ran, left in the sandbox's directory: there was no exec
/// whose result could say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StraysEnded {
    /// For which limit.
    pub reason: EndReason,
    /// How often that has happened in this sandbox.
    pub times: u64,
}

impl StraysEnded {
    /// Its name in the sandbox's directory.
    pub const FILE: &str = "strays-ended.json";

    /// A file that is there once an event tells of it.
    pub fn told(&self) -> String {
        format!("strays-ended.{}.told", self.times)
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        format!("processes that had outlived their exec were ended for a limit (`{}`)", self.reason)
    }
}
