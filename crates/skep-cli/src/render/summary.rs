//! What is said on standard error after a command ended, and before an approval.

use super::diff::{self, Folded};
use super::style::Style;
use skep_types::escape::{visible, visible_text};
use skep_types::{
    ByteSize, Change, ChangeSet, EndReason, ExecEnd, ExecSpec, HunkId, HunkLine, RefusedCall,
    RelPath, show_duration,
};
use std::fmt::Write as _;
use std::time::Duration;

const SIGINT: i32 = 2;
const SIGPIPE: i32 = 13;
/// How many lines the risks have after a run before the rest is only counted.
const LISTED: usize = 20;
/// The same for refused calls.
const REFUSED: usize = 4;

/// What became of the sandbox after `run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Stopped; its changes wait.
    Kept,
    /// Gone.
    Removed,
}

/// Why a command ended, where that was not its own doing.
pub(crate) fn end(end: &ExecEnd) -> Option<String> {
    let message = end.message.as_deref().map(|message| visible_text(message.as_bytes()));
    let because = match end.reason {
        EndReason::Exited => return message,
        // Interrupted from the terminal, or nobody reads any more: shells say nothing either.
        EndReason::Signal if matches!(end.signal, Some(SIGINT | SIGPIPE)) => return message,
        EndReason::Signal => {
            format!("the command was killed by signal {}", end.signal.unwrap_or(0))
        }
        EndReason::Timeout => "the command ran out of time (--timeout)".to_owned(),
        EndReason::IdleTimeout => "the sandbox was idle for too long (--idle-timeout)".to_owned(),
        EndReason::SilenceTimeout => {
            "the command printed nothing for too long (--silence-timeout)".to_owned()
        }
        EndReason::CpuLimit => "the command used up its processor time (--cpu-time)".to_owned(),
        EndReason::Oom => "the command ran out of memory (--memory)".to_owned(),
        EndReason::DiskLimit => "the command wrote more than it may (--disk)".to_owned(),
        EndReason::PidsLimit => "the command could not make more processes (--pids)".to_owned(),
        EndReason::OutputLimit => {
            "the command printed more than it may (--output-limit)".to_owned()
        }
        EndReason::Killed => "the command was killed".to_owned(),
        EndReason::Lost => "the end of the command was not seen".to_owned(),
        EndReason::StartFailed => "the command could not be started".to_owned(),
    };
    Some(match message {
        Some(message) => format!("{because}: {message}"),
        None => because,
    })
}

/// Why a command ended, with its name where it never began.
pub(crate) fn end_of(end: &ExecEnd, spec: &ExecSpec) -> Option<String> {
    let why = self::end(end)?;
    match spec.argv.first() {
        Some(word) if end.reason == EndReason::StartFailed => {
            let named = format!("the command `{}`", visible(word.as_bytes()));
            Some(why.replacen("the command", &named, 1))
        }
        _ => Some(why),
    }
}

/// The summary after `run`, one screen at most.
pub(crate) fn after_run(style: Style, set: &ChangeSet, end: &ExecEnd, fate: Fate) -> String {
    let mut text = String::new();
    let changes: Vec<&Change> = set.changes.iter().collect();
    let used = used(end);
    if changes.is_empty() {
        let fate = match fate {
            Fate::Kept => format!("sandbox {} kept", set.sandbox),
            Fate::Removed => "sandbox removed".to_owned(),
        };
        let used = match end.stats.duration_ms {
            Some(_) => format!(" ({used})"),
            // It never began.
            None => String::new(),
        };
        let _ = writeln!(text, "{} no changes{used}; {fate}", style.bold("skep:"));
        text.push_str(&unreached(style, end));
        return text;
    }
    text.push_str(&risks(style, set, &diff::fold(set, &changes), About::All));
    let _ = writeln!(text, "{} {} ({used})", style.bold("skep:"), diff::totals(set));
    text.push_str(&unreached(style, end));
    if fate == Fate::Removed {
        let _ = writeln!(text, "sandbox {} and its changes were discarded", set.sandbox);
        return text;
    }
    let name = &set.sandbox;
    let next = [
        (format!("skep diff {name}"), "see the changes"),
        (format!("skep approve {name}"), "apply them to the project"),
        (format!("skep rm --discard {name}"), "throw them away"),
    ];
    let width = next.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    for (command, meaning) in next {
        let _ = writeln!(text, "  {}  {meaning}", style.cyan(&format!("{command:<width$}")));
    }
    text
}

/// How long it took: nobody knows where nobody saw the end.
pub(crate) fn took(end: &ExecEnd) -> String {
    let known = end.stats.duration_ms.map(Duration::from_millis);
    known.map_or_else(|| "?".to_owned(), show_duration)
}

fn used(end: &ExecEnd) -> String {
    let mut used = took(end);
    if end.stats.memory_peak_bytes > 0 {
        let _ = write!(used, ", memory peak {}", ByteSize(end.stats.memory_peak_bytes));
    }
    if !end.limits_hit.is_empty() {
        let _ = write!(used, ", limits felt: {}", end.limits_hit.join(", "));
    }
    if !end.refused.is_empty() {
        let _ = write!(used, ", refused: {}", refused(end));
    }
    used
}

/// What would have let a failed command out, if something in it tried to reach something. That need not
/// be why it failed: package managers look for news of themselves.
fn unreached(style: Style, end: &ExecEnd) -> String {
    let refused = end.refused.iter().any(|refused| refused.call == "network");
    if !refused || end.exit_code == 0 {
        return String::new();
    }
    let what = "if it failed for want of a network: something in it tried to reach out, and this \
                sandbox has none; `--allow HOST` opens a way";
    format!("{} {what}\n", style.yellow("skep:"))
}

/// How many hidden paths are named.
const NAMED: usize = 3;

/// What the command could not see of its project, and how it could.
pub(crate) fn hidden(style: Style, hidden: &[RelPath]) -> Option<String> {
    let names: Vec<String> = hidden.iter().take(NAMED).map(|path| format!("`{path}`")).collect();
    let more = if hidden.len() > NAMED { ", …" } else { "" };
    let count = diff::counted(hidden.len() as u64, "path was", "paths were");
    (!hidden.is_empty()).then(|| {
        format!(
            "{} {count} hidden inside ({}{more}); `--show GLOB` shows what matches",
            style.bold("skep:"),
            names.join(", ")
        )
    })
}

/// The calls that were refused most often.
fn refused(end: &ExecEnd) -> String {
    let mut calls: Vec<_> = end.refused.iter().collect();
    calls.sort_by_key(|refused| std::cmp::Reverse(refused.count));
    let show = |refused: &&RefusedCall| format!("{} × {}", refused.call, refused.count);
    let mut text = calls.iter().take(REFUSED).map(show).collect::<Vec<_>>().join(", ");
    if calls.len() > REFUSED {
        let _ = write!(text, " and {} more", calls.len() - REFUSED);
    }
    text
}

/// What an approval is about to apply: risks of it, then each path with the hunks that were
/// named, then how many, and the digest.
pub(crate) fn before_approval(
    style: Style,
    set: &ChangeSet,
    about: About,
    taken: &[&Change],
    hunks: &[HunkId],
) -> String {
    let all: Vec<&Change> = set.changes.iter().collect();
    let folded = diff::fold(set, if about == About::All { &all } else { taken });
    // Nothing is left out: what is not shown here is applied unseen.
    let risks = all_risks(style, set, &folded, about);
    let mut text: String = risks.iter().map(|line| format!("{line}\n")).collect();
    let (mut added, mut removed) = (0, 0);
    for change in taken {
        let (plus, minus) = lines_taken(change, hunks);
        (added, removed) = (added + plus, removed + minus);
        let counts = if plus + minus > 0 { format!("  +{plus} -{minus}") } else { String::new() };
        // The mode comes with the last hunk.
        let facts = if is_part(change, hunks) { Vec::new() } else { diff::facts(change) };
        let facts =
            if facts.is_empty() { String::new() } else { format!("  ({})", facts.join("; ")) };
        let (kind, name) = (diff::kind_word(change), diff::name(change));
        let _ = writeln!(text, "  {kind:<8} {name}{counts}{facts}");
        // Whoever names hunks by their ids sees what these are.
        for hunk in change.hunks.iter().filter(|hunk| hunks.contains(&hunk.id)) {
            diff::push_hunk(&mut text, style, hunk);
        }
    }
    let count = diff::counted(taken.len() as u64, "change", "changes");
    let uncounted = diff::uncounted(taken.iter().copied());
    let _ =
        writeln!(text, "{} {count} to apply, +{added} -{removed}{uncounted}", style.bold("skep:"));
    let _ = writeln!(text, "digest {}", set.reviewed());
    text
}

/// Whether only some hunks of a change are taken.
fn is_part(change: &Change, hunks: &[HunkId]) -> bool {
    let named = change.hunks.iter().filter(|hunk| hunks.contains(&hunk.id)).count();
    named > 0 && named < change.hunks.len()
}

/// The lines of a change that are taken over: all, or those of the hunks that were named.
fn lines_taken(change: &Change, hunks: &[HunkId]) -> (u64, u64) {
    let named: Vec<_> = change.hunks.iter().filter(|hunk| hunks.contains(&hunk.id)).collect();
    if named.is_empty() {
        return (change.added, change.removed);
    }
    let lines = || named.iter().flat_map(|hunk| &hunk.lines);
    let count = |wanted: fn(&HunkLine) -> bool| lines().filter(|line| wanted(line)).count() as u64;
    (
        count(|line| matches!(line, HunkLine::Added(_))),
        count(|line| matches!(line, HunkLine::Removed(_))),
    )
}

/// What is warned of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// The whole change set.
    All,
    /// Only what is shown.
    Taken,
}

/// Risks, conflicts and warnings, cut to a screen.
pub(crate) fn risks(style: Style, set: &ChangeSet, folded: &Folded<'_>, about: About) -> String {
    let mut lines = all_risks(style, set, folded, about);
    let more = lines.len().saturating_sub(LISTED);
    lines.truncate(LISTED);
    if more > 0 {
        lines.push(format!("… and {more} more; `skep diff {}` shows all", set.sandbox));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// All of them, a line each.
fn all_risks(style: Style, set: &ChangeSet, folded: &Folded<'_>, about: About) -> Vec<String> {
    let named = |path: &RelPath| folded.rest.iter().any(|change| change.path == *path);
    let said = folded.line(style, set) + &diff::risks(style, &folded.rest);
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    let conflicts = folded.conflicts(set);
    for conflict in conflicts.iter().filter(|at| about == About::All || named(&at.path)) {
        let reason = visible_text(conflict.reason.as_bytes());
        lines.push(style.red(&format!("! conflict  {}: {reason}", conflict.path)));
    }
    // What is merged is written as nobody has it yet: said before, not only afterwards.
    let merges = set.drift.iter().filter(|drift| drift.merges);
    for drift in merges.filter(|at| about == About::All || named(&at.path)) {
        lines.push(style.yellow(&diff::drift_line(drift)));
    }
    // A warning names the paths it is about.
    let meant = |warning: &&String| {
        about == About::All
            || folded.rest.iter().any(|change| warning.contains(&format!("`{}`", change.path)))
    };
    for warning in set.warnings.iter().filter(meant) {
        lines.push(style.yellow(&format!("! warning   {}", visible_text(warning.as_bytes()))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn risks_come_first_and_the_next_commands_last() {
        let text = after_run(Style::PLAIN, &fake::change_set(), &fake::end(0), Fate::Kept);
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word}:\n{text}"));
        assert!(at("! block") < at("7 files changed"));
        assert!(at("7 files changed") < at("skep diff bar1"));
        assert!(at("1.2 s") < at("memory peak 3 MiB"));
        assert!(at("skep approve bar1") < at("skep rm --discard bar1"));
    }

    #[test]
    fn what_the_next_commands_do_stands_in_one_column() {
        for name in ["a", "calm-petal-920", "a-name-that-somebody-has-chosen-with-care"] {
            let mut set = fake::change_set();
            set.sandbox = skep_types::SandboxName::parse(name).unwrap();
            let text = after_run(Style::PLAIN, &set, &fake::end(0), Fate::Kept);
            let at = |words: &str| text.lines().find_map(|line| line.find(words)).unwrap();
            assert_eq!(at("see the changes"), at("apply them to the project"), "{text}");
            assert_eq!(at("see the changes"), at("throw them away"), "{text}");
        }
    }

    #[test]
    fn a_way_out_is_offered_only_where_the_want_of_one_may_be_why_it_failed() {
        let mut end = fake::end(1);
        end.refused = vec![RefusedCall { call: "network".into(), count: 1 }];
        assert!(unreached(Style::PLAIN, &end).contains("if it failed for want of a network"));
        end.exit_code = 0;
        assert_eq!(unreached(Style::PLAIN, &end), "");
    }

    #[test]
    fn what_was_hidden_is_counted_and_named() {
        let paths = |names: &[&str]| -> Vec<RelPath> {
            names.iter().map(|name| RelPath::parse(name.as_bytes()).unwrap()).collect()
        };
        assert_eq!(hidden(Style::PLAIN, &[]), None);
        let one = hidden(Style::PLAIN, &paths(&[".env"])).unwrap();
        assert!(one.contains("1 path was hidden inside (`.env`);"), "{one}");
        let more = hidden(Style::PLAIN, &paths(&["a", "b", "c", "d"])).unwrap();
        assert!(more.contains("4 paths were hidden inside (`a`, `b`, `c`, …)"), "{more}");
    }

    #[test]
    fn every_end_but_a_plain_exit_has_a_reason() {
        assert_eq!(super::end(&fake::end(7)), None);
        let mut piped = fake::end(141);
        (piped.reason, piped.signal) = (EndReason::Signal, Some(13));
        assert_eq!(super::end(&piped), None);
        let mut oom = fake::end(137);
        oom.reason = EndReason::Oom;
        oom.message = Some("64 MiB\x1b[0m".into());
        assert_eq!(
            super::end(&oom).unwrap(),
            "the command ran out of memory (--memory): 64 MiB\\x1b[0m"
        );
    }
}
