//! Snapshots, templates, and who stands on which layer. All of it lies on a node's disk.

use super::fault::Outcome;
use super::row::{exists, first, rows, stored};
use super::session::Session;
use super::{PostgresStore, ledger};
use crate::rules::{snapshot_holder, template_holder};
use crate::value::{encode, micros};
use crate::{LayerStore, NewEvent, Result, Snapshot, StoreError, Template};
use skep_types::{LayerId, SandboxId};
use std::collections::{BTreeMap, BTreeSet};

impl LayerStore for PostgresStore {
    fn insert_snapshot(&self, snapshot: &Snapshot, events: &[NewEvent]) -> Result<()> {
        self.write("insert a snapshot", |session| {
            let (sandbox, label) = (snapshot.sandbox.as_str(), snapshot.label.as_str());
            let taken = "SELECT 1 FROM snapshots WHERE sandbox = $1 AND label = $2";
            if exists(session, taken, &[&sandbox, &stored(label)])? {
                let name = label.to_owned();
                return Err(StoreError::AlreadyExists { what: "snapshot", name }.into());
            }
            micros(&snapshot.created_at)?;
            let row = encode("snapshot", label, snapshot)?;
            session.execute(
                "INSERT INTO snapshots (node, sandbox, label, value, sum)
                 VALUES ($1, $2, $3, $4, $5)",
                &[&self.node, &sandbox, &stored(label), &row.value, &row.sum],
            )?;
            let holder = snapshot_holder(&snapshot.sandbox, label);
            set_holder(session, &self.node, &holder, &snapshot.layers)?;
            ledger::append(session, events)
        })
    }

    fn snapshot(&self, sandbox: &SandboxId, label: &str) -> Result<Snapshot> {
        let sql = "SELECT label, value, sum FROM snapshots
                   WHERE node = $3 AND sandbox = $1 AND label = $2";
        self.read("read a snapshot", |session| {
            let found =
                first(session, "snapshots", sql, &[&sandbox.as_str(), &stored(label), &self.node])?;
            found.ok_or_else(|| {
                StoreError::NotFound { what: "snapshot", name: label.to_owned() }.into()
            })
        })
    }

    fn list_snapshots(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Snapshot>> {
        let sql = "SELECT label, value, sum FROM snapshots
                   WHERE node = $2 AND ($1::text IS NULL OR sandbox = $1) ORDER BY seq";
        let sandbox = sandbox.map(SandboxId::as_str);
        self.read("list snapshots", |session| {
            rows(session, "snapshots", sql, &[&sandbox, &self.node])
        })
    }

    fn remove_snapshot(&self, sandbox: &SandboxId, label: &str) -> Result<()> {
        self.write("remove a snapshot", |session| {
            session.execute(
                "DELETE FROM snapshots WHERE node = $3 AND sandbox = $1 AND label = $2",
                &[&sandbox.as_str(), &stored(label), &self.node],
            )?;
            forget_holder(session, &self.node, &snapshot_holder(sandbox, label))
        })
    }

    fn insert_template(&self, template: &Template, events: &[NewEvent]) -> Result<()> {
        self.write("insert a template", |session| {
            let name = template.name.as_str();
            let taken = "SELECT 1 FROM templates WHERE node = $2 AND name = $1";
            if exists(session, taken, &[&stored(name), &self.node])? {
                let name = name.to_owned();
                return Err(StoreError::AlreadyExists { what: "template", name }.into());
            }
            micros(&template.created_at)?;
            let row = encode("template", name, template)?;
            session.execute(
                "INSERT INTO templates (node, name, value, sum) VALUES ($1, $2, $3, $4)",
                &[&self.node, &stored(name), &row.value, &row.sum],
            )?;
            let layers = &template.snapshot.layers;
            set_holder(session, &self.node, &template_holder(name), layers)?;
            ledger::append(session, events)
        })
    }

    fn template(&self, name: &str) -> Result<Template> {
        let sql = "SELECT name, value, sum FROM templates WHERE node = $2 AND name = $1";
        self.read("read a template", |session| {
            first(session, "templates", sql, &[&stored(name), &self.node])?.ok_or_else(|| {
                StoreError::NotFound { what: "template", name: name.to_owned() }.into()
            })
        })
    }

    fn list_templates(&self) -> Result<Vec<Template>> {
        let sql = "SELECT name, value, sum FROM templates WHERE node = $1 ORDER BY seq";
        self.read("list templates", |session| rows(session, "templates", sql, &[&self.node]))
    }

    fn remove_template(&self, name: &str) -> Result<()> {
        self.write("remove a template", |session| {
            let sql = "DELETE FROM templates WHERE node = $2 AND name = $1";
            session.execute(sql, &[&stored(name), &self.node])?;
            forget_holder(session, &self.node, &template_holder(name))
        })
    }

    fn is_layer_in_use(&self, layer: &LayerId) -> Result<bool> {
        self.read("look who stands on a layer", |session| {
            let sql = "SELECT 1 FROM layer_refs WHERE node = $1 AND layer = $2 LIMIT 1";
            Ok(session.first(sql, &[&self.node, &layer.as_str()])?.is_some())
        })
    }

    fn layers_in_use(&self) -> Result<BTreeMap<LayerId, u64>> {
        let sql = "SELECT layer, count(*) FROM layer_refs WHERE node = $1 GROUP BY layer";
        self.read("count layer references", |session| {
            let mut used = BTreeMap::new();
            for row in session.query(sql, &[&self.node])? {
                let (layer, count): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
                let layer: LayerId = layer.parse().map_err(|_| StoreError::Damaged {
                    table: "layer_refs",
                    id: layer.clone(),
                    detail: "not an id".to_owned(),
                })?;
                used.insert(layer, count as u64);
            }
            Ok(used)
        })
    }
}

/// Makes these the layers a holder stands on.
pub(super) fn set_holder(
    session: &mut Session,
    node: &str,
    holder: &str,
    layers: &[LayerId],
) -> Outcome<()> {
    forget_holder(session, node, holder)?;
    let layers: BTreeSet<&str> = layers.iter().map(LayerId::as_str).collect();
    for layer in layers {
        let sql = "INSERT INTO layer_refs (node, layer, holder) VALUES ($1, $2, $3)";
        session.execute(sql, &[&node, &layer, &stored(holder)])?;
    }
    Ok(())
}

pub(super) fn forget_holder(session: &mut Session, node: &str, holder: &str) -> Outcome<()> {
    let sql = "DELETE FROM layer_refs WHERE node = $1 AND holder = $2";
    session.execute(sql, &[&node, &stored(holder)])?;
    Ok(())
}
