//! TLS that ends here, for hosts with a secret: towards the inside we are the host, by the
//! sandbox's own authority; towards the host we are an ordinary, verifying client.

use crate::audit::Subject;
use crate::client::Client;
use crate::gateway::{Gateway, Ticket};
use crate::http::{self, Origin};
use crate::judge::Grant;
use skep_policy::egress::{Name, reason};
use std::sync::Arc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub(crate) async fn serve(
    gateway: Arc<Gateway>,
    ticket: Arc<Ticket>,
    client: Client,
    name: Name,
    grant: Grant,
) {
    let subject = || Subject {
        host: name.to_string(),
        port: grant.port,
        ip: grant.addresses.first().copied(),
        proto: "tls",
        exec: ticket.exec(),
    };
    let config = gateway.authority.as_ref().map(|authority| authority.server(&name));
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
        http::serve_http2(gateway, ticket, stream, origin).await;
    } else {
        http::serve(gateway, ticket, stream, origin).await;
    }
}
