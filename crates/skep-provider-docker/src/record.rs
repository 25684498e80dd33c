//! What is known of a sandbox's container, beside the sandbox: for `show`, and for whoever has to
//! take the container away when nobody else is left to do it.

use crate::address::Address;
use crate::error::{At, DockerError};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// In the sandbox's directory, from before the container starts until it is gone.
const FILE: &str = "container.json";

/// The container of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The number of the state directory that has it.
    pub instance: String,
    /// The engine's id of it.
    pub container: String,
    /// The engine's name of the workspace volume, where there is one. It goes with the container,
    /// but not if somebody else removes that.
    pub volume: Option<String>,
    /// The image's name, or its id.
    pub image: String,
    /// The engine's version.
    pub engine: String,
    /// Where the engine listens.
    #[serde(flatten)]
    pub address: Address,
}

impl Record {
    /// The container of the sandbox in this directory, if it has one. What was copied along with another
    /// state directory is that one's.
    pub fn read(directory: &Path, instance: &str) -> Option<Self> {
        let record: Self =
            serde_json::from_slice(&std::fs::read(directory.join(FILE)).ok()?).ok()?;
        (record.instance == instance).then_some(record)
    }

    /// Remembers it, whole or not at all.
    pub fn write(&self, directory: &Path) -> Result<(), DockerError> {
        let step = || format!("write `{}`", directory.join(FILE).display());
        let text = serde_json::to_vec(self).map_err(std::io::Error::other).at(step)?;
        let new = directory.join(format!("{FILE}.new"));
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, directory.join(FILE)))
            .at(step)
    }

    /// Forgets it.
    pub fn remove(directory: &Path) {
        let _ = std::fs::remove_file(directory.join(FILE));
    }
}
