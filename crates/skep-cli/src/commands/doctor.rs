//! `skep doctor`: what was probed, what works, and what to do about the rest.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::render::style::Style;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_engine::api::Finding;
use skep_types::escape::visible_text;
use std::fmt::Write as _;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    json: Json,
}

/// One element of the JSON list.
#[derive(Serialize)]
pub(crate) struct FindingView<'a> {
    name: &'a str,
    ok: bool,
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
            how: &finding.how,
            reason: finding.reason.as_deref(),
            remedy: finding.remedy.as_deref(),
        }
    }
}

impl Run for Doctor {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let findings = context.api()?.doctor()?;
        if self.json.json {
            let views: Vec<_> =
                findings.iter().map(|finding| FindingView::new(finding, &finding.name)).collect();
            context.output.document(&views)?;
        } else {
            let all = findings.iter().map(|finding| (finding.name.as_str(), finding));
            context.output.text(&text(context.output.style, all))?;
        }
        Ok(0)
    }
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
        let mark = if finding.ok { style.green("ok     ") } else { style.red("missing") };
        let _ = writeln!(text, "{mark}  {name:<width$}  {}", visible_text(finding.how.as_bytes()));
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
