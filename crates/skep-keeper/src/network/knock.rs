//! Whether a host can be reached, tried from inside by a process that wears what an exec wears.
//!
//! Twice. First it asks the proxy for a connection as any program may, so the verdict is the proxy's
//! own, with its reason; nothing is sent to the host. Then it connects like a program that knows
//! nothing of proxies ([`super::direct`]), which shows that such programs get the same verdict.

use crate::confinement::Confinement;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use skep_provider::EgressProbe;
use skep_sys::process::{Namespaces, clone_with};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// How long one host may take.
const PATIENCE: Duration = Duration::from_secs(25);
/// More of an answer is not looked at.
const LONGEST: u64 = 16 << 10;

/// What shall be tried.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Question {
    /// Host and port.
    pub targets: Vec<(String, u16)>,
    /// Port of the proxy.
    pub proxy: u16,
}

impl Question {
    fn try_all(&self) -> Vec<u8> {
        let both = |(host, port): &(String, u16)| {
            [knock(host, *port, self.proxy), super::direct::knock(host, *port)]
        };
        let found: Vec<EgressProbe> = self.targets.iter().flat_map(both).collect();
        crate::protocol::to_json(&found)
    }
}

/// Tries what is asked for in JSON and answers in JSON, in a process that somebody else has made an
/// exec of (the guest's init). A question that cannot be read has an empty answer.
pub fn answer(question: &[u8]) -> Vec<u8> {
    serde_json::from_slice::<Question>(question)
        .map(|question| question.try_all())
        .unwrap_or_default()
}

/// Starts a child that tries and writes what it found to the descriptor. Init does not wait for
/// it; without an answer, the reader sees the end.
pub fn start(question: &Question, confinement: &Confinement, descriptors: Vec<OwnedFd>) {
    let Some(answer) = descriptors.into_iter().next() else { return };
    let _ = clone_with(Namespaces::NONE, || {
        let worn = confinement
            .drop_privileges()
            .and_then(|()| confinement.raise_fence())
            .and_then(|()| confinement.filter_system_calls());
        if worn.is_err() {
            return 1;
        }
        let written = std::fs::File::from(answer).write_all(&question.try_all());
        i32::from(written.is_err())
    });
}

fn knock(host: &str, port: u16, proxy: u16) -> EgressProbe {
    let mut probe = EgressProbe {
        host: host.to_owned(),
        port,
        reached: false,
        allowed: None,
        how: "asked the proxy from inside (CONNECT)".into(),
        reason: None,
        hint: None,
    };
    match ask(host, port, proxy) {
        Ok(answer) => judge(&answer, &mut probe),
        Err(error) => probe.reason = Some(format!("the proxy did not answer: {error}")),
    }
    probe
}

fn ask(host: &str, port: u16, proxy: u16) -> io::Result<Vec<u8>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, proxy));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    write!(stream, "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while (answer.len() as u64) < LONGEST {
        let length = stream.read(&mut buffer)?;
        answer.extend_from_slice(&buffer[..length]);
        // A connection that was given stays open and says nothing more.
        if length == 0 || (status(&answer) == Some(200) && has_whole_head(&answer)) {
            break;
        }
    }
    Ok(answer)
}

fn has_whole_head(answer: &[u8]) -> bool {
    answer.windows(4).any(|window| window == b"\r\n\r\n")
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let text = std::str::from_utf8(line).ok()?;
    text.strip_prefix("HTTP/1.1 ")
        .or_else(|| text.strip_prefix("HTTP/1.0 "))?
        .get(..3)?
        .parse()
        .ok()
}

/// The part of the proxy's refusal that is shown.
#[derive(Deserialize)]
struct Refusal {
    error: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    hint: Option<String>,
}

fn judge(answer: &[u8], probe: &mut EgressProbe) {
    let status = status(answer);
    probe.reached = status == Some(200);
    probe.allowed = match status {
        Some(200 | 502 | 503 | 504) => Some(true),
        Some(403) => Some(false),
        _ => None,
    };
    if probe.reached {
        return;
    }
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
    let body = body.and_then(|at| answer.get(at..)).unwrap_or_default();
    match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => {
            probe.reason = refusal.reason.or(refusal.message).or(refusal.error);
            probe.hint = refusal.hint;
        }
        Err(_) => {
            let status = status.map_or_else(|| "nothing".to_owned(), |status| status.to_string());
            probe.reason = Some(format!("the proxy answered {status}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answer: &str) -> EgressProbe {
        let mut probe = knock_nothing();
        judge(answer.as_bytes(), &mut probe);
        probe
    }

    fn knock_nothing() -> EgressProbe {
        EgressProbe {
            host: "a.test".into(),
            port: 443,
            reached: false,
            allowed: None,
            how: String::new(),
            reason: None,
            hint: None,
        }
    }

    #[test]
    fn answers_of_the_proxy() {
        let yes = judged("HTTP/1.1 200 OK\r\n\r\n");
        assert!(yes.reached && yes.allowed == Some(true));
        let no = judged(
            "HTTP/1.1 403 Forbidden\r\n\r\n{\"error\":\"denied\",\"host\":\"a.test\",\"hint\":\"--allow a.test\"}",
        );
        assert_eq!((no.reached, no.allowed), (false, Some(false)));
        assert_eq!(no.hint.as_deref(), Some("--allow a.test"));
        let dead = judged("HTTP/1.1 502 Bad Gateway\r\n\r\nx");
        assert_eq!((dead.reached, dead.allowed), (false, Some(true)));
        assert_eq!(judged("nonsense").allowed, None);
    }
}
