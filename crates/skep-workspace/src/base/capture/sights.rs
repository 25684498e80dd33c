//! What both sides were when a path came into the sandbox; and which paths are away, so that it is seen when one comes
//! again.

use super::{CAPTURE_BYTES, Insiders, Run};
use crate::base::known::Known;
use crate::base::memory::{self, Record};
use crate::base::stay::{Sight, Stay};
use crate::error::DeriveError;
use crate::tree::{Meta, TreeRoot};
use crate::union::{Seen, Union};
use rustix::fs::FileType;
use skep_types::{EntryState, RelPath};
use std::collections::HashSet;

/// What was noted, and is not in the sandbox any more: in directories that were just listed, or with them; and what was
/// away before. What is back is still among them.
pub(super) fn gone_away(
    known: &Known,
    union: &Union,
    read: &[RelPath],
    before: &HashSet<RelPath>,
) -> HashSet<RelPath> {
    let mut away = before.clone();
    let mut pending = read.to_vec();
    while let Some(directory) = pending.pop() {
        for name in known.names_in(&directory) {
            let Ok(path) = directory.join(name.as_bytes()) else { continue };
            if !union.covers(&path) && away.insert(path.clone()) {
                pending.push(path);
            }
        }
    }
    away
}

impl Run<'_> {
    /// Whether what was noted of a path that is back still tells what it comes from.
    pub(super) fn is_as_noted(&self, path: &RelPath) -> Result<bool, DeriveError> {
        let stands = self.stat(path)?;
        if !self.known.tells(path, stands.is_some()) {
            return Ok(false);
        }
        stands.map_or(Ok(true), |stat| self.proofs.of(path).present(path, &stat))
    }

    /// A path that left the sandbox with an earlier state is in it again. Where nothing was settled and the
    /// project still proves its base, that is it; else it is noted what it came from.
    pub(super) fn came_again(&mut self, path: &RelPath, seen: Seen) -> Result<(), DeriveError> {
        let noted = self.records.len();
        if !self.known.is_settled(path) {
            self.path(path, seen)?;
        }
        if self.records.len() > noted {
            return Ok(());
        }
        let project = self.side(self.trees.project.root(), "project", path)?;
        let sandbox = self.inside(path, seen)?;
        self.note_sight(path, project, sandbox)
    }

    /// A file that is in the sandbox, and newer in the project than its base: git may know that.
    pub(super) fn newer(&mut self, path: &RelPath, seen: Seen) -> Result<(), DeriveError> {
        let file = |state: &EntryState| matches!(state, EntryState::File { .. });
        if !matches!(seen, Seen::Leaf { special: false, .. }) {
            return Ok(());
        }
        let project = self.side(self.trees.project.root(), "project", path)?.filter(file);
        let sandbox = self.inside(path, seen)?.filter(file);
        match project.is_some() && sandbox.is_some() {
            true => self.note_sight(path, project, sandbox),
            false => Ok(()),
        }
    }

    fn note_sight(
        &mut self,
        path: &RelPath,
        project: Option<EntryState>,
        sandbox: Option<EntryState>,
    ) -> Result<(), DeriveError> {
        // After the sides were read: what the user does meanwhile is late.
        let late = self.insiders == Insiders::Some && !self.was_so_before(path)?;
        let stay = Stay::Seen(Sight { project, sandbox, late });
        self.records.push(Record::Stay { path: path.clone(), stay });
        Ok(())
    }

    /// Whether the project's side is as it was when the first came in who is inside now.
    fn was_so_before(&self, path: &RelPath) -> Result<bool, DeriveError> {
        let Some(proof) = &self.settled_in else { return Ok(false) };
        self.proofs.look_again();
        proof.look_again();
        match self.stat(path)? {
            Some(stat) => proof.present(path, &stat),
            None => proof.absent(path),
        }
    }

    /// What the sandbox has at a path.
    fn inside(&mut self, path: &RelPath, seen: Seen) -> Result<Option<EntryState>, DeriveError> {
        match seen {
            Seen::Gone => Ok(Some(EntryState::Absent)),
            Seen::TooDeep | Seen::Leaf { special: true, .. } => Ok(None),
            Seen::Leaf { level, .. } | Seen::Dir { level, .. } => {
                self.side(self.trees.levels[level].root(), "sandbox", path)
            }
        }
    }

    /// What stands on one side, with its bytes kept; nothing, where that is too much or shut.
    fn side(
        &mut self,
        root: &TreeRoot,
        side: &'static str,
        path: &RelPath,
    ) -> Result<Option<EntryState>, DeriveError> {
        let error = |source| DeriveError::read(side, path, source);
        let Some(stat) = root.stat(path).map_err(error)? else {
            return Ok(Some(EntryState::Absent));
        };
        let meta = Meta::of(&stat);
        if meta.kind() != FileType::RegularFile {
            return Ok(root.state(path).ok());
        }
        if meta.size > CAPTURE_BYTES || !self.room.for_file(meta.size) {
            return Ok(None);
        }
        // Gone or shut meanwhile.
        let Ok(bytes) = root.read(path, CAPTURE_BYTES) else { return Ok(None) };
        let hash = memory::keep_blob(self.memory, &bytes)?;
        let (size, mode) = (bytes.len() as u64, meta.permissions());
        Ok(Some(EntryState::File { hash, size, mode }))
    }
}
