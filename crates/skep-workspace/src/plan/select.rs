//! Which changes a selection means.

use crate::derive::{Derived, Entry, Standing};
use crate::error::PlanError;
use globset::{GlobBuilder, GlobMatcher};
use skep_types::{ByteString, Change, ChangeKind, Conflict, HunkId, RelPath, Selection};
use std::collections::{BTreeMap, BTreeSet};

/// How much of a change is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pick {
    /// All of it.
    Whole,
    /// Some of its hunks.
    Hunks(BTreeSet<HunkId>),
}

/// The selected changes, by the path of the change.
pub(crate) type Picked = BTreeMap<RelPath, Pick>;

/// What the selection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Special files stay; conflicts are refused.
    Approve,
    /// Special files may be dropped, and conflicts too.
    Reject,
}

/// One path or glob of a selection.
enum Pattern {
    /// This path and everything below it.
    Path(RelPath),
    Glob(GlobMatcher),
}

/// How a pattern means a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    /// By its own name.
    Exactly,
    /// By a directory above it, or a glob.
    Among,
}

pub(crate) fn select(
    derived: &Derived,
    selection: &Selection,
    purpose: Purpose,
    apart: &dyn Fn(&RelPath) -> bool,
) -> Result<Picked, PlanError> {
    let special = Specials::of(derived);
    let mut picked = Picked::new();
    if selection.is_everything() {
        for change in &derived.changes {
            let left_out =
                apart(&change.path) || (purpose == Purpose::Approve && special.leaves_out(change));
            if !left_out && (!change.ignored || selection.ignored) {
                picked.insert(change.path.clone(), Pick::Whole);
            }
        }
    }
    // First: of a file whose hunks are named, only those are meant, also where a path names it too.
    for id in &selection.hunks {
        pick_hunk(derived, id, &mut picked)?;
    }
    for text in &selection.paths {
        pick_pattern(derived, selection, (purpose, apart), &special, text, &mut picked)?;
    }
    complete_hunks(derived, &mut picked);
    Ok(picked)
}

/// Changes that involve a special file. They stay, and so does what cannot be applied without them:
/// unless it is named itself, which is then refused with the reason.
struct Specials<'a> {
    paths: BTreeSet<&'a RelPath>,
    parents: BTreeSet<RelPath>,
}

impl<'a> Specials<'a> {
    fn of(derived: &'a Derived) -> Self {
        let special = derived.changes.iter().filter(|change| change.kind == ChangeKind::Special);
        let paths: BTreeSet<&RelPath> = special.map(|change| &change.path).collect();
        let parents = paths.iter().flat_map(|path| path.ancestors()).collect();
        Self { paths, parents }
    }

    fn leaves_out(&self, change: &Change) -> bool {
        let in_place_of_one = || {
            !change.new.is_absent()
                && change.path.ancestors().any(|parent| self.paths.contains(&parent))
        };
        let gives_way_with_one =
            || change.kind == ChangeKind::Type && self.parents.contains(&change.path);
        !self.paths.is_empty()
            && (change.kind == ChangeKind::Special || in_place_of_one() || gives_way_with_one())
    }
}

fn pick_pattern(
    derived: &Derived,
    selection: &Selection,
    (purpose, apart): (Purpose, &dyn Fn(&RelPath) -> bool),
    special: &Specials<'_>,
    text: &ByteString,
    picked: &mut Picked,
) -> Result<(), PlanError> {
    let pattern = parse_pattern(derived, text)?;
    let (mut found, mut passed_over) = (false, false);
    for change in &derived.changes {
        let Some(named) = pattern.names(change) else { continue };
        if change.kind == ChangeKind::Special
            && purpose == Purpose::Approve
            && named == Named::Exactly
        {
            return Err(PlanError::Special(change.path.clone()));
        }
        if purpose == Purpose::Approve && named == Named::Among && special.leaves_out(change) {
            continue;
        }
        if apart(&change.path) && !pattern.enters(&change.path) {
            found = true;
            continue;
        }
        let asked = selection.ignored || !change.ignored || named == Named::Exactly;
        if asked || pattern.names_ignored(derived, &change.path) {
            picked.entry(change.path.clone()).or_insert(Pick::Whole);
            found = true;
        } else {
            passed_over = true;
        }
    }
    // A conflict may stand at a path that has no change of its own.
    let conflict = derived.conflicts.iter().any(|conflict| pattern.matches(&conflict.path));
    match () {
        () if found || conflict => Ok(()),
        () if passed_over => Err(PlanError::OnlyIgnored(text.to_string())),
        () => Err(PlanError::NothingMatches(text.to_string())),
    }
}

fn parse_pattern(derived: &Derived, text: &ByteString) -> Result<Pattern, PlanError> {
    // A variable that is not set, most often; it must not mean everything.
    if text.as_bytes().is_empty() {
        return Err(PlanError::EmptyPath);
    }
    let literal = RelPath::parse(text.as_bytes()).ok();
    let has_meta = text.as_bytes().iter().any(|byte| b"*?[{".contains(byte));
    if let Some(path) = literal {
        let here = |change: &Change| Pattern::Path(path.clone()).names(change).is_some();
        if !has_meta || derived.changes.iter().any(here) {
            return Ok(Pattern::Path(path));
        }
    }
    let glob = std::str::from_utf8(text.as_bytes())
        .ok()
        .and_then(|text| GlobBuilder::new(text).literal_separator(true).build().ok())
        .ok_or_else(|| PlanError::BadGlob(text.to_string()))?;
    Ok(Pattern::Glob(glob.compile_matcher()))
}

impl Pattern {
    fn matches(&self, path: &RelPath) -> bool {
        match self {
            Self::Path(top) => path.starts_with(top),
            Self::Glob(glob) => glob.is_match(path.as_path()),
        }
    }

    fn names(&self, change: &Change) -> Option<Named> {
        let paths = [Some(&change.path), change.renamed_from.as_ref()];
        let mut hits = paths.into_iter().flatten().filter(|path| self.matches(path)).peekable();
        hits.peek()?;
        let exact = hits.any(|path| matches!(self, Self::Path(top) if top == path));
        Some(if exact { Named::Exactly } else { Named::Among })
    }

    /// Whether it names the topmost directory under which `path` lies, and not only everything.
    fn enters(&self, path: &RelPath) -> bool {
        let Some(top) = path.components().next() else { return false };
        match self {
            Self::Path(named) => named.components().next() == Some(top),
            Self::Glob(glob) => {
                let text = glob.glob().glob().as_bytes();
                text.strip_prefix(top).is_some_and(|rest| rest.first().is_none_or(|b| *b == b'/'))
            }
        }
    }

    /// Whether it names the ignored directory (or something in it) under which `path` lies.
    fn names_ignored(&self, derived: &Derived, path: &RelPath) -> bool {
        let Self::Path(named) = self else { return false };
        derived.detail.ignored_top(path).is_some_and(|top| named.starts_with(&top))
    }
}

fn pick_hunk(derived: &Derived, id: &HunkId, picked: &mut Picked) -> Result<(), PlanError> {
    let change = derived
        .changes
        .iter()
        .find(|change| change.hunks.iter().any(|hunk| hunk.id == *id))
        .ok_or_else(|| PlanError::UnknownHunk(id.clone()))?;
    let pick = picked.entry(change.path.clone()).or_insert_with(|| Pick::Hunks(BTreeSet::new()));
    if let Pick::Hunks(ids) = pick {
        ids.insert(id.clone());
    }
    Ok(())
}

/// All hunks of a file are the file: its mode comes along.
fn complete_hunks(derived: &Derived, picked: &mut Picked) {
    for change in &derived.changes {
        if let Some(pick) = picked.get_mut(&change.path)
            && let Pick::Hunks(ids) = pick
            && ids.len() == change.hunks.len()
        {
            *pick = Pick::Whole;
        }
    }
}

/// The conflicts that a selection runs into.
pub(crate) fn conflicts_of(
    derived: &Derived,
    selection: &Selection,
    picked: &Picked,
    apart: &dyn Fn(&RelPath) -> bool,
) -> Result<Vec<Conflict>, PlanError> {
    let mut paths: BTreeSet<&RelPath> = picked.keys().collect();
    for change in &derived.changes {
        if picked.contains_key(&change.path) {
            paths.extend(change.renamed_from.as_ref());
        }
    }
    paths.extend(bare_conflicts(derived, selection, apart)?.into_iter().map(|entry| &entry.path));
    let mut conflicts = Vec::new();
    for entry in derived.detail.entries.values() {
        let Some(reason) = entry.standing.conflict() else { continue };
        // Whether these hunks merge is seen when they are.
        let some = matches!(picked.get(&entry.path), Some(Pick::Hunks(_)));
        if some && matches!(entry.standing, Standing::Collides(_)) {
            continue;
        }
        if paths.contains(&entry.path) {
            conflicts.push(Conflict { path: entry.path.clone(), reason: reason.clone() });
        }
    }
    Ok(conflicts)
}

/// Those that a selection means at paths that have no change of their own: the user added something in a
/// directory that the sandbox removed.
pub(crate) fn bare_conflicts<'a>(
    derived: &'a Derived,
    selection: &Selection,
    apart: &dyn Fn(&RelPath) -> bool,
) -> Result<Vec<&'a Entry>, PlanError> {
    let patterns: Vec<Pattern> = selection
        .paths
        .iter()
        .map(|text| parse_pattern(derived, text))
        .collect::<Result<_, _>>()?;
    let changed: BTreeSet<&RelPath> = derived.changes.iter().map(|change| &change.path).collect();
    let bare = |entry: &&Entry| {
        entry.standing.conflict().is_some()
            && !changed.contains(&entry.path)
            && !apart(&entry.path)
            && (selection.is_everything()
                || patterns.iter().any(|pattern| pattern.matches(&entry.path)))
    };
    Ok(derived.detail.entries.values().filter(bare).collect())
}
