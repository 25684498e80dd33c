//! The view as seen from outside: what stands at a path, the layers and the project taken together.

use crate::apply::Source;
use crate::error::DeriveError;
use crate::held::Kept;
use crate::markers::Markers;
use crate::spec::{Trees, WorkspaceSpec};
use crate::tree::TreeRoot;
use crate::union::{self, Seen, Union};
use skep_types::{EntryState, RelPath, WorkspaceDriver};
use std::collections::{BTreeSet, HashMap};

/// The merged view of one workspace. Nothing may write to it meanwhile.
#[derive(Debug)]
pub struct View {
    trees: Trees,
    union: Union,
    /// Names that the upper and the layers add to a directory, or take from it.
    names: HashMap<RelPath, Vec<Vec<u8>>>,
    spec: WorkspaceSpec,
}

impl View {
    /// Reads the upper and the layers, and pins the project; costs as much as was changed.
    pub fn open(spec: &WorkspaceSpec) -> Result<Self, DeriveError> {
        let trees = Trees::open(spec)?;
        let union = union::read(&trees.held(&Kept::default()).levels, Markers::of(spec.driver))?;
        let mut names: HashMap<RelPath, Vec<Vec<u8>>> = HashMap::new();
        for (path, _) in union.iter() {
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
                names.entry(parent).or_default().push(name.to_vec());
            }
        }
        Ok(Self { trees, union, names, spec: spec.clone() })
    }

    /// The tree that `path` is to be read from; `None` when the view shows nothing there.
    pub fn holder(&self, path: &RelPath) -> Result<Option<&TreeRoot>, DeriveError> {
        let tree = match self.union.get(path) {
            Some(Seen::Gone | Seen::TooDeep) => return Ok(None),
            Some(Seen::Leaf { level, .. } | Seen::Dir { level, .. }) => &self.trees.levels[level],
            None if !self.is_project_seen(path) => return Ok(None),
            None => &self.trees.project,
        };
        let found = tree.stat(path).map_err(|error| DeriveError::read("view", path, error))?;
        Ok(found.map(|_| tree))
    }

    /// What stands at `path`.
    pub fn state(&self, path: &RelPath) -> Result<EntryState, DeriveError> {
        match self.holder(path)? {
            None => Ok(EntryState::Absent),
            Some(tree) => tree.state(path).map_err(|error| DeriveError::read("view", path, error)),
        }
    }

    /// Where the bytes of the file at `path` lie.
    pub fn source(&self, path: &RelPath) -> Result<Option<Source>, DeriveError> {
        if self.holder(path)?.is_none() {
            return Ok(None);
        }
        let root = match self.union.get(path) {
            Some(Seen::Leaf { level, .. } | Seen::Dir { level, .. }) => {
                &self.trees.level_paths[level]
            }
            _ => &self.spec.project,
        };
        Ok(Some(Source::File { root: root.clone(), path: path.clone() }))
    }

    /// What the upper and the layers speak of, with the tree each entry lies in; `None` is deleted.
    pub(crate) fn spoken_of(&self) -> impl Iterator<Item = (&RelPath, Option<&TreeRoot>)> {
        self.union.iter().map(|(path, seen)| match seen {
            Seen::Gone | Seen::TooDeep => (path, None),
            Seen::Leaf { level, .. } | Seen::Dir { level, .. } => {
                (path, Some(&self.trees.levels[level]))
            }
        })
    }

    /// The upper itself.
    pub(crate) fn upper(&self) -> &TreeRoot {
        &self.trees.levels[0]
    }

    /// The names in a directory of the view, sorted by bytes.
    pub fn list(&self, directory: &RelPath) -> Result<Vec<RelPath>, DeriveError> {
        let error = |source| DeriveError::read("view", directory, source);
        let mut names: BTreeSet<Vec<u8>> =
            self.names.get(directory).into_iter().flatten().cloned().collect();
        let through = match self.union.get(directory) {
            Some(seen) => !seen.cuts(),
            None => self.is_project_seen(directory),
        };
        let below = self.trees.project.stat(directory).map_err(error)?;
        if through && below.is_some_and(|stat| crate::base::is_dir(&stat)) {
            let list = self.trees.project.list(directory).map_err(error)?;
            names.extend(list.into_iter().map(|(name, _)| name));
        }
        let mut paths = Vec::new();
        for name in names {
            let path = directory.join(&name).map_err(|e| error(std::io::Error::other(e)))?;
            if self.holder(&path)?.is_some() {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    /// Whether the project shows through at a path that the layers are silent about.
    fn is_project_seen(&self, path: &RelPath) -> bool {
        if self.spec.driver == WorkspaceDriver::Copy {
            // A copy stands for itself; only its root is no entry of it.
            return path.is_root();
        }
        let above = path.ancestors().find_map(|parent| self.union.get(&parent));
        !above.is_some_and(|seen| seen.cuts()) && !self.spec.is_hidden(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::now;
    use skep_types::Base;
    use std::fs;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn layers_cover_the_project_and_hidden_paths_are_not_there() {
        let root = tempfile::tempdir().unwrap();
        let [project, upper, memory] = ["project", "upper", "memory"].map(|n| root.path().join(n));
        for directory in [&project, &upper, &memory, &project.join("src"), &upper.join("src")] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(project.join("src/old"), "old").unwrap();
        fs::write(project.join("src/both"), "project").unwrap();
        fs::write(project.join(".env"), "secret").unwrap();
        fs::write(upper.join("src/both"), "sandbox").unwrap();
        fs::write(upper.join("new"), "new").unwrap();
        let gone = upper.join("gone");
        fs::write(project.join("gone"), "x").unwrap();
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, &gone, kind, rustix::fs::Mode::empty(), 0).unwrap();
        let (device, inode) = TreeRoot::open(&project).unwrap().identity().unwrap();
        let base = Base { instant: now().unwrap(), device, inode, commit: None };
        let view = View::open(&WorkspaceSpec {
            project,
            base,
            driver: WorkspaceDriver::OverlayUserns,
            upper,
            layers: Vec::new(),
            dependency_layers: Vec::new(),
            hidden: vec![path(".env")],
            memory,
        })
        .unwrap();
        let names = |directory: &RelPath| -> Vec<String> {
            view.list(directory).unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(&RelPath::root()), ["new", "src"]);
        assert_eq!(names(&path("src")), ["src/both", "src/old"]);
        let read = |name: &str| view.holder(&path(name)).unwrap().unwrap().read(&path(name), 99);
        assert_eq!(read("src/both").unwrap(), b"sandbox");
        assert_eq!(read("src/old").unwrap(), b"old");
        assert!(view.state(&path("gone")).unwrap().is_absent());
        assert!(view.state(&path(".env")).unwrap().is_absent());
        assert!(matches!(view.state(&RelPath::root()).unwrap(), EntryState::Dir { .. }));
    }
}
