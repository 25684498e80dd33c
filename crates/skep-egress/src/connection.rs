//! One connection on its way out: first bytes, verdict, tunnel.
//!
//! How it is decided what to wait for:
//!
//! 1. A `tcp://` rule for the destination: dialled at once, bytes pass unseen.
//! 2. Raw bytes are allowed (a rule without a protocol, on a port that is neither 80 nor 443):
//!    dialled at once; whoever speaks first decides. If it is the other side (ssh, SMTP, MySQL),
//!    bytes pass. If it is the inside, its first bytes are looked at as below; what is neither
//!    TLS nor HTTP passes.
//! 3. Else the first bytes are awaited, for `head_seconds` if TLS or HTTP could be allowed, and
//!    a quarter of a second if nothing could: long enough to answer a web client properly.
//!
//! TLS is then judged by its server name, HTTP request by request.
//!
//! Text without a line end could become a request line. Where raw bytes are allowed it is held back
//! for a quarter of a second at most, because there are protocols that wait for an answer to half a
//! line; then it passes, but what follows is looked at before it does ([`crate::watched`]): if it
//! turns out to be TLS or HTTP after all, the connection ends. So typing slowly opens nothing.

use crate::audit::Subject;
use crate::client::Client;
use crate::first_bytes::{FirstBytes, classify};
use crate::gateway::{Gateway, Ticket};
use crate::hello::{self, Hello, UNRECOGNIZED_NAME};
use crate::http::{self, Origin};
use crate::judge::{Denial, Destination, Dialled, Grant};
use crate::opened;
use crate::plain;
use crate::tunnel::{self, Counts};
use crate::watched::Watched;
use skep_policy::egress::{Name, Protocol, reason};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a client that will be refused may take to say how it wants to hear it.
const SHORT: Duration = Duration::from_millis(250);

/// A connection that lasts longer has a line in the log before it ends, too.
const SOON_OVER: Duration = Duration::from_secs(2);

/// What is known of bytes from the inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// What they are; they pass.
    Judged,
    /// Nothing yet; they are watched until it is.
    Unjudged,
}

/// Serves a connection whose destination is known, and may be dialled already.
pub(crate) async fn serve(
    gateway: Arc<Gateway>,
    ticket: Arc<Ticket>,
    mut client: Client,
    (destination, mut dialled): (Destination, Dialled),
) {
    let raw = gateway.judge(&destination, None, Protocol::Tcp).await;
    if let Ok(grant) = &raw
        && let Some(address) = grant.addresses.first()
        && gateway.rules().is_blind(grant.name.as_ref(), *address, grant.port)
    {
        return pass(&gateway, &ticket, client, (grant, Bytes::Judged), dialled).await;
    }
    let mut patience = gateway.head_patience();
    match &raw {
        Ok(grant) => match dial_once(&gateway, grant, dialled.take()).await {
            Ok(found) => {
                if !ticket.set_purpose(grant.purpose(found.1)) {
                    return narrowed(&gateway, &ticket, client, (&destination, grant)).await;
                }
                // A server of HTTP/2 may speak first, too. Its client does not wait for that; where
                // one does wait for a greeting, it gets it at once, and what it says then is watched.
                let speaks = inside_speaks_first(&mut client, &found.0, &gateway).await
                    || (is_http2(&found.0).await && speaks_soon(&mut client).await);
                if !speaks {
                    let unjudged = (grant, Bytes::Unjudged);
                    return pass(&gateway, &ticket, client, unjudged, Some(found)).await;
                }
                dialled = Some(found);
            }
            Err(denial) => {
                ticket.identify().await;
                let subject = subject(&destination, &gateway, &ticket, "tcp");
                gateway.allow(&subject, &grant.rule, Some(denial.reason), (0, 0));
                return client.reset();
            }
        },
        Err(_) if gateway.could_allow(&destination).is_err() => patience = SHORT,
        Err(_) => {}
    }
    if raw.is_ok() {
        patience = SHORT;
    }
    let kind = timeout(patience, first_bytes(&mut client)).await;
    ticket.identify().await;
    match (kind, raw) {
        (Err(_), Ok(grant)) if !client.seen().is_empty() => {
            pass(&gateway, &ticket, client, (&grant, Bytes::Unjudged), dialled).await;
        }
        (Ok(Some(FirstBytes::Tls)), _) => {
            serve_tls(gateway, ticket, client, destination, dialled).await;
        }
        // Requests are sent over connections of their own. A server that serves one connection at a time
        // would wait for a word on the one that was dialled.
        (Ok(Some(FirstBytes::Http1)), _) => {
            drop(dialled);
            http::serve(gateway, ticket, client, Origin::Plain(destination), None).await;
        }
        (Ok(Some(FirstBytes::Http2)), _) => {
            drop(dialled);
            http::serve_http2(gateway, ticket, client, Origin::Plain(destination), None).await;
        }
        (Ok(Some(_)), Ok(grant)) => {
            pass(&gateway, &ticket, client, (&grant, Bytes::Judged), dialled).await;
        }
        (_, Ok(_)) => {
            let denial = Denial::new(reason::TIMEOUT, "the first bytes did not come");
            refuse(&gateway, client, subject(&destination, &gateway, &ticket, "tcp"), &denial);
        }
        // Went away without a word, where something could have been allowed: programs try two
        // addresses at once and drop the slower connection.
        (Ok(None), Err(_)) if patience > SHORT && client.seen().is_empty() => {}
        (_, Err(denial)) => {
            refuse(&gateway, client, subject(&destination, &gateway, &ticket, "tcp"), &denial);
        }
    }
}

/// The rules changed while it was dialled.
async fn narrowed(
    gateway: &Gateway,
    ticket: &Ticket,
    client: Client,
    (destination, grant): (&Destination, &Grant),
) {
    ticket.identify().await;
    let subject = subject(destination, gateway, ticket, "tcp");
    gateway.allow(&subject, &grant.rule, Some(reason::NARROWED), (0, 0));
    client.reset();
}

/// Waits until one side says something; an end counts as saying something.
async fn inside_speaks_first(client: &mut Client, outside: &TcpStream, gateway: &Gateway) -> bool {
    if !client.seen().is_empty() {
        return true;
    }
    let idle = Duration::from_secs(gateway.limits.idle_seconds);
    tokio::select! {
        biased;
        _ = client.see_more() => !client.seen().is_empty(),
        _ = outside.readable() => false,
        () = tokio::time::sleep(idle) => false,
    }
}

/// Whether the other side's first bytes are those of an HTTP/2 server, as far as they are there: a frame
/// of settings for the connection (RFC 9113, 3.4).
async fn is_http2(outside: &TcpStream) -> bool {
    let mut first = [0; 9];
    match outside.peek(&mut first).await {
        Ok(count) if count > 0 => {
            let fixed = |at: usize| if at == 3 { 4 } else { 0 };
            (3..count).all(|at| first[at] == fixed(at))
        }
        _ => false,
    }
}

/// What was dialled already, if it is one of the addresses granted; else anew.
async fn dial_once(
    gateway: &Gateway,
    grant: &Grant,
    dialled: Dialled,
) -> Result<(TcpStream, IpAddr), Denial> {
    match dialled.filter(|(_, address)| grant.addresses.contains(address)) {
        Some(dialled) => Ok(dialled),
        None => gateway.dial(grant).await,
    }
}

/// Whether the inside has something to say without waiting for more of the other side.
async fn speaks_soon(client: &mut Client) -> bool {
    let _ = timeout(SHORT, client.see_more()).await;
    !client.seen().is_empty()
}

/// What the connection speaks; `None` if it ends before it says so.
async fn first_bytes(client: &mut Client) -> Option<FirstBytes> {
    loop {
        match classify(client.seen()) {
            FirstBytes::NeedMore => {}
            kind => return Some(kind),
        }
        if !matches!(client.see_more().await, Ok(count) if count > 0) {
            return None;
        }
    }
}

async fn serve_tls(
    gateway: Arc<Gateway>,
    ticket: Arc<Ticket>,
    mut client: Client,
    destination: Destination,
    dialled: Dialled,
) {
    let mut subject = subject(&destination, &gateway, &ticket, "tls");
    let mut offers_http2 = false;
    let claim = match timeout(gateway.head_patience(), hello::read(&mut client)).await {
        Ok(Ok(Hello::Whole { name: Some(name), http2 })) => {
            subject.host.clone_from(&name);
            offers_http2 = http2;
            match Name::parse(&name) {
                Ok(name) => Some(name),
                Err(error) => {
                    let denial = Denial::new(reason::BAD_HOST, error.to_string());
                    return alert(&gateway, client, subject, &denial).await;
                }
            }
        }
        Ok(Ok(Hello::Whole { name: None, .. })) => None,
        Ok(_) => {
            let denial = Denial::new(reason::SERVER_NAME, "the TLS hello cannot be read");
            return alert(&gateway, client, subject, &denial).await;
        }
        Err(_) => {
            let denial = Denial::new(reason::TIMEOUT, "the TLS hello did not come");
            return refuse(&gateway, client, subject, &denial);
        }
    };
    let judged = gateway.judge(&destination, claim.as_ref(), Protocol::Tls).await;
    let grant = match judged {
        Ok(grant) if claim.is_none() && destination.name.is_some() => {
            // Asked for by name, and the handshake hides which one it means.
            let name = grant.shown();
            let denial = Denial::new(reason::SERVER_NAME, format!("TLS for `{name}` must name it"));
            return alert(&gateway, client, subject, &denial).await;
        }
        Ok(grant) => grant,
        Err(denial) => return alert(&gateway, client, subject, &denial).await,
    };
    match &claim {
        Some(name) if gateway.secrets().has_host(name) => {
            let same = dialled.filter(|(_, address)| grant.addresses.contains(address));
            let name = (name.clone(), offers_http2);
            opened::serve(gateway.clone(), ticket, client, name, (grant, same)).await;
        }
        _ => {
            let same = dialled.filter(|(_, address)| grant.addresses.contains(address));
            pass(&gateway, &ticket, client, (&grant, Bytes::Judged), same).await;
        }
    }
}

/// Dials if that was not done yet, and copies until the end.
async fn pass(
    gateway: &Arc<Gateway>,
    ticket: &Ticket,
    client: Client,
    (grant, bytes): (&Grant, Bytes),
    dialled: Dialled,
) {
    let Some((mut subject, outside)) = reach(gateway, ticket, grant, dialled).await else {
        return client.reset();
    };
    let counts = Counts::default();
    let idle = Duration::from_secs(gateway.limits.idle_seconds);
    let passed = async {
        match bytes {
            Bytes::Judged => {
                let known = ticket.identify();
                plain::run((client, outside), known, &gateway.pipes, &counts, idle).await;
                false
            }
            Bytes::Unjudged => {
                ticket.identify().await;
                let (inside, changed) = Watched::before(client);
                tunnel::run(inside, outside, &counts, idle).await;
                changed.load(Ordering::Relaxed)
            }
        }
    };
    let passed = async {
        tokio::pin!(passed);
        if let Ok(changed) = timeout(SOON_OVER, &mut passed).await {
            return changed;
        }
        // Who looks at the log sees that it is there, and it is known even if this process dies.
        let subject = Subject { exec: ticket.exec(), ..subject.clone() };
        gateway.note_open(&subject, &grant.rule, counts.both());
        passed.await
    };
    let (changed, reason) = tokio::select! {
        changed = passed => (changed, None),
        () = ticket.cut() => (false, Some(reason::NARROWED)),
    };
    subject.exec = ticket.exec();
    if changed {
        gateway.deny(&subject, reason::PROTOCOL_NOT_ALLOWED);
    } else {
        gateway.allow(&subject, &grant.rule, reason, counts.both());
    }
}

/// The other side, and what the log calls it; a failure is in the log already.
async fn reach(
    gateway: &Arc<Gateway>,
    ticket: &Ticket,
    grant: &Grant,
    dialled: Dialled,
) -> Option<(Subject, TcpStream)> {
    let proto = match grant.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Tls => "tls",
        Protocol::Http => "http",
    };
    let mut subject = Subject {
        host: grant.shown(),
        port: grant.port,
        ip: grant.addresses.first().copied(),
        proto,
        exec: ticket.exec(),
    };
    let (outside, address) = match dialled {
        Some(found) => found,
        None => match gateway.dial(grant).await {
            Ok(found) => found,
            Err(denial) => {
                ticket.identify().await;
                subject.exec = ticket.exec();
                gateway.allow(&subject, &grant.rule, Some(denial.reason), (0, 0));
                return None;
            }
        },
    };
    subject.ip = Some(address);
    if !ticket.set_purpose(grant.purpose(address)) {
        ticket.identify().await;
        subject.exec = ticket.exec();
        gateway.allow(&subject, &grant.rule, Some(reason::NARROWED), (0, 0));
        return None;
    }
    Some((subject, outside))
}

fn subject(
    destination: &Destination,
    gateway: &Gateway,
    ticket: &Ticket,
    proto: &'static str,
) -> Subject {
    Subject {
        host: destination.shown(gateway),
        port: destination.port,
        ip: destination.addresses.first().copied(),
        proto,
        exec: ticket.exec(),
    }
}

fn refuse(gateway: &Gateway, client: Client, subject: Subject, denial: &Denial) {
    gateway.deny(&subject, denial.reason);
    client.reset();
}

/// Says no in TLS's own words, then ends.
async fn alert(gateway: &Gateway, mut client: Client, subject: Subject, denial: &Denial) {
    gateway.deny(&subject, denial.reason);
    let _ = client.write_all(UNRECOGNIZED_NAME).await;
    let _ = client.shutdown().await;
}
