//! From nothing to a reviewed change: sandboxes, execs, the change set, and what is left behind.

mod first_steps;
