//! The way out where the kernel has no NAT: an interface that everything is routed to, whose other end the
//! egress process has.
//!
//! The interface is in the sandbox's namespace, and its other end is a descriptor: still no packet has a way out,
//! but what the process reads. It leads every connection to a listener in the namespace, as NAT would, and answers
//! questions for names; what else is sent there ends there. Unlike NAT it never sees the loopback, so loopback
//! addresses that a rule names have listeners of their own, and a new one needs a new start.

use super::inside::{Doors, listen};
use super::place::Place;
use super::process::host_loopback;
use super::{OWN_ADDRESSES, unredirected};
use crate::failure::Failure;
use rustix::fd::OwnedFd;
use skep_sys::route::{Family, add_default_route_by, remove_default_route};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

/// The interface's name inside.
pub const NAME: &str = "skep0";
/// Large, because every packet costs a call: a packet of TCP is as long as it may be.
const MTU: u16 = 32 << 10;

/// The interface, and what listens.
#[derive(Debug)]
pub struct Tun {
    device: OwnedFd,
    /// Doors first, one for each family there is; then one for each loopback address.
    sockets: Vec<OwnedFd>,
    loopback: BTreeSet<SocketAddr>,
    reason: String,
}

impl Tun {
    /// Makes it in the sandbox's network. `reason` connections cannot be redirected.
    pub fn open(
        place: &Place,
        doors: &Doors,
        rules: &[String],
        reason: &str,
    ) -> Result<Self, Failure> {
        let mut loopback: BTreeSet<SocketAddr> = host_loopback(rules)?.into_iter().collect();
        if doors.tcp6.is_none() {
            loopback.retain(SocketAddr::is_ipv4);
        }
        let families = if doors.tcp6.is_some() { 2 } else { 1 };
        let make = || {
            let (device, index) = skep_sys::tun::open(NAME, MTU)?;
            for family in [Family::V4, Family::V6].into_iter().take(families) {
                remove_default_route(family)?;
                add_default_route_by(family, index)?;
            }
            let own = OWN_ADDRESSES.iter().take(families).map(|own| (*own, 0));
            let literals = loopback.iter().map(|literal| (literal.ip(), literal.port()));
            let sockets: io::Result<Vec<OwnedFd>> =
                own.chain(literals).map(|(address, port)| listen(address, port)).collect();
            let mut all = sockets?;
            all.insert(0, device);
            Ok(all)
        };
        let mut sockets = unredirected::made_at(place, make)?;
        if sockets.is_empty() {
            return Err(Failure::invalid("the interface was not passed on"));
        }
        let device = sockets.remove(0);
        Ok(Self { device, sockets, loopback, reason: reason.to_owned() })
    }

    /// Its other end.
    pub fn device(&self) -> &OwnedFd {
        &self.device
    }

    /// The listeners.
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// How the report calls it.
    pub fn how(&self) -> String {
        format!(
            "network namespace with loopback and an interface that leads to skep's proxy (TUN; no redirect: {})",
            self.reason
        )
    }

    /// Whether other rules need no other listeners.
    pub fn refuse_other_loopback(&self, rules: &[String]) -> Result<(), Failure> {
        let wanted = host_loopback(rules)?;
        let Some(other) = wanted.iter().find(|literal| !self.loopback.contains(literal)) else {
            return Ok(());
        };
        Err(Failure::missing(
            format!("the loopback address {other} of a new rule"),
            format!(
                "connections cannot be redirected here ({}), and it was not named when the sandbox was started",
                self.reason
            ),
            "stop and start the sandbox, or install nftables",
        ))
    }
}
