//! For programs that use a proxy: HTTP, CONNECT and SOCKS5 on one port, told apart by a byte.

use crate::audit::Subject;
use crate::client::Client;
use crate::connection;
use crate::gateway::{Gateway, Ticket};
use crate::head::{self, RequestTarget};
use crate::http::{self, Origin, refusal_text, status_of};
use crate::judge::{Denial, Destination, Dialled};
use fast_socks5::server::Socks5ServerProtocol;
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use skep_policy::egress::{Host, reason};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Serves one connection to the proxy port.
pub(crate) async fn serve(gateway: Arc<Gateway>, ticket: Arc<Ticket>, stream: TcpStream) {
    ticket.identify().await;
    let patience = gateway.head_patience();
    let mut first = [0];
    match timeout(patience, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first == [5] => {
            if let Ok(Some((stream, there))) =
                timeout(patience * 2, socks(&gateway, &ticket, stream)).await
            {
                connection::serve(gateway, ticket, Client::new(stream), there).await;
            }
        }
        Ok(Ok(1)) => web(gateway, ticket, Client::new(stream)).await,
        _ => {}
    }
}

async fn web(gateway: Arc<Gateway>, ticket: Arc<Ticket>, mut client: Client) {
    let Ok(target) = timeout(gateway.head_patience(), connect_target(&mut client)).await else {
        return;
    };
    // Everything but CONNECT, bad heads included, is answered by the HTTP side.
    let Some((host, port, end)) = target else {
        return http::serve(gateway, ticket, client, Origin::Explicit, None).await;
    };
    match reached(&gateway, host.clone(), port).await {
        Ok((destination, dialled)) => {
            client.take(end);
            // Where the verdict depends on what is said, nobody was dialled; `skep net test` wants to know.
            let later = if dialled.is_none() { "skep-verdict: later\r\n" } else { "" };
            let yes = format!("HTTP/1.1 200 Connection established\r\n{later}\r\n");
            if client.write_all(yes.as_bytes()).await.is_ok() {
                connection::serve(gateway, ticket, client, (destination, dialled)).await;
            }
        }
        Err(denial) => {
            let host = host.to_string();
            let exec = ticket.exec();
            let ip = denial.address;
            let subject = Subject { host: host.clone(), port, ip, proto: "tcp", exec };
            gateway.deny(&subject, denial.reason);
            let body = refusal_text(&host, port, &denial);
            let text = format!(
                "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{body}",
                status_of(&denial),
                body.len()
            );
            let _ = client.write_all(text.as_bytes()).await;
            let _ = client.shutdown().await;
        }
    }
}

/// The host and port of a CONNECT, and where its head ends; `None` for anything else.
async fn connect_target(client: &mut Client) -> Option<(Host, u16, usize)> {
    loop {
        if let Some(end) = head::find_end(client.seen()).ok()? {
            let head = head::inspect(&client.seen()[..end]).ok()?;
            return match head.target {
                RequestTarget::Authority(host, port) => Some((host, port, end)),
                _ => None,
            };
        }
        if client.see_more().await.ok()? == 0 {
            return None;
        }
    }
}

async fn socks(
    gateway: &Gateway,
    ticket: &Ticket,
    stream: TcpStream,
) -> Option<(TcpStream, (Destination, Dialled))> {
    let protocol = Socks5ServerProtocol::accept_no_auth(stream).await.ok()?;
    let (protocol, command, target) = protocol.read_command().await.ok()?;
    let (text, port) = match &target {
        TargetAddr::Ip(address) => {
            (Host::Address(address.ip().to_canonical()).to_string(), address.port())
        }
        TargetAddr::Domain(name, port) => (name.clone(), *port),
    };
    let exec = ticket.exec();
    let mut subject = Subject { host: text.clone(), port, ip: None, proto: "tcp", exec };
    if command != Socks5Command::TCPConnect {
        gateway.deny(&subject, reason::PROTOCOL_NOT_ALLOWED);
        let _ = protocol.reply_error(&ReplyError::CommandNotSupported).await;
        return None;
    }
    let found = match Host::parse(&text) {
        Ok(host) if port > 0 => reached(gateway, host, port).await,
        Ok(_) => Err(Denial::new(reason::BAD_HOST, "there is no port 0")),
        Err(error) => Err(Denial::new(reason::BAD_HOST, error.to_string())),
    };
    match found {
        Ok(destination) => {
            let bound = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            Some((protocol.reply_success(bound).await.ok()?, destination))
        }
        Err(denial) => {
            subject.ip = denial.address;
            gateway.deny(&subject, denial.reason);
            let _ = protocol.reply_error(&socks_error(&denial)).await;
            None
        }
    }
}

fn socks_error(denial: &Denial) -> ReplyError {
    match denial.reason {
        reason::NO_ANSWER | reason::UNREACHABLE => ReplyError::HostUnreachable,
        _ => ReplyError::ConnectionNotAllowed,
    }
}

/// The same, dialled: who asks a proxy is told whether the host takes the connection.
async fn reached(
    gateway: &Gateway,
    host: Host,
    port: u16,
) -> Result<(Destination, Dialled), Denial> {
    let destination = destination(gateway, host, port).await?;
    let dialled = gateway.dial_ahead(&destination).await?;
    Ok((destination, dialled))
}

/// Where a proxy is asked to go, if anything could be allowed there. Names are looked up only
/// after that was found.
pub(crate) async fn destination(
    gateway: &Gateway,
    host: Host,
    port: u16,
) -> Result<Destination, Denial> {
    match host {
        Host::Address(address) => {
            let destination = Destination { name: None, addresses: vec![address], port };
            gateway.could_allow(&destination).map(|()| destination)
        }
        Host::Name(name) => {
            let mut destination =
                Destination { name: Some(name.clone()), addresses: Vec::new(), port };
            gateway.could_allow(&destination)?;
            match gateway.names.lookup(&gateway.rules(), &name).await {
                Ok(found) => destination.addresses = found.addresses,
                Err(refusal) => {
                    let denial = Denial::new(refusal.reason(), refusal.hint());
                    return Err(Denial { address: refusal.address(), ..denial });
                }
            }
            gateway.could_allow(&destination).map(|()| destination)
        }
    }
}
