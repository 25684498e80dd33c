//! Finds deletions and additions that are one move.
//!
//! Equal content first, then at least half of it shared, by lines. What is picked depends only on
//! names and contents, so the digest is the same everywhere.

use super::content::Contents;
use super::{Detail, Standing};
use crate::error::DeriveError;
use crate::hunks::{diff_lines, is_binary, lines_of};
use skep_types::{Change, ChangeKind, ContentHash, EntryState, RelPath};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// More candidates than this on a side, and similarity is not looked at.
const MAX_CANDIDATES: usize = 1000;
/// A line that is in more files than this says nothing about where a file came from.
const MAX_POSTINGS: usize = 64;
/// The best few by a rough score are compared exactly.
const MAX_COMPARED: usize = 8;

/// Replaces pairs of a deletion and an addition by one rename.
pub(super) fn detect(
    changes: &mut Vec<Change>,
    detail: &Detail,
    contents: &Contents<'_>,
) -> Result<(), DeriveError> {
    let pairs = pairs(changes, detail, contents)?;
    if pairs.is_empty() {
        return Ok(());
    }
    for change in changes.iter_mut().filter(|change| change.kind == ChangeKind::Added) {
        if let Some(old) = pairs.get(&change.path) {
            join(change, old, detail, contents)?;
        }
    }
    let gone: BTreeSet<&RelPath> = pairs.values().collect();
    changes.retain(|change| !(change.kind == ChangeKind::Deleted && gone.contains(&change.path)));
    Ok(())
}

/// New path to old path. The changes come sorted.
fn pairs(
    changes: &[Change],
    detail: &Detail,
    contents: &Contents<'_>,
) -> Result<BTreeMap<RelPath, RelPath>, DeriveError> {
    let special: BTreeSet<&RelPath> = changes
        .iter()
        .filter(|change| change.kind == ChangeKind::Special)
        .map(|change| &change.path)
        .collect();
    let below_special = |path: &RelPath| {
        !special.is_empty() && path.ancestors().any(|parent| special.contains(&parent))
    };
    // Only among what an approval can take and takes together: not below a special file, and not
    // ignored, else a deletion in the sources could hide in a build directory.
    let candidates = |kind: ChangeKind, side: fn(&Change) -> &EntryState| -> Vec<&Change> {
        changes
            .iter()
            .filter(|change| change.kind == kind && !change.ignored)
            .filter(|change| matches!(side(change), EntryState::File { size: 1.., .. }))
            .filter(|change| {
                let entry = detail.entries.get(&change.path);
                entry.is_none_or(|entry| entry.standing == Standing::Clean)
            })
            .filter(|change| !below_special(&change.path))
            .collect()
    };
    let mut deleted = candidates(ChangeKind::Deleted, |change| &change.old);
    if deleted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut added = candidates(ChangeKind::Added, |change| &change.new);
    let mut pairs = exact_pairs(&deleted, &added);
    let moved: BTreeSet<&RelPath> = pairs.values().collect();
    deleted.retain(|change| !moved.contains(&change.path));
    added.retain(|change| !pairs.contains_key(&change.path));
    if deleted.len() <= MAX_CANDIDATES && added.len() <= MAX_CANDIDATES {
        pairs.extend(similar_pairs(&deleted, &added, detail, contents)?);
    }
    Ok(pairs)
}

fn hash_of(state: &EntryState) -> Option<ContentHash> {
    match state {
        EntryState::File { hash, .. } => Some(*hash),
        _ => None,
    }
}

/// New path to old path, where the content is the same; the same file name is preferred.
fn exact_pairs(deleted: &[&Change], added: &[&Change]) -> BTreeMap<RelPath, RelPath> {
    let mut by_hash: HashMap<ContentHash, Vec<&RelPath>> = HashMap::new();
    for change in deleted {
        if let Some(hash) = hash_of(&change.old) {
            by_hash.entry(hash).or_default().push(&change.path);
        }
    }
    let mut pairs = BTreeMap::new();
    for same_name in [true, false] {
        for new in added {
            let Some(hash) = hash_of(&new.new) else { continue };
            let Some(olds) = by_hash.get_mut(&hash) else { continue };
            if pairs.contains_key(&new.path) {
                continue;
            }
            let found =
                olds.iter().position(|old| !same_name || old.file_name() == new.path.file_name());
            if let Some(index) = found {
                pairs.insert(new.path.clone(), olds.remove(index).clone());
            }
        }
    }
    pairs
}

/// A text as its lines' hashes, with how many bytes each stands for.
struct Lines {
    size: u64,
    bytes_of: HashMap<u64, u64>,
}

impl Lines {
    fn of(bytes: &[u8]) -> Option<Self> {
        if is_binary(bytes) {
            return None;
        }
        let mut bytes_of = HashMap::new();
        for line in lines_of(bytes) {
            let hash = ContentHash::of(line);
            let mut short = [0; 8];
            short.copy_from_slice(&hash.as_bytes()[..8]);
            *bytes_of.entry(u64::from_le_bytes(short)).or_insert(0) += line.len() as u64;
        }
        Some(Self { size: bytes.len() as u64, bytes_of })
    }

    /// Bytes in lines that both have.
    fn shared(&self, other: &Self) -> u64 {
        self.bytes_of
            .iter()
            .map(|(hash, bytes)| other.bytes_of.get(hash).map_or(0, |other| *bytes.min(other)))
            .sum()
    }
}

fn similar_pairs(
    deleted: &[&Change],
    added: &[&Change],
    detail: &Detail,
    contents: &Contents<'_>,
) -> Result<BTreeMap<RelPath, RelPath>, DeriveError> {
    if deleted.is_empty() || added.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut olds = Vec::new();
    for change in deleted {
        if let Some(lines) = contents.base(&detail.of(change))?.as_deref().and_then(Lines::of) {
            olds.push((&change.path, lines));
        }
    }
    let mut postings: HashMap<u64, Vec<usize>> = HashMap::new();
    for (index, (_, lines)) in olds.iter().enumerate() {
        for hash in lines.bytes_of.keys() {
            postings.entry(*hash).or_default().push(index);
        }
    }
    let mut scored = Vec::new();
    for new in added {
        let bytes = contents.sandbox(&detail.of(new))?;
        let Some(lines) = bytes.as_deref().and_then(Lines::of) else { continue };
        for index in likely(&lines, &postings) {
            let (old, old_lines) = &olds[index];
            let shared = lines.shared(old_lines);
            let larger = lines.size.max(old_lines.size);
            if shared * 2 >= larger {
                scored.push((shared * 10_000 / larger, (*old).clone(), new.path.clone()));
            }
        }
    }
    scored.sort_by(|left, right| {
        right.0.cmp(&left.0).then_with(|| (&left.1, &left.2).cmp(&(&right.1, &right.2)))
    });
    let (mut used, mut pairs) = (BTreeSet::new(), BTreeMap::new());
    for (_, old, new) in scored {
        if !used.contains(&old) && !pairs.contains_key(&new) {
            used.insert(old.clone());
            pairs.insert(new, old);
        }
    }
    Ok(pairs)
}

/// The few old files that share most with `lines`, leaving out lines that are everywhere.
fn likely(lines: &Lines, postings: &HashMap<u64, Vec<usize>>) -> Vec<usize> {
    let mut rough: HashMap<usize, u64> = HashMap::new();
    for (hash, bytes) in &lines.bytes_of {
        if let Some(files) = postings.get(hash)
            && files.len() <= MAX_POSTINGS
        {
            files.iter().for_each(|file| *rough.entry(*file).or_default() += bytes);
        }
    }
    let mut best: Vec<(usize, u64)> = rough.into_iter().collect();
    best.sort_by_key(|(file, bytes)| (std::cmp::Reverse(*bytes), *file));
    best.into_iter().take(MAX_COMPARED).map(|(file, _)| file).collect()
}

/// Turns an addition into a rename from `old`.
fn join(
    change: &mut Change,
    old: &RelPath,
    detail: &Detail,
    contents: &Contents<'_>,
) -> Result<(), DeriveError> {
    let to = detail.of(change);
    let from = &detail.entries[old];
    change.kind = ChangeKind::Renamed;
    change.renamed_from = Some(old.clone());
    change.old = from.old();
    change.hunks.clear();
    (change.added, change.removed) = (0, 0);
    if hash_of(&change.old) == hash_of(&change.new) || change.binary {
        return Ok(());
    }
    if let (Some(before), Some(after)) = (contents.base(from)?, contents.sandbox(&to)?) {
        let diff = diff_lines(&change.path, &before, &after);
        (change.hunks, change.added, change.removed) = (diff.hunks, diff.added, diff.removed);
    }
    Ok(())
}
