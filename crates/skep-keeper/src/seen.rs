//! What was seen of a sandbox when it started, kept beside it: a machine's number and version, a runtime's
//! file. Whoever asks later is told what runs, not what would be started now.

use crate::failure::{Failure, Step};
use crate::protocol::to_json;
use serde::{Deserialize, Serialize};
use skep_provider::RunSpec;
use std::collections::BTreeMap;
use std::path::Path;

/// The file's name in the sandbox's directory.
const FILE: &str = "facts.json";

#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    /// By whom: what another keeper saw is of another start.
    keeper: i32,
    facts: BTreeMap<String, String>,
}

/// Keeps them. Called by the keeper; where there is nothing to tell, nothing is written.
pub fn write(spec: &RunSpec, facts: BTreeMap<String, String>) -> Result<(), Failure> {
    if facts.is_empty() {
        return Ok(());
    }
    let keeper = rustix::process::getpid().as_raw_nonzero().get();
    let path = spec.directory.join(FILE);
    std::fs::write(&path, to_json(&Seen { keeper, facts }))
        .step(|| format!("write `{}`", path.display()))
}

/// What the keeper of this number saw.
pub fn read(directory: &Path, keeper: i32) -> BTreeMap<String, String> {
    let bytes = std::fs::read(directory.join(FILE)).unwrap_or_default();
    let seen = serde_json::from_slice::<Seen>(&bytes).ok();
    seen.filter(|seen| seen.keeper == keeper).map(|seen| seen.facts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_keeper_saw_is_not_told() {
        let place = tempfile::tempdir().unwrap();
        let facts = BTreeMap::from([("vm_pid".to_owned(), "7".to_owned())]);
        let seen = Seen { keeper: 41, facts: facts.clone() };
        std::fs::write(place.path().join(FILE), to_json(&seen)).unwrap();
        assert_eq!(read(place.path(), 41), facts);
        assert_eq!(read(place.path(), 42), BTreeMap::new());
    }
}
