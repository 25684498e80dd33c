//! DNS: answered by skep, for allowed names only.

use super::origin::{NameServer, Origin};
use crate::harness::{Lab, for_both};
use std::path::PathBuf;

/// A directory for settings that name the lab's own name server.
pub(crate) fn settings(lab: &Lab, server: &NameServer) -> PathBuf {
    let directory = lab.root.join("config");
    let text = format!("[egress]\nresolvers = [\"{}\"]\n", server.address);
    lab.write(directory.join("skep/config.toml"), text);
    directory
}

/// Asks for a name in every way a program can.
pub(crate) const ASK: &str = r#"
import socket,struct,sys
name=sys.argv[1]
def query(kind): return struct.pack('>HHHHHH',7,256,1,0,0,0)+b''.join(bytes([len(l)])+l.encode() for l in name.split('.'))+b'\0'+struct.pack('>HH',kind,1)
def show(what, f):
    try: print(what, f())
    except Exception as e: print(what, 'error', e)
show('libc', lambda: socket.getaddrinfo(name, 80)[0][4][0])
def udp(server, kind):
    s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10); s.sendto(query(kind),(server,53)); a=s.recv(4096)
    return 'rcode %d answers %d' % (a[3]&15, struct.unpack('>H',a[6:8])[0])
for kind in (1, 28, 16, 10, 65): show('udp %d' % kind, lambda: udp('127.0.0.1', kind))
show('own resolver', lambda: udp('203.0.113.53', 1))
def tcp():
    s=socket.create_connection(('203.0.113.53',53),10); s.settimeout(10); q=query(1); s.sendall(struct.pack('>H',len(q))+q); a=s.recv(4096)
    return 'rcode %d answers %d' % (a[5]&15, struct.unpack('>H',a[8:10])[0])
show('tcp', tcp)
"#;

#[test]
fn net_11_names_that_are_not_allowed_are_never_asked_upstream() {
    for_both(|lab| {
        let server = NameServer::start("8.8.8.8".parse().unwrap());
        let settings = settings(lab, &server);
        let ask = |name: &str| {
            let ask = ["run", "--allow", "yes.example", "--", "/usr/bin/python3", "-c", ASK, name];
            lab.skep(ask).env("XDG_CONFIG_HOME", &settings).run().ok()
        };
        let denied = ask("secret-data.no.example");
        for line in denied.text().lines() {
            let good = line.contains("rcode 3 answers 0")
                || line.contains("rcode 5 answers 0")
                || line.contains("error");
            assert!(good, "{}", denied.describe());
        }
        assert!(denied.text().contains("udp 1 rcode 3"), "{}", denied.describe());
        assert_eq!(server.asked(), Vec::<String>::new(), "a denied name was asked upstream");
        // Control: the same programs, an allowed name.
        let allowed = ask("yes.example");
        assert!(allowed.text().contains("libc 8.8.8.8"), "{}", allowed.describe());
        assert!(allowed.text().contains("own resolver rcode 0"), "{}", allowed.describe());
        assert!(server.asked().iter().all(|name| name == "yes.example"));
        assert!(!server.asked().is_empty());
    });
}

#[test]
fn net_10_an_allowed_name_that_leads_to_a_private_address_is_refused() {
    for_both(|lab| {
        let origin = Origin::start("private");
        let server = NameServer::start("127.0.0.1".parse().unwrap());
        let settings = settings(lab, &server);
        let port = origin.port().to_string();
        let rule = format!("inner.example:{port}");
        let ran = lab
            .skep(["run", "--allow", &rule, "--", "/usr/bin/python3", "-c", super::RAW])
            .args(["inner.example", &port])
            .env("XDG_CONFIG_HOME", &settings)
            .run();
        assert!(!ran.text().contains("private"), "{}", ran.describe());
        assert!(!server.asked().is_empty(), "the lab's server was not asked");
        assert_eq!(origin.heard(), Vec::<String>::new());
    });
}

/// Names that the user's settings fix: without asking anybody, for allowed names only, and by the
/// same rules for addresses.
#[test]
fn fixed_names_are_honoured_where_they_are_allowed() {
    for_both(|lab| {
        let server = NameServer::start("8.8.8.8".parse().unwrap());
        let directory = settings(lab, &server);
        let text = std::fs::read_to_string(directory.join("skep/config.toml")).unwrap();
        let fixed = "[egress.hosts]\n\"map.example\" = [\"8.8.4.4\"]\n\"lan.example\" = [\"10.0.0.1\"]\n\"other.example\" = [\"8.8.4.4\"]\n";
        lab.write(directory.join("skep/config.toml"), format!("{text}{fixed}"));
        let script = "for name in map.example MAP.example. lan.example other.example; do echo $name $(getent ahostsv4 $name | head -n 1); done";
        let rules = ["run", "--allow", "map.example", "--allow", "lan.example", "--"];
        let ran =
            lab.skep(rules).args(["sh", "-c", script]).env("XDG_CONFIG_HOME", &directory).run();
        let text = ran.text();
        for (name, address) in [("map.example", "8.8.4.4"), ("MAP.example.", "8.8.4.4")] {
            assert!(text.contains(&format!("{name} {address}")), "{}", ran.describe());
        }
        for name in ["lan.example", "other.example"] {
            assert!(text.lines().any(|line| line == name), "{}", ran.describe());
        }
        assert_eq!(server.asked(), Vec::<String>::new(), "nobody is asked for them");
    });
}

/// Nobody answers where the lab's name server should be.
#[test]
fn an_allowed_name_without_an_address_is_a_bad_gateway_and_no_denial() {
    for_both(|lab| {
        let directory = lab.root.join("config");
        let text = "[egress]\nresolvers = [\"127.0.0.1:9\"]\n";
        lab.write(directory.join("skep/config.toml"), text);
        let script = "curl -s -w '%{http_code}\n' -x $HTTP_PROXY http://nosuch.example/; \
            curl -s -o /dev/null -w '%{http_connect}\n' -x $HTTP_PROXY https://nosuch.example/; exit 7";
        let run = ["run", "--name", "n", "--keep", "--allow", "nosuch.example"];
        let call = lab.skep(run).args(["--", "sh", "-c", script]);
        let ran = call.env("XDG_CONFIG_HOME", &directory).run().exits(7);
        let text = ran.text();
        assert!(text.contains("\"error\":\"no-answer\""), "{}", ran.describe());
        assert!(text.contains("\n502\n502"), "{}", ran.describe());
        assert!(!ran.errors().contains("denied"), "{}", ran.describe());
        ran.says("network: nosuch.example is allowed, and its name has no address");
        let log = lab.skep(["net", "n", "--json"]).run().ok().json_lines();
        assert!(!log.is_empty());
        for line in log {
            assert_eq!((&line["verdict"], &line["reason"]), (&"allow".into(), &"no-answer".into()));
            assert_eq!(line["rule"], "nosuch.example", "{line}");
        }
    });
}
