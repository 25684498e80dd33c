//! The command line of skep.
fn main() {}
