//! `skep compare`: several sandboxes side by side.

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::json::text_and_bytes;
use crate::naming;
use crate::render::diff::counted;
use crate::render::table::table;
use crate::tree::Run;
use clap::Args;
use serde::Serialize;
use skep_engine::api::{CompareRow, Comparison};
use skep_types::escape;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Sandboxes: two or more
    #[arg(value_name = "NAME", num_args = 2.., required = true)]
    names: Vec<String>,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct ComparisonDocument<'a> {
    paths: Vec<RowView<'a>>,
    execs: &'a BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
struct RowView<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    by: &'a BTreeMap<String, String>,
    collides: bool,
}

impl Run for Compare {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let api = context.api()?;
        let sandboxes: Vec<_> = self
            .names
            .iter()
            .map(|name| naming::named_or_newest(context, Some(name)))
            .collect::<Result<_, _>>()?;
        let ids: Vec<_> = sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
        let comparison = api.compare(&ids)?;
        if self.json.json {
            let paths = comparison.rows.iter().map(row_view).collect();
            let document = ComparisonDocument { paths, execs: &comparison.execs };
            context.output.document(&document)?;
        } else {
            let names: Vec<_> = sandboxes.iter().map(|sandbox| sandbox.name.as_str()).collect();
            context.output.text(&text(context, &names, &comparison))?;
        }
        Ok(0)
    }
}

fn row_view(row: &CompareRow) -> RowView<'_> {
    let (path, path_bytes) = text_and_bytes(row.path.as_bytes());
    RowView { path, path_bytes, by: &row.by, collides: row.collides }
}

fn text(context: &Context, names: &[&str], comparison: &Comparison) -> String {
    let style = context.output.style;
    let row = |row: &CompareRow| {
        let mut cells = vec![if row.collides { "!" } else { "" }.to_owned(), row.path.to_string()];
        for name in names {
            let did = row.by.get(*name).map_or("", String::as_str);
            cells.push(escape::visible_text(did.as_bytes()));
        }
        cells
    };
    let rows: Vec<_> = comparison.rows.iter().map(row).collect();
    let heading: Vec<_> = ["", "PATH"].into_iter().chain(names.iter().copied()).collect();
    let mut text = table(style, &heading, &rows);
    for name in names {
        for exec in comparison.execs.get(*name).into_iter().flatten() {
            let _ = writeln!(text, "{name}: {}", escape::visible_text(exec.as_bytes()));
        }
    }
    let collisions = comparison.rows.iter().filter(|row| row.collides).count();
    if collisions > 0 {
        let count = counted(collisions as u64, "path was", "paths were");
        let line = format!("! {count} changed differently");
        let _ = writeln!(text, "{}", style.yellow(&line));
    }
    text
}
