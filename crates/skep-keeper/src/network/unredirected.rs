//! What stands in for redirected connections where there is no `nft`, or no NAT in the kernel: an interface
//! ([`super::tun`]), and where that cannot be had, listeners at every address ([`super::any_address`]).

use super::any_address::AnyAddress;
use super::inside::Doors;
use super::place::Place;
use super::tun::Tun;
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, OwnedFd};
use skep_sys::message::MAX_DESCRIPTORS;
use skep_sys::process::{Namespaces, clone_with, wait_for};
use std::io;
use std::net::SocketAddr;

/// One of them.
#[derive(Debug)]
pub enum Unredirected {
    /// Every port, of every address but the loopback's.
    Tun(Tun),
    /// The ports that rules name.
    AnyAddress(AnyAddress),
}

impl Unredirected {
    /// The first that can be had. `why` connections cannot be redirected.
    pub fn open(
        place: &Place,
        doors: &Doors,
        rules: &[String],
        why: &Failure,
    ) -> Result<Self, Failure> {
        let told =
            |why: &Failure| skep_types::chain(&skep_provider::ProviderError::from(why.clone()));
        let reason = told(why);
        match Tun::open(place, doors, rules, &reason) {
            Ok(tun) => Ok(Self::Tun(tun)),
            Err(no_tun) => {
                let reason = format!("{reason}; no TUN: {}", told(&no_tun));
                AnyAddress::open(place, doors, rules, reason).map(Self::AnyAddress)
            }
        }
    }

    /// The listeners.
    pub fn sockets(&self) -> &[OwnedFd] {
        match self {
            Self::Tun(tun) => tun.sockets(),
            Self::AnyAddress(any) => any.sockets(),
        }
    }

    /// The interface's other end.
    pub fn device(&self) -> Option<&OwnedFd> {
        match self {
            Self::Tun(tun) => Some(tun.device()),
            Self::AnyAddress(_) => None,
        }
    }

    /// Whom a connection was meant for, as far as the listener that took it can tell: a port the interface's
    /// own end knows.
    pub fn meant(&self, connection: &OwnedFd, port: u16) -> io::Result<SocketAddr> {
        Ok(match self {
            Self::Tun(_) => {
                let peer =
                    rustix::net::getpeername(connection)?.ok_or(io::ErrorKind::NotConnected)?;
                SocketAddr::new(SocketAddr::try_from(peer)?.ip(), port)
            }
            Self::AnyAddress(_) => SocketAddr::try_from(rustix::net::getsockname(connection)?)?,
        })
    }

    /// How the report calls it.
    pub fn how(&self) -> String {
        match self {
            Self::Tun(tun) => tun.how(),
            Self::AnyAddress(any) => any.how(),
        }
    }

    /// Whether other rules need nothing that was not made at the start.
    pub fn refuse_what_is_new(&self, rules: &[String], doors: &Doors) -> Result<(), Failure> {
        match self {
            Self::Tun(tun) => tun.refuse_other_loopback(rules),
            Self::AnyAddress(any) => any.refuse_other_ports(rules, doors),
        }
    }
}

/// Has descriptors made in the sandbox's network, by a child that goes there.
pub fn made_at(
    place: &Place,
    make: impl FnOnce() -> io::Result<Vec<OwnedFd>>,
) -> Result<Vec<OwnedFd>, Failure> {
    let step = || "open ways in the sandbox's network".to_owned();
    let (ours, theirs) = Channel::pair().step(step)?;
    let child = clone_with(Namespaces::NONE, || {
        let made = place.enter().and_then(|()| make());
        let told = made.and_then(|descriptors| {
            let mut left = descriptors.len();
            for batch in descriptors.chunks(MAX_DESCRIPTORS) {
                left -= batch.len();
                let batch: Vec<_> = batch.iter().map(AsFd::as_fd).collect();
                theirs.send(&Ok::<usize, Failure>(left), &batch)?;
            }
            Ok(())
        });
        let Err(failure) = told.step(step) else { return 0 };
        i32::from(theirs.send(&Err::<usize, _>(failure), &[]).is_err())
    })
    .step(step)?;
    drop(theirs);
    let mut descriptors = Vec::new();
    let received = loop {
        match ours.receive::<Result<usize, Failure>>().step(step) {
            Ok((Ok(left), more)) => {
                descriptors.extend(more);
                if left == 0 {
                    break Ok(());
                }
            }
            Ok((Err(failure), _)) | Err(failure) => break Err(failure),
        }
    };
    wait_for(&child).step(step)?;
    received.map(|()| descriptors)
}
