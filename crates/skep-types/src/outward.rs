//! What a policy says about the way out: rules, secrets at the edge, and ports in.
//!
//! Rules and hosts are texts in the canonical form that `skep-policy` gives them; only there are
//! they read.

use crate::ByteString;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// What may be reached with [`crate::NetworkMode::Allow`], and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressPolicy {
    /// Rules and presets (`@name`), canonical.
    pub allow: Vec<String>,
    /// Addresses of names, instead of asking a resolver.
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
    /// Name servers to ask, instead of the host's.
    pub resolvers: Vec<SocketAddr>,
    /// Files with certificates that are trusted when skep itself speaks TLS to a host.
    pub extra_ca: Vec<ByteString>,
    /// Secrets put in at the edge; the inside has placeholders.
    pub secrets: Vec<Secret>,
    /// Names of secrets that are put into bodies of requests too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secret_bodies: Vec<String>,
    /// Secrets whose plain value the inside has, because the user insisted.
    pub secret_env: Vec<PlainSecret>,
    /// Ports of the host's loopback that lead inside.
    pub publish: Vec<PublishedPort>,
}

/// A secret by name; its value is never part of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// The variable that holds the placeholder inside.
    pub name: String,
    /// Where the value comes from, at every start.
    pub source: SecretSource,
    /// Hosts that get the value: names, or `*.name`, canonical.
    pub hosts: Vec<String>,
    /// Whether it is put into bodies of requests too, not only into their heads.
    #[serde(default)]
    pub in_body: bool,
}

/// A variable with a plain secret in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainSecret {
    /// The variable.
    pub name: String,
    /// Where the value comes from, at every start.
    pub source: SecretSource,
}

/// Where the value of a secret is read, on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretSource {
    /// A variable of whoever starts the sandbox.
    Env(String),
    /// A file.
    File(ByteString),
    /// What a command (run by `sh -c` on the host) prints.
    Cmd(String),
}

impl std::fmt::Display for SecretSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Cmd(command) => write!(f, "cmd:{command}"),
        }
    }
}

/// A port of the host's loopback and the port inside that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedPort {
    /// On 127.0.0.1 of the host.
    pub host: u16,
    /// On the loopback inside.
    pub inside: u16,
}

/// How the egress process of a running sandbox last died, left in the sandbox's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressDeath {
    /// In words.
    pub why: String,
    /// How often it was started again.
    pub restarts: u32,
    /// Whether it was started again this time too; if not, everything is refused.
    pub again: bool,
    /// How often it has died since the sandbox was started.
    #[serde(default)]
    pub deaths: u64,
}

impl EgressDeath {
    /// Its name in the sandbox's directory.
    pub const FILE: &str = "egress-death.json";

    /// What the names of all files about it begin with.
    pub const PREFIX: &str = "egress-death.";

    /// A file that is there once an event tells of this death.
    pub fn told(&self) -> String {
        format!("{}{}.told", Self::PREFIX, self.deaths)
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        let then = match self.again {
            true => "it was started again",
            false => "everything is refused until the sandbox is started anew",
        };
        format!("the egress process died ({}); {then}", self.why)
    }
}
