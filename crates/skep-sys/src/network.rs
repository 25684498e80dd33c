//! The loopback interface of a new network namespace, and where a redirected connection was going.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Switches `lo` on. It is the only interface a new network namespace has, and it starts down.
pub fn loopback_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: 0 },
    };
    for (slot, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *slot = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, and `request` is a whole one that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Leaves the network of this process for a new one, in which `lo` is on; returns a handle on it. On error it may have
/// been left all the same.
///
/// Allocates nothing.
pub fn new_namespace() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Before: the tree that it is found in may be left by somebody who shares our mounts.
    let own = rustix::fs::open(c"/proc/self/ns", flags, Mode::empty())?;
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
    crate::process::unshare(crate::process::Namespaces::NETWORK).map_err(errno)?;
    loopback_up().map_err(errno)?;
    rustix::fs::openat(own, c"net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Enters the network that this is a handle on.
pub fn enter_namespace(network: &OwnedFd) -> io::Result<()> {
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    Ok(rustix::thread::move_into_link_name_space(network.as_fd(), kind)?)
}

/// Where a connection was going before NAT sent it to the listener that accepted it.
///
/// `ENOENT` or `ENOPROTOOPT` if no NAT had a hand in it.
pub fn original_destination(socket: impl AsFd) -> io::Result<SocketAddr> {
    // From linux/netfilter_ipv6/ip6_tables.h; the libc crate has only the IPv4 one.
    const IP6T_SO_ORIGINAL_DST: libc::c_int = 80;
    let socket = socket.as_fd();
    match rustix::net::sockopt::socket_domain(socket)? {
        AddressFamily::INET6 => {
            let mut found: libc::sockaddr_in6 = zeroed_v6();
            get_option(&socket, libc::SOL_IPV6, IP6T_SO_ORIGINAL_DST, &mut found)?;
            let address = Ipv6Addr::from(found.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(address, u16::from_be(found.sin6_port), 0, 0).into())
        }
        _ => {
            let mut found = libc::sockaddr_in {
                sin_family: 0,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: 0 },
                sin_zero: [0; 8],
            };
            get_option(&socket, libc::SOL_IP, libc::SO_ORIGINAL_DST, &mut found)?;
            let address = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
            Ok(SocketAddrV4::new(address, u16::from_be(found.sin_port)).into())
        }
    }
}

fn zeroed_v6() -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: 0,
        sin6_port: 0,
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
        sin6_scope_id: 0,
    }
}

/// Only for plain socket address types, which any bytes are a value of.
fn get_option<T: Copy>(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `value`; both
    // pointers outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_mut(value).cast(),
            &raw mut length,
        )
    };
    match result {
        0 if length as usize == size_of::<T>() => Ok(()),
        0 => Err(io::Error::other("the kernel answered with an address of another size")),
        _ => Err(io::Error::last_os_error()),
    }
}
