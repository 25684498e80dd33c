//! One form of a host: what is typed, what DNS asks, what a client names, all compared alike.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A DNS name in its one form: lower case, ASCII (IDNA), no trailing dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A name, or an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// By name.
    Name(Name),
    /// By address. IPv4 wrapped in IPv6 (`::ffff:a.b.c.d`) is the IPv4 address.
    Address(IpAddr),
}

/// Why a text is no host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing there.
    #[error("the host is empty")]
    Empty,
    /// More than DNS can carry.
    #[error("the host is longer than 253 bytes, or a part of it longer than 63")]
    TooLong,
    /// Two dots in a row, or a dot in front.
    #[error("a part between two dots is empty")]
    EmptyLabel,
    /// Characters that no host name has.
    #[error("the host has characters that no host name has")]
    Character,
    /// `127.1`, `0x7f.0.0.1`, `010.0.0.1`, `1.2.3.4.5`: programs read them differently.
    #[error("the host looks like an IPv4 address and is not one; write it as four decimal numbers")]
    OddAddress,
    /// Brackets without an IPv6 address in them.
    #[error("there is no IPv6 address between the brackets")]
    Brackets,
    /// A port that is none.
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

impl Name {
    /// Reads a DNS name. An address is not a name.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        match Host::parse(text)? {
            Host::Name(name) => Ok(name),
            Host::Address(_) => Err(HostError::OddAddress),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it lies below `zone`, at any depth; a name is not below itself.
    pub fn is_below(&self, zone: &Name) -> bool {
        self.0.strip_suffix(zone.as_str()).is_some_and(|rest| rest.ends_with('.'))
    }

    /// How many parts it has.
    pub fn labels(&self) -> usize {
        self.0.split('.').count()
    }
}

impl Host {
    /// Reads a host: a name in any spelling, a dotted IPv4 address, or an IPv6 address with or
    /// without brackets.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or(HostError::Brackets)?;
            return inner.parse::<Ipv6Addr>().map(Self::from).map_err(|_| HostError::Brackets);
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self::from(address));
        }
        name_or_ipv4(text)
    }

    /// Reads `host`, `host:port`, `[v6]:port`, as in a `Host` header or a CONNECT line. A bare
    /// IPv6 address needs its brackets here: its colons would be read as a port's.
    pub fn parse_authority(text: &str) -> Result<(Self, Option<u16>), HostError> {
        let (host, port) = match text.rfind(']') {
            Some(end) => match text.get(end + 1..) {
                Some("") | None => (text, None),
                Some(rest) => {
                    (&text[..=end], Some(rest.strip_prefix(':').ok_or(HostError::Brackets)?))
                }
            },
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map(parse_port).transpose()?;
        Ok((Self::parse(host)?, port))
    }

    /// The name, if it is one.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }

    /// The address, if it is one.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::Address(address) => Some(*address),
        }
    }
}

impl From<Ipv6Addr> for Host {
    fn from(address: Ipv6Addr) -> Self {
        Self::Address(IpAddr::V6(address).to_canonical())
    }
}

/// A port from 1 to 65535, digits only: `+80` and `080` are somebody's trick.
pub fn parse_port(text: &str) -> Result<u16, HostError> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    match text.parse::<u16>() {
        Ok(port) if plain && port > 0 => Ok(port),
        _ => Err(HostError::Port),
    }
}

fn name_or_ipv4(text: &str) -> Result<Host, HostError> {
    // A longer text cannot become a short name; and the work below is not linear in its length.
    if text.len() > 1024 {
        return Err(HostError::TooLong);
    }
    let ascii = idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::URL)
        .map_err(|_| HostError::Character)?;
    let name = ascii.strip_suffix('.').unwrap_or(&ascii);
    if name.is_empty() {
        return Err(HostError::Empty);
    }
    if ends_in_a_number(name) {
        let address: Ipv4Addr = name.parse().map_err(|_| HostError::OddAddress)?;
        return Ok(Host::Address(address.into()));
    }
    if name.len() > 253 || name.split('.').any(|label| label.len() > 63) {
        return Err(HostError::TooLong);
    }
    if name.split('.').any(str::is_empty) {
        return Err(HostError::EmptyLabel);
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.bytes().all(plain) {
        return Err(HostError::Character);
    }
    Ok(Host::Name(Name(name.to_ascii_lowercase())))
}

/// The rule of the URL standard for "this is meant as an IPv4 address".
fn ends_in_a_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last
        .strip_prefix("0x")
        .or_else(|| last.strip_prefix("0X"))
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hexadecimal || (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()))
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(formatter),
            Self::Address(IpAddr::V4(address)) => address.fmt(formatter),
            Self::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> String {
        Host::parse(text).unwrap().to_string()
    }

    #[test]
    fn spellings_of_one_host_are_one_host() {
        for text in ["Example.TEST", "example.test.", "EXAMPLE.test"] {
            assert_eq!(shown(text), "example.test");
        }
        assert_eq!(shown("bücher.test"), "xn--bcher-kva.test");
        assert_eq!(shown("XN--bcher-kva.test"), "xn--bcher-kva.test");
        assert_eq!(shown("ｅｘample．test"), "example.test");
        assert_eq!(shown("_dmarc.example.test"), "_dmarc.example.test");
        assert_eq!(shown("::1"), "[::1]");
        assert_eq!(shown("[::FFFF:10.0.0.1]"), "10.0.0.1");
        assert_eq!(shown("10.0.0.1."), "10.0.0.1");
    }

    #[test]
    fn what_programs_read_differently_is_refused() {
        for text in ["127.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "010.0.0.1", "1.2.3.4.5"] {
            assert_eq!(Host::parse(text), Err(HostError::OddAddress), "{text}");
        }
        for (text, error) in [
            ("", HostError::Empty),
            (".", HostError::EmptyLabel),
            ("a..b", HostError::EmptyLabel),
            (".a.test", HostError::EmptyLabel),
            ("a b", HostError::Character),
            ("a\0.test", HostError::Character),
            ("a\n.test", HostError::Character),
            ("a%2e.test", HostError::Character),
            ("user@a.test", HostError::Character),
            ("*.a.test", HostError::Character),
            ("[*]", HostError::Brackets),
            ("[::1", HostError::Brackets),
            ("[127.0.0.1]", HostError::Brackets),
            ("fe80::1%eth0", HostError::Character),
        ] {
            let found = Host::parse(text);
            assert!(found == Err(error) || (text == "." && found.is_err()), "{text}: {found:?}");
        }
        assert_eq!(Host::parse(&format!("{}.test", "a".repeat(64))), Err(HostError::TooLong));
        assert_eq!(Host::parse(&"a.".repeat(130)), Err(HostError::TooLong));
        assert_eq!(Host::parse(&"a".repeat(5000)), Err(HostError::TooLong));
    }

    #[test]
    fn an_authority_has_at_most_one_port() {
        let parsed =
            |text| Host::parse_authority(text).map(|(host, port)| (host.to_string(), port));
        assert_eq!(parsed("a.test"), Ok(("a.test".into(), None)));
        assert_eq!(parsed("a.test:443"), Ok(("a.test".into(), Some(443))));
        assert_eq!(parsed("[::1]:80"), Ok(("[::1]".into(), Some(80))));
        assert_eq!(parsed("[::1]"), Ok(("[::1]".into(), None)));
        for text in ["a:0", "a:65536", "a:https", "a:", "a:+1", "a:080", "a: 1", "a:1:2", "::1"] {
            assert_eq!(parsed(text).unwrap_err(), HostError::Port, "{text}");
        }
        for text in ["[::1]80", "[::1]]:1", "x[::1]:1"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn below_means_a_dot_in_between() {
        let name = |text| Name::parse(text).unwrap();
        assert!(name("a.ex.test").is_below(&name("ex.test")));
        assert!(name("b.a.ex.test").is_below(&name("ex.test")));
        for other in ["ex.test", "evilex.test", "ex.test.evil", "test"] {
            assert!(!name(other).is_below(&name("ex.test")), "{other}");
        }
    }

    /// What a browser's parser makes of the text as the host of a URL, if it takes it.
    fn by_url(text: &str) -> Option<String> {
        // Characters that end or split the host in a URL mean another text is parsed.
        if text.contains(['/', '?', '#', '\\', '@', ':', '\t', '\n', '\r', '%']) {
            return None;
        }
        match url::Host::parse(text).ok()? {
            url::Host::Domain(name) => Some(name.strip_suffix('.').unwrap_or(&name).to_owned()),
            url::Host::Ipv4(address) => Some(address.to_string()),
            url::Host::Ipv6(address) => Some(Host::from(address).to_string()),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_url_standard(text in "[a-zA-Z0-9._\\-é漢ßＡ。:\\[\\]x\u{ad}]{0,24}") {
            if let Ok(host) = Host::parse(&text)
                && let Some(other) = by_url(&text)
            {
                prop_assert_eq!(host.to_string(), other);
            } else if Host::parse(&text).is_ok() {
                // Only the bare IPv6 form is ours alone.
                prop_assert!(text.contains(':'), "{text:?} is a host here and none in a URL");
            }
        }

        #[test]
        fn the_form_is_stable_and_plain(text in any::<String>()) {
            if let Ok(host) = Host::parse(&text) {
                let shown = host.to_string();
                prop_assert!(shown.is_ascii() && !shown.contains(|c: char| c.is_ascii_control() || c == ' '));
                prop_assert_eq!(Host::parse(&shown), Ok(host.clone()));
                let authority = format!("{shown}:8080");
                prop_assert_eq!(Host::parse_authority(&authority), Ok((host, Some(8080))));
            }
            let _ = Host::parse_authority(&text);
        }
    }
}
