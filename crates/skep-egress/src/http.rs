//! HTTP in the clear (or in TLS that ends here): each request judged on its own.
//!
//! A connection proves nothing about the next request on it. Every request names its host, is
//! judged, and goes to an upstream connection that was made for that host. Redirects are
//! answers like any other: nothing here follows them.

use crate::audit::Subject;
use crate::explicit;
use crate::forward::{Body, Exchange, close, text_body};
use crate::gate::{Gate, REFUSED};
use crate::gateway::{Gateway, Ticket};
use crate::head::HeadFault;
use crate::judge::{Denial, Destination, Grant};
use crate::upstream::{Upstream, Upstreams};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, SERVER, TRANSFER_ENCODING, UPGRADE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use skep_policy::egress::{Host, Name, Protocol, reason};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncWrite};

/// Where the requests of a connection come from.
pub(crate) enum Origin {
    /// A connection that was going to this destination.
    Plain(Destination),
    /// The proxy port: requests say themselves where they want to go.
    Explicit,
    /// TLS that ends here, for this host.
    Opened { name: Name, grant: Grant },
}

/// One connection from inside, and the upstream connection it uses.
pub(crate) struct Session {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) origin: Origin,
    pub(crate) upstreams: Upstreams,
    /// Why the last head was refused, if it was.
    fault: Arc<OnceLock<HeadFault>>,
}

/// Serves HTTP/1. An upstream connection may be there already.
pub(crate) async fn serve<S>(
    gateway: Arc<Gateway>,
    ticket: Arc<Ticket>,
    stream: S,
    origin: Origin,
    upstream: Option<Upstream>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (gate, fault) = Gate::before(stream);
    let session = Session::new(gateway.clone(), ticket.clone(), origin, fault);
    upstream.into_iter().for_each(|upstream| session.upstreams.keep(upstream));
    let service = service_fn(move |request| session.clone().answer(request));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // Who has said all there is to say may still want to hear the answer.
        .half_close(true)
        .header_read_timeout(gateway.head_patience())
        .serve_connection(TokioIo::new(gate), service)
        .with_upgrades();
    tokio::select! {
        _ = connection => {}
        () = ticket.cut() => {}
    }
}

/// Serves HTTP/2.
pub(crate) async fn serve_http2<S>(
    gateway: Arc<Gateway>,
    ticket: Arc<Ticket>,
    stream: S,
    origin: Origin,
    upstream: Option<Upstream>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let session = Session::new(gateway, ticket.clone(), origin, Arc::default());
    upstream.into_iter().for_each(|upstream| session.upstreams.keep(upstream));
    let service = service_fn(move |request| session.clone().answer(request));
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(100)
        .max_header_list_size(64 << 10)
        .keep_alive_interval(std::time::Duration::from_secs(60))
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = connection => {}
        () = ticket.cut() => {}
    }
}

/// A request that was refused, and whom it was for.
struct Refused {
    host: String,
    port: u16,
    denial: Denial,
}

impl Session {
    fn new(
        gateway: Arc<Gateway>,
        ticket: Arc<Ticket>,
        origin: Origin,
        fault: Arc<OnceLock<HeadFault>>,
    ) -> Arc<Self> {
        Arc::new(Self { gateway, ticket, origin, upstreams: Upstreams::default(), fault })
    }

    /// A request that cannot be read, or not in one way only: whom it is for is known by the
    /// connection, if at all.
    fn unreadable(&self, hint: &str) -> Refused {
        let (host, port) = match &self.origin {
            Origin::Plain(destination) => (destination.shown(&self.gateway), destination.port),
            Origin::Opened { name, grant } => (name.to_string(), grant.port),
            Origin::Explicit => (String::new(), 0),
        };
        Refused { host, port, denial: Denial::new(reason::BAD_REQUEST, hint) }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        // After these the gate does not know where the next head begins.
        let last = request.version() < hyper::Version::HTTP_2
            && (request.headers().contains_key(UPGRADE)
                || request.headers().contains_key(TRANSFER_ENCODING));
        Ok(match self.judge(&request).await {
            Ok(grant) => Exchange::new(&self, grant).run(request).await,
            Err(refused) => {
                let subject = Subject {
                    host: refused.host.clone(),
                    port: refused.port,
                    ip: refused.denial.address,
                    proto: "http",
                    exec: self.ticket.exec(),
                };
                self.gateway.deny(&subject, refused.denial.reason);
                let mut response = refusal(&refused.host, refused.port, &refused.denial);
                if last {
                    close(&mut response);
                }
                response
            }
        })
    }

    async fn judge(&self, request: &Request<Incoming>) -> Result<Grant, Refused> {
        let bad = |hint: &str| self.unreadable(hint);
        if request.method().as_str() == REFUSED {
            let fault = self.fault.get().copied().unwrap_or(HeadFault::Syntax);
            return Err(bad(&format!("the request cannot be read in one way only: {fault}")));
        }
        if request.method() == Method::CONNECT {
            return Err(bad("CONNECT is for the proxy port, as the first request"));
        }
        let claim = claim(request).map_err(bad)?;
        let (destination, protocol) = match &self.origin {
            Origin::Plain(destination) => (destination.clone(), Protocol::Http),
            Origin::Opened { name, grant } => (
                Destination {
                    name: Some(name.clone()),
                    addresses: grant.addresses.clone(),
                    port: grant.port,
                },
                Protocol::Tls,
            ),
            Origin::Explicit => {
                let plain = request.uri().scheme_str() == Some("http");
                let Some((host, port)) = claim.clone().filter(|_| plain) else {
                    return Err(bad("a proxy wants `http://HOST/…` or CONNECT"));
                };
                let port = port.unwrap_or(80);
                let found = explicit::destination(&self.gateway, host.clone(), port).await;
                let refuse = |denial| Refused { host: host.to_string(), port, denial };
                (found.map_err(refuse)?, Protocol::Http)
            }
        };
        let port = destination.port;
        let shown = || match &claim {
            Some((host, _)) => host.to_string(),
            None => destination.shown(&self.gateway),
        };
        let refuse = |denial: Denial| Refused { host: shown(), port, denial };
        let name = match &claim {
            Some((_, Some(other))) if *other != port => {
                let hint =
                    format!("the connection is to port {port} and the request to port {other}");
                return Err(refuse(Denial::new(reason::ADDRESS_NOT_OF_NAME, hint)));
            }
            Some((Host::Address(address), _)) if !destination.addresses.contains(address) => {
                let hint = "the request is for another address than the connection";
                return Err(refuse(Denial::new(reason::ADDRESS_NOT_OF_NAME, hint)));
            }
            Some((Host::Name(name), _)) => Some(name),
            _ => None,
        };
        self.gateway.judge(&destination, name, protocol).await.map_err(refuse)
    }
}

type Claim = Option<(Host, Option<u16>)>;

/// The host that a request names. Where it is named twice, both must agree.
fn claim(request: &Request<Incoming>) -> Result<Claim, &'static str> {
    let parse = |text: &str| Host::parse_authority(text).map_err(|_| "the host cannot be read");
    let mut named = request.headers().get_all(HOST).iter();
    let header = match named.next() {
        Some(value) => Some(parse(value.to_str().map_err(|_| "the host cannot be read")?)?),
        None => None,
    };
    if named.next().is_some() {
        return Err("there is more than one host");
    }
    let line = request.uri().authority().map(|authority| parse(authority.as_str())).transpose()?;
    match (line, header) {
        (Some(line), Some(header)) if line.0 != header.0 => Err("two hosts are named"),
        (Some(line), _) => Ok(Some(line)),
        (None, header) => Ok(header),
    }
}

/// The body of a refusal.
pub(crate) fn refusal_text(host: &str, port: u16, denial: &Denial) -> String {
    let text = serde_json::json!({
        "error": denial.reason,
        "host": host,
        "port": port,
        "rule": null,
        "hint": denial.hint,
    });
    format!("{text}\n")
}

/// What is allowed and came to nothing is no refusal.
pub(crate) fn status_of(denial: &Denial) -> StatusCode {
    match denial.reason {
        reason::BAD_REQUEST => StatusCode::BAD_REQUEST,
        reason::UNREACHABLE | reason::CERTIFICATE | reason::NO_ANSWER => StatusCode::BAD_GATEWAY,
        _ => StatusCode::FORBIDDEN,
    }
}

/// An answer that teaches.
pub(crate) fn refusal(host: &str, port: u16, denial: &Denial) -> Response<Body> {
    let mut response = Response::new(text_body(refusal_text(host, port, denial)));
    *response.status_mut() = status_of(denial);
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    // Tells our no from a host's.
    response.headers_mut().insert(SERVER, hyper::header::HeaderValue::from_static("skep"));
    response
}
