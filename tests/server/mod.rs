//! The server: who may ask, what is answered, and what survives its end.

mod asking;
mod contract;
mod crash;
mod fenced;
mod files;
mod load;
mod replace;
mod store;
mod strain;
mod through;
mod who;
