//! `skep exec`: runs a command in an existing sandbox.

use crate::arguments::exec::{ConnectArguments, EnvironmentArguments, ExecLimitArguments};
use crate::arguments::{AfterDashes, Json};
use crate::attach::capture::Capture;
use crate::attach::{self, Input, Screen, Sink, terminal};
use crate::commands::create::read_environment;
use crate::context::Context;
use crate::exit::{self, Outcome};
use crate::json::exec::{ExecDocument, ExecResult};
use crate::naming;
use crate::output::Output;
use crate::render::summary;
use crate::resolve::{self, Command};
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_engine::api::{Api, StartedExec};
use skep_types::{
    Code, EndReason, EnforcementReport, ExecEnd, ExecId, ExecSpec, ExecStats, Problem, Sandbox,
    escape,
};
use std::io;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Sandbox: a name, an id, or the beginning of an id (default: the project's newest)
    #[arg(value_name = "NAME")]
    words: Vec<String>,
    /// The same, as an option
    #[arg(short, long, value_name = "NAME", conflicts_with = "words")]
    sandbox: Option<String>,
    /// Run in the background and print the exec's id
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,
    #[command(flatten)]
    environment: EnvironmentArguments,
    #[command(flatten)]
    limits: ExecLimitArguments,
    #[command(flatten)]
    connect: ConnectArguments,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct BackgroundDocument<'a> {
    sandbox: &'a str,
    exec: &'a str,
}

impl Run for Exec {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        let (name, words) = split(&self.words, self.sandbox.as_deref(), after)?;
        let sandbox = naming::named_or_newest(context, name)?;
        let around = &context.surroundings;
        let both = around.terminals.stdin && around.terminals.stdout;
        let tty = self.connect.tty || (both && !self.json.json && !self.detach);
        let command = Command {
            words,
            workdir: self.connect.workdir.as_deref(),
            env: read_environment(context, &self.environment)?,
            limits: resolve::exec_limits(&self.limits),
            tty: tty.then(terminal::size_for_new),
        };
        let spec = resolve::exec(command, &around.directory, sandbox.project.as_path())?;
        if self.detach {
            return self.in_background(context, &sandbox, &spec);
        }
        let input = if self.connect.interactive || tty { Input::Passed } else { Input::Closed };
        if self.json.json {
            json(context, &sandbox, &spec, input)
        } else {
            plain(context, &sandbox, &spec, input)
        }
    }
}

impl Exec {
    fn in_background(&self, context: &Context, sandbox: &Sandbox, spec: &ExecSpec) -> Outcome {
        let started = context.api()?.exec(&sandbox.id, spec, false)?;
        let exec = started.id.as_str();
        if self.json.json {
            let sandbox = sandbox.name.as_str();
            context.output.document(&BackgroundDocument { sandbox, exec })?;
        } else {
            context.output.text(&format!("{exec}\n"))?;
        }
        Ok(0)
    }
}

/// The name and the command. Everything behind `--` is the command; without it there is none, so
/// that a command can never be taken for a name nor a name for a command.
fn split<'a>(
    words: &'a [String],
    sandbox: Option<&'a str>,
    after: AfterDashes,
) -> Result<(Option<&'a str>, Vec<std::ffi::OsString>), Problem> {
    match (words, after.0) {
        ([], Some(command)) => Ok((sandbox, command)),
        ([name], Some(command)) => Ok((Some(name), command)),
        (words, after) => {
            let typed = escape::visible(words.join(" ").as_bytes());
            let message = match after {
                None => "the command must stand behind `--`".to_owned(),
                Some(_) => format!("one name is expected before `--`, not `{typed}`"),
            };
            Err(Problem::new(Code::Usage, message).hint("write: skep exec NAME -- COMMAND…"))
        }
    }
}

/// How an attached command ended.
pub(crate) struct Ended {
    /// Its id.
    pub(crate) exec: ExecId,
    /// Its end.
    pub(crate) end: ExecEnd,
}

/// Runs a command with our streams and says why it ended, where that needs saying.
pub(crate) fn plain(
    context: &Context,
    sandbox: &Sandbox,
    spec: &ExecSpec,
    input: Input,
) -> Outcome {
    let ended = attached(context.api()?, sandbox, spec, input, &mut Through(&context.output))?;
    say_why(context, sandbox, spec, &ended.end);
    Ok(exit::of_end(&ended.end))
}

fn json(context: &Context, sandbox: &Sandbox, spec: &ExecSpec, input: Input) -> Outcome {
    let api = context.api()?;
    let mut capture = Capture::new(spec.limits.output.map(|size| size.0));
    let ended = attached(api, sandbox, spec, input, &mut capture)?;
    let enforcement = enforcement_of(api, &ended.exec, sandbox);
    context.output.document(&ExecDocument::new(ExecResult {
        sandbox: sandbox.name.as_str(),
        exec: ended.exec.as_str(),
        end: &ended.end,
        truncated: capture.truncated(),
        stdout: capture.stdout.into_bytes(),
        stderr: capture.stderr.into_bytes(),
        enforcement: &enforcement,
        changes: None,
    }))?;
    Ok(exit::of_end(&ended.end))
}

/// Says on standard error why a command ended, unless it simply exited.
pub(crate) fn say_why(context: &Context, sandbox: &Sandbox, spec: &ExecSpec, end: &ExecEnd) {
    let style = context.output.error_style;
    if let Some(why) = summary::end_of(end, spec) {
        context.output.always(&format!("{} {why}", style.red("skep:")));
    }
    if let Some(hint) = summary::not_found_hint(end, spec, &sandbox.provider) {
        context.output.say(&format!("{} {hint}", style.cyan("hint:")));
    }
}

/// What was enforced on an exec; if it cannot be read any more, what is known of its sandbox.
pub(crate) fn enforcement_of(api: &dyn Api, exec: &ExecId, sandbox: &Sandbox) -> EnforcementReport {
    match api.find_exec(exec.as_str()) {
        Ok(exec) if !exec.enforcement.0.is_empty() => exec.enforcement,
        _ => sandbox.enforcement.clone(),
    }
}

/// Starts a command and stays with it until its end.
pub(crate) fn attached(
    api: &dyn Api,
    sandbox: &Sandbox,
    spec: &ExecSpec,
    input: Input,
    sink: &mut dyn Sink,
) -> Result<Ended, Problem> {
    stay_with(api, api.exec(&sandbox.id, spec, true)?, spec, input, sink)
}

/// Stays with a command that was started, until its end.
pub(crate) fn stay_with(
    api: &dyn Api,
    started: StartedExec,
    spec: &ExecSpec,
    input: Input,
    sink: &mut dyn Sink,
) -> Result<Ended, Problem> {
    let exec = started.id;
    let Some(mut stream) = started.stream else {
        let message = format!("exec `{exec}` was started without its streams");
        return Err(Problem::new(Code::Internal, message));
    };
    let screen = if spec.tty.is_some() { Screen::Terminal } else { Screen::Pipes };
    match attach::pump(stream.as_mut(), input, screen, sink) {
        Ok(end) => Ok(Ended { exec, end }),
        Err(error) => {
            drop(stream);
            let end = remembered_end(api, &exec, &error);
            Ok(Ended { exec, end })
        }
    }
}

/// The end of an exec whose stream broke: as remembered, else lost.
fn remembered_end(api: &dyn Api, exec: &ExecId, error: &io::Error) -> ExecEnd {
    let remembered = api.find_exec(exec.as_str()).ok().and_then(|exec| exec.end);
    remembered.unwrap_or_else(|| ExecEnd {
        // Whoever held it is gone, and with it everything inside: it was killed.
        exit_code: 137,
        signal: Some(9),
        reason: EndReason::Lost,
        message: Some(format!("the connection to exec `{exec}` broke: {error}")),
        limits_hit: Vec::new(),
        truncated: false,
        refused: Vec::new(),
        stats: ExecStats::default(),
    })
}

/// A command's output on our own streams, byte for byte.
pub(crate) struct Through<'a>(pub(crate) &'a Output);

impl Sink for Through<'_> {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.bytes(bytes)
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.error_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_never_taken_for_a_name() {
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let after = |words: &[&str]| AfterDashes(Some(words.iter().map(Into::into).collect()));
        let none = words(&[]);
        let (name, command) = split(&none, None, after(&["npm", "test"])).unwrap();
        assert_eq!((name, command.len()), (None, 2));
        let one = words(&["c1"]);
        assert_eq!(split(&one, None, after(&["npm"])).unwrap().0, Some("c1"));
        for (bad, rest) in [
            (words(&["npm", "test"]), AfterDashes(None)),
            (words(&["c1"]), AfterDashes(None)),
            (words(&["a", "b"]), after(&["x"])),
        ] {
            assert_eq!(split(&bad, None, rest).unwrap_err().code, Code::Usage);
        }
    }
}
