//! What is left of things that are gone: backups, layers, trash, directories nobody knows.

use super::{Action, decision, spoken};
use crate::api::{GcDecision, GcRequest};
use crate::problems::OrProblem;
use crate::{Engine, trash, usage};
use skep_policy::Settings;
use skep_store::StoreError;
use skep_types::{Approval, LayerId, Problem, SandboxId, SandboxState};
use skep_workspace::apply;
use std::path::Path;
use std::time::Duration;

/// A layer that was just made may not have its reference yet.
const YOUNG: Duration = Duration::from_secs(3600);

impl Engine {
    /// A directory without a row is left alone: with a lost database it may be all there is.
    pub(super) fn collect_unknown(&self, decisions: &mut Vec<GcDecision>) {
        for name in names(&self.layout().sandboxes()) {
            let id = name.parse::<SandboxId>();
            if id.is_ok_and(|id| self.is_known(&id)) {
                continue;
            }
            let reason = "no sandbox is known by this id; it may be somebody's only copy".into();
            decisions.push(decision("directory", &name, Action::Keep, reason, 0));
        }
    }

    /// A record of a run that was not taken in when this was opened cannot be read.
    pub(super) fn collect_records(&self, decisions: &mut Vec<GcDecision>) {
        self.take_in_runs();
        for name in names(&self.layout().runs()) {
            // Somebody may just be writing it.
            if name.parse::<SandboxId>().is_ok_and(|id| self.is_known(&id)) {
                continue;
            }
            let reason =
                "the record of a run that cannot be read; what it tells is not known".into();
            decisions.push(decision("record", &name, Action::Keep, reason, 0));
        }
    }

    /// Backups beyond the number and the age that undo is promised for.
    pub(super) fn collect_undo(
        &self,
        request: &GcRequest,
        settings: &Settings,
        decisions: &mut Vec<GcDecision>,
    ) -> Result<(), Problem> {
        let keep = u32::try_from(settings.undo_keep).unwrap_or(u32::MAX);
        let before = self.earlier(settings.undo_age)?;
        for approval in self.store.undo_expired(keep, &before).or_problem()? {
            let directory = self.layout().approval(&approval.id);
            let bytes = usage::of(&directory).map_or(0, |usage| usage.bytes);
            let done = if request.dry_run { Ok(()) } else { self.end_undo(&approval) };
            let (action, reason) = match done {
                Ok(()) => {
                    let age = spoken(self.age(&approval.at)?);
                    (Action::Remove, format!("approved {age} ago; it can no longer be undone"))
                }
                Err(problem) => (Action::Keep, format!("cannot remove it: {problem}")),
            };
            decisions.push(decision("undo", approval.id.as_str(), action, reason, bytes));
        }
        Ok(())
    }

    fn end_undo(&self, approval: &Approval) -> Result<(), Problem> {
        let _lock = self.lock_project_now(&approval.project)?;
        let directory = self.layout().approval(&approval.id);
        apply::discard(&directory)
            .map_err(|error| Problem::from_error(skep_types::Code::Io, &error))?;
        let _ = trash::discard(&directory, &self.layout().trash());
        self.store.drop_undo(&approval.id).or_problem()
    }

    /// Layers nobody stands on, and those that never became whole.
    pub(super) fn collect_layers(
        &self,
        request: &GcRequest,
        decisions: &mut Vec<GcDecision>,
    ) -> Result<(), Problem> {
        let used = self.store.layers_in_use().or_problem()?;
        let forgotten = self.forgotten()?;
        let all = names(&self.layout().layers());
        for name in &all {
            let path = self.layout().layers().join(name);
            let whole = name.parse::<LayerId>().ok();
            if whole.as_ref().is_some_and(|layer| used.contains_key(layer)) {
                continue;
            }
            if whole.is_none() && !name.ends_with(".building") {
                continue;
            }
            let bytes = usage::of(&path).map_or(0, |usage| usage.bytes);
            let why_keep = match (&whole, &forgotten) {
                (Some(_), Some(id)) => {
                    Some(format!("`sandboxes/{id}` is of no known sandbox, and may stand on it"))
                }
                _ => self.why_keep(name, &path, &all),
            };
            let (action, reason) = match why_keep {
                Some(reason) => (Action::Keep, reason),
                None => (Action::Remove, "nobody stands on it".to_owned()),
            };
            if action == Action::Remove && !request.dry_run {
                match whole {
                    Some(layer) => self.sweep_layers(&[layer])?,
                    // What cannot be removed is in the trash, and tried again.
                    None => drop(trash::discard(&path, &self.layout().trash())),
                }
            }
            decisions.push(decision("layer", name, action, reason, bytes));
        }
        Ok(())
    }

    fn why_keep(&self, name: &str, path: &Path, all: &[String]) -> Option<String> {
        let changed = std::fs::symlink_metadata(path).ok().and_then(|metadata| {
            let seconds = std::os::unix::fs::MetadataExt::ctime(&metadata);
            jiff::Timestamp::from_second(seconds).ok()
        });
        let age = changed.and_then(|time| self.age(&time.to_string()).ok());
        if age.is_none_or(|age| age < YOUNG) {
            return Some("it was made just now".into());
        }
        // It was this sandbox's upper; that the sandbox does not stand on it may be what a power
        // loss left. Its work is not thrown away.
        let owner = all.iter().find_map(|mark| mark.strip_prefix(name)?.strip_prefix(".of-"));
        let owner = match self.store.sandbox(&owner?.parse().ok()?) {
            Ok(owner) => owner,
            Err(StoreError::NotFound { .. }) => return None,
            Err(error) => return Some(format!("whose upper it was cannot be read: {error}")),
        };
        (owner.state != SandboxState::Deleted)
            .then(|| format!("it was the upper of sandbox `{}`, which is still there", owner.name))
    }

    /// Cgroups of sandboxes that were deleted: whoever removed them may have died over it. One whose
    /// sandbox is not known here belongs to another state directory.
    pub(super) fn collect_groups(&self, request: &GcRequest, decisions: &mut Vec<GcDecision>) {
        for provider in &self.providers {
            let owned = provider.list_owned().unwrap_or_default();
            let deleted = owned.into_iter().filter(|id| {
                self.store.sandbox(id).is_ok_and(|row| {
                    row.state == SandboxState::Deleted && provider.serves(&row.provider)
                })
            });
            for id in deleted {
                let done = if request.dry_run { Ok(()) } else { provider.reap(&id) };
                let (action, reason) = match done {
                    Ok(()) => (Action::Remove, "its sandbox was deleted".to_owned()),
                    Err(error) => (Action::Keep, format!("cannot remove it: {error}")),
                };
                decisions.push(decision("cgroup", id.as_str(), action, reason, 0));
            }
        }
    }

    /// Whatever could not be removed when it was thrown away.
    pub(super) fn collect_trash(&self, request: &GcRequest, decisions: &mut Vec<GcDecision>) {
        for name in names(&self.layout().trash()) {
            let path = self.layout().trash().join(&name);
            let bytes = usage::of(&path).map_or(0, |usage| usage.bytes);
            let done = if request.dry_run { Ok(()) } else { trash::remove(&path) };
            let (action, reason) = match done {
                Ok(()) => (Action::Remove, "thrown away before".to_owned()),
                Err(error) => (Action::Keep, format!("cannot remove it: {error}")),
            };
            decisions.push(decision("trash", &name, action, reason, bytes));
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    // Of a list that cannot be read whole, nothing is judged: a mark may be in the rest.
    let entries: Vec<_> = entries.collect::<Result<_, _>>().unwrap_or_default();
    let name = |entry: &std::fs::DirEntry| entry.file_name().into_string().ok();
    let mut names: Vec<String> = entries.iter().filter_map(name).collect();
    names.sort();
    names
}
