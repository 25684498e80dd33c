//! The way out on a host that cannot redirect connections: by an interface of user space, and where there is none
//! either, the ports that rules name and no others.

use super::RAW;
use super::everywhere::ECHO;
use super::names::{ASK, settings};
use super::origin::{NameServer, Origin, echo, free_port};
use crate::harness::{Lab, for_both, outside, skip, wait_for};
use std::net::{IpAddr, TcpListener, UdpSocket};

/// An address of this host that is no loopback address; nothing is sent to find it.
pub(super) fn own_address() -> Option<IpAddr> {
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
        refused_as_a_whole(lab, "a.test", 5432);
        lab.skep(["net", "deny", "s", &rule]).run().ok();
        assert!(!raw(lab, "127.0.0.1", origin.port()).text().contains("the-origin"));
    });
}

/// A rule that was refused is in force nowhere: not in the policy, and not in the proxy.
#[track_caller]
fn refused_as_a_whole(lab: &Lab, host: &str, port: u16) {
    let rule = format!("{host}:{port}");
    let policy = lab.sandbox("s")["network"]["allow"].to_string();
    assert!(!policy.contains(&rule), "{policy}");
    let probes = lab.skep(["net", "test", "s", &rule, "--json"]).run().exits(1).json();
    assert_eq!(probes[0]["allowed"], false, "the proxy has a rule that was refused: {probes}");
}

/// A server at an address of this host that is no loopback address; says its text and ends.
fn at_own_address(text: &'static str) -> Option<std::net::SocketAddr> {
    let listener = TcpListener::bind((own_address()?, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut connection, text.as_bytes());
        }
    });
    Some(address)
}

/// The same promise as with `nft`, for every port.
#[test]
fn net_2_without_nft_an_interface_leads_everything_to_the_proxy() {
    for_both(|lab| {
        let (Some(one), Some(two)) = (at_own_address("the-one"), at_own_address("the-two")) else {
            return skip("this host has no address");
        };
        let origin = Origin::start("the-origin");
        let server = NameServer::start("8.8.8.8".parse().unwrap());
        let (settings, echo) = (settings(lab, &server), echo());
        let rule = format!("127.0.0.1:{}", origin.port());
        let (to_one, to_two) = (format!("tcp://{one}"), format!("tcp://{two}"));
        let line = ["create", "s", "--allow", &rule, "--allow", &to_one, "--allow", "yes.example"];
        let echo_rule = echo.to_string();
        let line =
            [&line[..], &["--allow", &echo_rule, "--allow", "tcp://[2606:4700::1]:*"]].concat();
        let call = match lab.skep_with_tun(&line) {
            Ok(call) => call,
            Err(reason) => return skip(&reason),
        };
        call.env("XDG_CONFIG_HOME", &settings).run().ok();
        let report = lab.sandbox("s")["enforcement"]["network"].clone();
        assert_eq!(report["enforced"], true, "{report}");
        let how = report["how"].as_str().unwrap();
        assert!(how.contains("TUN") && how.contains("not installed"), "{how}");

        // What is allowed: a loopback literal, an address at any port, a megabyte each way.
        assert!(raw(lab, "127.0.0.1", origin.port()).ok().text().contains("the-origin"));
        let reach = |to: std::net::SocketAddr| raw(lab, &to.ip().to_string(), to.port());
        assert!(reach(one).ok().text().contains("the-one"));
        let port = echo.port().to_string();
        let back = lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", ECHO, &port]).run().ok();
        assert_eq!(back.text(), "same");
        // What is not: refused by the proxy, whatever the port, with a line in the log.
        assert!(!reach(two).text().contains("the-two"));
        assert!(raw(lab, "93.184.216.34", 80).text().contains(" 403"));
        assert!(raw(lab, "169.254.169.254", 80).text().contains(" 403"));
        assert!(raw(lab, "203.0.113.9", 22).text().contains(" 403"));
        let six = "curl -g -sS -m 20 --noproxy '*' 'http://[2001:db8::9]:8022/'";
        assert!(lab.exec_script("s", six).run().text().contains("\"error\":\"reserved\""));
        assert_ne!(raw(lab, "127.0.0.1", free_port()).code(), 0);
        let log = lab.skep(["net", "s", "--json", "--denied"]).run().ok().json_lines();
        for (host, port) in [("203.0.113.9", 22), ("[2001:db8::9]", 8022), ("169.254.169.254", 80)]
        {
            let found = log.iter().find(|line| line["host"] == host && line["port"] == port);
            let found = found.unwrap_or_else(|| panic!("no line for {host}: {log:?}"));
            assert!(found["exec"].is_string(), "whose it was is known: {found}");
        }
        nothing_else_leaves(lab);
        names_by_tun(lab, &server);

        // Rules change while it runs; a new loopback literal is refused as a whole.
        lab.skep(["net", "allow", "s", &to_two]).run().ok();
        assert!(reach(two).ok().text().contains("the-two"));
        lab.skep(["net", "deny", "s", &to_two]).run().ok();
        assert!(!reach(two).text().contains("the-two"));
        let port = free_port();
        let other = lab.skep(["net", "allow", "s", &format!("127.0.0.1:{port}")]).run();
        assert!(other.errors().contains("stop and start"), "{}", other.describe());
        refused_as_a_whole(lab, "127.0.0.1", port);

        // The process comes back, and has the interface again.
        let egress = || {
            let all = outside::processes_of(&lab.root).into_iter();
            all.into_iter().find(|one| one.command.contains("__egress")).map(|one| one.pid)
        };
        let before = egress().unwrap();
        let pid = rustix::process::Pid::from_raw(before).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        wait_for("a new egress process", 20, || egress().filter(|pid| *pid != before));
        assert!(reach(one).ok().text().contains("the-one"));
    });
}

/// Datagrams to an address of this host do not arrive there; the control does.
fn nothing_else_leaves(lab: &Lab) {
    let socket = UdpSocket::bind((own_address().unwrap(), 0)).unwrap();
    let to = socket.local_addr().unwrap();
    socket.set_nonblocking(true).unwrap();
    let script = "import socket,sys
for family,kind,protocol in ((2,socket.SOCK_DGRAM,0),(2,socket.SOCK_RAW,255),(2,socket.SOCK_DGRAM,1),(2,socket.SOCK_STREAM,132)):
    try: socket.socket(family,kind,protocol).sendto(b'x',(sys.argv[1],int(sys.argv[2])))
    except OSError: pass";
    let (host, port) = (to.ip().to_string(), to.port().to_string());
    lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", script, &host, &port]).run().ok();
    let mut heard = [0; 8];
    assert!(socket.recv(&mut heard).is_err(), "a datagram got out");
    UdpSocket::bind((to.ip(), 0)).unwrap().send_to(b"x", to).unwrap();
    wait_for("the control", 10, || socket.recv(&mut heard).ok());
}

fn names_by_tun(lab: &Lab, server: &NameServer) {
    let ask =
        |name: &str| lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", ASK, name]).run().ok();
    let denied = ask("secret-data.no.example");
    assert!(denied.text().contains("own resolver rcode 3"), "{}", denied.describe());
    assert_eq!(server.asked(), Vec::<String>::new(), "asked upstream");
    let allowed = ask("yes.example");
    for good in ["libc 8.8.8.8", "own resolver rcode 0", "tcp rcode 0"] {
        assert!(allowed.text().contains(good), "{}", allowed.describe());
    }
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
