//! Repositories under any name.
//!
//! A directory that holds `HEAD`, `objects` and `refs` is a repository to git, whatever it is
//! called: `cd` into it and git reads its `config`, which can name programs to run. The three may
//! come from different hands (two were in the project, the agent adds the third), so the question
//! is put to the final state.

use crate::dotgit::folded_name;
use skep_types::RelPath;
use std::collections::{BTreeMap, BTreeSet};

/// What makes a directory a repository.
const SIGNS: [&[u8]; 3] = [b"head", b"objects", b"refs"];

/// What git reads in a repository.
const GIT_ENTRIES: [&[u8]; 14] = [
    b"head",
    b"objects",
    b"refs",
    b"config",
    b"config.worktree",
    b"commondir",
    b"hooks",
    b"index",
    b"info",
    b"logs",
    b"modules",
    b"packed-refs",
    b"reftable",
    b"worktrees",
];

/// The directories that are repositories in the final state and that some change touches.
///
/// `changed` are the paths that exist after the change; `exists` answers for everything else in
/// the final state (project and sandbox merged) and is asked only about `HEAD`, `objects` and
/// `refs` beside a changed one.
pub fn bare_repositories<'a>(
    changed: impl IntoIterator<Item = &'a RelPath>,
    mut exists: impl FnMut(&RelPath) -> bool,
) -> BTreeSet<RelPath> {
    let mut seen: BTreeMap<RelPath, BTreeSet<usize>> = BTreeMap::new();
    for path in changed {
        let mut directory = RelPath::root();
        for name in path.components() {
            let folded = folded_name(name);
            if let Some(sign) = SIGNS.iter().position(|sign| *sign == folded.as_slice()) {
                seen.entry(directory.clone()).or_default().insert(sign);
            }
            match directory.join(name) {
                Ok(next) => directory = next,
                Err(_) => break,
            }
        }
    }
    let mut complete = |directory: &RelPath, signs: &BTreeSet<usize>| {
        ["HEAD", "objects", "refs"].iter().enumerate().all(|(sign, name)| {
            signs.contains(&sign) || directory.join(name.as_bytes()).is_ok_and(|path| exists(&path))
        })
    };
    seen.into_iter()
        .filter(|(directory, signs)| complete(directory, signs))
        .map(|(directory, _)| directory)
        .collect()
}

/// Whether git would read `path` as part of one of these repositories.
pub fn in_bare_repository(path: &RelPath, repositories: &BTreeSet<RelPath>) -> bool {
    repositories.iter().any(|repository| {
        let depth = repository.depth();
        path.starts_with(repository)
            && path
                .components()
                .nth(depth)
                .is_some_and(|name| GIT_ENTRIES.contains(&folded_name(name).as_slice()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(texts: &[&str]) -> Vec<RelPath> {
        texts.iter().map(|text| RelPath::parse(text.as_bytes()).unwrap()).collect()
    }

    #[test]
    fn three_signs_make_a_repository() {
        let all = paths(&["x/y/HEAD", "x/y/objects/info/a", "x/y/refs", "x/y/config", "x/z/HEAD"]);
        let found = bare_repositories(&all, |_| false);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), paths(&["x/y"]));
    }

    #[test]
    fn the_project_may_hold_the_other_signs() {
        let all = paths(&["v/refs/heads/main"]);
        let held = paths(&["v/HEAD", "v/objects"]);
        assert_eq!(bare_repositories(&all, |path| held.contains(path)).len(), 1);
        assert!(bare_repositories(&all, |_| false).is_empty());
    }

    #[test]
    fn only_what_git_reads_counts() {
        let repositories: BTreeSet<_> = paths(&["v"]).into_iter().collect();
        let inside = |text: &str| {
            in_bare_repository(&RelPath::parse(text.as_bytes()).unwrap(), &repositories)
        };
        assert!(inside("v/config") && inside("v/hooks/post-checkout") && inside("v/Config"));
        assert!(!inside("v/readme.md") && !inside("w/config") && !inside("v"));
    }
}
