//! What the processes of a sandbox see: planned as data, then built.

pub mod apply;
pub mod fuse;
pub mod ground;
pub mod home;
pub mod image;
pub mod outside;
pub mod overlay;
pub mod plan;
pub mod sources;
pub mod system;
pub mod workspace;
