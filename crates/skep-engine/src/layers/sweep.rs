//! Removing layers nobody stands on.

use super::copied_mark;
use crate::problems::{OrProblem, io_problem};
use crate::reconcile::directory_names;
use crate::{Engine, closed, trash};
use skep_store::StoreError;
use skep_types::{LayerId, Problem};
use std::io;

impl Engine {
    /// Removes those of `candidates` that no sandbox, snapshot or template stands on.
    ///
    /// Somebody may come to stand on a layer while it is being swept: it is first moved out of
    /// sight, then the references are read again, and it is put back if there is one. Whoever
    /// writes a reference looks for the layer afterwards ([`Engine::check_layers`], or the start).
    pub(crate) fn sweep_layers(&self, candidates: &[LayerId]) -> Result<(), Problem> {
        if candidates.is_empty() {
            return Ok(());
        }
        let used = self.store.layers_in_use().or_problem()?;
        if candidates.iter().all(|layer| used.contains_key(layer)) || self.forgotten()?.is_some() {
            return Ok(());
        }
        let trash = self.layout().trash();
        let mut aside = Vec::new();
        for layer in candidates.iter().filter(|layer| !used.contains_key(*layer)) {
            let (path, target) = (self.layout().layer(layer), trash.join(layer.as_str()));
            match closed::rename(&path, &target) {
                Ok(()) => aside.push((layer, path, target)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_problem("remove layer", &path, &error)),
            }
        }
        if aside.is_empty() {
            return Ok(());
        }
        let used = self.store.layers_in_use().or_problem()?;
        let mut gone = Vec::new();
        for (layer, path, target) in aside {
            if used.contains_key(layer) {
                closed::rename(&target, &path)
                    .map_err(|error| io_problem("put back layer", &path, &error))?;
                continue;
            }
            // What cannot be removed now is tried again with the rest of the trash.
            let _ = trash::remove(&target);
            let _ = std::fs::remove_file(copied_mark(&path));
            gone.push(layer.clone());
        }
        self.remove_marks(&gone);
        Ok(())
    }

    /// The directory of a sandbox that the store does not know. It may stand on any layer, and it may be
    /// somebody's only copy: as long as it is there no layer goes.
    pub(crate) fn forgotten(&self) -> Result<Option<String>, Problem> {
        for name in directory_names(&self.layout().sandboxes()) {
            let Ok(id) = name.parse() else { continue };
            match self.store.sandbox(&id) {
                // A run that has just begun is known by its record.
                Err(StoreError::NotFound { .. }) if self.is_known(&id) => {}
                Err(StoreError::NotFound { .. }) => return Ok(Some(name)),
                Ok(_) | Err(StoreError::OtherNode { .. }) => {}
                Err(error) => return Err(error).or_problem(),
            }
        }
        Ok(None)
    }
}
