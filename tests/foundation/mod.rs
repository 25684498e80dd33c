//! From nothing to a reviewed change: sandboxes, execs, the change set, and what is left behind.

mod bad_input;
mod change_matrix;
mod documents;
mod execs;
mod exit_codes;
mod first_steps;
mod hijack;
mod lifecycle;
mod overlay;
mod paths;
mod projects;
mod random_work;
mod streams;
mod view;
