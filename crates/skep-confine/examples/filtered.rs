//! Runs a command with no capabilities and under the system call filter, on the bare host: for
//! finding out what a program misses (`strace -f` it from outside).
//!
//! `cargo run -p skep-confine --example filtered -- cargo build`

use skep_confine::privileges::{ProcessLimits, drop_all, leave_keyring, set_limits};
use skep_confine::seccomp::{SeccompVariant, install};
use std::os::unix::process::CommandExt;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().ok_or("a command is expected")?;
    set_limits(&ProcessLimits::default())?;
    leave_keyring()?;
    drop_all()?;
    install(SeccompVariant::Default)?;
    Err(Command::new(program).args(arguments).exec().into())
}
