//! A small internet in a network namespace of the test's own: public, private and metadata
//! addresses on its loopback, an authoritative name server, and the gateway between.

#![allow(dead_code)]

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use skep_egress::{Sockets, run};
use skep_sys::process::{Namespaces, unshare};
use skep_types::{EgressConfig, EgressEntry, FromEgress, ToEgress, egress_message};
use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket, UnixStream};

pub const WEB: &str = "8.8.4.4";
pub const OTHER: &str = "9.9.9.9";
pub const PRIVATE: &str = "10.0.0.1";
pub const METADATA: &str = "169.254.169.254";
const DNS: &str = "1.1.1.1:53";

/// Runs a test in a network namespace of its own; skipped where that cannot be had, unless CI
/// says that it must.
pub fn in_lab<F: Future<Output = ()>>(body: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // Only this thread's: its sockets and the programs it starts are in there.
        if let Err(error) = unshare(Namespaces::NETWORK) {
            assert!(
                std::env::var_os("SKEP_TEST_STRICT").is_none(),
                "no network namespace: {error}"
            );
            eprintln!("skipped: no network namespace ({error})");
            return;
        }
        skep_sys::network::loopback_up().unwrap();
        for address in [WEB, OTHER, PRIVATE, METADATA, "1.1.1.1"] {
            let done = Command::new("ip")
                .args(["addr", "add", &format!("{address}/32"), "dev", "lo"])
                .status()
                .unwrap();
            assert!(done.success());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let whole = async {
            tokio::time::timeout(Duration::from_secs(30), body()).await.expect("the test hangs");
        };
        runtime.block_on(whole);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

type Zone = Arc<Mutex<HashMap<String, Vec<Vec<IpAddr>>>>>;

/// The gateway, and what stands around it.
pub struct Lab {
    pub control: UnixStream,
    pub ca: Option<String>,
    pub key: Option<skep_types::SecretValue>,
    pub proxy: SocketAddr,
    pub asked: Arc<Mutex<Vec<String>>>,
    dns: SocketAddr,
    tcp: SocketAddr,
    going: Arc<Mutex<HashMap<SocketAddr, SocketAddr>>>,
    zone: Zone,
    audit: PathBuf,
    _folder: tempfile::TempDir,
}

pub fn config(rules: &[&str]) -> EgressConfig {
    EgressConfig {
        sandbox: "lab".into(),
        rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
        resolvers: vec![DNS.parse().unwrap()],
        ..EgressConfig::default()
    }
}

impl Lab {
    pub async fn start(rules: &[&str]) -> Self {
        Self::with(config(rules)).await
    }

    pub async fn with(config: EgressConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let audit = folder.path().join("egress.jsonl");
        let file =
            std::fs::OpenOptions::new().read(true).append(true).create(true).open(&audit).unwrap();
        let bind = || TcpListener::bind("127.0.0.1:0");
        let (tcp, proxy) = (bind().await.unwrap(), bind().await.unwrap());
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (tcp_at, proxy_at, dns_at) =
            (tcp.local_addr().unwrap(), proxy.local_addr().unwrap(), udp.local_addr().unwrap());
        let dns_tcp = TcpListener::bind(dns_at).await.unwrap();
        let going = Arc::new(Mutex::new(HashMap::new()));
        let told: Arc<Mutex<HashMap<SocketAddr, SocketAddr>>> = going.clone();
        let sockets = Sockets {
            tcp: vec![tcp],
            dns_udp: vec![udp],
            dns_tcp: vec![dns_tcp],
            proxy: vec![proxy],
            tun: None,
            audit: file,
            destination: Arc::new(move |stream| {
                let from = stream.peer_addr()?;
                told.lock().unwrap().get(&from).copied().ok_or(std::io::ErrorKind::NotFound.into())
            }),
            clock: || "2026-01-01T00:00:00Z".into(),
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        tokio::spawn(run(sockets, theirs));
        let zone = Zone::default();
        let asked = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(name_server(zone.clone(), asked.clone()));
        let mut lab = Self {
            control: ours,
            ca: None,
            key: None,
            proxy: proxy_at,
            asked,
            dns: dns_at,
            tcp: tcp_at,
            going,
            zone,
            audit,
            _folder: folder,
        };
        match lab.tell(&ToEgress::Configure(config)).await {
            FromEgress::Ready { ca, key } => (lab.ca, lab.key) = (ca, key),
            other => panic!("{other:?}"),
        }
        lab
    }

    pub async fn tell(&mut self, message: &ToEgress) -> FromEgress {
        self.control.write_all(&egress_message(message).unwrap()).await.unwrap();
        let length = self.control.read_u32().await.unwrap();
        let mut bytes = vec![0; length as usize];
        self.control.read_exact(&mut bytes).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// What the world's name server says: answers in turn, the last one for ever.
    pub fn zone(&self, name: &str, answers: &[&[&str]]) {
        let parsed = answers
            .iter()
            .map(|answer| answer.iter().map(|text| text.parse().unwrap()).collect())
            .collect();
        self.zone.lock().unwrap().insert(format!("{name}."), parsed);
    }

    /// Asks the sandbox's DNS.
    pub async fn ask(&self, name: &str, kind: RecordType) -> (ResponseCode, Vec<IpAddr>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&question(name, kind), self.dns).await.unwrap();
        let mut buffer = [0; 1500];
        let (count, _) = socket.recv_from(&mut buffer).await.unwrap();
        read_reply(&buffer[..count])
    }

    pub async fn ask_tcp(&self, name: &str, kind: RecordType) -> (ResponseCode, Vec<IpAddr>) {
        let mut stream = TcpStream::connect(self.dns).await.unwrap();
        let bytes = question(name, kind);
        stream.write_u16(bytes.len() as u16).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut reply = vec![0; length.into()];
        stream.read_exact(&mut reply).await.unwrap();
        read_reply(&reply)
    }

    /// Connects as NAT would make it look: to the listener, going elsewhere.
    pub async fn dial(&self, to: &str) -> TcpStream {
        self.try_dial(to).await.unwrap()
    }

    /// The same, where being refused is one of the answers.
    pub async fn try_dial(&self, to: &str) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let own = socket.local_addr().unwrap();
        self.going.lock().unwrap().insert(own, to.parse().unwrap());
        socket.connect(self.tcp).await
    }

    pub fn audit(&self) -> Vec<EgressEntry> {
        let text = std::fs::read_to_string(&self.audit).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for a line of the log.
    pub async fn line(&self, condition: impl Fn(&EgressEntry) -> bool) -> EgressEntry {
        for _ in 0..500 {
            if let Some(found) = self.audit().into_iter().find(&condition) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no such line: {:?}", self.audit());
    }

    pub async fn denied(&self, host: &str, reason: &str) {
        self.line(|line| line.host == host && line.reason.as_deref() == Some(reason)).await;
    }
}

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::query();
    let name = hickory_proto::rr::Name::from_ascii(name).unwrap();
    message.add_query(hickory_proto::op::Query::query(name, kind));
    message.to_vec().unwrap()
}

fn read_reply(bytes: &[u8]) -> (ResponseCode, Vec<IpAddr>) {
    let reply = Message::from_vec(bytes).unwrap();
    let addresses = reply.answers.iter().filter_map(|record| match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    });
    (reply.metadata.response_code, addresses.collect())
}

async fn name_server(zone: Zone, asked: Arc<Mutex<Vec<String>>>) {
    let socket = UdpSocket::bind(DNS).await.unwrap();
    let mut buffer = [0; 1500];
    loop {
        let (count, from) = socket.recv_from(&mut buffer).await.unwrap();
        let question = Message::from_vec(&buffer[..count]).unwrap();
        let query = question.queries[0].clone();
        let name = query.name().to_ascii().to_lowercase();
        asked.lock().unwrap().push(name.clone());
        let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
        reply.add_query(query.clone());
        let found = zone.lock().unwrap().get_mut(&name).map(|answers| {
            // A and AAAA are asked for together: the turn is A's.
            let turn = query.query_type() == RecordType::A && answers.len() > 1;
            if turn { answers.remove(0) } else { answers[0].clone() }
        });
        match found {
            None => reply.metadata.response_code = ResponseCode::NXDomain,
            Some(addresses) => {
                for address in addresses {
                    let data = match address {
                        IpAddr::V4(v4) if query.query_type() == RecordType::A => {
                            RData::A(v4.into())
                        }
                        IpAddr::V6(v6) if query.query_type() == RecordType::AAAA => {
                            RData::AAAA(v6.into())
                        }
                        _ => continue,
                    };
                    reply.add_answer(Record::from_rdata(query.name().clone(), 0, data));
                }
            }
        }
        socket.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
    }
}

/// A server that does the same with each connection; how many came is counted.
pub async fn origin<F, W>(at: &str, work: F) -> Arc<Mutex<usize>>
where
    F: Fn(TcpStream) -> W + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(at).await.unwrap();
    let count = Arc::new(Mutex::new(0));
    let counted = count.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            *counted.lock().unwrap() += 1;
            tokio::spawn(work(stream));
        }
    });
    count
}

/// Answers each HTTP/1 request (without a body) with its own head.
pub async fn echo_http(at: &str) -> Arc<Mutex<usize>> {
    origin(at, |mut stream| async move {
        let mut held = Vec::new();
        let mut room = [0; 4096];
        loop {
            while let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
                let head: Vec<u8> = held.drain(..end + 4).collect();
                let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", head.len());
                let _ = stream.write_all(&[reply.as_bytes(), &head].concat()).await;
            }
            match stream.read(&mut room).await {
                Ok(count) if count > 0 => held.extend_from_slice(&room[..count]),
                _ => return,
            }
        }
    })
    .await
}

/// Sends bytes and reads until the other side ends; a reset counts as an end.
pub async fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    let _ = stream.write_all(bytes).await;
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply).await;
    reply
}

/// Sends a request and reads one answer with a length.
pub async fn request(stream: &mut TcpStream, text: &str) -> (u16, String) {
    stream.write_all(text.as_bytes()).await.unwrap();
    read_response(stream).await
}

pub async fn read_response(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> (u16, String) {
    let mut held = Vec::new();
    loop {
        let byte = stream.read_u8().await.expect("the answer ends early");
        held.push(byte);
        if held.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(held).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    (status, String::from_utf8(body).unwrap())
}
