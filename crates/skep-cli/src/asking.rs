//! Asking a person before something is done that was not named piece by piece.

use crate::context::Context;
use skep_types::{Code, Problem};
use std::io::BufRead as _;

/// Whether there is a person to ask.
pub(crate) fn somebody(context: &Context) -> bool {
    let terminals = context.surroundings.terminals;
    terminals.stdin && terminals.stderr
}

/// Asks a person at a terminal; without one, having typed the command is the answer. Anything but
/// a yes is a refusal, with these words.
pub(crate) fn ask(context: &Context, question: &str, refusal: &str) -> Result<(), Problem> {
    if !somebody(context) {
        return Ok(());
    }
    context.output.ask(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Problem::new(Code::Refused, refusal))
}
