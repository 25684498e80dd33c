//! The server: who may ask, what is answered, and what survives its end.

mod asking;
mod crash;
mod fenced;
mod files;
mod replace;
mod through;
mod who;
