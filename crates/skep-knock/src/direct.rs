//! The plain way to a host: its name is asked for, its address connected to, and a little is said.
//!
//! What is said depends on the port, because that is what the verdict depends on: a ClientHello on
//! 443, a `HEAD` request on 80, nothing elsewhere: what is spoken there is not known. An allowed host hears that
//! much; a denied one hears nothing. The proxy ends a connection in the same way whether it refuses it or the host
//! does not take it; which of the two it was it has said when it was asked ([`crate::proxy`]).

use crate::{named, read_answer};
use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore};
use skep_types::EgressProbe;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
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
    /// The connection was ended without a word.
    Ended(&'static str),
    /// Nothing, and it is open.
    Silence,
    /// Its name has no address.
    Nameless,
    /// It is allowed, and nobody is there.
    Dead,
    /// Nobody, though nobody said no.
    Nobody(String),
}

const RESET: &str = "the connection was reset";
const DEAD: &str = "it is allowed, and nobody answers there";
const NAMELESS: &str = "DNS failed: the name could not be resolved";

/// Tries it, knowing what the proxy said when it was asked for the same.
pub(crate) fn knock(host: &str, port: u16, asked: &EgressProbe) -> EgressProbe {
    let seen = try_host(host, port)
        .unwrap_or_else(|error| Seen::Nobody(format!("the connection failed: {error}")));
    let seen = judge(seen, asked);
    let (reached, allowed, reason) = match seen {
        Seen::Host => (true, Some(true), None),
        Seen::Refusal(reason) => (false, Some(false), Some(reason.to_owned())),
        Seen::Dead | Seen::Ended(_) | Seen::Silence => (false, Some(true), Some(DEAD.to_owned())),
        Seen::Nameless => (false, Some(true), Some(NAMELESS.to_owned())),
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

/// What was seen, in the light of what the proxy said.
fn judge(seen: Seen, asked: &EgressProbe) -> Seen {
    let dead = asked.allowed == Some(true) && !asked.reached;
    match seen {
        Seen::Ended(_) if dead => Seen::Dead,
        Seen::Ended(reason) => Seen::Refusal(reason),
        Seen::Silence if dead => Seen::Dead,
        Seen::Silence if asked.reached => Seen::Host,
        Seen::Silence => Seen::Nobody("nothing was said, and nothing was heard".into()),
        // Names that are not allowed are not answered either.
        Seen::Nameless if asked.allowed != Some(true) => Seen::Refusal("the name was not answered"),
        seen => seen,
    }
}

fn try_host(host: &str, port: u16) -> io::Result<Seen> {
    let address = match host.parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => match look_up(host)? {
            Some(address) => address,
            None => return Ok(Seen::Nameless),
        },
    };
    let mut tls = if port == 443 { Some(begin_tls(host)?) } else { None };
    let mut stream = match TcpStream::connect_timeout(&SocketAddr::new(address, port), PATIENCE) {
        // It was connected, and ended before we had heard of that.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Seen::Ended(RESET)),
        other => other?,
    };
    let mut said = Vec::new();
    match &mut tls {
        Some(tls) => drop(tls.write_tls(&mut said)?),
        None if port != 80 => {}
        None => {
            let target = named(host, port);
            let target = target.strip_suffix(":80").unwrap_or(&target);
            write!(said, "HEAD / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n")?;
        }
    }
    stream.set_read_timeout(Some(QUIET))?;
    let mut answer = [0; 4096];
    let got = stream.write_all(&said).and_then(|()| stream.read(&mut answer));
    Ok(match got {
        Ok(0) => Seen::Ended("the connection was ended"),
        Ok(length) => match tls {
            Some(tls) => judge_tls(tls, &answer[..length]),
            None => judge_http(&answer[..length]),
        },
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Seen::Silence
        }
        Err(error)
            if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) =>
        {
            Seen::Ended(RESET)
        }
        Err(error) => return Err(error),
    })
}

/// A client that trusts nobody: it is only heard who answers.
fn begin_tls(host: &str) -> io::Result<ClientConnection> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)
}

/// The proxy says no by the alert "unrecognized name".
fn judge_tls(mut tls: ClientConnection, mut answer: &[u8]) -> Seen {
    let _ = tls.read_tls(&mut answer);
    match tls.process_new_packets() {
        Err(rustls::Error::AlertReceived(AlertDescription::UnrecognisedName)) => {
            Seen::Refusal("TLS was refused: unrecognized name")
        }
        _ => Seen::Host,
    }
}

/// The proxy says no by an answer that names itself.
fn judge_http(answer: &[u8]) -> Seen {
    match read_answer(answer) {
        Some(answer) if answer.by_proxy && answer.status == 403 => {
            Seen::Refusal("the request was refused")
        }
        Some(answer) if answer.by_proxy && answer.status == 502 => Seen::Dead,
        _ => Seen::Host,
    }
}

/// Asks skep's own DNS for an IPv4 address, and for an IPv6 one where there is none.
fn look_up(name: &str) -> io::Result<Option<IpAddr>> {
    let name = Name::from_ascii(name).map_err(io::Error::other)?;
    for (id, kind) in [(1, RecordType::A), (2, RecordType::AAAA)] {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(DNS)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(&question(id, &name, kind)?)?;
        let mut reply = [0; 4096];
        let length = socket.recv(&mut reply)?;
        if let Some(address) = first_address(id, &reply[..length]) {
            return Ok(Some(address));
        }
    }
    Ok(None)
}

fn question(id: u16, name: &Name, kind: RecordType) -> io::Result<Vec<u8>> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.op_code = OpCode::Query;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name.clone(), kind));
    message.to_vec().map_err(io::Error::other)
}

fn first_address(id: u16, reply: &[u8]) -> Option<IpAddr> {
    let message = Message::from_vec(reply).ok()?;
    if message.metadata.id != id || message.metadata.response_code != ResponseCode::NoError {
        return None;
    }
    message.answers.iter().find_map(|record| match &record.data {
        RData::A(address) => Some(address.0.into()),
        RData::AAAA(address) => Some(address.0.into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::Record;

    #[test]
    fn addresses_are_found_in_replies_and_odd_bytes_are_none() {
        let name = Name::from_ascii("a.test").unwrap();
        let asked = question(7, &name, RecordType::A).unwrap();
        let mut reply = Message::response(7, OpCode::Query);
        reply.add_query(Query::query(name.clone(), RecordType::A));
        reply.add_answer(Record::from_rdata(
            name,
            60,
            RData::A(Ipv4Addr::new(93, 184, 216, 34).into()),
        ));
        let reply = reply.to_vec().unwrap();
        assert_eq!(first_address(7, &reply), Some([93, 184, 216, 34].into()));
        assert_eq!(first_address(8, &reply), None, "another question's");
        for end in 0..reply.len() {
            assert_eq!(first_address(7, &reply[..end]), None);
        }
        assert_eq!(first_address(7, &asked), None);
    }

    #[test]
    fn refusals_are_told_from_hosts() {
        let refused = |seen: Seen| matches!(seen, Seen::Refusal(_));
        let tls = |answer: &[u8]| refused(judge_tls(begin_tls("a.test").unwrap(), answer));
        assert!(tls(&[21, 3, 3, 0, 2, 2, 112]));
        assert!(
            !tls(&[21, 3, 3, 0, 2, 2, 40]) && !tls(&[22, 3, 3, 0, 5]) && !tls(b"SSH-2.0-x\r\n")
        );
        let http = |answer: &[u8]| refused(judge_http(answer));
        assert!(http(b"HTTP/1.1 403 Forbidden\r\nserver: skep\r\n\r\n"));
        assert!(!http(b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\n\r\n"));
        assert!(!http(b"SSH-2.0-x\r\n"));
    }

    /// That DNS failed is no denial, and that a name which is not allowed has no address is one.
    #[test]
    fn a_name_without_an_address_is_denied_only_where_the_proxy_denies_it() {
        let asked = |allowed| EgressProbe {
            host: "a.test".into(),
            port: 443,
            reached: false,
            allowed,
            how: String::new(),
            reason: None,
            hint: None,
        };
        assert!(matches!(judge(Seen::Nameless, &asked(Some(true))), Seen::Nameless));
        for allowed in [Some(false), None] {
            assert!(matches!(judge(Seen::Nameless, &asked(allowed)), Seen::Refusal(_)));
        }
    }

    #[test]
    fn a_host_is_named_in_the_hello_and_an_address_is_not() {
        for (host, there) in [("a.test", true), ("192.0.2.1", false)] {
            let mut bytes = Vec::new();
            begin_tls(host).unwrap().write_tls(&mut bytes).unwrap();
            let found = bytes.windows(host.len()).any(|window| window == host.as_bytes());
            assert_eq!(found, there, "{host}");
        }
    }
}
