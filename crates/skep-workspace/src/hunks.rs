//! Line hunks: what changed in a text, as stretches that can be taken over one by one.
//!
//! Lines are bytes up to and including `\n`; nothing is decoded, so CRLF, a byte order mark, a
//! missing final newline and invalid UTF-8 come through exactly.

use crate::base::memory::Stretch;
use crate::hunk_ids::{self, Origin};
use gix_imara_diff::{Algorithm, Diff, InternedInput};
use skep_types::{ContentHash, Hunk, HunkId, HunkLine, RelPath};
use std::ops::Range;

/// Lines of context on each side of a change.
const CONTEXT: u32 = 3;

/// How much of a file decides whether it is text, as in git.
const BINARY_PROBE: usize = 8000;

/// Histogram diff takes the square of the lines where many places changed: a text that had or has
/// more lines than this is lined up as git does it by default. The size of the base counts, and not
/// that of the change: an id must not depend on what else was changed.
const PATIENT: (usize, usize) = (5_000, 10_000);

/// Where so many lines lie between the first and the last that changed, they are not lined up.
const LINED_UP: usize = 256 << 10;

/// A hunk that does not fit the bytes it is applied to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hunk `{id}` does not fit the base at line {line}")]
pub struct HunkMismatch {
    /// Which hunk.
    pub id: HunkId,
    /// First line of the base that differs from what the hunk expects.
    pub line: u32,
}

/// The hunks between two texts, with the sums of changed lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextDiff {
    /// In the order of the text.
    pub hunks: Vec<Hunk>,
    /// Lines added.
    pub added: u64,
    /// Lines removed.
    pub removed: u64,
}

/// Whether these bytes are no text: a NUL among the first 8000.
pub fn is_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(BINARY_PROBE)].contains(&0)
}

/// The lines of `bytes`, each with its end.
pub(crate) fn lines_of(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}

/// The changed stretches between two texts: ranges of lines before and after.
pub(crate) fn changed_ranges(
    algorithm: Algorithm,
    before: &[&[u8]],
    after: &[&[u8]],
) -> Vec<(Range<u32>, Range<u32>)> {
    if !can_be_lined_up(before, after) {
        return line_by_line(before, after);
    }
    let algorithm = match before.len() > PATIENT.0 || after.len() > PATIENT.1 {
        true => Algorithm::Myers,
        false => algorithm,
    };
    let mut input: InternedInput<&[u8]> = InternedInput::default();
    input.update_before(before.iter().copied());
    input.update_after(after.iter().copied());
    let mut diff = Diff::compute(algorithm, &input);
    diff.postprocess_lines(&input);
    diff.hunks().map(|hunk| (hunk.before, hunk.after)).collect()
}

/// Whether finding what stayed between two texts takes a moment only, whatever is in them.
pub(crate) fn can_be_lined_up(before: &[&[u8]], after: &[&[u8]]) -> bool {
    if before.len() + after.len() <= LINED_UP {
        return true;
    }
    let (lead, tail) = common_ends(before, after);
    before.len() + after.len() - 2 * (lead + tail) <= LINED_UP
}

/// How many lines at the beginning and at the end are the same.
fn common_ends(before: &[&[u8]], after: &[&[u8]]) -> (usize, usize) {
    let lead = before.iter().zip(after).take_while(|(old, new)| old == new).count();
    let (old, new) = (before[lead..].iter().rev(), after[lead..].iter().rev());
    (lead, old.zip(new).take_while(|(old, new)| old == new).count())
}

/// Each line against the one in its place where there are as many as before; else everything between
/// the first and the last that changed is one change.
fn line_by_line(before: &[&[u8]], after: &[&[u8]]) -> Vec<(Range<u32>, Range<u32>)> {
    let (lead, tail) = common_ends(before, after);
    let (old, new) = (lead..before.len() - tail, lead..after.len() - tail);
    let numbers = |range: Range<usize>| range.start as u32..range.end as u32;
    if old != new {
        return vec![(numbers(old), numbers(new))];
    }
    let mut ranges: Vec<(Range<u32>, Range<u32>)> = Vec::new();
    for at in old.filter(|at| before[*at] != after[*at]).map(|at| at as u32) {
        match ranges.last_mut() {
            Some((old, new)) if old.end == at => (old.end, new.end) = (at + 1, at + 1),
            _ => ranges.push((at..at + 1, at..at + 1)),
        }
    }
    ranges
}

/// The hunks that turn `old` into `new`. `path` enters their ids.
pub fn diff_lines(path: &RelPath, old: &[u8], new: &[u8]) -> TextDiff {
    diff_lines_since(path, &[], old, new)
}

/// The same where hunks were taken over before, which gave `old`: each of `origins` was made of the next
/// one, and `old` of the first. The ids tell where something stands in the earliest of them that has it,
/// so that what was not taken keeps its id.
pub(crate) fn diff_lines_since(
    path: &RelPath,
    origins: &[Origin<'_>],
    old: &[u8],
    new: &[u8],
) -> TextDiff {
    let before = lines_of(old);
    let mut diff = unnamed(&before, &lines_of(new));
    hunk_ids::name(path, &mut diff.hunks, old, origins);
    diff
}

/// The hunks, without their ids.
fn unnamed(before: &[&[u8]], after: &[&[u8]]) -> TextDiff {
    let ranges = changed_ranges(Algorithm::Histogram, before, after);
    let mut diff = TextDiff::default();
    for (removed, added) in &ranges {
        diff.removed += u64::from(removed.end - removed.start);
        diff.added += u64::from(added.end - added.start);
    }
    diff.hunks =
        group_ranges(&ranges).into_iter().map(|group| build_hunk(group, before, after)).collect();
    diff
}

/// Puts changes together whose context would touch or overlap.
fn group_ranges(ranges: &[(Range<u32>, Range<u32>)]) -> Vec<&[(Range<u32>, Range<u32>)]> {
    ranges.chunk_by(|left, right| right.0.start - left.0.end <= 2 * CONTEXT).collect()
}

fn build_hunk(group: &[(Range<u32>, Range<u32>)], before: &[&[u8]], after: &[&[u8]]) -> Hunk {
    let (first, last) = (&group[0], &group[group.len() - 1]);
    let lead = first.0.start.min(CONTEXT);
    let tail = (before.len() as u32 - last.0.end).min(CONTEXT);
    let old = first.0.start - lead..last.0.end + tail;
    let new = first.1.start - lead..last.1.end + tail;
    let mut lines = Vec::new();
    let mut at = old.start;
    for (removed, added) in group {
        lines.extend(slice(before, at..removed.start).map(HunkLine::Context));
        lines.extend(slice(before, removed.clone()).map(HunkLine::Removed));
        lines.extend(slice(after, added.clone()).map(HunkLine::Added));
        at = removed.end;
    }
    lines.extend(slice(before, at..old.end).map(HunkLine::Context));
    Hunk {
        id: HunkId::from_hash(&ContentHash::of(b"")),
        old_start: start_number(&old),
        old_lines: old.end - old.start,
        new_start: start_number(&new),
        new_lines: new.end - new.start,
        lines,
    }
}

fn slice<'a>(
    lines: &'a [&'a [u8]],
    range: Range<u32>,
) -> impl Iterator<Item = skep_types::ByteString> + 'a {
    lines[range.start as usize..range.end as usize].iter().map(|line| (*line).into())
}

/// Unified diffs count from 1, and name the line before when there is none.
fn start_number(range: &Range<u32>) -> u32 {
    if range.is_empty() { range.start } else { range.start + 1 }
}

/// Applies some of the hunks of a diff to its base. None gives the base, all give the new text.
///
/// Fails when a hunk's context or removed lines are not what stands in `base`.
pub fn apply_hunks(base: &[u8], hunks: &[&Hunk]) -> Result<Vec<u8>, HunkMismatch> {
    let lines = lines_of(base);
    let mut sorted = hunks.to_vec();
    sorted.sort_by_key(|hunk| (first_line(hunk), hunk.old_lines));
    let mut out = Vec::with_capacity(base.len());
    let mut at = 0usize;
    for hunk in sorted {
        let start = first_line(hunk);
        let mismatch = |line: usize| HunkMismatch { id: hunk.id.clone(), line: line as u32 + 1 };
        if start < at || start > lines.len() {
            return Err(mismatch(start));
        }
        lines[at..start].iter().for_each(|line| out.extend_from_slice(line));
        at = start;
        for line in &hunk.lines {
            match line {
                HunkLine::Added(text) => out.extend_from_slice(text.as_bytes()),
                HunkLine::Context(text) | HunkLine::Removed(text) => {
                    if lines.get(at).copied() != Some(text.as_bytes()) {
                        return Err(mismatch(at));
                    }
                    if matches!(line, HunkLine::Context(_)) {
                        out.extend_from_slice(text.as_bytes());
                    }
                    at += 1;
                }
            }
        }
    }
    lines[at..].iter().for_each(|line| out.extend_from_slice(line));
    Ok(out)
}

/// Its first line in the base, counted from 0.
pub(crate) fn first_line(hunk: &Hunk) -> usize {
    if hunk.old_lines == 0 { hunk.old_start as usize } else { hunk.old_start as usize - 1 }
}

/// The hunks that are left after `taken` were applied to the base: the same ids, their place in the
/// base moved by what was taken before them.
///
/// Diffing the half-applied base again could line repeated text up in another way; this cannot.
pub(crate) fn without_taken(diff: TextDiff, taken: &[HunkId]) -> TextDiff {
    let mut shift = 0i64;
    let mut left = TextDiff { hunks: Vec::new(), added: diff.added, removed: diff.removed };
    for mut hunk in diff.hunks {
        if taken.contains(&hunk.id) {
            shift += i64::from(hunk.new_lines) - i64::from(hunk.old_lines);
            let (added, removed) = line_counts(&hunk);
            left.added -= added;
            left.removed -= removed;
        } else {
            hunk.old_start = (i64::from(hunk.old_start) + shift).max(0) as u32;
            left.hunks.push(hunk);
        }
    }
    left
}

/// Where these hunks change the text that they are for. They are in its order.
pub(crate) fn stretches_of(hunks: &[&Hunk]) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for hunk in hunks {
        let mut at = first_line(hunk);
        let mut open: Option<Stretch> = None;
        for line in &hunk.lines {
            let stretch = || Stretch { start: at, old: 0, new: 0 };
            match line {
                HunkLine::Context(_) => stretches.extend(open.take()),
                HunkLine::Removed(_) => open.get_or_insert_with(stretch).old += 1,
                HunkLine::Added(_) => open.get_or_insert_with(stretch).new += 1,
            }
            at += usize::from(!matches!(line, HunkLine::Added(_)));
        }
        stretches.extend(open);
    }
    stretches
}

fn line_counts(hunk: &Hunk) -> (u64, u64) {
    let count = |wanted: fn(&HunkLine) -> bool| hunk.lines.iter().filter(|l| wanted(l)).count();
    let added = count(|line| matches!(line, HunkLine::Added(_)));
    let removed = count(|line| matches!(line, HunkLine::Removed(_)));
    (added as u64, removed as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path() -> RelPath {
        RelPath::parse(b"src/a.txt").unwrap()
    }

    /// Few different lines, so that repeats and ambiguous alignments are the rule.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![
            Just(&b"a\n"[..]),
            Just(&b"b\n"[..]),
            Just(&b"\n"[..]),
            Just(&b"  c\r\n"[..]),
            Just(&b"\xff\xfe\n"[..]),
            Just(&b"long line of text\n"[..]),
        ];
        (prop::collection::vec(line, 0..60), prop::option::of(Just(&b"no newline"[..])))
            .prop_map(|(lines, end)| [lines.concat(), end.unwrap_or_default().to_vec()].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn all_hunks_give_the_new_text_and_none_the_base(old in text(), new in text()) {
            let diff = diff_lines(&path(), &old, &new);
            prop_assert_eq!(apply_hunks(&old, &diff.hunks.iter().collect::<Vec<_>>()).unwrap(), new);
            prop_assert_eq!(apply_hunks(&old, &[]).unwrap(), old);
        }

        #[test]
        fn what_is_left_after_a_subset_has_the_same_ids_and_finishes(
            old in text(), new in text(), mask in any::<u64>()
        ) {
            let diff = diff_lines(&path(), &old, &new);
            let (taken, kept): (Vec<_>, Vec<_>) = diff.hunks.iter().enumerate()
                .partition(|(index, _)| mask >> (index % 64) & 1 == 1);
            let taken: Vec<&Hunk> = taken.into_iter().map(|(_, hunk)| hunk).collect();
            let half = apply_hunks(&old, &taken).unwrap();
            let ids: Vec<HunkId> = taken.iter().map(|hunk| hunk.id.clone()).collect();
            let left = without_taken(diff.clone(), &ids);
            let left_ids: Vec<_> = left.hunks.iter().map(|hunk| &hunk.id).collect();
            prop_assert_eq!(left_ids, kept.iter().map(|(_, hunk)| &hunk.id).collect::<Vec<_>>());
            prop_assert_eq!(apply_hunks(&half, &left.hunks.iter().collect::<Vec<_>>()).unwrap(), new);
        }

        #[test]
        fn ids_are_unique_in_a_file(old in text(), new in text()) {
            let diff = diff_lines(&path(), &old, &new);
            let ids: std::collections::BTreeSet<_> = diff.hunks.iter().map(|hunk| &hunk.id).collect();
            prop_assert_eq!(ids.len(), diff.hunks.len());
        }
    }

    fn numbered(range: Range<u32>) -> Vec<u8> {
        range.flat_map(|number| format!("line {number}\n").into_bytes()).collect()
    }

    /// What took minutes: repeated lines, and changes everywhere.
    #[test]
    fn no_text_takes_long_and_all_are_exact() {
        let lines = |count: u64, line: &dyn Fn(u64) -> u64| -> Vec<u8> {
            (0..count).flat_map(|at| format!("{}\n", line(at)).into_bytes()).collect()
        };
        let mixed = |seed: u64| move |at: u64| (at.wrapping_mul(seed) >> 13) & 1;
        let cases = [
            (lines(300_000, &mixed(0x9E37_79B9)), lines(300_000, &mixed(0x85EB_CA6B))),
            (lines(300_000, &mixed(0x9E37_79B9)), lines(300_001, &mixed(0x85EB_CA6B))),
            (lines(30_000, &|at| at), lines(30_000, &|at| at ^ 1)),
            (lines(30_000, &|at| at), lines(30_000, &|at| at + u64::from(at % 3 == 0) * 99)),
        ];
        let begun = std::time::Instant::now();
        for (old, new) in &cases {
            let diff = diff_lines(&path(), old, new);
            let all: Vec<&Hunk> = diff.hunks.iter().collect();
            assert!(apply_hunks(old, &all).unwrap() == *new);
        }
        // Minutes without the bounds, in whatever build; moments with them.
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn close_changes_are_one_hunk_and_far_ones_two() {
        let old = numbered(0..40);
        let edit = |at: &[u32]| -> Vec<u8> {
            (0..40)
                .flat_map(|n| {
                    let mark = if at.contains(&n) { "!" } else { "" };
                    format!("line {n}{mark}\n").into_bytes()
                })
                .collect()
        };
        assert_eq!(diff_lines(&path(), &old, &edit(&[10, 17])).hunks.len(), 1);
        let far = diff_lines(&path(), &old, &edit(&[10, 18]));
        assert_eq!(far.hunks.len(), 2);
        assert_eq!((far.hunks[0].old_start, far.hunks[0].old_lines), (8, 7));
        // The same edit alone has the same id.
        assert_eq!(diff_lines(&path(), &old, &edit(&[18])).hunks[0].id, far.hunks[1].id);
    }

    #[test]
    fn added_and_deleted_files_are_one_hunk() {
        let diff = diff_lines(&path(), b"", b"a\nb");
        assert_eq!(diff.hunks.len(), 1);
        let hunk = &diff.hunks[0];
        assert_eq!((hunk.old_start, hunk.old_lines, hunk.new_start, hunk.new_lines), (0, 0, 1, 2));
        assert_eq!(diff_lines(&path(), b"a\nb", b"").removed, 2);
    }

    #[test]
    fn only_a_nul_near_the_start_makes_it_binary() {
        assert!(is_binary(b"a\0b"));
        assert!(!is_binary(b"\xff\xfe caf\xe9\r\n"));
        let mut late = vec![b'a'; 8000];
        late.push(0);
        assert!(!is_binary(&late));
    }
}
