//! Init's part: the interface, its routes, and the sockets whose other end is outside.

use super::OWN_ADDRESSES;
use super::place::Place;
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use skep_sys::process::{Namespaces, clone_with};
use skep_sys::route::{Family, add_default_route, add_loopback_address};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where names are asked for.
pub const DNS_PORT: u16 = 53;
/// Connections that may wait to be accepted; the kernel cuts it to what the host allows.
const BACKLOG: i32 = 1024;

/// The sockets' ports in the namespace. The sockets themselves travel beside it, in this order:
/// TCP, proxy, DNS over UDP, DNS over TCP; then, where there is IPv6, TCP and both of DNS again; at
/// last one to ask the kernel about sockets in the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doors {
    /// Takes every IPv4 connection.
    pub tcp4: u16,
    /// Takes every IPv6 connection; `None` where the host has no IPv6.
    pub tcp6: Option<u16>,
    /// For programs that know proxies.
    pub proxy: u16,
}

/// Gives `lo` (which is up) addresses and routes, and opens the doors.
pub fn open_doors() -> Result<(Doors, Vec<OwnedFd>), Failure> {
    let [four, six] = OWN_ADDRESSES;
    let routes = || "lead all routes to the loopback".to_owned();
    add_loopback_address(four).and_then(|()| add_default_route(Family::V4)).step(routes)?;
    // A host may have IPv6 switched off; then there is none inside, and nothing to redirect.
    let has_six = add_loopback_address(six).and_then(|()| add_default_route(Family::V6)).is_ok();
    let step = || "open the sandbox's doors".to_owned();
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let tcp = listen(loopback, 0).step(step)?;
    let proxy = listen(loopback, 0).step(step)?;
    let mut doors =
        Doors { tcp4: port_of(&tcp).step(step)?, tcp6: None, proxy: port_of(&proxy).step(step)? };
    let mut sockets = vec![tcp, proxy];
    sockets.push(datagrams(loopback, DNS_PORT).step(step)?);
    sockets.push(listen(loopback, DNS_PORT).step(step)?);
    if has_six {
        let loopback = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let tcp = listen(loopback, 0).step(step)?;
        doors.tcp6 = Some(port_of(&tcp).step(step)?);
        sockets.push(tcp);
        sockets.push(datagrams(loopback, DNS_PORT).step(step)?);
        sockets.push(listen(loopback, DNS_PORT).step(step)?);
    }
    sockets.push(skep_sys::socket_diag::open().step(step)?);
    Ok((doors, sockets))
}

/// The same in a network that somebody else has made, by a child that goes there.
pub fn open_doors_at(place: &Place) -> Result<(Doors, Vec<OwnedFd>), Failure> {
    let step = || "open doors in the container's network".to_owned();
    let (ours, theirs) = Channel::pair().step(step)?;
    let child = clone_with(Namespaces::NONE, || {
        let opened = place.enter().and_then(|()| skep_sys::network::loopback_up());
        let opened = opened.step(|| "enter the container's network".into());
        let sent = match opened.and_then(|()| open_doors()) {
            Ok((doors, sockets)) => {
                let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                theirs.send(&Ok::<_, Failure>(doors), &descriptors)
            }
            Err(failure) => theirs.send(&Err::<Doors, _>(failure), &[]),
        };
        i32::from(sent.is_err())
    })
    .step(step)?;
    drop(theirs);
    let answer = ours.receive::<Result<Doors, Failure>>().step(step);
    skep_sys::process::wait_for(&child).step(step)?;
    let (doors, sockets) = answer?;
    Ok((doors?, sockets))
}

/// A listener.
pub fn listen(address: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let socket = bound(address, port, SocketType::STREAM)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn datagrams(address: IpAddr, port: u16) -> io::Result<OwnedFd> {
    bound(address, port, SocketType::DGRAM)
}

fn bound(address: IpAddr, port: u16, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &SocketAddr::new(address, port))?;
    Ok(socket)
}

fn port_of(socket: &OwnedFd) -> io::Result<u16> {
    let address = SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    Ok(address.port())
}
