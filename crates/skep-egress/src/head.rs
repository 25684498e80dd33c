//! The head of an HTTP/1 request, read so strictly that nobody can read it differently.
//!
//! hyper, which does the rest, is lenient where HTTP lets it be: it takes bare line feeds, and
//! drops a length beside a transfer coding. What it then sends on is clean, but a request that
//! two programs read in two ways is an attack and not a mistake, so it is refused before.

use skep_policy::egress::Host;

/// The longest head.
pub const MOST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 128;

/// What follows the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks; where they end only their reader knows.
    Chunked,
}

/// The target of a request line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestTarget {
    /// `/path`, or `*`.
    Origin,
    /// `http://host/path`.
    Absolute,
    /// CONNECT: `host:port`.
    Authority(Host, u16),
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// How the request line names its target.
    pub target: RequestTarget,
    /// The host it is for, and the port if one is written.
    pub host: Option<(Host, Option<u16>)>,
    /// What follows.
    pub body: Body,
    /// Whether it asks for another protocol on this connection.
    pub upgrade: bool,
}

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadFault {
    /// A line feed without its carriage return, or the reverse.
    #[error("a line does not end with CR LF")]
    LineEnd,
    /// A header continued on the next line.
    #[error("a header line is folded")]
    Folded,
    /// Not HTTP/1.
    #[error("it is no HTTP/1 request")]
    Syntax,
    /// No, several or unreadable `Host`.
    #[error("it does not name exactly one host")]
    Host,
    /// The request line names another host than `Host`.
    #[error("the request line and `Host` disagree")]
    Mismatch,
    /// Several lengths, a length beside a coding, or an odd coding.
    #[error("the length of its body is ambiguous")]
    Length,
}

/// Where a head ends (after its empty line), if it does; or that no more is worth reading.
pub fn find_end(bytes: &[u8]) -> Result<Option<usize>, HeadFault> {
    if bytes.first().is_some_and(|byte| byte.is_ascii_whitespace()) {
        return Err(HeadFault::Syntax);
    }
    let mut previous = 0;
    for (at, byte) in bytes.iter().enumerate() {
        match (previous, byte) {
            (b'\r', b'\n') if bytes[..at - 1].ends_with(b"\r\n") => return Ok(Some(at + 1)),
            (b'\r', b'\n') => {}
            (b'\r', _) | (_, b'\n') => return Err(HeadFault::LineEnd),
            _ => {}
        }
        previous = *byte;
    }
    if bytes.len() > MOST_HEAD { Err(HeadFault::Syntax) } else { Ok(None) }
}

/// Reads a whole head, its empty line included.
pub fn inspect(bytes: &[u8]) -> Result<Head, HeadFault> {
    if find_end(bytes)? != Some(bytes.len()) {
        return Err(HeadFault::Syntax);
    }
    if bytes.windows(3).any(|window| matches!(window, b"\r\n " | b"\r\n\t")) {
        return Err(HeadFault::Folded);
    }
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        _ => return Err(HeadFault::Syntax),
    }
    let (Some(method), Some(path), Some(version)) = (request.method, request.path, request.version)
    else {
        return Err(HeadFault::Syntax);
    };
    let named = named_host(request.headers)?;
    let (target, host) = read_target(method, path, named)?;
    if host.is_none() && version == 1 {
        return Err(HeadFault::Host);
    }
    let body = read_length(request.headers, version)?;
    let upgrade = values(request.headers, "upgrade").next().is_some();
    Ok(Head { target, host, body, upgrade })
}

type Named = Option<(Host, Option<u16>)>;

fn values<'a>(
    headers: &'a [httparse::Header<'a>],
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    headers
        .iter()
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
}

fn named_host(headers: &[httparse::Header<'_>]) -> Result<Named, HeadFault> {
    let mut found = values(headers, "host");
    let Some(value) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(HeadFault::Host);
    }
    let text = std::str::from_utf8(value).map_err(|_| HeadFault::Host)?;
    Host::parse_authority(text).map(Some).map_err(|_| HeadFault::Host)
}

fn read_target(
    method: &str,
    path: &str,
    named: Named,
) -> Result<(RequestTarget, Named), HeadFault> {
    if method == "CONNECT" {
        let (host, port) = Host::parse_authority(path).map_err(|_| HeadFault::Host)?;
        let port = port.ok_or(HeadFault::Host)?;
        let agrees = named.is_none_or(|(other, other_port)| {
            other == host && other_port.is_none_or(|other| other == port)
        });
        let target = RequestTarget::Authority(host.clone(), port);
        return if agrees {
            Ok((target, Some((host, Some(port)))))
        } else {
            Err(HeadFault::Mismatch)
        };
    }
    if path.starts_with('/') || (path == "*" && method == "OPTIONS") {
        return Ok((RequestTarget::Origin, named));
    }
    let Some(rest) = path.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://")) else {
        return Err(HeadFault::Syntax);
    };
    let rest = &path[rest.len()..];
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let (host, port) = Host::parse_authority(authority).map_err(|_| HeadFault::Host)?;
    if let Some((other, other_port)) = named
        && (other != host || other_port.unwrap_or(80) != port.unwrap_or(80))
    {
        return Err(HeadFault::Mismatch);
    }
    Ok((RequestTarget::Absolute, Some((host, port))))
}

fn read_length(headers: &[httparse::Header<'_>], version: u8) -> Result<Body, HeadFault> {
    let mut lengths = values(headers, "content-length");
    let mut codings = values(headers, "transfer-encoding");
    let (length, coding) = (lengths.next(), codings.next());
    if lengths.next().is_some() || codings.next().is_some() {
        return Err(HeadFault::Length);
    }
    match (length, coding) {
        (None, None) => Ok(Body::Length(0)),
        (Some(digits), None) => {
            let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            number.filter(|_| plain).map(Body::Length).ok_or(HeadFault::Length)
        }
        (None, Some(coding)) if version == 1 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(Body::Chunked)
        }
        _ => Err(HeadFault::Length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fault(text: &str) -> HeadFault {
        inspect(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn an_ordinary_request() {
        let head = inspect(b"POST /x HTTP/1.1\r\nHost: A.test:8080\r\nContent-Length: 12\r\n\r\n")
            .unwrap();
        assert_eq!(head.target, RequestTarget::Origin);
        assert_eq!(head.host, Some((Host::parse("a.test").unwrap(), Some(8080))));
        assert_eq!(head.body, Body::Length(12));
        assert!(!head.upgrade);
        let head = inspect(b"GET http://a.test/x HTTP/1.1\r\nHost: a.test:80\r\n\r\n").unwrap();
        assert_eq!(head.target, RequestTarget::Absolute);
        let head = inspect(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n").unwrap();
        assert_eq!(head.target, RequestTarget::Authority(Host::parse("a.test").unwrap(), 443));
        assert!(inspect(b"GET / HTTP/1.0\r\n\r\n").unwrap().host.is_none());
    }

    #[test]
    fn net_6_what_can_be_read_in_two_ways_is_refused() {
        for (text, expected) in [
            (
                "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                HeadFault::Length,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
                HeadFault::Length,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
                HeadFault::Length,
            ),
            ("GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: +1\r\n\r\n", HeadFault::Length),
            ("GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1, 1\r\n\r\n", HeadFault::Length),
            (
                "GET / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                HeadFault::Length,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: xchunked\r\n\r\n",
                HeadFault::Length,
            ),
            (
                "GET / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n",
                HeadFault::Length,
            ),
            ("GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", HeadFault::Host),
            ("GET / HTTP/1.1\r\nHost: a.test, b.test\r\n\r\n", HeadFault::Host),
            ("GET / HTTP/1.1\r\nHost: b@a.test\r\n\r\n", HeadFault::Host),
            ("GET / HTTP/1.1\r\n\r\n", HeadFault::Host),
            ("GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", HeadFault::Mismatch),
            ("GET http://a.test:81/ HTTP/1.1\r\nHost: a.test\r\n\r\n", HeadFault::Mismatch),
            ("GET http://u@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", HeadFault::Host),
            ("GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", HeadFault::Syntax),
            ("CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", HeadFault::Host),
            ("CONNECT a.test:0 HTTP/1.1\r\nHost: a.test\r\n\r\n", HeadFault::Host),
            ("CONNECT a.test:65536 HTTP/1.1\r\n\r\n", HeadFault::Host),
            ("CONNECT a.test:https HTTP/1.1\r\n\r\n", HeadFault::Host),
            ("CONNECT a.test:443 HTTP/1.1\r\nHost: b.test\r\n\r\n", HeadFault::Mismatch),
            ("GET / HTTP/1.1\r\nHost: a.test\r\nX: a\r\n b\r\n\r\n", HeadFault::Folded),
            ("GET / HTTP/1.1\nHost: a.test\n\n", HeadFault::LineEnd),
            ("GET / HTTP/1.1\r\nHost: a.test\nX: y\r\n\r\n", HeadFault::LineEnd),
            ("GET / HTTP/1.1\r\nHost: a.test\r\nX: a\rb\r\n\r\n", HeadFault::LineEnd),
            ("GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", HeadFault::Syntax),
            ("\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n", HeadFault::Syntax),
            ("GET / HTTP/2.0\r\nHost: a.test\r\n\r\n", HeadFault::Syntax),
        ] {
            assert_eq!(fault(text), expected, "{text}");
        }
        let many = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{}\r\n", "X: y\r\n".repeat(200));
        assert_eq!(fault(&many), HeadFault::Syntax);
        let huge = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(MOST_HEAD));
        assert_eq!(find_end(huge.as_bytes()), Err(HeadFault::Syntax));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = inspect(&bytes);
            if let Ok(Some(end)) = find_end(&bytes) {
                prop_assert!(end <= bytes.len() && bytes[..end].ends_with(b"\r\n\r\n"));
            }
        }
    }
}
