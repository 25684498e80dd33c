//! What the processes of a sandbox see: planned as data, then built.

pub mod apply;
pub mod overlay;
pub mod plan;
pub mod sources;
