//! What a hunk is called: an id that says what changes *and where*, and nothing else.
//!
//! It is made from the path, every line of the hunk (the lines around the change are the base's, and
//! no other hunk comes near them), and the number of places before it in the base that begin with the
//! same lines. So the same change has the same id whatever else the sandbox changed, and the same
//! lines at another place have another: an id that was read cannot come to mean something else.
//!
//! When hunks are taken over, the base is another one afterwards, and equal lines may have come or gone
//! before a hunk that was left. So a hunk is at home in the *earliest* base that has its lines in one piece: it
//! is led back through every step whose changes it does not touch, and its place is told there. The changes of
//! one diff do not touch each other, so taking one leaves the home of every other as it is. A hunk that
//! touches what came with a step is at home in the base of that step, and the bytes of that base
//! enter its id: no place in another base is called the same.

use crate::base::memory::Stretch;
use crate::hunks::{first_line, lines_of};
use skep_types::{ContentHash, Hunk, HunkId, HunkLine, RelPath};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// As many lines as tell a place from another, and as few as keep the search through a large base
/// linear: the context before a change, the change, and as much after it.
const PLACE: usize = 7;

/// A base from before hunks were taken of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub bytes: &'a [u8],
    /// Where they changed it, in its order.
    pub stretches: &'a [Stretch],
}

impl Origin<'_> {
    /// Whether `text` is this base but for what was changed.
    pub(crate) fn became(&self, text: &[u8]) -> bool {
        let (before, after) = (lines_of(self.bytes), lines_of(text));
        let (mut old, mut new) = (0, 0);
        for stretch in self.stretches {
            let kept = stretch.start.checked_sub(old);
            let same = kept
                .and_then(|kept| Some(before.get(old..old + kept)? == after.get(new..new + kept)?));
            if same != Some(true) {
                return false;
            }
            new += stretch.start - old + stretch.new;
            old = stretch.start + stretch.old;
        }
        before.get(old..).is_some_and(|rest| after.get(new..) == Some(rest))
    }
}

/// Where a hunk is at home: in which text, the base being the first, and at which line of it.
struct Home {
    text: usize,
    line: usize,
}

/// Gives ids to the hunks of one file, which are in the order of `base`. That was made of the first of
/// `origins`, and each of them of the next.
pub(crate) fn name(path: &RelPath, hunks: &mut [Hunk], base: &[u8], origins: &[Origin<'_>]) {
    let homes: Vec<Home> = hunks.iter().map(|hunk| home(hunk, origins)).collect();
    let texts = std::iter::once(base).chain(origins.iter().map(|origin| origin.bytes));
    for (text, bytes) in texts.enumerate() {
        let here = |(_, home): &(&Hunk, &Home)| home.text == text;
        let wanted: Vec<(usize, Vec<&[u8]>)> = hunks
            .iter()
            .zip(&homes)
            .filter(here)
            .map(|(hunk, home)| (home.line, beginning(hunk)))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let mut places = places(&lines_of(bytes), &wanted).into_iter();
        let later = (text < origins.len()).then(|| ContentHash::of(bytes));
        let here = hunks.iter_mut().zip(&homes).filter(|(_, home)| home.text == text);
        for ((hunk, _), place) in here.zip(&mut places) {
            hunk.id = id(path, &hunk.lines, place, later.as_ref());
        }
    }
    tell_apart(hunks);
}

/// Two bases of different times may have the same bytes, and a hunk at home in each the same lines and place.
fn tell_apart(hunks: &mut [Hunk]) {
    let mut seen = HashSet::new();
    for hunk in hunks {
        while !seen.insert(hunk.id.clone()) {
            hunk.id = HunkId::from_hash(&ContentHash::of(hunk.id.as_str().as_bytes()));
        }
    }
}

/// Leads a hunk back to the earliest text that has its lines in one piece.
fn home(hunk: &Hunk, origins: &[Origin<'_>]) -> Home {
    let length = hunk.old_lines as usize;
    let mut home = Home { text: 0, line: first_line(hunk) };
    for origin in origins {
        let Some(line) = led_back(home.line..home.line + length, origin.stretches) else { break };
        home = Home { text: home.text + 1, line };
    }
    home
}

/// Where these lines began before the stretches were changed; nothing, if they touch one of them.
fn led_back(lines: Range<usize>, stretches: &[Stretch]) -> Option<usize> {
    // Lines of a text that has none were nowhere before.
    if lines.is_empty() {
        return None;
    }
    let mut shift = 0i64;
    for stretch in stretches {
        let start = usize::try_from(stretch.start as i64 + shift).ok()?;
        if start + stretch.new <= lines.start {
            shift += stretch.new as i64 - stretch.old as i64;
        } else if start < lines.end {
            return None;
        }
    }
    usize::try_from(lines.start as i64 - shift).ok()
}

/// Stretches of a text and later ones of what it became, as stretches of the first. They do not touch
/// each other.
pub(crate) fn joined(first: &[Stretch], later: &[Stretch]) -> Vec<Stretch> {
    let mut all = first.to_vec();
    for stretch in later {
        let mut shift = 0i64;
        for before in first {
            if before.start as i64 + shift >= stretch.start as i64 {
                break;
            }
            shift += before.new as i64 - before.old as i64;
        }
        let start = usize::try_from(stretch.start as i64 - shift).unwrap_or_default();
        all.push(Stretch { start, ..*stretch });
    }
    all.sort_by_key(|stretch| stretch.start);
    all
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

fn id(path: &RelPath, lines: &[HunkLine], place: u64, later: Option<&ContentHash>) -> HunkId {
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
    if let Some(base) = later {
        push(&mut bytes, b'b', base.to_string().as_bytes());
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
    use super::{Origin, joined};
    use crate::hunks::{
        TextDiff, apply_hunks, diff_lines, diff_lines_since, stretches_of, without_taken,
    };
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
            let stretches = stretches_of(&taken);
            let origin = [Origin { bytes: root.as_bytes(), stretches: &stretches }];
            prop_assert!(origin[0].became(half.as_bytes()));
            let diff = |values: &[Option<&str>]| {
                diff_lines_since(&path(), &origin, half.as_bytes(), whole(values).as_bytes()).hunks
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
            let origin = [Origin { bytes: &root, stretches: &stretches_of(&taken) }];
            let second = diff_lines_since(&path(), &origin, &half, &later).hunks;
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

        /// Again and again some are taken and the sandbox goes on. What was not taken keeps its id, as
        /// long as its lines are changed in the same way; no two are called the same, and nothing is called
        /// like something that was taken, unless the file has come back to the very bytes that it was taken of: then
        /// it is the same change of the same place.
        #[test]
        fn ids_stay_through_any_number_of_steps(
            lines in 8usize..12, rounds in prop::collection::vec((values(), any::<u8>()), 1..5)
        ) {
            let mut base = text(&head(lines, false), &[None; SECTIONS]);
            let mut steps: Vec<(Vec<u8>, Vec<crate::base::memory::Stretch>)> = Vec::new();
            let mut gone: Vec<(Hunk, Vec<u8>)> = Vec::new();
            for (values, mask) in rounds {
                let new = text(&head(lines, false), &values);
                let origins: Vec<Origin<'_>> =
                    steps.iter().map(|(bytes, stretches)| Origin { bytes, stretches }).collect();
                let shown = diff_lines_since(&path(), &origins, &base, &new);
                let ids: std::collections::BTreeSet<_> = shown.hunks.iter().map(|h| &h.id).collect();
                prop_assert_eq!(ids.len(), shown.hunks.len());
                let bases = || steps.iter().map(|(bytes, _)| bytes).chain([&base]);
                let came_back = |then: &Vec<u8>| bases().filter(|bytes| *bytes == then).count() > 1;
                for (hunk, then) in &gone {
                    prop_assert!(!ids.contains(&hunk.id) || came_back(then), "{:?}", hunk);
                }
                let taken: Vec<&Hunk> = shown.hunks.iter().enumerate()
                    .filter(|(index, _)| mask >> (index % 8) & 1 == 1).map(|(_, hunk)| hunk).collect();
                let half = apply_hunks(&base, &taken).unwrap();
                let stretches = stretches_of(&taken);
                let taken_ids: Vec<_> = taken.iter().map(|hunk| hunk.id.clone()).collect();
                gone.extend(taken.into_iter().map(|hunk| (hunk.clone(), base.clone())));
                // In two goes it comes to the same.
                let (one, two) = stretches.split_at(stretches.len() / 2);
                let shift: i64 = one.iter().map(|s| s.new as i64 - s.old as i64).sum();
                let two: Vec<_> = two.iter().map(|s| crate::base::memory::Stretch {
                    start: (s.start as i64 + shift) as usize, ..*s
                }).collect();
                prop_assert_eq!(&joined(one, &two), &stretches);
                steps.insert(0, (std::mem::replace(&mut base, half), stretches));
                let origins: Vec<Origin<'_>> =
                    steps.iter().map(|(bytes, stretches)| Origin { bytes, stretches }).collect();
                prop_assert!(origins[0].became(&base));
                let TextDiff { hunks: left, .. } = without_taken(shown, &taken_ids);
                let again = diff_lines_since(&path(), &origins, &base, &new).hunks;
                for a in &left {
                    for b in &again {
                        let same = a.old_start == b.old_start && a.lines == b.lines;
                        prop_assert_eq!(a.id == b.id, same, "{:?} {:?}", a, b);
                    }
                }
            }
        }
    }
}
