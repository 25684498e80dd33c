//! Risk, acceptance and attribution of each change.

use crate::Engine;
use crate::meant::as_meant;

use rustix::fs::FileType;
use skep_policy::{
    AcceptanceRules, ChangeFacts, RiskTable, TEXT_NO_MORE, TEXT_NOT_SHOWN, bare_repositories,
    in_bare_repository,
};
use skep_types::{Change, Code, EntryState, Exec, ExecId, Policy, Problem, RelPath, Risk, Sandbox};
use skep_workspace::WorkspaceSpec;
use skep_workspace::held::{Held, Kept};
use skep_workspace::tree::{Meta, TreeRoot};
use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// As much of a text as is looked at for deceptive characters.
const TEXT: u64 = 1 << 20;

/// As much as decides whether a file is text.
const HEAD: u64 = 8000;

/// A millisecond. Times are told in nanoseconds.
const MILLISECOND: i128 = 1_000_000;
/// How late the end of an exec may be seen.
const LATE: i128 = 1_000 * MILLISECOND;
/// By how much an end may be noted too early: where it was not heard of, it is counted from the moment
/// in which the keeper heard of the exec.
const EARLY: i128 = 250 * MILLISECOND;

impl Engine {
    /// Fills in what the workspace does not know: risk, verdict, and which exec wrote it. Gives the
    /// paths that more than one exec may have written.
    pub(super) fn judge(
        &self,
        sandbox: &Sandbox,
        changes: &mut [Change],
        kept: &Kept,
    ) -> Result<Vec<RelPath>, Problem> {
        let mut unknown = Vec::new();
        if changes.is_empty() {
            return Ok(unknown);
        }
        let table = RiskTable::builtin();
        // A path is denied by whatever name it was written.
        let deny_changes = as_meant(sandbox.project.as_path(), &sandbox.policy.deny_changes);
        let policy = Policy { deny_changes, ..sandbox.policy.clone() };
        let rules = AcceptanceRules::of(&policy)
            .map_err(|error| Problem::from_error(Code::Usage, &error))?;
        let roots = open_levels(&self.workspace(sandbox));
        let levels = Levels(
            roots
                .iter()
                .map(|(root, times)| Level { tree: Held::new(root), times: *times })
                .collect(),
        );
        let project = TreeRoot::open(sandbox.project.as_path()).ok();
        let project = project.as_ref().map(Held::new);
        let bare = bare(changes, &levels, project.as_ref());
        let times = Times::of(&self.execs_of(&sandbox.id)?, self.own_writes(&sandbox.id));
        let links = links(changes, table, sandbox.project.as_path(), project.as_ref());
        for change in changes {
            let text = new_text(change, &levels, kept);
            let aliases = aliases(&change.path, &links);
            let facts = ChangeFacts {
                text: text.as_deref(),
                in_bare_repository: in_bare_repository(&change.path, &bare),
                aliases: &aliases,
            };
            (change.risk, change.risk_reasons) = table.classify(change, &facts);
            if let Some(reason) = unseen_text(change, &levels, project.as_ref()) {
                change.risk = change.risk.max(Risk::Note);
                change.risk_reasons.push(reason.to_owned());
            }
            if !rules.is_empty() {
                change.verdict = Some(rules.verdict_of(change));
            }
            let mut writers = times.writers(&levels, &change.path);
            match writers.len() {
                0 | 1 => change.exec = writers.pop(),
                _ => unknown.push(change.path.clone()),
            }
        }
        Ok(unknown)
    }
}

/// The upper and the frozen layers below it, topmost first.
struct Levels<'a>(Vec<Level<'a>>);

struct Level<'a> {
    tree: Held<'a>,
    times: EntryTimes,
}

/// What the times of a level's entries tell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryTimes {
    /// When they were written.
    Written,
    /// When they were copied.
    Copied,
}

fn open_levels(workspace: &WorkspaceSpec) -> Vec<(TreeRoot, EntryTimes)> {
    let paths = [&workspace.upper].into_iter().chain(&workspace.layers);
    paths
        .filter_map(|path| {
            let copied = crate::layers::copied_mark(path).exists();
            let times = if copied { EntryTimes::Copied } else { EntryTimes::Written };
            Some((TreeRoot::open(path).ok()?, times))
        })
        .collect()
}

impl<'a> Levels<'a> {
    /// The topmost level that has something at `path`, and its `lstat`.
    fn holder(&self, path: &RelPath) -> Option<(&Held<'a>, Meta)> {
        self.0.iter().find_map(|level| Some((&level.tree, level.tree.meta(path).ok()??)))
    }

    /// When the entry at `path` was last changed inside, where that can be told. What a directory that
    /// was made anew leaves out has no entry; the kernel's marks of removed entries are links to one
    /// inode, whose time is that of the last of them.
    fn changed(&self, path: &RelPath) -> Option<(i64, i64)> {
        let (level, meta) =
            self.0.iter().find_map(|level| Some((level, level.tree.meta(path).ok()??)))?;
        let shared_mark = meta.kind() == FileType::CharacterDevice && meta.links > 1;
        (level.times == EntryTimes::Written && !shared_mark).then_some(meta.changed)
    }
}

/// Directories that would be taken for a git repository although they are not called `.git`.
fn bare(changes: &[Change], levels: &Levels<'_>, project: Option<&Held<'_>>) -> BTreeSet<RelPath> {
    let in_project = |path: &RelPath| {
        project.is_some_and(|tree| tree.meta(path).is_ok_and(|meta| meta.is_some()))
    };
    let present =
        changes.iter().filter(|change| !change.new.is_absent()).map(|change| &change.path);
    bare_repositories(present, |path| levels.holder(path).is_some() || in_project(path))
}

/// A link of the project's own under a name that matters, or a setting in the place of one, and what it
/// leads to.
struct Alias {
    link: RelPath,
    target: RelPath,
}

/// Where links lie that others set up for a whole project.
const WELL_KNOWN: [&[u8]; 3] = [b".git", b".github", b".config"];

/// The links beside what was changed and above it, and those in the places that every project has;
/// further ones are not looked for, which would be a walk through the project.
fn links(
    changes: &[Change],
    table: &RiskTable,
    path: &Path,
    project: Option<&Held<'_>>,
) -> Vec<Alias> {
    let Some(project) = project else { return Vec::new() };
    let known = WELL_KNOWN.into_iter().filter_map(|name| RelPath::parse(name).ok());
    let mut directories: BTreeSet<RelPath> = known.chain([RelPath::root()]).collect();
    for change in changes {
        // One that is known has its parents there, too.
        for above in change.path.ancestors() {
            if !directories.insert(above) {
                break;
            }
        }
    }
    let mut found = Vec::new();
    for directory in directories {
        // What is new inside has no links of the project's.
        let Ok(entries) = project.list(&directory) else { continue };
        for (name, kind) in entries {
            if kind != FileType::Symlink {
                continue;
            }
            let Ok(link) = directory.join(&name) else { continue };
            if !table.names(&link) {
                continue;
            }
            // Links behind the link are followed, wherever they lead; only the name counts.
            let Ok(place) = path.join(link.as_path()).canonicalize() else { continue };
            let target = place.strip_prefix(path).ok();
            let target = target.and_then(|path| RelPath::parse(path.as_os_str().as_bytes()).ok());
            found.extend(target.map(|target| Alias { link, target }));
        }
    }
    let led = super::settings::leads(project, path);
    found.extend(led.into_iter().map(|lead| Alias { link: lead.read_as, target: lead.target }));
    // Not in the order of the directory: reasons are listed by it.
    found.sort_by(|one: &Alias, other| one.link.cmp(&other.link));
    found
}

/// Under which other names a path is read.
fn aliases(path: &RelPath, links: &[Alias]) -> Vec<RelPath> {
    let leads = links.iter().filter(|alias| path.starts_with(&alias.target));
    leads
        .filter_map(|alias| {
            let rest = path.components().skip(alias.target.depth());
            rest.into_iter().try_fold(alias.link.clone(), |above, name| above.join(name)).ok()
        })
        .collect()
}

fn new_text(change: &Change, levels: &Levels<'_>, kept: &Kept) -> Option<Vec<u8>> {
    let EntryState::File { hash, size, .. } = &change.new else { return None };
    if change.binary || *size == 0 {
        return None;
    }
    if let Some(bytes) = kept.get(hash) {
        return Some(bytes.to_vec());
    }
    let (level, _) = levels.holder(&change.path)?;
    let (file, _) = level.open_file(&change.path).ok()?;
    let mut text = Vec::new();
    file.take(TEXT).read_to_end(&mut text).ok()?;
    Some(text)
}

/// Why somebody should look at what is shown as binary.
fn unseen_text(
    change: &Change,
    levels: &Levels<'_>,
    project: Option<&Held<'_>>,
) -> Option<&'static str> {
    if !change.binary {
        return None;
    }
    if text_with_nul(change, levels) {
        return Some(TEXT_NOT_SHOWN);
    }
    was_text(change, project?).then_some(TEXT_NO_MORE)
}

/// Whether text gave way to something else. What stands in the project now answers for the base: who
/// edits a text there leaves a text.
fn was_text(change: &Change, project: &Held<'_>) -> bool {
    let file = |state: &EntryState| matches!(state, EntryState::File { size: 1.., .. });
    if !file(&change.old) || !file(&change.new) {
        return false;
    }
    let path = change.renamed_from.as_ref().unwrap_or(&change.path);
    let Ok((text, _)) = project.open_file(path) else { return false };
    let mut head = Vec::new();
    text.take(HEAD).read_to_end(&mut head).is_ok() && !skep_workspace::is_binary(&head)
}

/// Whether a file is shown as binary, and a shell or an editor would take it for text: a NUL byte or
/// two among letters. Text of two bytes per letter has one in every second place.
fn text_with_nul(change: &Change, levels: &Levels<'_>) -> bool {
    let EntryState::File { .. } = change.new else { return false };
    let Some((level, _)) = levels.holder(&change.path) else { return false };
    let Ok((file, _)) = level.open_file(&change.path) else { return false };
    let mut head = Vec::new();
    if file.take(HEAD).read_to_end(&mut head).is_err() {
        return false;
    }
    let odd = head.iter().filter(|byte| **byte < b' ' && !b"\n\r\t".contains(byte)).count();
    // Letters of one byte beyond ASCII are a few among many; what is packed has as many as others.
    let high = head.iter().filter(|byte| **byte >= 0x80).count();
    let letters = is_utf8(&head) || high * 4 < head.len();
    !head.is_empty() && (head.starts_with(b"#!") || (odd * 20 < head.len() && letters))
}

/// Text, but for a letter that the end of what was read cut in two.
fn is_utf8(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    }
}

/// When one exec ran.
struct Ran {
    start: i128,
    /// The earliest stamp that something it wrote can have.
    earliest: i128,
    end: Option<i128>,
    exec: ExecId,
}

/// When execs ran, in the order in which they were started; and when skep wrote.
struct Times {
    execs: Vec<Ran>,
    own: Vec<(i128, i128)>,
    /// By how much the clock of files may be behind.
    tick: i128,
}

/// A tick of the clock that the kernel stamps files with.
fn tick() -> i128 {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::RealtimeCoarse);
    i128::from(tick.tv_sec) * 1_000 * MILLISECOND + i128::from(tick.tv_nsec)
}

/// The last moment that is told as this many milliseconds.
fn until(milliseconds: i128) -> i128 {
    (milliseconds + 1) * MILLISECOND - 1
}

impl Times {
    fn of(execs: &[Exec], own: Vec<(i128, i128)>) -> Self {
        let tick = tick();
        let times = execs.iter().filter_map(|exec| {
            let start = nanoseconds(&exec.started_at)?;
            // How long it took counts from when it began at last: where others are at work that is later, and
            // its end would seem to be earlier than it was.
            let stats = exec.end.as_ref().map(|end| end.stats).unwrap_or_default();
            let took = stats.duration_ms.map(|took| start + until(took.into()));
            let end = stats.ended_at_ms.map(|end| until(end.into())).or(took);
            // Where it was not noted: the clock of files is behind by up to a tick, so that a first write may
            // lie before the start.
            let earliest = stats.began_at_ns.map_or(start - tick, i128::from);
            Some(Ran { start, earliest, end, exec: exec.id.clone() })
        });
        Self { execs: times.collect(), own, tick }
    }

    /// The execs that were running when the entry last changed: it is known which one wrote only if
    /// it was the only one. A process that outlived its exec is taken for the one that runs.
    fn writers(&self, levels: &Levels<'_>, path: &RelPath) -> Vec<ExecId> {
        if self.execs.is_empty() {
            return Vec::new();
        }
        let Some((seconds, nanoseconds)) = levels.changed(path) else { return Vec::new() };
        self.at(i128::from(seconds) * 1_000 * MILLISECOND + i128::from(nanoseconds))
    }

    fn at(&self, written: i128) -> Vec<ExecId> {
        // A rebase, a rejected hunk: who wrote what it was made from is not told by its time.
        if self.own.iter().any(|(start, end)| written + self.tick >= *start && written <= *end) {
            return Vec::new();
        }
        // Else one whose end was noted early.
        let mut found = self.during(written, 0);
        if found.is_empty() {
            found = self.during(written, LATE);
            // Of several that had ended by then, one that was over well before the last began did not
            // write after it.
            let last = found.iter().map(|ran| ran.start).max().unwrap_or_default();
            found.retain(|ran| ran.end.is_none_or(|end| end + EARLY >= last));
        }
        found.into_iter().map(|ran| ran.exec.clone()).collect()
    }

    fn during(&self, written: i128, late: i128) -> Vec<&Ran> {
        let fits =
            |ran: &&Ran| written >= ran.earliest && ran.end.is_none_or(|end| written <= end + late);
        self.execs.iter().filter(fits).collect()
    }
}

pub(super) fn nanoseconds(time: &str) -> Option<i128> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Some(time.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: i128 = 4 * MILLISECOND;

    /// How many are named for something written at `written`, by commands with these starts and ends, in
    /// milliseconds.
    fn named(written: i128, ran: &[(i128, i128)]) -> usize {
        let ran = ran.iter().zip(0_u8..).map(|((start, end), number)| Ran {
            start: start * MILLISECOND,
            earliest: start * MILLISECOND - TICK,
            end: Some(until(*end)),
            exec: ExecId::from_random([number; 10]),
        });
        let times = Times { execs: ran.collect(), own: Vec::new(), tick: TICK };
        times.at(written * MILLISECOND).len()
    }

    /// Two at a time. The first began late and was over in a moment: by its start and how long it took it would
    /// seem to have ended before the file was written.
    #[test]
    fn an_end_that_was_heard_counts_and_no_estimate() {
        let execs = [
            exec(1, "1970-01-01T00:00:01.000Z", 3, 1_020),
            exec(2, "1970-01-01T00:00:01.002Z", 15, 1_030),
        ];
        let times = Times::of(&execs, Vec::new());
        assert_eq!(times.at(1_016 * MILLISECOND).len(), 2, "either may have written");
        assert_eq!(times.at(1_026 * MILLISECOND), [ExecId::from_random([2; 10])]);
    }

    fn exec(number: u8, start: &str, took: u64, ended: i64) -> Exec {
        let mut end = skep_types::ExecEnd::exited(0);
        end.stats.duration_ms = Some(took);
        end.stats.ended_at_ms = Some(ended);
        Exec {
            id: ExecId::from_random([number; 10]),
            sandbox: skep_types::SandboxId::from_random([0; 10]),
            spec: Default::default(),
            started_at: start.to_owned(),
            end: Some(end),
            enforcement: Default::default(),
        }
    }

    /// Two within a tick: when the second was let begin is known by the clock of files.
    #[test]
    fn commands_within_a_tick_are_told_apart_by_when_they_were_let_begin() {
        let mut execs = [
            exec(1, "1970-01-01T00:00:01.000Z", 1, 1_001),
            exec(2, "1970-01-01T00:00:01.002Z", 1, 1_003),
        ];
        let second = 1_002 * MILLISECOND + 500;
        assert_eq!(Times::of(&execs, Vec::new()).at(1_001 * MILLISECOND).len(), 2);
        execs[1].end.as_mut().unwrap().stats.began_at_ns = Some(second as i64);
        let times = Times::of(&execs, Vec::new());
        assert_eq!(times.at(1_001 * MILLISECOND), [ExecId::from_random([1; 10])]);
        assert_eq!(times.at(second - 1), [ExecId::from_random([1; 10])], "its end was heard early");
        assert_eq!(times.at(second), [ExecId::from_random([2; 10])]);
    }

    /// An end is noted some milliseconds early: what was written then is the last command's all the
    /// same, unless another may still have run.
    #[test]
    fn commands_in_a_row_are_told_apart() {
        assert_eq!(named(1_006, &[(0, 5), (500, 506), (1_000, 1_004)]), 1);
        assert_eq!(named(1_003, &[(0, 5), (500, 506), (1_000, 1_004)]), 1);
        assert_eq!(named(1_006, &[(800, 850), (1_000, 1_004)]), 2);
        assert_eq!(named(1_003, &[(800, 2_000), (1_000, 1_004)]), 2);
        assert_eq!(named(9_000, &[(800, 850), (1_000, 1_004)]), 0);
    }
}
