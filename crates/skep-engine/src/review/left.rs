//! What is left in a sandbox that nobody has decided on, and how it is said.
//!
//! Ignored paths and git's own changes are set apart in every review. As long as nothing was decided
//! they count like everything else; once the rest was approved they hold nobody up. Commits are work:
//! they wait until they were pulled.

use crate::lifecycle::decided;
use serde_json::json;
use skep_policy::{GitBooks, moves_reference};
use skep_types::{Change, Code, HunkLine, Problem, Sandbox, SandboxState};

/// `1 change`, `2 changes`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The label that says which references were pulled last.
pub(crate) const PULLED: &str = "skep.pulled";

/// Whether there are commits inside that the project does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commits {
    /// No reference was moved.
    None,
    /// They were pulled as they are now.
    Pulled,
    /// Nobody has them yet.
    Waiting,
}

/// Changes by what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// Those to be reviewed.
    pub(crate) changes: u64,
    /// Ignored paths.
    pub(crate) ignored: u64,
    /// Git's own.
    pub(crate) git: u64,
    /// Commits among those.
    pub(crate) commits: Commits,
    /// Whether a pull brings all of them; a stash, say, it does not.
    brought: bool,
    approved: bool,
}

impl Left {
    pub(crate) fn of(sandbox: &Sandbox, changes: &[Change]) -> Self {
        let books = GitBooks::of(changes);
        let (mut plain, mut ignored, mut git) = (0, 0, 0);
        for change in changes {
            match () {
                () if books.hold(change) => git += 1,
                () if change.ignored => ignored += 1,
                () => plain += 1,
            }
        }
        let commits = match (references(changes), sandbox.labels.get(PULLED)) {
            (None, None) => Commits::None,
            // Pulled and merged: the project's references stand where those inside do.
            (None, Some(_)) => Commits::Pulled,
            (Some(now), Some(pulled)) if now == *pulled => Commits::Pulled,
            (Some(_), _) => Commits::Waiting,
        };
        let approved = decided(sandbox) == Some(SandboxState::Approved);
        Self { changes: plain, ignored, git, commits, brought: all_pulled(changes), approved }
    }

    /// How many nobody has decided on.
    pub(crate) fn unreviewed(&self) -> u64 {
        let ignored = if self.approved { 0 } else { self.ignored };
        self.changes + ignored + self.unreviewed_git()
    }

    fn unreviewed_git(&self) -> u64 {
        match self.commits {
            Commits::Pulled => 0,
            Commits::None if self.approved => 0,
            Commits::None | Commits::Waiting => self.git,
        }
    }

    /// What they are, for people.
    pub(crate) fn describe(&self) -> String {
        let ignored = if self.approved { 0 } else { self.ignored };
        let git = self.unreviewed_git();
        match self {
            Self { changes: 0, commits: Commits::Waiting, brought: false, .. } => {
                "a stash or other references that a pull does not bring".to_owned()
            }
            Self { changes: 0, commits: Commits::Waiting, .. } => {
                "commits that were not pulled".to_owned()
            }
            Self { changes: 0, .. } => {
                let git =
                    (git > 0).then(|| counted(git, "change inside .git", "changes inside .git"));
                let ignored = apart(0, ignored);
                let only: Vec<String> = git.into_iter().chain(ignored).collect();
                format!("only {} left", only.join(" and "))
            }
            Self { changes, .. } => {
                let changes = counted(*changes, "unreviewed change", "unreviewed changes");
                [vec![changes], apart(git, ignored)].concat().join(", ")
            }
        }
    }

    /// Everything there is, decided on or not.
    pub(crate) fn all(&self) -> String {
        let changes = counted(self.changes, "change", "changes");
        [vec![changes], apart(self.git, self.ignored)].concat().join(", ")
    }

    /// Why a sandbox is not removed.
    pub(crate) fn refusal(&self, sandbox: &Sandbox) -> Problem {
        let name = &sandbox.name;
        let message = format!("sandbox `{name}` has {}", self.describe());
        let ways = match self {
            Self { changes: 0, commits: Commits::Waiting, brought: false, .. } => format!(
                "make a branch of a stash with `skep exec {name} -- git stash branch BRANCH`, commit \
                 it there, and `skep pull {name}`"
            ),
            Self { changes: 0, commits: Commits::Waiting, .. } => {
                format!("`skep pull {name}` brings them")
            }
            Self { changes: 0, ignored: 1.., .. } => format!(
                "see `skep diff --ignored {name}`, take over with `skep approve --ignored {name}`, \
                 leave them with `skep approve {name}`"
            ),
            Self { changes: 0, .. } => {
                format!("see `skep diff {name} .git`, leave them with `skep approve {name}`")
            }
            _ => format!("see `skep diff {name}`, take over with `skep approve {name}`"),
        };
        let drop = format!("drop them with `skep rm --discard {name}`");
        // What was built is built again: most who meet this want it gone.
        let hint = match self {
            Self { changes: 0, git: 0, .. } => format!("{drop}, or {ways}"),
            _ => format!("{ways}, or {drop}"),
        };
        Problem::new(Code::UnreviewedChanges, message)
            .hint(hint)
            .details(json!({ "changes": self.changes, "ignored": self.ignored, "git": self.git }))
    }
}

/// What is set apart, as `skep diff` counts it.
fn apart(git: u64, ignored: u64) -> Vec<String> {
    let git = (git > 0).then(|| format!("{git} inside .git"));
    let ignored = (ignored > 0).then(|| counted(ignored, "ignored path", "ignored paths"));
    git.into_iter().chain(ignored).collect()
}

/// Which references were moved and where they stand, as one text; `None` if none was.
///
/// A stash and other references that a pull does not bring stay in it as they are, so that a pull
/// does not count for them: the text then never equals the one that was kept.
pub(crate) fn references(changes: &[Change]) -> Option<String> {
    let books = GitBooks::of(changes);
    let moved = |change: &&Change| books.hold(change) && moves_reference(&change.path);
    let mut hash = blake3::Hasher::new();
    let mut found = false;
    for change in changes.iter().filter(moved) {
        found = true;
        hash.update(change.path.as_bytes());
        hash.update(b"\0");
        hash.update(format!("{:?}", change.new).as_bytes());
        hash.update(b"\0");
    }
    found.then(|| hash.finalize().to_hex().to_string())
}

/// Whether a pull brings everything that was moved.
pub(crate) fn all_pulled(changes: &[Change]) -> bool {
    let brought = |path: &[u8]| {
        [b".git/refs/heads".as_slice(), b".git/refs/tags", b".git/packed-refs", b".git/HEAD"]
            .iter()
            .any(|start| path.starts_with(start))
            || path == b".git/refs"
    };
    changes.iter().filter(|change| moves_reference(&change.path)).all(|change| {
        brought(change.path.as_bytes())
            && (!change.path.as_bytes().starts_with(b".git/packed-refs")
                || packs_only_brought(change))
    })
}

/// Whether all that was packed is brought by a pull. A stash can be packed, too.
fn packs_only_brought(change: &Change) -> bool {
    let lines = || change.hunks.iter().flat_map(|hunk| &hunk.lines);
    let brought = |line: &HunkLine| match line {
        HunkLine::Added(line) => {
            let name = line.as_bytes().splitn(2, |byte| *byte == b' ').nth(1).unwrap_or_default();
            // A comment, or what a tag leads to.
            line.as_bytes().starts_with(b"#")
                || line.as_bytes().starts_with(b"^")
                || name.starts_with(b"refs/heads/")
                || name.starts_with(b"refs/tags/")
        }
        HunkLine::Context(_) | HunkLine::Removed(_) => true,
    };
    // What cannot be looked at is not brought.
    change.new.is_absent() || (lines().next().is_some() && lines().all(brought))
}
