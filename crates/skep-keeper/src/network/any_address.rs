//! The way out where connections can neither be redirected nor read from an interface: every address is the
//! sandbox's own.
//!
//! A *local* default route has the kernel deliver whatever is sent to any address to sockets of the
//! namespace itself. A listener on all addresses of a port then takes every connection to that
//! port, and the address it finds itself at is the one that was meant. It needs neither `nft` nor NAT nor
//! a device, and costs what NAT does not: only the ports that rules name lead to the proxy (others are refused at
//! once, without a line in the log), a server inside cannot use them, and names are answered at
//! `127.0.0.1` only. A rule for all ports is refused.

use super::NOWHERE;
use super::inside::{DNS_PORT, Doors, listen};
use super::place::Place;
use super::unredirected::made_at;
use crate::failure::Failure;
use rustix::fd::OwnedFd;
use skep_policy::egress::{Ports, RuleSet, Target};
use skep_sys::route::{Family, add_local_default_route};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Listeners for every address, and why they are needed.
#[derive(Debug)]
pub struct AnyAddress {
    /// Those for the probe first, one for each family there is.
    sockets: Vec<OwnedFd>,
    open: BTreeSet<SocketAddr>,
    reason: String,
}

impl AnyAddress {
    /// Opens them for `rules` in the sandbox's network. `reason` there is nothing better.
    pub fn open(
        place: &Place,
        doors: &Doors,
        rules: &[String],
        reason: String,
    ) -> Result<Self, Failure> {
        let open = wanted(rules, doors, &reason)?;
        let probes = NOWHERE.iter().filter(|to| to.is_ipv4() || doors.tcp6.is_some());
        let probes = probes.map(|to| SocketAddr::new(everywhere(to.ip()), to.port()));
        let all: Vec<SocketAddr> = probes.chain(open.iter().copied()).collect();
        Ok(Self { sockets: made_at(place, || listen_to(&all))?, open, reason })
    }

    /// The listeners.
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// How the report calls it.
    pub fn how(&self) -> String {
        let ports: BTreeSet<u16> = self.open.iter().map(SocketAddr::port).collect();
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        format!(
            "network namespace with loopback only, where every address is its own; ports {} lead to skep's proxy, others nowhere (no redirect: {})",
            ports.join(", "),
            self.reason
        )
    }

    /// Whether other rules need no other listeners.
    pub fn refuse_other_ports(&self, rules: &[String], doors: &Doors) -> Result<(), Failure> {
        let wanted = wanted(rules, doors, &self.reason)?;
        let Some(other) = wanted.difference(&self.open).next() else { return Ok(()) };
        Err(Failure::missing(
            format!("port {} of a new rule", other.port()),
            format!(
                "connections cannot be redirected here ({}), and it was not named when the sandbox was started",
                self.reason
            ),
            "stop and start the sandbox, or install nftables",
        ))
    }
}

/// All addresses of a family.
fn everywhere(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Where to listen: a loopback address that a rule names only there, everything else everywhere. The
/// ports of the web always, so that denials explain themselves.
fn wanted(rules: &[String], doors: &Doors, reason: &str) -> Result<BTreeSet<SocketAddr>, Failure> {
    let rules = RuleSet::parse(rules).map_err(|error| Failure::invalid(error.to_string()))?;
    let mut ports = BTreeSet::from([80, 443]);
    let mut open = BTreeSet::new();
    for labelled in rules.rules() {
        match (labelled.rule.ports, &labelled.rule.target) {
            (Ports::Web, _) => {}
            (Ports::One(port), Target::Address(address)) if address.is_loopback() => {
                open.insert(SocketAddr::new(*address, port));
            }
            (Ports::One(port), _) => drop(ports.insert(port)),
            (Ports::All, _) => {
                return Err(Failure::missing(
                    format!("the rule `{}` for all ports", labelled.label),
                    format!(
                        "without a redirect ({reason}) only ports that rules name can be reached"
                    ),
                    "install nftables, or name the ports",
                ));
            }
        }
    }
    // Names are asked for here only.
    ports.remove(&DNS_PORT);
    for port in ports {
        open.retain(|address| address.port() != port);
        open.insert(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
        if doors.tcp6.is_some() {
            open.insert(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
        }
    }
    if doors.tcp6.is_none() {
        open.retain(SocketAddr::is_ipv4);
    }
    Ok(open)
}

fn listen_to(addresses: &[SocketAddr]) -> io::Result<Vec<OwnedFd>> {
    match add_local_default_route(Family::V4) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Init made this one, where there is IPv6; an interface that could not be had may have cost it.
    let _ = add_local_default_route(Family::V6);
    addresses.iter().map(|address| listen(address.ip(), address.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(rules: &[&str]) -> Result<Vec<String>, Failure> {
        let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let doors = Doors { tcp4: 1, tcp6: None, proxy: 2 };
        Ok(wanted(&rules, &doors, "x")?.iter().map(SocketAddr::to_string).collect())
    }

    #[test]
    fn named_ports_everywhere_and_loopback_only_where_it_is_meant() {
        let found = ports(&["a.test", "db.test:5432", "127.0.0.1:3000"]).unwrap();
        assert_eq!(found, ["0.0.0.0:80", "0.0.0.0:443", "0.0.0.0:5432", "127.0.0.1:3000"]);
        assert_eq!(ports(&["127.0.0.1:5432", "a.test:5432", "a.test:53"]).unwrap().len(), 3);
        assert!(ports(&["tcp://a.test:*"]).is_err());
    }
}
