//! The command line of skep: what was typed becomes requests, answers become text or JSON.
//!
//! A command goes through five steps, each in a module of its own:
//!
//! 1. `surroundings` reads, once, everything that is not an argument: environment, current
//!    directory, user, which of the standard streams are terminals. Nothing else here does.
//! 2. `arguments` and the structs at the top of each file in `commands` say what can be typed.
//!    Only the parser of the command that was named is built, because building all of them costs
//!    more than the rest of a short command; the whole tree is built for help, completion and
//!    suggestions. `skep version` does not even get that far.
//! 3. `resolve`, `project`, `naming` and `paths` turn what was typed into values of `skep-types`
//!    and requests of `skep_engine::api`. They are pure, apart from asking the API which names
//!    exist, and hold most of the tests.
//! 4. The command calls the [`Api`](skep_engine::api::Api). It never knows whether the engine is
//!    in this process or behind `--host`: `wiring` decides that, and is the only file that names
//!    a provider or a store.
//! 5. `render` makes text for people out of the answer, with every name and line escaped;
//!    `json` makes the documents whose keys CLI.md promises. Data goes to standard output,
//!    everything else to standard error.
//!
//! `exit` is the only place that knows exit codes, and `attach` the only one that touches the
//! terminal's modes: it connects our standard streams and signals to a command inside.
//!
//! ```no_run
//! // What `main` does:
//! let code = skep_cli::main(std::env::args_os().collect());
//! std::process::exit(code.into());
//! ```
//!
//! What is deliberately not here: decisions. Whether a change is risky, a limit can be enforced or
//! an approval is stale is for the engine to say; the command line only shows it.

mod arguments;
mod asking;
mod attach;
mod commands;
mod context;
mod egress;
mod environment;
mod exit;
mod ids;
mod json;
mod missing_program;
mod naming;
mod output;
mod pager;
mod paths;
mod progress;
mod project;
mod render;
mod resolve;
mod secrets;
mod selection;
mod storage;
mod surroundings;
mod tree;
mod wiring;

#[cfg(test)]
mod fake;

use arguments::{AfterDashes, GlobalArguments};
use context::Context;
use exit::{Failure, Family};
use output::Output;
use std::ffi::OsString;
use surroundings::Surroundings;

/// Runs one command line, program name included, and returns the exit code.
pub fn main(line: Vec<OsString>) -> u8 {
    if let Some(code) = wiring::init(&line) {
        return code;
    }
    if let Some(code) = wiring::attendant(&line) {
        return code;
    }
    if line.get(1).is_some_and(|word| word == skep_types::EGRESS_WORD) {
        return egress::main(&line[2..]);
    }
    if skep_machine::guest::is_init(line.first().map(AsRef::as_ref)) {
        skep_machine::guest::run(skep_knock::answer);
    }
    let output = Output::standard();
    if commands::version::is_all_that_was_asked(&line) {
        return exit::finish(commands::version::print(&output), Family::Other, &output);
    }
    let wants_json = arguments::wants_json(&line);
    match Surroundings::read() {
        Ok(surroundings) => run(line, surroundings, output.json_errors(wants_json)),
        Err(problem) => exit::finish(
            Err(Failure::Problem(problem)),
            Family::Other,
            &output.json_errors(wants_json),
        ),
    }
}

fn run(line: Vec<OsString>, surroundings: Surroundings, output: Output) -> u8 {
    // The lines that are typed most, and that skep is measured by.
    let line = match commands::exec::without_options(line) {
        Ok(plain) => return at_once(plain, Family::Exec, false, surroundings, output),
        Err(line) => line,
    };
    let line = match commands::run::without_options(line) {
        Ok(plain) => return at_once(plain, Family::Exec, false, surroundings, output),
        Err(line) => line,
    };
    let line = match commands::diff::without_options(line) {
        Ok(plain) => return at_once(plain, Family::Other, true, surroundings, output),
        Err(line) => line,
    };
    match tree::parse(line) {
        Ok(parsed) => {
            let family = parsed.family();
            let output =
                output.json_errors(parsed.wants_json()).styled(parsed.global(), &surroundings);
            let context =
                Context::new(parsed.global(), surroundings, output).reading(parsed.reads());
            let outcome = parsed.start(&context);
            exit::finish(outcome, family, &context.output)
        }
        Err(error) => exit::finish(Err(Failure::Usage(error)), Family::Other, &output),
    }
}

/// Runs a command whose line needed no parser; `reads` as in the list of commands.
fn at_once<C: tree::Run>(
    (command, after): (C, AfterDashes),
    family: Family,
    reads: bool,
    surroundings: Surroundings,
    output: Output,
) -> u8 {
    let global = GlobalArguments::default();
    let output = output.styled(&global, &surroundings);
    let context = Context::new(&global, surroundings, output).reading(reads);
    exit::finish(command.run(after, &context), family, &context.output)
}
