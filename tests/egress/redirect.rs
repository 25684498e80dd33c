//! Connections: all of them are taken, the allowed ones get out, and nothing else does.

use super::RAW;
use super::origin::Origin;
use crate::harness::{Lab, for_both};
use std::io::{Read as _, Write as _};

fn raw(lab: &Lab, flags: &[&str], host: &str, port: u16) -> crate::harness::Ran {
    let port = port.to_string();
    let mut call = lab.skep(["run"]).args(flags).args(["--", "/usr/bin/python3", "-c", RAW]);
    call = call.args([host, &port]);
    call.run()
}

#[test]
fn the_hosts_resolver_and_names_are_not_seen() {
    for_both(|lab| {
        let host = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let script = "cat /etc/resolv.conf; echo --; cat /etc/hosts; echo x 2>/dev/null >>/etc/resolv.conf && echo WRITTEN; true";
        let text = lab.skep(["run", "--name", "bee", "--", "sh", "-c", script]).run().ok().text();
        for server in host.lines().filter_map(|line| line.strip_prefix("nameserver ")) {
            assert!(!text.contains(server), "{text}");
        }
        assert!(text.contains("127.0.0.1 localhost bee") && !text.contains("WRITTEN"), "{text}");
        // The control: with the host's network it is the host's file.
        let seen = lab.skep(["run", "--net", "host", "--", "cat", "/etc/resolv.conf"]).run().ok();
        assert_eq!(seen.text(), host.trim_end_matches('\n'));
    });
}

#[test]
fn net_17_the_hosts_loopback_is_reached_only_by_its_literal() {
    for_both(|lab| {
        let origin = Origin::start("the-origin");
        let (port, rule) = (origin.port(), format!("127.0.0.1:{}", origin.port()));
        // Control: nothing but the sandbox stands between a client and the server.
        let direct = raw(lab, &["--net", "host"], "127.0.0.1", port).ok();
        assert!(direct.text().contains("the-origin"));
        assert!(
            raw(lab, &["--allow", &rule], "127.0.0.1", port).ok().text().contains("the-origin")
        );
        let before = origin.heard().len();
        let beside = format!("127.0.0.1:{}", port.wrapping_add(1).max(1024));
        for flags in [&[][..], &["--net", "allow"], &["--allow", &beside], &["--allow", "a.test"]] {
            let ran = raw(lab, flags, "127.0.0.1", port);
            assert!(!ran.text().contains("the-origin"), "{}", ran.describe());
        }
        assert_eq!(origin.heard().len(), before, "somebody got through");
        // A server inside keeps its loopback.
        let script = "python3 -c 'import socket
s=socket.socket(); s.bind((\"127.0.0.1\",8099)); s.listen(1)
c=socket.create_connection((\"127.0.0.1\",8099)); k,_=s.accept(); k.sendall(b\"own\"); print(c.recv(9))'";
        let own = lab.skep(["run", "--allow", &rule, "--", "sh", "-c", script]).run().ok();
        assert!(own.text().contains("own"));
    });
}

#[test]
fn a_server_that_serves_one_connection_at_a_time_is_reached() {
    for_both(|lab| {
        // Where raw bytes are allowed the proxy dials before it knows what is spoken.
        let origin = Origin::start_patient("the-origin");
        let rule = format!("127.0.0.1:{}", origin.port());
        let reached = raw(lab, &["--allow", &rule], "127.0.0.1", origin.port()).ok();
        assert!(reached.text().contains("the-origin"), "{}", reached.describe());
    });
}

/// Everything a program could send that is no allowed connection, each with what it must see.
pub(crate) const ATTEMPTS: &str = r#"
import socket,errno
def t(name, f):
    try: r = f()
    except OSError as e: r = 'error ' + errno.errorcode.get(e.errno, str(e))
    print(name, r)
def tcp(a, family=socket.AF_INET):
    def f():
        s = socket.socket(family); s.settimeout(20); s.connect(a); s.sendall(b'x'*16+b'\n')
        return 'closed' if s.recv(1) == b'' else 'ANSWERED'
    return f
def udp(a, family=socket.AF_INET):
    def f():
        s = socket.socket(family, socket.SOCK_DGRAM); s.sendto(b'x', a); return 'SENT'
    return f
t('tcp4', tcp(('203.0.113.9', 22)))
t('tcp6', tcp(('2001:db8::9', 22), socket.AF_INET6))
t('udp4', udp(('203.0.113.9', 123)))
t('udp6', udp(('2001:db8::9', 123), socket.AF_INET6))
t('quic', udp(('203.0.113.9', 443)))
t('icmp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).sendto(b'\x08\0\0\0\0\0\0\0', ('203.0.113.9', 0)) and 'SENT')
t('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) and 'OPENED')
t('packet', lambda: socket.socket(17, socket.SOCK_RAW, 0) and 'OPENED')
t('sctp', lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).connect(('203.0.113.9', 22)) or 'CONNECTED')
t('vsock', lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, 22)) or 'CONNECTED')
print('interfaces', sorted(l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l))
"#;

#[test]
fn net_2_no_packet_leaves_whatever_is_tried() {
    for_both(|lab| {
        for flags in [&[][..], &["--allow", "a.test"]] {
            let ran =
                lab.skep(["run"]).args(flags).args(["--", "/usr/bin/python3", "-c", ATTEMPTS]);
            let ran = ran.run().ok();
            let text = ran.text();
            for good in ["SENT", "ANSWERED", "OPENED", "CONNECTED"] {
                assert!(!text.contains(good), "{}", ran.describe());
            }
            // There is no other interface that a packet could leave by.
            assert!(text.contains("interfaces ['lo']"), "{}", ran.describe());
            if !flags.is_empty() {
                assert!(text.contains("udp4 error EPERM"), "{}", ran.describe());
                let closed = |line: &str| {
                    text.lines().any(|found| {
                        found.starts_with(line)
                            && (found.contains("closed") || found.contains("ECONNRESET"))
                    })
                };
                assert!(closed("tcp4"), "{}", ran.describe());
                assert!(closed("tcp6") || text.contains("tcp6 error ENETUNREACH"), "{text}");
            }
        }
    });
}

#[test]
fn the_report_names_the_method_and_comes_from_a_probe() {
    for_both(|lab| {
        lab.skep(["create", "s", "--allow", "a.test", "--require", "network"]).run().ok();
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        let network = &shown["enforcement"]["network"];
        assert_eq!(network["enforced"], true, "{network}");
        assert!(network["how"].as_str().unwrap().contains("nft redirect"), "{network}");
        assert_eq!(shown["network"]["mode"], "allow");
        // The probe itself is no attempt of the sandbox's.
        assert!(lab.skep(["net", "s", "--json"]).run().ok().stdout.is_empty());
    });
}

/// Connects to each and says whether somebody answered; then counts the virtual sockets that let it connect.
const NEAR: &str = "import socket,sys
for text in sys.argv[1:]:
    host,port=text.rsplit(':',1)
    try:
        s=socket.create_connection((host.strip('[]'),int(port)),10); s.settimeout(10); s.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
        print(text, 'heard', s.recv(99)[:40])
    except OSError as e: print(text, 'no', type(e).__name__)
for cid in (1,2,3):
    for port in (22,53,1024,5000):
        try: socket.socket(40,socket.SOCK_STREAM).connect((cid,port)); print('VSOCK',cid,port)
        except OSError: pass
";

/// The host's own address in its network, a data base, a container engine, skep's server, and what another sandbox
/// has published or listens at: one by one, with the control from outside.
#[test]
fn net_17_nothing_near_is_reached_one_by_one() {
    for_both(|lab| {
        let mut near: Vec<(String, Origin)> = Vec::new();
        for what in ["a data base", "a container engine"] {
            let origin = Origin::start(what);
            near.push((format!("127.0.0.1:{}", origin.port()), origin));
        }
        let server = lab.serve(&[]);
        let port = super::origin::free_port();
        let script = "import http.server; http.server.HTTPServer(('0.0.0.0',8000),http.server.SimpleHTTPRequestHandler).serve_forever()";
        let published = format!("{port}:8000");
        lab.skep(["create", "other", "--publish", &published]).run().ok();
        lab.skep(["exec", "other", "--detach", "--", "/usr/bin/python3", "-c", script]).run().ok();
        let mut targets: Vec<String> = near.iter().map(|(address, _)| address.clone()).collect();
        targets.push(format!("127.0.0.1:{port}"));
        targets.push(server.url("").trim_start_matches("http://").to_owned());
        // The sandbox's own dummy address is every sandbox's.
        targets.push("192.0.0.8:8000".to_owned());
        if let Some(lan) = super::without_nft::own_address() {
            let lan_server = Origin::start_at(lan, "the host's network");
            let address = std::net::SocketAddr::new(lan, lan_server.port()).to_string();
            targets.push(address.clone());
            near.push((address, lan_server));
        }
        // Control: from outside all of them answer (the dummy address is nobody's there).
        for target in targets.iter().filter(|target| !target.starts_with("192.0.0.8")) {
            crate::harness::wait_for(target, 20, || std::net::TcpStream::connect(target).ok());
        }
        for (address, origin) in &near {
            crate::harness::wait_for(address, 20, || (!origin.heard().is_empty()).then_some(()));
        }
        let before: Vec<usize> = near.iter().map(|(_, origin)| origin.heard().len()).collect();
        for flags in
            [&[][..], &["--allow", "a.test"], &["--allow", "0.0.0.0/1", "--allow", "128.0.0.0/1"]]
        {
            let call = lab.skep(["run"]).args(flags).args(["--", "/usr/bin/python3", "-c", NEAR]);
            let ran = call.args(&targets).within(60).run();
            let text = ran.text();
            assert_eq!(text.lines().count(), targets.len(), "{}", ran.describe());
            for line in text.lines() {
                let refused = line.contains(" no ")
                    || line.contains("HTTP/1.1 403")
                    || line.ends_with("heard b''");
                assert!(refused, "{}", ran.describe());
            }
        }
        let after: Vec<usize> = near.iter().map(|(_, origin)| origin.heard().len()).collect();
        assert_eq!(before, after, "somebody got through");
        server.stop();
    });
}

/// A literal means whatever listens there on the host, but for skep itself: its server, and what another sandbox
/// has published, are reached by nobody inside.
#[test]
fn net_17_no_literal_leads_to_the_server_or_to_another_sandbox() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        let served = server.url("").trim_start_matches("http://").trim_end_matches('/').to_owned();
        let port = super::origin::free_port();
        let script = "import http.server; http.server.HTTPServer(('0.0.0.0',8000),http.server.SimpleHTTPRequestHandler).serve_forever()";
        lab.skep(["create", "other", "--publish", &format!("{port}:8000")]).run().ok();
        lab.skep(["exec", "other", "--detach", "--", "/usr/bin/python3", "-c", script]).run().ok();
        let published = format!("127.0.0.1:{port}");
        let plain = Origin::start("somebody of the host");
        let plain = format!("127.0.0.1:{}", plain.port());
        // Control: from outside both answer.
        for target in [&served, &published] {
            crate::harness::wait_for(target, 20, || {
                let mut stream = std::net::TcpStream::connect(target).ok()?;
                stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
                let mut head = [0; 8];
                stream.read_exact(&mut head).ok()?;
                (&head == b"HTTP/1.1" || &head == b"HTTP/1.0").then_some(())
            });
        }
        for (target, answers) in [(&served, false), (&published, false), (&plain, true)] {
            let url = format!("http://{target}/");
            let line =
                ["run", "--allow", target, "--", "curl", "-s", "-m", "20", "-o", "/dev/null"];
            let ran = lab.skep(line).args(["-w", "%{http_code}", &url]).run();
            let answered = ran.text().starts_with(['2', '4']);
            assert_eq!(answered, answers, "{target}: {}", ran.describe());
        }
        server.stop();
    });
}
