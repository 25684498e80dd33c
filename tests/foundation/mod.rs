//! From nothing to a reviewed change: sandboxes, execs, the change set, and what is left behind.

mod change_matrix;
mod first_steps;
mod hijack;
mod overlay;
mod paths;
mod projects;
mod random_work;
mod view;
