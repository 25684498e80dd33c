//! What a hunk is called: an id that says what changes *and where*, and nothing else.
//!
//! It is made from the path, every line of the hunk (the lines around the change are the base's, and
//! no other hunk comes near them), and the number of places before it in the base that begin with the
//! same lines. So the same change has the same id whatever else the sandbox changed, and the same
//! lines at another place have another: an id that was read cannot come to mean something else.
//!
//! Lines that came with a hunk that was taken before are not in the base. A hunk that touches such a
//! part is told by where it begins in the base, how far into the part, and the part itself.

use crate::hunks::first_line;
use skep_types::{ContentHash, Hunk, HunkId, HunkLine, RelPath};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// As many lines as tell a place from another, and as few as keep the search through a large base
/// linear: the context before a change, the change, and as much after it.
const PLACE: usize = 7;

/// A part of the text that is not in the base: which of the lines it is, and where it stands there.
pub(crate) struct Part {
    pub lines: Range<usize>,
    pub in_base: Range<usize>,
}

/// Gives ids to the hunks of one file, which are in the order of the text. `text` is what the hunks are
/// for; it is `base` but for these parts, which are in its order.
pub(crate) fn name(
    path: &RelPath,
    hunks: &mut [Hunk],
    base: &[&[u8]],
    (text, parts): (&[&[u8]], &[Part]),
) {
    let in_base = |line: usize| {
        let before = parts.partition_point(|part| part.lines.start <= line);
        let last = parts[..before].last();
        last.map_or(line, |part| part.in_base.end + line.saturating_sub(part.lines.end))
    };
    let wanted: Vec<(usize, Vec<&[u8]>)> =
        hunks.iter().map(|hunk| (in_base(first_line(hunk)), beginning(hunk))).collect();
    let places = places(base, &wanted);
    for (hunk, place) in hunks.iter_mut().zip(places) {
        let within = within(hunk, text, parts);
        hunk.id = id(path, &hunk.lines, if within.is_empty() { place } else { 0 }, &within);
    }
}

/// The parts that a hunk touches: where they stand in the base, how far before or behind their
/// beginning the hunk begins, and what is in them. Empty if it touches none.
fn within(hunk: &Hunk, text: &[&[u8]], parts: &[Part]) -> Vec<u8> {
    let start = first_line(hunk);
    let end = start + hunk.old_lines as usize;
    let mut bytes = Vec::new();
    for part in parts.iter().filter(|part| part.lines.start < end && start < part.lines.end) {
        let offset = start as i64 - part.lines.start as i64;
        push(&mut bytes, b'b', &(part.in_base.start as u64).to_le_bytes());
        push(&mut bytes, b'o', &offset.to_le_bytes());
        for line in text.get(part.lines.clone()).into_iter().flatten() {
            push(&mut bytes, b'l', line);
        }
    }
    bytes
}

/// The first lines of what a hunk expects in the base.
fn beginning(hunk: &Hunk) -> Vec<&[u8]> {
    let old = hunk.lines.iter().filter_map(|line| match line {
        HunkLine::Context(text) | HunkLine::Removed(text) => Some(text.as_bytes()),
        HunkLine::Added(_) => None,
    });
    old.take(PLACE).collect()
}

/// How often lines stand in the base before a place: for each of them, in one go.
fn places(base: &[&[u8]], wanted: &[(usize, Vec<&[u8]>)]) -> Vec<u64> {
    let mut seen: HashMap<&[&[u8]], u64> =
        wanted.iter().map(|(_, lines)| (lines.as_slice(), 0)).collect();
    let firsts: HashSet<&[u8]> =
        wanted.iter().filter_map(|(_, lines)| lines.first().copied()).collect();
    let lengths: BTreeSet<usize> = wanted.iter().map(|(_, lines)| lines.len()).collect();
    let mut at = 0;
    let mut places = Vec::with_capacity(wanted.len());
    for (place, lines) in wanted {
        while at < (*place).min(base.len()) {
            if firsts.contains(base[at]) {
                for length in &lengths {
                    let here = base.get(at..at + length).and_then(|here| seen.get_mut(here));
                    here.into_iter().for_each(|count| *count += 1);
                }
            }
            at += 1;
        }
        places.push(seen.get(lines.as_slice()).copied().unwrap_or(0));
    }
    places
}

fn id(path: &RelPath, lines: &[HunkLine], place: u64, within: &[u8]) -> HunkId {
    let mut bytes = Vec::new();
    push(&mut bytes, b'p', path.as_bytes());
    for line in lines {
        match line {
            HunkLine::Context(text) => push(&mut bytes, b' ', text.as_bytes()),
            HunkLine::Removed(text) => push(&mut bytes, b'-', text.as_bytes()),
            HunkLine::Added(text) => push(&mut bytes, b'+', text.as_bytes()),
        }
    }
    push(&mut bytes, b'n', &place.to_le_bytes());
    if !within.is_empty() {
        push(&mut bytes, b'w', within);
    }
    HunkId::from_hash(&ContentHash::of(&bytes))
}

fn push(bytes: &mut Vec<u8>, mark: u8, text: &[u8]) {
    bytes.push(mark);
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use crate::hunks::{apply_hunks, diff_lines, diff_lines_since};
    use proptest::prelude::*;
    use skep_types::{Hunk, RelPath};

    /// Equal sections, each far enough from the next for a hunk of its own.
    const SECTIONS: usize = 6;

    fn path() -> RelPath {
        RelPath::parse(b"settings").unwrap()
    }

    /// A text of equal sections, with something before the first and the value of some replaced.
    fn text(head: &[&str], values: &[Option<&str>]) -> Vec<u8> {
        let mut text: String = head.iter().map(|line| format!("{line}\n")).collect();
        for value in values {
            let value = value.unwrap_or("value");
            text += &format!("[section]\na\nb\nc\nd\n{value}\ne\nf\ng\nh\n");
        }
        text.into_bytes()
    }

    fn head(lines: usize, more: bool) -> Vec<&'static str> {
        let mut head = vec!["head"; lines];
        if more {
            head.insert(0, "one more");
        }
        head
    }

    fn values() -> impl Strategy<Value = Vec<Option<&'static str>>> {
        let value = prop_oneof![Just(None), Just(Some("other")), Just(Some("two\nlines"))];
        prop::collection::vec(value, SECTIONS)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Whatever else changed in the file, and however the sandbox came to it: the same change at
        /// the same place of the base is called the same, and nothing else is.
        #[test]
        fn an_id_is_one_change_at_one_place(
            lines in 8usize..12, left in values(), right in values(), more in any::<[bool; 2]>()
        ) {
            let base = text(&head(lines, false), &[None; SECTIONS]);
            let diff = |values: &[Option<&str>], more| {
                diff_lines(&path(), &base, &text(&head(lines, more), values)).hunks
            };
            let (one, two) = (diff(&left, more[0]), diff(&right, more[1]));
            for a in &one {
                for b in &two {
                    let same = a.old_start == b.old_start && a.lines == b.lines;
                    prop_assert_eq!(a.id == b.id, same, "{:?} {:?}", a, b);
                }
            }
        }

        /// Equal sections come with a hunk that was taken. Whatever of them is changed afterwards: an
        /// id is one change of one of them.
        #[test]
        fn an_id_is_one_place_in_a_part_that_was_taken(
            lines in 8usize..12, left in values(), right in values()
        ) {
            let root: String = "head\n".repeat(lines) + &"tail\n".repeat(lines);
            let whole = |values: &[Option<&str>]| {
                let sections = String::from_utf8(text(&[], values)).unwrap();
                "head\n".repeat(lines) + &sections + &"tail\n".repeat(lines)
            };
            let half = whole(&[None; SECTIONS]);
            let taken = diff_lines(&path(), root.as_bytes(), half.as_bytes()).hunks;
            let taken: Vec<&Hunk> = taken.iter().collect();
            let diff = |values: &[Option<&str>]| {
                let since = (root.as_bytes(), taken.as_slice());
                diff_lines_since(&path(), since, half.as_bytes(), whole(values).as_bytes()).hunks
            };
            let (one, two) = (diff(&left), diff(&right));
            for a in &one {
                for b in &two {
                    let same = a.old_start == b.old_start && a.lines == b.lines;
                    prop_assert_eq!(a.id == b.id, same, "{:?} {:?}", a, b);
                }
            }
        }

        /// Some are taken, then the sandbox goes on: what was not taken keeps its id, and no id of
        /// what was taken comes back for another.
        #[test]
        fn ids_stay_when_some_were_taken_and_the_sandbox_goes_on(
            lines in 8usize..12, new in values(), mask in any::<u8>()
        ) {
            let root = text(&head(lines, false), &[None; SECTIONS]);
            let first = diff_lines(&path(), &root, &text(&head(lines, false), &new)).hunks;
            let taken: Vec<&Hunk> = first.iter().enumerate()
                .filter(|(index, _)| mask >> index & 1 == 1).map(|(_, hunk)| hunk).collect();
            let half = apply_hunks(&root, &taken).unwrap();
            let later = text(&head(lines, true), &new);
            let second = diff_lines_since(&path(), (&root, &taken), &half, &later).hunks;
            // Where a line of the half-taken text stood in the root.
            let in_root = |line: u32| {
                let mut shift = 0;
                for hunk in &taken {
                    if i64::from(hunk.old_start) + shift < i64::from(line) {
                        shift += i64::from(hunk.new_lines) - i64::from(hunk.old_lines);
                    }
                }
                i64::from(line) - shift
            };
            for a in &first {
                for b in &second {
                    let stays = a.lines == b.lines && i64::from(a.old_start) == in_root(b.old_start);
                    prop_assert_eq!(a.id == b.id, stays, "{:?} {:?}", a, b);
                    prop_assert!(!stays || taken.iter().all(|hunk| hunk.id != a.id));
                }
            }
        }
    }
}
