//! TLS through the gateway: server names, secrets, protocols on top of HTTP; and abuse.

// Helper functions of tests are tests too, though clippy cannot know it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs)]

mod lab;

use base64::Engine as _;
use hickory_proto::rr::RecordType;
use lab::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use skep_types::{EgressSecret, EgressVerdict, FromEgress, SecretValue, ToEgress};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

/// The world's own certificate authority.
struct World {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl World {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn acceptor(&self, names: &[&str]) -> TlsAcceptor {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A TLS server that remembers every head, with its body, that it was sent.
    async fn serve(&self, at: &str, names: &[&str]) -> Arc<Mutex<Vec<String>>> {
        let acceptor = self.acceptor(names);
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = heads.clone();
        origin(at, move |stream| {
            let (acceptor, seen) = (acceptor.clone(), seen.clone());
            async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut held = Vec::new();
                let mut room = [0; 4096];
                while let Ok(count) = stream.read(&mut room).await
                    && count > 0
                {
                    held.extend_from_slice(&room[..count]);
                    let text = String::from_utf8_lossy(&held).to_lowercase();
                    let Some(end) = text.find("\r\n\r\n") else { continue };
                    let length = text
                        .lines()
                        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                    if held.len() >= end + 4 + length.unwrap_or(0) {
                        seen.lock().unwrap().push(String::from_utf8(held.clone()).unwrap());
                        held.clear();
                        let _ = stream
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                            .await;
                        let _ = stream.flush().await;
                    }
                }
            }
        })
        .await;
        heads
    }
}

fn trusting(pem: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn tls(
    connector: &TlsConnector,
    name: &str,
    stream: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    connector.connect(ServerName::try_from(name.to_owned()).unwrap(), stream).await
}

async fn get(stream: &mut TlsStream<TcpStream>, host: &str, more: &str) -> (u16, String) {
    stream
        .write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n{more}\r\n").as_bytes())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    read_response(stream).await
}

#[test]
fn net_14_tls_is_held_to_the_name_it_was_allowed_for() {
    in_lab(|| async {
        let lab = Lab::start(&["web.test", "far.test"]).await;
        for (name, at) in [("web.test", WEB), ("evil.test", WEB), ("far.test", OTHER)] {
            lab.zone(name, &[&[at]]);
        }
        let world = World::new();
        let heads =
            world.serve(&format!("{WEB}:443"), &["web.test", "evil.test", "far.test"]).await;
        let connector = trusting(&world.pem);
        let at = format!("{WEB}:443");
        lab.ask("web.test.", RecordType::A).await;
        // End to end: the certificate seen inside is the host's own.
        let mut stream = tls(&connector, "web.test", lab.dial(&at).await).await.unwrap();
        assert_eq!(get(&mut stream, "web.test", "").await.0, 200);
        drop(stream);
        let line =
            lab.line(|line| line.proto == "tls" && line.verdict == EgressVerdict::Allow).await;
        assert_eq!((line.host.as_str(), line.ip), ("web.test", Some(WEB.parse().unwrap())));
        assert!(line.bytes_in > 100 && line.bytes_out > 100);
        // Another name, an allowed name of another address, no name, no TLS.
        assert!(tls(&connector, "evil.test", lab.dial(&at).await).await.is_err());
        lab.denied("evil.test", "not-allowed").await;
        assert!(tls(&connector, "far.test", lab.dial(&at).await).await.is_err());
        lab.denied("far.test", "address-not-of-name").await;
        assert!(tls(&connector, WEB, lab.dial(&at).await).await.is_err());
        lab.denied("web.test", "server-name").await;
        let reply = exchange(&mut lab.dial(&at).await, b"\0\x01not tls").await;
        assert!(reply.is_empty());
        lab.denied("web.test", "protocol-not-allowed").await;
        let reply = exchange(
            &mut lab.dial(&at).await,
            b"GET / HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n",
        )
        .await;
        assert!(reply.starts_with(b"HTTP/1.1 403"));
        // A hello that never becomes whole, and rubbish in a record.
        let reply = exchange(&mut lab.dial(&at).await, b"\x16\x03\x01\x00\x05rubbish").await;
        assert!(reply.starts_with(&[21, 3, 3, 0, 2, 2]));
        // By CONNECT: the name must be the same one.
        for (name, works) in [("web.test", true), ("far.test", false)] {
            let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
            let (status, _) =
                request(&mut stream, "CONNECT web.test:443 HTTP/1.1\r\nHost: web.test:443\r\n\r\n")
                    .await;
            assert_eq!(status, 200);
            assert_eq!(tls(&connector, name, stream).await.is_ok(), works, "{name}");
        }
        assert!(!lab.asked.lock().unwrap().contains(&"evil.test.".into()));
        assert_eq!(heads.lock().unwrap().len(), 1);
    });
}

const PLACEHOLDER: &str = "sk-test-placeholder-00000000";
const VALUE: &str = "sk-test-therealvalue-1111111";

fn with_secret(world: &World, in_body: bool) -> skep_types::EgressConfig {
    let mut config = config(&["api.test", "web.test"]);
    config.extra_ca.clone_from(&world.pem);
    config.secrets = vec![EgressSecret {
        name: "KEY".into(),
        placeholder: PLACEHOLDER.into(),
        hosts: vec!["api.test".into()],
        value: SecretValue::new(VALUE.into()),
        in_body,
    }];
    config
}

#[test]
fn a_secret_is_put_in_for_its_host_and_no_other() {
    in_lab(|| async {
        let world = World::new();
        let mut lab = Lab::with(with_secret(&world, false)).await;
        lab.zone("api.test", &[&[WEB]]);
        lab.zone("web.test", &[&[OTHER]]);
        let api = world.serve(&format!("{WEB}:443"), &["api.test"]).await;
        let web = world.serve(&format!("{OTHER}:443"), &["web.test"]).await;
        lab.ask("api.test.", RecordType::A).await;
        lab.ask("web.test.", RecordType::A).await;
        let inside = trusting(lab.ca.as_deref().unwrap());
        let outside = trusting(&world.pem);
        let basic = |secret: &str| {
            base64::engine::general_purpose::STANDARD.encode(format!("user:{secret}"))
        };
        let headers = |secret: &str| {
            format!("authorization: Bearer {secret}\r\nx-basic: Basic {}\r\n", basic(secret))
        };

        let mut stream =
            tls(&inside, "api.test", lab.dial(&format!("{WEB}:443")).await).await.unwrap();
        assert_eq!(get(&mut stream, "api.test", &headers(PLACEHOLDER)).await, (200, "ok".into()));
        let head = api.lock().unwrap()[0].clone();
        assert!(
            head.contains(&format!("Bearer {VALUE}")) && head.contains(&basic(VALUE)),
            "{head}"
        );
        assert!(!head.contains(PLACEHOLDER));
        // In the opened connection another host is another host.
        assert_eq!(get(&mut stream, "web.test", &headers(PLACEHOLDER)).await.0, 403);
        // In the body nobody asked for it.
        let post = format!(
            "POST /?k={PLACEHOLDER} HTTP/1.1\r\nHost: api.test\r\nContent-Length: {}\r\n\r\n{PLACEHOLDER}",
            PLACEHOLDER.len()
        );
        stream.write_all(post.as_bytes()).await.unwrap();
        assert_eq!(read_response(&mut stream).await.0, 200);
        let head = api.lock().unwrap()[1].clone();
        assert!(
            head.starts_with(&format!("POST /?k={VALUE} ")) && head.ends_with(PLACEHOLDER),
            "{head}"
        );

        // Another host: its own certificate, and the placeholder as it is.
        let mut other =
            tls(&outside, "web.test", lab.dial(&format!("{OTHER}:443")).await).await.unwrap();
        assert_eq!(get(&mut other, "web.test", &headers(PLACEHOLDER)).await.0, 200);
        assert!(web.lock().unwrap()[0].contains(PLACEHOLDER));

        // Revoked: the open connection ends, and what comes after gets no value.
        assert!(matches!(
            lab.tell(&ToEgress::Revoke { name: "KEY".into() }).await,
            FromEgress::Ack { cut: 1 }
        ));
        assert!(stream.read_u8().await.is_err());
        let mut stream =
            tls(&outside, "api.test", lab.dial(&format!("{WEB}:443")).await).await.unwrap();
        assert_eq!(get(&mut stream, "api.test", &headers(PLACEHOLDER)).await.0, 200);
        assert!(!api.lock().unwrap().last().unwrap().contains(VALUE));
        let log = format!("{:?}", lab.audit());
        assert!(!log.contains(VALUE) && !log.contains(&basic(VALUE)));
    });
}

#[test]
fn bodies_are_searched_when_asked_and_a_false_host_gets_nothing() {
    in_lab(|| async {
        let world = World::new();
        let lab = Lab::with(with_secret(&world, true)).await;
        lab.zone("api.test", &[&[WEB]]);
        let api = world.serve(&format!("{WEB}:443"), &["api.test"]).await;
        let false_world = World::new();
        let lie = false_world.serve(&format!("{WEB}:8443"), &["api.test"]).await;
        lab.ask("api.test.", RecordType::A).await;
        let inside = trusting(lab.ca.as_deref().unwrap());
        let mut stream =
            tls(&inside, "api.test", lab.dial(&format!("{WEB}:443")).await).await.unwrap();
        let body = format!("{{\"key\":\"{PLACEHOLDER}\"}}");
        let post = format!(
            "POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(post.as_bytes()).await.unwrap();
        assert_eq!(read_response(&mut stream).await.0, 200);
        assert!(api.lock().unwrap()[0].ends_with(&format!("{{\"key\":\"{VALUE}\"}}")));
        drop(stream);
        // A server without the right certificate is not spoken with.
        let mut lab = lab;
        let rules = vec!["api.test:8443".into()];
        lab.tell(&ToEgress::Update { rules }).await;
        let mut stream =
            tls(&inside, "api.test", lab.dial(&format!("{WEB}:8443")).await).await.unwrap();
        let (status, text) =
            get(&mut stream, "api.test:8443", &format!("x: {PLACEHOLDER}\r\n")).await;
        assert_eq!(status, 502);
        assert!(text.contains("\"error\":\"certificate\""), "{text}");
        assert!(lie.lock().unwrap().is_empty());
    });
}

#[test]
fn websocket_passes_and_a_refused_upgrade_ends_the_connection() {
    in_lab(|| async {
        let lab = Lab::start(&["web.test"]).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.ask("web.test.", RecordType::A).await;
        origin(&format!("{WEB}:80"), |mut stream| async move {
            let mut held = Vec::new();
            while !held.ends_with(b"\r\n\r\n") {
                held.push(stream.read_u8().await.unwrap());
            }
            let text = String::from_utf8(held).unwrap().to_lowercase();
            if text.contains("get /no ") {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno").await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
                return;
            }
            assert!(text.contains("upgrade: websocket") && text.contains("connection: upgrade"));
            let yes = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
            stream.write_all(yes).await.unwrap();
            let mut room = [0; 3];
            stream.read_exact(&mut room).await.unwrap();
            stream.write_all(&room).await.unwrap();
        })
        .await;
        let ask = |path: &str| {
            format!(
                "GET {path} HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            )
        };
        let mut stream = lab.dial(&format!("{WEB}:80")).await;
        assert_eq!(request(&mut stream, &ask("/ws")).await.0, 101);
        assert_eq!(exchange(&mut stream, b"\x81\x01x").await, b"\x81\x01x");
        // The server says no: a request hidden behind it is not sent on.
        let mut stream = lab.dial(&format!("{WEB}:80")).await;
        let hidden = ask("/no") + "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n";
        let reply = String::from_utf8(exchange(&mut stream, hidden.as_bytes()).await).unwrap();
        assert!(reply.ends_with("no") && reply.matches("HTTP/1.1").count() == 1, "{reply}");
    });
}

#[test]
fn net_15_redirects_are_answers_and_not_followed() {
    in_lab(|| async {
        let lab = Lab::start(&["web.test"]).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.ask("web.test.", RecordType::A).await;
        let metadata = echo_http(&format!("{METADATA}:80")).await;
        origin(&format!("{WEB}:80"), |mut stream| async move {
            let answer = b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\nproxy-authenticate: Basic\r\ncontent-length: 0\r\n\r\n";
            let _ = stream.write_all(answer).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
        let mut stream = lab.dial(&format!("{WEB}:80")).await;
        assert_eq!(request(&mut stream, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await.0, 302);
        let mut stream = lab.dial(&format!("{METADATA}:80")).await;
        let (status, body) =
            request(&mut stream, "GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n").await;
        assert_eq!((status, body.contains("\"error\":\"metadata\"")), (403, true));
        assert_eq!(*metadata.lock().unwrap(), 0);
    });
}

#[test]
fn http2_in_the_clear_is_judged_per_stream() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    in_lab(|| async {
        let lab = Lab::start(&["web.test"]).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.ask("web.test.", RecordType::A).await;
        origin(&format!("{WEB}:80"), |stream| async move {
            let service = hyper::service::service_fn(|_| async {
                Ok::<_, std::convert::Infallible>(hyper::Response::new(String::from("two")))
            });
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        })
        .await;
        let stream = lab.dial(&format!("{WEB}:80")).await;
        let (mut sender, connection) = hyper::client::conn::http2::handshake::<_, _, String>(
            TokioExecutor::new(),
            TokioIo::new(stream),
        )
        .await
        .unwrap();
        tokio::spawn(connection);
        for (host, status) in [("web.test", 200), ("evil.test", 403), ("web.test", 200)] {
            let request =
                hyper::Request::get(format!("http://{host}/")).body(String::new()).unwrap();
            assert_eq!(sender.send_request(request).await.unwrap().status(), status, "{host}");
        }
    });
}

#[test]
fn net_18_idle_and_slow_connections_take_only_their_own_room() {
    in_lab(|| async {
        let mut config = config(&["web.test"]);
        config.limits.connections = 32;
        config.limits.head_seconds = 1;
        let lab = Lab::with(config).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.ask("web.test.", RecordType::A).await;
        echo_http(&format!("{WEB}:80")).await;
        let mut idle = Vec::new();
        for _ in 0..100 {
            let Ok(mut stream) = lab.try_dial(&format!("{WEB}:80")).await else { continue };
            let _ = stream.write_all(b"GET / HT").await;
            idle.push(stream);
        }
        lab.line(|line| line.reason.as_deref() == Some("too-many-connections")).await;
        // The slow ones are ended by the clock, and there is room again.
        for stream in &mut idle {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        let mut stream = lab.dial(&format!("{WEB}:80")).await;
        assert_eq!(request(&mut stream, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await.0, 200);
        // A head that grows without end, and a body that never ends but is announced.
        let mut stream = lab.dial(&format!("{WEB}:80")).await;
        let reply = exchange(
            &mut stream,
            &[b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'y'; 200_000]].concat(),
        )
        .await;
        assert!(reply.is_empty() || reply.starts_with(b"HTTP/1.1 4"));
    });
}

/// A program that was told of HTTP/2 would ask everything over one connection, and wait where the host
/// answers one by one.
#[test]
fn inside_is_spoken_what_the_host_speaks() {
    in_lab(|| async {
        let world = World::new();
        let lab = Lab::with(with_secret(&world, false)).await;
        lab.zone("api.test", &[&[WEB]]);
        let api = world.serve(&format!("{WEB}:443"), &["api.test"]).await;
        lab.ask("api.test.", RecordType::A).await;
        let mut roots = RootCertStore::empty();
        let ca = lab.ca.clone().unwrap();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let stream = lab.dial(&format!("{WEB}:443")).await;
        let mut stream = tls(&connector, "api.test", stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(get(&mut stream, "api.test", &format!("x: {PLACEHOLDER}\r\n")).await.0, 200);
        assert!(api.lock().unwrap()[0].contains(VALUE));
    });
}

/// Programs that run trust the authority they were told of; the process behind it may be another by now.
#[test]
fn the_authority_outlives_its_process() {
    in_lab(|| async {
        let world = World::new();
        world.serve(&format!("{WEB}:443"), &["api.test"]).await;
        let mut told = with_secret(&world, false);
        told.hosts = [("api.test".to_owned(), vec![WEB.parse().unwrap()])].into();
        let first = Lab::with(told.clone()).await;
        let connector = trusting(first.ca.as_deref().unwrap());
        for (key, works) in [(first.key.clone(), true), (None, false)] {
            let next =
                Lab::with(skep_types::EgressConfig { authority_key: key, ..told.clone() }).await;
            next.ask("api.test.", RecordType::A).await;
            let stream = next.dial(&format!("{WEB}:443")).await;
            assert_eq!(tls(&connector, "api.test", stream).await.is_ok(), works);
        }
    });
}

#[test]
fn a_secret_that_is_revoked_while_its_host_is_dialled_does_not_go_out() {
    in_lab(|| async {
        let world = World::new();
        let mut lab = Lab::with(with_secret(&world, false)).await;
        lab.zone("api.test", &[&[WEB]]);
        lab.ask("api.test.", RecordType::A).await;
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{WEB}:443").parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let full = std::net::TcpStream::connect(format!("{WEB}:443")).unwrap();
        let inside = trusting(lab.ca.as_deref().unwrap());
        let stream = lab.dial(&format!("{WEB}:443")).await;
        let client = tokio::spawn(async move {
            let Ok(mut stream) = tls(&inside, "api.test", stream).await else { return };
            let ask = format!("GET / HTTP/1.1\r\nHost: api.test\r\nx: {PLACEHOLDER}\r\n\r\n");
            let _ = stream.write_all(ask.as_bytes()).await;
            let _ = stream.read_u8().await;
        });
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let revoked = lab.tell(&ToEgress::Revoke { name: "KEY".into() }).await;
        assert!(matches!(revoked, FromEgress::Ack { .. }));
        drop(full);
        listener.accept().await.unwrap();
        let (late, _) = listener.accept().await.unwrap();
        let mut heard = String::new();
        if let Ok(mut late) = world.acceptor(&["api.test"]).accept(late).await {
            let mut room = [0; 4096];
            while !heard.contains("\r\n\r\n")
                && let Ok(count) = late.read(&mut room).await
                && count > 0
            {
                heard.push_str(&String::from_utf8_lossy(&room[..count]));
            }
        }
        assert!(!heard.contains(VALUE), "{heard}");
        client.abort();
    });
}
