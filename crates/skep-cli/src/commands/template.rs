//! `skep template`: named states for `create --from`.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Failure;
use crate::exit::Outcome;
use crate::json::sandbox::SnapshotDocument;
use crate::naming;
use crate::render::sandbox::instant;
use crate::render::table::table;
use crate::tree::Run;
use clap::Args;
use clap::Subcommand;
use skep_types::{Code, Problem, SandboxName, escape};

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Template {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List templates
    Ls {
        #[command(flatten)]
        json: Json,
    },
    /// Save the state of a sandbox under a name
    #[command(override_usage = "skep template save [OPTIONS] [NAME] TEMPLATE")]
    Save {
        /// Sandbox (default: the project's newest) and name of the template
        #[arg(value_names = ["NAME", "TEMPLATE"], num_args = 1..=2, required = true)]
        words: Vec<String>,
        /// Sandbox, as an option
        #[arg(short, long, value_name = "NAME")]
        sandbox: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Forget a template; sandboxes made from it are not touched
    Rm {
        /// Name of the template
        #[arg(value_name = "TEMPLATE")]
        template: SandboxName,
    },
}

impl Run for Template {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        match self.what {
            What::Ls { json } => list(context, json)?,
            What::Save { words, sandbox, json } => save(context, &words, sandbox.as_deref(), json)?,
            What::Rm { template } => {
                context.api()?.remove_template(&template)?;
                context.output.say(&format!("template {template} was removed"));
            }
        }
        Ok(0)
    }
}

fn list(context: &Context, json: Json) -> Result<(), Failure> {
    let templates = context.api()?.templates()?;
    if json.json {
        let documents: Vec<_> = templates.iter().map(SnapshotDocument::new).collect();
        return context.output.document(&documents);
    }
    if templates.is_empty() {
        context.output.say("no templates (`skep template save [NAME] TEMPLATE` makes one)");
        return Ok(());
    }
    let rows: Vec<_> = templates
        .iter()
        .map(|view| {
            let label = escape::visible(view.label.as_bytes());
            vec![label, view.sandbox.clone(), instant(&view.created_at)]
        })
        .collect();
    context.output.text(&table(context.output.style, &["TEMPLATE", "SANDBOX", "CREATED"], &rows))
}

fn save(
    context: &Context,
    words: &[String],
    sandbox: Option<&str>,
    json: Json,
) -> Result<(), Failure> {
    let (name, template) = naming::name_and_last(words, sandbox)?;
    let template = SandboxName::parse(template)
        .map_err(|error| Problem::new(Code::Usage, error.to_string()))?;
    let sandbox = naming::named_or_newest(context, name)?;
    let saved = context.api()?.save_template(&sandbox.id, &template)?;
    if json.json {
        context.output.document(&SnapshotDocument::new(&saved))
    } else {
        context.output.text(&format!("{template}\n"))
    }
}
