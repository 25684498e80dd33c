//! An allowed request goes out, its answer comes back, and the log gets its line.

use crate::audit::Subject;
use crate::gateway::Gateway;
use crate::http::{Origin, Session, refusal};
use crate::judge::{Denial, Grant};
use crate::secrets::{Secrets, Written};
use crate::tunnel::{self, Counts};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use skep_policy::egress::{Name, Protocol, Question, reason};
use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The body of what passes through.
pub(crate) type Body = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A body in which placeholders are looked for is held whole; longer ones are refused.
const MOST_SEARCHED: usize = 16 << 20;
/// How long it may take to come.
const BODY_PATIENCE: Duration = Duration::from_secs(120);

/// Headers that are between two neighbours only (RFC 9110, 7.6.1).
const BETWEEN_NEIGHBOURS: [&str; 7] = [
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "te",
    "transfer-encoding",
    "upgrade",
];

pub(crate) fn text_body(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// One request and its answer.
pub(crate) struct Exchange<'a> {
    session: &'a Session,
    grant: Grant,
    /// As they were when the request came; the one that goes out has no others.
    secrets: Arc<Secrets>,
    line: Arc<Line>,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(session: &'a Session, grant: Grant) -> Self {
        let line = Line {
            gateway: session.gateway.clone(),
            subject: Mutex::new(Subject {
                host: grant.shown(),
                port: grant.port,
                ip: grant.addresses.first().copied(),
                proto: "http",
                exec: session.ticket.exec(),
            }),
            rule: grant.rule.clone(),
            reason: Mutex::new(None),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        };
        Self { session, grant, secrets: session.gateway.secrets(), line: Arc::new(line) }
    }

    pub(crate) async fn run(self, mut request: Request<Incoming>) -> Response<Body> {
        let old = request.version() < Version::HTTP_2;
        // After these the gate does not know where the next head begins.
        let last = request.headers().contains_key(UPGRADE)
            || request.headers().contains_key(TRANSFER_ENCODING);
        if !self.may_switch(request.headers()) {
            request.headers_mut().remove(UPGRADE);
            request.headers_mut().remove("http2-settings");
        }
        let upgrade = (old && request.headers().contains_key(UPGRADE))
            .then(|| hyper::upgrade::on(&mut request));
        let version = if old { Version::HTTP_11 } else { Version::HTTP_2 };
        let answered = match self.prepare(request).await {
            Ok(request) => self.send(request, version).await,
            Err(denial) => Err(denial),
        };
        match answered {
            Ok(response) => self.give_back(response, upgrade, last),
            Err(denial) => {
                self.line.end(denial.reason);
                let mut response = refusal(&self.grant.shown(), self.grant.port, &denial);
                if old {
                    close(&mut response);
                }
                response
            }
        }
    }

    /// Whether the connection may become another one than of HTTP. Behind a WebSocket there is one
    /// conversation with this host; behind anything else (HTTP/2 in the clear) there may be requests to
    /// others, so raw bytes must be allowed.
    fn may_switch(&self, headers: &HeaderMap) -> bool {
        let words: Vec<_> = headers.get_all(UPGRADE).iter().collect();
        match words.as_slice() {
            [word] if word.as_bytes().eq_ignore_ascii_case(b"websocket") => true,
            _ => {
                let question = Question {
                    name: self.grant.name.as_ref(),
                    address: self.grant.addresses.first().copied(),
                    port: self.grant.port,
                    protocol: Protocol::Tcp,
                };
                self.session.gateway.rules().decide(&question).is_allowed()
            }
        }
    }

    /// The request as it goes out: neighbours' headers gone, secrets in.
    async fn prepare(&self, request: Request<Incoming>) -> Result<Request<Body>, Denial> {
        let (mut parts, body) = request.into_parts();
        let upgrade =
            parts.headers.get(UPGRADE).cloned().filter(|_| parts.version < Version::HTTP_2);
        strip(&mut parts.headers);
        if let Some(protocol) = upgrade {
            parts.headers.insert(UPGRADE, protocol);
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len()) as u64;
        self.line.bytes_out.fetch_add(target + length_of(&parts.headers), Ordering::Relaxed);
        let body = Counted { inner: body, line: self.line.clone(), out: true };
        let Origin::Opened { name, .. } = &self.session.origin else {
            return Ok(Request::from_parts(parts, body.map_err(Into::into).boxed_unsync()));
        };
        let secrets = &self.secrets;
        secrets.put_into_headers(name, &mut parts.headers);
        if let Some(target) = parts.uri.path_and_query()
            && let Some(new) = secrets.put_into_target(name, target.as_str())
            && let Ok(new) = Uri::try_from(new.as_slice())
        {
            // Only the path: the host stays what was judged.
            let mut pieces = parts.uri.clone().into_parts();
            pieces.path_and_query = new.path_and_query().cloned();
            if let Ok(uri) = Uri::from_parts(pieces) {
                parts.uri = uri;
            }
        }
        let body = if secrets.wants_body(name) {
            let gateway = &self.session.gateway;
            searched((gateway, secrets), name, body, &mut parts.headers).await?
        } else {
            body.map_err(Into::into).boxed_unsync()
        };
        Ok(Request::from_parts(parts, body))
    }

    async fn send(
        &self,
        mut request: Request<Body>,
        version: Version,
    ) -> Result<Response<Incoming>, Denial> {
        let Session { gateway, ticket, upstreams, .. } = self.session;
        let together = version == Version::HTTP_2;
        for _ in 0..2 {
            let mut upstream = match together {
                true => upstreams.another(gateway, &self.grant).await?,
                false => upstreams.next(gateway, &self.grant).await?,
            };
            let purpose = self.grant.purpose(upstream.address);
            let allowed = match together {
                true => ticket.add_purpose(purpose),
                false => ticket.set_purpose(purpose),
            };
            // Whoever took a rule or a secret away was told that it is gone.
            if !allowed || !Arc::ptr_eq(&self.secrets, &gateway.secrets()) {
                let hint = "the rules or secrets changed while it was dialled";
                return Err(Denial::new(reason::NARROWED, hint));
            }
            self.line.set_address(upstream.address);
            address_to(&mut request, upstream.version(), &self.grant);
            let sent = upstream.send(request);
            upstreams.keep(upstream);
            match sent.await {
                Ok(response) => return Ok(response),
                // It had been closed while idle, and nothing was sent: once more, anew.
                Err(Some(back)) => request = back,
                Err(None) => break,
            }
        }
        Err(Denial::new(
            reason::UNREACHABLE,
            "it is allowed, and the other side ended the connection",
        ))
    }

    fn give_back(
        self,
        response: Response<Incoming>,
        upgrade: Option<OnUpgrade>,
        last: bool,
    ) -> Response<Body> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(response, upgrade);
        }
        let (mut parts, body) = response.into_parts();
        strip(&mut parts.headers);
        self.line.bytes_in.fetch_add(length_of(&parts.headers), Ordering::Relaxed);
        if let Origin::Opened { name, .. } = &self.session.origin {
            self.secrets.take_out_of_headers(name, &mut parts.headers);
        }
        let body = Counted { inner: body, line: self.line, out: false };
        let mut response = Response::from_parts(parts, body.map_err(Into::into).boxed_unsync());
        if last {
            close(&mut response);
        }
        response
    }

    /// WebSocket and its like: from here on bytes.
    fn switch(
        self,
        mut response: Response<Incoming>,
        upgrade: Option<OnUpgrade>,
    ) -> Response<Body> {
        let outside = hyper::upgrade::on(&mut response);
        let (parts, _) = response.into_parts();
        let Some(inside) = upgrade else {
            self.line.end(reason::BAD_REQUEST);
            let denial =
                Denial::new(reason::UNREACHABLE, "the other side switched protocols unasked");
            return refusal(&self.grant.shown(), self.grant.port, &denial);
        };
        let ticket = self.session.ticket.clone();
        let (gateway, line) = (self.session.gateway.clone(), self.line.clone());
        tokio::spawn(async move {
            let (Ok(inside), Ok(outside)) = tokio::join!(inside, outside) else { return };
            let counts = Counts::default();
            let idle = Duration::from_secs(gateway.limits.idle_seconds);
            let both = tunnel::run(TokioIo::new(inside), TokioIo::new(outside), &counts, idle);
            tokio::select! {
                () = both => {}
                () = ticket.cut() => line.end(reason::NARROWED),
            }
            let (bytes_in, bytes_out) = counts.both();
            line.bytes_in.fetch_add(bytes_in, Ordering::Relaxed);
            line.bytes_out.fetch_add(bytes_out, Ordering::Relaxed);
        });
        Response::from_parts(parts, text_body(String::new()))
    }
}

/// The form of target and host that a version of HTTP wants.
fn address_to(request: &mut Request<Body>, version: Version, grant: &Grant) {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
    *request.version_mut() = version;
    let scheme = if grant.protocol == Protocol::Tls { "https" } else { "http" };
    let authority = request.uri().authority().map(ToString::to_string);
    let named = request.headers().get(HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let authority = authority.or(named).unwrap_or_else(|| grant.shown());
    let uri = if version == Version::HTTP_2 {
        request.headers_mut().remove(HOST);
        format!("{scheme}://{authority}{}", if target == "*" { "/" } else { &target })
    } else {
        if !request.headers().contains_key(HOST)
            && let Ok(value) = HeaderValue::from_str(&authority)
        {
            request.headers_mut().insert(HOST, value);
        }
        target
    };
    if let Ok(uri) = Uri::try_from(uri) {
        *request.uri_mut() = uri;
    }
}

pub(crate) fn close(response: &mut Response<Body>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// The bytes of headers: they leave like those of bodies.
fn length_of(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| (name.as_str().len() + value.len() + 4) as u64).sum()
}

/// Takes off what is between neighbours, and what `Connection` names.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // gRPC asks for trailers this way, and nothing else may be asked for.
    let trailers = headers.get("te").is_some_and(|value| value == "trailers");
    for name in named {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    for name in BETWEEN_NEIGHBOURS {
        headers.remove(name);
    }
    if trailers {
        headers.insert("te", HeaderValue::from_static("trailers"));
    }
}

async fn searched(
    (gateway, secrets): (&Gateway, &Secrets),
    name: &Name,
    body: Counted<Incoming>,
    headers: &mut HeaderMap,
) -> Result<Body, Denial> {
    // Held whole: room for what it says, or for the most.
    let said = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let megabytes = said.unwrap_or(MOST_SEARCHED).min(MOST_SEARCHED) >> 20;
    let Ok(_room) = gateway.searched.try_acquire_many(megabytes as u32 + 1) else {
        let hint = "too many bodies at once are searched for secrets; try again";
        return Err(Denial::new(reason::TOO_MANY, hint));
    };
    let whole = Limited::new(body, MOST_SEARCHED).collect();
    let whole = match tokio::time::timeout(BODY_PATIENCE, whole).await {
        Ok(Ok(whole)) => whole.to_bytes(),
        Ok(Err(_)) => {
            let hint = "a body that is searched for secrets may have 16 MiB";
            return Err(Denial::new(reason::BAD_REQUEST, hint));
        }
        Err(_) => return Err(Denial::new(reason::TIMEOUT, "the body did not come")),
    };
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let whole = match secrets.put_into_body(name, &whole, Written::of_body(kind, &whole)) {
        Some(new) => Bytes::copy_from_slice(&new),
        None => whole,
    };
    if !whole.is_empty() || headers.contains_key(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
    }
    Ok(Full::new(whole).map_err(|never| match never {}).boxed_unsync())
}

/// The line of the log, written when the exchange is over.
struct Line {
    gateway: Arc<Gateway>,
    subject: Mutex<Subject>,
    rule: String,
    reason: Mutex<Option<&'static str>>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

impl Line {
    fn end(&self, reason: &'static str) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    fn set_address(&self, address: std::net::IpAddr) {
        self.subject.lock().unwrap_or_else(PoisonError::into_inner).ip = Some(address);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let bytes = (self.bytes_in.load(Ordering::Relaxed), self.bytes_out.load(Ordering::Relaxed));
        let reason = *self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let subject = self.subject.lock().unwrap_or_else(PoisonError::into_inner);
        self.gateway.allow(&subject, &self.rule, reason, bytes);
    }
}

/// A body whose bytes are counted.
struct Counted<B> {
    inner: B,
    line: Arc<Line>,
    out: bool,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let count = if self.out { &self.line.bytes_out } else { &self.line.bytes_in };
            count.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
