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
use std::cmp::Ordering;
use std::collections::HashMap;

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
    fn is_in(&self, memory: &Memory, now: &Content<'_>) -> Result<bool, DeriveError> {
        let (Some(with), Some(inside)) = (file(&self.with), file(now.state)) else {
            return Ok(false);
        };
        let (Some(with_bytes), Some(bytes)) = (memory.blob(&with.0)?, (now.bytes)()?) else {
            return Ok(false);
        };
        let Some(before) = file(&self.before) else {
            // Nothing stood there that somebody could know.
            let lines = self.before.is_absent() && has_lines(&bytes, &with_bytes);
            return Ok(lines && inside.1 == with.1);
        };
        if with.1 != before.1 && inside.1 != with.1 {
            return Ok(false);
        }
        let Some(before) = memory.blob(&before.0)? else { return Ok(false) };
        Ok(match shared(&before, &with_bytes, &bytes) {
            Some(both) => both == with_bytes,
            None => keeps_lines(&before, &with_bytes, &bytes),
        })
    }

    /// What of it is in `now` as well; nothing, where that cannot be told.
    fn left_in(&self, memory: &Memory, now: &Content<'_>) -> Result<Option<Self>, DeriveError> {
        let sides = (file(&self.before), file(&self.with), file(now.state));
        let (Some(before), Some(with), Some((_, mode))) = sides else { return Ok(None) };
        let blobs = (memory.blob(&before.0)?, memory.blob(&with.0)?, (now.bytes)()?);
        let (Some(before_bytes), Some(with_bytes), Some(bytes)) = blobs else { return Ok(None) };
        let Some(left) = shared(&before_bytes, &with_bytes, &bytes) else { return Ok(None) };
        let mode = if mode == with.1 { mode } else { before.1 };
        let with = kept_file(memory, &left, mode)?;
        Ok(Some(Self { before: self.before.clone(), with }))
    }
}

/// Whether the sandbox has everything that is late.
pub(crate) fn all_in(
    lates: &[Late],
    memory: &Memory,
    now: &Content<'_>,
) -> Result<bool, DeriveError> {
    for late in lates {
        if !late.is_in(memory, now)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether it has all of that which the project still has: what the user took back is nobody's to keep.
pub(crate) fn all_kept(
    lates: &[Late],
    memory: &Memory,
    now: &Content<'_>,
    project: &Content<'_>,
) -> Result<bool, DeriveError> {
    for late in lates {
        if late.is_in(memory, now)? {
            continue;
        }
        let left = late.left_in(memory, project)?;
        if !left.map(|left| left.is_in(memory, now)).transpose()?.unwrap_or(false) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What is late of a base that was `base`, and is `after` by an approval: what was before, as far as it is in it; and what the project has
/// as well. Whoever wrote that inside, the user has it without this approval.
pub(crate) fn after_approval(
    memory: &Memory,
    base: &Settled,
    project: &EntryState,
    after: &EntryState,
) -> Result<Vec<Late>, DeriveError> {
    let mut lates = Vec::new();
    for late in &base.late {
        let bytes =
            || file(after).map(|(hash, _)| memory.blob(&hash)).transpose().map(Option::flatten);
        match late.left_in(memory, &Content { state: after, bytes: &bytes })? {
            Some(left) if left.with == left.before => {}
            Some(left) => lates.push(left),
            None => lates.push(late.clone()),
        }
    }
    let sides = (file(&base.state), file(project), file(after));
    let (Some(old), Some(theirs), Some(new)) = sides else { return Ok(lates) };
    if *project == base.state {
        return Ok(lates);
    }
    let blobs = (memory.blob(&old.0)?, memory.blob(&theirs.0)?, memory.blob(&new.0)?);
    let both = match blobs {
        (Some(old), Some(theirs), Some(new)) => shared(&old, &theirs, &new),
        _ => None,
    };
    let mode = if theirs.1 == new.1 { new.1 } else { old.1 };
    let with = match both {
        Some(both) => kept_file(memory, &both, mode)?,
        None => after.clone(),
    };
    if with != base.state {
        lates.push(Late { before: base.state.clone(), with });
    }
    Ok(lates)
}

/// What is late of a base that an undo moves from `from` to `to`, where the present one has `base`: what `to` had, but what has ended
/// since; and what came since.
pub(super) fn carried(base: &[Late], from: &[Late], to: &[Late]) -> Vec<Late> {
    let ended = |late: &&Late| from.contains(late) && !base.contains(late);
    let kept = to.iter().filter(|late| !ended(late));
    let came = base.iter().filter(|late| !from.contains(late) && !to.contains(late));
    kept.chain(came).cloned().collect()
}

/// What is late of the base of another state, which moves with an approval from `from` to `to`.
pub(super) fn followed(base: &[Late], from: &[Late], to: &[Late]) -> Vec<Late> {
    let came = to.iter().filter(|late| !from.contains(late) && !base.contains(late));
    base.iter().chain(came).cloned().collect()
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

/// Lines without what ends them: whoever adds to a file ends its last line.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

/// Whether all of `wanted` are in `text`, in their order.
fn has_lines(text: &[u8], wanted: &[u8]) -> bool {
    let mut text = lines(text);
    lines(wanted).all(|line| text.any(|other| other == line))
}

/// Where lines beside the user's were changed too, which does not merge: whether `now` has each line that `with` has more often than `before`, and
/// none that it has less often. Not where lines were moved, for that is not seen so.
fn keeps_lines(before: &[u8], with: &[u8], now: &[u8]) -> bool {
    let counts = |text| {
        let mut counts: HashMap<&[u8], usize> = HashMap::new();
        lines(text).for_each(|line| *counts.entry(line).or_default() += 1);
        counts
    };
    let (old, new, inside) = (counts(before), counts(with), counts(now));
    let of = |counts: &HashMap<&[u8], usize>, line: &[u8]| counts.get(line).copied().unwrap_or(0);
    let same = |line: &&[u8]| of(&old, line) == of(&new, line);
    if !lines(before).filter(same).eq(lines(with).filter(same)) {
        return false;
    }
    old.keys().chain(new.keys()).all(|line| match of(&new, line).cmp(&of(&old, line)) {
        Ordering::Equal => true,
        Ordering::Greater => of(&inside, line) >= of(&new, line),
        Ordering::Less => of(&inside, line) <= of(&new, line),
    })
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
