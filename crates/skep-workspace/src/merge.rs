//! Three-way merge of texts, on the careful side.
//!
//! Two independent ways of merging must agree to the byte, under two ways of lining up the texts;
//! else it is a conflict. A merge tool may guess where lines repeat; here a wrong guess would change
//! a user's file without anybody having looked at it.

use crate::hunks::{can_be_lined_up, changed_ranges, is_binary, lines_of};
use gix_imara_diff::{Algorithm, InternedInput};
use gix_merge::blob::Resolution;
use gix_merge::blob::builtin_driver::text::{Conflict, Labels, Options};
use std::ops::Range;

/// What came of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// Both sides' changes, in one text.
    Clean(Vec<u8>),
    /// They touch the same or neighbouring lines, or cannot be told apart.
    Conflict,
}

/// Merges what `ours` and `theirs` each made of `base`.
pub fn merge_text(base: &[u8], ours: &[u8], theirs: &[u8]) -> Merged {
    if ours == theirs || theirs == base {
        return Merged::Clean(ours.to_vec());
    }
    if ours == base {
        return Merged::Clean(theirs.to_vec());
    }
    if [base, ours, theirs].into_iter().any(is_binary) {
        return Merged::Conflict;
    }
    let lines = lines_of(base);
    if [ours, theirs].into_iter().any(|side| !can_be_lined_up(&lines, &lines_of(side))) {
        return Merged::Conflict;
    }
    let Some(merged) = merge_lines(Algorithm::Myers, base, ours, theirs) else {
        return Merged::Conflict;
    };
    let agreed = merge_lines(Algorithm::Histogram, base, ours, theirs).as_ref() == Some(&merged)
        && merge_gix(base, ours, theirs).as_ref() == Some(&merged);
    if agreed { Merged::Clean(merged) } else { Merged::Conflict }
}

/// Three-way merge of permission bits.
pub(crate) fn merge_modes(base: u32, ours: u32, theirs: u32) -> Option<u32> {
    match () {
        () if ours == theirs || theirs == base => Some(ours),
        () if ours == base => Some(theirs),
        () => None,
    }
}

fn merge_gix(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut input = InternedInput::default();
    let options = Options { diff_algorithm: Algorithm::Myers, conflict: Conflict::default() };
    let resolution = gix_merge::blob::builtin_driver::text(
        &mut out,
        &mut input,
        Labels::default(),
        ours,
        base,
        theirs,
        options,
    );
    (resolution == Resolution::Complete).then_some(out)
}

/// Our own merge: changes of the two sides must be the same, or have an untouched line between them.
fn merge_lines(algorithm: Algorithm, base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let (base, ours, theirs) = (lines_of(base), lines_of(ours), lines_of(theirs));
    let left = changed_ranges(algorithm, &base, &ours);
    let right = changed_ranges(algorithm, &base, &theirs);
    let mut out = Vec::new();
    let (mut i, mut j, mut at) = (0, 0, 0u32);
    while i < left.len() || j < right.len() {
        let (change, lines) = match (left.get(i), right.get(j)) {
            (Some(mine), Some(other)) if same(mine, &ours, other, &theirs) => {
                (i, j) = (i + 1, j + 1);
                (mine, &ours)
            }
            (Some(mine), Some(other)) if mine.0.end < other.0.start => {
                i += 1;
                (mine, &ours)
            }
            (Some(mine), Some(other)) if other.0.end < mine.0.start => {
                j += 1;
                (other, &theirs)
            }
            (Some(_), Some(_)) => return None,
            (Some(mine), None) => {
                i += 1;
                (mine, &ours)
            }
            (None, Some(other)) => {
                j += 1;
                (other, &theirs)
            }
            (None, None) => break,
        };
        append(&mut out, &base, at..change.0.start);
        append(&mut out, lines, change.1.clone());
        at = change.0.end;
    }
    append(&mut out, &base, at..base.len() as u32);
    Some(out)
}

fn same(
    mine: &(Range<u32>, Range<u32>),
    ours: &[&[u8]],
    other: &(Range<u32>, Range<u32>),
    theirs: &[&[u8]],
) -> bool {
    let cut = |lines: &[&[u8]], range: &Range<u32>| {
        lines[range.start as usize..range.end as usize].concat()
    };
    mine.0 == other.0 && cut(ours, &mine.1) == cut(theirs, &other.1)
}

fn append(out: &mut Vec<u8>, lines: &[&[u8]], range: Range<u32>) {
    for line in &lines[range.start as usize..range.end as usize] {
        out.extend_from_slice(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;
    use std::process::Command;

    /// Edits one base in two ways, so that merges are often possible.
    fn sides() -> impl Strategy<Value = (Vec<u8>, Vec<u8>, Vec<u8>)> {
        let line = prop_oneof![3 => 0u8..40, 1 => 40u8..44];
        let base = prop::collection::vec(line, 0..24);
        let edits = || prop::collection::vec((0usize..24, 0u8..3, 0u8..48), 0..4);
        (base, edits(), edits()).prop_map(|(base, left, right)| {
            (render(&base), render(&edit(&base, &left)), render(&edit(&base, &right)))
        })
    }

    fn edit(base: &[u8], edits: &[(usize, u8, u8)]) -> Vec<u8> {
        let mut lines = base.to_vec();
        for (at, what, line) in edits {
            let at = (*at).min(lines.len());
            match what {
                0 => lines.insert(at, *line),
                1 if at < lines.len() => lines[at] = *line,
                _ if at < lines.len() => drop(lines.remove(at)),
                _ => {}
            }
        }
        lines
    }

    fn render(lines: &[u8]) -> Vec<u8> {
        lines.iter().flat_map(|line| format!("line {line}\n").into_bytes()).collect()
    }

    fn git_merge(dir: &Path, base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
        for (name, bytes) in [("base", base), ("ours", ours), ("theirs", theirs)] {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        let output = Command::new("git")
            .args(["merge-file", "-p", "ours", "base", "theirs"])
            .current_dir(dir)
            .output()
            .unwrap();
        output.status.success().then_some(output.stdout)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn a_clean_merge_is_the_one_git_makes((base, ours, theirs) in sides()) {
            if let Merged::Clean(merged) = merge_text(&base, &ours, &theirs) {
                let dir = tempfile::tempdir().unwrap();
                prop_assert_eq!(git_merge(dir.path(), &base, &ours, &theirs), Some(merged));
            }
        }

        #[test]
        fn sides_may_be_swapped((base, ours, theirs) in sides()) {
            prop_assert_eq!(merge_text(&base, &ours, &theirs), merge_text(&base, &theirs, &ours));
        }
    }

    #[test]
    fn far_edits_merge_and_near_ones_do_not() {
        let base = b"1\n2\n3\n4\n5\n";
        assert_eq!(
            merge_text(base, b"one\n2\n3\n4\n5\n", b"1\n2\n3\n4\nfive\n"),
            Merged::Clean(b"one\n2\n3\n4\nfive\n".to_vec())
        );
        assert_eq!(merge_text(base, b"one\n2\n3\n4\n5\n", b"1\ntwo\n3\n4\n5\n"), Merged::Conflict);
        assert_eq!(merge_text(b"a\0", b"b\0", b"c\0"), Merged::Conflict);
    }
}
