//! How careful to be with a change, by its final state.
//!
//! The paths are data (`resources/risky-paths.toml`); what depends on more than a path (links,
//! permission bits, special files, invisible characters, names that are `.git` elsewhere) is
//! decided here. The class of a change is the highest one found, and every finding is a reason.

use crate::dotgit::{folded_path, is_dot_git};
use crate::link::{LinkTarget, link_target};
use crate::names::{Edge, NameTable, Numbered};
use crate::pattern::parents;
use skep_types::escape::has_deceptive;
use skep_types::{Change, EntryState, RelPath, Risk};

// What `BUILTIN` is made of, made from the list by `build.rs`.
include!(concat!(env!("OUT_DIR"), "/risky-paths.rs"));

const LINK_DECEIVES: &str = "invisible or bidirectional characters in the link's target";
const NAME_DECEIVES: &str = "invisible or bidirectional characters in the name";
const NAME_CONTROLS: &str = "control characters in the name";
const NAME_UNREADABLE: &str = "the name is not valid UTF-8";
const TEXT_DECEIVES: &str = "invisible or bidirectional characters in the content";
const TEXT_ESCAPES: &str = "terminal escape sequences in the content";
/// Why a text is not shown that a shell would run all the same.
pub const TEXT_NOT_SHOWN: &str = "is text with NUL bytes in it: its content is not shown";
/// Why a file that was text is not shown, whatever it is now: some programs run what others call binary.
pub const TEXT_NO_MORE: &str = "was text and is binary now: its content is not shown";

/// Whether a reason is that something looks like another thing, or is not seen at all. Such a change
/// comes first in its class.
pub fn hides(reason: &str) -> bool {
    [
        LINK_DECEIVES,
        NAME_DECEIVES,
        NAME_CONTROLS,
        NAME_UNREADABLE,
        TEXT_DECEIVES,
        TEXT_ESCAPES,
        TEXT_NOT_SHOWN,
        TEXT_NO_MORE,
    ]
    .contains(&reason)
}

/// What is known of a change beyond the change itself. The default knows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChangeFacts<'a> {
    /// The new content, or as much of it as the caller reads, when it is text.
    pub text: Option<&'a [u8]>,
    /// Whether git would read the path as part of a repository that is not called `.git`
    /// (see [`crate::in_bare_repository`]).
    pub in_bare_repository: bool,
    /// Where links or settings of the project lead to it: it is read under these names too.
    pub aliases: &'a [RelPath],
}

/// One line of the data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RiskEntry {
    /// How careful to be.
    pub class: Risk,
    /// Which paths, at any depth; lower case.
    pub pattern: &'static str,
    /// A path it matches.
    pub sample: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// The table of risky paths.
#[derive(Debug, Clone)]
pub struct RiskTable {
    version: u32,
    entries: &'static [RiskEntry],
    /// One pattern per entry, without a trailing `/**`.
    patterns: NameTable,
    /// Directories that lead to an entry, with the entry: a link there redirects it.
    leading: NameTable,
    leading_entry: &'static [usize],
}

static BUILTIN: RiskTable = RiskTable {
    version: VERSION,
    entries: ENTRIES,
    patterns: NameTable::in_order(PATTERNS_PLAIN, PATTERNS_WILD),
    leading: NameTable::in_order(LEADING_PLAIN, LEADING_WILD),
    leading_entry: LEADING_ENTRY,
};

impl RiskTable {
    /// The table that comes with skep. One that cannot be read cannot be built.
    pub fn builtin() -> &'static Self {
        &BUILTIN
    }

    /// Version of the data.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The entries, in the order of the file.
    pub fn entries(&self) -> &[RiskEntry] {
        self.entries
    }

    /// The class of a change and the reasons, the gravest first.
    pub fn classify(&self, change: &Change, facts: &ChangeFacts<'_>) -> (Risk, Vec<String>) {
        let mut findings = Findings::default();
        self.judge_path(&change.path, &change.new, &mut findings);
        if let Some(from) = &change.renamed_from {
            let mut left = Findings::default();
            self.judge_path(from, &EntryState::Absent, &mut left);
            for (risk, reason) in left.0 {
                findings.add(risk, format!("moved away from `{from}`: {reason}"));
            }
        }
        for alias in facts.aliases {
            let mut there = Findings::default();
            self.judge_path(alias, &change.new, &mut there);
            for (risk, reason) in there.0 {
                findings
                    .add(risk, format!("read as `{alias}`, through a link or a setting: {reason}"));
            }
        }
        if facts.in_bare_repository {
            findings.add(
                Risk::Block,
                "part of a directory that git takes for a repository; its settings name programs",
            );
        }
        judge_state(change, &mut findings);
        judge_characters(change, facts, &mut findings);
        findings.sorted()
    }

    /// Whether something is read under this name, or below it.
    pub fn names(&self, path: &RelPath) -> bool {
        let mut findings = Findings::default();
        self.judge_path(path, &EntryState::Absent, &mut findings);
        !findings.0.is_empty() || !self.leading.entry(&folded_path(path.as_bytes())).is_empty()
    }

    fn judge_path(&self, path: &RelPath, state: &EntryState, findings: &mut Findings) {
        for name in path.components().filter(|name| *name != b".git" && is_dot_git(name)) {
            let name = skep_types::escape::visible(name);
            findings.add(Risk::Block, format!("some systems read the name `{name}` as `.git`"));
        }
        let folded = folded_path(path.as_bytes());
        let mut matched = self.patterns.entry(&folded);
        for parent in parents(&folded) {
            let subtree = |index: &usize| {
                self.entries.get(*index).is_some_and(|entry| entry.pattern.ends_with("/**"))
            };
            matched.extend(self.patterns.entry(parent).into_iter().filter(subtree));
        }
        matched.sort_unstable();
        matched.dedup();
        for entry in matched.iter().filter_map(|index| self.entries.get(*index)) {
            findings.add(entry.class, entry.reason);
        }
        if matches!(state, EntryState::Symlink { .. }) {
            self.judge_leading_link(&folded, findings);
        }
    }

    /// A link called `.github` decides what `.github/workflows/ci.yml` is.
    fn judge_leading_link(&self, folded: &[u8], findings: &mut Findings) {
        for index in self.leading.entry(folded) {
            let entry = self.leading_entry.get(index).and_then(|index| self.entries.get(*index));
            if let Some(entry) = entry {
                let reason = format!("a link that leads to `{}`: {}", entry.pattern, entry.reason);
                findings.add(entry.class, reason);
            }
        }
    }
}

/// Links, permission bits and special files.
fn judge_state(change: &Change, findings: &mut Findings) {
    match &change.new {
        EntryState::Absent => {}
        EntryState::Special { .. } => {
            findings.add(Risk::Ask, format!("a {}: never applied", change.new.noun()));
        }
        EntryState::Symlink { target } => judge_link(&change.path, target.as_bytes(), findings),
        EntryState::File { mode, .. } => judge_file_mode(*mode, change.old.mode(), findings),
        EntryState::Dir { mode } => {
            let added = mode & !change.old.mode().unwrap_or(0);
            if added & 0o6000 != 0 {
                findings.add(Risk::Ask, "gains a set-user-id or set-group-id bit");
            }
            if added & 0o002 != 0 {
                findings.add(Risk::Note, "becomes writable for every user");
            }
        }
    }
}

fn judge_file_mode(mode: u32, old: Option<u32>, findings: &mut Findings) {
    if mode & 0o6000 != 0 {
        findings.add(Risk::Ask, "has a set-user-id or set-group-id bit: runs as another user");
    }
    let added = mode & !old.unwrap_or(0);
    if added & 0o111 != 0 && old.unwrap_or(0) & 0o111 == 0 {
        findings.add(Risk::Note, "becomes executable");
    }
    if added & 0o002 != 0 {
        findings.add(Risk::Note, "becomes writable for every user");
    }
}

fn judge_link(link: &RelPath, target: &[u8], findings: &mut Findings) {
    let shown = skep_types::escape::visible(target);
    match link_target(link, target) {
        LinkTarget::Inside(_) => {}
        LinkTarget::Absolute => {
            findings.add(Risk::Ask, format!("a link to the absolute path `{shown}`"));
        }
        LinkTarget::System => {
            findings.add(Risk::Ask, format!("a link into the system's own tree: `{shown}`"));
        }
        LinkTarget::Escapes => {
            findings.add(Risk::Ask, format!("a link that leaves the project: `{shown}`"));
        }
        LinkTarget::IntoGit(_) => {
            findings.add(Risk::Ask, format!("a link into a repository's own files: `{shown}`"));
        }
        LinkTarget::Nowhere => findings.add(Risk::Ask, "a link without a usable target"),
    }
    if has_deceptive(target) {
        findings.add(Risk::Note, LINK_DECEIVES);
    }
}

/// Characters that make a name or a text look like another one.
fn judge_characters(change: &Change, facts: &ChangeFacts<'_>, findings: &mut Findings) {
    let name = change.path.as_bytes();
    if has_deceptive(name) {
        findings.add(Risk::Note, NAME_DECEIVES);
    }
    if name.iter().any(u8::is_ascii_control) {
        findings.add(Risk::Note, NAME_CONTROLS);
    }
    if std::str::from_utf8(name).is_err() {
        findings.add(Risk::Note, NAME_UNREADABLE);
    }
    let Some(text) = facts.text.filter(|_| !change.new.is_absent()) else { return };
    if has_deceptive(text) {
        findings.add(Risk::Note, TEXT_DECEIVES);
    }
    if text.contains(&0x1b) {
        findings.add(Risk::Note, TEXT_ESCAPES);
    }
}

#[derive(Default)]
struct Findings(Vec<(Risk, String)>);

impl Findings {
    fn add(&mut self, risk: Risk, reason: impl Into<String>) {
        let finding = (risk, reason.into());
        if !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    fn sorted(mut self) -> (Risk, Vec<String>) {
        self.0.sort_by_key(|(risk, _)| std::cmp::Reverse(*risk));
        let highest = self.0.first().map_or(Risk::None, |(risk, _)| *risk);
        let mut reasons: Vec<String> = self.0.into_iter().map(|(_, reason)| reason).collect();
        // There may be a million changes with one reason each.
        reasons.shrink_to_fit();
        (highest, reasons)
    }
}

#[cfg(test)]
#[path = "risk_tests.rs"]
mod tests;
