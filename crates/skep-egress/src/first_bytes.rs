//! What a connection speaks, told from its first bytes.

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstBytes {
    /// Not enough of them yet.
    NeedMore,
    /// A TLS record with a handshake in it.
    Tls,
    /// A request line of HTTP/1, or something that a lenient server would take for one.
    Http1,
    /// The preface of HTTP/2 without TLS.
    Http2,
    /// Anything else.
    Other,
}

/// A request line longer than this is no request line.
const MOST_LINE: usize = 64 << 10;

/// Tells what the bytes are the beginning of.
///
/// Text is only called something else than HTTP when its first line is whole and is no request
/// line, so that nothing that a web server would answer passes as raw bytes: not with odd bytes between
/// the words or in the target either, which some servers forgive. Empty lines in front (which servers
/// skip) are called HTTP, and refused as such later.
pub fn classify(bytes: &[u8]) -> FirstBytes {
    match bytes {
        [] | [0x16] => FirstBytes::NeedMore,
        [0x16, 0x03, ..] => FirstBytes::Tls,
        [b'\r' | b'\n' | b' ' | b'\t', ..] => FirstBytes::Http1,
        _ => text(bytes),
    }
}

fn text(bytes: &[u8]) -> FirstBytes {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let line = &bytes[..end.unwrap_or(bytes.len())];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let odd = !line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | 0x21..=0x7e | 0x80..));
    // Bytes that cannot be in a request line decide at once where no method stands in front: git,
    // PostgreSQL and AMQP have them early; ssh ends its first line soon.
    if odd && !begins_with_a_method(line) {
        return FirstBytes::Other;
    }
    match end {
        Some(_) if line.starts_with(b"PRI * HTTP/2") => FirstBytes::Http2,
        Some(_) if is_request_line(line) => FirstBytes::Http1,
        Some(_) => FirstBytes::Other,
        None if bytes.len() > MOST_LINE && odd => FirstBytes::Other,
        None if bytes.len() > MOST_LINE => FirstBytes::Http1,
        None => FirstBytes::NeedMore,
    }
}

/// Letters, and then what some server takes for a space; in front of them too.
fn begins_with_a_method(line: &[u8]) -> bool {
    let spaces = line.iter().take_while(|byte| is_taken_for_a_space(**byte)).count();
    let line = &line[spaces..];
    let letters = line.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    match line.get(letters) {
        None => true,
        Some(after) => letters > 0 && is_taken_for_a_space(*after),
    }
}

/// Python's `str.split` and `str.strip` take all of these.
fn is_taken_for_a_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0)
}

/// `METHOD target HTTP/…`, in whatever spacing and letter case a server might forgive.
fn is_request_line(line: &[u8]) -> bool {
    line.windows(5).any(|window| window.eq_ignore_ascii_case(b"HTTP/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_usual_beginnings() {
        for (bytes, expected) in [
            (&b""[..], FirstBytes::NeedMore),
            (b"\x16", FirstBytes::NeedMore),
            (b"\x16\x03\x01", FirstBytes::Tls),
            (b"GET / HT", FirstBytes::NeedMore),
            (b"GET / HTTP/1.1\r\n", FirstBytes::Http1),
            (b"get / http/1.1\n", FirstBytes::Http1),
            (b"FOO\t/\tHTTP/1.1\r\n", FirstBytes::Http1),
            (b"\r\nGET / HTTP/1.1\r\n", FirstBytes::Http1),
            (b"GET\x0b/\x0bHTTP/1.1\r\n", FirstBytes::Http1),
            (b"GET\xa0/\xa0HTTP/1.1\r\n", FirstBytes::Http1),
            (b"GET /\0\x01 HTTP/1.1\r\n", FirstBytes::Http1),
            (b"\x0bGET / HTTP/1.1\r\n", FirstBytes::Http1),
            (b"\x1c\x0cGET / HTTP/1.1\r\n", FirstBytes::Http1),
            // Lengths of other protocols.
            (b"\x1c\0\0\x01", FirstBytes::Other),
            (b"\x85\0\0\x01\x0f", FirstBytes::Other),
            (b"GET /\0", FirstBytes::NeedMore),
            (b"GET /\0\n", FirstBytes::Other),
            (b"AMQP\0\0\x09\x01", FirstBytes::Other),
            (b"0\x0c\x02\x01\x01\x60", FirstBytes::Other),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", FirstBytes::Http2),
            (b"SSH-2.0-OpenSSH_9.2\r\n", FirstBytes::Other),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", FirstBytes::Other),
            (b"003egit-upload-pack /x\0host=y\0", FirstBytes::Other),
            (b"*1\r\n$4\r\nPING\r\n", FirstBytes::Other),
            (b"\x05\x01\x00", FirstBytes::Other),
        ] {
            assert_eq!(classify(bytes), expected, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn more_bytes_never_change_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 0usize..64) {
            let early = classify(&bytes[..cut.min(bytes.len())]);
            prop_assert!(early == FirstBytes::NeedMore || early == classify(&bytes));
        }
    }
}
