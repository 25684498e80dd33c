//! Packets from inside, where the kernel has no NAT: any bytes are taken without a fault, and what is given back keeps
//! its length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_egress::turned::{Side, Turned, datagram};
use std::net::SocketAddr;

fuzz_target!(|data: &[u8]| {
    let doors: Vec<SocketAddr> =
        vec!["192.0.0.8:4000".parse().unwrap(), "[fd73::1]:4001".parse().unwrap()];
    let mut table = Turned::new(doors.clone());
    // Several packets, one after the other: a length of one byte, then so many bytes.
    let mut rest = data;
    while let Some((length, more)) = rest.split_first() {
        let (packet, more) = more.split_at(usize::from(*length).min(more.len()));
        rest = more;
        let mut packet = packet.to_vec();
        let before = packet.clone();
        match table.turn(&mut packet) {
            Side::Back => assert_eq!(packet.len(), before.len()),
            Side::Answer(answer) => assert!(answer.len() >= 40),
            Side::Question { from, to, question } => {
                assert_eq!(to.port(), 53);
                assert!(datagram(to, from, &question).is_some());
            }
            Side::Nowhere => {}
        }
    }
});
