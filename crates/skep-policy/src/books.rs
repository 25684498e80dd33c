//! What git writes for itself in `.git` when somebody adds, commits or only looks around inside:
//! objects, references, the index. It is never wanted as files (commits come back as references), so
//! it is set apart in a review, and an approval of everything leaves it out.
//!
//! Hooks, settings, attributes, alternates, modules and whatever else can make git run something are
//! never among it, unless the whole repository was made inside: then there is nothing in the project
//! that it could be added to.

use skep_types::{Change, EntryState, RelPath};

/// Files and directories below `.git` that only hold data.
///
/// Of a merge, a pick or a revert that is not finished, too. Not of a rebase: its list of what is to do
/// can hold commands (`exec`).
const DATA: [&[u8]; 18] = [
    b"AUTO_MERGE",
    b"CHERRY_PICK_HEAD",
    b"COMMIT_EDITMSG",
    b"FETCH_HEAD",
    b"HEAD",
    b"MERGE_HEAD",
    b"MERGE_MODE",
    b"MERGE_MSG",
    b"ORIG_HEAD",
    b"REBASE_HEAD",
    b"REVERT_HEAD",
    b"SQUASH_MSG",
    b"gc.log",
    b"gc.pid",
    b"index",
    b"logs",
    b"packed-refs",
    b"refs",
];

/// What `git gc`, which git starts by itself, writes in `objects/info`; never `alternates`, by which
/// git reads the objects of another repository.
const OBJECTS_INFO: [&[u8]; 3] = [b"commit-graph", b"commit-graphs", b"packs"];

/// Git's own changes among those of a change set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GitBooks {
    /// Whether the repository itself was made inside.
    pub new_repository: bool,
}

impl GitBooks {
    /// Looks at all changes of a change set.
    pub fn of<'a>(changes: impl IntoIterator<Item = &'a Change>) -> Self {
        let head = |change: &Change| {
            change.path.as_bytes() == b".git/HEAD" && change.old.is_absent() && is_plain(change)
        };
        Self { new_repository: changes.into_iter().any(head) }
    }

    /// Whether a change is git's own. One that acceptance rules refuse is never set apart.
    pub fn hold(self, change: &Change) -> bool {
        let denied = change.verdict.as_ref().is_some_and(|verdict| !verdict.allowed);
        !denied && is_plain(change) && self.have(&change.path)
    }

    /// Whether a path is where such changes are.
    pub fn have(self, path: &RelPath) -> bool {
        let mut parts = path.components();
        let (first, second, third) = (parts.next(), parts.next(), parts.next());
        let fourth = parts.next();
        let data = match second {
            _ if self.new_repository => true,
            Some(b"objects") if third == Some(b"info") => {
                fourth.is_some_and(|name| OBJECTS_INFO.contains(&name))
            }
            Some(b"objects") => true,
            Some(b"info") => third == Some(b"refs") && fourth.is_none(),
            Some(name) => DATA.contains(&name),
            None => false,
        };
        first == Some(b".git") && data
    }
}

/// Whether a change of git's own moved a reference: there may be commits that nobody has yet.
pub fn moves_reference(path: &RelPath) -> bool {
    let mut parts = path.components();
    parts.next() == Some(b".git")
        && matches!(parts.next(), Some(b"refs" | b"packed-refs" | b"HEAD"))
}

fn is_plain(change: &Change) -> bool {
    let plain = |state: &EntryState| {
        matches!(state, EntryState::File { .. } | EntryState::Dir { .. } | EntryState::Absent)
    };
    plain(&change.old) && plain(&change.new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_set_apart_and_what_can_run_is_not() {
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let (known, new) = (GitBooks::default(), GitBooks { new_repository: true });
        for data in [
            ".git/index",
            ".git/objects/ab/cd",
            ".git/refs/heads/x",
            ".git/logs/HEAD",
            ".git/MERGE_MSG",
            ".git/info/refs",
            ".git/objects/info/packs",
            ".git/objects/info/commit-graphs/graph-1",
        ] {
            assert!(known.have(&path(data)) && new.have(&path(data)), "{data}");
        }
        for other in [
            ".git/config",
            ".git/hooks/pre-commit",
            ".git/info/attributes",
            ".git/info/refs/x",
            ".git/objects/info",
            ".git/objects/info/alternates",
            ".git/objects/info/http-alternates",
            ".git/rebase-merge/git-rebase-todo",
            ".git/modules/x/HEAD",
            ".git",
        ] {
            assert!(!known.have(&path(other)), "{other}");
            assert!(new.have(&path(other)), "{other}");
        }
        for outside in ["a", "sub/.git/index", ".github/x", ".GIT/index"] {
            assert!(!known.have(&path(outside)) && !new.have(&path(outside)), "{outside}");
        }
        assert!(moves_reference(&path(".git/refs/stash")) && !moves_reference(&path(".git/index")));
    }
}
