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
            let verdict = verdict(&findings);
            context.output.text(&format!("{verdict}\n\n{}", text(context.output.style, all)))?;
        }
        Ok(0)
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
    let (has, lacks): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(name, _)| ok(name));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_answers_whether_it_can_be_used() {
        let finding = |name: &str, ok| Finding {
            name: name.into(),
            ok,
            how: String::new(),
            reason: None,
            remedy: None,
        };
        let mut findings = vec![finding("provider namespace", true), finding("overlay", true)];
        let line = verdict(&findings);
        assert!(line.starts_with("skep works here (namespace): overlay"), "{line}");
        assert!(line.contains("not enforced here: network by rule, limits of memory"), "{line}");
        findings[0].ok = false;
        assert!(verdict(&findings).starts_with("skep does not work here"));
    }
}
