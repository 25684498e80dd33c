//! The server: who may ask, what is answered, and what survives its end.

mod allowed;
mod asking;
mod contract;
pub(crate) mod crash;
mod damaged;
mod fenced;
pub(crate) mod files;
mod full;
mod held;
mod hosts;
mod load;
mod lost;
mod many;
mod migration;
mod moves;
mod outage;
mod pool;
mod replace;
mod session;
mod store;
mod strain;
mod sweep;
mod through;
mod traces;
mod unsynced;
mod upkeep;
mod who;
