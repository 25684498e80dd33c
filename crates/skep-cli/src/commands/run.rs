//! `skep run`: create, run, stop, say what changed, and leave nothing that nobody needs.

use super::warn_of_no_isolation;
use crate::arguments::exec::{ConnectArguments, EnvironmentArguments, ExecLimitArguments};
use crate::arguments::sandbox::SandboxArguments;
use crate::arguments::{AfterDashes, Json};
use crate::attach::capture::Capture;
use crate::attach::{Input, terminal};
use crate::commands::create::{read_environment, say_unsearched, say_weakened};
use crate::commands::exec::{
    Ended, Through, enforcement_of, refuse_endless_terminal, say_why, stay_with,
};
use crate::context::{Context, Stay};
use crate::exit::{self, Failure, Outcome};
use crate::json::exec::{ExecDocument, ExecResult};
use crate::render::egress;
use crate::render::summary::{self, Fate};
use crate::resolve::{self, Command, Place};
use clap::Args;
use skep_engine::api::{Api, CreateRequest, Disposal, SettledRun, StartedExec, StartedRun};
use skep_sys::processors::Turns;
use skep_types::{
    ChangeSet, Code, EnforcementReport, ExecSpec, NetworkMode, Problem, Sandbox, SandboxName,
    SandboxState,
};
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// How long a store is waited for that somebody else holds, when the command has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// Before it is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// What can be typed.
#[derive(Debug, Default, Args)]
pub(crate) struct Run {
    /// The command and its arguments, passed on as they are
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    sandbox: SandboxArguments,
    /// Delete the sandbox afterwards (kept if it has changes, unless --discard)
    #[arg(long, conflicts_with = "keep")]
    rm: bool,
    /// Keep the sandbox even without changes
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    environment: EnvironmentArguments,
    #[command(flatten)]
    limits: ExecLimitArguments,
    #[command(flatten)]
    connect: ConnectArguments,
    #[command(flatten)]
    json: Json,
}

/// `skep run -- CMD…` and not a word more needs no parser. Any other line is given back.
pub(crate) fn without_options(
    mut line: Vec<OsString>,
) -> Result<(Run, AfterDashes), Vec<OsString>> {
    match line.as_slice() {
        [_, word, dashes, ..] if word == "run" && dashes == "--" => {
            let after = AfterDashes(Some(line.split_off(3)));
            Ok((Run::default(), after))
        }
        _ => Err(line),
    }
}

impl crate::tree::Run for Run {
    fn run(self, after: AfterDashes, context: &Context) -> Outcome {
        context.begin_early(&self.sandbox, Stay::ForACommand);
        let (request, spec) = self.resolve(after, context)?;
        let (api, StartedRun { sandbox, exec }) = context.begin_run(&request, &spec)?;
        warn_of_no_isolation(context, &sandbox);
        context.output.detail(&format!(
            "sandbox: {} ({}, {})",
            sandbox.name,
            sandbox.provider,
            sandbox.driver.as_str()
        ));
        let exec = exec.map_err(|problem| not_started(api, &sandbox, problem))?;
        refuse_endless_terminal(&sandbox.provider, spec.tty.is_some(), &context.surroundings)
            .map_err(|problem| not_started(api, &sandbox, problem))?;
        if self.json.json {
            self.captured(context, api, &sandbox, &spec, exec)
        } else {
            say_unsearched(context, &sandbox);
            say_weakened(context, &request, &sandbox);
            self.streamed(context, api, &sandbox, &spec, exec)
        }
    }
}

impl Run {
    fn resolve(
        &self,
        after: AfterDashes,
        context: &Context,
    ) -> Result<(CreateRequest, ExecSpec), Problem> {
        let around = &context.surroundings;
        let project = context.project_to_use(self.sandbox.project.as_deref())?;
        let env = read_environment(context, &self.environment)?;
        let both = around.terminals.stdin && around.terminals.stdout;
        let tty = self.connect.tty || (both && !self.json.json);
        let command = Command {
            words: whole_command(&self.command, after),
            workdir: self.sandbox.workdir.as_deref(),
            env: Default::default(),
            limits: resolve::exec_limits(&self.limits),
            tty: tty.then(terminal::size_for_new),
        };
        // Where the sandbox shall start is what was typed for this command too.
        let place = Place { here: &around.directory, project: &project, own: &None };
        let spec = resolve::exec(command, &place)?;
        let mut request = resolve::create(&self.sandbox, &self.limits, env, project, around)?;
        if self.keep {
            request.keep = true;
        }
        let named = request.provider.as_deref().unwrap_or_default();
        refuse_endless_terminal(named, tty, around)?;
        super::image::places::ensure(context, &request)?;
        Ok((request, spec))
    }

    fn streamed(
        &self,
        context: &Context,
        api: &dyn Api,
        sandbox: &Sandbox,
        spec: &ExecSpec,
        exec: StartedExec,
    ) -> Outcome {
        let sink = &mut Through(&context.output);
        let ended = stay_with(context, exec, spec, Input::Passed, sink)
            .map_err(|problem| not_started(api, sandbox, problem))?;
        say_why(context, &sandbox.provider, spec, &ended.end);
        let denials = denials(context, api, sandbox);
        if let Some((set, fate)) = self.afterwards(context, api, sandbox).seen {
            let style = context.output.error_style;
            if let Some(denials) = denials {
                context.output.say(denials.trim_end());
            }
            if let Some(hidden) = summary::hidden(style, &sandbox.hidden) {
                context.output.say(&hidden);
            }
            let text = summary::after_run(style, &set, &ended.end, fate);
            context.output.say(text.trim_end());
        }
        Ok(exit::of_end(&ended.end))
    }

    fn captured(
        &self,
        context: &Context,
        api: &dyn Api,
        sandbox: &Sandbox,
        spec: &ExecSpec,
        exec: StartedExec,
    ) -> Outcome {
        let input = if self.connect.interactive { Input::Passed } else { Input::Closed };
        let mut capture = Capture::new(spec.limits.output.map(|size| size.0));
        let ended = stay_with(context, exec, spec, input, &mut capture)
            .map_err(|problem| not_started(api, sandbox, problem))?;
        // Before the sandbox may be gone.
        let enforcement = enforcement_of(api, &ended.exec, sandbox);
        let after = self.afterwards(context, api, sandbox);
        print_document(context, sandbox, &ended, capture, &enforcement, after)?;
        Ok(exit::of_end(&ended.end))
    }

    /// Stops the sandbox, looks at what changed, and removes it where that was asked for or
    /// nothing would be lost. Failures are said; the exit code stays the command's.
    fn afterwards(&self, context: &Context, api: &dyn Api, sandbox: &Sandbox) -> Afterwards {
        let disposal = Disposal {
            without_changes: !self.keep,
            with_changes: self.rm && self.sandbox.discard,
            discard: self.sandbox.discard,
        };
        let settled = settle(context, api, sandbox, disposal);
        let SettledRun { changes: set, removal } = match settled {
            Ok(settled) => settled,
            Err(problem) => {
                let (problem, fate) = left(&sandbox.name, problem, api.find(sandbox.id.as_str()));
                context.output.problem(&problem);
                context.output.always(&format!("sandbox {} {fate}", sandbox.name));
                return Afterwards { seen: None, unsettled: Some(problem) };
            }
        };
        let mut unsettled = None;
        match removal {
            Some(Ok(())) => {
                return Afterwards { seen: Some((set, Fate::Removed)), unsettled: None };
            }
            Some(Err(problem)) => {
                context.output.problem(&problem);
                unsettled = Some(problem);
            }
            None if self.rm => {
                context.output.always(&format!(
                    "skep: sandbox `{}` has changes and was not removed; `--rm --discard` removes \
                     it with its changes",
                    sandbox.name
                ));
            }
            None => {}
        }
        Afterwards { seen: Some((set, Fate::Kept)), unsettled }
    }
}

/// What is known of a sandbox after its run.
struct Afterwards {
    /// What it changed, and what became of it; `None` if that could not be found out.
    seen: Option<(ChangeSet, Fate)>,
    /// What could not be done, or not be written down.
    unsettled: Option<Problem>,
}

/// A store that somebody holds for a moment is waited for: what the run came to is written down, if
/// that can be had at all.
///
/// Whoever takes the sandbox down goes first, the kernel's own threads too: we wait for them in the end.
fn settle(
    context: &Context,
    api: &dyn Api,
    sandbox: &Sandbox,
    disposal: Disposal,
) -> Result<SettledRun, Problem> {
    let _ = Turns::own().map(|turns| turns.last().take());
    let deadline = Instant::now() + PATIENCE;
    let mut said = false;
    loop {
        match api.settle_run(&sandbox.id, disposal) {
            Err(problem) if problem.code == Code::Busy && Instant::now() < deadline => {
                if !std::mem::replace(&mut said, true) {
                    context.output.say("skep: the command has ended; the store is waited for");
                }
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// What is left of a run that could not be settled: why, and what became of the sandbox, as it is remembered now. The
/// command has run, and its exit code is told. If that is not written down it is said, and who will do it.
fn left(
    name: &SandboxName,
    problem: Problem,
    found: Result<Sandbox, Problem>,
) -> (Problem, &'static str) {
    use SandboxState::{Frozen, Ready};
    match found {
        Err(missing) if missing.code == Code::NotFound => (problem, "was removed meanwhile"),
        // It is written down: something else went wrong.
        Ok(row) if !matches!(row.state, Ready | Frozen) => (problem, "is kept"),
        Ok(_) | Err(_) => (not_written(name, problem), "is kept"),
    }
}

fn not_written(name: &SandboxName, problem: Problem) -> Problem {
    let message = format!(
        "the command has ended, and that could not be written down for sandbox `{name}`: {}",
        problem.message
    );
    let hint = format!(
        "its changes are kept and its processes ended; when the store can be written again, the next \
         `skep` command notes that, and `skep diff {name}` shows them"
    );
    Problem { message, hint: Some(hint), ..problem }
}

/// What the network did not let through; looked at while the sandbox is still there.
fn denials(context: &Context, api: &dyn Api, sandbox: &Sandbox) -> Option<String> {
    if sandbox.policy.network != NetworkMode::Allow {
        return None;
    }
    let view = api.egress(&sandbox.id).ok()?;
    egress::after_run(context.output.error_style, &view)
}

/// The command could not even be asked for: a sandbox without a single exec is of no use.
fn not_started(api: &dyn Api, sandbox: &Sandbox, problem: Problem) -> Failure {
    // Without `discard`, so that changes that came from elsewhere are never lost here; and the
    // first error is the one to report.
    let _ = api.remove(&sandbox.id, false);
    Failure::Problem(problem)
}

fn print_document(
    context: &Context,
    sandbox: &Sandbox,
    ended: &Ended,
    capture: Capture,
    enforcement: &EnforcementReport,
    after: Afterwards,
) -> Result<(), Failure> {
    context.output.document(&ExecDocument::new(ExecResult {
        sandbox: sandbox.name.as_str(),
        exec: ended.exec.as_str(),
        end: &ended.end,
        truncated: capture.truncated(),
        stdout: capture.stdout.into_bytes(),
        stderr: capture.stderr.into_bytes(),
        enforcement,
        changes: after.seen.map(|(set, _)| set.totals),
        unsettled: after.unsettled.as_ref(),
    }))
}

/// `run [--] CMD…`: the line was cut at the first `--`, which belongs to the command if a command
/// word stood before it.
fn whole_command(before: &[OsString], after: AfterDashes) -> Vec<OsString> {
    let mut words = before.to_vec();
    if let Some(after) = after.0 {
        if !words.is_empty() {
            words.push("--".into());
        }
        words.extend(after);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_options_means_what_the_parser_says() {
        use clap::FromArgMatches as _;
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for text in ["skep run -- true", "skep run -- sh -c -- --json", "skep run --"] {
            let (short, after) = without_options(words(text)).unwrap();
            let command = Run::augment_args(clap::Command::new("run"));
            let parsed = command.try_get_matches_from(words("run")).unwrap();
            let parsed = Run::from_arg_matches(&parsed).unwrap();
            assert_eq!(format!("{short:?}"), format!("{parsed:?}"));
            let (_, cut) = crate::arguments::Dashes::Cut.cut(words(text));
            assert_eq!(after, cut);
        }
        for text in ["skep run", "skep run true", "skep run -q -- x", "skep -q run -- x"] {
            assert_eq!(without_options(words(text)).unwrap_err(), words(text));
        }
    }

    #[test]
    fn what_is_not_written_is_said_and_nothing_else_is_called_so() {
        let busy = || Problem::new(Code::Busy, "the store is held");
        let row = |state| Sandbox { state, ..crate::fake::sandbox("one") };
        let name = row(SandboxState::Ready).name;
        let left = |found| left(&name, busy(), found);
        let gone = Problem::new(Code::NotFound, "there is no sandbox");
        assert_eq!(left(Err(gone)), (busy(), "was removed meanwhile"));
        assert_eq!(left(Ok(row(SandboxState::Stopped))), (busy(), "is kept"));
        for found in [Ok(row(SandboxState::Ready)), Err(busy())] {
            let (problem, fate) = left(found);
            assert_eq!((problem.code, problem.retryable, fate), (Code::Busy, true, "is kept"));
            assert!(problem.message.ends_with("the store is held"), "{problem}");
            assert!(problem.message.contains("could not be written down for sandbox `one`"));
            assert!(problem.hint.unwrap().contains("`skep diff one`"));
        }
    }

    #[test]
    fn the_command_keeps_its_own_dashes() {
        let words =
            |text: &str| -> Vec<OsString> { text.split_whitespace().map(OsString::from).collect() };
        let after = |text: &str| AfterDashes(Some(words(text)));
        assert_eq!(whole_command(&[], after("sh -c x")), words("sh -c x"));
        assert_eq!(whole_command(&words("git log"), after("file")), words("git log -- file"));
        assert_eq!(whole_command(&words("ls -l"), AfterDashes(None)), words("ls -l"));
        assert_eq!(whole_command(&[], after("a -- b")), words("a -- b"));
    }
}
