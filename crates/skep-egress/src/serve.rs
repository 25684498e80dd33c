//! The listeners, and the conversation with the keeper.

use crate::audit::{Audit, Clock, Subject};
use crate::client::Client;
use crate::gateway::{Gateway, Ticket, connections};
use crate::judge::Destination;
use crate::tun::Tun;
use crate::{connection, dns, explicit};
use skep_policy::egress::reason;
use skep_types::{
    EgressConfig, EgressPeer, FromEgress, MAX_EGRESS_MESSAGE, ToEgress, egress_message,
};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use zeroize::Zeroizing;

/// Where names are asked for.
const DNS_PORT: u16 = 53;

/// Where a redirected connection was going; by the kernel's memory of NAT, or told by whoever
/// made the listener.
pub type OriginalDestination = Arc<dyn Fn(&TcpStream) -> io::Result<SocketAddr> + Send + Sync>;

/// What is listened on. All but the log come from inside the sandbox's network namespace.
pub struct Sockets {
    /// Every TCP connection is redirected to these.
    pub tcp: Vec<TcpListener>,
    /// DNS.
    pub dns_udp: Vec<UdpSocket>,
    /// DNS.
    pub dns_tcp: Vec<TcpListener>,
    /// For programs that use a proxy.
    pub proxy: Vec<TcpListener>,
    /// Everything is routed to this interface, where connections cannot be redirected. What comes by
    /// it is led to those of `tcp` that listen at no loopback address.
    pub tun: Option<OwnedFd>,
    /// The log, opened for reading and appending.
    pub audit: File,
    /// How to learn where a connection to one of `tcp` was going.
    pub destination: OriginalDestination,
    /// Tells the time.
    pub clock: Clock,
}

/// Serves until the keeper closes its end. Nothing is accepted before it sent the configuration.
pub async fn run(mut sockets: Sockets, mut control: UnixStream) -> io::Result<()> {
    let way = Way::open(&mut sockets)?;
    let Some(ToEgress::Configure(config)) = receive(&mut control).await? else {
        return Err(io::Error::other("the first message is not the configuration"));
    };
    let gateway = match start(sockets, &way, config) {
        Ok(gateway) => gateway,
        Err(message) => {
            send(&mut control, &FromEgress::Refused { message: message.clone() }).await?;
            return Err(io::Error::other(message));
        }
    };
    let ca = gateway.authority.as_ref().map(|authority| authority.pem().to_owned());
    let key = gateway.authority.as_ref().map(|authority| authority.key().clone());
    send(&mut control, &FromEgress::Ready { ca, key }).await?;
    let (mut control, mut back) = control.into_split();
    let (sender, mut said) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = said.recv().await {
            if send(&mut back, &message).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(gateway.owners.clone().ask(sender.clone()));
    while let Some(message) = receive(&mut control).await? {
        let Some(reply) = obey(&gateway, message) else { continue };
        if sender.send(reply).is_err() {
            break;
        }
    }
    // The keeper is gone, or about to be, and with it every program inside. What they have said goes out;
    // what does not end by that is ended. Each connection leaves its line in the log.
    none_left(&gateway, LAST_WORDS).await;
    gateway.cut_all();
    none_left(&gateway, LAST_LINES).await;
    gateway.close_log();
    Ok(())
}

/// How long connections have to end by themselves when the keeper is gone.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// How long their lines in the log may take.
const LAST_LINES: Duration = Duration::from_millis(500);

async fn none_left(gateway: &Gateway, patience: Duration) {
    let deadline = Instant::now() + patience;
    while gateway.stats().open > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Does what the keeper says; what it answered to a question needs no reply.
fn obey(gateway: &Gateway, message: ToEgress) -> Option<FromEgress> {
    Some(match message {
        ToEgress::Configure(_) => {
            FromEgress::Refused { message: "the configuration was given already".into() }
        }
        ToEgress::Update { rules } => match gateway.update(&rules) {
            Ok(cut) => FromEgress::Ack { cut },
            Err(error) => FromEgress::Refused { message: error.to_string() },
        },
        ToEgress::Revoke { name } => FromEgress::Ack { cut: gateway.revoke(&name) },
        ToEgress::Stats => FromEgress::Stats(gateway.stats()),
        ToEgress::Owners { question, execs } => {
            gateway.owners.answered(question, execs);
            return None;
        }
    })
}

fn start(sockets: Sockets, way: &Way, config: EgressConfig) -> Result<Arc<Gateway>, String> {
    let Sockets { tcp, dns_udp, dns_tcp, proxy, audit, clock, .. } = sockets;
    let audit = Audit::new(audit, config.limits.audit_bytes, clock);
    let files = files();
    let gateway = Gateway::new(config, audit, files).map_err(|error| whole_text(&error))?;
    let room = Arc::new(Semaphore::new(connections(gateway.limits.connections, files)));
    if let Some(tun) = &way.tun {
        tun.serve(gateway.clone());
    }
    for listener in tcp {
        let to = way.clone();
        tokio::spawn(accept(
            gateway.clone(),
            room.clone(),
            listener,
            way.clone(),
            move |gateway, ticket, stream| {
                let going = to.destination(&stream);
                async move {
                    let Ok(going) = going else { return Client::new(stream).reset() };
                    if going.port() == DNS_PORT {
                        return ask_names(gateway, ticket, stream).await;
                    }
                    let destination = Destination {
                        name: None,
                        addresses: vec![going.ip().to_canonical()],
                        port: going.port(),
                    };
                    let client = Client::new(stream);
                    connection::serve(gateway, ticket, client, (destination, None)).await;
                }
            },
        ));
    }
    for listener in proxy {
        tokio::spawn(accept(gateway.clone(), room.clone(), listener, way.clone(), explicit::serve));
    }
    for listener in dns_tcp {
        tokio::spawn(accept(gateway.clone(), room.clone(), listener, way.clone(), ask_names));
    }
    for socket in dns_udp {
        tokio::spawn(dns::serve_udp(gateway.clone(), Arc::new(socket)));
    }
    Ok(gateway)
}

/// Questions for names, whomever they were sent to.
async fn ask_names(gateway: Arc<Gateway>, ticket: Arc<Ticket>, stream: TcpStream) {
    tokio::select! {
        () = dns::serve_tcp(gateway, &ticket, stream) => {}
        () = ticket.cut() => {}
    }
}

/// How connections come to the listeners.
#[derive(Clone)]
struct Way {
    redirected: OriginalDestination,
    tun: Option<Arc<Tun>>,
}

impl Way {
    /// An interface leads packets from here on; before the configuration is known nobody accepts
    /// what they open, and no name is answered.
    fn open(sockets: &mut Sockets) -> io::Result<Self> {
        let tun = match sockets.tun.take() {
            None => None,
            Some(device) => {
                let doors = sockets.tcp.iter().filter_map(|door| door.local_addr().ok());
                let doors = doors.filter(|door| !door.ip().is_loopback()).collect();
                let tun = Arc::new(Tun::new(device, doors)?);
                tokio::spawn(tun.clone().run());
                Some(tun)
            }
        };
        Ok(Self { redirected: sockets.destination.clone(), tun })
    }

    /// Where a connection was going.
    fn destination(&self, stream: &TcpStream) -> io::Result<SocketAddr> {
        let peer = stream.peer_addr()?;
        match self.tun.as_ref().and_then(|tun| tun.destination(peer)) {
            Some(destination) => Ok(destination),
            None => (self.redirected)(stream),
        }
    }

    /// The client's socket as it sees itself. Where nobody had a hand in it, it is connected to us.
    fn seen_from_inside(&self, stream: &TcpStream, peer: SocketAddr) -> Option<EgressPeer> {
        let remote = self.destination(stream).or_else(|_| stream.local_addr()).ok()?;
        let local = self.tun.as_ref().and_then(|tun| tun.client(peer)).unwrap_or(peer);
        Some(EgressPeer { udp: false, local, remote })
    }
}

/// An error with its causes.
fn whole_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// How many descriptors the process may have.
fn files() -> usize {
    use rustix::process::{Resource, getrlimit};
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files).unwrap_or(usize::MAX)
}

/// Takes connections for ever. With no room left they are ended at once, and the log says so
/// once a second at most.
async fn accept<F, W>(
    gateway: Arc<Gateway>,
    room: Arc<Semaphore>,
    listener: TcpListener,
    way: Way,
    work: F,
) where
    F: Fn(Arc<Gateway>, Arc<Ticket>, TcpStream) -> W,
    W: Future<Output = ()> + Send + 'static,
{
    let mut told: Option<Instant> = None;
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of descriptors or memory: those who are served go on, and may free some.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            Client::new(stream).reset();
            if told.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
                told = Some(Instant::now());
                gateway.deny(&Subject { proto: "tcp", ..Subject::default() }, reason::TOO_MANY);
            }
            continue;
        };
        let ticket = Arc::new(gateway.enter(permit, way.seen_from_inside(&stream, peer)));
        tokio::spawn(work(gateway.clone(), ticket, stream));
    }
}

/// The next message; `None` when the keeper is gone.
async fn receive(control: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<ToEgress>> {
    let length = match control.read_u32().await {
        Ok(length) => length as usize,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > MAX_EGRESS_MESSAGE {
        return Err(io::Error::other("a message is longer than allowed"));
    }
    let mut bytes = Zeroizing::new(vec![0; length]);
    control.read_exact(&mut bytes).await?;
    serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other)
}

async fn send(control: &mut (impl AsyncWrite + Unpin), message: &FromEgress) -> io::Result<()> {
    let bytes = egress_message(message).map_err(io::Error::other)?;
    control.write_all(&bytes).await
}
