//! Which socket has given addresses, by the kernel's socket diagnosis (`sock_diag(7)`).

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h, which the libc crate does not have.
const BY_FAMILY: u16 = 20;
/// Where the inode stands in an answer: after the header and most of `struct inet_diag_msg`.
const INODE_AT: usize = 84;

/// What a socket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Opens a way to ask the kernel about sockets of the network namespace this process is in. It
/// stays good for that namespace wherever the descriptor goes.
pub fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG))?)
}

/// The inode of the socket with these addresses; `None` if there is none, or nobody holds it.
pub fn inode_of(
    asked: impl AsFd,
    transport: Transport,
    local: SocketAddr,
    remote: SocketAddr,
) -> io::Result<Option<u64>> {
    // For UDP the kernel reads the two addresses the other way round (`udp_dump_one` in
    // net/ipv4/udp_diag.c, "src and dst are swapped for historical reasons").
    let (first, second) = match transport {
        Transport::Tcp => (local, remote),
        Transport::Udp => (remote, local),
    };
    let message = request(transport, first, second);
    sendto(&asked, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 4096];
    let (length, _) = recv(&asked, &mut answer[..], RecvFlags::empty())?;
    Ok(read_answer(&answer[..length], transport, local, remote))
}

/// struct inet_diag_req_v2: family, protocol, extensions, padding, states, then two ports and two
/// addresses of 16 bytes, an interface and a cookie, where all ones mean any.
fn request(transport: Transport, first: SocketAddr, second: SocketAddr) -> Vec<u8> {
    let (family, protocol) = match (first, transport) {
        (SocketAddr::V4(_), Transport::Tcp) => (libc::AF_INET, libc::IPPROTO_TCP),
        (SocketAddr::V4(_), Transport::Udp) => (libc::AF_INET, libc::IPPROTO_UDP),
        (SocketAddr::V6(_), Transport::Tcp) => (libc::AF_INET6, libc::IPPROTO_TCP),
        (SocketAddr::V6(_), Transport::Udp) => (libc::AF_INET6, libc::IPPROTO_UDP),
    };
    let mut body = vec![family as u8, protocol as u8, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(ports_and_addresses(first, second));
    body.extend([0; 4]);
    body.extend([0xff; 8]);
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn ports_and_addresses(first: SocketAddr, second: SocketAddr) -> Vec<u8> {
    let mut bytes = [first.port().to_be_bytes(), second.port().to_be_bytes()].concat();
    for address in [first.ip(), second.ip()] {
        let mut room = [0; 16];
        match address {
            IpAddr::V4(address) => room[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => room = address.octets(),
        }
        bytes.extend(room);
    }
    bytes
}

/// An answer is believed if it is about the socket that was asked for: where there is none, the
/// kernel answers with a listener that would take such a connection.
fn read_answer(
    answer: &[u8],
    transport: Transport,
    local: SocketAddr,
    remote: SocketAddr,
) -> Option<u64> {
    if answer.get(4..6)? != BY_FAMILY.to_ne_bytes() {
        return None;
    }
    let expected = ports_and_addresses(local, remote);
    let same = match transport {
        Transport::Tcp => answer.get(20..56)? == expected,
        // One that is not connected has no other side.
        Transport::Udp => answer.get(20..22)? == &expected[..2],
    };
    let inode = u32::from_ne_bytes(answer.get(INODE_AT..INODE_AT + 4)?.try_into().ok()?);
    (same && inode != 0).then_some(u64::from(inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::MetadataExt as _;

    fn inode(descriptor: impl AsFd) -> u64 {
        let number = rustix::fd::AsRawFd::as_raw_fd(&descriptor.as_fd());
        std::fs::metadata(format!("/proc/self/fd/{number}")).unwrap().ino()
    }

    #[test]
    fn sockets_are_found_by_their_addresses() {
        let asked = open().unwrap();
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let Ok(listener) = TcpListener::bind((address, 0)) else { continue };
            let door = listener.local_addr().unwrap();
            let client = TcpStream::connect(door).unwrap();
            let local = client.local_addr().unwrap();
            let found = |remote| inode_of(&asked, Transport::Tcp, local, remote).unwrap();
            assert_eq!(found(door), Some(inode(&client)));
            // Nobody is connected like this, and a listener is no answer.
            let nobody = SocketAddr::new(address, local.port());
            assert_eq!(inode_of(&asked, Transport::Tcp, door, nobody).unwrap(), None);
            let datagrams = UdpSocket::bind((address, 0)).unwrap();
            let local = datagrams.local_addr().unwrap();
            assert_eq!(
                inode_of(&asked, Transport::Udp, local, door).unwrap(),
                Some(inode(&datagrams))
            );
        }
        assert_eq!(read_answer(&[], Transport::Tcp, ([1; 4], 1).into(), ([1; 4], 1).into()), None);
    }
}
