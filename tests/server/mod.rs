//! The server: who may ask, what is answered, and what survives its end.

mod asking;
mod contract;
mod crash;
mod fenced;
pub(crate) mod files;
mod hosts;
mod load;
mod pool;
mod replace;
mod session;
mod store;
mod strain;
mod through;
mod traces;
mod who;
