//! A network interface whose other end is a descriptor (tun(4)).

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;

/// Where the kernel makes them.
const DEVICE: &str = "/dev/net/tun";

/// Makes an interface in the caller's network namespace and switches it on. What is routed to it is
/// read from the descriptor, a whole packet at a time, and what is written there comes in by it.
///
/// The namespace is that of the moment `/dev/net/tun` is opened in, and the caller needs
/// `CAP_NET_ADMIN` over it. The interface goes with the last descriptor.
pub fn open(name: &str, mtu: u16) -> io::Result<(OwnedFd, u32)> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = rustix::fs::open(DEVICE, flags, Mode::empty())?;
    let mut request = named(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    call(&device, libc::TUNSETIFF as libc::Ioctl, &mut request)?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut request = named(name)?;
    request.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
    call(&socket, libc::SIOCSIFMTU as libc::Ioctl, &mut request)?;
    let mut request = named(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    call(&socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut request)?;
    Ok((device, rustix::net::netdevice::name_to_index(&socket, name)?))
}

/// An empty request about an interface.
fn named(name: &str) -> io::Result<libc::ifreq> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_mtu: 0 },
    };
    // The last byte stays 0.
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(request)
}

fn call(on: &OwnedFd, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the requests made here read an ifreq, and may write back into it; `request` is a
    // whole one that outlives the call.
    let result = unsafe { libc::ioctl(on.as_raw_fd(), what, std::ptr::from_mut(request)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_or_are_refused() {
        assert!(named("skep0").is_ok());
        assert!(named("").is_err() && named("a\0b").is_err() && named(&"x".repeat(16)).is_err());
    }
}
