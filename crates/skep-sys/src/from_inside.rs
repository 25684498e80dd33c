//! Connections that come out of a sandbox are known to skep's own listeners on this host.
//!
//! A rule for a loopback address and port leads to whatever listens there. That must never be skep's server or
//! another sandbox's published port, and neither knows of the other. So what an egress process dials on this
//! host is marked in its very first packet, by a class of service that is free for local use, and a listener
//! that keeps the first packets of its connections (`TCP_SAVE_SYN`) reads the mark back. Nothing inside a
//! sandbox can take it off: the packet is made by the egress process's own kernel socket.

use rustix::fd::{AsFd, AsRawFd};
use std::io;
use std::net::IpAddr;

/// One of the code points for experiments and local use (RFC 2474, pool 2), in its place in the octet.
const MARK: u8 = 0b1010_1100;
/// The last two bits are not part of it (RFC 3168).
const OF_THE_CLASS: u8 = 0b1111_1100;
/// More than the largest headers of IP and TCP.
const HEADERS: usize = 256;

/// Marks a socket that is to be connected to `address`, if that is of this host's loopback.
pub fn mark(socket: impl AsFd, address: IpAddr) -> io::Result<()> {
    match address.to_canonical() {
        IpAddr::V4(address) if address.is_loopback() => {
            Ok(rustix::net::sockopt::set_ip_tos(socket, MARK)?)
        }
        IpAddr::V6(address) if address.is_loopback() => {
            Ok(rustix::net::sockopt::set_ipv6_tclass(socket, MARK.into())?)
        }
        _ => Ok(()),
    }
}

/// Has a listener keep the first packets of the connections it accepts from now on.
pub fn look_out(listener: impl AsFd) -> io::Result<()> {
    let (listener, yes) = (listener.as_fd(), 1 as libc::c_int);
    // SAFETY: the kernel reads an integer of the size given, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVE_SYN,
            (&raw const yes).cast(),
            size_of_val(&yes) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Where an accepted connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Out of a sandbox.
    Inside,
    /// From somebody else of this host.
    Outside,
    /// Its first packet was not kept: it was there before [`look_out`], or there were too many at once.
    Unknown,
}

/// Where it comes from. To be asked once: the kernel forgets the packet with the answer.
pub fn origin(accepted: impl AsFd) -> Origin {
    let mut headers = [0_u8; HEADERS];
    let mut length = HEADERS as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `headers`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            accepted.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            headers.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let kept = headers.get(..length as usize).filter(|_| result == 0);
    match kept.and_then(class) {
        Some(MARK) => Origin::Inside,
        Some(_) => Origin::Outside,
        None => Origin::Unknown,
    }
}

/// The class of service of a packet of either version of IP.
fn class(packet: &[u8]) -> Option<u8> {
    let [first, second, ..] = *packet else { return None };
    let octet = match first >> 4 {
        4 => second,
        6 => first << 4 | second >> 4,
        _ => return None,
    };
    Some(octet & OF_THE_CLASS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_was_marked_is_known_in_both_versions() {
        for host in ["127.0.0.1", "::1"] {
            let Ok(listener) = TcpListener::bind((host, 0)) else { continue };
            let address = listener.local_addr().unwrap();
            // Nothing is known of who came before.
            let _early = TcpStream::connect(address).unwrap();
            assert_eq!(origin(listener.accept().unwrap().0), Origin::Unknown);
            look_out(&listener).unwrap();
            let _plain = TcpStream::connect(address).unwrap();
            assert_eq!(origin(listener.accept().unwrap().0), Origin::Outside, "{host}");
            let family = match address.is_ipv4() {
                true => rustix::net::AddressFamily::INET,
                false => rustix::net::AddressFamily::INET6,
            };
            let socket =
                rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
            mark(&socket, address.ip()).unwrap();
            rustix::net::connect(&socket, &address).unwrap();
            assert_eq!(origin(listener.accept().unwrap().0), Origin::Inside, "{host}");
        }
    }

    #[test]
    fn odd_packets_have_no_class() {
        assert_eq!((class(&[]), class(&[0x45]), class(&[0x15, 0])), (None, None, None));
        assert_eq!(class(&[0x6a, 0xc0]), Some(MARK));
        assert_eq!(class(&[0x45, 0xaf]), Some(MARK));
    }
}
