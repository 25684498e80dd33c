//! A connection to the real host, and requests on it.

use crate::forward::Body;
use crate::gateway::Gateway;
use crate::judge::{Denial, Dialled, Grant};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use skep_policy::egress::{Name, Protocol, reason};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// Whom it was made for, and how to send.
pub(crate) struct Upstream {
    name: Option<Name>,
    pub(crate) address: IpAddr,
    port: u16,
    sender: Sender,
}

enum Sender {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

impl Upstream {
    /// Dials (unless that was done already), for requests of this version of HTTP; TLS if the grant
    /// says so.
    pub(crate) async fn connect(
        gateway: &Gateway,
        grant: &Grant,
        version: Version,
        dialled: Dialled,
    ) -> Result<Self, Denial> {
        let (stream, address) = match dialled {
            Some(dialled) => dialled,
            None => gateway.dial(grant).await?,
        };
        let two = version == Version::HTTP_2;
        let sender = if grant.protocol == Protocol::Tls {
            let patience = Duration::from_secs(gateway.limits.dial_seconds);
            let refused = |hint: &str| Denial::new(reason::CERTIFICATE, hint);
            let handshake = async {
                let (Some(authority), Some(name)) = (&gateway.authority, &grant.name) else {
                    return Err(refused("there is no authority"));
                };
                let protocols: &[&[u8]] = if two { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
                let config =
                    authority.client(protocols).map_err(|error| refused(&error.to_string()))?;
                let name = ServerName::try_from(name.to_string())
                    .map_err(|_| refused("the host has no name for TLS"))?;
                let made = TlsConnector::from(config).connect(name, stream).await;
                made.map_err(|error| {
                    refused(&format!("the host's certificate was refused: {error}"))
                })
            };
            let stream = match tokio::time::timeout(patience, handshake).await {
                Ok(made) => made?,
                Err(_) => return Err(Denial::new(reason::UNREACHABLE, "the TLS handshake hangs")),
            };
            let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            shake_hands(stream, two).await
        } else {
            shake_hands(stream, two).await
        };
        let Some(sender) = sender else {
            return Err(Denial::new(reason::UNREACHABLE, "the other side does not speak HTTP"));
        };
        Ok(Self { name: grant.name.clone(), address, port: grant.port, sender })
    }

    fn serves(&self, grant: &Grant) -> bool {
        self.name == grant.name
            && self.port == grant.port
            && grant.addresses.contains(&self.address)
    }

    /// Another one on the same connection, if it serves this grant and can take a request right now:
    /// HTTP/2 takes many at once.
    fn shared(&self, grant: &Grant) -> Option<Self> {
        match &self.sender {
            Sender::Two(sender) if self.serves(grant) && !sender.is_closed() => Some(Self {
                name: self.name.clone(),
                address: self.address,
                port: self.port,
                sender: Sender::Two(sender.clone()),
            }),
            _ => None,
        }
    }

    /// Whether it waits for a request for this grant.
    fn is_free_for(&self, grant: &Grant) -> bool {
        self.serves(grant) && matches!(&self.sender, Sender::One(sender) if sender.is_ready())
    }

    fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::One(sender) => sender.is_closed(),
            Sender::Two(sender) => sender.is_closed(),
        }
    }

    /// Whether it serves this grant and is still open; waits until the answer before has ended.
    async fn is_ready_for(&mut self, grant: &Grant) -> bool {
        self.serves(grant)
            && match &mut self.sender {
                Sender::One(sender) => sender.ready().await.is_ok(),
                Sender::Two(sender) => sender.ready().await.is_ok(),
            }
    }

    pub(crate) fn version(&self) -> Version {
        match self.sender {
            Sender::One(_) => Version::HTTP_11,
            Sender::Two(_) => Version::HTTP_2,
        }
    }

    /// Starts a request; the future needs the connection no longer. If the host had closed it
    /// before anything was sent, the request comes back.
    pub(crate) fn send(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, Option<Request<Body>>>> + Send + use<>
    {
        let sent: std::pin::Pin<Box<dyn Future<Output = _> + Send>> = match &mut self.sender {
            Sender::One(sender) => Box::pin(sender.try_send_request(request)),
            Sender::Two(sender) => Box::pin(sender.try_send_request(request)),
        };
        async move { sent.await.map_err(|mut error| error.take_message()) }
    }
}

/// The connections to hosts that the requests of one connection from inside use.
#[derive(Default)]
pub(crate) struct Upstreams(Mutex<Vec<Upstream>>);

impl Upstreams {
    /// For requests that come one after the other: the one there is, or a new one in its place.
    pub(crate) async fn next(&self, gateway: &Gateway, grant: &Grant) -> Result<Upstream, Denial> {
        let held = self.held().pop();
        if let Some(mut held) = held
            && held.is_ready_for(grant).await
        {
            return Ok(held);
        }
        Upstream::connect(gateway, grant, Version::HTTP_11, None).await
    }

    /// For requests that come at once (HTTP/2): nobody waits for another's answer, nor for another's
    /// host to be dialled. A host that speaks only HTTP/1 gets a connection for each.
    pub(crate) async fn another(
        &self,
        gateway: &Gateway,
        grant: &Grant,
    ) -> Result<Upstream, Denial> {
        let found = {
            let mut held = self.held();
            held.retain(|one| !one.is_closed());
            match held.iter().find_map(|one| one.shared(grant)) {
                Some(shared) => Some(shared),
                None => {
                    let free = held.iter().position(|one| one.is_free_for(grant));
                    free.map(|at| held.swap_remove(at))
                }
            }
        };
        match found {
            Some(found) => Ok(found),
            None => Upstream::connect(gateway, grant, Version::HTTP_2, None).await,
        }
    }

    /// Keeps one for later requests.
    pub(crate) fn keep(&self, upstream: Upstream) {
        let mut held = self.held();
        let again = matches!(upstream.sender, Sender::Two(_))
            && held.iter().any(|one| {
                one.name == upstream.name && one.port == upstream.port && !one.is_closed()
            });
        if !again && held.len() < MOST_KEPT {
            held.push(upstream);
        }
    }

    fn held(&self) -> MutexGuard<'_, Vec<Upstream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connections kept for one from inside; more are ended after their answer.
const MOST_KEPT: usize = 16;

async fn shake_hands<S>(stream: S, two: bool) -> Option<Sender>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if two {
        let made = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = made.ok()?;
        tokio::spawn(connection);
        return Some(Sender::Two(sender));
    }
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection.with_upgrades());
    Some(Sender::One(sender))
}
