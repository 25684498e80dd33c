//! Addresses of the loopback interface, and routes, by netlink.

use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;
use std::net::IpAddr;

/// `lo` is the first interface of every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Of a request that makes something which must not be there yet.
const NEW: libc::c_int = libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// A family of addresses, for routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }
}

/// Gives `lo` one more address, for itself alone.
pub fn add_loopback_address(address: IpAddr) -> io::Result<()> {
    let (family, length, bytes) = match address {
        IpAddr::V4(address) => (Family::V4, 32, address.octets().to_vec()),
        IpAddr::V6(address) => (Family::V6, 128, address.octets().to_vec()),
    };
    // struct ifaddrmsg: family, prefix length, flags, scope, index. Nobody else can have the
    // address, so it need not be looked for (IFA_F_NODAD) before it may be used.
    let mut body = vec![family.number(), length, libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE];
    body.extend(LOOPBACK_INDEX.to_ne_bytes());
    attribute(&mut body, libc::IFA_LOCAL, &bytes);
    attribute(&mut body, libc::IFA_ADDRESS, &bytes);
    ask(libc::RTM_NEWADDR, NEW, &body)
}

/// Sends everything of a family that has no other way to `lo`.
///
/// For IPv6 the route says that all addresses are our own: the kernel treats any other route on
/// `lo` as unreachable (`ip6_route_info_create` in `net/ipv6/route.c`).
pub fn add_default_route(family: Family) -> io::Result<()> {
    match family {
        Family::V4 => add_default_route_by(family, LOOPBACK_INDEX),
        Family::V6 => add_local_default_route(family),
    }
}

/// Sends everything of a family that has no other way to an interface.
pub fn add_default_route_by(family: Family, interface: u32) -> io::Result<()> {
    ask(libc::RTM_NEWROUTE, NEW, &default_route(family, unicast(family), interface))
}

/// Takes back what [`add_default_route`] did.
pub fn remove_default_route(family: Family) -> io::Result<()> {
    let kind = match family {
        Family::V4 => unicast(family),
        Family::V6 => local(family),
    };
    ask(libc::RTM_DELROUTE, 0, &default_route(family, kind, LOOPBACK_INDEX))
}

/// Makes every address of a family the namespace's own: what is sent to any of them comes to its
/// sockets.
pub fn add_local_default_route(family: Family) -> io::Result<()> {
    ask(libc::RTM_NEWROUTE, NEW, &default_route(family, local(family), LOOPBACK_INDEX))
}

/// Table, scope and type of a route by an interface.
fn unicast(family: Family) -> (u8, u8, u8) {
    let scope = match family {
        Family::V4 => libc::RT_SCOPE_LINK,
        Family::V6 => libc::RT_SCOPE_UNIVERSE,
    };
    (libc::RT_TABLE_MAIN, scope, libc::RTN_UNICAST)
}

/// The same of a route to ourselves.
fn local(family: Family) -> (u8, u8, u8) {
    let scope = match family {
        Family::V4 => libc::RT_SCOPE_HOST,
        Family::V6 => libc::RT_SCOPE_UNIVERSE,
    };
    (libc::RT_TABLE_LOCAL, scope, libc::RTN_LOCAL)
}

fn default_route(family: Family, (table, scope, kind): (u8, u8, u8), interface: u32) -> Vec<u8> {
    // struct rtmsg: family, two prefix lengths, tos, table, protocol, scope, type, flags.
    let mut body = vec![family.number(), 0, 0, 0, table, libc::RTPROT_BOOT, scope, kind];
    body.extend(0u32.to_ne_bytes());
    attribute(&mut body, libc::RTA_OIF, &interface.to_ne_bytes());
    body
}

/// Appends an attribute, padded to four bytes as netlink wants it.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((value.len() as u16 + 4).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Sends one request to the kernel's routing and waits for its answer.
fn ask(kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags;
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend(1u32.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(body);
    let socket = routing_socket()?;
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 4096];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    verdict(&answer[..length])
}

fn routing_socket() -> io::Result<OwnedFd> {
    // Routing is netlink's protocol 0, so none has to be named.
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// An answer is a header, then the error as a negative number, 0 for none.
fn verdict(answer: &[u8]) -> io::Result<()> {
    let number = |at: usize, length: usize| answer.get(at..at + length);
    let is_verdict = number(4, 2) == Some(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
    let errno = number(16, 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (is_verdict, errno) {
        (true, Some(0)) => Ok(()),
        (true, Some(errno)) => Err(io::Error::from_raw_os_error(-errno)),
        _ => Err(io::Error::other("the kernel's routing gave an answer that is none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_verdicts_read() {
        let mut body = Vec::new();
        attribute(&mut body, 7, b"abcde");
        assert_eq!(body, [9, 0, 7, 0, b'a', b'b', b'c', b'd', b'e', 0, 0, 0]);
        let answer = |errno: i32| {
            let mut bytes = [36u32.to_ne_bytes(), [2, 0, 0, 0], [0; 4], [0; 4]].concat();
            bytes.extend(errno.to_ne_bytes());
            bytes
        };
        assert!(verdict(&answer(0)).is_ok());
        assert_eq!(verdict(&answer(-17)).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert!(verdict(&answer(0)[..18]).is_err() && verdict(&[]).is_err());
    }
}
