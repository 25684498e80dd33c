//! A server of the test on the host's loopback that remembers what it heard.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Answers every connection with HTTP and `text`, and keeps what it was sent.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// On a free port of 127.0.0.1. It ends with the test's process.
    pub(crate) fn start(text: &str) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), text)
    }

    /// On a free port of an address of this host.
    pub(crate) fn start_at(address: IpAddr, text: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (log, text) = (Arc::clone(&heard), text.to_owned());
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (log, text) = (Arc::clone(&log), text.clone());
                std::thread::spawn(move || answer(connection, &log, &text));
            }
        });
        Self { address, heard }
    }

    /// The same, one connection after the other.
    pub(crate) fn start_patient(text: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (log, text) = (Arc::clone(&heard), text.to_owned());
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|connection| answer(connection, &log, &text));
        });
        Self { address, heard }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// What it was sent, one text per connection.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

fn answer(mut connection: TcpStream, log: &Mutex<Vec<String>>, text: &str) {
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut heard = Vec::new();
    let mut buffer = [0; 4096];
    // A request's head is enough; who sends something else sends a line.
    while !heard.windows(4).any(|window| window == b"\r\n\r\n") && !heard.ends_with(b"?\n") {
        match connection.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) => heard.extend_from_slice(&buffer[..length]),
        }
    }
    log.lock().unwrap().push(String::from_utf8_lossy(&heard).into_owned());
    let length = text.len();
    let _ = write!(
        connection,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    );
}

/// A port of 127.0.0.1 that is free now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A name server on the host's loopback that gives one address for every name, and remembers what
/// it was asked.
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    pub(crate) fn start(answer: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let (name, reply) = reply_to(&buffer[..length], answer);
                log.lock().unwrap().push(name);
                let _ = socket.send_to(&reply, from);
            }
        });
        Self { address, asked }
    }

    /// Names it was asked for, in lower case.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// The question comes back with one address for type A, and with nothing for any other.
fn reply_to(query: &[u8], answer: Ipv4Addr) -> (String, Vec<u8>) {
    let (mut at, mut labels) = (12, Vec::new());
    while let Some(length) = query.get(at).copied().filter(|length| *length > 0) {
        let end = at + 1 + usize::from(length);
        let label = query.get(at + 1..end).unwrap_or_default();
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at = end;
    }
    let question = query.get(12..at + 5).unwrap_or_default();
    let is_address = question.ends_with(&[0, 1, 0, 1]);
    let mut reply = query.get(..2).unwrap_or_default().to_vec();
    reply.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
    reply.extend(question);
    if is_address {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4]);
        reply.extend(answer.octets());
    }
    (labels.join("."), reply)
}

/// Sends back what it is sent, as long as anybody sends.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut back = connection.try_clone().unwrap();
                let _ = std::io::copy(&mut connection, &mut back);
            });
        }
    });
    address
}
