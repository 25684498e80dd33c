//! Snapshots, templates, and who stands on which layer.

use super::fault::Outcome;
use super::row::{execute, first, rows};
use super::{Durability, SqliteStore, ledger};
use crate::rules::{snapshot_holder, template_holder};
use crate::value::{encode, micros};
use crate::{LayerStore, NewEvent, Result, Snapshot, StoreError, Template};
use rusqlite::{Transaction, params};
use skep_types::{LayerId, SandboxId};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const OF_SANDBOX: &str = "SELECT label, value, sum FROM snapshots
     WHERE ?1 IS NULL OR sandbox = ?1 ORDER BY seq";

impl LayerStore for SqliteStore {
    fn insert_snapshot(&self, snapshot: &Snapshot, events: &[NewEvent]) -> Result<()> {
        self.write("insert a snapshot", Durability::Process, |tx| {
            let (sandbox, label) = (snapshot.sandbox.as_str(), snapshot.label.as_str());
            let taken = "SELECT 1 FROM snapshots WHERE sandbox = ?1 AND label = ?2";
            if tx.prepare(taken)?.exists(params![sandbox, label])? {
                let name = label.to_owned();
                return Err(StoreError::AlreadyExists { what: "snapshot", name }.into());
            }
            micros(&snapshot.created_at)?;
            let row = encode("snapshot", label, snapshot)?;
            tx.execute(
                "INSERT INTO snapshots (sandbox, label, value, sum) VALUES (?1, ?2, ?3, ?4)",
                params![sandbox, label, row.value, row.sum],
            )?;
            set_holder(tx, &snapshot_holder(&snapshot.sandbox, label), &snapshot.layers)?;
            ledger::append(tx, events)?;
            Ok(())
        })
    }

    fn snapshot(&self, sandbox: &SandboxId, label: &str) -> Result<Snapshot> {
        let sql = "SELECT label, value, sum FROM snapshots WHERE sandbox = ?1 AND label = ?2";
        self.read("read a snapshot", |tx| {
            first(tx, "snapshots", sql, params![sandbox.as_str(), label])?.ok_or_else(|| {
                StoreError::NotFound { what: "snapshot", name: label.to_owned() }.into()
            })
        })
    }

    fn list_snapshots(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Snapshot>> {
        let sandbox = sandbox.map(SandboxId::as_str);
        self.read("list snapshots", |tx| rows(tx, "snapshots", OF_SANDBOX, params![sandbox]))
    }

    fn remove_snapshot(&self, sandbox: &SandboxId, label: &str) -> Result<()> {
        self.write("remove a snapshot", Durability::Process, |tx| {
            tx.execute(
                "DELETE FROM snapshots WHERE sandbox = ?1 AND label = ?2",
                params![sandbox.as_str(), label],
            )?;
            forget_holder(tx, &snapshot_holder(sandbox, label))
        })
    }

    fn insert_template(&self, template: &Template, events: &[NewEvent]) -> Result<()> {
        self.write("insert a template", Durability::Process, |tx| {
            let name = template.name.as_str();
            if tx.prepare("SELECT 1 FROM templates WHERE name = ?1")?.exists(params![name])? {
                let name = name.to_owned();
                return Err(StoreError::AlreadyExists { what: "template", name }.into());
            }
            micros(&template.created_at)?;
            let row = encode("template", name, template)?;
            tx.execute(
                "INSERT INTO templates (name, value, sum) VALUES (?1, ?2, ?3)",
                params![name, row.value, row.sum],
            )?;
            set_holder(tx, &template_holder(name), &template.snapshot.layers)?;
            ledger::append(tx, events)?;
            Ok(())
        })
    }

    fn template(&self, name: &str) -> Result<Template> {
        let sql = "SELECT name, value, sum FROM templates WHERE name = ?1";
        self.read("read a template", |tx| {
            first(tx, "templates", sql, params![name])?.ok_or_else(|| {
                StoreError::NotFound { what: "template", name: name.to_owned() }.into()
            })
        })
    }

    fn list_templates(&self) -> Result<Vec<Template>> {
        let sql = "SELECT name, value, sum FROM templates ORDER BY seq";
        self.read("list templates", |tx| rows(tx, "templates", sql, params![]))
    }

    fn remove_template(&self, name: &str) -> Result<()> {
        self.write("remove a template", Durability::Process, |tx| {
            tx.execute("DELETE FROM templates WHERE name = ?1", params![name])?;
            forget_holder(tx, &template_holder(name))
        })
    }

    fn is_layer_in_use(&self, layer: &LayerId) -> Result<bool> {
        self.read("look who stands on a layer", |tx| {
            let sql = "SELECT 1 FROM layer_refs WHERE layer = ?1 LIMIT 1";
            Ok(tx.prepare_cached(sql)?.exists(params![layer.as_str()])?)
        })
    }

    fn layers_in_use(&self) -> Result<BTreeMap<LayerId, u64>> {
        self.read("count layer references", |tx| {
            let mut statement =
                tx.prepare("SELECT layer, count(*) FROM layer_refs GROUP BY layer")?;
            let found: Vec<(String, i64)> = statement
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            found
                .into_iter()
                .map(|(layer, count)| {
                    let layer: LayerId = layer.parse().map_err(|_| StoreError::Damaged {
                        table: "layer_refs",
                        id: layer.clone(),
                        detail: "not an id".to_owned(),
                    })?;
                    Ok((layer, count as u64))
                })
                .collect()
        })
    }
}

/// Makes these the layers a holder stands on.
pub(super) fn set_holder(tx: &Transaction<'_>, holder: &str, layers: &[LayerId]) -> Outcome<()> {
    forget_holder(tx, holder)?;
    let layers: BTreeSet<&str> = layers.iter().map(LayerId::as_str).collect();
    for layer in layers {
        tx.execute(
            "INSERT INTO layer_refs (layer, holder) VALUES (?1, ?2)",
            params![layer, holder],
        )?;
    }
    Ok(())
}

pub(super) fn forget_holder(tx: &Transaction<'_>, holder: &str) -> Outcome<()> {
    execute(tx, "DELETE FROM layer_refs WHERE holder = ?1", params![holder])?;
    Ok(())
}
