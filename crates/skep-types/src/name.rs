//! Names people give to sandboxes.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// The name of a sandbox: 1 to 63 of `a-z A-Z 0-9 . _ -`, starting with a letter or digit.
///
/// It is safe as a file name and as a cgroup name. Words that are sub-commands are refused, so
/// that `skep exec NAME` can never be read in two ways.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxName(String);

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Characters or length.
    #[error(
        "`{0}` is not a valid name: 1 to 63 of a-z A-Z 0-9 . _ -, starting with a letter or digit"
    )]
    Malformed(String),
    /// A word of the command line.
    #[error(
        "`{0}` is a word of skep's command line, of this version or a later one, and cannot be a name"
    )]
    Reserved(String),
}

/// The words of the command line, which cannot be names.
pub const RESERVED_WORDS: &[&str] = &[
    "agent",
    "agents",
    "answer",
    "approve",
    "build",
    "cache",
    "compare",
    "completion",
    "config",
    "conflicts",
    "cp",
    "create",
    "diff",
    "doctor",
    "env",
    "events",
    "exec",
    "fork",
    "freeze",
    "gc",
    "help",
    "history",
    "image",
    "init",
    "kill",
    "layers",
    "logs",
    "ls",
    "man",
    "mcp",
    "net",
    "open",
    "providers",
    "ps",
    "pull",
    "rebase",
    "receipt",
    "reject",
    "restore",
    "rm",
    "run",
    "serve",
    "shell",
    "show",
    "snapshot",
    "ssh-config",
    "ssh-proxy",
    "start",
    "stats",
    "stop",
    "task",
    "tasks",
    "template",
    "thaw",
    "token",
    "ui",
    "undo",
    "version",
];

impl SandboxName {
    /// Checks and takes a name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let first_good = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let rest_good =
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !first_good || !rest_good || text.len() > 63 {
            return Err(NameError::Malformed(text.to_owned()));
        }
        if RESERVED_WORDS.contains(&text) {
            return Err(NameError::Reserved(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl fmt::Display for SandboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SandboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for SandboxName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SandboxName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_plain_names_only() {
        for good in ["a", "bar1", "Fix-login.2", "9x"] {
            assert!(SandboxName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-x", ".x", "a/b", "a b", "..", "ü", &"x".repeat(64)] {
            assert!(matches!(SandboxName::parse(bad), Err(NameError::Malformed(_))), "{bad}");
        }
        assert!(matches!(SandboxName::parse("diff"), Err(NameError::Reserved(_))));
    }
}
