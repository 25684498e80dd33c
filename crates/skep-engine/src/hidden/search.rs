//! Finding the files to hide, everywhere in the project, at a cost that follows what changed in it.
//!
//! A small project is simply gone through. What a larger one held is remembered in the state
//! directory ([`skep_workspace::remembered`]), so that a later search lists only directories whose
//! change time has moved. The memory is of one project, one caller and one set of rules.

use skep_policy::{HideRules, SearchPlan};
use skep_types::{ContentHash, RelPath};
use skep_workspace::remembered::{self, Content, Memory};
use skep_workspace::tree::TreeRoot;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Which search it was: what another one remembers is of no use.
const SEARCH: u32 = 2;

/// A project of no more entries is gone through without a memory.
const FEW: usize = 500;

/// What a search found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Paths to hide, sorted.
    pub(crate) hidden: Vec<RelPath>,
    /// What it saw.
    pub(crate) searched: Searched,
}

/// Whether the search for files to hide saw everything it meant to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Searched {
    Whole,
    /// Some directories can be entered by the inside, and not be listed.
    Except {
        directory: RelPath,
        others: usize,
    },
}

/// Why what the caller hides cannot be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SearchError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a glob to hide may match in `{directory}`, which cannot be listed: {error}")]
    Unlisted { directory: RelPath, error: io::Error },
}

/// Looks for files to hide. What it saw is kept in `memories` for the next time.
pub(crate) fn search(
    project: &TreeRoot,
    rules: &HideRules,
    memories: &Path,
) -> Result<Found, SearchError> {
    let plan = rules.search_plan();
    let mut judge = Judge { project, rules, plan: &plan, unlisted: Vec::new() };
    let mut hidden = exact(project, rules, &plan)?;
    let recalled = judge.recall(memories)?;
    // What is remembered was too large to be gone through.
    let few = if recalled.memory.is_empty() { judge.few()? } else { None };
    match few {
        Some(found) => hidden.extend(found),
        None => {
            judge.unlisted.clear();
            hidden.extend(judge.many(&recalled)?);
        }
    }
    hidden.extend(linked(project, rules, &hidden));
    let hidden = topmost(hidden);
    let others = judge.unlisted.len().saturating_sub(1);
    let searched = match judge.unlisted.into_iter().min() {
        None => Searched::Whole,
        Some(directory) => Searched::Except { directory, others },
    };
    Ok(Found { hidden, searched })
}

/// Where hidden links lead: `.aws`, say, where somebody keeps such directories together and links to
/// them, or `.env`. Absolute links and links over other links are followed to their end; only what
/// lies in the project can be hidden. What is to be seen by its own name (`.env` may lead to
/// `.env.example`) stays to be seen.
fn linked(project: &TreeRoot, rules: &HideRules, hidden: &[RelPath]) -> Vec<RelPath> {
    // The way by which the kernel names what is pinned.
    let way = PathBuf::from(format!("/proc/self/fd/{}", project.fd().as_raw_fd()));
    let Ok(root) = way.canonicalize() else { return Vec::new() };
    let mut found = Vec::new();
    for path in hidden {
        // Anything but a link has no target.
        if project.read_link(path).is_err() {
            continue;
        }
        let Ok(place) = way.join(path.as_path()).canonicalize() else { continue };
        let Ok(below) = place.strip_prefix(&root) else { continue };
        let Ok(target) = RelPath::parse(below.as_os_str().as_bytes()) else { continue };
        let Ok(Some(stat)) = project.stat(&target) else { continue };
        let directory = is_directory(&stat);
        // A link of a directory's name hides a directory, and any other a file.
        let fits = rules.hides(path, directory).is_some() && !rules.is_shown(&target, directory);
        if fits && !target.is_root() && !path.starts_with(&target) {
            found.push(target);
        }
    }
    found
}

/// Sorted, and without what lies below another one: that is hidden with it.
pub(crate) fn topmost(mut paths: Vec<RelPath>) -> Vec<RelPath> {
    paths.sort();
    paths.dedup();
    let all: BTreeSet<RelPath> = paths.iter().cloned().collect();
    paths.retain(|path| !path.ancestors().any(|above| all.contains(&above)));
    paths
}

fn is_directory(stat: &rustix::fs::Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
}

/// The paths that the caller spelled out, of which one look each is enough. One that is not there is
/// hidden too, where its directory is: it may appear while the sandbox runs.
fn exact(project: &TreeRoot, rules: &HideRules, plan: &SearchPlan) -> io::Result<Vec<RelPath>> {
    let mut hidden = Vec::new();
    for path in &plan.exact {
        let hides = |directory| rules.hides(path, directory).is_some();
        let hide = match project.stat(path)? {
            Some(stat) => hides(is_directory(&stat)),
            None => {
                let above = project.stat(&path.parent().unwrap_or_default())?;
                above.is_some_and(|stat| is_directory(&stat)) && hides(false)
            }
        };
        if hide {
            hidden.push(path.clone());
        }
    }
    Ok(hidden)
}

/// What an earlier search has left, and where this one leaves what it saw.
struct Recalled {
    key: Vec<u8>,
    file: PathBuf,
    /// Whether times of this project's directories can be relied on.
    believed: bool,
    memory: Memory,
}

struct Judge<'a> {
    project: &'a TreeRoot,
    rules: &'a HideRules,
    plan: &'a SearchPlan,
    /// Directories that the inside may enter and we could not list.
    unlisted: Vec<RelPath>,
}

impl Judge<'_> {
    /// All of a small project; `None` if it is not small.
    fn few(&mut self) -> Result<Option<Vec<RelPath>>, SearchError> {
        let mut hidden = Vec::new();
        let mut left = FEW;
        let mut directories = vec![RelPath::root()];
        while let Some(directory) = directories.pop() {
            let entries = match self.project.list_some(&directory, left) {
                Ok(Some(entries)) => entries,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.could_not_list(&directory, error)?;
                    continue;
                }
            };
            left -= entries.len();
            let content = self.content(&directory, entries);
            hidden.extend(content.hits.iter().filter_map(|name| directory.join(name).ok()));
            directories.extend(content.enter.iter().filter_map(|name| directory.join(name).ok()));
        }
        Ok(Some(hidden))
    }

    fn recall(&self, memories: &Path) -> io::Result<Recalled> {
        let key = self.key()?;
        let file = memories.join(ContentHash::of(&key).to_string());
        let believed = remembered::can_be_remembered(self.project);
        let memory = if believed { Memory::load(&file, &key) } else { Memory::default() };
        Ok(Recalled { key, file, believed, memory })
    }

    fn many(&mut self, recalled: &Recalled) -> Result<Vec<RelPath>, SearchError> {
        let Recalled { key, file, believed, memory } = recalled;
        let project = self.project;
        let looked = remembered::look(project, memory, &mut |directory| self.list(directory))?;
        if *believed {
            // Without it the next search only takes longer.
            let _ = looked.keep(file, key);
        }
        Ok(looked.hits)
    }

    /// What the memory is of. What may be listed depends on who asks.
    fn key(&self) -> io::Result<Vec<u8>> {
        let (device, inode) = self.project.identity()?;
        let user = rustix::process::geteuid().as_raw();
        Ok(format!("{SEARCH} {device} {inode} {user} {}", self.rules.text()).into_bytes())
    }

    fn list(&mut self, directory: &RelPath) -> Result<Content, SearchError> {
        match self.project.list(directory) {
            Ok(entries) => Ok(self.content(directory, entries)),
            Err(error) => {
                self.could_not_list(directory, error)?;
                Ok(Content::default())
            }
        }
    }

    fn content(&self, directory: &RelPath, entries: skep_workspace::tree::Names) -> Content {
        let mut content = Content { certain: true, ..Content::default() };
        let counts = self.plan.counts_in(directory);
        let hides = if counts { HideRules::hides } else { HideRules::hides_as_asked };
        for (name, kind) in entries {
            // Most are files of no interest: of those not even the path is put together.
            let could = |directory| self.rules.could_hide(&name, directory);
            let interesting = kind.is_dir() || could(false) || (kind.is_symlink() && could(true));
            if !interesting {
                continue;
            }
            let Ok(path) = directory.join(&name) else { continue };
            // A link stands for whatever it leads to.
            let hidden = |directory| hides(self.rules, &path, directory).is_some();
            if hidden(kind.is_dir()) || (kind.is_symlink() && hidden(true)) {
                content.hits.push(name);
            } else if kind.is_dir() && (self.plan.whole || !self.plan.skips(&path)) {
                content.enter.push(name);
            }
        }
        content
    }

    fn could_not_list(&mut self, directory: &RelPath, error: io::Error) -> Result<(), SearchError> {
        if !could_be_read(self.project, directory, &error) {
            return Ok(());
        }
        if self.plan.whole {
            return Err(SearchError::Unlisted { directory: directory.clone(), error });
        }
        self.unlisted.push(directory.clone());
        Ok(())
    }
}

/// Whether the inside could read in a directory that could not be listed: what the caller may
/// neither list nor enter is closed to the inside too, and what is gone holds nothing. A name in a
/// directory that may be entered can be guessed. The view does not cross mounts.
fn could_be_read(project: &TreeRoot, directory: &RelPath, error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, NotADirectory, NotFound, PermissionDenied};
    match error.kind() {
        NotFound | NotADirectory | CrossesDevices => false,
        PermissionDenied => directory.join(b"x").is_ok_and(|name| project.stat(&name).is_ok()),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn make(project: &Path, files: &[&str]) {
        for file in files {
            let path = project.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
    }

    fn hidden(project: &Path, memories: &Path, hide: &[&str]) -> Vec<String> {
        let root = TreeRoot::open(project).unwrap();
        let found = search(&root, &HideRules::new(hide, &[]).unwrap(), memories).unwrap();
        assert_eq!(found.searched, Searched::Whole);
        found.hidden.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_small_and_a_large_project_are_searched_alike() {
        let (project, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let memories = state.path().join("searched");
        let deep = "1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/.env";
        make(project.path(), &[deep, "a/key.pem", "dist/.env", "node_modules/x/.env"]);
        make(project.path(), &["node_modules/x/deep.sql", "a/plain"]);
        let expected = [deep, "a/key.pem", "dist/.env"];
        assert_eq!(hidden(project.path(), &memories, &[]), expected);
        let asked = [deep, "a/key.pem", "dist/.env", "node_modules/x/deep.sql"];
        assert_eq!(hidden(project.path(), &memories, &["*.sql"]), asked);
        assert!(!memories.exists(), "a small project needs no memory");
        let many: Vec<String> = (0..600).map(|number| format!("z{number}/file")).collect();
        make(project.path(), &many.iter().map(String::as_str).collect::<Vec<_>>());
        for _ in 0..3 {
            assert_eq!(hidden(project.path(), &memories, &[]), expected);
            assert_eq!(hidden(project.path(), &memories, &["*.sql"]), asked);
        }
        assert_eq!(std::fs::read_dir(&memories).unwrap().count(), 2, "one for each set of rules");
        // It has become small, and is remembered as the large one it was.
        for number in 0..600 {
            std::fs::remove_dir_all(project.path().join(format!("z{number}"))).unwrap();
        }
        make(project.path(), &["a/new/.env"]);
        let expected = [deep, "a/key.pem", "a/new/.env", "dist/.env"];
        assert_eq!(hidden(project.path(), &memories, &[]), expected);
    }

    #[test]
    fn what_can_be_entered_and_not_listed_is_said_or_refused() {
        if rustix::process::geteuid().is_root() {
            return; // Root lists everything.
        }
        let (project, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        make(project.path(), &["shut/.env", "closed/.env"]);
        let mode = |name: &str, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(project.path().join(name), mode).unwrap();
        };
        mode("shut", 0o311);
        mode("closed", 0o200);
        let root = TreeRoot::open(project.path()).unwrap();
        let found =
            |hide: &[&str]| search(&root, &HideRules::new(hide, &[]).unwrap(), state.path());
        let directory = RelPath::parse(b"shut").unwrap();
        assert_eq!(found(&[]).unwrap().searched, Searched::Except { directory, others: 0 });
        assert!(matches!(found(&["*.sql"]), Err(SearchError::Unlisted { .. })));
        mode("shut", 0o755);
        mode("closed", 0o755);
    }
}
