//! `skep providers`: where sandboxes can run, what each can do, and whether it works here.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::render::sandbox::folded;
use crate::render::style::Style;
use crate::render::table::{Cut, fits, fitted, table};
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_engine::api::ProviderView;
use skep_provider::capabilities::{Selection, word_for};
use skep_types::Layer;
use skep_types::escape::visible_text;
use std::fmt::Write as _;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Providers {
    #[command(flatten)]
    json: Json,
}

/// One element of the JSON list.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    ok: bool,
    tried: bool,
    how: &'a str,
    reason: Option<&'a str>,
    remedy: Option<&'a str>,
    boundary: &'static str,
    layers: Vec<&'static str>,
    networks: Vec<String>,
    system_cow: bool,
    images: bool,
    unprivileged: bool,
    selection: Selection,
}

impl<'a> Document<'a> {
    fn new(view: &'a ProviderView) -> Self {
        let can = &view.capabilities;
        Self {
            name: &view.name,
            ok: view.ok,
            tried: view.tried,
            how: &view.how,
            reason: view.reason.as_deref(),
            remedy: view.remedy.as_deref(),
            boundary: can.boundary.as_str(),
            layers: can.layers.iter().map(|layer| layer.as_str()).collect(),
            networks: can.networks.iter().copied().map(word_for).collect(),
            system_cow: can.system_cow,
            images: can.images,
            unprivileged: can.unprivileged,
            selection: can.selection,
        }
    }
}

impl Run for Providers {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let views = context.api()?.providers()?;
        if self.json.json {
            let documents: Vec<_> = views.iter().map(Document::new).collect();
            context.output.document(&documents)?;
        } else {
            let output = &context.output;
            output.text(&text(output.style, output.columns, &views))?;
        }
        Ok(0)
    }
}

const HEADING: [&str; 7] =
    ["NAME", "WORKS", "BOUNDARY", "NETWORK", "IMAGES", "AUTO", "DOES NOT ENFORCE"];

/// The table, and below it why some do not work; for a terminal of so many columns, if it is one.
fn text(style: Style, columns: Option<usize>, views: &[ProviderView]) -> String {
    let rows: Vec<_> = views.iter().map(row).collect();
    let mut text = match fits(columns, &HEADING, &rows) {
        true => table(style, &HEADING, &rows),
        false => narrow_table(style, columns, rows),
    };
    for view in views.iter().filter(|view| !view.ok) {
        let reason = visible_text(view.reason.as_deref().unwrap_or_default().as_bytes());
        let reason = folded(&reason, view.name.chars().count() + 2, columns);
        let _ = writeln!(text, "\n{}: {reason}", style.bold(&view.name));
        if let Some(remedy) = &view.remedy {
            let remedy = folded(&visible_text(remedy.as_bytes()), 10, columns);
            let _ = writeln!(text, "  {} {remedy}", style.cyan("remedy:"));
        }
    }
    text
}

/// What is not enforced stands below the table, in as many lines as it needs.
fn narrow_table(style: Style, columns: Option<usize>, mut rows: Vec<Vec<String>>) -> String {
    let last = HEADING.len() - 1;
    let lacking: Vec<(String, String)> =
        rows.iter().map(|row| (row[0].clone(), row[last].clone())).collect();
    rows.iter_mut().for_each(|row| row.truncate(last));
    let mut text = fitted(style, columns, &HEADING[..last], rows, &[(3, Cut::Right)]);
    let width = lacking.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let _ = writeln!(text, "\n{}", style.bold(HEADING[last]));
    for (name, layers) in lacking {
        let layers = folded(&layers, width + 2, columns);
        let _ = writeln!(text, "{name:<width$}  {layers}");
    }
    text
}

fn row(view: &ProviderView) -> Vec<String> {
    let can = &view.capabilities;
    let networks: Vec<_> = can.networks.iter().copied().map(word_for).collect();
    vec![
        view.name.clone(),
        match (view.ok, view.tried) {
            (true, _) => "yes",
            (false, true) => "no",
            (false, false) => "untried",
        }
        .to_owned(),
        can.boundary.as_str().to_owned(),
        networks.join(" "),
        if can.images { "yes" } else { "no" }.to_owned(),
        match can.selection {
            Selection::Always => "yes",
            Selection::WhenRequired => "if required",
            Selection::Named => "no",
        }
        .to_owned(),
        lacking(&can.layers),
    ]
}

fn lacking(layers: &[Layer]) -> String {
    let missing = Layer::ALL.into_iter().filter(|layer| !layers.contains(layer));
    let missing: Vec<_> = missing.map(Layer::as_str).collect();
    match missing.len() {
        0 => "nothing".to_owned(),
        all if all == Layer::ALL.len() => "everything".to_owned(),
        _ => missing.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeApi;
    use skep_engine::api::Api as _;

    #[test]
    fn the_list_fits_the_terminal_and_loses_nothing() {
        let mut views = FakeApi::default().providers().unwrap();
        views[0].capabilities.layers.clear();
        views[1].capabilities.layers.truncate(1);
        views[1].name = "oci:a-long-name-of-a-runtime".into();
        views[1].reason = Some("no engine answers, and here is why it does not: ".repeat(3));
        let narrow = text(Style::PLAIN, Some(80), &views);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        let words = |text: &str| {
            let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words.dedup();
            words
        };
        let whole = text(Style::PLAIN, None, &views);
        assert_eq!(words(&narrow), words(&whole));
        assert!(whole.contains("AUTO  DOES NOT ENFORCE\n"), "{whole}");
    }
}
