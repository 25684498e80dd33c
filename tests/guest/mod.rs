//! What only a machine of its own can show: see `harness/guest.rs`.

mod folding;
mod kernel;
mod limits;
mod power;
mod quota;
