//! The library that decides: lifecycle, review, upkeep and reconcile over traits.
pub mod api;
