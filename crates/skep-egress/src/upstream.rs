//! A connection to the real host, and requests on it.

use crate::forward::Body;
use crate::gateway::Gateway;
use crate::judge::{Denial, Grant};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use skep_policy::egress::{Name, Protocol, reason};
use std::net::IpAddr;
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
    /// Dials, for requests of this version of HTTP; TLS if the grant says so.
    pub(crate) async fn connect(
        gateway: &Gateway,
        grant: &Grant,
        version: Version,
    ) -> Result<Self, Denial> {
        let (stream, address) = gateway.dial(grant).await?;
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

    /// Whether it serves this grant and is still open.
    pub(crate) async fn is_ready_for(&mut self, grant: &Grant) -> bool {
        let same = self.name == grant.name
            && self.port == grant.port
            && grant.addresses.contains(&self.address);
        same && match &mut self.sender {
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
