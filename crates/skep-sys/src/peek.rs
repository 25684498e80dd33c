//! Descriptors that wait at a unix socket, looked at without being taken.
//!
//! A receive with `MSG_PEEK` gives duplicates of the descriptors of a message and leaves the message where it
//! is (`unix(7)`); with `SO_PEEK_OFF` each one goes on behind the last (`socket(7)`).

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;

/// Most descriptors of one message (`SCM_MAX_FD`), and room for what else may come with them.
const SPACE: usize = rustix::cmsg_space!(ScmRights(253)) + 512;
/// More than waits at a socket, as large as an ordinary user may make its buffer: one message is never seen
/// in two pieces.
const LONGEST: usize = 1 << 20;
/// Messages without a byte and without descriptors, after which nothing more is looked for.
const EMPTY: u32 = 64;

/// Shows each descriptor that waits at `socket`, and returns how many there were. Nobody may receive
/// there meanwhile.
///
/// Whoever made the socket may have the kernel send other things along (`SO_PASSPIDFD`), which stay open
/// in this process: it should be one that ends soon.
pub fn waiting_descriptors(socket: impl AsFd, mut show: impl FnMut(OwnedFd)) -> io::Result<u64> {
    let socket = socket.as_fd();
    let before = peek_offset(socket)?;
    set_peek_offset(socket, 0)?;
    let mut count = 0;
    let looked = look_at_messages(socket, |descriptor| {
        count += 1;
        show(descriptor);
    });
    set_peek_offset(socket, before)?;
    looked.map(|()| count)
}

fn look_at_messages(socket: BorrowedFd<'_>, mut show: impl FnMut(OwnedFd)) -> io::Result<()> {
    let mut buffer = vec![0; LONGEST];
    let mut empty = 0;
    while empty < EMPTY {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message =
            match recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags) {
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                other => other?,
            };
        let mut some = message.bytes > 0;
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
                some = true;
                rights.for_each(&mut show);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) || message.bytes >= LONGEST {
            return Err(io::Error::other("a message was seen in part"));
        }
        empty = if some { 0 } else { empty + 1 };
    }
    Ok(())
}

fn peek_offset(socket: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    let mut offset: libc::c_int = -1;
    let mut length = size_of_val(&offset) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `offset`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw mut offset).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(offset) } else { Err(io::Error::last_os_error()) }
}

fn set_peek_offset(socket: BorrowedFd<'_>, offset: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads an integer of the size given, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const offset).cast(),
            size_of_val(&offset) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{receive_with, send_with};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn all_that_wait_are_shown_and_stay() {
        let kinds = [SocketType::STREAM, SocketType::DGRAM, SocketType::SEQPACKET];
        for kind in kinds {
            let (a, b) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            let file = rustix::fs::memfd_create("f", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let number = rustix::fs::fstat(&file).unwrap().st_ino;
            send_with(&a, b"plain", &[]).unwrap();
            send_with(&a, b"two", &[file.as_fd(), a.as_fd()]).unwrap();
            send_with(&a, b"more plain", &[]).unwrap();
            send_with(&a, b"one", &[file.as_fd()]).unwrap();
            for _ in 0..2 {
                let mut seen = Vec::new();
                let show = |descriptor: OwnedFd| {
                    seen.push(rustix::fs::fstat(&descriptor).unwrap().st_ino);
                };
                assert_eq!(waiting_descriptors(&b, show).unwrap(), 3, "{kind:?}");
                assert_eq!((seen[0], seen[2]), (number, number));
            }
            assert_eq!(peek_offset(b.as_fd()).unwrap(), -1);
            let mut buffer = [0; 100];
            let mut received = 0;
            while received < 3 {
                received += receive_with(&b, &mut buffer).unwrap().1.len();
            }
            assert_eq!(waiting_descriptors(&b, |_| ()).unwrap(), 0);
        }
    }
}
