//! What a move of one base is for another one of the same path.

use super::memory::{Memory, Settled};
use crate::error::DeriveError;
use crate::merge::{Merged, merge_modes, merge_text};
use skep_types::{ContentHash, EntryState};

/// What `base` becomes where a base like it moves from `from` to `to`: it keeps what it has beyond
/// `from`, and lacks what it lacks. Nothing, where that cannot be told: the bytes are not kept, do not
/// merge, or are none.
pub(crate) fn along(
    memory: &Memory,
    base: &Settled,
    from: &Settled,
    to: &Settled,
) -> Result<Option<Settled>, DeriveError> {
    if base.state == from.state {
        return Ok(Some(to.clone()));
    }
    let file = |settled: &Settled| match settled.state {
        EntryState::File { hash, mode, .. } => Some((hash, mode)),
        _ => None,
    };
    let (Some(ours), Some(before), Some(theirs)) = (file(base), file(from), file(to)) else {
        return Ok(None);
    };
    let bytes = (memory.blob(&before.0)?, memory.blob(&ours.0)?, memory.blob(&theirs.0)?);
    let modes = merge_modes(before.1, ours.1, theirs.1);
    let ((Some(before), Some(ours), Some(theirs)), Some(mode)) = (bytes, modes) else {
        return Ok(None);
    };
    let Merged::Clean(merged) = merge_text(&before, &ours, &theirs) else { return Ok(None) };
    memory.keep_blob(&merged)?;
    let (hash, size) = (ContentHash::of(&merged), merged.len() as u64);
    Ok(Some(Settled { state: EntryState::File { hash, size, mode }, partial: None }))
}
