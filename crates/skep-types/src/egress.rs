//! What the keeper and the egress process tell each other, and the line of the egress log.
//!
//! The keeper starts the egress process (`skep __egress …`) with open descriptors and speaks with
//! it over a unix stream socket: each message is four bytes of length, most significant first,
//! and that many bytes of JSON. The keeper sends [`ToEgress`], one at a time, and gets one
//! [`FromEgress`] for each. The one question that goes the other way is [`FromEgress::WhoHas`], with
//! [`ToEgress::Owners`] as its answer. When the socket ends, the process ends.

use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use zeroize::Zeroizing;

/// The word that makes the binary an egress process; hidden from help.
pub const EGRESS_WORD: &str = "__egress";

/// A longer message is refused by both sides.
pub const MAX_EGRESS_MESSAGE: usize = 4 << 20;

/// Numbers of the descriptors that the egress process inherits. All sockets but `control` were
/// made inside the sandbox's network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressDescriptors {
    /// The keeper: a unix stream socket.
    pub control: i32,
    /// The log: a regular file, opened for reading and appending.
    pub audit: i32,
    /// Listeners to which every TCP connection is redirected.
    pub tcp: Vec<i32>,
    /// UDP sockets that get every DNS question.
    pub dns_udp: Vec<i32>,
    /// Listeners for DNS over TCP.
    pub dns_tcp: Vec<i32>,
    /// Listeners for programs that use a proxy: HTTP, CONNECT and SOCKS5 on one port.
    pub proxy: Vec<i32>,
    /// A network interface that everything is routed to, where connections cannot be redirected;
    /// listeners at addresses that are no loopback addresses take what comes by it.
    pub tun: Vec<i32>,
}

/// A word that names no descriptor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no descriptor of the egress process")]
pub struct DescriptorError(String);

impl EgressDescriptors {
    /// The arguments after [`EGRESS_WORD`].
    pub fn arguments(&self) -> Vec<String> {
        let mut words = vec![format!("control={}", self.control), format!("audit={}", self.audit)];
        let lists = [
            ("tcp", &self.tcp),
            ("dns_udp", &self.dns_udp),
            ("dns_tcp", &self.dns_tcp),
            ("proxy", &self.proxy),
            ("tun", &self.tun),
        ];
        for (key, numbers) in lists {
            words.extend(numbers.iter().map(|number| format!("{key}={number}")));
        }
        words
    }

    /// Reads them back. Each number is above the standard streams and stands once.
    pub fn parse<T: AsRef<str>>(words: &[T]) -> Result<Self, DescriptorError> {
        let mut found = Self { control: -1, audit: -1, ..Self::default() };
        let mut seen = Vec::new();
        for word in words {
            let bad = || DescriptorError(word.as_ref().to_owned());
            let (key, number) = word.as_ref().split_once('=').ok_or_else(bad)?;
            let number: i32 = number.parse().map_err(|_| bad())?;
            if number < 3 || seen.contains(&number) {
                return Err(bad());
            }
            seen.push(number);
            match key {
                "control" => found.control = number,
                "audit" => found.audit = number,
                "tcp" => found.tcp.push(number),
                "dns_udp" => found.dns_udp.push(number),
                "dns_tcp" => found.dns_tcp.push(number),
                "proxy" => found.proxy.push(number),
                "tun" => found.tun.push(number),
                _ => return Err(bad()),
            }
        }
        if found.control < 0 || found.audit < 0 {
            return Err(DescriptorError("control, audit".into()));
        }
        Ok(found)
    }
}

/// The value of a secret. Wiped when dropped; shows nothing of itself.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretValue(Zeroizing<String>);

impl SecretValue {
    /// Takes a value.
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// The value. Each caller is a place where it could leak.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretValue(…)")
    }
}

/// With [`expose_some`] the only place that writes a value: for the pipe to the egress process, and back.
fn expose<S: Serializer>(value: &SecretValue, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.expose())
}

fn expose_some<S: Serializer>(
    value: &Option<SecretValue>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(SecretValue::expose).serialize(serializer)
}

/// A secret that is put in at the edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressSecret {
    /// Its name, as in `--secret NAME`.
    pub name: String,
    /// What stands for it inside.
    pub placeholder: String,
    /// Towards which hosts it is put in: names, or `*.name`.
    pub hosts: Vec<String>,
    /// The value.
    #[serde(serialize_with = "expose")]
    pub value: SecretValue,
    /// Whether bodies of requests are searched too, not only their heads.
    #[serde(default)]
    pub in_body: bool,
}

/// How much one sandbox may use of its egress process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressLimits {
    /// Connections at the same time; fewer if descriptors run out.
    pub connections: usize,
    /// A tunnel on which nothing moves for this long is closed, in seconds.
    pub idle_seconds: u64,
    /// How long the first bytes, a head or a handshake may take, in seconds.
    pub head_seconds: u64,
    /// How long dialling may take, in seconds.
    pub dial_seconds: u64,
    /// Size of the log, in bytes; the older half goes when it is reached.
    pub audit_bytes: u64,
    /// DNS questions for names under a wildcard, per minute.
    pub wildcard_names_per_minute: u32,
    /// The longest name that is asked under a wildcard, in bytes.
    pub wildcard_name_bytes: usize,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            idle_seconds: 3600,
            head_seconds: 15,
            dial_seconds: 20,
            audit_bytes: 16 << 20,
            wildcard_names_per_minute: 120,
            wildcard_name_bytes: 128,
        }
    }
}

/// Everything the egress process needs to know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressConfig {
    /// The sandbox, for the certificate authority's name.
    pub sandbox: String,
    /// Allow rules and presets (`@name`).
    pub rules: Vec<String>,
    /// Names with fixed addresses: `[egress.hosts]`, then the host's `/etc/hosts`.
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
    /// Name servers asked for allowed names.
    pub resolvers: Vec<SocketAddr>,
    /// Secrets put in at the edge.
    pub secrets: Vec<EgressSecret>,
    /// Ask the keeper which exec a connection belongs to.
    pub attribute: bool,
    /// Limits.
    pub limits: EgressLimits,
    /// More certificate authorities (PEM) for servers, beside those of the host.
    pub extra_ca: String,
    /// The key (PEM) of the sandbox's own authority, from a process before this one: programs that are
    /// running trust it.
    #[serde(serialize_with = "expose_some")]
    pub authority_key: Option<SecretValue>,
}

/// From the keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToEgress {
    /// The first message, once.
    Configure(EgressConfig),
    /// New rules. Connections that they do not allow are cut.
    Update {
        /// All rules, not only the new ones.
        rules: Vec<String>,
    },
    /// Forget a secret: from now on its placeholder goes out as it is, and open connections to
    /// its hosts are cut.
    Revoke {
        /// Its name.
        name: String,
    },
    /// Tell figures.
    Stats,
    /// Answers [`FromEgress::WhoHas`], and is not answered.
    Owners {
        /// The question.
        question: u64,
        /// The exec of each connection asked about, in order, where it is certain.
        execs: Vec<Option<String>>,
    },
}

/// To the keeper: one for each message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromEgress {
    /// Configured; connections are served from now on.
    Ready {
        /// The certificate of the sandbox's own authority (PEM), if there are secrets.
        ca: Option<String>,
        /// Its key, for the next process.
        #[serde(serialize_with = "expose_some")]
        key: Option<SecretValue>,
    },
    /// Done.
    Ack {
        /// How many connections were cut.
        cut: usize,
    },
    /// Not done; what was in force still is.
    Refused {
        /// Why.
        message: String,
    },
    /// Figures.
    Stats(EgressStats),
    /// Not an answer but a question: whose connections are these?
    WhoHas {
        /// Comes back with the answer.
        question: u64,
        /// The connections, seen from inside.
        peers: Vec<EgressPeer>,
    },
}

/// A socket inside the sandbox's network namespace, by its two addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressPeer {
    /// UDP; TCP if not.
    pub udp: bool,
    /// Its own address.
    pub local: SocketAddr,
    /// Where it is, or thinks it is, connected to.
    pub remote: SocketAddr,
}

/// Figures since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressStats {
    /// Open now.
    pub open: u64,
    /// Verdicts.
    pub allowed: u64,
    /// Verdicts.
    pub denied: u64,
    /// From outside, in bytes.
    pub bytes_in: u64,
    /// To outside, in bytes.
    pub bytes_out: u64,
}

/// One line of `egress.jsonl`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressEntry {
    /// When: RFC 3339, UTC.
    pub at: String,
    /// The exec it belongs to, where that is known.
    pub exec: Option<String>,
    /// The host, as asked for, made visible.
    pub host: String,
    /// The port; 53 for DNS.
    pub port: u16,
    /// The address that was dialled, or would have been.
    pub ip: Option<IpAddr>,
    /// `dns`, `tcp`, `tls` or `http`.
    pub proto: String,
    /// `allow` or `deny`.
    pub verdict: EgressVerdict,
    /// The rule that allowed it.
    pub rule: Option<String>,
    /// Why it was refused, or how it ended.
    pub reason: Option<String>,
    /// From outside, in bytes.
    pub bytes_in: u64,
    /// To outside, in bytes.
    pub bytes_out: u64,
    /// How many lines before this one are missing: the log is bounded, and so is what is written a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<u64>,
}

/// Yes or no.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EgressVerdict {
    /// It went out.
    Allow,
    /// It did not.
    #[default]
    Deny,
}

/// The bytes of a message: length, then JSON. They may hold secrets: wiped when dropped.
pub fn egress_message<T: Serialize>(message: &T) -> Result<Zeroizing<Vec<u8>>, serde_json::Error> {
    // Serialised twice, so that the buffer never grows and leaves a copy behind.
    let mut count = Counter(0);
    serde_json::to_writer(&mut count, message)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(4 + count.0));
    let length = u32::try_from(count.0).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    serde_json::to_writer(&mut *bytes, message)?;
    Ok(bytes)
}

struct Counter(usize);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What came of trying to reach a host from inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressProbe {
    /// The host, as asked for.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether it was reached.
    pub reached: bool,
    /// Whether the rules allow it; `None` where that could not be found out.
    pub allowed: Option<bool>,
    /// What was seen.
    pub how: String,
    /// Why not, in the proxy's words.
    pub reason: Option<String>,
    /// What would allow it.
    pub hint: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EgressConfig {
        EgressConfig {
            rules: vec!["a.test".into()],
            hosts: [("a.test".into(), vec!["8.8.8.8".parse().unwrap()])].into(),
            resolvers: vec!["[::1]:53".parse().unwrap()],
            secrets: vec![EgressSecret {
                name: "KEY".into(),
                placeholder: "sk-xxxxxxxx".into(),
                hosts: vec!["a.test".into()],
                value: SecretValue::new("sk-realreal".into()),
                in_body: false,
            }],
            ..EgressConfig::default()
        }
    }

    #[test]
    fn a_secret_is_in_the_message_and_never_in_debug() {
        let message = ToEgress::Configure(config());
        assert!(!format!("{message:?}").contains("realreal"));
        let bytes = egress_message(&message).unwrap();
        assert_eq!(bytes.len(), 4 + u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize);
        assert_eq!(serde_json::from_slice::<ToEgress>(&bytes[4..]).unwrap(), message);
    }

    #[test]
    fn descriptors_come_back_and_odd_ones_are_refused() {
        let descriptors = EgressDescriptors {
            control: 3,
            audit: 4,
            tcp: vec![5, 6],
            dns_udp: vec![7],
            dns_tcp: vec![8],
            proxy: vec![9],
            tun: vec![10],
        };
        assert_eq!(EgressDescriptors::parse(&descriptors.arguments()), Ok(descriptors));
        for words in [
            &["control=3"][..],
            &["control=3", "audit=3"],
            &["control=3", "audit=2"],
            &["control=3", "audit=4", "x=5"],
            &["control=3", "audit=4", "tcp"],
        ] {
            assert!(EgressDescriptors::parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_line_has_the_promised_keys() {
        let line = serde_json::to_value(EgressEntry::default()).unwrap();
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let mut promised = [
            "at",
            "exec",
            "host",
            "port",
            "ip",
            "proto",
            "verdict",
            "rule",
            "reason",
            "bytes_in",
            "bytes_out",
        ];
        promised.sort_unstable();
        assert_eq!(keys, promised);
    }
}
