//! What every request passes: its id, where it comes from, who sends it, whether they may, and
//! the lines about it in the log, the metrics and the audit.

use crate::app::{App, Shared};
use crate::audit::Line;
use crate::failure::{Failure, finish};
use crate::measure::known;
use crate::places::Holder;
use crate::roles::{self, Needs, Role};
use crate::sessions;
use crate::tokens::random_hex;
use crate::traces;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use opentelemetry::context::FutureExt as _;
use skep_types::{Code, Problem, SandboxId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Where a connection comes from.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    /// Over the unix socket, by this user.
    Unix {
        /// As the kernel says.
        uid: u32,
    },
    /// Over TCP, to the port we listen on.
    Tcp {
        /// The other end.
        from: SocketAddr,
        /// Our port.
        port: u16,
    },
}

/// Who sends a request.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    /// For the audit: `uid:1000`, `token:a1b2…`, `bootstrap`.
    pub(crate) name: String,
    /// In whose name approvals are given; `None` is the server's own user.
    pub(crate) actor: Option<String>,
    /// What they may do.
    pub(crate) role: Role,
    /// The only sandbox there is for them.
    pub(crate) bound: Option<SandboxId>,
    /// The browser's session they come by.
    pub(crate) session: Option<String>,
    /// By what they are known, to be looked at again.
    pub(crate) proof: Proof,
}

/// By what somebody is known.
#[derive(Clone, Default)]
pub(crate) enum Proof {
    /// The kernel said so.
    #[default]
    Peer,
    /// A token.
    Token(Arc<str>),
    /// A browser's session: the headers that name it.
    Session(Arc<HeaderMap>),
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Peer => "Peer",
            Self::Token(_) => "Token",
            Self::Session(_) => "Session",
        })
    }
}

/// What the audit says of a request, where its handler has something to add.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trail {
    id: String,
    path: String,
    from: Option<String>,
}

impl crate::asking::Ask {
    /// A line in the audit, of what was asked after the head of the answer was sent.
    pub(crate) fn note(&self, status: u16, exec: Option<&str>) {
        self.app.audit.write(&Line {
            at: self.app.now(),
            request_id: &self.trail.id,
            who: Some(&self.who.name),
            from: self.trail.from.as_deref(),
            method: Method::GET.as_str(),
            path: &self.trail.path,
            status,
            exec,
        });
    }
}

/// What whoever follows a stream is told when they may not any more.
pub(crate) fn shut_out() -> Problem {
    Problem::new(Code::Unauthenticated, "the token or the session has ended")
}

/// Everything around a handler.
pub(crate) async fn guard(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = random_hex(8).unwrap_or_default();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let peer = request.extensions().get::<Peer>().cloned();
    let from = peer.as_ref().map(describe);
    let admitted = admit(&app, &request, route.as_deref(), peer.as_ref());
    let who = admitted.as_ref().ok().and_then(Option::as_ref).map(|who| who.name.clone());
    let span = app.traces.as_ref().map(|traces| {
        traces.begin_request(&method, route.as_deref().unwrap_or("none"), request.headers())
    });
    // Until the answer is there.
    let holder = Holder::default();
    let response = match admitted {
        Ok(principal) => {
            if let Some(principal) = principal {
                request.extensions_mut().insert(principal);
                let trail = Trail { id: id.clone(), path: path.clone(), from: from.clone() };
                request.extensions_mut().insert(trail);
                request.extensions_mut().insert(holder.clone());
            }
            let answer = next.run(request);
            match &span {
                Some(span) => answer.with_context(span.clone()).await,
                None => answer.await,
            }
        }
        Err(problem) => turned_away(problem, route.as_deref()),
    };
    // Who has just logged in is known by the answer only.
    let who = who.or_else(|| response.extensions().get().map(|who: &Principal| who.name.clone()));
    let response = finish(response, &id);
    let status = response.status().as_u16();
    let seconds = began.elapsed().as_secs_f64();
    let route = route.unwrap_or_else(|| "none".into());
    app.metrics.request(&method, &route, status, seconds);
    let trace = span.as_ref().map(|span| traces::end_request(span, &id, who.as_deref(), status));
    let word = known(&method);
    tracing::info!(request_id = %id, method = word, route, status, seconds, who = who.as_deref(), trace, "request");
    // Looking is not an act; being turned away is. What is run over a WebSocket is noted when it was said.
    if method != Method::GET || matches!(status, 401 | 403) {
        app.audit.write(&Line {
            at: app.now(),
            request_id: &id,
            who: who.as_deref(),
            from: from.as_deref(),
            method: word,
            path: &path,
            status,
            exec: None,
        });
    }
    response
}

fn turned_away(problem: Problem, route: Option<&str>) -> Response {
    let wrong_method = problem.code == Code::MethodNotAllowed;
    let mut response = Failure(problem).into_response();
    let methods = route.filter(|_| wrong_method).map(roles::methods);
    if let Some(Ok(methods)) = methods.map(HeaderValue::try_from) {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

fn describe(peer: &Peer) -> String {
    match peer {
        Peer::Unix { uid } => format!("unix uid {uid}"),
        Peer::Tcp { from, .. } => from.to_string(),
    }
}

/// 1. Where it comes from, before anything else of it is believed.
/// 2. No secret in a URL: it would be in logs and histories.
/// 3. Who.
/// 4. Whether they may.
/// 5. The form of the body.
fn admit(
    app: &App,
    request: &Request,
    route: Option<&str>,
    peer: Option<&Peer>,
) -> Result<Option<Principal>, Problem> {
    let peer = peer.ok_or_else(|| Problem::new(Code::Internal, "a request from nowhere"))?;
    check_origin(peer, request.headers(), request.uri())?;
    check_query(request.uri())?;
    let needs = route.and_then(|route| roles::needs(request.method().as_str(), route));
    if needs == Some(Needs::Open) {
        check_form(request.method(), route, request.headers())?;
        return Ok(None);
    }
    let principal = authenticate(app, peer, request.headers())?;
    check_role(route, needs, principal.role)?;
    check_form(request.method(), route, request.headers())?;
    Ok(Some(principal))
}

/// A path of the router's without a row is refused: it has no such method, or nobody said who may.
/// A path the router does not know goes on to be told so.
fn check_role(route: Option<&str>, needs: Option<Needs>, role: Role) -> Result<(), Problem> {
    match (route, needs) {
        (Some(_), None) => Err(Problem::new(Code::MethodNotAllowed, "not by this method")),
        (_, Some(needs)) if !needs.allows(role) => {
            Err(Problem::new(Code::Forbidden, format!("role `{role}` may not do this")))
        }
        _ => Ok(()),
    }
}

fn check_origin(peer: &Peer, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    let text = |name: &str| -> Result<Option<&str>, Problem> {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
            (Some(_), Some(_)) => Err(()),
        }
        .map_err(|()| Problem::new(Code::Usage, format!("the header `{name}` is malformed")))
    };
    let site = text("sec-fetch-site")?;
    if !matches!(site, None | Some("same-origin" | "none")) {
        return Err(Problem::new(Code::Forbidden, "requests from other sites are refused"));
    }
    let origin = text("origin")?;
    let Peer::Tcp { port, .. } = peer else {
        return match origin {
            None => Ok(()),
            Some(_) => Err(Problem::new(Code::Forbidden, "a browser does not use this socket")),
        };
    };
    let good = |host: &str| {
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| {
            host == *name && *port == 80 || host.strip_prefix(name) == Some(&format!(":{port}"))
        })
    };
    let host = text("host")?
        .ok_or_else(|| Problem::new(Code::Usage, "a request without the header `host`"))?;
    let named_otherwise = uri.authority().is_some_and(|authority| !good(authority.as_str()));
    if !good(host) || named_otherwise {
        return Err(Problem::new(Code::Forbidden, "this server has another name")
            .hint("it answers to 127.0.0.1, localhost and [::1] with its port"));
    }
    match origin {
        Some(origin) if !origin.strip_prefix("http://").is_some_and(good) => {
            Err(Problem::new(Code::Forbidden, "requests from other origins are refused"))
        }
        _ => Ok(()),
    }
}

fn check_query(uri: &Uri) -> Result<(), Problem> {
    let secret = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
        ["token", "access_token", "auth", "authorization", "api_key"].contains(&name.as_str())
    };
    if uri.query().is_some_and(|query| query.split('&').any(secret)) {
        return Err(Problem::new(Code::Unauthenticated, "a token in the URL is refused")
            .hint("send it as `Authorization: Bearer TOKEN`, and revoke this one"));
    }
    Ok(())
}

fn authenticate(app: &App, peer: &Peer, headers: &HeaderMap) -> Result<Principal, Problem> {
    if headers.get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
        return Err(Problem::new(Code::Usage, "the header `authorization` is said twice"));
    }
    let bearer = headers.get(header::AUTHORIZATION).map(|value| {
        value.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default()
    });
    match (peer, bearer) {
        (Peer::Unix { uid }, None) => {
            let actor = (*uid != app.user).then(|| format!("uid {uid}"));
            let (name, role) = (format!("uid:{uid}"), Role::Approver);
            let (bound, session, proof) = (None, None, Proof::Peer);
            Ok(Principal { name, actor, role, bound, session, proof })
        }
        (_, Some(text)) => app.by_token(text).ok_or_else(|| {
            Problem::new(Code::Unauthenticated, "the token is wrong, expired or revoked")
        }),
        (Peer::Tcp { .. }, None) if sessions::is_by_session(headers) => {
            app.by_session(headers).ok_or_else(|| {
                Problem::new(Code::Unauthenticated, "the session has ended, or its key is missing")
                    .hint("log in again: `POST /v1/session`")
            })
        }
        (Peer::Tcp { .. }, None) => Err(Problem::new(Code::Unauthenticated, "a token is needed")
            .hint("send `Authorization: Bearer TOKEN`; `skep token create` makes one")),
    }
}

/// A form or plain text is what another site can make a browser send without asking.
fn check_form(method: &Method, route: Option<&str>, headers: &HeaderMap) -> Result<(), Problem> {
    if !matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        return Ok(());
    }
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let whole = kinds.next().map(|value| value.to_str().unwrap_or("?"));
    let kind = whole.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    if kinds.next().is_some() || whole.is_some_and(is_other_text) || is_packed(headers) {
        let message = "the body must be of one type, not packed, and text in UTF-8";
        return Err(Problem::new(Code::MediaType, message));
    }
    let empty = !headers.contains_key(header::TRANSFER_ENCODING)
        && headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0");
    let bytes = route.is_some_and(|route| {
        *method == Method::PUT && route.contains("/files") || route.ends_with("/stdin")
    });
    match kind {
        None if empty => Ok(()),
        Some("application/json") if !bytes => Ok(()),
        Some("application/octet-stream" | "application/x-tar") if bytes => Ok(()),
        _ => Err(Problem::new(
            Code::MediaType,
            if bytes {
                "the body must be `application/octet-stream` or `application/x-tar`"
            } else {
                "the body must be `application/json`"
            },
        )),
    }
}

/// JSON is UTF-8; whoever says something else means other letters.
fn is_other_text(kind: &str) -> bool {
    let parameters = kind.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
    parameters.into_iter().any(|(name, value)| {
        let value = value.trim().trim_matches('"');
        name.trim().eq_ignore_ascii_case("charset") && !value.eq_ignore_ascii_case("utf-8")
    })
}

/// Nothing here unpacks a body: one that is said to be packed is not what it looks like.
fn is_packed(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONTENT_ENCODING).iter().any(|value| value != "identity")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(port: u16, pairs: &[(&'static str, &str)], uri: &str) -> Result<(), Code> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        let peer = Peer::Tcp { from: "127.0.0.1:9".parse().unwrap(), port };
        check_origin(&peer, &headers, &uri.parse().unwrap()).map_err(|problem| problem.code)
    }

    #[test]
    fn only_our_own_names_are_answered() {
        for good in ["127.0.0.1:7000", "localhost:7000", "[::1]:7000"] {
            assert_eq!(origin(7000, &[("host", good)], "/v1/sandboxes"), Ok(()), "{good}");
        }
        for bad in [
            "evil.test",
            "127.evil.test:7000",
            "127.0.0.1.evil.test:7000",
            "127.0.0.1",
            "127.0.0.1:7001",
            "127.0.0.1:7000:7000",
            "localhost:7000@evil.test",
            "0.0.0.0:7000",
            "127.1:7000",
            "LOCALHOST:7000.",
        ] {
            assert!(origin(7000, &[("host", bad)], "/v1/sandboxes").is_err(), "{bad}");
        }
        assert_eq!(origin(7000, &[], "/x"), Err(Code::Usage));
        let good = ("host", "127.0.0.1:7000");
        assert!(origin(7000, &[good, good], "/x").is_err());
        assert!(origin(7000, &[good], "http://evil.test/x").is_err());
        assert!(origin(7000, &[good, ("origin", "http://evil.test")], "/x").is_err());
        assert!(origin(7000, &[good, ("origin", "null")], "/x").is_err());
        assert_eq!(origin(7000, &[good, ("origin", "http://localhost:7000")], "/x"), Ok(()));
        assert!(origin(7000, &[good, ("sec-fetch-site", "cross-site")], "/x").is_err());
        assert_eq!(origin(7000, &[good, ("sec-fetch-site", "same-origin")], "/x"), Ok(()));
    }

    #[test]
    fn a_route_without_a_row_is_refused_to_everybody() {
        let judge = |method: &str, route: Option<&str>, role| {
            let needs = route.and_then(|route| roles::needs(method, route));
            check_role(route, needs, role).map_err(|problem| problem.code)
        };
        for role in Role::ALL {
            for (method, route) in [("GET", "/v1/unheard-of"), ("TRACE", "/v1/audit")] {
                assert_eq!(judge(method, Some(route), role), Err(Code::MethodNotAllowed));
            }
            assert_eq!(judge("GET", None, role), Ok(()));
            let of_get = judge("GET", Some("/v1/audit"), role);
            assert_eq!(judge("HEAD", Some("/v1/audit"), role), of_get);
            assert_eq!(of_get.is_ok(), role == Role::Approver);
        }
    }

    #[test]
    fn no_token_in_a_url() {
        assert!(check_query(&"/x?a=1&Token=y".parse().unwrap()).is_err());
        assert!(check_query(&"/x?a=token".parse().unwrap()).is_ok());
    }
}
