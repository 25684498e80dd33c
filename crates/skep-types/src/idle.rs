//! That a sandbox was stopped because nothing ran in it.

use crate::show_duration;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Left in the sandbox's directory by a keeper that ends by `--idle-timeout`: nobody asks it then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleStop {
    /// The keeper's process number: of an earlier keeper it says nothing about this one.
    pub keeper: u32,
    /// For how long nothing had run.
    pub after: Duration,
}

impl IdleStop {
    /// Its name in the sandbox's directory.
    pub const FILE: &str = "idle-stop.json";

    /// Half a sentence for people.
    pub fn reason(&self) -> String {
        format!("nothing ran for {} (`--idle-timeout`)", show_duration(self.after))
    }
}
