//! Asking the proxy for a connection, as a program that knows proxies does.

use crate::{Answer, named, read_answer};
use serde::Deserialize;
use skep_types::EgressProbe;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// How long one host may take.
const PATIENCE: Duration = Duration::from_secs(25);
/// More of an answer is not looked at.
const LONGEST: u64 = 16 << 10;

pub(crate) fn knock(host: &str, port: u16, proxy: u16) -> EgressProbe {
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
    let target = named(host, port);
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while (answer.len() as u64) < LONGEST {
        let length = stream.read(&mut buffer)?;
        answer.extend_from_slice(&buffer[..length]);
        // A connection that was given stays open and says nothing more.
        if length == 0 || read_answer(&answer).is_some_and(|answer| answer.status == 200) {
            break;
        }
    }
    Ok(answer)
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
    let Some(Answer { status, body, later, .. }) = read_answer(answer) else {
        probe.reason = Some("the proxy answered nothing".into());
        return;
    };
    if status == 200 && later {
        probe.reason = Some("it depends on the name that is said on the connection".into());
        return;
    }
    probe.reached = status == 200;
    probe.allowed = match status {
        200 | 502 | 503 | 504 => Some(true),
        403 => Some(false),
        _ => None,
    };
    if probe.reached {
        return;
    }
    match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => {
            probe.reason = refusal.reason.or(refusal.message).or(refusal.error);
            probe.hint = refusal.hint;
        }
        Err(_) => probe.reason = Some(format!("the proxy answered {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answer: &str) -> EgressProbe {
        let mut probe = EgressProbe {
            host: "a.test".into(),
            port: 443,
            reached: false,
            allowed: None,
            how: String::new(),
            reason: None,
            hint: None,
        };
        judge(answer.as_bytes(), &mut probe);
        probe
    }

    #[test]
    fn answers_of_the_proxy() {
        let yes = judged("HTTP/1.1 200 OK\r\n\r\n");
        assert!(yes.reached && yes.allowed == Some(true));
        let later = judged("HTTP/1.1 200 OK\r\nskep-verdict: later\r\n\r\n");
        assert_eq!((later.reached, later.allowed), (false, None));
        let no = judged(
            "HTTP/1.1 403 Forbidden\r\n\r\n{\"error\":\"denied\",\"host\":\"a.test\",\"hint\":\"--allow a.test\"}",
        );
        assert_eq!((no.reached, no.allowed), (false, Some(false)));
        assert_eq!(no.hint.as_deref(), Some("--allow a.test"));
        let dead = judged("HTTP/1.1 502 Bad Gateway\r\n\r\nx");
        assert_eq!((dead.reached, dead.allowed), (false, Some(true)));
        assert_eq!(judged("nonsense").allowed, None);
        assert_eq!(judged("HTTP/1.1 403 Forbidden\r\n").allowed, None, "half a head");
    }
}
