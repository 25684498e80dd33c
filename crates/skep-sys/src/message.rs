//! Messages with descriptors over unix sockets.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Most descriptors that travel with one message.
pub const MAX_DESCRIPTORS: usize = 24;

/// Sends one message with descriptors; on a stream socket the bytes may be sent in part.
pub fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let mut raised = false;
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            // Others of this user have more under way than we may have open: that is for the sender
            // to say (`unix(7)`), and those inside may say less.
            Err(rustix::io::Errno::TOOMANYREFS) if !raised => {
                raise_open_files();
                raised = true;
            }
            other => return Ok(other?),
        }
    }
}

/// As many open files as this process may allow itself.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
}

/// Receives one message with up to three descriptors, and says whether there was one, and not the end. Allocates nothing.
pub fn receive_three(
    socket: impl AsFd,
    descriptors: &mut [Option<OwnedFd>; 3],
) -> rustix::io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        let flags = RecvFlags::CMSG_CLOEXEC;
        recvmsg(&socket, &mut [IoSliceMut::new(&mut [0; 1])], &mut control, flags)
    })?;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            descriptors.iter_mut().zip(rights).for_each(|(place, right)| *place = Some(right));
        }
    }
    Ok(message.bytes > 0)
}

/// Receives one message; `Ok((0, _))` is the end.
///
/// Descriptors arrive marked close-on-exec. A message whose descriptors were cut off is an error.
pub fn receive_with(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            descriptors.extend(rights);
        }
    }
    if message.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        return Err(io::Error::other("descriptors of a message were cut off"));
    }
    Ok((message.bytes, descriptors))
}
