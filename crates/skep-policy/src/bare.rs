//! Repositories under any name.
//!
//! A directory that holds `HEAD`, `objects` and `refs` is a repository to git, whatever it is
//! called: `cd` into it and git reads its `config`, which can name programs to run. Where `HEAD` has
//! a `commondir` beside it, the other two, and the settings with them, are in the directory that it
//! names. All of this may come from different hands (the project has the repository, the agent changes
//! its settings; or has two of the three, and the agent adds the third), so the question is put to the
//! final state.

use crate::dotgit::folded_name;
use skep_types::RelPath;
use std::collections::{BTreeMap, BTreeSet};

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

/// The directories that are repositories, or one half of one, in the final state, and in which some
/// change touches what git reads.
///
/// `changed` are the paths that exist after the change; `exists` answers for everything in the final
/// state (project and sandbox merged), and is asked only about a handful of names beside a changed one.
pub fn bare_repositories<'a>(
    changed: impl IntoIterator<Item = &'a RelPath>,
    mut exists: impl FnMut(&RelPath) -> bool,
) -> BTreeSet<RelPath> {
    let mut touched: BTreeMap<RelPath, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for path in changed {
        let mut directory = RelPath::root();
        for name in path.components() {
            let folded = folded_name(name);
            if GIT_ENTRIES.contains(&folded.as_slice()) {
                touched.entry(directory.clone()).or_default().insert(folded);
            }
            match directory.join(name) {
                Ok(next) => directory = next,
                Err(_) => break,
            }
        }
    }
    touched.retain(|directory, changed| {
        let mut has = |name: &str| {
            changed.contains(name.to_ascii_lowercase().as_bytes())
                || directory.join(name.as_bytes()).is_ok_and(|path| exists(&path))
        };
        // With `HEAD` the first is a whole one, without it the half that another's `commondir` names.
        (has("objects") && has("refs")) || (has("commondir") && has("HEAD"))
    });
    touched.into_keys().collect()
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
    fn a_repository_of_the_projects_own_is_one() {
        let held = paths(&["v/HEAD", "v/objects", "v/refs"]);
        for changed in ["v/config", "v/hooks/post-checkout", "v/config.worktree"] {
            let found = bare_repositories(&paths(&[changed]), |path| held.contains(path));
            assert_eq!(found.len(), 1, "{changed}");
        }
        assert!(bare_repositories(&paths(&["v/readme"]), |path| held.contains(path)).is_empty());
        assert!(bare_repositories(&paths(&["w/config"]), |path| held.contains(path)).is_empty());
    }

    #[test]
    fn a_repository_in_two_halves_is_two() {
        let all = paths(&[
            "w/HEAD",
            "w/commondir",
            "w/config.worktree",
            "store/config",
            "store/objects/k",
            "store/refs/k",
        ]);
        let found = bare_repositories(&all, |_| false);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), paths(&["store", "w"]));
        // The half that was there before.
        let held = paths(&["w/HEAD", "w/commondir", "store/objects", "store/refs"]);
        let found = bare_repositories(&paths(&["store/config"]), |path| held.contains(path));
        assert_eq!(found.len(), 1);
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
