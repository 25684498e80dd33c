//! `skep providers`: where sandboxes can run, what each can do, and whether it works here.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::render::style::Style;
use crate::render::table::table;
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
            context.output.text(&text(context.output.style, &views))?;
        }
        Ok(0)
    }
}

/// The table, and below it why some do not work.
fn text(style: Style, views: &[ProviderView]) -> String {
    let row = |view: &ProviderView| {
        let can = &view.capabilities;
        let lacking: Vec<_> = Layer::ALL
            .into_iter()
            .filter(|layer| !can.layers.contains(layer))
            .map(Layer::as_str)
            .collect();
        let lacking = match lacking.len() {
            0 => "nothing".to_owned(),
            all if all == Layer::ALL.len() => "everything".to_owned(),
            _ => lacking.join(" "),
        };
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
            lacking,
        ]
    };
    let rows: Vec<_> = views.iter().map(row).collect();
    let heading = ["NAME", "WORKS", "BOUNDARY", "NETWORK", "IMAGES", "AUTO", "DOES NOT ENFORCE"];
    let mut text = table(style, &heading, &rows);
    for view in views.iter().filter(|view| !view.ok) {
        let reason = visible_text(view.reason.as_deref().unwrap_or_default().as_bytes());
        let _ = writeln!(text, "\n{}: {reason}", style.bold(&view.name));
        if let Some(remedy) = &view.remedy {
            let _ =
                writeln!(text, "  {} {}", style.cyan("remedy:"), visible_text(remedy.as_bytes()));
        }
    }
    text
}
