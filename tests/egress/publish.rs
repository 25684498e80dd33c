//! Ports in: `--publish`.

use super::origin::free_port;
use crate::harness::{Lab, for_both, wait_for};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const SERVER: &str = "import socket,sys
s=socket.socket(); s.bind((sys.argv[1],int(sys.argv[2]))); s.listen(8)
while True:
    c,_=s.accept(); c.sendall(b'inside:'+c.recv(100)); c.close()
";

fn ask(port: u16) -> Option<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(b"hello").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text).filter(|text| !text.is_empty())
}

fn serve(lab: &Lab, name: &str, address: &str, port: u16) {
    lab.skep(["exec", "-d", name, "--", "/usr/bin/python3", "-c", SERVER, address])
        .arg(port.to_string())
        .run()
        .ok();
}

#[test]
fn net_19_a_published_port_leads_inside_and_goes_with_the_sandbox() {
    for_both(|lab| {
        let (host, hidden) = (free_port(), free_port());
        lab.skep(["create", "s", "--publish", &format!("{host}:8080")]).run().ok();
        serve(lab, "s", "0.0.0.0", 8080);
        serve(lab, "s", "0.0.0.0", hidden);
        wait_for("the server inside", 20, || ask(host));
        assert_eq!(ask(host).unwrap(), "inside:hello");
        // A server on a port nobody published, on all of its addresses, is not to be reached.
        assert_eq!(ask(hidden), None);
        assert_eq!(ask(8080).filter(|text| text.starts_with("inside")), None);
        // Only the loopback of the host listens.
        let listening = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let wanted = format!("0100007F:{host:04X}");
        let other = format!(":{host:04X} 00000000:0000 0A");
        assert!(listening.contains(&wanted));
        assert!(!listening.lines().any(|line| line.contains(&other) && !line.contains(&wanted)));
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["network"]["publish"][0]["host"], host);
        lab.skep(["stop", "s"]).run().ok();
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, host)).is_ok(), "the port is still taken");
    });
}

#[test]
fn net_19_a_published_port_is_freed_when_the_keeper_is_killed() {
    for_both(|lab| {
        let port = free_port();
        lab.skep(["create", "s", "--publish", &port.to_string()]).run().ok();
        for keeper in lab.keepers() {
            crate::harness::outside::kill(keeper);
        }
        wait_for("the port to be free", 10, || TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    });
}

#[test]
fn a_port_that_is_taken_is_told_and_nothing_is_left() {
    for_both(|lab| {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let ran = lab.without_effect(lab.skep(["create", "s", "--publish", &port]));
        ran.exits(2).says(&format!("127.0.0.1:{port}"));
        for bad in ["0", "x", "70000", "127.0.0.1:80", "1:2:3"] {
            lab.skep(["create", "s", "--publish", bad]).run().exits(2);
        }
        lab.skep(["create", "s", "--net", "host", "--publish", "8080"]).run().exits(2);
    });
}
