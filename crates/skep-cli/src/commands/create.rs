//! `skep create`: makes a sandbox and prints its name.

use crate::arguments::exec::{EnvironmentArguments, ExecLimitArguments};
use crate::arguments::sandbox::SandboxArguments;
use crate::arguments::{AfterDashes, Json};
use crate::context::{Context, Stay, show_path};
use crate::environment::{self, Environment};
use crate::exit::Outcome;
use crate::json::sandbox::SandboxDocument;
use crate::resolve;
use crate::tree::Run;
use clap::Args;
use skep_engine::api::CreateRequest;
use skep_types::{Code, Problem, Sandbox, SandboxName};
use std::path::Path;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Name of the sandbox (default: one is made up)
    #[arg(value_name = "NAME", conflicts_with = "name")]
    positional_name: Option<SandboxName>,
    #[command(flatten)]
    sandbox: SandboxArguments,
    #[command(flatten)]
    environment: EnvironmentArguments,
    #[command(flatten)]
    limits: ExecLimitArguments,
    #[command(flatten)]
    json: Json,
}

impl Run for Create {
    fn run(mut self, _: AfterDashes, context: &Context) -> Outcome {
        context.begin_early(&self.sandbox, Stay::No);
        self.sandbox.name = self.sandbox.name.or(self.positional_name);
        let project = context.project_to_use(self.sandbox.project.as_deref())?;
        let env = read_environment(context, &self.environment)?;
        let around = &context.surroundings;
        let request = resolve::create(&self.sandbox, &self.limits, env, project, around)?;
        super::image::places::ensure(context, &request)?;
        let sandbox = context.api()?.create(&request)?;
        context.end_early();
        super::warn_of_no_isolation(context, &sandbox);
        if self.json.json {
            context.output.document(&SandboxDocument::new(&sandbox))?;
        } else {
            context.output.text(&format!("{}\n", sandbox.name))?;
            say_unsearched(context, &sandbox);
            say_weakened(context, &request, &sandbox);
        }
        Ok(0)
    }
}

/// Secrets that were not searched for may be seen inside; a root that is shut will be noticed there. In
/// JSON the enforcement says so.
pub(crate) fn say_unsearched(context: &Context, sandbox: &Sandbox) {
    let report = &sandbox.enforcement;
    for said in [skep_engine::shut(report), skep_engine::unsearched(report)].into_iter().flatten() {
        let style = context.output.error_style;
        context.output.always(&format!("{} {said}", style.yellow("skep:")));
    }
}

/// What was asked for and is not enforced, where `--best-effort` let that pass. In JSON the enforcement
/// says so.
pub(crate) fn say_weakened(context: &Context, request: &CreateRequest, sandbox: &Sandbox) {
    if !request.best_effort {
        return;
    }
    let mut asked = skep_engine::asked_layers(&request.limits);
    asked.extend(&request.require);
    let style = context.output.error_style;
    for layer in asked {
        let found = sandbox.enforcement.0.get(&layer).filter(|found| !found.enforced);
        if let Some(found) = found {
            let reason = found.reason.as_deref().unwrap_or(&found.how);
            let what = format!("--best-effort: `{layer}` is not enforced: {reason}");
            context.output.always(&format!("{} {what}", style.yellow("skep:")));
        }
    }
}

/// `--env` and `--env-file`, the file read.
pub(crate) fn read_environment(
    context: &Context,
    typed: &EnvironmentArguments,
) -> Result<Environment, Problem> {
    let read = |path: &Path| {
        std::fs::read(context.surroundings.directory.join(path)).map_err(|error| {
            let message = format!("cannot read --env-file `{}`: {error}", show_path(path));
            Problem::new(Code::Usage, message)
        })
    };
    let file = typed.env_file.as_deref().map(read).transpose()?;
    environment::resolve(&typed.env, file.as_deref())
}
