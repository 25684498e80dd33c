//! Paths that left the sandbox and came again.
//!
//! Who goes back to a snapshot has fewer files in the layers than before. At such a path the project shows
//! through again, with whatever the user does there meanwhile, and a command that then writes gets the user's
//! newer lines into its copy. The base that was noted for the earlier copy is not what this one came from:
//! against it the user's lines would count as the sandbox's, and come back when the user takes them back.
//! The same where git knows a file as it was at create, and its copy was made later.
//!
//! So it is noted that a path left; and when it is seen again, what stood in the project and in the sandbox at
//! that moment. What both have is the user's: it is in the base of the new copy. What only one of them
//! has is not: a command may have read the file earlier, and have written what it knew.
//!
//! It may also write that later. Whoever was inside before the user's side was as it is ([`Sight::late`]) may have read
//! an older one, and what it puts over the copy then lacks the user's lines without anybody having removed them. So
//! of such a sight the user's lines are in the base as long as the sandbox has them; after that it is not known. An
//! approval does not change that ([`Late`]). It ends when nobody is inside, and the sandbox has them still.

use super::late::{Late, file, kept_file, shared};
use super::memory::Memory;
use crate::error::DeriveError;
use crate::merge::merge_modes;
use serde::{Deserialize, Serialize};
use skep_types::EntryState;

/// Whether a path is still in the sandbox as it came there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stay {
    /// It is.
    Here,
    /// It is not in the sandbox; the project shows through.
    Left,
    /// It came when the project was not as its base says any more.
    Seen(Sight),
}

/// Both sides at the moment when a path was first seen in the sandbox. Nothing for what was too large.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sight {
    pub project: Option<EntryState>,
    pub sandbox: Option<EntryState>,
    /// Somebody was inside who may have seen an older project there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
}

impl Sight {
    /// The sandbox was given what the project has, while somebody was inside.
    pub(crate) fn given(state: EntryState) -> Self {
        Self { project: Some(state.clone()), sandbox: Some(state), late: true }
    }

    /// What somebody inside may not know of `base`, where `noted` was known before, with what of that was `late` already.
    pub(crate) fn owes(&self, late: &[Late], noted: &EntryState, base: &EntryState) -> Vec<Late> {
        if !self.late {
            return Vec::new();
        }
        let new = Late { before: noted.clone(), with: base.clone() };
        late.iter().cloned().chain(Some(new).filter(|_| noted != base)).collect()
    }

    /// What both sides were, where they were the same.
    pub(crate) fn as_it_stood(&self) -> Option<&EntryState> {
        self.project.as_ref().filter(|project| self.sandbox.as_ref() == Some(project))
    }

    /// What the sandbox's entry came from, where `noted` is the base that is known of an earlier time:
    /// that, and what both sides had beyond it. Nothing, where it cannot be told.
    pub(crate) fn base(
        &self,
        memory: &Memory,
        noted: &EntryState,
    ) -> Result<Option<EntryState>, DeriveError> {
        let Some(project) = &self.project else { return Ok(None) };
        if project == noted || self.sandbox.as_ref() == Some(project) {
            return Ok(Some(project.clone()));
        }
        let sandbox = self.sandbox.as_ref().and_then(file);
        let (Some(noted), Some(theirs), Some(ours)) = (file(noted), file(project), sandbox) else {
            return Ok(None);
        };
        let blobs = (memory.blob(&noted.0)?, memory.blob(&theirs.0)?, memory.blob(&ours.0)?);
        let (Some(before), Some(project), Some(sandbox)) = blobs else { return Ok(None) };
        let Some(bytes) = shared(&before, &project, &sandbox) else { return Ok(None) };
        let mode = merge_modes(noted.1, theirs.1, ours.1)
            .and_then(|both| merge_modes(both, theirs.1, ours.1));
        let Some(mode) = mode else { return Ok(None) };
        kept_file(memory, &bytes, mode).map(Some)
    }
}
