//! `skep doctor`: what was probed, what works, and what to do about the rest.
//!
//! What is quick is tried at once. What takes seconds, such as booting a guest, only when asked: with
//! `--try` a command is run in a sandbox of every provider that may work.

use crate::arguments::{AfterDashes, Json};
use crate::attach::Input;
use crate::attach::capture::Capture;
use crate::commands::exec::stay_with;
use crate::context::Context;
use crate::exit::Outcome;
use crate::render::style::Style;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_engine::api::{Api, CreateRequest, Finding};
use skep_types::escape::visible_text;
use skep_types::{Code, ExecSpec, Problem, Sandbox};
use std::fmt::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also run a command in a sandbox of each provider, which takes seconds (microvm boots a guest)
    #[arg(long = "try")]
    thorough: bool,
    #[command(flatten)]
    json: Json,
}

/// One element of the JSON list.
#[derive(Serialize)]
pub(crate) struct FindingView<'a> {
    name: &'a str,
    ok: bool,
    tried: bool,
    how: &'a str,
    reason: Option<&'a str>,
    remedy: Option<&'a str>,
}

impl<'a> FindingView<'a> {
    /// Of a finding, under a name.
    pub(crate) fn new(finding: &'a Finding, name: &'a str) -> Self {
        Self {
            name,
            ok: finding.ok,
            tried: finding.tried,
            how: &finding.how,
            reason: finding.reason.as_deref(),
            remedy: finding.remedy.as_deref(),
        }
    }
}

impl Run for Doctor {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        if self.thorough && context.host().is_some() {
            return Err(Problem::new(Code::Usage, "`--try` needs the machine that it tries")
                .hint("ask there: `skep doctor --try` without `--host`")
                .into());
        }
        let mut findings = context.api()?.doctor()?;
        if self.thorough {
            try_providers(context, &mut findings)?;
        }
        if self.json.json {
            let views: Vec<_> =
                findings.iter().map(|finding| FindingView::new(finding, &finding.name)).collect();
            context.output.document(&views)?;
        } else {
            let all = findings.iter().map(|finding| (finding.name.as_str(), finding));
            let verdict = verdict(&findings);
            context.output.text(&format!("{verdict}\n\n{}", text(context.output.style, all)))?;
        }
        Ok(0)
    }
}

/// Runs a command in a sandbox of each provider that is not known to be missing.
fn try_providers(context: &Context, findings: &mut [Finding]) -> Result<(), Problem> {
    let project = Project::make()?;
    for finding in findings {
        let Some(word) = finding.name.strip_prefix("provider ") else { continue };
        if finding.tried && !finding.ok {
            continue;
        }
        let start = Instant::now();
        let tried = try_provider(context, word, &project.0);
        finding.tried = true;
        finding.ok = tried.is_ok();
        finding.how = format!("ran `true` in a sandbox ({} ms)", start.elapsed().as_millis());
        (finding.reason, finding.remedy) = match tried {
            Ok(()) => (None, None),
            Err(problem) => (Some(problem.message), problem.hint),
        };
    }
    Ok(())
}

fn try_provider(context: &Context, word: &str, project: &Path) -> Result<(), Problem> {
    let (api, around) = (context.api()?, &context.surroundings);
    let sandbox = api.create(&CreateRequest {
        provider: Some(word.to_owned()),
        project: project.to_owned(),
        home: around.home.clone(),
        host_env: around.environment(),
        ..CreateRequest::default()
    })?;
    let ran = run_true(context, api, &sandbox);
    let removed = api.remove(&sandbox.id, true);
    ran.and(removed)
}

fn run_true(context: &Context, api: &dyn Api, sandbox: &Sandbox) -> Result<(), Problem> {
    let spec = ExecSpec { argv: vec!["true".into()], ..ExecSpec::default() };
    let started = api.exec(&sandbox.id, &spec, true)?;
    let mut capture = Capture::new(Some(4096));
    let ended = stay_with(context, started, &spec, Input::Closed, &mut capture)?;
    match ended.end.exit_code {
        0 => Ok(()),
        code => {
            let why = ended.end.message.unwrap_or_else(|| format!("it ended with {code}"));
            Err(Problem::new(Code::Internal, format!("`true` did not run: {why}")))
        }
    }
}

/// An empty directory that goes with this value.
struct Project(PathBuf);

impl Project {
    fn make() -> Result<Self, Problem> {
        let name = format!("skep-doctor-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| {
            Problem::new(Code::Io, format!("cannot make `{}`: {error}", path.display()))
        })?;
        Ok(Self(path))
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Whether skep can be used here at all, and with what: the rest is for those who look for it.
fn verdict(findings: &[Finding]) -> String {
    let ok = |name: &str| findings.iter().any(|finding| finding.name == name && finding.ok);
    let provider =
        ["namespace", "bubblewrap"].into_iter().find(|name| ok(&format!("provider {name}")));
    let Some(provider) = provider else {
        return "skep does not work here yet: see `provider namespace` below, its reason and remedy"
            .to_owned();
    };
    let parts = [
        ("overlay", "overlay (nothing is copied)"),
        ("nft-redirect", "network by rule"),
        ("cgroup memory", "limits of memory"),
        ("cgroup cpu", "limits of processors"),
        ("cgroup pids", "limits of processes"),
    ];
    let (has, mut lacks): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(name, _)| ok(name));
    // Without a group an rlimit in the sandbox's user namespace counts them.
    lacks.retain(|(name, _)| *name != "cgroup pids");
    let list =
        |parts: &[(&str, &str)]| parts.iter().map(|(_, what)| *what).collect::<Vec<_>>().join(", ");
    let mut line = format!("skep works here ({provider})");
    if !has.is_empty() {
        let _ = write!(line, ": {}", list(&has));
    }
    if !lacks.is_empty() {
        let _ = write!(line, "; not enforced here: {}", list(&lacks));
    }
    line + ". What else is missing below is optional."
}

/// A line per finding, its reason and remedy below it.
pub(crate) fn text<'a>(
    style: Style,
    findings: impl Iterator<Item = (&'a str, &'a Finding)>,
) -> String {
    let findings: Vec<_> = findings.collect();
    let width = findings.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, finding) in findings {
        let mark = match (finding.ok, finding.tried) {
            (true, _) => style.green("ok     "),
            (false, true) => style.red("missing"),
            (false, false) => style.yellow("untried"),
        };
        let how = visible_text(finding.how.as_bytes());
        let tried = if finding.ok { "" } else { "tried: " };
        let _ = writeln!(text, "{mark}  {name:<width$}  {tried}{how}");
        if let Some(reason) = &finding.reason {
            let _ = writeln!(text, "           reason: {}", visible_text(reason.as_bytes()));
        }
        if let Some(remedy) = &finding.remedy {
            let remedy = visible_text(remedy.as_bytes());
            let _ = writeln!(text, "           {} {remedy}", style.cyan("remedy:"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_answers_whether_it_can_be_used() {
        let finding = |name: &str, ok| Finding {
            name: name.into(),
            ok,
            tried: true,
            how: String::new(),
            reason: None,
            remedy: None,
        };
        let mut findings = vec![finding("provider namespace", true), finding("overlay", true)];
        let line = verdict(&findings);
        assert!(line.starts_with("skep works here (namespace): overlay"), "{line}");
        assert!(line.contains("not enforced here: network by rule, limits of memory"), "{line}");
        assert!(!line.contains("limits of processes"), "{line}");
        findings[0].ok = false;
        assert!(verdict(&findings).starts_with("skep does not work here"));
    }
}
