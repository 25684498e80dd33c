//! What tests have on the host's loopback.

use std::net::{Ipv4Addr, TcpListener};

/// A port of 127.0.0.1 that is free now.
pub(super) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
