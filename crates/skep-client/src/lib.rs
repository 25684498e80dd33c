//! The typed client of the HTTP API: the same questions as the engine's, asked of a server.
//!
//! [`Client`] implements [`Api`](skep_engine::api::Api), so the command line does not know whether
//! the engine is in its own process or far away. A question is one HTTP request; an attached exec
//! is a WebSocket whose descriptor the caller polls as it would a keeper's.
//!
//! ```no_run
//! use skep_engine::api::Api;
//! # fn example() -> Result<(), skep_types::Problem> {
//! let client = skep_client::Client::new("unix:///run/user/1000/skep.sock", None)?;
//! let sandbox = client.find("agent-1")?;
//! # drop(sandbox); Ok(()) }
//! ```
//!
//! Over a unix socket the kernel says who asks. Over TCP a token does, and then only to this host:
//! there is no TLS here, and a token in the clear is nobody's secret.
//!
//! [`wire`] says how bytes that are not text travel; the server uses it too.
//!
//! What is deliberately not here: retries, caching, decisions.

mod api;
mod connection;
mod files;
mod lower;
mod stream;
pub mod wire;

pub use connection::{Client, read_token};
pub use files::Entry;
