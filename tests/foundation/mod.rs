//! From nothing to a reviewed change: sandboxes, execs, the change set, and what is left behind.

mod change_matrix;
mod first_steps;
mod paths;
mod random_work;
