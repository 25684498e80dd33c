//! The review: what is shown is what is taken over, and nothing of anybody's is lost on the way.

mod copy;
mod cost;
mod crash;
mod decisions;
mod desk;
mod digest;
mod drift;
mod feedback;
mod forged_pack;
mod git_base;
mod history;
mod hunks;
mod kinds;
mod layers;
mod model;
mod names;
mod newcomer;
mod payload;
mod property;
mod pull;
mod rebase;
mod risk;
mod saves;
mod syscalls;
mod truth;
mod undo;
