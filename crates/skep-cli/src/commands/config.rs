//! `skep config`: the settings in force here.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use skep_types::escape::visible_text;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Config {
    /// Also say where each value comes from
    #[arg(long)]
    origin: bool,
    /// Print a JSON schema of config files instead
    #[arg(long, conflicts_with_all = ["origin", "reference", "example"])]
    schema: bool,
    /// Print the reference of all settings instead, in Markdown
    #[arg(long, conflicts_with_all = ["origin", "example"])]
    reference: bool,
    /// Print an annotated config file with all settings instead
    #[arg(long, conflicts_with = "origin")]
    example: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct SettingView<'a> {
    key: &'a str,
    value: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a str>,
}

impl Run for Config {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        if self.schema {
            context.output.document(&skep_policy::json_schema())?;
            return Ok(0);
        }
        if self.reference {
            context.output.text(&skep_policy::reference_page())?;
            return Ok(0);
        }
        if self.example {
            context.output.text(&skep_policy::example_file())?;
            return Ok(0);
        }
        // Without a project, what is set for all of them.
        let project = context.project_here().ok();
        let settings = context.api()?.config(project.as_deref())?;
        if self.json.json {
            let view = |(key, value, origin)| SettingView {
                key,
                value,
                origin: self.origin.then_some(origin),
            };
            let views: Vec<_> = settings.iter().map(|(k, v, o)| view((k, v, o))).collect();
            context.output.document(&views)?;
            return Ok(0);
        }
        for (key, value, origin) in &settings {
            let mut line = format!("{key} = {value}");
            if self.origin {
                line.push_str(&format!("  # {origin}"));
            }
            context.output.text(&format!("{}\n", visible_text(line.as_bytes())))?;
        }
        Ok(0)
    }
}
