//! The way to the doors where the kernel inside has no NAT: a network interface of which this process has
//! the other end.
//!
//! Everything inside is routed to it. A packet of a TCP connection is turned round: as if the host that
//! was meant had sent it to the door, where the namespace's own TCP takes it, and what the door answers is
//! turned round again. So both ends of every connection are the kernel's, and what is done here is what NAT does:
//! other addresses and ports in a packet, by a table. Questions for names are answered, whomever they were
//! sent to. Everything else ends here.
//!
//! Packets are read and written by smoltcp. They come from inside and are not to be trusted; the worst that a
//! wrong one does is to reach a door, where it is judged like every connection.

use crate::dns;
use crate::gateway::Gateway;
use crate::turned::{Side, Turned, datagram};
use skep_types::EgressPeer;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::net::unix::pipe;
use tokio::sync::Semaphore;

/// No packet is longer.
const LONGEST: usize = 1 << 16;
/// Questions for names worked on at the same time.
const MOST_QUESTIONS: usize = 64;

/// The interface, and what passes it.
pub(crate) struct Tun {
    /// Packets are read from it one by one, as messages from a pipe are; this is the type of descriptors
    /// that can be waited for and owned without `unsafe`.
    packets: pipe::Receiver,
    device: OwnedFd,
    turned: Mutex<Turned>,
    gateway: OnceLock<Arc<Gateway>>,
    room: Arc<Semaphore>,
}

impl Tun {
    /// Leads to the doors, one for each family.
    pub(crate) fn new(device: OwnedFd, doors: Vec<SocketAddr>) -> io::Result<Self> {
        Ok(Self {
            packets: pipe::Receiver::from_owned_fd_unchecked(device.try_clone()?)?,
            device,
            turned: Mutex::new(Turned::new(doors)),
            gateway: OnceLock::new(),
            room: Arc::new(Semaphore::new(MOST_QUESTIONS)),
        })
    }

    /// Answers questions for names from now on.
    pub(crate) fn serve(&self, gateway: Arc<Gateway>) {
        let _ = self.gateway.set(gateway);
    }

    /// Where a connection was going that a door took from this address.
    pub(crate) fn destination(&self, peer: SocketAddr) -> Option<SocketAddr> {
        self.turned().flow_of(peer).map(|flow| flow.remote)
    }

    /// The client's end of such a connection, as it sees itself.
    pub(crate) fn client(&self, peer: SocketAddr) -> Option<SocketAddr> {
        self.turned().flow_of(peer).map(|flow| flow.local)
    }

    fn turned(&self) -> MutexGuard<'_, Turned> {
        self.turned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns packets round for as long as there is an interface.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut packet = vec![0; LONGEST];
        loop {
            if self.packets.readable().await.is_err() {
                return;
            }
            match self.packets.try_read(&mut packet) {
                Ok(length) => self.take(&mut packet[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The interface is gone, with the namespace.
                Err(_) => return,
            }
        }
    }

    fn take(self: &Arc<Self>, packet: &mut [u8]) {
        let side = self.turned().turn(packet);
        match side {
            Side::Back => self.give(packet),
            Side::Answer(answer) => self.give(&answer),
            Side::Question { from, to, question } => self.answer(from, to, question),
            Side::Nowhere => {}
        }
    }

    /// A packet that cannot be given now is lost, as packets are.
    fn give(&self, packet: &[u8]) {
        let _ = rustix::io::write(&self.device, packet);
    }

    fn answer(self: &Arc<Self>, from: SocketAddr, to: SocketAddr, question: Vec<u8>) {
        let Some(gateway) = self.gateway.get().cloned() else { return };
        let Ok(permit) = self.room.clone().try_acquire_owned() else { return };
        let tun = self.clone();
        tokio::spawn(async move {
            let exec = gateway.owners.of(EgressPeer { udp: true, local: from, remote: to }).await;
            if let Some(reply) = dns::answer(&gateway, &question, exec).await
                && let Some(packet) = datagram(to, from, &reply)
            {
                tun.give(&packet);
            }
            drop(permit);
        });
    }
}

/// An address that a packet can be turned round to: not one that no packet may come from.
pub(crate) fn can_be_somebody(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}
