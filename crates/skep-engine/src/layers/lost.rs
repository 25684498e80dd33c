//! Layers that no row tells of any more: their row was in the end of a log that is lost.
//!
//! A frozen upper is work, and its row is not synced. So what is needed to write the row anew lies in
//! names, which reach the disk in the order in which they were made:
//!
//! - `layers/LAYER.of-SANDBOX`: whose upper it was; `LAYER.copy-of-SANDBOX`: whose upper it is a copy of;
//! - `layers/LAYER.on-LAYER`: what it stands on (`project` where there was nothing);
//! - `intents/newest.LAYER`: the newest of all.
//!
//! Commits are lost from the end on. If somebody stands on the newest layer no freeze is missing, and that
//! is all an opening looks at. Otherwise every layer that nobody stands on is given back to its sandbox:
//! on top, if it stood on what the row stands on, and else (a copy, or a restore came in between) as a
//! snapshot.

use super::{Engine, copied_mark};
use crate::layout::{self, is_directory};
use crate::lifecycle::pend;
use crate::problems::{OrProblem, io_problem};
use crate::reconcile::directory_names;
use serde_json::json;
use skep_store::StoreError;
use skep_types::{LayerId, Problem, Sandbox, SandboxId, SandboxState};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::SystemTime;

const NEWEST: &str = "newest.";
const PROJECT: &str = "project";
const REASON: &str = "what was remembered of it was older than its work, which was found again";

/// What names say of the layers.
#[derive(Default)]
struct Marks {
    owners: BTreeMap<LayerId, SandboxId>,
    copies: HashSet<LayerId>,
    /// `None`: it stands on the project.
    grounds: HashMap<LayerId, Option<LayerId>>,
    /// When they were frozen.
    born: HashMap<LayerId, SystemTime>,
}

impl Engine {
    /// Notes what a layer is going to stand on.
    pub(super) fn note_ground(&self, layer: &LayerId, below: Option<&LayerId>) -> io::Result<()> {
        let below = below.map_or(PROJECT, LayerId::as_str);
        std::fs::write(self.layout().layers().join(format!("{layer}.on-{below}")), b"")
    }

    /// Steps 5 and 6 of freezing. The pointer first: without it nobody would look for the mark.
    pub(super) fn mark(&self, id: &SandboxId, layer: &LayerId, intent: &Path) -> io::Result<()> {
        self.point_at(layer)?;
        std::fs::rename(intent, self.mark_of(layer, id))
    }

    /// The same for a snapshot that is a copy, once its row is there. One that cannot be marked is lost if
    /// its row is, as a row alone would be.
    pub(super) fn mark_copy(&self, id: &SandboxId, layers: &[LayerId]) {
        let Some(layer) =
            layers.first().filter(|one| copied_mark(&self.layout().layer(one)).exists())
        else {
            return;
        };
        let mark = self.layout().layers().join(format!("{layer}.copy-of-{id}"));
        let _ = layout::make_private(&self.intents())
            .and_then(|()| self.note_ground(layer, layers.get(1)))
            .and_then(|()| self.point_at(layer))
            .and_then(|()| std::fs::write(mark, b""));
    }

    /// Makes this the newest layer. Of two that are made at once both may stay so, which does no harm.
    fn point_at(&self, layer: &LayerId) -> io::Result<()> {
        let older = self.newest_layers();
        std::fs::write(self.intents().join(format!("{NEWEST}{layer}")), b"")?;
        older.iter().filter(|older| *older != layer).for_each(|older| self.forget_newest(older));
        Ok(())
    }

    fn newest_layers(&self) -> Vec<LayerId> {
        let names = directory_names(&self.intents()).into_iter();
        names.filter_map(|name| name.strip_prefix(NEWEST)?.parse().ok()).collect()
    }

    fn forget_newest(&self, layer: &LayerId) {
        let _ = std::fs::remove_file(self.intents().join(format!("{NEWEST}{layer}")));
    }

    /// Removes what names say of layers that are gone.
    pub(super) fn remove_marks(&self, gone: &[LayerId]) {
        if gone.is_empty() {
            return;
        }
        for name in directory_names(&self.layout().layers()) {
            let Some((layer, said)) = name.split_once('.') else { continue };
            let is_mark = ["of-", "copy-of-", "on-"].iter().any(|kind| said.starts_with(kind));
            if is_mark && gone.iter().any(|one| one.as_str() == layer) {
                let _ = std::fs::remove_file(self.layout().layers().join(name));
            }
        }
    }

    /// Gives layers back whose rows were lost.
    pub(super) fn find_lost_layers(&self) -> Result<(), Problem> {
        let newest = self.newest_layers();
        let mut lost = false;
        for layer in &newest {
            lost |= !self.store.is_layer_in_use(layer).or_problem()?;
        }
        if !lost || !self.store.takes_changes() {
            return Ok(());
        }
        let marks = self.marks()?;
        let used = self.store.layers_in_use().or_problem()?;
        let mut by_owner: BTreeMap<&SandboxId, Vec<LayerId>> = BTreeMap::new();
        for (layer, owner) in &marks.owners {
            if !used.contains_key(layer) && marks.grounds.contains_key(layer) {
                by_owner.entry(owner).or_default().push(layer.clone());
            }
        }
        let mut all = true;
        for (owner, layers) in by_owner {
            all &= self.give_back(owner, layers, &marks)?;
        }
        if all {
            self.point_anew(&newest, &marks)?;
        }
        Ok(())
    }

    /// Nothing is lost any more: what nobody stands on now is nobody's.
    fn point_anew(&self, newest: &[LayerId], marks: &Marks) -> Result<(), Problem> {
        let used = self.store.layers_in_use().or_problem()?;
        let born = |layer: &&LayerId| marks.born.get(*layer);
        let next = marks.owners.keys().filter(|layer| used.contains_key(*layer)).max_by_key(born);
        if let Some(next) = next {
            let failed = |error| io_problem("note the newest of", &self.layout().layers(), &error);
            self.point_at(next).map_err(failed)?;
        }
        newest.iter().filter(|old| Some(*old) != next).for_each(|old| self.forget_newest(old));
        Ok(())
    }

    fn marks(&self) -> Result<Marks, Problem> {
        let place = self.layout().layers();
        let failed = |error: io::Error| io_problem("read", &place, &error);
        let mut marks = Marks::default();
        for entry in std::fs::read_dir(&place).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some((layer, said)) = name.split_once('.') else { continue };
            let Ok(layer) = layer.parse::<LayerId>() else { continue };
            if !is_directory(&self.layout().layer(&layer)).map_err(failed)? {
                continue;
            }
            if let Some(Ok(owner)) = said.strip_prefix("of-").map(str::parse) {
                marks.owners.insert(layer, owner);
                continue;
            }
            if let Some(Ok(owner)) = said.strip_prefix("copy-of-").map(str::parse) {
                marks.copies.insert(layer.clone());
                marks.owners.insert(layer, owner);
                continue;
            }
            let below = match said.strip_prefix("on-") {
                Some(PROJECT) => None,
                Some(below) => match below.parse() {
                    Ok(below) => Some(below),
                    Err(_) => continue,
                },
                None => continue,
            };
            if let Ok(born) = entry.metadata().and_then(|found| found.modified()) {
                marks.born.insert(layer.clone(), born);
            }
            marks.grounds.insert(layer, below);
        }
        Ok(marks)
    }

    /// Whether this was done, or nothing is to be done: `false` while somebody else is at work on it.
    fn give_back(
        &self,
        id: &SandboxId,
        mut lost: Vec<LayerId>,
        marks: &Marks,
    ) -> Result<bool, Problem> {
        let Ok(_lock) = self.lock_now(id) else {
            return Ok(false);
        };
        let row = match self.store.sandbox(id) {
            Ok(row) if row.state == SandboxState::Creating => return Ok(false),
            Ok(row) if row.state != SandboxState::Deleted => row,
            // One without a row is kept as it is: see `forgotten`.
            Ok(_) | Err(StoreError::NotFound { .. }) => return Ok(true),
            Err(error) => return Err(error).or_problem(),
        };
        // The newest first: where two stood on the same, that is the one that was gone on with.
        lost.sort_by_cached_key(|layer| std::cmp::Reverse(marks.born.get(layer).copied()));
        let mut layers = row.layers.clone();
        while let Some(at) = lost.iter().position(|one| marks.stands_on(one, layers.first())) {
            layers.insert(0, lost.remove(at));
        }
        let row = match layers == row.layers {
            true => row,
            false => self.stand_on(&row, layers)?,
        };
        lost.reverse();
        for layer in lost {
            let Some(stack) = self.stack(layer, &row, marks)? else { continue };
            let label = self.free_label(&row, "found")?;
            self.remember_snapshot(&row, label, stack)?;
        }
        Ok(true)
    }

    fn stand_on(&self, row: &Sandbox, layers: Vec<LayerId>) -> Result<Sandbox, Problem> {
        let upper = self.layout().sandbox(&row.id).join("upper");
        let made = || match (is_directory(&upper)?, layers.first()) {
            (false, Some(newest)) => super::new_upper(&upper, &self.layout().layer(newest)),
            _ => Ok(()),
        };
        made().map_err(|error| io_problem("make", &upper, &error))?;
        let data = json!({ "found": layers.len() - row.layers.len() });
        self.update(&row.id, "sandbox.layers_found", data, &mut |row| {
            row.layers.clone_from(&layers);
            row.state_reason = Some(REASON.to_owned());
            pend(row);
        })
    }

    /// A layer and what it stands on, down to the project; none if that is not known.
    fn stack(
        &self,
        layer: LayerId,
        row: &Sandbox,
        marks: &Marks,
    ) -> Result<Option<Vec<LayerId>>, Problem> {
        let snapshots = self.store.list_snapshots(Some(&row.id)).or_problem()?;
        let known: Vec<&[LayerId]> = [&row.layers]
            .into_iter()
            .chain(snapshots.iter().map(|one| &one.layers))
            .map(Vec::as_slice)
            .collect();
        let mut stack = vec![layer];
        while let Some(last) = stack.last() {
            let rest = known.iter().find_map(|known| {
                known.iter().position(|one| one == last).and_then(|at| known.get(at + 1..))
            });
            match (rest, marks.grounds.get(last)) {
                (Some(rest), _) => {
                    stack.extend(rest.iter().cloned());
                    return Ok(Some(stack));
                }
                (None, Some(None)) => return Ok(Some(stack)),
                // Names that lead in a circle lead nowhere.
                (None, Some(Some(below))) if !stack.contains(below) => stack.push(below.clone()),
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}

impl Marks {
    /// Whether a sandbox that stood on `below` came to stand on `layer`.
    fn stands_on(&self, layer: &LayerId, below: Option<&LayerId>) -> bool {
        !self.copies.contains(layer)
            && self.grounds.get(layer).is_some_and(|ground| ground.as_ref() == below)
    }
}
