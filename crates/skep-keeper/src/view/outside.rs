//! An overlay mounted by real root, before the user namespace comes into it.
//!
//! Its markers are `trusted.overlay.*`, for filesystems that have no `user.*` attributes. A process
//! of its own makes the mount, because an overlay's directories must be mounted in the mounting
//! process's namespace and the keeper's is the host's: nothing shall appear there, not for a moment.

use super::apply::{Builder, WorkspaceParts};
use super::overlay::Markers;
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, OwnedFd};
use skep_sys::process::{Namespaces, clone_with, wait_for};

/// Mounts the workspace; the result is detached, and the only thing left of it all.
pub fn overlay(opened: &[OwnedFd], parts: &WorkspaceParts) -> Result<OwnedFd, Failure> {
    let step = || "mount the workspace overlay by root".to_owned();
    let (ours, theirs) = Channel::pair().step(step)?;
    let child = clone_with(Namespaces::MOUNT, || {
        let result = mount(opened, parts);
        let sent = match &result {
            Ok(mount) => theirs.send(&Ok::<(), Failure>(()), &[mount.as_fd()]),
            Err(failure) => theirs.send(&Err::<(), _>(failure.clone()), &[]),
        };
        i32::from(sent.is_err())
    })
    .step(step)?;
    drop(theirs);
    let answer = ours.receive::<Result<(), Failure>>().step(step);
    wait_for(&child).step(step)?;
    let (result, mut mount) = answer?;
    result?;
    mount.pop().ok_or_else(|| Failure::invalid("the overlay came without a mount"))
}

fn mount(opened: &[OwnedFd], parts: &WorkspaceParts) -> Result<OwnedFd, Failure> {
    let copies = opened.iter().map(OwnedFd::try_clone).collect::<Result<Vec<_>, _>>();
    let copies = copies.step(|| "duplicate the sources of the view".into())?;
    let refuse = |_: &_| Err(Failure::invalid("no program serves this overlay"));
    Builder::land(copies.into(), parts, &refuse)?.overlay(Markers::Trusted)
}
