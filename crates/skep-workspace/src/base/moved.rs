//! What a move of one base is for another one of the same path.

use super::late::{carried, file, followed, kept_file};
use super::memory::{Memory, Settled, Undone, Way};
use crate::error::DeriveError;
use crate::merge::{Merged, merge_modes, merge_text};
use skep_types::EntryState;

/// What `base` becomes where a base like it moves from `from` to `to`: it keeps what it has beyond
/// `from`, and lacks what it lacks. Nothing, where that cannot be told: the bytes are not kept, do not
/// merge, or are none.
pub(crate) fn along(
    memory: &Memory,
    base: &Settled,
    from: &Settled,
    to: &Settled,
) -> Result<Option<Settled>, DeriveError> {
    let late = followed(&base.late, &from.late, &to.late);
    if base.state == from.state {
        return Ok(Some(Settled { late, ..to.clone() }));
    }
    let files = (file(&base.state), file(&from.state), file(&to.state));
    let (Some(ours), Some(before), Some(theirs)) = files else { return Ok(None) };
    let bytes = (memory.blob(&before.0)?, memory.blob(&ours.0)?, memory.blob(&theirs.0)?);
    let modes = merge_modes(before.1, ours.1, theirs.1);
    let ((Some(before), Some(ours), Some(theirs)), Some(mode)) = (bytes, modes) else {
        return Ok(None);
    };
    let Merged::Clean(merged) = merge_text(&before, &ours, &theirs) else { return Ok(None) };
    let state = kept_file(memory, &merged, mode)?;
    Ok(Some(Settled { state, partial: None, late }))
}

/// What a base becomes when an approval is undone, or that undo is. Nothing, where it stays: it has nothing
/// of that approval.
///
/// It may have moved since the approval: by a rebase, whose lines are in the sandbox and stay in its base, or
/// they would count as the sandbox's; or back to before it, with the sandbox. `earlier` is what was ever the
/// base of the path: what was taken out of a base comes back to it only where it was in it, for a state that
/// never had the change would seem to take it away.
pub(crate) fn moved_along(
    memory: &Memory,
    base: Option<&Settled>,
    undone: &Undone,
    earlier: &[EntryState],
) -> Result<Option<Settled>, DeriveError> {
    let Undone { from, to, way } = undone;
    // An approval settles: what is not settled has gone back, and has nothing of it.
    let Some(base) = base else { return Ok(None) };
    let late = carried(&base.late, &from.late, &to.late);
    let there = (&base.state, &base.partial) == (&to.state, &to.partial);
    if there {
        return Ok(Some(base.clone()));
    }
    if base.state == from.state {
        return Ok(Some(Settled { late, ..to.clone() }));
    }
    if [base, from, to].into_iter().any(|settled| !settled.is_file()) {
        // What the approval made is pending again, with what the user wrote into it since.
        let made = to.state.is_absent() && base.is_file() && from.is_file();
        return Ok(made.then(|| to.clone()));
    }
    let moved = along(memory, base, from, to)?.map(|moved| Settled { late, ..moved });
    Ok(moved.filter(|moved| *way == Way::Back || earlier.contains(&moved.state)))
}
