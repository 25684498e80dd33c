//! The way out on a host that cannot redirect connections: the ports that rules name, and no others.

use super::RAW;
use super::names::settings;
use super::origin::{NameServer, Origin};
use crate::harness::{Lab, for_both, skip};
use std::net::{IpAddr, TcpListener, UdpSocket};

/// An address of this host that is no loopback address; nothing is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn raw(lab: &Lab, host: &str, port: u16) -> crate::harness::Ran {
    let port = port.to_string();
    lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", RAW, host, &port]).run()
}

#[test]
fn without_nft_named_ports_lead_to_the_proxy_and_others_nowhere() {
    for_both(|lab| {
        let origin = Origin::start("the-origin");
        let server = NameServer::start("8.8.8.8".parse().unwrap());
        let settings = settings(lab, &server);
        let rule = format!("127.0.0.1:{}", origin.port());
        let line = ["create", "s", "--allow", &rule, "--allow", "yes.example"];
        let call = match lab.skep_without_nft(&line) {
            Ok(call) => call,
            Err(reason) => return skip(&reason),
        };
        call.env("XDG_CONFIG_HOME", &settings).run().ok();
        let report = lab.sandbox("s")["enforcement"]["network"].clone();
        assert_eq!(report["enforced"], true, "{report}");
        let how = report["how"].as_str().unwrap();
        assert!(how.contains("every address is its own") && how.contains("not installed"), "{how}");

        assert!(raw(lab, "127.0.0.1", origin.port()).ok().text().contains("the-origin"));
        // A program that ignores proxies and is denied hears it from the proxy; a port that no rule
        // names is refused at once.
        assert!(raw(lab, "93.184.216.34", 80).text().contains(" 403"));
        assert!(raw(lab, "169.254.169.254", 80).text().contains(" 403"));
        assert!(raw(lab, "203.0.113.9", 22).errors().contains("refused"));
        let ask = |name: &str| lab.exec_script("s", &format!("getent ahostsv4 {name}")).run();
        assert_ne!(ask("no.example").code(), 0);
        assert_eq!(server.asked(), Vec::<String>::new());
        assert!(ask("yes.example").ok().text().contains("8.8.8.8"));
        let tested = lab.skep(["net", "test", "s", &rule, "denied.example", "--json"]).run();
        let probes = tested.exits(1).json();
        for at in 0..2 {
            assert_eq!(probes[at]["reached"], true, "{probes}");
            assert_eq!(probes[at + 2]["allowed"], false, "{probes}");
        }
        let other = lab.skep(["net", "allow", "s", "a.test:5432"]).run();
        assert!(other.errors().contains("stop and start"), "{}", other.describe());
        lab.skep(["net", "deny", "s", &rule]).run().ok();
        assert!(!raw(lab, "127.0.0.1", origin.port()).text().contains("the-origin"));
    });
}

#[test]
fn without_nft_the_address_that_was_meant_is_dialled_and_all_ports_are_refused() {
    for_both(|lab| {
        let Some(address) = own_address() else { return skip("this host has no address") };
        // The same port on another address of the host: only the one that is meant is reached.
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                let _ = std::io::Write::write_all(&mut connection, b"by its own address\n");
            }
        });
        let rule = format!("tcp://{address}:{port}");
        let host = address.to_string();
        let line = ["run", "--allow", &rule, "--", "/usr/bin/python3", "-c", RAW, &host];
        let port = port.to_string();
        let line: Vec<&str> = line.into_iter().chain([port.as_str()]).collect();
        let call = match lab.skep_without_nft(&line) {
            Ok(call) => call,
            Err(reason) => return skip(&reason),
        };
        let ran = call.run();
        assert!(ran.text().contains("by its own address"), "{}", ran.describe());
        let all = ["run", "--allow", "tcp://a.test:*", "--", "true"];
        let refused = lab.skep_without_nft(&all).unwrap().run().exits(5);
        assert!(refused.errors().contains("name the ports"), "{}", refused.errors());
    });
}
