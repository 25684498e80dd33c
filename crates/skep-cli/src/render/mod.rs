//! Text for people. Every name and every line from inside goes through `skep_types::escape`.

pub(crate) mod diff;
pub(crate) mod egress;
pub(crate) mod overlaps;
pub(crate) mod sandbox;
pub(crate) mod style;
pub(crate) mod summary;
pub(crate) mod table;
