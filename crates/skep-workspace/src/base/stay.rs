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

use super::memory::Memory;
use crate::error::DeriveError;
use crate::merge::{Merged, merge_modes, merge_text};
use serde::{Deserialize, Serialize};
use skep_types::{ContentHash, EntryState};

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
    pub(crate) fn owes(
        &self,
        late: Option<&Late>,
        noted: &EntryState,
        base: &EntryState,
    ) -> Option<Late> {
        match self.late && noted != base {
            true => {
                let before = late.map_or(noted, |late| &late.before).clone();
                Some(Late { before, with: base.clone() })
            }
            false => late.filter(|_| self.late).cloned(),
        }
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
        let file = |state: &EntryState| match state {
            EntryState::File { hash, mode, .. } => Some((*hash, *mode)),
            _ => None,
        };
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
        memory.keep_blob(&bytes)?;
        let (hash, size) = (ContentHash::of(&bytes), bytes.len() as u64);
        Ok(Some(EntryState::File { hash, size, mode }))
    }
}

/// What the user wrote while somebody was inside who may know the file as it was before. It outlives an approval and an
/// undo: whoever it was may still write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// The file without it.
    pub before: EntryState,
    /// And with it.
    pub with: EntryState,
}

impl Late {
    /// Whether the sandbox, which has `now` at the path, has all of it.
    pub(crate) fn is_in(&self, memory: &Memory, now: &Inside<'_>) -> Result<bool, DeriveError> {
        let file = |state: &EntryState| match state {
            EntryState::File { hash, mode, .. } => Some((*hash, *mode)),
            _ => None,
        };
        let sides = (file(&self.before), file(&self.with), file(now.state));
        let (Some(before), Some(with), Some((_, mode))) = sides else { return Ok(false) };
        if with.1 != before.1 && mode != with.1 {
            return Ok(false);
        }
        let (Some(before), Some(with)) = (memory.blob(&before.0)?, memory.blob(&with.0)?) else {
            return Ok(false);
        };
        let Some(bytes) = (now.bytes)()? else { return Ok(false) };
        Ok(shared(&before, &with, &bytes).is_some_and(|both| both == with))
    }
}

/// What the sandbox has at a path now.
pub(crate) struct Inside<'a> {
    pub state: &'a EntryState,
    /// Of a file; none where it is too large.
    pub bytes: &'a dyn Fn() -> Result<Option<Vec<u8>>, DeriveError>,
}

/// `before`, with what both sides made of it alike. Both together have everything that either has; to go
/// from there to one side takes away what only the other has, and to go to both leaves what is shared.
fn shared(before: &[u8], left: &[u8], right: &[u8]) -> Option<Vec<u8>> {
    let Merged::Clean(both) = merge_text(before, left, right) else { return None };
    match merge_text(&both, left, right) {
        Merged::Clean(shared) => Some(shared),
        Merged::Conflict => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lines far enough apart to be merged, some of them edited.
    fn text(edits: &[Option<u8>]) -> Vec<u8> {
        let line = |(at, edit): (usize, &Option<u8>)| {
            let value = edit.map_or("first".to_owned(), |edit| format!("edit {edit}"));
            format!("{at}.a\n{at}.b\n{at}.c\n[{at}]={value}\n")
        };
        edits.iter().enumerate().map(line).collect::<String>().into_bytes()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn what_both_sides_have_is_shared_and_nothing_else(
            sides in prop::collection::vec((prop::option::of(0u8..2), prop::option::of(0u8..2)), 1..9)
        ) {
            let (left, right): (Vec<_>, Vec<_>) = sides.iter().copied().unzip();
            let both = |(left, right): &(Option<u8>, Option<u8>)| (left == right).then_some(*left).flatten();
            let collides = sides.iter().any(|(left, right)| left != right && left.is_some() && right.is_some());
            let before = text(&vec![None; sides.len()]);
            let expected = (!collides).then(|| text(&sides.iter().map(both).collect::<Vec<_>>()));
            prop_assert_eq!(shared(&before, &text(&left), &text(&right)), expected);
        }
    }
}
