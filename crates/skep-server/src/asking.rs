//! How handlers ask: who, under which conditions, and the answer as a response.

use crate::app::Shared;
use crate::calls::{Call, Key, Order};
use crate::failure::{Failure, Outcome};
use crate::guard::{Principal, Trail};
use crate::incoming::whole;
use crate::places::Held;
use crate::pool::Reply;
use crate::roles::Role;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use skep_types::{Code, Problem};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A JSON body is not larger.
const BODY: usize = 4 << 20;
/// A file travels in pieces of this size.
const FILE_PIECE: u64 = 256 << 10;
/// How long a request with a key waits for an equal one that is under way.
const UNDER_WAY: Duration = Duration::from_secs(20);
/// How often it is looked at whether who follows a stream may still do so.
const AGAIN: Duration = Duration::from_secs(2);
/// The longest key.
const LONGEST_KEY: usize = 255;

/// A caller's question on its way to a worker.
pub(crate) struct Ask {
    pub(crate) app: Shared,
    pub(crate) who: Principal,
    /// From `If-Match`.
    version: Option<u64>,
    /// From `Idempotency-Key`.
    pub(crate) key: Option<String>,
    /// Method and path, which a key belongs to.
    target: String,
    /// The rest of the URL, which is part of what is asked.
    query: String,
    /// What the audit says of it.
    pub(crate) trail: Trail,
}

impl FromRequestParts<Shared> for Ask {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Failure> {
        let who = parts.extensions.get::<Principal>().cloned();
        let who = who.ok_or_else(|| Failure::new(Code::Internal, "nobody asks"))?;
        let key = key(&parts.headers)?;
        // Under a key the same answer would be given for a day, whatever is there meanwhile.
        if key.is_some() && parts.method.is_safe() {
            return Err(Failure::new(
                Code::Usage,
                "`idempotency-key` belongs to requests that change something",
            ));
        }
        Ok(Self {
            app: Shared::clone(app),
            who,
            version: if_match(&parts.headers)?,
            key,
            target: format!("{} {}", parts.method, parts.uri.path()),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            trail: parts.extensions.get::<Trail>().cloned().unwrap_or_default(),
        })
    }
}

/// A header that is said once, or not at all.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, Failure> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Failure::new(Code::Usage, format!("`{name}` is said more than once"))),
    }
}

/// The directory of a project on the server's host. A relative path would mean the server's own place.
pub(crate) fn absolute(project: String) -> Result<PathBuf, Failure> {
    match project.starts_with('/') {
        true => Ok(project.into()),
        false => Err(Failure::new(Code::Usage, "`project`: an absolute path is expected")),
    }
}

fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(value) = only(headers, header::IF_MATCH.as_str())? else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let version = version.and_then(|text| text.parse().ok());
    let malformed = || Failure::new(Code::Usage, "`if-match` is not the `etag` of a sandbox");
    version.map(Some).ok_or_else(malformed)
}

fn key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(value) = only(headers, "idempotency-key")? else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let good =
        (1..=LONGEST_KEY).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    let malformed =
        || Failure::new(Code::Usage, "`idempotency-key` is 1 to 255 visible ASCII characters");
    good.then(|| Some(text.to_owned())).ok_or_else(malformed)
}

impl Ask {
    /// Asks; `said` is the body, by which a repeated request is known.
    pub(crate) async fn ask(&self, call: Call, said: &str) -> Result<Reply, Problem> {
        self.ask_with(call, said, None).await
    }

    /// The same with a file that goes along.
    pub(crate) async fn ask_with(
        &self,
        call: Call,
        said: &str,
        file: Option<Arc<File>>,
    ) -> Result<Reply, Problem> {
        // Creating has a way of its own, which also survives the death of whoever carries it out.
        // Comparing changes nothing: its answer is not kept.
        let own = matches!(call, Call::Create { .. } | Call::Compare { .. });
        let key = match self.key.as_ref().filter(|_| !own) {
            None => None,
            Some(key) => Some(Key {
                key: format!("http:{}:{}:{key}", self.who.name, self.target),
                request: self.known_again(&call, said)?,
            }),
        };
        if self.version.is_some() && !call.names_a_sandbox() {
            return Err(Problem::new(Code::Usage, "`if-match` is for requests about one sandbox"));
        }
        let inner = key.as_ref().map(|key| key.key.clone()).or_else(|| self.create_key());
        let order = Order {
            call,
            actor: self.who.actor.clone(),
            bound: self.who.bound.clone(),
            unfenced: self.who.role == Role::Approver,
            version: self.version,
            key,
        };
        let answer = self.ask_patiently(order, file).await;
        answer.map_err(|problem| match (inner, &self.key) {
            // A key is told as it was sent, without whom and what it was kept for.
            (Some(inner), Some(key)) => {
                Problem { message: problem.message.replace(&inner, key), ..problem }
            }
            _ => problem,
        })
    }

    /// By what a repeated request is known: all that it asks, whichever part of it said so. A body that
    /// goes along as a file is known by `said`.
    fn known_again(&self, call: &Call, said: &str) -> Result<String, Problem> {
        let failed = |error| Problem::new(Code::Internal, format!("cannot write JSON: {error}"));
        let all = serde_json::to_vec(&(&self.query, said, call)).map_err(failed)?;
        Ok(blake3::hash(&all).to_hex().to_string())
    }

    /// The key of a create: each asker has keys of its own.
    pub(crate) fn create_key(&self) -> Option<String> {
        self.key.as_ref().map(|key| format!("http:{}:{key}", self.who.name))
    }

    /// With a key, an equal request that is under way is waited for: its answer is ours.
    async fn ask_patiently(&self, order: Order, file: Option<Arc<File>>) -> Result<Reply, Problem> {
        let deadline = Instant::now() + UNDER_WAY;
        loop {
            match self.app.ask_with(order.clone(), file.clone()).await {
                Err(problem)
                    if problem.code == Code::Busy
                        && self.key.is_some()
                        && Instant::now() < deadline =>
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => return other,
            }
        }
    }

    /// Asks and answers with 200.
    pub(crate) async fn answer(&self, call: Call) -> Outcome {
        self.answer_to(call, "").await
    }

    /// Asks what a body says and answers with 200.
    pub(crate) async fn answer_to(&self, call: Call, said: &str) -> Outcome {
        let reply = self.ask(call, said).await?;
        Ok(respond(StatusCode::OK, reply))
    }

    /// Asks for a sandbox: the answer carries its version.
    pub(crate) async fn sandbox(&self, call: Call, status: StatusCode, said: &str) -> Outcome {
        let reply = self.ask(call, said).await?;
        let etag = etag(&reply.value);
        let mut response = respond(status, reply);
        if let Some(etag) = etag {
            response.headers_mut().insert(header::ETAG, etag);
        }
        Ok(response)
    }

    /// Until whoever asks may not ask any more: their token was revoked or has expired, or they logged out.
    pub(crate) async fn until_shut_out(&self) {
        while self.app.still_is(&self.who) {
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Asks for something to be done and answers with 204.
    pub(crate) async fn done(&self, call: Call) -> Outcome {
        let reply = self.ask(call, "").await?;
        Ok(with_replay(StatusCode::NO_CONTENT, Body::empty(), reply.replayed))
    }
}

fn etag(value: &[u8]) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u64,
    }
    let versioned: Versioned = serde_json::from_slice(value).ok()?;
    HeaderValue::from_str(&format!("\"{}\"", versioned.version)).ok()
}

/// A worker's answer as it is.
pub(crate) fn respond(status: StatusCode, reply: Reply) -> Response {
    let mut response = with_replay(status, Body::from(reply.value), reply.replayed);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn with_replay(status: StatusCode, body: Body, replayed: bool) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if replayed {
        response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    response
}

/// A value of ours as JSON.
pub(crate) fn json(status: StatusCode, value: &impl serde::Serialize) -> Outcome {
    let value = serde_json::to_vec(value)
        .map_err(|error| Failure::new(Code::Internal, format!("cannot write JSON: {error}")))?;
    Ok(respond(status, Reply { value: value.into(), replayed: false, stream: None }))
}

/// A file as a body, read piece by piece.
pub(crate) fn from_file(file: File) -> Body {
    from_files(vec![file])
}

/// Several files, one behind the other.
pub(crate) fn from_files(files: Vec<File>) -> Body {
    let files: VecDeque<Arc<File>> = files.into_iter().map(Arc::new).collect();
    let pieces = futures_util::stream::unfold(files, |mut files| async move {
        loop {
            let from = Arc::clone(files.front()?);
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = Vec::with_capacity(FILE_PIECE as usize);
                (&*from).take(FILE_PIECE).read_to_end(&mut piece).map(|_| piece)
            });
            match read.await.map_err(io::Error::other).and_then(|read| read) {
                Ok(piece) if piece.is_empty() => drop(files.pop_front()),
                Ok(piece) => return Some((Ok(bytes::Bytes::from(piece)), files)),
                Err(error) => return Some((Err(error), VecDeque::new())),
            }
        }
    });
    Body::from_stream(pieces)
}

/// A JSON body: what it says, and its text.
pub(crate) struct Json<T>(pub(crate) T, pub(crate) String);

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Failure;
    async fn from_request(request: Request, app: &Shared) -> Result<Self, Failure> {
        let bytes = whole(app, request, BODY).await?;
        // No body says nothing, which is enough where nothing must be said.
        let text = if bytes.is_empty() { "{}" } else { text_of(&bytes)? };
        Ok(Self(parse(text)?, text.to_owned()))
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, Failure> {
    let hint = "a name that is not text is sent as `{\"b64\": \"…\"}`";
    std::str::from_utf8(bytes)
        .map_err(|_| Failure(Problem::new(Code::Usage, "the body is not UTF-8").hint(hint)))
}

/// An object, and nothing else: serde would also take an array, for its fields by their order, and an
/// empty one for the defaults of all of them.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    if !text.trim_start().starts_with('{') {
        return Err(Problem::new(Code::Usage, "the body: an object is expected"));
    }
    serde_json::from_str(text)
        .map_err(|error| Problem::new(Code::Usage, format!("the body: {error}")))
}

/// The query of a URL; unknown names are errors where the type says so.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Shared> for Query<T> {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Failure> {
        // The library would put another letter for what is no text, and so mean another file.
        let query = parts.uri.query().unwrap_or_default();
        if percent_encoding::percent_decode_str(query).decode_utf8().is_err() {
            let problem = Problem::new(Code::Usage, "the query is not UTF-8");
            return Err(Failure(problem.hint(
                "names that are not text are carried by `files/tar`, and by bodies as `{\"b64\": \"…\"}`",
            )));
        }
        axum::extract::Query::<T>::try_from_uri(&parts.uri)
            .map(|query| Self(query.0))
            .map_err(|error| Failure::new(Code::Usage, format!("the query: {error}")))
    }
}

/// The one name in a path.
pub(crate) struct Name(pub(crate) String);

impl FromRequestParts<Shared> for Name {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Failure> {
        axum::extract::Path::<String>::from_request_parts(parts, app)
            .await
            .map(|path| Self(path.0))
            .map_err(|error| Failure::new(Code::Usage, format!("the path: {error}")))
    }
}

/// A place among the streams, if there is one for this caller.
pub(crate) fn stream_place(ask: &Ask) -> Result<Held, Failure> {
    Ok(ask.app.streams.take(&ask.who, 1)?)
}
