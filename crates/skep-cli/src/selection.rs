//! Which changes a list of words means, for showing them. What is applied the engine selects.

use skep_policy::PathSelector;
use skep_types::{ByteString, Change, ChangeSet, Code, Problem};

/// Whether ignored changes are meant too when nothing in particular was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ignored {
    /// Yes.
    Shown,
    /// Only counted.
    Apart,
}

/// The selected changes, in the order of the change set.
pub(crate) fn changes<'a>(
    set: &'a ChangeSet,
    words: &[ByteString],
    ignored: Ignored,
) -> Result<Vec<&'a Change>, Problem> {
    let paths: Vec<_> = set.changes.iter().map(|change| &change.path).collect();
    let selector = PathSelector::parse(words)
        .map_err(|error| Problem::from_error(Code::Usage, &error))?
        .settled(paths);
    // An ignored path that was named is meant, as in an approval.
    let meant = |change: &&Change| {
        (selector.matches(&change.path)
            || change.renamed_from.as_ref().is_some_and(|from| selector.matches(from)))
            && (!change.ignored || ignored == Ignored::Shown || !words.is_empty())
    };
    Ok(set.changes.iter().filter(meant).collect())
}

/// What the words select.
pub(crate) fn selector(words: &[ByteString]) -> Result<PathSelector, Problem> {
    PathSelector::parse(words).map_err(|error| Problem::from_error(Code::Usage, &error))
}

/// Whether the words name a path where both sides do not merge; it need not have a change of its own.
pub(crate) fn conflicts(set: &ChangeSet, words: &[ByteString]) -> Result<bool, Problem> {
    let selector = selector(words)?;
    Ok(set.conflicts.iter().any(|conflict| selector.matches(&conflict.path)))
}
