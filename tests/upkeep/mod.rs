//! Settings, upkeep and the shared store, on the real binary.

mod archive;
mod expire;
mod mounts;
mod remove;
mod settings;
mod shared;
