//! One request, one connection.

use crate::lower::Reached;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use skep_types::{Code, Problem};
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For the connection itself; an answer may take as long as what was asked for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Everything but letters, digits and what is plain in a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A part of a path or a query, escaped.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Where the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// The way to a server.
pub struct Client {
    address: Address,
    token: Option<String>,
    runtime: tokio::runtime::Runtime,
}

/// A socket, before anything was said on it.
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Reads a token from a file that nobody else can read.
pub fn read_token(path: &Path, user: u32) -> Result<String, Problem> {
    let failed = |why: String| {
        let shown = skep_types::escape::visible(path.as_os_str().as_encoded_bytes());
        Problem::new(Code::Refused, format!("cannot use the token file `{shown}`: {why}"))
            .hint("a file of yours with mode 0600 that holds the token and nothing else")
    };
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut file = std::fs::File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| failed(error.to_string()))?;
    let meta = file.metadata().map_err(|error| failed(error.to_string()))?;
    if !meta.is_file() || meta.uid() != user || meta.mode() & 0o077 != 0 {
        return Err(failed("others can read it, or it is not this user's".into()));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    Ok(text.trim().to_owned())
}

impl Client {
    /// To `unix:///PATH` or `http://127.0.0.1:PORT`. Nothing is sent yet.
    pub fn new(url: &str, token: Option<String>) -> Result<Self, Problem> {
        let address = parse(url)?;
        if token.as_ref().is_some_and(|token| HeaderValue::from_str(token).is_err()) {
            return Err(Problem::new(Code::Usage, "the token holds impossible characters"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Problem::new(Code::Io, format!("cannot start a client: {error}")))?;
        Ok(Self { address, token, runtime })
    }

    /// Refuses what means files of this host, unless the server is surely on it: a port may be
    /// the end of a tunnel.
    pub(crate) fn on_this_host(&self, command: &str) -> Result<(), Problem> {
        match self.address {
            Address::Unix(_) => Ok(()),
            Address::Tcp(_) => Err(Problem::new(
                Code::Refused,
                format!("`skep {command}` names files of this host, which a server behind TCP may not share"),
            )
            .hint("use the unix socket, or `GET` and `PUT /v1/sandboxes/NAME/files`")),
        }
    }

    /// How far away it may be.
    pub(crate) fn reached(&self) -> Reached {
        match self.address {
            Address::Unix(_) => Reached::Here,
            Address::Tcp(_) => Reached::ByNetwork,
        }
    }

    /// What stands in the header `host`.
    pub(crate) fn host(&self) -> String {
        match &self.address {
            Address::Unix(_) => "localhost".into(),
            Address::Tcp(address) => address.to_string(),
        }
    }

    /// What stands in the header `authorization`.
    pub(crate) fn authorization(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("Bearer {token}"))
    }

    /// Connects.
    pub(crate) fn connect(&self) -> Result<Socket, Problem> {
        let connected = match &self.address {
            Address::Unix(path) => UnixStream::connect(path).map(Socket::Unix),
            Address::Tcp(address) => TcpStream::connect_timeout(address, PATIENCE).map(Socket::Tcp),
        };
        connected.map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> Problem {
        let address = match &self.address {
            Address::Unix(path) => skep_types::escape::visible(path.as_os_str().as_encoded_bytes()),
            Address::Tcp(address) => address.to_string(),
        };
        Problem::new(Code::Unavailable, format!("cannot reach the server at `{address}`: {error}"))
            .hint("start it with `skep serve`")
    }

    /// Asks and reads the answer.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        read(self.request(Method::GET, path, None)?)
    }

    /// Sends JSON and reads the answer.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Problem> {
        read(self.request(Method::POST, path, Some(body))?)
    }

    /// Sends JSON with an idempotency key, if there is one, and reads the answer.
    pub(crate) fn keyed<T: DeserializeOwned>(
        &self,
        key: Option<&str>,
        path: &str,
        body: &Value,
    ) -> Result<T, Problem> {
        let body = Some(("application/json", Bytes::from(body.to_string())));
        read(self.send(Method::POST, path, body, key)?)
    }

    /// Sends a request; an answer that is an error is one here too.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Bytes, Problem> {
        let body = body.map(|body| ("application/json", Bytes::from(body.to_string())));
        self.send(method, path, body, None)
    }

    /// Sends bytes of a kind.
    pub(crate) fn put(&self, path: &str, kind: &str, bytes: Bytes) -> Result<Bytes, Problem> {
        self.send(Method::PUT, path, Some((kind, bytes)), None)
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Bytes)>,
        key: Option<&str>,
    ) -> Result<Bytes, Problem> {
        let broken = |error: &dyn std::fmt::Display| self.unreachable(error);
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.host());
        if let Some(authorization) = self.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let bytes = match body {
            Some((kind, bytes)) => {
                request = request.header(CONTENT_TYPE, kind);
                bytes
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(bytes)).map_err(|error| {
            Problem::new(Code::Usage, format!("this cannot be asked of a server: {error}"))
        })?;
        let socket = self.connect()?;
        let (status, body) =
            self.runtime.block_on(send(socket, request)).map_err(|e| broken(&e))?;
        if (200..300).contains(&status) { Ok(body) } else { Err(problem(status, &body)) }
    }
}

async fn send(socket: Socket, request: Request<Full<Bytes>>) -> io::Result<(u16, Bytes)> {
    match socket {
        Socket::Unix(socket) => {
            socket.set_nonblocking(true)?;
            exchange(tokio::net::UnixStream::from_std(socket)?, request).await
        }
        Socket::Tcp(socket) => {
            socket.set_nonblocking(true)?;
            exchange(tokio::net::TcpStream::from_std(socket)?, request).await
        }
    }
}

async fn exchange<S>(socket: S, request: Request<Full<Bytes>>) -> io::Result<(u16, Bytes)>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    // Ends with the request, or with the runtime.
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    driver.abort();
    Ok((status, body))
}

/// A value out of an answer, in the inner form.
pub(crate) fn read<T: DeserializeOwned>(body: Bytes) -> Result<T, Problem> {
    let value: Value = serde_json::from_slice(&body).map_err(|error| strange(&error))?;
    serde_json::from_value(crate::wire::back(value)).map_err(|error| strange(&error))
}

fn strange(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::Refused,
        format!("the server answered what this skep does not understand: {error}"),
    )
    .hint("server and client may be of different versions")
}

const TOKEN_HINT: &str = "put the token in SKEP_TOKEN, or name a file (mode 0600) that holds it in \
    SKEP_TOKEN_FILE; on the server's host `skep token create` makes one";

/// The problem in an answer.
pub(crate) fn problem(status: u16, body: &[u8]) -> Problem {
    #[derive(Deserialize)]
    struct Document {
        code: Value,
        message: String,
        hint: Option<String>,
        #[serde(default)]
        retryable: bool,
        #[serde(default)]
        details: Value,
    }
    match serde_json::from_slice::<Document>(body) {
        Ok(said) => Problem {
            // A newer server may have codes that we do not know.
            code: serde_json::from_value(said.code).unwrap_or(Code::Internal),
            message: said.message,
            // The server names a header; here it is a variable.
            hint: match status {
                401 => Some(TOKEN_HINT.into()),
                _ => said.hint,
            },
            retryable: said.retryable,
            details: said.details,
        },
        Err(_) => {
            Problem::new(Code::Unavailable, format!("the server answered with status {status}"))
        }
    }
}

fn parse(url: &str) -> Result<Address, Problem> {
    let refuse = |why: &str| {
        let shown = skep_types::escape::visible(url.as_bytes());
        Problem::new(Code::Usage, format!("`{shown}`: {why}"))
            .hint("write unix:///PATH or http://127.0.0.1:PORT")
    };
    if let Some(path) = url.strip_prefix("unix://") {
        return match path.starts_with('/') {
            true => Ok(Address::Unix(path.into())),
            false => Err(refuse("the path of a socket is absolute")),
        };
    }
    let rest = url.strip_prefix("http://").ok_or_else(|| refuse("no such kind of address"))?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let rest = match rest.strip_prefix("localhost") {
        Some(port) => format!("127.0.0.1{port}"),
        None => rest.to_owned(),
    };
    let rest = if rest.rsplit(']').next().is_some_and(|end| end.contains(':')) {
        rest
    } else {
        format!("{rest}:80")
    };
    let address: SocketAddr = rest.parse().map_err(|_| refuse("no address of a host"))?;
    if !address.ip().is_loopback() {
        return Err(refuse("without TLS only this host is asked").hint(
            "use ssh: `ssh -L 7000:127.0.0.1:7000 HOST`, then --host http://127.0.0.1:7000",
        ));
    }
    Ok(Address::Tcp(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_on_this_host() {
        assert_eq!(parse("unix:///run/x.sock").unwrap(), Address::Unix("/run/x.sock".into()));
        for (text, address) in [
            ("http://127.0.0.1:7000", "127.0.0.1:7000"),
            ("http://localhost:7000/", "127.0.0.1:7000"),
            ("http://127.0.0.1", "127.0.0.1:80"),
            ("http://[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(parse(text).unwrap(), Address::Tcp(address.parse().unwrap()), "{text}");
        }
        for bad in [
            "",
            "7000",
            "unix://x",
            "https://127.0.0.1",
            "http://10.0.0.1:7000",
            "http://evil.test:7000",
            "http://127.0.0.1:7000/path",
            "http://user@127.0.0.1:7000",
            "http://localhost.evil.test:7000",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn problems_arrive_as_they_were() {
        let body = br#"{"code":"not_found","message":"m","hint":"h","retryable":false,"details":null,"request_id":"1","new":1}"#;
        let found = problem(404, body);
        assert_eq!((found.code, found.message.as_str()), (Code::NotFound, "m"));
        let newer = br#"{"code":"not_yet_known","message":"m","hint":null}"#;
        assert_eq!(problem(418, newer).code, Code::Internal);
        assert_eq!(problem(502, b"<html>").code, Code::Unavailable);
    }
}
