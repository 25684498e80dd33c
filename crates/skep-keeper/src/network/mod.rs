//! The network of a sandbox that may reach something (`--net allow`).
//!
//! Its network namespace has `lo` and nothing else, so no packet can leave it, whatever happens in
//! it. All routes lead to `lo`, and rules in the namespace turn every TCP connection and every name
//! query to sockets that init makes there and whose other end a process outside holds: the egress
//! process, which decides and dials. A program that ignores proxy variables is covered too.
//!
//! - [`unredirected`] does without the rules: by an interface ([`tun`]), or for the ports that were named
//!   ([`any_address`]).
//! - [`inside`] is what init does in the namespace: addresses, routes, sockets.
//! - [`config`] and [`process`] are the egress process, as the keeper sees it.
//! - [`knock`] tries from inside whether a host can be reached.
//! - [`place`] is the namespace, for those outside who have something to do in it.
//! - [`publish`] lets the host in, through ports that were named.
//! - [`rules`] is what the keeper has `nft` do there.

pub mod any_address;
pub mod config;
pub mod inside;
pub mod knock;
pub mod place;
pub mod process;
pub mod publish;
pub mod rules;
pub mod tun;
pub mod unredirected;

use crate::failure::Failure;
use crate::probe;
use process::Egress;
use skep_types::{EnforcementReport, Layer};
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses of the sandbox that are no loopback addresses: resolvers ask for names of a family
/// only where the host has such an address (`AI_ADDRCONFIG`). The first is the dummy address of
/// RFC 7600, the second lies in a prefix of our own of the private range (RFC 4193), so that IPv4
/// comes first where both would do (RFC 6724).
pub const OWN_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8)),
    IpAddr::V6(Ipv6Addr::new(0xfd73, 0x6b65, 0x7000, 0, 0, 0, 0, 1)),
];

/// Addresses where nobody is, reserved for documentation (RFC 5737, RFC 3849): connecting there is
/// how it is found out that connections are redirected.
pub const NOWHERE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

/// Why connections cannot be redirected on this host, if so: the reason and the remedy. Found by
/// doing it in a namespace made for that; the caller must be single threaded.
pub fn rules_unavailable() -> Option<(String, String)> {
    match rules::unavailable()? {
        Failure::Missing { reason, remedy, .. } => Some((reason, remedy)),
        other => {
            let error = skep_provider::ProviderError::from(other);
            Some((skep_types::chain(&error), "see the rows above for what this host lacks".into()))
        }
    }
}

/// After the probe inside: if the doors have heard it, somebody shall be behind them.
pub fn serve(egress: &mut Egress, report: &mut EnforcementReport) -> Result<(), Failure> {
    if !egress.heard_the_probe()
        && let Some(network) = report.0.get_mut(&Layer::Network)
    {
        network.enforced = false;
        network.reason = Some("a connection made inside did not reach skep's proxy".into());
        return Ok(());
    }
    if let (Some(how), Some(network)) = (egress.without_redirect(), report.0.get(&Layer::Network))
        && network.reason.as_deref().is_none_or(|reason| reason == probe::DATAGRAM_PASSES)
    {
        // A datagram can be sent, to the sandbox itself or to us: there is nobody else.
        report.on(Layer::Network, how);
    }
    egress.start()
}

/// What programs inside find in `/etc/resolv.conf`.
pub const RESOLV_CONF: &str = "nameserver 127.0.0.1\noptions timeout:10 attempts:1\n";

/// What they find where there are no names to be asked for.
pub const NO_RESOLV_CONF: &str = "# this sandbox has no network\n";

/// What programs inside find in `/etc/hosts`: themselves, and nothing of the host.
pub fn hosts_file(name: &str) -> String {
    format!("127.0.0.1 localhost {name}\n::1 localhost ip6-localhost ip6-loopback\n")
}

/// How often something in the network of this process was to be sent where no route leads, or to a
/// resolver that is not there (without one configured, names are asked of this host).
pub fn unreached(pid: rustix::process::Pid) -> u64 {
    let net = format!("/proc/{}/net", pid.as_raw_nonzero());
    let read = |name: &str| read_table(&format!("{net}/{name}")).unwrap_or_default();
    let six = read("snmp6");
    let six = six.lines().find_map(|line| line.strip_prefix("Ip6OutNoRoutes"));
    unreached_in(&read("snmp")) + six.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// A file of the kernel's, which has no size to ask for: whoever does not bring room for all of it asks eight times.
fn read_table(path: &str) -> std::io::Result<String> {
    let mut text = String::with_capacity(8 << 10);
    std::fs::File::open(path)?.take(1 << 20).read_to_string(&mut text)?;
    Ok(text)
}

/// In `/proc/net/snmp`: for each protocol a line of names and a line of numbers.
fn unreached_in(table: &str) -> u64 {
    let lines: Vec<&str> = table.lines().collect();
    let counter = |wanted: &str| -> u64 {
        let row = |pair: &[&str]| {
            let at = pair.first()?.split(' ').position(|name| name == wanted)?;
            pair.get(1)?.split(' ').nth(at)?.parse().ok()
        };
        lines.chunks(2).find_map(row).unwrap_or(0)
    };
    counter("OutNoRoutes") + counter("NoPorts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let table = "Ip: Forwarding OutDiscards OutNoRoutes\nIp: 2 0 5\n\
            Udp: InDatagrams NoPorts InErrors\nUdp: 9 2 7\n";
        assert_eq!(unreached_in(table), 7);
        assert_eq!(unreached_in(""), 0);
        assert_eq!(unreached_in("Ip: OutNoRoutes\n"), 0);
    }
}
