//! Isolation and limits, asked from inside, with control runs.

mod agents;
mod away;
mod bystanders;
mod captures;
mod daemons;
mod defaults;
mod disk;
mod drivers;
pub(crate) mod escape;
mod evasion;
mod hidden;
pub(crate) mod limits;
mod looks;
pub(crate) mod mounts;
mod noted;
mod output;
mod privileges;
mod refused;
mod shares;
mod special;
mod stuck;
mod system_cow;
mod threads;
mod weights;
mod workloads;
