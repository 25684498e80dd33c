//! That a sandbox stopped by itself, because nothing ran in it any more.

use crate::show_duration;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Left in the sandbox's directory by a keeper that ends without having been asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleStop {
    /// The keeper's process number: of an earlier keeper it says nothing about this one.
    pub keeper: u32,
    /// For how long nothing had run.
    pub after: Duration,
    /// Whether the command of the run that it was made for had ended, and nobody was left to say stop.
    #[serde(default)]
    pub forsaken: bool,
    /// Whether that command had not even begun.
    #[serde(default)]
    pub unbegun: bool,
}

impl IdleStop {
    /// Its name in the sandbox's directory.
    pub const FILE: &str = "idle-stop.json";

    /// Half a sentence for people.
    pub fn reason(&self) -> String {
        match (self.forsaken, self.unbegun) {
            (true, true) => "whoever made it for a command was gone before that began".to_owned(),
            (true, false) => "its command had ended, and whoever ran it was gone".to_owned(),
            (false, _) => {
                format!("nothing ran for {} (`--idle-timeout`)", show_duration(self.after))
            }
        }
    }
}
