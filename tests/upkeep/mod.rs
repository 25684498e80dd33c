//! Settings, upkeep and the shared store, on the real binary.

mod archive;
mod settings;
mod shared;
