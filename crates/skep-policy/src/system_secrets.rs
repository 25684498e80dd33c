//! What of the host's system is never seen inside, even copy-on-write.

use serde::Deserialize;
use std::path::Path;

const DATA: &str = include_str!(concat!(env!("OUT_DIR"), "/system-secrets.json"));

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemSecret {
    /// Absolute; a `*` at its end means any rest of that name.
    pub path: String,
    /// Whether the directory is there, with nothing in it.
    #[serde(default)]
    pub empty: bool,
    /// Why.
    pub reason: String,
}

impl SystemSecret {
    /// The directory it lies in, what its name begins with, and whether that is all of the name.
    pub fn parts(&self) -> (&Path, &str, NameMatch) {
        let (directory, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        match name.strip_suffix('*') {
            Some(start) => (Path::new(directory), start, NameMatch::Start),
            None => (Path::new(directory), name, NameMatch::Whole),
        }
    }
}

/// How a name is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameMatch {
    /// Equal.
    Whole,
    /// Begins with.
    Start,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DataFile {
    #[serde(rename = "version")]
    _version: u32,
    mask: Vec<SystemSecret>,
}

/// The built-in list cannot be read; a test makes sure that this cannot happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the built-in list of system secrets: {0}")]
pub struct SystemSecretsError(String);

/// The built-in list.
pub fn system_secrets() -> Result<Vec<SystemSecret>, SystemSecretsError> {
    let data: DataFile =
        serde_json::from_str(DATA).map_err(|error| SystemSecretsError(error.to_string()))?;
    Ok(data.mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_line_is_an_absolute_path_with_a_reason_and_stands_once() {
        let list = system_secrets().unwrap();
        let mut seen = BTreeSet::new();
        for secret in &list {
            let (directory, name, _) = secret.parts();
            assert!(directory.starts_with("/etc") || directory.starts_with("/var"), "{secret:?}");
            assert!(!name.is_empty() && !name.contains('*'), "{secret:?}");
            assert!(!(secret.empty && secret.path.ends_with('*')), "{secret:?}");
            assert!(!secret.path.contains("..") && !secret.reason.is_empty(), "{secret:?}");
            assert!(seen.insert(secret.path.clone()), "{secret:?} stands twice");
        }
        assert!(seen.contains("/etc/shadow"));
    }
}
