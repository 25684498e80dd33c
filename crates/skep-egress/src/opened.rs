//! TLS that ends here, for hosts with a secret: towards the inside we are the host, by the
//! sandbox's own authority; towards the host we are an ordinary, verifying client.

use crate::audit::Subject;
use crate::client::Client;
use crate::gateway::{Gateway, Ticket};
use crate::http::{self, Origin};
use crate::judge::{Dialled, Grant};
use crate::upstream::Upstream;
use hyper::Version;
use skep_policy::egress::{Name, reason};
use std::sync::Arc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub(crate) async fn serve(
    gateway: Arc<Gateway>,
    ticket: Arc<Ticket>,
    client: Client,
    (name, offers_http2): (Name, bool),
    (grant, dialled): (Grant, Dialled),
) {
    let subject = || Subject {
        host: name.to_string(),
        port: grant.port,
        ip: grant.addresses.first().copied(),
        proto: "tls",
        exec: ticket.exec(),
    };
    // Inside is spoken what the host speaks: a program that thinks it can ask much at once over one
    // connection would wait where the host answers one by one. A host that is not reached is told of by
    // the answer to the first request.
    let version = if offers_http2 { Version::HTTP_2 } else { Version::HTTP_11 };
    let upstream = Upstream::connect(&gateway, &grant, version, dialled).await.ok();
    let two = upstream.as_ref().map_or(offers_http2, |up| up.version() == Version::HTTP_2);
    let config = gateway.authority.as_ref().map(|authority| authority.server(&name, two));
    let Some(Ok(config)) = config else {
        gateway.deny(&subject(), reason::CERTIFICATE);
        return client.reset();
    };
    let handshake = TlsAcceptor::from(config).accept(client);
    let Ok(Ok(stream)) = timeout(gateway.head_patience(), handshake).await else {
        // The program inside does not trust the sandbox's authority, or went away.
        gateway.deny(&subject(), reason::CERTIFICATE);
        return;
    };
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let origin = Origin::Opened { name, grant };
    if http2 {
        http::serve_http2(gateway, ticket, stream, origin, upstream).await;
    } else {
        http::serve(gateway, ticket, stream, origin, upstream).await;
    }
}
