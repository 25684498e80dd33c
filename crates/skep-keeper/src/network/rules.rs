//! The rules in the sandbox's network namespace, and the program that puts them there.
//!
//! They are no fence: the namespace has no way out, with or without them. They only lead what
//! programs do to the doors, so a program that could change them would cut itself off.

use super::OWN_ADDRESSES;
use super::inside::{DNS_PORT, Doors};
use super::place::Place;
use crate::failure::{Failure, Step};
use rustix::fd::AsFd;
use rustix::fs::MemfdFlags;
use rustix::thread::{CapabilitySet, CapabilitySets};
use skep_sys::process::{Namespaces, clone_with, wait_for};
use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Where the program may be: never looked for in `PATH`, never in a project.
const PROGRAMS: &[&str] = &["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"];

/// The program, if it is installed.
pub fn program() -> Option<&'static str> {
    PROGRAMS.iter().copied().find(|path| Path::new(path).is_file())
}

/// All rules, as `nft` reads them.
///
/// 1. Names are asked here, wherever a program sends its queries.
/// 2. Loopback addresses that were allowed literally mean the host's.
/// 3. Other loopback addresses, and the sandbox's own, mean the sandbox.
/// 4. Every other TCP connection goes to a door.
/// 5. What is left (other datagrams, ICMP, raw packets) is dropped; the sender sees `EPERM`.
pub fn ruleset(doors: &Doors, host_loopback: &[SocketAddr]) -> String {
    let [four, six] = OWN_ADDRESSES;
    let local4 = format!("ip daddr {{ 127.0.0.0/8, {four} }}");
    let local6 = format!("ip6 daddr {{ ::1, {six} }}");
    let mut lines = vec![
        "table inet skep {".to_owned(),
        set("host4", "ipv4_addr", host_loopback.iter().filter(|address| address.is_ipv4())),
        set("host6", "ipv6_addr", host_loopback.iter().filter(|address| address.is_ipv6())),
        "chain outgoing { type nat hook output priority -100; policy accept;".to_owned(),
        format!(
            "meta nfproto ipv4 meta l4proto {{ tcp, udp }} th dport 53 redirect to :{DNS_PORT}"
        ),
        format!("ip daddr . tcp dport @host4 redirect to :{}", doors.tcp4),
        format!("{local4} return"),
        format!("meta nfproto ipv4 meta l4proto tcp redirect to :{}", doors.tcp4),
    ];
    if let Some(tcp6) = doors.tcp6 {
        lines.extend([
            format!(
                "meta nfproto ipv6 meta l4proto {{ tcp, udp }} th dport 53 redirect to :{DNS_PORT}"
            ),
            format!("ip6 daddr . tcp dport @host6 redirect to :{tcp6}"),
            format!("{local6} return"),
            format!("meta nfproto ipv6 meta l4proto tcp redirect to :{tcp6}"),
        ]);
    }
    lines.extend([
        "}".to_owned(),
        "chain leaving { type filter hook output priority 0; policy drop;".to_owned(),
        format!("{local4} accept"),
        format!("{local6} accept"),
        "ct state established,related accept".to_owned(),
        "}".to_owned(),
        "}".to_owned(),
    ]);
    lines.join("\n") + "\n"
}

/// The step from one set of allowed loopback literals to another.
pub fn changed(host_loopback: &[SocketAddr]) -> String {
    let mut text = "flush set inet skep host4\nflush set inet skep host6\n".to_owned();
    for address in host_loopback {
        let set = if address.is_ipv4() { "host4" } else { "host6" };
        text.push_str(&format!("add element inet skep {set} {{ {} }}\n", element(address)));
    }
    text
}

fn set<'a>(name: &str, kind: &str, members: impl Iterator<Item = &'a SocketAddr>) -> String {
    let members: Vec<String> = members.map(element).collect();
    let elements = match members.is_empty() {
        true => String::new(),
        false => format!(" elements = {{ {} }};", members.join(", ")),
    };
    format!("set {name} {{ type {kind} . inet_service;{elements} }}")
}

fn element(address: &SocketAddr) -> String {
    let ip: IpAddr = address.ip();
    format!("{ip} . {}", address.port())
}

/// Has `nft` take in `text` in the sandbox's namespace.
pub fn load(place: &Place, text: &str) -> Result<(), Failure> {
    let step = || "redirect the sandbox's connections".to_owned();
    let program = program().ok_or_else(not_installed)?;
    let mut input =
        File::from(rustix::fs::memfd_create("skep-rules", MemfdFlags::CLOEXEC).step(step)?);
    input.write_all(text.as_bytes()).and_then(|()| input.rewind()).step(step)?;
    let mut said =
        File::from(rustix::fs::memfd_create("skep-nft", MemfdFlags::CLOEXEC).step(step)?);
    let child = clone_with(Namespaces::NONE, || {
        match become_nft(place, program, &input, &said) {
            Ok(never) => match never {},
            Err(error) => {
                let _ = (&said).write_all(skep_types::chain(&error).as_bytes());
            }
        }
        1
    })
    .step(step)?;
    if wait_for(&child).step(step)? == 0 {
        return Ok(());
    }
    let mut reason = String::new();
    let _ = said.rewind().and_then(|()| (&said).take(4096).read_to_string(&mut reason));
    let reason = reason.lines().find(|line| !line.trim().is_empty()).unwrap_or("it ended").trim();
    Err(Failure::missing(
        "`--net allow`",
        format!("`{program}` could not set the rules: {reason}"),
        "the kernel needs nf_tables with NAT: `modprobe -a nf_tables nft_chain_nat nft_redir`",
    ))
}

/// Why there is no `--net allow` without the program.
pub fn not_installed() -> Failure {
    Failure::missing(
        "`--net allow`",
        "the program `nft` is not installed",
        "install the package `nftables`",
    )
}

/// Why rules cannot be set on this host, found by setting some in a namespace made for it.
pub fn unavailable() -> Option<Failure> {
    let step = || "try rules in a network namespace".to_owned();
    let attempt = || -> Result<(), Failure> {
        let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(step)?;
        let namespaces = Namespaces::USER.with(Namespaces::NETWORK);
        let child = clone_with(namespaces, || {
            // Until the other end is closed, by whatever happens to who holds it.
            let closed = skep_sys::process::close_all_but(&[wait.as_fd()]);
            i32::from(closed.is_err() || rustix::io::read(&wait, &mut [0]).is_err())
        })
        .step(step)?;
        let doors = Doors { tcp4: 1, tcp6: Some(1), proxy: 1 };
        let place = Place::of(child.pid.as_raw_nonzero().get()).step(step);
        let loaded = place.and_then(|place| load(&place, &ruleset(&doors, &[])));
        drop(go);
        let _ = wait_for(&child);
        loaded
    };
    attempt().err()
}

/// With all rights in the sandbox's namespaces and none elsewhere.
fn become_nft(place: &Place, program: &str, input: &File, said: &File) -> io::Result<Infallible> {
    place.enter()?;
    keep_network_rights()?;
    rustix::stdio::dup2_stdin(input)?;
    rustix::stdio::dup2_stdout(said)?;
    rustix::stdio::dup2_stderr(said)?;
    skep_sys::process::close_on_exec_from(3)?;
    let words = [program, "-f", "-"].map(CString::new);
    let [program, file, stdin] = words;
    let program = program?;
    let arguments = [program.clone(), file?, stdin?];
    Err(skep_sys::process::execve(&program, &arguments, &[]))
}

/// Rights over the sandbox's network, and no others; an exec keeps them where they are ambient.
fn keep_network_rights() -> io::Result<()> {
    let kept = CapabilitySet::NET_ADMIN;
    skep_confine::privileges::drop_all_but(kept).map_err(io::Error::other)?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::configure_capability_in_ambient_set(kept, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_first_then_the_hosts_loopback_then_our_own() {
        let doors = Doors { tcp4: 4001, tcp6: Some(4002), proxy: 4003 };
        let literals = ["127.0.0.1:8080".parse().unwrap(), "[::1]:9000".parse().unwrap()];
        let text = ruleset(&doors, &literals);
        let at = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle}: {text}"));
        assert!(at("dport 53 redirect") < at("@host4 redirect to :4001"));
        assert!(at("@host4 redirect") < at("127.0.0.0/8, 192.0.0.8 } return"));
        assert!(at("192.0.0.8 } return") < at("ipv4 meta l4proto tcp redirect to :4001"));
        assert!(text.contains("elements = { 127.0.0.1 . 8080 };"));
        assert!(text.contains("elements = { ::1 . 9000 };"));
        assert!(text.contains("ipv6 meta l4proto tcp redirect to :4002"));
        assert!(at("policy drop") > at("policy accept"));
    }

    #[test]
    fn without_ipv6_nothing_of_it_is_redirected() {
        let doors = Doors { tcp4: 1, tcp6: None, proxy: 3 };
        let text = ruleset(&doors, &[]);
        assert!(!text.contains("nfproto ipv6") && !text.contains("elements"));
    }

    #[test]
    fn a_change_replaces_all_literals() {
        let text = changed(&["127.0.0.1:80".parse().unwrap()]);
        assert!(text.starts_with("flush set inet skep host4\nflush set inet skep host6\n"));
        assert!(text.ends_with("add element inet skep host4 { 127.0.0.1 . 80 }\n"));
    }
}
