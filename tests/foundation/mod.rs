//! From nothing to a reviewed change: sandboxes, execs, the change set, and what is left behind.

mod ahead;
mod bad_input;
mod beside;
mod change_matrix;
mod crash_calls;
mod crash_create;
mod deep;
mod documents;
mod exec_records;
mod execs;
mod exit_codes;
mod faults;
mod first_steps;
mod hijack;
mod leftovers;
mod lifecycle;
mod meanwhile;
mod options;
mod overlay;
mod paths;
mod projects;
mod random_work;
mod streams;
mod terminal;
mod view;
