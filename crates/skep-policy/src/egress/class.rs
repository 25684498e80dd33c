//! What kind of address it is: the open internet, or something nearer that must be named.

use super::host::Name;
use super::reason;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kinds of addresses that a decision tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressClass {
    /// The open internet.
    Public,
    /// A cloud's metadata service, which hands out the machine's credentials: never.
    Metadata,
    /// The host itself.
    Loopback,
    /// Networks of one site.
    Private,
    /// One wire.
    LinkLocal,
    /// A provider's inner network (100.64/10).
    CarrierNat,
    /// Many receivers at once, broadcast included.
    Multicast,
    /// An IPv6 address that carries an IPv4 address to a translator (NAT64, 6to4, Teredo …).
    Embedded,
    /// Everything else that no public server has.
    Reserved,
}

impl AddressClass {
    /// The stable reason of a refusal; `None` for public addresses.
    pub fn reason(self) -> Option<&'static str> {
        Some(match self {
            Self::Public => return None,
            Self::Metadata => reason::METADATA,
            Self::Loopback => reason::LOOPBACK,
            Self::Private => reason::PRIVATE,
            Self::LinkLocal => reason::LINK_LOCAL,
            Self::CarrierNat => reason::CARRIER_NAT,
            Self::Multicast => reason::MULTICAST,
            Self::Embedded => reason::EMBEDDED,
            Self::Reserved => reason::RESERVED,
        })
    }
}

/// Addresses under which clouds serve credentials to whoever asks from the machine.
const METADATA_V4: [Ipv4Addr; 8] = [
    Ipv4Addr::new(169, 254, 169, 254), // AWS, Google, Azure, most others
    Ipv4Addr::new(169, 254, 170, 2),   // AWS container credentials
    Ipv4Addr::new(169, 254, 170, 23),  // AWS pod identity
    Ipv4Addr::new(169, 254, 0, 23),    // Tencent
    Ipv4Addr::new(169, 254, 42, 42),   // Scaleway
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle
    Ipv4Addr::new(168, 63, 129, 16),   // Azure's wire server
];
const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), // AWS
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),  // AWS pod identity
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),   // Scaleway
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1), // Linode
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),  // Google
];
const METADATA_NAMES: [&str; 5] = [
    "metadata.google.internal",
    "metadata.goog",
    "metadata",
    "instance-data",
    "instance-data.ec2.internal",
];

/// Whether a name means a metadata service, whatever it resolves to.
pub fn is_metadata_name(name: &Name) -> bool {
    METADATA_NAMES.contains(&name.as_str())
}

/// The class of an address.
pub fn classify(address: IpAddr) -> AddressClass {
    match address.to_canonical() {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    }
}

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    let [a, b, c, _] = address.octets();
    if METADATA_V4.contains(&address) {
        return AddressClass::Metadata;
    }
    match (a, b, c) {
        (127, ..) => AddressClass::Loopback,
        (10, ..) | (192, 168, _) | (172, 16..=31, _) => AddressClass::Private,
        (169, 254, _) => AddressClass::LinkLocal,
        (100, 64..=127, _) => AddressClass::CarrierNat,
        (224..=239, ..) | (255, 255, 255) if a != 255 || address.is_broadcast() => {
            AddressClass::Multicast
        }
        // This network, protocol assignments, documentation, 6to4 anycast, benchmarks, class E.
        (0, ..)
        | (192, 0, 0 | 2)
        | (192, 88, 99)
        | (198, 18..=19, _)
        | (198, 51, 100)
        | (203, 0, 113)
        | (240..=255, ..) => AddressClass::Reserved,
        _ => AddressClass::Public,
    }
}

fn classify_v6(address: Ipv6Addr) -> AddressClass {
    if METADATA_V6.contains(&address) {
        return AddressClass::Metadata;
    }
    if address == Ipv6Addr::LOCALHOST {
        return AddressClass::Loopback;
    }
    if let Some(inner) = embedded(address) {
        let hidden = classify_v4(inner) == AddressClass::Metadata;
        return if hidden { AddressClass::Metadata } else { AddressClass::Embedded };
    }
    let parts = address.segments();
    match parts[0] {
        0xfc00..=0xfdff => AddressClass::Private,
        0xfe80..=0xfebf => AddressClass::LinkLocal,
        0xfec0..=0xfeff => AddressClass::Private, // site local, deprecated and still routed
        0xff00..=0xffff => AddressClass::Multicast,
        // 2001::/23 is set aside for protocols (Teredo is above), 2001:db8 and 3fff for documentation.
        0x2001 if parts[1] < 0x200 || parts[1] == 0xdb8 => AddressClass::Reserved,
        0x3fff if parts[1] < 0x1000 => AddressClass::Reserved,
        // Only 2000::/3 is handed out.
        0x2000..=0x3fff => AddressClass::Public,
        _ => AddressClass::Reserved,
    }
}

/// The IPv4 address that a translator or tunnel would take out of an IPv6 address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let parts = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    let last = join(parts[6], parts[7]);
    match parts {
        [0x64, 0xff9b, ..] => Some(last), // NAT64, both prefixes
        [0x2002, high, low, ..] => Some(join(high, low)), // 6to4
        [0x2001, 0, ..] => Some(join(!parts[6], !parts[7])), // Teredo: the client, inverted
        [0, 0, 0, 0, 0xffff, 0, ..] => Some(last), // SIIT
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => Some(last), // IPv4-compatible
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => Some(last), // ISATAP
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> AddressClass {
        classify(text.parse().unwrap())
    }

    #[test]
    fn net_9_metadata_in_every_clothing() {
        for text in [
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "fe80::5efe:169.254.169.254",
        ] {
            assert_eq!(class(text), AddressClass::Metadata, "{text}");
        }
        assert!(is_metadata_name(&Name::parse("Metadata.Google.Internal.").unwrap()));
    }

    #[test]
    fn edges_of_the_blocks() {
        use AddressClass::*;
        for (text, expected) in [
            ("127.0.0.1", Loopback),
            ("127.255.255.255", Loopback),
            ("::1", Loopback),
            ("::ffff:127.0.0.1", Loopback),
            ("0.0.0.0", Reserved),
            ("::", Reserved),
            ("10.0.0.0", Private),
            ("11.0.0.0", Public),
            ("172.15.255.255", Public),
            ("172.16.0.0", Private),
            ("172.31.255.255", Private),
            ("172.32.0.0", Public),
            ("192.168.255.255", Private),
            ("192.169.0.0", Public),
            ("fc00::1", Private),
            ("fdff::1", Private),
            ("fec0::1", Private),
            ("169.253.255.255", Public),
            ("169.254.0.1", LinkLocal),
            ("169.255.0.0", Public),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("100.63.255.255", Public),
            ("100.64.0.0", CarrierNat),
            ("100.127.255.255", CarrierNat),
            ("100.128.0.0", Public),
            ("224.0.0.1", Multicast),
            ("239.255.255.255", Multicast),
            ("240.0.0.0", Reserved),
            ("255.255.255.254", Reserved),
            ("255.255.255.255", Multicast),
            ("ff02::1", Multicast),
            ("192.0.2.1", Reserved),
            ("198.18.0.1", Reserved),
            ("198.20.0.0", Public),
            ("203.0.113.9", Reserved),
            ("2001:db8::1", Reserved),
            ("2606:4700::1111", Public),
            ("64:ff9b::8.8.8.8", Embedded),
            ("2002:808:808::", Embedded),
            ("2001::1", Embedded),
            ("::8.8.8.8", Embedded),
            ("4000::1", Reserved),
            ("3fff:0fff::", Reserved),
            ("8.8.8.8", Public),
        ] {
            assert_eq!(class(text), expected, "{text}");
        }
    }
}
