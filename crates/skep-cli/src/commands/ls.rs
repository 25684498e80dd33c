//! `skep ls`: sandboxes of the current project, or of all.

use crate::arguments::{AfterDashes, Json};
use crate::context::{Context, show_path};
use crate::exit::Outcome;
use crate::json::sandbox::SandboxDocument;
use crate::project;
use crate::render::{self, sandbox::Listed};
use crate::tree::Run;
use clap::Args;
use skep_engine::api::ListFilter;
use skep_types::SandboxState;
use std::path::PathBuf;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Those of every project (default: of the project of the current directory)
    #[arg(long, short, conflicts_with = "project")]
    all: bool,
    /// Only those in this state
    #[arg(long, value_name = "S")]
    state: Option<SandboxState>,
    /// Those of this project
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

impl Run for Ls {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let project = match &self.project {
            _ if self.all => None,
            Some(path) => Some(project::named(&context.surroundings.directory.join(path))?),
            None => Some(context.project_here()?),
        };
        let filter = ListFilter { project, state: self.state };
        let views = context.api()?.list(&filter)?;
        if self.json.json {
            let documents: Vec<_> = views.iter().map(SandboxDocument::of_view).collect();
            context.output.document(&documents)?;
        } else if views.is_empty() {
            match &filter.project {
                Some(project) => context.output.say(&format!(
                    "no sandboxes of {} (`skep ls --all` lists those of all projects)",
                    show_path(project)
                )),
                None => context.output.say("no sandboxes"),
            }
        } else {
            let listed = if self.all { Listed::AllProjects } else { Listed::OneProject };
            let output = &context.output;
            output.text(&render::sandbox::list(output.style, output.columns, &views, listed))?;
        }
        Ok(0)
    }
}
