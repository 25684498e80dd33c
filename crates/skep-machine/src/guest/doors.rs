//! The guest's network: `lo`, and doors on it whose other side is the host.
//!
//! It is the sandbox's network once more, one kernel further in: the same addresses, ports and rules,
//! because programs inside are told of them. A connection that a rule leads to a door is dialled by
//! the host; a program that knows proxies finds the proxy at its port.

use super::places;
use crate::carried::{BY_GUEST, Carried, MOST};
use crate::wire::{self, Frame, Kind, Network, Networked};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use skep_sys::network::original_destination;
use skep_sys::route::{Family, add_default_route, add_loopback_address};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Connections that may wait to be taken.
const BACKLOG: i32 = 256;
/// Questions whose answer is waited for; the oldest is forgotten for a newer one.
const MOST_QUESTIONS: usize = 64;
/// A question or an answer as a datagram is no longer.
const LONGEST_DATAGRAM: usize = 4096;
/// Seconds that a connection to a door of ours may take.
const KNOCK_PATIENCE: i64 = 20;

/// Where a connection that was taken at a door leads.
#[derive(Debug, Clone, Copy)]
enum Leads {
    /// To where the program meant it to.
    Meant,
    /// To something of skep's.
    To(SocketAddr),
}

#[derive(Debug)]
struct Door {
    socket: OwnedFd,
    leads: Leads,
}

/// The doors, and who has come through.
#[derive(Debug, Default)]
pub(super) struct Doors {
    program: String,
    listening: Vec<Door>,
    names: Vec<OwnedFd>,
    connections: BTreeMap<u32, Carried>,
    /// Which socket for names a question came by, and from whom.
    questions: BTreeMap<u32, (usize, SocketAddr)>,
    last: u32,
}

impl Doors {
    /// Makes the network. `unredirected` in the answer: only programs that know proxies get out.
    pub(super) fn open(&mut self, network: &Network) -> Networked {
        match self.listen(network) {
            Ok(()) => {}
            Err(error) => {
                return Networked { failure: Some(error.to_string()), unredirected: None };
            }
        }
        self.program = network.program.clone();
        let redirected = self.load(&network.rules).and_then(|()| self.knock(&network.nowhere));
        Networked { failure: None, unredirected: redirected.err().map(|error| error.to_string()) }
    }

    fn listen(&mut self, network: &Network) -> io::Result<()> {
        add_loopback_address(network.own[0])?;
        add_default_route(Family::V4)?;
        let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, network.proxy));
        let dns = SocketAddr::from((Ipv4Addr::LOCALHOST, network.dns));
        self.door(Ipv4Addr::LOCALHOST.into(), network.tcp4, Leads::Meant)?;
        self.door(Ipv4Addr::LOCALHOST.into(), network.proxy, Leads::To(proxy))?;
        self.door(Ipv4Addr::LOCALHOST.into(), network.dns, Leads::To(dns))?;
        self.names.push(bound(dns, SocketType::DGRAM)?);
        let Some(tcp6) = network.tcp6 else { return Ok(()) };
        add_loopback_address(network.own[1])?;
        add_default_route(Family::V6)?;
        self.door(Ipv6Addr::LOCALHOST.into(), tcp6, Leads::Meant)?;
        self.door(Ipv6Addr::LOCALHOST.into(), network.dns, Leads::To(dns))?;
        let dns = SocketAddr::from((Ipv6Addr::LOCALHOST, network.dns));
        self.names.push(bound(dns, SocketType::DGRAM)?);
        Ok(())
    }

    fn door(&mut self, address: IpAddr, port: u16, leads: Leads) -> io::Result<()> {
        let socket = bound(SocketAddr::new(address, port), SocketType::STREAM)?;
        rustix::net::listen(&socket, BACKLOG)?;
        self.listening.push(Door { socket, leads });
        Ok(())
    }

    /// Has the view's own `nft` take in rules.
    pub(super) fn load(&self, rules: &str) -> io::Result<()> {
        places::feed(&[&self.program, "-f", "-"], rules)
    }

    /// Connects to where nobody is: each must arrive here, with the address it meant.
    fn knock(&self, nowhere: &[SocketAddr]) -> io::Result<()> {
        for meant in nowhere {
            let _knocking = connecting(*meant)?;
            let doors = || self.listening.iter().filter(|door| matches!(door.leads, Leads::Meant));
            let mut watched: Vec<_> =
                doors().map(|door| PollFd::new(&door.socket, PollFlags::IN)).collect();
            let patience = Timespec { tv_sec: KNOCK_PATIENCE, tv_nsec: 0 };
            poll(&mut watched, Some(&patience))?;
            let heard = doors().any(|door| {
                let taken = rustix::net::accept(&door.socket);
                taken.is_ok_and(|taken| original_destination(taken).is_ok_and(|to| to == *meant))
            });
            if !heard {
                return Err(io::Error::other(format!(
                    "a connection to {meant} was not redirected"
                )));
            }
        }
        Ok(())
    }

    /// What to wait for. `calm`: there is room on the line.
    pub(super) fn interests(
        &self,
        calm: bool,
    ) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let room = calm && self.connections.len() < MOST;
        let doors = self.listening.iter().filter(move |_| room).map(|door| &door.socket);
        let names = self.names.iter().filter(move |_| calm);
        let all = doors.chain(names).map(|socket| (socket.as_fd(), PollFlags::IN));
        all.chain(self.connections.values().filter_map(move |carried| carried.interest(calm)))
    }

    /// Takes who knocks, and moves what can be moved.
    pub(super) fn pump(&mut self, calm: bool, out: &mut Vec<u8>) {
        for index in (0..self.listening.len()).filter(|_| calm) {
            self.take(index, out);
        }
        for index in (0..self.names.len()).filter(|_| calm) {
            self.hear_questions(index, out);
        }
        for (number, carried) in &mut self.connections {
            carried.pump(*number, calm, out);
        }
        self.connections.retain(|_, carried| !carried.is_over());
    }

    fn take(&mut self, index: usize, out: &mut Vec<u8>) {
        while self.connections.len() < MOST {
            let door = &self.listening[index];
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(&door.socket, flags) else { return };
            let leads = match door.leads {
                Leads::To(address) => Ok(address),
                Leads::Meant => original_destination(&socket),
            };
            // One that was not led here has come by itself, and leads nowhere.
            let (Ok(to), Ok(carried)) = (leads, Carried::new(socket)) else { continue };
            let number = self.number();
            wire::push_json(out, number, Kind::Dial, &to);
            self.connections.insert(number, carried);
        }
    }

    fn hear_questions(&mut self, index: usize, out: &mut Vec<u8>) {
        let mut buffer = vec![0; LONGEST_DATAGRAM];
        loop {
            let heard = rustix::net::recvfrom(&self.names[index], &mut buffer, RecvFlags::empty());
            let Ok((_, length, Some(from))) = heard else { return };
            let Ok(from) = SocketAddr::try_from(from) else { continue };
            while self.questions.len() >= MOST_QUESTIONS {
                self.questions.pop_first();
            }
            let number = self.number();
            self.questions.insert(number, (index, from));
            wire::push(out, number, Kind::Ask, &buffer[..length]);
        }
    }

    fn number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1) | BY_GUEST;
            let last = &self.last;
            if !self.connections.contains_key(last) && !self.questions.contains_key(last) {
                return *last;
            }
        }
    }

    /// Does what the host says on a line of ours.
    pub(super) fn obey(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> io::Result<()> {
        if frame.kind == Kind::Answer {
            if let Some((index, to)) = self.questions.remove(&frame.line) {
                let _ = rustix::net::sendto(
                    &self.names[index],
                    frame.payload,
                    SendFlags::NOSIGNAL,
                    &to,
                );
            }
            return Ok(());
        }
        // The words may have crossed on the way.
        let Some(carried) = self.connections.get_mut(&frame.line) else { return Ok(()) };
        carried.obey(frame.kind, frame.payload)?;
        carried.pump(frame.line, true, out);
        if carried.is_over() {
            self.connections.remove(&frame.line);
        }
        Ok(())
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

fn bound(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family(address), kind, flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn connecting(address: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family(address), SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}
