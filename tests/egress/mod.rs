//! The way out and the ways in: what leaves a sandbox's network, what comes into it, and secrets.
//!
//! The lab is on this host's loopback: servers of the test, which remember what they heard. What a
//! sandbox may reach there is an address and a port that a rule names literally. Names lead there by
//! a name server of the test that remembers what it was asked.

mod attacks;
mod audit;
mod clients;
pub(crate) mod everywhere;
mod execs;
mod faults;
pub(crate) mod names;
pub(crate) mod origin;
mod policy;
mod publish;
mod raw;
pub(crate) mod redirect;
mod secrets;
mod taken_away;
mod without_nft;
mod world;

/// A client that knows nothing of proxies: connects, sends a line, prints what comes back.
pub(crate) const RAW: &str = "import socket,sys
s=socket.create_connection((sys.argv[1],int(sys.argv[2])),15); s.settimeout(15)
s.sendall(b'GET / HTTP/1.1\\r\\nHost: '+sys.argv[1].encode()+b'\\r\\nConnection: close\\r\\n\\r\\n')
print(b''.join(iter(lambda: s.recv(4096), b'')).decode('latin1'))
";
