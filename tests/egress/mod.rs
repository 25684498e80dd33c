//! The way out and the ways in: what leaves a sandbox's network, what comes into it, and secrets.
//!
//! The lab is on this host's loopback: servers of the test, which say what they were asked. What a
//! sandbox may reach there is an address and a port that a rule names literally.

mod origin;
mod publish;
mod redirect;
