//! Packets between programs and doors, turned round by a table (see `tun`).
//!
//! A connection from S:s to X:p becomes one from X:t to the door. The address stays X, so that the door sees by its
//! peer who was meant, and t is s unless another connection to X has it already. The table knows
//! p. When the table is full, what has ended is forgotten, and if nothing has, what was not used for longest: a flood of
//! connections costs those who make it.

use crate::tun::can_be_somebody;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, TcpPacket, TcpSeqNumber,
    UdpPacket, UdpRepr,
};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Connections remembered. The proxy serves fewer at a time; those that end are not looked for.
const MOST: usize = 8192;
/// Where names are asked for.
const DNS_PORT: u16 = 53;
const HOPS: u8 = 64;

/// A connection as the program sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Its own end.
    pub local: SocketAddr,
    /// Whom it means.
    pub remote: SocketAddr,
}

/// What becomes of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Side {
    /// Given back as it is now.
    Back,
    /// Dropped, and this given back.
    Answer(Vec<u8>),
    /// Somebody asks for a name.
    Question {
        /// Who.
        from: SocketAddr,
        /// Whom.
        to: SocketAddr,
        /// The question.
        question: Vec<u8>,
    },
    /// Dropped.
    Nowhere,
}

/// A connection in the table.
struct Entry {
    flow: Flow,
    used: u64,
    /// Whether each side has said all it has to say.
    ended: [bool; 2],
}

/// Who sent a packet.
#[derive(Clone, Copy)]
enum Sender {
    Program,
    Door,
}

impl Entry {
    fn used(&mut self, now: u64, sender: Sender, mark: Mark) {
        self.used = now;
        match mark {
            Mark::Opens => self.ended = [false; 2],
            Mark::Ends => self.ended[sender as usize] = true,
            Mark::Breaks => self.ended = [true; 2],
            Mark::None => {}
        }
    }
}

/// What a packet means for its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Opens,
    Ends,
    Breaks,
    None,
}

/// The table.
pub struct Turned {
    doors: Vec<SocketAddr>,
    /// From a connection to the port it comes from at the door.
    ports: HashMap<Flow, u16>,
    /// From the peer that the door sees.
    flows: HashMap<SocketAddr, Entry>,
    /// Counts packets, to tell which connection was used last.
    now: u64,
}

impl Turned {
    /// With the doors that connections are led to, one for each family.
    pub fn new(doors: Vec<SocketAddr>) -> Self {
        Self { doors, ports: HashMap::new(), flows: HashMap::new(), now: 0 }
    }

    /// The connection that a door sees as coming from `peer`.
    pub fn flow_of(&self, peer: SocketAddr) -> Option<Flow> {
        self.flows.get(&peer).map(|entry| entry.flow)
    }

    /// Looks at a packet from inside, and turns it round where that is its way.
    pub fn turn(&mut self, packet: &mut [u8]) -> Side {
        self.turn_any(packet).unwrap_or(Side::Nowhere)
    }

    fn turn_any(&mut self, packet: &mut [u8]) -> Option<Side> {
        match packet.first()? >> 4 {
            4 => {
                let mut ip = Ipv4Packet::new_checked(packet).ok()?;
                // Pieces of packets are not put together: TCP makes none.
                if ip.more_frags() || ip.frag_offset() != 0 {
                    return None;
                }
                let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
                let turned = self.turn_payload(ip.next_header(), from, to, ip.payload_mut())?;
                if let Inner::Turned { from: IpAddr::V4(from), to: IpAddr::V4(to) } = turned {
                    ip.set_src_addr(from);
                    ip.set_dst_addr(to);
                    ip.fill_checksum();
                }
                turned.side()
            }
            6 => {
                let mut ip = Ipv6Packet::new_checked(packet).ok()?;
                let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
                let turned = self.turn_payload(ip.next_header(), from, to, ip.payload_mut())?;
                if let Inner::Turned { from: IpAddr::V6(from), to: IpAddr::V6(to) } = turned {
                    ip.set_src_addr(from);
                    ip.set_dst_addr(to);
                }
                turned.side()
            }
            _ => None,
        }
    }

    fn turn_payload(
        &mut self,
        protocol: IpProtocol,
        from: IpAddr,
        to: IpAddr,
        payload: &mut [u8],
    ) -> Option<Inner> {
        if !can_be_somebody(from) || !can_be_somebody(to) {
            return None;
        }
        match protocol {
            IpProtocol::Tcp => {
                let mut tcp = TcpPacket::new_checked(payload).ok()?;
                let flow = Flow {
                    local: SocketAddr::new(from, tcp.src_port()),
                    remote: SocketAddr::new(to, tcp.dst_port()),
                };
                let mark = match (tcp.rst(), tcp.syn() && !tcp.ack(), tcp.fin()) {
                    (true, ..) => Mark::Breaks,
                    (_, true, _) => Mark::Opens,
                    (_, _, true) => Mark::Ends,
                    _ => Mark::None,
                };
                let Some(ends) = self.ends_of(flow, mark) else {
                    return (!tcp.rst()).then(|| reset(flow, &tcp)).flatten().map(Inner::Answer);
                };
                tcp.set_src_port(ends.local.port());
                tcp.set_dst_port(ends.remote.port());
                let (from, to) = (ends.local.ip(), ends.remote.ip());
                tcp.fill_checksum(&IpAddress::from(from), &IpAddress::from(to));
                Some(Inner::Turned { from, to })
            }
            IpProtocol::Udp => {
                let udp = UdpPacket::new_checked(&*payload).ok()?;
                (udp.dst_port() == DNS_PORT).then(|| {
                    Inner::Question(
                        SocketAddr::new(from, udp.src_port()),
                        SocketAddr::new(to, DNS_PORT),
                        udp.payload().to_vec(),
                    )
                })
            }
            _ => None,
        }
    }

    /// Between whom a packet is, seen from its other side.
    fn ends_of(&mut self, flow: Flow, mark: Mark) -> Option<Flow> {
        self.now += 1;
        if self.doors.contains(&flow.local) {
            let entry = self.flows.get_mut(&flow.remote)?;
            entry.used(self.now, Sender::Door, mark);
            return Some(Flow { local: entry.flow.remote, remote: entry.flow.local });
        }
        let door = *self.doors.iter().find(|door| door.is_ipv4() == flow.remote.is_ipv4())?;
        let port = match self.ports.get(&flow) {
            Some(port) => *port,
            None if mark == Mark::Opens => self.enter(flow)?,
            None => return None,
        };
        let peer = SocketAddr::new(flow.remote.ip(), port);
        if let Some(entry) = self.flows.get_mut(&peer) {
            entry.used(self.now, Sender::Program, mark);
        }
        Some(Flow { local: peer, remote: door })
    }

    /// Makes room: all that have ended go, or the one that has not been used for longest.
    fn forget(&mut self) {
        let before = self.flows.len();
        self.flows.retain(|_, entry| {
            let ended = entry.ended == [true; 2];
            if ended {
                self.ports.remove(&entry.flow);
            }
            !ended
        });
        if self.flows.len() < before {
            return;
        }
        let least = self.flows.iter().min_by_key(|(_, entry)| entry.used);
        if let Some((peer, flow)) = least.map(|(peer, entry)| (*peer, entry.flow)) {
            self.flows.remove(&peer);
            self.ports.remove(&flow);
        }
    }

    /// A new connection gets its place.
    fn enter(&mut self, flow: Flow) -> Option<u16> {
        if self.flows.len() >= MOST {
            self.forget();
        }
        let address = flow.remote.ip();
        let free = |port: &u16| !self.flows.contains_key(&SocketAddr::new(address, *port));
        let own = flow.local.port();
        let port = std::iter::once(own).chain(1024..=u16::MAX).find(free)?;
        self.ports.insert(flow, port);
        let entry = Entry { flow, used: self.now, ended: [false; 2] };
        self.flows.insert(SocketAddr::new(address, port), entry);
        Some(port)
    }
}

/// What becomes of what is in a packet.
enum Inner {
    Turned { from: IpAddr, to: IpAddr },
    Answer(Vec<u8>),
    Question(SocketAddr, SocketAddr, Vec<u8>),
}

impl Inner {
    fn side(self) -> Option<Side> {
        Some(match self {
            Self::Turned { .. } => Side::Back,
            Self::Answer(packet) => Side::Answer(packet),
            Self::Question(from, to, question) => Side::Question { from, to, question },
        })
    }
}

/// The end of a connection that nobody knows: it was older than this process, or the table.
fn reset(flow: Flow, tcp: &TcpPacket<&mut [u8]>) -> Option<Vec<u8>> {
    const LENGTH: usize = 20;
    let mut bytes = [0; LENGTH];
    let mut answer = TcpPacket::new_unchecked(&mut bytes[..]);
    answer.set_src_port(flow.remote.port());
    answer.set_dst_port(flow.local.port());
    answer.clear_flags();
    answer.set_header_len(LENGTH as u8);
    answer.set_rst(true);
    if tcp.ack() {
        answer.set_seq_number(tcp.ack_number());
    } else {
        answer.set_seq_number(TcpSeqNumber(0));
        answer.set_ack(true);
        answer.set_ack_number(tcp.seq_number() + tcp.segment_len());
    }
    let (from, to) = (flow.remote.ip(), flow.local.ip());
    answer.fill_checksum(&IpAddress::from(from), &IpAddress::from(to));
    whole(from, to, IpProtocol::Tcp, &bytes)
}

/// A datagram as a packet.
pub fn datagram(from: SocketAddr, to: SocketAddr, data: &[u8]) -> Option<Vec<u8>> {
    let repr = UdpRepr { src_port: from.port(), dst_port: to.port() };
    let mut bytes = vec![0; repr.header_len() + data.len()];
    repr.emit(
        &mut UdpPacket::new_unchecked(&mut bytes[..]),
        &IpAddress::from(from.ip()),
        &IpAddress::from(to.ip()),
        data.len(),
        |payload| payload.copy_from_slice(data),
        &ChecksumCapabilities::default(),
    );
    whole(from.ip(), to.ip(), IpProtocol::Udp, &bytes)
}

/// A packet around what it carries.
fn whole(from: IpAddr, to: IpAddr, protocol: IpProtocol, payload: &[u8]) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let repr = Ipv4Repr {
                src_addr: from,
                dst_addr: to,
                next_header: protocol,
                payload_len: payload.len(),
                hop_limit: HOPS,
            };
            let mut bytes = vec![0; repr.buffer_len()];
            let mut packet = Ipv4Packet::new_unchecked(&mut bytes[..]);
            repr.emit(&mut packet, &ChecksumCapabilities::default());
            bytes.extend_from_slice(payload);
            Some(bytes)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let repr = Ipv6Repr {
                src_addr: from,
                dst_addr: to,
                next_header: protocol,
                payload_len: payload.len(),
                hop_limit: HOPS,
            };
            let mut bytes = vec![0; repr.buffer_len()];
            repr.emit(&mut Ipv6Packet::new_unchecked(&mut bytes[..]));
            bytes.extend_from_slice(payload);
            Some(bytes)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn table() -> Turned {
        Turned::new(vec![at("192.0.0.8:4000"), at("[fd73::1]:4001")])
    }

    /// A packet of TCP with these flags.
    fn segment(from: &str, to: &str, flags: &str) -> Vec<u8> {
        let (from, to) = (at(from), at(to));
        let mut bytes = [0; 23];
        bytes[20..].copy_from_slice(b"abc");
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[..]);
        tcp.set_src_port(from.port());
        tcp.set_dst_port(to.port());
        tcp.set_header_len(20);
        tcp.set_syn(flags.contains('S'));
        tcp.set_ack(flags.contains('A'));
        tcp.set_rst(flags.contains('R'));
        tcp.fill_checksum(&IpAddress::from(from.ip()), &IpAddress::from(to.ip()));
        whole(from.ip(), to.ip(), IpProtocol::Tcp, &bytes).unwrap()
    }

    /// Between whom a packet is; its checksums are right.
    #[track_caller]
    fn ends(packet: &[u8]) -> (SocketAddr, SocketAddr) {
        let (from, to, payload): (IpAddr, IpAddr, Vec<u8>) = if packet[0] >> 4 == 4 {
            let ip = Ipv4Packet::new_checked(packet).unwrap();
            assert!(ip.verify_checksum());
            (ip.src_addr().into(), ip.dst_addr().into(), ip.payload().to_vec())
        } else {
            let ip = Ipv6Packet::new_checked(packet).unwrap();
            (ip.src_addr().into(), ip.dst_addr().into(), ip.payload().to_vec())
        };
        let tcp = TcpPacket::new_checked(&payload[..]).unwrap();
        assert!(tcp.verify_checksum(&IpAddress::from(from), &IpAddress::from(to)));
        (SocketAddr::new(from, tcp.src_port()), SocketAddr::new(to, tcp.dst_port()))
    }

    #[test]
    fn a_connection_goes_to_the_door_and_its_answers_come_from_whom_was_meant() {
        for (own, door, host, peer) in [
            ("192.0.0.8:50000", "192.0.0.8:4000", "93.184.216.34:443", "93.184.216.34:50000"),
            ("[fd73::1]:50000", "[fd73::1]:4001", "[2606::1]:443", "[2606::1]:50000"),
        ] {
            let mut table = table();
            let mut packet = segment(own, host, "S");
            assert_eq!(table.turn(&mut packet), Side::Back);
            assert_eq!(ends(&packet), (at(peer), at(door)));
            let flow = table.flow_of(at(peer)).unwrap();
            assert_eq!((flow.local, flow.remote), (at(own), at(host)));
            let mut answer = segment(door, peer, "SA");
            assert_eq!(table.turn(&mut answer), Side::Back);
            assert_eq!(ends(&answer), (at(host), at(own)));
            // The same port towards another port of the same host is another connection.
            let other = host.replace(":443", ":80");
            let mut packet = segment(own, &other, "S");
            assert_eq!(table.turn(&mut packet), Side::Back);
            let (from, _) = ends(&packet);
            assert_ne!(from, at(peer));
            assert_eq!(table.flow_of(from).unwrap().remote, at(&other));
        }
    }

    #[test]
    fn what_nobody_knows_is_reset_and_other_packets_end() {
        let mut table = table();
        let mut packet = segment("192.0.0.8:50000", "93.184.216.34:443", "A");
        let Side::Answer(answer) = table.turn(&mut packet) else { panic!() };
        assert_eq!(ends(&answer), (at("93.184.216.34:443"), at("192.0.0.8:50000")));
        let mut packet = segment("192.0.0.8:50000", "93.184.216.34:443", "R");
        assert_eq!(table.turn(&mut packet), Side::Nowhere);
        let mut packet = segment("192.0.0.8:4000", "93.184.216.34:5", "R");
        assert_eq!(table.turn(&mut packet), Side::Nowhere, "of a door, to nobody known");
        for to in ["127.0.0.1:80", "0.0.0.0:80", "224.0.0.1:80"] {
            let mut packet = segment("192.0.0.8:50000", to, "S");
            assert_eq!(table.turn(&mut packet), Side::Nowhere, "{to}");
        }
        let mut other = datagram(at("192.0.0.8:50000"), at("8.8.8.8:443"), b"x").unwrap();
        assert_eq!(table.turn(&mut other), Side::Nowhere);
    }

    #[test]
    fn questions_for_names_are_taken_out_whomever_they_were_sent_to() {
        for (from, to) in [("192.0.0.8:50000", "8.8.8.8:53"), ("[fd73::1]:50000", "[2606::1]:53")] {
            let mut packet = datagram(at(from), at(to), b"name?").unwrap();
            let (from, to) = (at(from), at(to));
            let expected = Side::Question { from, to, question: b"name?".to_vec() };
            assert_eq!(table().turn(&mut packet), expected);
        }
    }

    #[test]
    fn a_full_table_forgets_what_was_not_used() {
        let mut table = table();
        let first = "192.0.0.8:1";
        let host = "93.184.216.34:443";
        // One is idle, while others come and go.
        let idle = "192.0.0.8:2";
        assert_eq!(table.turn(&mut segment(idle, host, "S")), Side::Back);
        for number in 0..2 * MOST {
            let own = format!("192.0.0.8:{}", 20_000 + number);
            assert_eq!(table.turn(&mut segment(&own, host, "S")), Side::Back);
            assert_eq!(table.turn(&mut segment(&own, host, "R")), Side::Back);
        }
        assert_eq!(table.turn(&mut segment(idle, host, "A")), Side::Back);
        for number in 0..MOST + 10 {
            let own = format!("192.0.0.8:{}", 20_000 + number);
            assert_eq!(table.turn(&mut segment(&own, host, "S")), Side::Back);
            // One of them talks all the time.
            assert_eq!(table.turn(&mut segment(first, host, "S")), Side::Back);
        }
        assert!(table.flows.len() <= MOST && table.flows.len() == table.ports.len());
        assert_eq!(table.turn(&mut segment(first, host, "A")), Side::Back);
        let gone = table.turn(&mut segment("192.0.0.8:20000", host, "A"));
        assert!(matches!(gone, Side::Answer(_)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_turned_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), version in 4u8..7) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = version << 4 | (*first & 15);
            }
            let _ = table().turn(&mut bytes);
        }
    }
}
