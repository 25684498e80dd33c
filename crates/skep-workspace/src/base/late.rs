//! What the user wrote while somebody was inside who may know the file as it was before, and may still write that.
//!
//! It goes with the base that has it, through approvals and undos, which teach nobody inside anything. As long as the sandbox has all
//! of it, the base is what it is; after that what the sandbox came from is not known, unless the user has taken back
//! what it lacks.

use super::memory::{Memory, Settled};
use crate::error::DeriveError;
use crate::merge::{Merged, merge_text};
use serde::{Deserialize, Serialize};
use skep_types::{ContentHash, EntryState};

/// What one side has at a path now.
pub(crate) struct Content<'a> {
    pub state: &'a EntryState,
    /// Of a file; none where it is too large.
    pub bytes: &'a dyn Fn() -> Result<Option<Vec<u8>>, DeriveError>,
}

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// The file without it.
    pub before: EntryState,
    /// And with it.
    pub with: EntryState,
}

impl Late {
    /// Whether the sandbox, which has `now` at the path, has all of it.
    pub(crate) fn is_in(&self, memory: &Memory, now: &Content<'_>) -> Result<bool, DeriveError> {
        let (Some(with), Some(inside)) = (file(&self.with), file(now.state)) else {
            return Ok(false);
        };
        let (Some(with_bytes), Some(bytes)) = (memory.blob(&with.0)?, (now.bytes)()?) else {
            return Ok(false);
        };
        let Some(before) = file(&self.before) else {
            // Nothing stood there that somebody could know.
            return Ok(self.before.is_absent() && has_lines(&bytes, &with_bytes));
        };
        if with.1 != before.1 && inside.1 != with.1 {
            return Ok(false);
        }
        let Some(before) = memory.blob(&before.0)? else { return Ok(false) };
        Ok(shared(&before, &with_bytes, &bytes).is_some_and(|both| both == with_bytes))
    }

    /// What of it the project still has, which has `now` at the path: what the user took back again is nobody's to keep.
    pub(crate) fn left_in(
        &self,
        memory: &Memory,
        now: &Content<'_>,
    ) -> Result<Option<Self>, DeriveError> {
        let sides = (file(&self.before), file(&self.with), file(now.state));
        let (Some(before), Some(with), Some((_, mode))) = sides else { return Ok(None) };
        let blobs = (memory.blob(&before.0)?, memory.blob(&with.0)?, (now.bytes)()?);
        let (Some(before_bytes), Some(with_bytes), Some(bytes)) = blobs else { return Ok(None) };
        let Some(left) = shared(&before_bytes, &with_bytes, &bytes) else { return Ok(None) };
        let mode = if mode == with.1 { mode } else { before.1 };
        let with = kept_file(memory, &left, mode)?;
        Ok(Some(Self { before: self.before.clone(), with }))
    }

    /// What is late of a base after an approval which makes it `after`: what was before, and what the project has as well. Whoever wrote it inside,
    /// the user has it without this approval.
    pub(crate) fn after_approval(
        memory: &Memory,
        base: &Settled,
        project: &EntryState,
        after: &EntryState,
    ) -> Result<Option<Box<Self>>, DeriveError> {
        let late = base.late.clone();
        let sides = (file(&base.state), file(project), file(after));
        let (Some(old), Some(theirs), Some(new)) = sides else { return Ok(late) };
        if *project == base.state {
            return Ok(late);
        }
        let before = late.as_ref().map_or(&base.state, |late| &late.before).clone();
        let blobs = (memory.blob(&old.0)?, memory.blob(&theirs.0)?, memory.blob(&new.0)?);
        let (Some(old_bytes), Some(their_bytes), Some(new_bytes)) = blobs else {
            return Ok(Some(Box::new(Self { before, with: after.clone() })));
        };
        let both = shared(&old_bytes, &their_bytes, &new_bytes);
        let mode = if theirs.1 == new.1 { new.1 } else { old.1 };
        if both.as_ref() == Some(&old_bytes) && mode == old.1 {
            return Ok(late);
        }
        let earlier = late.as_ref().and_then(|late| file(&late.with));
        let earlier = earlier.map(|(hash, _)| memory.blob(&hash)).transpose()?.flatten();
        let both = match (both, earlier) {
            (Some(both), Some(earlier)) => match merge_text(&old_bytes, &both, &earlier) {
                Merged::Clean(both) => both,
                Merged::Conflict => new_bytes,
            },
            (both, _) => both.unwrap_or(new_bytes),
        };
        let with = kept_file(memory, &both, mode)?;
        Ok((with != before).then(|| Box::new(Self { before, with })))
    }
}

pub(super) fn file(state: &EntryState) -> Option<(ContentHash, u32)> {
    match state {
        EntryState::File { hash, mode, .. } => Some((*hash, *mode)),
        _ => None,
    }
}

pub(super) fn kept_file(
    memory: &Memory,
    bytes: &[u8],
    mode: u32,
) -> Result<EntryState, DeriveError> {
    let (hash, size) = (memory.keep_blob(bytes)?, bytes.len() as u64);
    Ok(EntryState::File { hash, size, mode })
}

/// Whether all of `lines` are in `text`, in their order.
fn has_lines(text: &[u8], lines: &[u8]) -> bool {
    let mut text = text.split_inclusive(|byte| *byte == b'\n');
    lines.split_inclusive(|byte| *byte == b'\n').all(|line| text.any(|other| other == line))
}

/// `before`, with what both sides made of it alike. Both together have everything that either has; to go
/// from there to one side takes away what only the other has, and to go to both leaves what is shared.
pub(super) fn shared(before: &[u8], left: &[u8], right: &[u8]) -> Option<Vec<u8>> {
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
