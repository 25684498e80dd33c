//! Stable reasons of refusals: programs may compare them, so they never change their meaning.

/// No rule names this host.
pub const NOT_ALLOWED: &str = "not-allowed";
/// The host is allowed, on other ports.
pub const PORT_NOT_ALLOWED: &str = "port-not-allowed";
/// The host and port are allowed, for another protocol.
pub const PROTOCOL_NOT_ALLOWED: &str = "protocol-not-allowed";
/// A cloud's metadata service.
pub const METADATA: &str = "metadata";
/// The host's own loopback.
pub const LOOPBACK: &str = "loopback";
/// A private network.
pub const PRIVATE: &str = "private";
/// A link-local address.
pub const LINK_LOCAL: &str = "link-local";
/// A provider's inner network.
pub const CARRIER_NAT: &str = "carrier-nat";
/// Multicast or broadcast.
pub const MULTICAST: &str = "multicast";
/// IPv4 hidden in IPv6.
pub const EMBEDDED: &str = "embedded-ipv4";
/// An address no public server has.
pub const RESERVED: &str = "reserved";
/// A host that cannot be read.
pub const BAD_HOST: &str = "bad-host";
/// TLS without a server name, or with one that does not belong to the connection.
pub const SERVER_NAME: &str = "server-name";
/// The name does not lead to the address that was dialled.
pub const ADDRESS_NOT_OF_NAME: &str = "address-not-of-name";
/// One of several answers for a name is not public.
pub const BAD_ANSWER: &str = "bad-answer";
/// The name does not exist, or its servers do not answer.
pub const NO_ANSWER: &str = "no-answer";
/// A question of a kind that is not answered.
pub const QUERY_TYPE: &str = "query-type";
/// Too many different names, too long, or too fast.
pub const RATE: &str = "rate";
/// A request that could be read in two ways.
pub const BAD_REQUEST: &str = "bad-request";
/// The other side could not be reached.
pub const UNREACHABLE: &str = "unreachable";
/// No room for another connection.
pub const TOO_MANY: &str = "too-many-connections";
/// Too slow, or idle for too long.
pub const TIMEOUT: &str = "timeout";
/// The rules changed while the connection was open.
pub const NARROWED: &str = "rules-changed";
/// It was open when this line was written; another follows at its end.
pub const OPEN: &str = "open";
/// There is no policy.
pub const NO_POLICY: &str = "no-policy";
/// The certificate of the server could not be verified.
pub const CERTIFICATE: &str = "certificate";
