//! The way out of a sandbox.
//!
//! The sandbox's network namespace has only loopback. Every TCP connection in it is redirected
//! to a listener, every DNS question to a socket, and the other ends of both are here: in a
//! process that the keeper starts beside the sandbox (`skep __egress`, see [`main`]), in the host's
//! network. What is allowed is dialled from here; everything else is refused at once, with a
//! reason that the program, the person and the log get to see. Nothing in a sandbox can switch this
//! off: there is no other way out.
//!
//! How a connection goes:
//!
//! 1. `serve` accepts it. The kernel's memory of NAT says where it was going, or the table of `tun` where
//!    there is no NAT; on the proxy port
//!    `explicit` reads that from CONNECT, SOCKS5 or the request.
//! 2. `connection` looks at the first bytes ([`first_bytes`]): TLS, HTTP or something else.
//! 3. `judge` brings together rules (`skep_policy::egress`), names (`names`: looked up once, checked,
//!    pinned) and the address. TLS is judged by its server name ([`hello`]), HTTP request by
//!    request ([`head`], `gate`, `http`), other protocols by the address that DNS gave out.
//! 4. `plain` and `tunnel` pass bytes, or `forward` sends a request, to exactly the address that was judged.
//! 5. `audit` writes a line.
//!
//! Hosts with a secret are the exception in which TLS ends here (`opened`): towards the inside by
//! a certificate of the sandbox's own authority (`authority`), towards the host as an ordinary
//! verifying client; in between `secrets` puts the value where the placeholder was.
//!
//! HTTP, TLS, DNS, SOCKS and certificates are the work of hyper, rustls, hickory, fast-socks5 and
//! rcgen, packets that of smoltcp. What is parsed here is what they do not: the first bytes of a connection, and
//! the head of a request in its strictest reading. Both are fuzzed, and so is what is done to packets.
//!
//! ```no_run
//! // What the binary does when it is started as an egress process:
//! let words = ["control=3".to_owned(), "audit=4".into(), "tcp=5".into()];
//! skep_egress::main(&words, || "2026-01-01T00:00:00Z".into())?;
//! # Ok::<(), skep_egress::ProcessError>(())
//! ```
//!
//! What is deliberately not here: the namespace, its NAT and its sockets (the keeper makes them),
//! the meaning of rules (`skep-policy`), UDP other than DNS (nothing passes it), and any memory
//! between two runs.

mod audit;
mod authority;
mod client;
mod connection;
mod dns;
mod explicit;
pub mod first_bytes;
mod forward;
mod gate;
mod gateway;
pub mod head;
pub mod hello;
mod http;
mod judge;
mod names;
mod opened;
mod owner;
mod plain;
mod process;
mod secrets;
mod serve;
mod sifted;
mod tun;
mod tunnel;
pub mod turned;
mod upstream;
mod watched;

pub use audit::Clock;
pub use gateway::GatewayError;
pub use process::{ProcessError, main};
pub use serve::{OriginalDestination, Sockets, run};
