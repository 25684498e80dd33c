//! The host's end of what the guest wants to reach: connections, and questions about names.
//!
//! The sockets are made where the switchboard is, in the sandbox's own network namespace. There every
//! connection is led to skep's proxy and every question to skep's DNS, whoever makes them: so a
//! guest has the way out that a command without a machine would have, and no other. What it says is
//! believed no further than that.

use crate::carried::{BY_GUEST, Carried, MOST};
use crate::wire::{self, Kind};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// Questions without an answer yet; the oldest is forgotten for a newer one.
const MOST_QUESTIONS: usize = 64;
/// A question or an answer as a datagram is no longer.
const LONGEST_DATAGRAM: usize = 4096;

/// All of them.
#[derive(Debug, Default)]
pub struct Outlets {
    /// Where names are asked for; without one the guest has no network.
    dns_port: Option<u16>,
    connections: BTreeMap<u32, Carried>,
    questions: BTreeMap<u32, OwnedFd>,
}

impl Outlets {
    /// From here on the guest may.
    pub fn open(&mut self, dns_port: u16) {
        self.dns_port = Some(dns_port);
    }

    /// What to wait for. `calm`: there is room on the line.
    pub fn interests(&self, calm: bool) -> Vec<(u32, BorrowedFd<'_>, PollFlags)> {
        let connections = self.connections.iter().filter_map(|(number, carried)| {
            carried.interest(calm).map(|(socket, flags)| (*number, socket, flags))
        });
        let questions = self.questions.iter().filter(|_| calm);
        let questions = questions.map(|(number, socket)| (*number, socket.as_fd(), PollFlags::IN));
        connections.chain(questions).collect()
    }

    /// Does what a frame says. An error is one of the protocol, and ends the machine.
    pub fn obey(
        &mut self,
        (number, kind, payload): (u32, Kind, &[u8]),
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let Some(dns_port) = self.dns_port else {
            return Err(io::Error::other("the guest has no network"));
        };
        match kind {
            Kind::Dial => {
                let known = number & BY_GUEST == 0 || self.connections.contains_key(&number);
                if known {
                    return Err(io::Error::other("the guest uses a line twice"));
                }
                match self.dial(serde_json::from_slice(payload)?) {
                    Ok(carried) => drop(self.connections.insert(number, carried)),
                    Err(_) => wire::push(out, number, Kind::Reset, b""),
                }
            }
            Kind::Ask => self.ask(number, payload, dns_port),
            _ => {
                // The words may have crossed on the way.
                if let Some(carried) = self.connections.get_mut(&number) {
                    carried.obey(kind, payload)?;
                    self.pump(number, true, out);
                }
            }
        }
        Ok(())
    }

    fn dial(&self, address: SocketAddr) -> io::Result<Carried> {
        if self.connections.len() >= MOST {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Carried::new(socket),
            Err(error) => Err(error.into()),
        }
    }

    /// A question that cannot be asked stays without an answer, as datagrams may.
    fn ask(&mut self, number: u32, question: &[u8], dns_port: u16) {
        let ask = || -> io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket =
                rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
            rustix::net::connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, dns_port)))?;
            rustix::net::send(&socket, question, rustix::net::SendFlags::NOSIGNAL)?;
            Ok(socket)
        };
        if let Ok(socket) = ask() {
            while self.questions.len() >= MOST_QUESTIONS {
                self.questions.pop_first();
            }
            self.questions.insert(number, socket);
        }
    }

    /// Something can be done for this line.
    pub fn pump(&mut self, number: u32, calm: bool, out: &mut Vec<u8>) {
        if let Some(carried) = self.connections.get_mut(&number) {
            carried.pump(number, calm, out);
            if carried.is_over() {
                self.connections.remove(&number);
            }
        }
        if let Some(socket) = self.questions.get(&number) {
            let mut answer = vec![0; LONGEST_DATAGRAM];
            match rustix::io::read(socket, &mut answer) {
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(length) => wire::push(out, number, Kind::Answer, &answer[..length]),
                Err(_) => {}
            }
            self.questions.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_without_a_network_that_dials_is_not_believed() {
        let mut outlets = Outlets::default();
        let address = serde_json::to_vec(&"127.0.0.1:9".parse::<SocketAddr>().unwrap()).unwrap();
        let dial = (BY_GUEST | 1, Kind::Dial, &address[..]);
        assert!(outlets.obey(dial, &mut Vec::new()).is_err());
    }

    #[test]
    fn lines_of_the_host_and_lines_in_use_cannot_be_dialled() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = serde_json::to_vec(&listener.local_addr().unwrap()).unwrap();
        let mut outlets = Outlets::default();
        outlets.open(53);
        assert!(outlets.obey((1, Kind::Dial, &address), &mut Vec::new()).is_err());
        let dial = (BY_GUEST | 1, Kind::Dial, &address[..]);
        outlets.obey(dial, &mut Vec::new()).unwrap();
        assert!(outlets.obey(dial, &mut Vec::new()).is_err());
    }

    #[test]
    fn no_more_than_so_many_at_once_and_the_next_is_reset() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = serde_json::to_vec(&listener.local_addr().unwrap()).unwrap();
        let mut outlets = Outlets::default();
        outlets.open(53);
        let mut out = Vec::new();
        for number in 0..=MOST as u32 {
            outlets.obey((BY_GUEST | number, Kind::Dial, &address), &mut out).unwrap();
        }
        let (frame, _) = wire::parse(&out).unwrap().unwrap();
        assert_eq!((frame.line, frame.kind), (BY_GUEST | MOST as u32, Kind::Reset));
        assert!(outlets.connections.len() <= MOST);
    }
}
