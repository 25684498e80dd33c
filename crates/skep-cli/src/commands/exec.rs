//! `skep exec`: runs a command in an existing sandbox.

use crate::arguments::exec::{
    ConnectArguments, EnvironmentArguments, ExecLimitArguments, OwnLimitArguments, WorkdirArguments,
};
use crate::arguments::{AfterDashes, Json};
use crate::attach::capture::Capture;
use crate::attach::{self, Input, Screen, Sink, terminal};
use crate::commands::create::read_environment;
use crate::context::Context;
use crate::environment::Environment;
use crate::exit::{self, Outcome};
use crate::json::exec::{ExecDocument, ExecResult};
use crate::missing_program::{self, Outside};
use crate::naming;
use crate::output::Output;
use crate::render::summary;
use crate::resolve::{self, Command, Place};
use crate::surroundings::Surroundings;
use crate::tree::Run;
use crate::wiring::{self, Shortcut};
use clap::Args;
use serde::Serialize;
use skep_engine::api::{Api, StartedExec};
use skep_provider::Attach;
use skep_types::{
    ByteString, Code, EndReason, EnforcementReport, ExecEnd, ExecId, ExecSpec, Limits, Problem,
    Sandbox, SandboxName, escape,
};
use std::ffi::OsString;
use std::io;

/// What can be typed.
#[derive(Debug, Default, Args)]
pub(crate) struct Exec {
    /// Sandbox: a name, an id, or 6 or more characters of its beginning (default: the newest here)
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
    own: OwnLimitArguments,
    #[command(flatten)]
    workdir: WorkdirArguments,
    #[command(flatten)]
    connect: ConnectArguments,
    #[command(flatten)]
    json: Json,
}

/// `skep exec NAME -- CMD…` and not a word more needs no parser, whose making would cost a good part of
/// what starting the command does. Any other line is given back.
pub(crate) fn without_options(
    mut line: Vec<OsString>,
) -> Result<(Exec, AfterDashes), Vec<OsString>> {
    let name = match line.as_slice() {
        [_, word, name, dashes, ..] if word == "exec" && dashes == "--" => {
            name.to_str().filter(|name| !name.is_empty() && !name.starts_with('-'))
        }
        _ => None,
    };
    let Some(name) = name.map(str::to_owned) else { return Err(line) };
    let after = AfterDashes(Some(line.split_off(4)));
    Ok((Exec { words: vec![name], ..Exec::default() }, after))
}

#[derive(Serialize)]
struct BackgroundDocument<'a> {
    sandbox: &'a str,
    exec: &'a str,
}

impl Run for Exec {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        let (name, words) = split(&self.words, self.sandbox.as_deref(), after)?;
        let around = &context.surroundings;
        let both = around.terminals.stdin && around.terminals.stdout;
        let tty = self.connect.tty || (both && !self.json.json && !self.detach);
        let input = if self.connect.interactive || tty { Input::Passed } else { Input::Closed };
        // Read once, because it may come from a pipe. That the sandbox is not there is said first.
        let mut env = read_environment(context, &self.environment);
        if let (Ok(env), true) = (&mut env, tty) {
            add_terminal(env, around);
        }
        let limits = Limits {
            memory: self.own.memory,
            cpus: self.own.cpus,
            pids: self.own.pids,
            disk: self.own.disk,
            ..resolve::exec_limits(&self.limits)
        };
        let tty = tty.then(terminal::size_for_new);
        let spec = |project: &ByteString, own: &Option<ByteString>, env| {
            let (workdir, words) = (self.workdir.workdir.as_deref(), words.clone());
            let command = Command { words, workdir, env, limits: limits.clone(), tty };
            let place = Place { here: &around.directory, project: project.as_path(), own };
            resolve::exec(command, &place)
        };
        if let (Some(shortcut), Ok(env)) = (self.shortcut(context, name), &env)
            && let Ok(spec) = spec(&shortcut.way.project, &shortcut.way.workdir, env.clone())
            && refuse_endless_terminal(&shortcut.way.provider, tty.is_some(), around).is_ok()
            && let Some(started) = shortcut.exec(&spec, self.attach(), input == Input::Closed)?
        {
            return match self.detach {
                true => self.in_background(context, &shortcut.way.name, started),
                false => stay(context, &shortcut.way.provider, started, &spec, input),
            };
        }
        let sandbox = naming::named_or_newest(context, name)?;
        refuse_endless_terminal(&sandbox.provider, tty.is_some(), around)?;
        let spec = spec(&sandbox.project, &sandbox.policy.workdir, env?)?;
        if self.json.json && !self.detach {
            return json(context, &sandbox, &spec, input);
        }
        let started = context.api()?.exec(&sandbox.id, &spec, !self.detach)?;
        wiring::remember_way(context.global(), &sandbox);
        match self.detach {
            true => self.in_background(context, &sandbox.name, started),
            false => stay(context, &sandbox.provider, started, &spec, input),
        }
    }
}

impl Exec {
    /// The document of an attached command holds what the store knows of it.
    fn shortcut(&self, context: &Context, name: Option<&str>) -> Option<Shortcut> {
        name.filter(|_| self.detach || !self.json.json).and_then(|name| context.shortcut(name))
    }

    fn attach(&self) -> Attach {
        if self.detach { Attach::No } else { Attach::Yes }
    }

    fn in_background(
        &self,
        context: &Context,
        name: &SandboxName,
        started: StartedExec,
    ) -> Outcome {
        let exec = started.id.as_str();
        if self.json.json {
            let sandbox = name.as_str();
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
) -> Result<(Option<&'a str>, Vec<OsString>), Problem> {
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

/// A terminal whose input comes from elsewhere and ends there needs an end-of-file character that is
/// obeyed. gVisor's terminals do not obey it (runsc 2022-12-19): whoever reads would wait for ever.
pub(crate) fn refuse_endless_terminal(
    provider: &str,
    tty: bool,
    around: &Surroundings,
) -> Result<(), Problem> {
    let name = provider.strip_prefix("oci:").and_then(|word| word.rsplit('/').next());
    if !tty || around.terminals.stdin || !name.is_some_and(|name| name.starts_with("runsc")) {
        return Ok(());
    }
    let message = format!(
        "standard input is no terminal, and a terminal of `{provider}` has no end of input"
    );
    Err(Problem::new(Code::MissingCapability, message)
        .hint("leave `-t` out (`-i` passes input on), or call it from a terminal"))
}

/// What kind of terminal it is belongs to the terminal, not to whoever made the sandbox.
pub(crate) fn add_terminal(env: &mut Environment, around: &Surroundings) {
    if let Some(kind) = around.variable("TERM") {
        env.entry("TERM".into()).or_insert_with(|| kind.as_os_str().into());
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
    let started = context.api()?.exec(&sandbox.id, spec, true)?;
    stay(context, &sandbox.provider, started, spec, input)
}

/// Stays with a command that was started, with our streams, and says why it ended.
fn stay(
    context: &Context,
    provider: &str,
    started: StartedExec,
    spec: &ExecSpec,
    input: Input,
) -> Outcome {
    let ended = stay_with(context, started, spec, input, &mut Through(&context.output))?;
    say_why(context, provider, spec, &ended.end);
    Ok(exit::of_end(&ended.end))
}

fn json(context: &Context, sandbox: &Sandbox, spec: &ExecSpec, input: Input) -> Outcome {
    let api = context.api()?;
    let mut capture = Capture::new(spec.limits.output.map(|size| size.0));
    let ended = stay_with(context, api.exec(&sandbox.id, spec, true)?, spec, input, &mut capture)?;
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
        unsettled: None,
    }))?;
    Ok(exit::of_end(&ended.end))
}

/// Says on standard error why a command ended, unless it simply exited.
pub(crate) fn say_why(context: &Context, provider: &str, spec: &ExecSpec, end: &ExecEnd) {
    let style = context.output.error_style;
    if let Some(why) = summary::end_of(end, spec) {
        context.output.always(&format!("{} {why}", style.red("skep:")));
    }
    let path = context.surroundings.variable("PATH").map(OsString::as_os_str).unwrap_or_default();
    let outside = Outside { path, home: &context.surroundings.home };
    if let Some(hint) = missing_program::hint(end, spec, provider, &outside) {
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

/// Stays with a command that was started, until its end.
pub(crate) fn stay_with(
    context: &Context,
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
            let end = remembered_end(context, &exec, &error);
            Ok(Ended { exec, end })
        }
    }
}

/// The end of an exec whose stream broke: as remembered, else lost.
fn remembered_end(context: &Context, exec: &ExecId, error: &io::Error) -> ExecEnd {
    let found = context.api().and_then(|api| api.find_exec(exec.as_str()));
    let remembered = found.ok().and_then(|exec| exec.end);
    remembered.unwrap_or_else(|| ExecEnd {
        // Whoever held it is gone, and with it everything inside: it was killed.
        signal: Some(9),
        reason: EndReason::Lost,
        message: Some(format!("the connection to exec `{exec}` broke: {error}")),
        ..ExecEnd::exited(137)
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
    fn a_line_without_options_means_what_the_parser_says() {
        use clap::FromArgMatches as _;
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for text in ["skep exec a -- true", "skep exec a -- sh -c -- --json", "skep exec a --"] {
            let (short, after) = without_options(words(text)).unwrap();
            let command = Exec::augment_args(clap::Command::new("exec"));
            let parsed = command.try_get_matches_from(words("exec a")).unwrap();
            let parsed = Exec::from_arg_matches(&parsed).unwrap();
            assert_eq!(format!("{short:?}"), format!("{parsed:?}"));
            let (_, cut) = crate::arguments::Dashes::Cut.cut(words(text));
            assert_eq!(after, cut);
        }
        for text in
            ["skep exec -- true", "skep exec -q -- x", "skep exec a -d -- x", "skep run a -- x"]
        {
            assert_eq!(without_options(words(text)).unwrap_err(), words(text));
        }
    }

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
