//! The plain way to a host: its name is asked for, its address connected to, and a little is said.
//!
//! What is said depends on the port, because that is what the verdict depends on: a ClientHello on
//! 443, a `HEAD` request elsewhere (which also a host that speaks something else ends or answers). An
//! allowed host hears that much; a denied one hears nothing.

use skep_provider::EgressProbe;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// A host that says nothing for this long after having been connected to has been reached: the proxy
/// refuses sooner than that.
const QUIET: Duration = Duration::from_secs(2);
const DNS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53);

enum Seen {
    /// Somebody answered.
    Host,
    /// The proxy did, with no.
    Refusal(&'static str),
    /// Nobody, though nobody said no.
    Nobody(String),
}

pub fn knock(host: &str, port: u16) -> EgressProbe {
    let seen = try_host(host, port)
        .unwrap_or_else(|error| Seen::Nobody(format!("the connection failed: {error}")));
    let (reached, allowed, reason) = match seen {
        Seen::Host => (true, Some(true), None),
        Seen::Refusal(reason) => (false, Some(false), Some(reason.to_owned())),
        Seen::Nobody(reason) => (false, None, Some(reason)),
    };
    EgressProbe {
        host: host.to_owned(),
        port,
        reached,
        allowed,
        how: "by a plain connection from inside".into(),
        reason,
        hint: None,
    }
}

fn try_host(host: &str, port: u16) -> io::Result<Seen> {
    let address = match host.parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => match look_up(host)? {
            Some(address) => address,
            None => return Ok(Seen::Refusal("the name was not answered")),
        },
    };
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), PATIENCE)?;
    let said = if port == 443 {
        hello(host)
    } else {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let target = if port == 80 { host } else { format!("{host}:{port}") };
        format!("HEAD / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n").into_bytes()
    };
    stream.set_read_timeout(Some(QUIET))?;
    let mut answer = [0; 1024];
    let got = stream.write_all(&said).and_then(|()| stream.read(&mut answer));
    Ok(match got {
        Ok(0) => Seen::Refusal("the connection was ended"),
        Ok(length) => judge(&answer[..length]),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Seen::Host
        }
        Err(error)
            if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) =>
        {
            Seen::Refusal("the connection was reset")
        }
        Err(error) => return Err(error),
    })
}

/// The proxy says no in TLS by the alert "unrecognized name", and in HTTP by an answer that names itself.
fn judge(answer: &[u8]) -> Seen {
    let has = |text: &[u8]| answer.windows(text.len()).any(|window| window == text);
    if answer.starts_with(&[21, 3, 3, 0, 2, 2, 112]) {
        return Seen::Refusal("TLS was refused: unrecognized name");
    }
    if answer.starts_with(b"HTTP/1.1 403") && has(b"server: skep\r\n") {
        return Seen::Refusal("the request was refused");
    }
    if answer.starts_with(b"HTTP/1.1 502") && has(b"server: skep\r\n") {
        return Seen::Nobody("it is allowed, and nobody answers there".into());
    }
    Seen::Host
}

/// Asks skep's own DNS for an IPv4 address, and for an IPv6 one where there is none.
fn look_up(name: &str) -> io::Result<Option<IpAddr>> {
    for kind in [1, 28] {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(DNS)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let question = question(name, kind);
        socket.send(&question)?;
        let mut reply = [0; 2048];
        let length = socket.recv(&mut reply)?;
        if let Some(address) = first_address(&reply[..length], question.len()) {
            return Ok(Some(address));
        }
    }
    Ok(None)
}

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

/// The first answer, which stands after the repeated question: a name, six bytes of type, class and
/// more, a length and the address.
fn first_address(reply: &[u8], question: usize) -> Option<IpAddr> {
    let answers = u16::from_be_bytes(reply.get(6..8)?.try_into().ok()?);
    let mut at = question;
    if answers == 0 {
        return None;
    }
    // A name is labels up to an empty one, or up to a reference of two bytes.
    loop {
        match *reply.get(at)? {
            0 => break at += 1,
            length if length >= 0xc0 => break at += 2,
            length => at += 1 + usize::from(length),
        }
    }
    match reply.get(at + 8..at + 10)? {
        [0, 4] => {
            let bytes: [u8; 4] = reply.get(at + 10..at + 14)?.try_into().ok()?;
            Some(bytes.into())
        }
        [0, 16] => {
            let bytes: [u8; 16] = reply.get(at + 10..at + 26)?.try_into().ok()?;
            Some(bytes.into())
        }
        _ => None,
    }
}

/// The smallest ClientHello of TLS 1.2 that servers answer: one cipher, and the server name.
fn hello(host: &str) -> Vec<u8> {
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    // Two ciphers that nearly every server has: ECDHE with AES-128-GCM, by ECDSA and by RSA.
    body.extend([0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
    let mut extensions = Vec::new();
    if host.parse::<IpAddr>().is_err() {
        let name = [&[0][..], &length(host.as_bytes()), host.as_bytes()].concat();
        let list = [&length(&name)[..], &name].concat();
        extensions.extend([&[0, 0][..], &length(&list), &list].concat());
    }
    // Curves and point formats, and signatures by ECDSA and RSA with SHA-256.
    extensions.extend([0, 10, 0, 6, 0, 4, 0, 29, 0, 23, 0, 11, 0, 2, 1, 0]);
    extensions.extend([0, 13, 0, 8, 0, 6, 4, 3, 8, 4, 4, 1]);
    body.extend(length(&extensions));
    body.extend(extensions);
    let message = [&[1, 0][..], &length(&body), &body].concat();
    [&[22, 3, 1][..], &length(&message), &message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_replies_and_odd_bytes_are_none() {
        let asked = question("a.test", 1);
        let mut reply = asked.clone();
        reply[7] = 1;
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 93, 184, 216, 34]);
        assert_eq!(first_address(&reply, asked.len()), Some([93, 184, 216, 34].into()));
        for end in 0..reply.len() {
            assert_eq!(first_address(&reply[..end], asked.len()), None);
        }
        assert_eq!(first_address(&asked, asked.len()), None);
    }

    #[test]
    fn refusals_are_told_from_hosts() {
        let refused = |answer: &[u8]| matches!(judge(answer), Seen::Refusal(_));
        assert!(refused(&[21, 3, 3, 0, 2, 2, 112]));
        assert!(refused(b"HTTP/1.1 403 Forbidden\r\nserver: skep\r\n"));
        assert!(!refused(b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\n"));
        assert!(!refused(&[22, 3, 3, 0, 5]) && !refused(b"SSH-2.0-x\r\n"));
    }
}
