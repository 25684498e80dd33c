//! A change set as a unified diff: risky changes first, conflicts and drift said, nothing hidden.

use super::style::Style;
use super::table::write_table;
use skep_policy::{GitBooks, hides};
use skep_types::escape::{visible, visible_text};
use skep_types::{
    ByteSize, Change, ChangeKind, ChangeSet, Conflict, Drift, EntryState, Hunk, HunkLine, RelPath,
    Risk,
};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Changes to show, without those that git wrote for its own book-keeping.
#[derive(Debug)]
pub(crate) struct Folded<'a> {
    /// To be shown one by one.
    pub(crate) rest: Vec<&'a Change>,
    /// How many are only counted.
    pub(crate) inside_git: usize,
    books: GitBooks,
}

impl<'a> Folded<'a> {
    /// Every change is shown.
    pub(crate) fn nothing(changes: &[&'a Change]) -> Self {
        Self { rest: changes.to_vec(), inside_git: 0, books: GitBooks::default() }
    }

    /// The line for those that are only counted; empty if there are none.
    pub(crate) fn line(&self, style: Style, set: &ChangeSet) -> String {
        if self.inside_git == 0 {
            return String::new();
        }
        let count = counted(self.inside_git as u64, "change", "changes");
        let name = &set.sandbox;
        let what = match self.books.new_repository {
            true => format!("a repository made inside; `git init` here, then `skep pull {name}`"),
            false => format!("commits made inside: `skep pull {name}`"),
        };
        let line = format!(
            "! block     {count} inside .git ({what}; one by one: `skep diff {name} .git`)"
        );
        format!("{}\n", style.red(&line))
    }

    /// Conflicts of what is shown: one in git's own files is nobody's to solve.
    pub(crate) fn conflicts<'s>(&self, set: &'s ChangeSet) -> Vec<&'s Conflict> {
        let counted = |path: &RelPath| self.inside_git > 0 && self.books.have(path);
        set.conflicts.iter().filter(|conflict| !counted(&conflict.path)).collect()
    }
}

/// Sets apart what git itself writes when somebody commits or looks around inside.
pub(crate) fn fold<'a>(set: &ChangeSet, changes: &[&'a Change]) -> Folded<'a> {
    let books = GitBooks::of(&set.changes);
    let (inside_git, rest): (Vec<_>, _) =
        changes.iter().copied().partition(|change| books.hold(change));
    Folded { rest, inside_git: inside_git.len(), books }
}

/// What is said above the changes: whose, the digest, risks, conflicts, drift, warnings.
pub(crate) fn heading(style: Style, set: &ChangeSet, shown: &Folded<'_>) -> String {
    let mut text = String::new();
    let title = format!("sandbox {}  base {}", set.sandbox, visible(set.base.as_bytes()));
    let _ = writeln!(text, "{}", style.bold(&title));
    let _ = writeln!(text, "digest {}", set.reviewed());
    text.push_str(&shown.line(style, set));
    text.push_str(&risks(style, &shown.rest));
    for conflict in shown.conflicts(set) {
        let line =
            format!("! conflict  {}: {}", conflict.path, visible_text(conflict.reason.as_bytes()));
        let _ = writeln!(text, "{}", style.red(&line));
    }
    for drift in set.drift.iter().filter(|drift| drift.merges) {
        let _ = writeln!(text, "{}", style.yellow(&drift_line(drift)));
    }
    for warning in &set.warnings {
        let line = format!("! warning   {}", visible_text(warning.as_bytes()));
        let _ = writeln!(text, "{}", style.yellow(&line));
    }
    text
}

/// Where the project moved, and both sides are merged.
pub(crate) fn drift_line(drift: &Drift) -> String {
    format!("! drift     {}: {} (merges)", drift.path, visible_text(drift.reason.as_bytes()))
}

/// Risky changes, the worst first, each with its reasons; then what the acceptance rules refuse.
pub(crate) fn risks(style: Style, changes: &[&Change]) -> String {
    let mut text = String::new();
    let mut risky: Vec<&&Change> =
        changes.iter().filter(|change| change.risk != Risk::None).collect();
    risky.sort_by_key(|change| gravity(change));
    for change in risky {
        let reasons = visible_text(change.risk_reasons.join("; ").as_bytes());
        let (word, red) = match change.risk {
            Risk::Block => ("block", true),
            Risk::Ask => ("ask", false),
            Risk::Note | Risk::None => ("note", false),
        };
        let line = format!("! {word:<9} {}: {reasons}", change.path);
        let painted = if red { style.red(&line) } else { style.yellow(&line) };
        let _ = writeln!(text, "{painted}");
    }
    for change in changes {
        if let Some(verdict) = change.verdict.as_ref().filter(|verdict| !verdict.allowed) {
            let reason = visible_text(verdict.reason.as_bytes());
            let line = format!("! denied    {}: {reason}", change.path);
            let _ = writeln!(text, "{}", style.red(&line));
        }
    }
    text
}

/// The changes as a unified diff: risky ones first, ignored ones last and set apart.
pub(crate) fn unified(style: Style, changes: &[&Change], out: &mut dyn Write) -> io::Result<()> {
    let mut text = String::new();
    for change in ordered(changes) {
        text.clear();
        text.push('\n');
        push_change(&mut text, style, change);
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// One line per change with its counts.
pub(crate) fn stat(style: Style, changes: &[&Change], out: &mut dyn Write) -> io::Result<()> {
    let row = |change: &&Change| {
        let counts = if change.binary {
            "binary".to_owned()
        } else if change.too_large {
            "large".to_owned()
        } else {
            format!("+{} -{}", change.added, change.removed)
        };
        let ignored = if change.ignored { "ignored" } else { "" };
        vec![kind_word(change).to_owned(), counts, name(change), ignored.to_owned()]
    };
    let ordered = ordered(changes);
    if ordered.is_empty() {
        return Ok(());
    }
    write_table(style, &["KIND", "LINES", "PATH", ""], &|| ordered.iter().map(row), out)
}

/// The line under everything: what there is in all.
pub(crate) fn totals(set: &ChangeSet) -> String {
    let totals = set.totals;
    let git: Vec<&Change> = in_git(set).collect();
    let in_git = |count: fn(&Change) -> u64| git.iter().map(|change| count(change)).sum::<u64>();
    let books = GitBooks::of(&set.changes);
    let meant = set.changes.iter().filter(|change| !change.ignored && !books.hold(change));
    let mut text = format!(
        "{} changed, +{} -{}{}",
        counted(totals.files.saturating_sub(git.len() as u64), "file", "files"),
        totals.added.saturating_sub(in_git(|change| change.added)),
        totals.removed.saturating_sub(in_git(|change| change.removed)),
        uncounted(meant)
    );
    if !git.is_empty() {
        let _ = write!(text, "; {} inside .git, left out", git.len());
    }
    if totals.ignored > 0 {
        let _ = write!(
            text,
            "; {} ignored (built artefacts, left out unless --ignored)",
            totals.ignored
        );
    }
    text
}

/// ` (1 binary, 2 too large to count lines)`: what adds no lines to the sums, and was written all the same.
pub(crate) fn uncounted<'a>(changes: impl Iterator<Item = &'a Change>) -> String {
    let (mut binary, mut large, mut unshown) = (0, 0, 0);
    for change in changes {
        match (change.binary, change.too_large) {
            (true, _) => binary += 1,
            (false, true) if is_large(change) => large += 1,
            (false, true) => unshown += 1,
            (false, false) => {}
        }
    }
    let parts = [
        (binary, "binary"),
        (large, "too large to count lines"),
        (unshown, "with lines that are not counted"),
    ];
    let said = parts.iter().filter(|(count, _)| *count > 0);
    let said: Vec<String> = said.map(|(count, what)| format!("{count} {what}")).collect();
    if said.is_empty() { String::new() } else { format!(" ({})", said.join(", ")) }
}

/// The same where only some of it is shown.
pub(crate) fn totals_of(set: &ChangeSet, shown: &[&Change]) -> String {
    let sum = |count: fn(&Change) -> u64| shown.iter().map(|change| count(change)).sum::<u64>();
    format!(
        "{} shown, +{} -{}{}; in all {}",
        counted(shown.len() as u64, "change", "changes"),
        sum(|change| change.added),
        sum(|change| change.removed),
        uncounted(shown.iter().copied()),
        totals(set)
    )
}

/// `3 changes, 1 inside .git, 2 ignored paths`; nothing, where there are none.
pub(crate) fn apart(changes: u64, in_git: u64, ignored: u64) -> Option<String> {
    let parts = [
        (changes, counted(changes, "change", "changes")),
        (in_git, format!("{in_git} inside .git")),
        (ignored, counted(ignored, "ignored path", "ignored paths")),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Everything that there is, counted so.
pub(crate) fn all_apart(set: &ChangeSet) -> Option<String> {
    let in_git = in_git(set).count() as u64;
    apart(set.totals.files.saturating_sub(in_git), in_git, set.totals.ignored)
}

/// Git's own changes.
pub(crate) fn in_git(set: &ChangeSet) -> impl Iterator<Item = &Change> {
    let books = GitBooks::of(&set.changes);
    set.changes.iter().filter(move |change| !change.ignored && books.hold(change))
}

/// `1 file`, `2 files`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Risky ones first (the worst at the top), then the plain ones, then the ignored ones.
fn ordered<'a>(changes: &[&'a Change]) -> Vec<&'a Change> {
    let mut changes = changes.to_vec();
    changes.sort_by_key(|change| {
        let apart = change.ignored && change.risk < Risk::Ask;
        (apart, if apart { Gravity::default() } else { gravity(change) })
    });
    changes
}

/// The worst is the smallest.
type Gravity = (std::cmp::Reverse<Risk>, bool);

/// By class; of those with the same class, first what hides something from whoever reads it: a name of
/// a file that is known to matter (`package.json`) can be read, a text that shows as another cannot.
fn gravity(change: &Change) -> Gravity {
    (std::cmp::Reverse(change.risk), !change.risk_reasons.iter().any(|reason| hides(reason)))
}

fn push_change(text: &mut String, style: Style, change: &Change) {
    let _ = writeln!(text, "{}", style.bold(&title(change)));
    for line in facts(change) {
        let _ = writeln!(text, "{line}");
    }
    if change.hunks.is_empty() {
        return;
    }
    let old = change.renamed_from.as_ref().unwrap_or(&change.path);
    let _ = writeln!(text, "{}", style.bold(&format!("--- {}", side("a", old, &change.old))));
    let _ =
        writeln!(text, "{}", style.bold(&format!("+++ {}", side("b", &change.path, &change.new))));
    for hunk in &change.hunks {
        push_hunk(text, style, hunk);
    }
}

fn title(change: &Change) -> String {
    let mut title = format!("{} {}", kind_word(change), name(change));
    if change.added + change.removed > 0 {
        let _ = write!(title, "  +{} -{}", change.added, change.removed);
    }
    if change.ignored {
        title.push_str("  (ignored)");
    }
    title
}

/// Its path; of a rename, both.
pub(crate) fn name(change: &Change) -> String {
    match &change.renamed_from {
        Some(from) => format!("{from} -> {}", change.path),
        None => change.path.to_string(),
    }
}

/// The modes that new entries have under the usual umasks.
fn usual(new: &EntryState) -> &'static [u32] {
    match new {
        EntryState::Dir { .. } => &[0o755, 0o775],
        EntryState::File { .. } => &[0o644, 0o664],
        // A link has no mode of its own, and what is special is never applied.
        _ => &[0o777],
    }
}

/// What the hunks do not show: kind, mode, link targets, size, and why there are no hunks.
pub(crate) fn facts(change: &Change) -> Vec<String> {
    let mut facts = Vec::new();
    let (old, new) = (&change.old, &change.new);
    if !old.is_absent() && !new.is_absent() && old.noun() != new.noun() {
        facts.push(format!("type {} -> {}", old.noun(), new.noun()));
    } else if !matches!(new, EntryState::File { .. } | EntryState::Absent) && old.is_absent() {
        facts.push(format!("new {}", new.noun()));
    } else if !matches!(old, EntryState::File { .. } | EntryState::Absent) && new.is_absent() {
        facts.push(format!("removed {}", old.noun()));
    }
    match (old.mode(), new.mode()) {
        (Some(old), Some(new)) if old != new => facts.push(format!("mode {old:04o} -> {new:04o}")),
        // What a program makes by itself goes without saying.
        (None, Some(new)) if !usual(&change.new).contains(&new) => {
            facts.push(format!("mode {new:04o}"));
        }
        _ => {}
    }
    if let EntryState::Symlink { target } = old {
        facts.push(format!("-link to {target}"));
    }
    if let EntryState::Symlink { target } = new {
        facts.push(format!("+link to {target}"));
    }
    if change.kind == ChangeKind::Special {
        facts.push(format!("a {} is never applied", new.noun()));
    }
    if change.binary {
        facts.push(format!("binary: {} -> {}", content(old), content(new)));
    } else if change.too_large {
        let sizes = format!("{} -> {}", content(old), content(new));
        let why = match is_large(change) {
            true => "too large to show as hunks",
            false => {
                "not shown: its earlier text was not kept, or smaller changes are all that one look \
                 shows (`skep cp` copies it out)"
            }
        };
        facts.push(format!("{why}: {sizes}; approved or rejected as a whole"));
    }
    facts
}

/// Whether one side of it alone is more than is shown as hunks.
fn is_large(change: &Change) -> bool {
    [&change.old, &change.new]
        .into_iter()
        .any(|state| matches!(state, EntryState::File { size, .. } if *size > Change::LARGEST_TEXT))
}

fn content(state: &EntryState) -> String {
    match state {
        EntryState::File { size, hash, .. } => {
            let short: String = hash.to_string().chars().take(12).collect();
            format!("{} ({short})", ByteSize(*size))
        }
        other => other.noun().to_owned(),
    }
}

fn side(prefix: &str, path: &RelPath, state: &EntryState) -> String {
    if state.is_absent() { "/dev/null".to_owned() } else { format!("{prefix}/{path}") }
}

/// One hunk with its id.
pub(crate) fn push_hunk(text: &mut String, style: Style, hunk: &Hunk) {
    let range = |start: u32, lines: u32| {
        if lines == 1 { start.to_string() } else { format!("{start},{lines}") }
    };
    let header = format!(
        "@@ -{} +{} @@ hunk {}",
        range(hunk.old_start, hunk.old_lines),
        range(hunk.new_start, hunk.new_lines),
        hunk.id
    );
    let _ = writeln!(text, "{}", style.cyan(&header));
    for line in &hunk.lines {
        let (mark, bytes) = match line {
            HunkLine::Context(bytes) => (' ', bytes.as_bytes()),
            HunkLine::Removed(bytes) => ('-', bytes.as_bytes()),
            HunkLine::Added(bytes) => ('+', bytes.as_bytes()),
        };
        // The end of the line is what the next line of ours stands for; a carriage return before
        // it is content and is shown.
        let ended = bytes.last() == Some(&b'\n');
        let body = visible_text(bytes.strip_suffix(b"\n").unwrap_or(bytes));
        let shown = format!("{mark}{body}");
        let painted = match line {
            HunkLine::Context(_) => shown,
            HunkLine::Removed(_) => style.red(&shown),
            HunkLine::Added(_) => style.green(&shown),
        };
        let _ = writeln!(text, "{painted}");
        if !ended {
            text.push_str("\\ No newline at end of file\n");
        }
    }
}

/// One word for what happened.
pub(crate) fn kind_word(change: &Change) -> &'static str {
    match change.kind {
        ChangeKind::Added => "added",
        ChangeKind::Modified => "modified",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Renamed => "renamed",
        ChangeKind::Mode => "mode",
        ChangeKind::Type => "type",
        ChangeKind::Special => "special",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    fn written(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let mut text = Vec::new();
        write(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn unified_text(changes: &[&Change]) -> String {
        written(|out| unified(Style::PLAIN, changes, out))
    }

    fn all(set: &ChangeSet) -> Vec<&Change> {
        set.changes.iter().collect()
    }

    #[test]
    fn hunks_carry_their_ids_and_the_missing_newline() {
        let set = fake::change_set();
        let text = unified_text(&all(&set));
        let expected = "\nmodified a.txt  +1 -1\n--- a/a.txt\n+++ b/a.txt\n\
                        @@ -1 +1 @@ hunk 0123456789abcdef\n-one\n+ONE\n\
                        \\ No newline at end of file\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn nothing_from_inside_reaches_the_terminal_unescaped() {
        let set = fake::hostile_change_set();
        let shown = all(&set);
        let text = [
            heading(Style::PLAIN, &set, &Folded::nothing(&shown)),
            unified_text(&shown),
            written(|out| stat(Style::PLAIN, &shown, out)),
        ]
        .concat();
        let bad = |c: char| {
            (c.is_control() && c != '\n' && c != '\t') || skep_types::escape::is_deceptive(c)
        };
        assert!(!text.contains(bad), "{text:?}");
        assert!(text.contains("\\x1b[2J") && text.contains("\\u{202e}"), "{text}");
        let broke_out = text.lines().any(|line| line.starts_with("+++ b/forged"));
        assert!(!broke_out, "a name broke out of its line:\n{text}");
    }

    #[test]
    fn the_worst_comes_first_and_ignored_last() {
        let set = fake::change_set();
        let names: Vec<_> =
            ordered(&all(&set)).iter().map(|change| change.path.to_string()).collect();
        assert_eq!(names.first().unwrap(), ".git/hooks/post-commit");
        assert_eq!(names.last().unwrap(), "target/out.o");
        let heading = heading(Style::PLAIN, &set, &fold(&set, &all(&set)));
        assert!(
            heading.contains("! block     .git/hooks/post-commit: runs on the host"),
            "{heading}"
        );
    }

    #[test]
    fn what_has_no_hunks_is_still_said() {
        let set = fake::change_set();
        let text = unified_text(&all(&set));
        for line in [
            "mode 0644 -> 0755",
            "+link to /etc/passwd",
            "binary: nothing -> 3 B",
            "renamed old -> new",
            "a fifo is never applied",
            "(ignored)",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
    }

    #[test]
    fn totals_count_what_is_left_out() {
        assert_eq!(
            totals(&fake::change_set()),
            "7 files changed, +1 -1 (1 binary); 1 ignored (built artefacts, left out unless --ignored)"
        );
    }

    #[test]
    fn what_adds_no_lines_is_counted_apart() {
        let mut set = fake::change_set();
        let size = Change::LARGEST_TEXT + 1;
        let hash = skep_types::ContentHash::of(b"");
        (set.changes[0].too_large, set.changes[2].too_large) = (true, true);
        set.changes[2].new = EntryState::File { hash, size, mode: 0o644 };
        let expected = " (1 binary, 1 too large to count lines, 1 with lines that are not counted)";
        let said = totals(&set);
        assert!(said.contains(&format!("7 files changed, +1 -1{expected}; 1 ignored")), "{said}");
        let said = totals_of(&set, &[&set.changes[2]]);
        assert!(said.starts_with("1 change shown, +0 -0 (1 too large to count lines); in all 7"));
        let plain: Vec<_> =
            set.changes.iter().filter(|change| change.renamed_from.is_some()).collect();
        assert_eq!(uncounted(plain.into_iter()), "");
    }
}
