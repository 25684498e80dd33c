//! `skep config`: the settings in force here, as a config file.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use skep_policy::InForce;
use skep_types::escape::visible;

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
        context.output.text(&file(&settings, self.origin))?;
        Ok(0)
    }
}

/// A config file that means the same.
fn file(settings: &[(String, Value, String)], with_origin: bool) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let plain: Vec<(&str, String, String)> = settings
        .iter()
        .map(|(key, value, origin)| (key.as_str(), text(value), visible(origin.as_bytes())))
        .collect();
    let rows: Vec<InForce<'_>> = plain
        .iter()
        .map(|(key, value, origin)| InForce {
            key,
            value,
            origin: with_origin.then_some(origin.as_str()),
        })
        .collect();
    skep_policy::config_file(&rows)
}
