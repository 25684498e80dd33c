//! Which directory is the project.
//!
//! The search must not be captured by a marker that somebody else planted (`/tmp/.git`) nor by a
//! home directory under version control (`~/.git`).

use crate::context::{Global, show_path};
use skep_types::{Code, Problem};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What the search looks at in one directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Holds `skep.toml` or `.git`.
    pub(crate) marked: bool,
    /// Anybody may write in it.
    pub(crate) world_writable: bool,
    /// Belongs to the caller.
    pub(crate) owned: bool,
}

/// A view of directories: the host's, or a test's.
pub(crate) trait Directories {
    /// Looks at one; `None` if it cannot be looked at.
    fn look(&self, directory: &Path) -> Option<Look>;
}

/// The host's directories, seen by one user.
pub(crate) struct Host {
    /// Whose directories count as the caller's.
    pub(crate) user: u32,
}

impl Directories for Host {
    fn look(&self, directory: &Path) -> Option<Look> {
        let metadata = std::fs::metadata(directory).ok()?;
        let holds = |name: &str| std::fs::symlink_metadata(directory.join(name)).is_ok();
        Some(Look {
            marked: holds("skep.toml") || holds(".git"),
            world_writable: metadata.mode() & 0o002 != 0,
            owned: metadata.uid() == self.user,
        })
    }
}

/// The nearest marked directory from `start` upwards, else `start`.
///
/// The search ends below the home directory and the root, and at the first directory that is
/// world-writable, not the caller's, or cannot be looked at; a marker there counts for nothing.
pub(crate) fn find(start: &Path, home: &Path, directories: &dyn Directories) -> PathBuf {
    for directory in start.ancestors() {
        if directory == home || directory.parent().is_none() {
            break;
        }
        match directories.look(directory) {
            Some(look) if look.owned && !look.world_writable => {
                if look.marked {
                    return directory.to_owned();
                }
            }
            _ => break,
        }
    }
    start.to_owned()
}

/// A project that was named, without symbolic links.
pub(crate) fn named(path: &Path) -> Result<PathBuf, Problem> {
    let found = std::fs::canonicalize(path).map_err(|error| {
        Problem::new(Code::NotFound, format!("cannot find project `{}`: {error}", show_path(path)))
    })?;
    if found.is_dir() {
        Ok(found)
    } else {
        let message = format!("project `{}` is not a directory", show_path(path));
        Err(Problem::new(Code::Usage, message))
    }
}

/// Refuses directories that must not be projects.
pub(crate) fn check(project: &Path, home: &Path, state: &Path) -> Result<(), Problem> {
    let refuse = |why: &str| {
        let message = format!("`{}` cannot be a project: {why}", show_path(project));
        let hint = "change to a directory of its own, or name one with --project DIR";
        Err(Problem::new(Code::Refused, message).hint(hint))
    };
    let state = std::fs::canonicalize(state).unwrap_or_else(|_| state.to_owned());
    if project.parent().is_none() {
        refuse("it is the root of the filesystem")
    } else if project == home {
        refuse("it is your home directory")
    } else if project.starts_with(&state) {
        refuse("it is skep's state directory, or in it")
    } else if state.starts_with(project) {
        refuse("skep's state directory is in it").map_err(|problem: Problem| {
            problem.hint("set SKEP_HOME (or --home) to a directory outside of it")
        })
    } else {
        Ok(())
    }
}

/// Refuses to make a state directory inside a project: the one of the current directory, or a marked
/// one that its own place is in. Asked only where there is none yet.
pub(crate) fn check_new_state(global: &Global) -> io::Result<()> {
    let there = skep_engine::existing_part(&global.state_dir);
    let rest = global.state_dir.strip_prefix(there).unwrap_or(Path::new(""));
    let there = std::fs::canonicalize(there)?;
    let places = Places { here: &global.directory, home: &global.home, there: &there };
    match places.project_around(&there.join(rest), &Host { user: global.user }) {
        Some(project) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it would lie in the project `{}`", show_path(&project)),
        )),
        None => Ok(()),
    }
}

/// Where a project is looked for.
struct Places<'a> {
    here: &'a Path,
    home: &'a Path,
    /// What exists of the state directory's path.
    there: &'a Path,
}

impl Places<'_> {
    /// The project that `state` would lie in. What contains the home is none.
    fn project_around(&self, state: &Path, directories: &dyn Directories) -> Option<PathBuf> {
        let marked = |path: &PathBuf| directories.look(path).is_some_and(|look| look.marked);
        let of_state = Some(find(self.there, self.home, directories)).filter(marked);
        let candidates = [Some(find(self.here, self.home, directories)), of_state];
        candidates
            .into_iter()
            .flatten()
            .find(|project| state.starts_with(project) && !self.home.starts_with(project))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    struct Fake(BTreeMap<PathBuf, Look>);

    impl Directories for Fake {
        fn look(&self, directory: &Path) -> Option<Look> {
            self.0.get(directory).copied()
        }
    }

    const MINE: Look = Look { marked: false, world_writable: false, owned: true };
    const MARKED: Look = Look { marked: true, ..MINE };

    fn fake(entries: &[(&str, Look)]) -> Fake {
        Fake(entries.iter().map(|(path, look)| (PathBuf::from(path), *look)).collect())
    }

    fn find_in(start: &str, entries: &[(&str, Look)]) -> String {
        find(Path::new(start), Path::new("/home/u"), &fake(entries)).display().to_string()
    }

    #[test]
    fn the_nearest_marker_wins_else_here() {
        let tree = [
            ("/home/u/p/src/deep", MINE),
            ("/home/u/p/src", MINE),
            ("/home/u/p", MARKED),
            ("/home/u", MARKED),
        ];
        assert_eq!(find_in("/home/u/p/src/deep", &tree), "/home/u/p");
        assert_eq!(find_in("/home/u/other", &[("/home/u/other", MINE)]), "/home/u/other");
    }

    #[test]
    fn a_dotfiles_home_does_not_capture() {
        let tree = [("/home/u/x", MINE), ("/home/u", MARKED), ("/home", MARKED)];
        assert_eq!(find_in("/home/u/x", &tree), "/home/u/x");
    }

    #[test]
    fn a_planted_marker_does_not_capture() {
        let shared = Look { world_writable: true, ..MARKED };
        let foreign = Look { owned: false, ..MARKED };
        assert_eq!(find_in("/tmp/x", &[("/tmp/x", MINE), ("/tmp", shared)]), "/tmp/x");
        assert_eq!(find_in("/srv/x", &[("/srv/x", MINE), ("/srv", foreign)]), "/srv/x");
        // Nothing above such a directory is looked at either.
        let tree = [("/a/b/c", MINE), ("/a/b", shared), ("/a", MARKED)];
        assert_eq!(find_in("/a/b/c", &tree), "/a/b/c");
    }

    #[test]
    fn unsafe_projects_are_refused_with_a_hint() {
        let check = |project: &str| {
            check(Path::new(project), Path::new("/home/u"), Path::new("/home/u/state/skep"))
        };
        for bad in ["/", "/home/u", "/home/u/state/skep", "/home/u/state/skep/x", "/home/u/state"] {
            let problem = check(bad).unwrap_err();
            assert_eq!(problem.code, Code::Refused, "{bad}");
            assert!(problem.hint.is_some());
        }
        assert!(check("/home/u/p").is_ok());
        assert!(check("/home/u/state/skep2").is_ok());
    }

    #[test]
    fn a_new_state_directory_is_made_in_no_project() {
        let tree = fake(&[
            ("/home/u/p/src", MINE),
            ("/home/u/p", MARKED),
            ("/home/u/plain", MINE),
            ("/home/u", MARKED),
            ("/srv", MINE),
        ]);
        let project = |here: &str, there: &str, state: &str| {
            let [here, there] = [here, there].map(Path::new);
            let places = Places { here, home: Path::new("/home/u"), there };
            let found = places.project_around(Path::new(state), &tree);
            found.map(|path| path.display().to_string())
        };
        let p = Some("/home/u/p".to_owned());
        assert_eq!(project("/home/u/p/src", "/home/u/p", "/home/u/p/x"), p);
        assert_eq!(project("/srv", "/home/u/p/src", "/home/u/p/src/x/y"), p);
        let plain = Some("/home/u/plain".to_owned());
        assert_eq!(project("/home/u/plain", "/home/u/plain", "/home/u/plain/x"), plain);
        assert_eq!(project("/srv", "/home/u/plain", "/home/u/plain/x"), None);
        let usual = "/home/u/.local/state/skep";
        for here in ["/home/u", "/home", "/", "/home/u/p", "/srv"] {
            assert_eq!(project(here, "/home/u", usual), None, "{here}");
        }
    }

    #[test]
    fn the_host_is_looked_at_as_it_is() {
        let scratch = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(scratch.path()).unwrap();
        let user = rustix::process::geteuid().as_raw();
        std::fs::create_dir_all(root.join("p/sub")).unwrap();
        std::fs::write(root.join("p/skep.toml"), "").unwrap();
        let found = find(&root.join("p/sub"), Path::new("/nowhere"), &Host { user });
        assert_eq!(found, root.join("p"));
        let strange = find(&root.join("p/sub"), Path::new("/nowhere"), &Host { user: user + 1 });
        assert_eq!(strange, root.join("p/sub"));
    }

    fn any_look() -> impl Strategy<Value = Option<Look>> {
        let look = (any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(marked, world_writable, owned)| Look { marked, world_writable, owned });
        proptest::option::weighted(0.9, look)
    }

    proptest! {
        /// Whatever the tree looks like: the answer is the start or a directory above it, a taken
        /// one is marked, ours, private and below the home, and none below it was a stop.
        #[test]
        fn what_is_taken_is_always_safe(
            looks in proptest::collection::vec(any_look(), 1..7),
            home_at in 0usize..8,
        ) {
            let mut path = PathBuf::from("/");
            let mut entries = BTreeMap::new();
            let mut chain = Vec::new();
            for (depth, look) in looks.iter().enumerate() {
                path.push(format!("d{depth}"));
                chain.push(path.clone());
                if let Some(look) = look {
                    entries.insert(path.clone(), *look);
                }
            }
            let home = chain.get(home_at).cloned().unwrap_or_else(|| "/elsewhere".into());
            let found = find(&path, &home, &Fake(entries.clone()));
            prop_assert!(path.starts_with(&found));
            if found != path {
                for step in path.ancestors().take_while(|step| step.starts_with(&found)) {
                    let look = entries.get(step).copied();
                    prop_assert!(step != home);
                    prop_assert!(look.is_some_and(|look| look.owned && !look.world_writable));
                    prop_assert_eq!(look.is_some_and(|look| look.marked), step == found);
                }
            }
        }
    }
}
