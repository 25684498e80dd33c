//! One allow rule, parsed once.

use super::class::{AddressClass, classify, is_metadata_name};
use super::host::{Host, HostError, Name, parse_port};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Bytes nobody looks at.
    Tcp,
    /// TLS, judged by its server name.
    Tls,
    /// HTTP in the clear, judged request by request.
    Http,
}

/// Whom a rule names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Exactly this name.
    Name(Name),
    /// Every name below this one, at any depth; not the name itself.
    Below(Name),
    /// Exactly this address.
    Address(IpAddr),
    /// A network of public addresses.
    Network(Network),
}

/// A network: an address whose host bits are zero, and how many bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// On which ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// What a rule without a port means: 443 for TLS and 80 for HTTP.
    Web,
    /// This one.
    One(u16),
    /// `*`: all of them.
    All,
}

/// An allow rule: `[tcp://|tls://|http://]HOST[:PORT]`.
///
/// - `HOST`: a name; `*.name` (everything below, at any depth, not the name itself); an IPv4
///   address; an IPv6 address (in brackets if a port follows); a network in CIDR form.
/// - `PORT`: a number, or `*` for all. Without one: 443 and 80 (`tls://`: 443, `http://`: 80,
///   `tcp://`: must be said).
/// - Without a protocol, port 443 takes only TLS, port 80 only HTTP, and any other port takes
///   whatever comes, where TLS is still held to its server name and HTTP to its `Host`.
///   `tcp://` passes bytes without looking.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// Whom.
    pub target: Target,
    /// Where.
    pub ports: Ports,
    /// What; `None` for the default of the port.
    pub protocol: Option<Protocol>,
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{shown}` is no allow rule: {reason}", shown = skep_types::escape::visible(text.as_bytes()))]
pub struct RuleError {
    /// What was given.
    pub text: String,
    /// What is wrong with it, and how to write it.
    pub reason: String,
}

impl Network {
    /// Whether an address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.prefix);
                u32::from(net).checked_shr(shift) == u32::from(address).checked_shr(shift)
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.prefix);
                u128::from(net).checked_shr(shift) == u128::from(address).checked_shr(shift)
            }
            _ => false,
        }
    }

    /// Whether all of `other` lies in it.
    pub fn covers(&self, other: &Network) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (address, prefix) = text.split_once('/').ok_or("a network is ADDRESS/BITS")?;
        let address = Host::parse(address)
            .ok()
            .and_then(|host| host.address())
            .ok_or("what stands before `/` is no address")?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let plain = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix.parse::<u8>().ok().filter(|bits| plain && *bits <= most);
        let prefix = prefix.ok_or_else(|| format!("the number of bits is 0 to {most}"))?;
        let network = Self { address, prefix };
        let first = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        };
        if first != address {
            return Err(format!("the network is `{first}/{prefix}`; write it so"));
        }
        Ok(network)
    }

    fn last(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let rest = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V4((u32::from(address) | rest).into())
            }
            IpAddr::V6(address) => {
                let rest = u128::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V6((u128::from(address) | rest).into())
            }
        }
    }

    /// One address, spelt as a network.
    fn single(&self) -> Option<IpAddr> {
        let whole = if self.address.is_ipv4() { 32 } else { 128 };
        (self.prefix == whole).then_some(self.address)
    }
}

impl Rule {
    /// Reads a rule.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        parse(text).map_err(|reason| RuleError { text: text.to_owned(), reason })
    }

    /// Whether it names exactly one address and one port: only then nearer addresses than the
    /// open internet are meant.
    pub fn is_literal(&self) -> bool {
        matches!(self.target, Target::Address(_)) && matches!(self.ports, Ports::One(_))
    }

    /// Whether the rule speaks of this name.
    pub fn names(&self, name: &Name) -> bool {
        match &self.target {
            Target::Name(own) => own == name,
            Target::Below(zone) => name.is_below(zone),
            Target::Address(_) | Target::Network(_) => false,
        }
    }

    /// Whether the rule speaks of this address, as an address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        match &self.target {
            Target::Address(own) => *own == address.to_canonical(),
            Target::Network(network) => {
                network.contains(address) && classify(address) == AddressClass::Public
            }
            Target::Name(_) | Target::Below(_) => false,
        }
    }

    /// Whether the port is one of the rule's.
    pub fn has_port(&self, port: u16) -> bool {
        match self.ports {
            Ports::Web => port == 80 || port == 443,
            Ports::One(own) => own == port,
            Ports::All => true,
        }
    }

    /// Whether a protocol may be spoken on this port.
    pub fn speaks(&self, protocol: Protocol, port: u16) -> bool {
        match (self.protocol, port) {
            (Some(Protocol::Tcp), _) => true,
            (Some(own), _) => own == protocol,
            (None, 443) => protocol == Protocol::Tls,
            (None, 80) => protocol == Protocol::Http,
            (None, _) => true,
        }
    }

    /// Whether bytes pass on this port without anybody looking at them.
    pub fn is_blind(&self) -> bool {
        self.protocol == Some(Protocol::Tcp)
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    let (protocol, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (Some(parse_protocol(scheme)?), rest),
        None => (None, text),
    };
    if rest.is_empty() {
        return Err("it names no host".into());
    }
    let (host, port) = split_port(rest);
    let target = parse_target(host)?;
    let ports = match (port, protocol) {
        (Some("*"), _) => Ports::All,
        (Some(port), _) => Ports::One(parse_port(port).map_err(|error| error.to_string())?),
        (None, Some(Protocol::Tcp)) => {
            return Err(format!("a `tcp://` rule names its port, as in `tcp://{host}:22`"));
        }
        (None, Some(Protocol::Tls)) => Ports::One(443),
        (None, Some(Protocol::Http)) => Ports::One(80),
        (None, None) => Ports::Web,
    };
    if let Target::Address(address) = target {
        check_literal(address, ports)?;
    }
    Ok(Rule { target, ports, protocol })
}

fn parse_protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "tcp" => Ok(Protocol::Tcp),
        "tls" => Ok(Protocol::Tls),
        "http" => Ok(Protocol::Http),
        "https" | "wss" => Err("write `tls://HOST`, or only the host".into()),
        "ws" => Err("write `http://HOST`".into()),
        "ssh" => Err("write `HOST:22`".into()),
        _ => Err("the protocol is `tcp`, `tls` or `http`".into()),
    }
}

/// Takes the port off; a bare IPv6 address (or network) has none.
fn split_port(text: &str) -> (&str, Option<&str>) {
    if text.starts_with('[') {
        return match text.rsplit_once("]:") {
            Some((host, port)) => (&text[..=host.len()], Some(port)),
            None => (text, None),
        };
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

fn parse_target(host: &str) -> Result<Target, String> {
    if host.contains('/') {
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let network = Network::parse(inner.unwrap_or(host))?;
        if let Some(address) = network.single() {
            return Ok(Target::Address(address));
        }
        return check_network(network).map(|()| Target::Network(network));
    }
    if let Some(rest) = host.strip_prefix("*.") {
        return parse_wildcard(rest);
    }
    if host.contains('*') {
        return Err("`*` may stand only for everything below a name, as in `*.example.org`".into());
    }
    match Host::parse(host).map_err(|error: HostError| error.to_string())? {
        // Dialling it would mean the host's loopback.
        Host::Address(address) if address.is_unspecified() => {
            Err("it is nobody's address; the host's loopback is `127.0.0.1:PORT`".into())
        }
        Host::Address(address) => Ok(Target::Address(address)),
        Host::Name(name)
            if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") =>
        {
            Err("name the address and port of the host: `127.0.0.1:PORT`".into())
        }
        Host::Name(name) if is_metadata_name(&name) => Err(METADATA.into()),
        Host::Name(name) => Ok(Target::Name(name)),
    }
}

const METADATA: &str = "it is a cloud's metadata service, which is never reachable";

fn parse_wildcard(rest: &str) -> Result<Target, String> {
    if rest.contains('*') {
        return Err("only one `*`, in front, as in `*.example.org`".into());
    }
    match Host::parse(rest).map_err(|error| error.to_string())? {
        Host::Address(_) => Err("an address has nothing below it".into()),
        Host::Name(name) if name.labels() < 2 => {
            Err(format!("`*.{name}` would be a whole top-level domain; name at least two parts"))
        }
        Host::Name(name) => Ok(Target::Below(name)),
    }
}

fn check_literal(address: IpAddr, ports: Ports) -> Result<(), String> {
    match classify(address) {
        AddressClass::Metadata => Err(METADATA.into()),
        AddressClass::Public => Ok(()),
        class if !matches!(ports, Ports::One(_)) => Err(format!(
            "the address is not public ({}): name its port too, as in `{}:5432`",
            class.reason().unwrap_or_default(),
            Host::Address(address),
        )),
        AddressClass::Multicast => Err("TCP cannot reach many at once".into()),
        _ => Ok(()),
    }
}

/// A network that begins and ends in the same kind of not public addresses can never match.
fn check_network(network: Network) -> Result<(), String> {
    let class = classify(network.address);
    match class.reason() {
        Some(reason) if classify(network.last()) == class => Err(format!(
            "the network is not public ({reason}): name each address and port, as in `{}:5432`",
            Host::Address(network.address),
        )),
        _ => Ok(()),
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Self::parse(text)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Http => "http",
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(protocol) = self.protocol {
            write!(formatter, "{protocol}://")?;
        }
        match &self.target {
            Target::Name(name) => name.fmt(formatter)?,
            Target::Below(zone) => write!(formatter, "*.{zone}")?,
            Target::Address(address) => Host::Address(*address).fmt(formatter)?,
            Target::Network(Network { address: IpAddr::V4(address), prefix }) => {
                write!(formatter, "{address}/{prefix}")?;
            }
            Target::Network(network) => {
                write!(formatter, "[{}/{}]", network.address, network.prefix)?;
            }
        }
        match self.ports {
            Ports::Web => Ok(()),
            Ports::One(port) => write!(formatter, ":{port}"),
            Ports::All => formatter.write_str(":*"),
        }
    }
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
