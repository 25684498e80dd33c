//! The server: who may ask, what is answered, and what survives its end.

mod asking;
mod crash;
mod through;
mod who;
