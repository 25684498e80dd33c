//! HTTP in the clear, raw TCP and DNS through the gateway.

// Helper functions of tests are tests too, though clippy cannot know it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![allow(missing_docs)]

mod lab;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use lab::*;
use skep_types::{EgressVerdict, FromEgress, ToEgress};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[test]
fn net_11_dns_answers_for_allowed_names_and_asks_nobody_for_others() {
    in_lab(|| async {
        let lab = Lab::start(&["web.test", "*.wild.test"]).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.zone("evil.test", &[&[OTHER]]);
        let found = (ResponseCode::NoError, vec![WEB.parse().unwrap()]);
        assert_eq!(lab.ask("WEB.test.", RecordType::A).await, found);
        assert_eq!(lab.ask_tcp("web.test.", RecordType::A).await, found);
        assert_eq!(lab.ask("web.test.", RecordType::AAAA).await, (ResponseCode::NoError, vec![]));
        assert_eq!(lab.ask("web.test.", RecordType::TXT).await, (ResponseCode::NoError, vec![]));
        for kind in
            [RecordType::A, RecordType::AAAA, RecordType::TXT, RecordType::NULL, RecordType::HTTPS]
        {
            assert_eq!(lab.ask("evil.test.", kind).await, (ResponseCode::NXDomain, vec![]));
            assert_eq!(lab.ask_tcp("data.evil.test.", kind).await.0, ResponseCode::NXDomain);
        }
        let asked = lab.asked.lock().unwrap().clone();
        assert!(asked.iter().all(|name| name == "web.test."), "{asked:?}");
        lab.denied("evil.test", "not-allowed").await;
    });
}

#[test]
fn net_12_names_under_a_wildcard_are_few_and_short() {
    in_lab(|| async {
        let mut config = config(&["*.wild.test"]);
        config.limits.wildcard_names_per_minute = 5;
        let lab = Lab::with(config).await;
        for at in 0..20 {
            let name = format!("x{at}.wild.test");
            lab.zone(&name, &[&[WEB]]);
            let expected = if at < 5 { ResponseCode::NoError } else { ResponseCode::NXDomain };
            assert_eq!(lab.ask(&format!("{name}."), RecordType::A).await.0, expected, "{name}");
        }
        let long = format!("{}.{}.wild.test.", "a".repeat(60), "b".repeat(60));
        assert_eq!(lab.ask(&long, RecordType::A).await.0, ResponseCode::NXDomain);
        lab.line(|line| line.reason.as_deref() == Some("rate")).await;
    });
}

#[test]
fn net_10_bad_answers_are_refused_and_good_ones_pinned() {
    in_lab(|| async {
        let lab =
            Lab::start(&["private.test", "mixed.test", "meta.test", "flip.test:8080", "six.test"])
                .await;
        lab.zone("private.test", &[&[PRIVATE]]);
        lab.zone("mixed.test", &[&[WEB, PRIVATE]]);
        lab.zone("six.test", &[&[WEB, "fd00::1"]]);
        lab.zone("meta.test", &[&[METADATA]]);
        lab.zone("flip.test", &[&[WEB], &[PRIVATE]]);
        for (name, reason) in [
            ("private.test", "bad-answer"),
            ("mixed.test", "bad-answer"),
            ("six.test", "bad-answer"),
            ("meta.test", "metadata"),
        ] {
            assert_eq!(
                lab.ask(&format!("{name}."), RecordType::A).await,
                (ResponseCode::NXDomain, vec![])
            );
            lab.denied(name, reason).await;
        }
        let inner = echo_http(&format!("{PRIVATE}:8080")).await;
        let outer = echo_http(&format!("{WEB}:8080")).await;
        for _ in 0..3 {
            assert_eq!(
                lab.ask("flip.test.", RecordType::A).await.1,
                [WEB.parse::<std::net::IpAddr>().unwrap()]
            );
            let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
            let (status, _) = request(
                &mut stream,
                "GET http://flip.test:8080/ HTTP/1.1\r\nHost: flip.test:8080\r\n\r\n",
            )
            .await;
            assert_eq!(status, 200);
        }
        // Dialling the private address oneself does not help either.
        let mut stream = lab.dial(&format!("{PRIVATE}:8080")).await;
        let reply = exchange(
            &mut stream,
            b"GET / HTTP/1.1\r\nHost: flip.test:8080\r\nConnection: close\r\n\r\n",
        )
        .await;
        assert!(String::from_utf8(reply).unwrap().contains("\"error\":\"private\""));
        assert_eq!((*inner.lock().unwrap(), *outer.lock().unwrap() > 0), (0, true));
    });
}

#[test]
fn net_5_each_request_is_judged_alone() {
    in_lab(|| async {
        let lab = Lab::start(&["web.test", "two.test"]).await;
        for name in ["web.test", "two.test", "evil.test"] {
            lab.zone(name, &[&[WEB]]);
        }
        let served = echo_http(&format!("{WEB}:80")).await;
        lab.ask("web.test.", RecordType::A).await;
        let mut stream = lab.dial(&format!("{WEB}:80")).await;
        let get = |host: &str| format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (status, body) = request(&mut stream, &get("web.test")).await;
        assert_eq!((status, body.to_lowercase()), (200, get("web.test").to_lowercase()));
        let (status, body) = request(&mut stream, &get("evil.test")).await;
        assert_eq!(status, 403);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"], "not-allowed");
        assert_eq!((&body["host"], &body["port"]), (&"evil.test".into(), &80.into()));
        assert!(body["hint"].as_str().unwrap().contains("--allow evil.test"));
        // Still usable, also for another allowed name at the same address, and pipelined.
        assert_eq!(request(&mut stream, &get("two.test")).await.0, 200);
        let three = get("web.test") + &get("evil.test") + &get("web.test");
        stream.write_all(three.as_bytes()).await.unwrap();
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(read_response(&mut stream).await.0);
        }
        assert_eq!(statuses, [200, 403, 200]);
        // A tunnel in the tunnel is no way.
        let (status, _) =
            request(&mut stream, "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n")
                .await;
        assert_eq!(status, 400);
        assert!(!lab.asked.lock().unwrap().contains(&"evil.test.".into()));
        assert!(*served.lock().unwrap() > 0);
        let line =
            lab.line(|line| line.verdict == EgressVerdict::Allow && line.proto == "http").await;
        assert_eq!((line.host.as_str(), line.rule.as_deref()), ("web.test", Some("web.test")));
        assert!(line.bytes_in > 0);
        lab.denied("evil.test", "not-allowed").await;
    });
}

#[test]
fn net_6_what_can_be_read_in_two_ways_gets_400_and_the_end() {
    in_lab(|| async {
        let lab = Lab::start(&["web.test"]).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.ask("web.test.", RecordType::A).await;
        let served = echo_http(&format!("{WEB}:80")).await;
        let huge = format!("GET / HTTP/1.1\r\nHost: web.test\r\nX: {}\r\n\r\n", "y".repeat(70_000));
        for bad in [
            "GET / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: web.test\r\nHost: evil.test\r\n\r\n",
            "GET http://evil.test/ HTTP/1.1\r\nHost: web.test\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: web.test\r\nX: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\nHost: web.test\n\n",
            "\r\nGET / HTTP/1.1\r\nHost: web.test\r\n\r\n",
            &huge,
        ] {
            let mut stream = lab.dial(&format!("{WEB}:80")).await;
            let reply = String::from_utf8(exchange(&mut stream, bad.as_bytes()).await).unwrap();
            assert!(
                reply.starts_with("HTTP/1.1 400"),
                "{:?} -> {reply:?}",
                &bad[..bad.len().min(80)]
            );
            // The same through the proxy port.
            let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
            let reply = String::from_utf8(exchange(&mut stream, bad.as_bytes()).await).unwrap();
            assert!(reply.starts_with("HTTP/1.1 400"), "proxy: {reply:?}");
        }
        assert_eq!(*served.lock().unwrap(), 0);
    });
}

#[test]
fn net_4_connect_follows_the_rules() {
    in_lab(|| async {
        let lab = Lab::start(&["web.test", "raw.test:7"]).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.zone("raw.test", &[&[WEB]]);
        origin(&format!("{WEB}:7"), |mut stream| async move {
            let mut room = [0; 64];
            while let Ok(count) = stream.read(&mut room).await
                && count > 0
            {
                let _ = stream.write_all(&room[..count]).await;
            }
        })
        .await;
        for (target, status) in [
            ("evil.test:443", 403),
            ("web.test:22", 403),
            ("web.test:0", 400),
            ("web.test:65536", 400),
            ("web.test:https", 400),
            ("web.test", 400),
            ("169.254.169.254:80", 403),
            ("127.0.0.1:22", 403),
            ("[::1]:22", 403),
            ("127.1:22", 400),
            ("raw.test:7", 200),
        ] {
            let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
            let (found, _) = request(
                &mut stream,
                &format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"),
            )
            .await;
            assert_eq!(found, status, "{target}");
            if status == 200 {
                stream.write_all(b"\x01raw bytes").await.unwrap();
                let mut back = [0; 10];
                stream.read_exact(&mut back).await.unwrap();
                assert_eq!(&back, b"\x01raw bytes");
            }
        }
        assert!(lab.asked.lock().unwrap().iter().all(|name| name != "evil.test."));
    });
}

#[test]
fn net_7_socks_follows_the_same_rules() {
    in_lab(|| async {
        let lab = Lab::start(&["raw.test:7", "web.test"]).await;
        lab.zone("raw.test", &[&[WEB]]);
        origin(&format!("{WEB}:7"), |mut stream| async move {
            let _ = stream.write_all(b"hello").await;
            let _ = stream.read_u8().await;
        })
        .await;
        let named = |name: &str, port: u16| {
            [&[3, name.len() as u8], name.as_bytes(), &port.to_be_bytes()].concat()
        };
        for (command, target, reply) in [
            (1, named("raw.test", 7), 0),
            (1, named("raw.test", 8), 2),
            (1, named("evil.test", 443), 2),
            (1, named("a\0b", 7), 2),
            (1, [&[1, 127, 0, 0, 1][..], &22u16.to_be_bytes()].concat(), 2),
            (1, [&[4][..], &[0; 15], &[1], &22u16.to_be_bytes()].concat(), 2),
            (2, named("raw.test", 7), 7),
            (3, named("raw.test", 7), 7),
        ] {
            let mut stream = TcpStream::connect(lab.proxy).await.unwrap();
            stream.write_all(&[5, 1, 0]).await.unwrap();
            let mut chosen = [0; 2];
            stream.read_exact(&mut chosen).await.unwrap();
            stream.write_all(&[&[5, command, 0][..], &target].concat()).await.unwrap();
            let mut answer = [0; 10];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer[1], reply, "command {command}, {target:?}");
            if reply == 0 {
                let mut hello = [0; 5];
                stream.read_exact(&mut hello).await.unwrap();
                assert_eq!(&hello, b"hello", "the server speaks first");
            }
        }
        assert!(!lab.asked.lock().unwrap().contains(&"evil.test.".into()));
    });
}

#[test]
fn servers_that_speak_first_and_raw_protocols_pass() {
    in_lab(|| async {
        let lab = Lab::start(&["ssh.test:22", "tcp://blind.test:443", "web.test"]).await;
        lab.zone("ssh.test", &[&[WEB]]);
        lab.zone("blind.test", &[&[OTHER]]);
        for at in [format!("{WEB}:22"), format!("{OTHER}:443"), format!("{WEB}:23")] {
            origin(&at, |mut stream| async move {
                let _ = stream.write_all(b"SSH-2.0-x\r\n").await;
                let mut room = [0; 9];
                if stream.read_exact(&mut room).await.is_ok() {
                    let _ = stream.write_all(&room).await;
                }
            })
            .await;
        }
        lab.ask("ssh.test.", RecordType::A).await;
        lab.ask("blind.test.", RecordType::A).await;
        for to in [format!("{WEB}:22"), format!("{OTHER}:443")] {
            let mut stream = lab.dial(&to).await;
            let mut banner = [0; 11];
            stream.read_exact(&mut banner).await.unwrap();
            let reply = exchange(&mut stream, b"SSH-2.0-c").await;
            assert_eq!((&banner, reply.as_slice()), (b"SSH-2.0-x\r\n", &b"SSH-2.0-c"[..]));
        }
        // The same server on a port that nobody allowed is ended at once, without a word.
        let before = std::time::Instant::now();
        assert!(exchange(&mut lab.dial(&format!("{WEB}:23")).await, b"").await.is_empty());
        assert!(before.elapsed().as_secs() < 3);
        lab.line(|line| line.port == 23 && line.reason.as_deref() == Some("port-not-allowed"))
            .await;
    });
}

#[test]
fn net_16_narrowing_cuts_and_a_bad_list_changes_nothing() {
    in_lab(|| async {
        let mut lab = Lab::start(&["ssh.test:22", "web.test:23"]).await;
        for (name, port) in [("ssh.test", 22), ("web.test", 23)] {
            lab.zone(name, &[&[WEB]]);
            origin(&format!("{WEB}:{port}"), |mut stream| async move {
                let _ = stream.write_all(b"x").await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            })
            .await;
            lab.ask(&format!("{name}."), RecordType::A).await;
        }
        let mut cut = lab.dial(&format!("{WEB}:22")).await;
        let mut kept = lab.dial(&format!("{WEB}:23")).await;
        assert_eq!((cut.read_u8().await.unwrap(), kept.read_u8().await.unwrap()), (b'x', b'x'));
        let bad = ToEgress::Update { rules: vec!["*".into()] };
        assert!(matches!(lab.tell(&bad).await, FromEgress::Refused { .. }));
        let narrower = ToEgress::Update { rules: vec!["web.test:23".into()] };
        assert_eq!(lab.tell(&narrower).await, FromEgress::Ack { cut: 1 });
        assert!(exchange(&mut cut, b"").await.is_empty(), "cut");
        let line = lab.line(|line| line.reason.as_deref() == Some("rules-changed")).await;
        assert_eq!((line.host.as_str(), line.bytes_in), ("ssh.test", 1));
        // The other one is still open.
        kept.write_all(b"y").await.unwrap();
        assert!(
            tokio::time::timeout(std::time::Duration::from_millis(100), kept.read_u8())
                .await
                .is_err()
        );
    });
}

/// A server whose connections are not taken yet: the first fills its queue, the next ones hang in dialling.
fn hanging(at: &str) -> (tokio::net::TcpListener, std::net::TcpStream) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(at.parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    (listener, std::net::TcpStream::connect(at).unwrap())
}

#[test]
fn net_16_rules_that_change_while_it_is_dialled_hold() {
    in_lab(|| async {
        for (rule, said) in [
            ("tcp://slow.test:22", &b"x"[..]),
            ("slow.test:22", b"x"),
            ("http://slow.test:22", b"GET / HTTP/1.1\r\nHost: slow.test:22\r\n\r\n"),
        ] {
            let mut lab = Lab::start(&[rule, "web.test"]).await;
            lab.zone("slow.test", &[&[WEB]]);
            lab.ask("slow.test.", RecordType::A).await;
            let (listener, first) = hanging(&format!("{WEB}:22"));
            let mut client = lab.dial(&format!("{WEB}:22")).await;
            client.write_all(said).await.unwrap();
            // It is being dialled: a second look at the queue would be as good a proof.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            let narrower = ToEgress::Update { rules: vec!["web.test".into()] };
            assert!(matches!(lab.tell(&narrower).await, FromEgress::Ack { .. }));
            drop(first);
            listener.accept().await.unwrap();
            // The kernel tries again after a second.
            let (mut late, _) = listener.accept().await.unwrap();
            let mut heard = Vec::new();
            let _ = late.read_to_end(&mut heard).await;
            assert_eq!(heard, b"", "{rule}");
            let reply = exchange(&mut client, b"").await;
            let reply = String::from_utf8_lossy(&reply);
            assert!(reply.is_empty() || reply.contains("rules-changed"), "{rule}: {reply}");
        }
    });
}

/// Who waits for a greeting gets it as soon as it is there.
#[test]
fn a_greeting_is_not_held_back() {
    in_lab(|| async {
        let lab = Lab::start(&["mail.test:25"]).await;
        lab.zone("mail.test", &[&[WEB]]);
        origin(&format!("{WEB}:25"), |mut stream| async move {
            let _ = stream.write_all(b"220 hello\r\n").await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
        lab.ask("mail.test.", RecordType::A).await;
        let mut quickest = std::time::Duration::MAX;
        for _ in 0..3 {
            let before = std::time::Instant::now();
            let mut stream = lab.dial(&format!("{WEB}:25")).await;
            let mut greeting = [0; 11];
            stream.read_exact(&mut greeting).await.unwrap();
            quickest = quickest.min(before.elapsed());
        }
        assert!(quickest.as_millis() < 150, "{quickest:?}");
    });
}

/// Behind an upgrade nothing is judged: only a WebSocket, or raw bytes where they are allowed.
#[test]
fn net_5_no_other_protocol_is_switched_to() {
    in_lab(|| async {
        let lab = Lab::start(&["http://web.test:8081", "web.test:8082"]).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.ask("web.test.", RecordType::A).await;
        for (port, word, passes) in [
            (8081, "h2c", false),
            (8081, "websocket, h2c", false),
            (8081, "WebSocket", true),
            (8082, "tcp", true),
        ] {
            let heard = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
            let told = heard.clone();
            let server = tokio::net::TcpListener::bind(format!("{WEB}:{port}")).await.unwrap();
            let served = tokio::spawn(async move {
                // Where raw bytes are allowed it is dialled before it is known that requests come.
                let (mut stream, head) = loop {
                    let (mut stream, _) = server.accept().await.unwrap();
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n")
                        && let Ok(byte) = stream.read_u8().await
                    {
                        head.push(byte);
                    }
                    if !head.is_empty() {
                        break (stream, head);
                    }
                };
                *told.lock().unwrap() = String::from_utf8(head).unwrap().to_lowercase();
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            });
            let mut stream = lab.dial(&format!("{WEB}:{port}")).await;
            let ask = format!(
                "GET / HTTP/1.1\r\nHost: web.test:{port}\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                 Upgrade: {word}\r\nHTTP2-Settings: AAA\r\n\r\n"
            );
            assert_eq!(request(&mut stream, &ask).await.0, 200, "{word}");
            served.await.unwrap();
            let head = heard.lock().unwrap().clone();
            assert_eq!(head.contains("upgrade"), passes, "{word}: {head}");
            assert!(!head.contains("http2-settings"), "{word}: {head}");
        }
    });
}

/// After chunks nobody knows where the next head begins, also if the request was refused.
#[test]
fn net_6_a_refused_request_with_chunks_ends_the_connection() {
    in_lab(|| async {
        let lab = Lab::start(&["web.test"]).await;
        lab.zone("web.test", &[&[WEB]]);
        lab.ask("web.test.", RecordType::A).await;
        let mut stream = lab.dial(&format!("{WEB}:80")).await;
        let hidden = b"POST / HTTP/1.1\r\nHost: evil.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\nHost: web.test\n\n";
        let reply = String::from_utf8(exchange(&mut stream, hidden).await).unwrap();
        assert!(
            reply.starts_with("HTTP/1.1 403") && reply.matches("HTTP/1.1").count() == 1,
            "{reply}"
        );
        // And one that cannot be read says why.
        let mut stream = lab.dial(&format!("{WEB}:80")).await;
        let reply = exchange(&mut stream, b"GET / HTTP/1.1\nHost: web.test\n\n").await;
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("CR LF"), "{reply}");
        let line = lab.line(|line| line.reason.as_deref() == Some("bad-request")).await;
        assert_eq!((line.host.as_str(), line.port), ("web.test", 80));
    });
}

/// A host with an address that leads nowhere is reached at the next.
#[test]
fn a_dead_address_costs_a_moment() {
    in_lab(|| async {
        let lab = Lab::start(&["two.test:22"]).await;
        lab.zone("two.test", &[&[OTHER, WEB]]);
        let (_listener, _first) = hanging(&format!("{OTHER}:22"));
        origin(&format!("{WEB}:22"), |mut stream| async move {
            let _ = stream.write_all(b"SSH-2.0-x\r\n").await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
        let mut stream = tokio::net::TcpStream::connect(lab.proxy).await.unwrap();
        let before = std::time::Instant::now();
        stream
            .write_all(b"CONNECT two.test:22 HTTP/1.1\r\nHost: two.test:22\r\n\r\n")
            .await
            .unwrap();
        let mut reply = vec![0; 200];
        let count = stream.read(&mut reply).await.unwrap();
        let reply = String::from_utf8_lossy(&reply[..count]).into_owned();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        assert!(before.elapsed().as_secs() < 5);
    });
}
