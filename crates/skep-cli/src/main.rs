//! The binary `skep`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(skep_cli::main(std::env::args_os().collect()))
}
