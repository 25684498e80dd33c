//! Long text for a person at a terminal goes through their pager.
//!
//! `PAGER`, else `less`, which ends by itself where everything fits on the screen (`LESS=FRX`, unless they have their own).
//! `PAGER=cat` is none. What is written there is what a terminal without one would get: nothing of
//! what a sandbox wrote is acted upon.

use crate::context::Context;
use crate::exit::Failure;
use crate::surroundings::Surroundings;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::{Child, Command, Stdio};

/// Ctrl-C is for whoever has the screen.
const SIGINT: i32 = 2;

/// Writes a text of any length: through the pager of whoever sits at a terminal, else plainly.
pub(crate) fn pages(
    context: &Context,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let started = command(&context.surroundings).and_then(|mut pager| pager.spawn().ok());
    match started {
        Some(pager) => Ok(through(pager, write)?),
        None => context.output.pieces(write),
    }
}

fn through(
    mut pager: Child,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    skep_sys::signal::ignore(SIGINT);
    let written = match pager.stdin.take() {
        Some(stdin) => {
            let mut buffered = BufWriter::new(stdin);
            write(&mut buffered).and_then(|()| buffered.flush())
        }
        None => Ok(()),
    };
    pager.wait()?;
    match written {
        // They have read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// `None` where nobody sits, the terminal can do nothing, or no pager is wanted.
fn command(around: &Surroundings) -> Option<Command> {
    let terminal = around.variable("TERM").is_some_and(|name| name != "dumb");
    if !around.terminals.stdin || !around.terminals.stdout || !terminal {
        return None;
    }
    let mut command = match around.variable("PAGER") {
        None => Command::new("less"),
        Some(chosen) => {
            let [shell, flag, words] = wanted(chosen)?;
            let mut command = Command::new(shell);
            command.args([flag, words]);
            command
        }
    };
    if around.variable("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    command.stdin(Stdio::piped());
    Some(command)
}

/// What was chosen may be more than one word.
fn wanted(chosen: &OsString) -> Option<[OsString; 3]> {
    (chosen != "cat").then(|| ["sh".into(), "-c".into(), chosen.clone()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_chosen_is_a_line_for_the_shell_and_cat_is_none() {
        assert_eq!(wanted(&"cat".into()), None);
        let words = ["sh".into(), "-c".into(), "less -S".into()];
        assert_eq!(wanted(&"less -S".into()), Some(words));
    }
}
