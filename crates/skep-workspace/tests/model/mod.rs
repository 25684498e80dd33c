//! A model of a workspace: a plain tree as the oracle, and an upper written the way overlayfs (or
//! fuse-overlayfs, or a copy) writes it.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

pub mod apply;
pub mod view;

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use skep_types::{
    Base, ByteString, ContentHash, EntryState, RelPath, SpecialKind, WorkspaceDriver,
};
use skep_workspace::tree::TreeRoot;
use skep_workspace::{WorkspaceSpec, now};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What stands at a path of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    File(Vec<u8>, u32),
    Dir(u32),
    Link(Vec<u8>),
    Fifo,
}

impl Node {
    pub fn state(&self) -> EntryState {
        match self {
            Self::File(bytes, mode) => EntryState::File {
                hash: ContentHash::of(bytes),
                size: bytes.len() as u64,
                mode: *mode,
            },
            Self::Dir(mode) => EntryState::Dir { mode: *mode },
            Self::Link(target) => {
                EntryState::Symlink { target: ByteString::from(target.as_slice()) }
            }
            Self::Fifo => EntryState::Special { what: SpecialKind::Fifo },
        }
    }
}

/// A plain tree.
pub type Tree = BTreeMap<RelPath, Node>;

pub fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// Puts a node at a real path where nothing stands.
pub fn create(at: &Path, node: &Node) {
    match node {
        Node::File(bytes, mode) => {
            std::fs::write(at, bytes).unwrap();
            std::fs::set_permissions(at, std::fs::Permissions::from_mode(*mode)).unwrap();
        }
        Node::Dir(mode) => {
            std::fs::create_dir(at).unwrap();
            std::fs::set_permissions(at, std::fs::Permissions::from_mode(*mode)).unwrap();
        }
        Node::Link(target) => symlink(ByteString::from(target.as_slice()).as_path(), at).unwrap(),
        Node::Fifo => {
            rustix::fs::mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        }
    }
}

pub fn write_tree(root: &Path, tree: &Tree) {
    for (path, node) in by_depth(tree) {
        create(&root.join(path.as_path()), node);
    }
}

/// Parents first; the order of paths by bytes is not enough (`a-b` is before `a/b`).
fn by_depth(tree: &Tree) -> Vec<(&RelPath, &Node)> {
    let mut all: Vec<_> = tree.iter().collect();
    all.sort_by_key(|(path, _)| path.depth());
    all
}

pub fn remove(at: &Path) {
    match std::fs::symlink_metadata(at) {
        Err(_) => {}
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(at).unwrap(),
        Ok(_) => std::fs::remove_file(at).unwrap(),
    }
}

/// A workspace on disk with its oracle.
pub struct World {
    pub dir: tempfile::TempDir,
    pub spec: WorkspaceSpec,
    /// What the view shows.
    pub view: Tree,
    /// What it showed when the upper was empty.
    lower: Tree,
    /// What the upper has, by path; a whiteout is `None`.
    upper: BTreeMap<RelPath, Option<Node>>,
    opaque: Vec<RelPath>,
}

impl World {
    pub fn new(driver: WorkspaceDriver, base: Tree) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| -> PathBuf {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (project, upper, memory) = (at("project"), at("upper0"), at("memory"));
        write_tree(&project, &base);
        let found = std::fs::metadata(&project).unwrap();
        let spec = WorkspaceSpec {
            project,
            base: Base {
                instant: now().unwrap(),
                device: found.dev(),
                inode: found.ino(),
                commit: None,
            },
            driver,
            upper,
            layers: Vec::new(),
            dependency_layers: Vec::new(),
            hidden: Vec::new(),
            memory,
        };
        if driver == WorkspaceDriver::Copy {
            write_tree(&spec.upper, &base);
            skep_workspace::remember_copy(&spec).unwrap();
        }
        let (view, lower) = (base.clone(), base);
        Self { dir, spec, view, lower, upper: BTreeMap::new(), opaque: Vec::new() }
    }

    fn real(&self, path: &RelPath) -> PathBuf {
        self.spec.upper.join(path.as_path())
    }

    /// Whether the layers below show something at `path`.
    fn below(&self, path: &RelPath) -> bool {
        let cut = |parent: &RelPath| {
            self.opaque.contains(parent)
                || self.upper.get(parent).is_some_and(|node| !matches!(node, Some(Node::Dir(_))))
        };
        self.lower.contains_key(path) && !path.ancestors().any(|parent| cut(&parent))
    }

    fn copy_up_parents(&mut self, path: &RelPath) {
        let mut parents: Vec<RelPath> = path.ancestors().filter(|p| !p.is_root()).collect();
        parents.reverse();
        for parent in parents {
            if !self.upper.contains_key(&parent) {
                let node = self.view[&parent].clone();
                create(&self.real(&parent), &node);
                self.upper.insert(parent, Some(node));
            }
        }
    }

    fn forget_upper(&mut self, path: &RelPath) {
        remove(&self.real(path));
        if self.spec.driver == WorkspaceDriver::FuseOverlayfs {
            remove(&self.fuse_mark(path));
        }
        self.upper.retain(|other, _| !other.starts_with(path));
        self.opaque.retain(|other| !other.starts_with(path));
    }

    fn fuse_mark(&self, path: &RelPath) -> PathBuf {
        let name = [b".wh.", path.file_name().unwrap()].concat();
        self.real(&path.parent().unwrap()).join(ByteString::from(name).as_path())
    }

    /// Deletes `path` with everything below it, as `rm -r` in the view does.
    pub fn remove(&mut self, path: &RelPath) {
        if !self.view.contains_key(path) {
            return;
        }
        self.view.retain(|other, _| !other.starts_with(path));
        if self.spec.driver == WorkspaceDriver::Copy {
            return remove(&self.real(path));
        }
        self.copy_up_parents(path);
        self.forget_upper(path);
        if self.below(path) {
            self.whiteout(path);
        }
    }

    fn whiteout(&mut self, path: &RelPath) {
        let at = self.real(path);
        match self.spec.driver {
            WorkspaceDriver::FuseOverlayfs => std::fs::write(self.fuse_mark(path), b"").unwrap(),
            _ => {
                let mode = Mode::from_raw_mode(0);
                rustix::fs::mknodat(CWD, at, FileType::CharacterDevice, mode, 0).unwrap();
            }
        }
        self.upper.insert(path.clone(), None);
    }

    /// Puts `node` at `path`, replacing what is there; the parent must be a directory.
    pub fn put(&mut self, path: &RelPath, node: Node) {
        match path.parent() {
            Some(parent) if parent.is_root() => {}
            Some(parent) if matches!(self.view.get(&parent), Some(Node::Dir(_))) => {}
            _ => return,
        }
        let replace =
            matches!(self.view.get(path), Some(Node::Dir(_))) || matches!(node, Node::Dir(_));
        if replace {
            self.remove(path);
        }
        self.view.insert(path.clone(), node.clone());
        if self.spec.driver == WorkspaceDriver::Copy {
            remove(&self.real(path));
            return create(&self.real(path), &node);
        }
        self.copy_up_parents(path);
        let hides = self.below(path);
        self.forget_upper(path);
        create(&self.real(path), &node);
        if hides && matches!(node, Node::Dir(_)) {
            self.mark_opaque(path);
        }
        self.upper.insert(path.clone(), Some(node));
    }

    fn mark_opaque(&mut self, path: &RelPath) {
        let name = match self.spec.driver {
            WorkspaceDriver::OverlayUserns => "user.overlay.opaque",
            WorkspaceDriver::OverlayRoot => "trusted.overlay.opaque",
            _ => "user.fuseoverlayfs.opaque",
        };
        rustix::fs::setxattr(self.real(path), name, b"y", XattrFlags::empty()).unwrap();
        self.opaque.push(path.clone());
    }

    /// Changes the permission bits; copies the entry up.
    pub fn chmod(&mut self, path: &RelPath, mode: u32) {
        match self.view.get(path).cloned() {
            Some(Node::File(bytes, _)) => self.put(path, Node::File(bytes, mode)),
            Some(Node::Dir(_)) => {
                self.view.insert(path.clone(), Node::Dir(mode));
                if self.spec.driver != WorkspaceDriver::Copy {
                    let child = path.join(b"any").unwrap();
                    self.copy_up_parents(&child);
                    self.upper.insert(path.clone(), Some(Node::Dir(mode)));
                }
                let bits = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(self.real(path), bits).unwrap();
            }
            _ => {}
        }
    }

    /// The upper becomes a layer, and a new one is stacked.
    pub fn freeze(&mut self) {
        if self.spec.driver == WorkspaceDriver::Copy {
            return;
        }
        let number = self.spec.layers.len() + 1;
        let next = self.dir.path().join(format!("upper{number}"));
        std::fs::create_dir(&next).unwrap();
        self.spec.layers.insert(0, std::mem::replace(&mut self.spec.upper, next));
        self.lower = self.view.clone();
        self.upper.clear();
        self.opaque.clear();
    }

    /// Nobody is inside, and whoever comes sees the project as it is: through everything that the upper does
    /// not have. Whether it has a path is told by what is returned.
    pub fn see_anew(&mut self) -> impl Fn(&RelPath) -> bool + use<> {
        let (upper, opaque) = (self.upper.clone(), self.opaque.clone());
        let covered = move |path: &RelPath| {
            let cut = |parent: &RelPath| {
                opaque.contains(parent)
                    || upper.get(parent).is_some_and(|node| !matches!(node, Some(Node::Dir(_))))
            };
            upper.contains_key(path) || path.ancestors().any(|parent| cut(&parent))
        };
        self.lower = read_nodes(&self.spec.project);
        self.view.retain(|path, _| covered(path));
        let shown = self.lower.iter().filter(|(path, _)| !covered(path));
        self.view.extend(shown.map(|(path, node)| (path.clone(), node.clone())));
        covered
    }

    /// The project as it stands on disk.
    pub fn project(&self) -> BTreeMap<RelPath, EntryState> {
        read_tree(&self.spec.project)
    }
}

/// Every path of a real tree, with its bytes.
fn read_nodes(at: &Path) -> Tree {
    let node = |(path, state): (RelPath, EntryState)| {
        let real = at.join(path.as_path());
        let node = match state {
            EntryState::File { mode, .. } => Node::File(std::fs::read(real).unwrap(), mode),
            EntryState::Dir { mode } => Node::Dir(mode),
            EntryState::Symlink { target } => Node::Link(target.as_bytes().to_vec()),
            EntryState::Special { .. } | EntryState::Absent => Node::Fifo,
        };
        (path, node)
    };
    read_tree(at).into_iter().map(node).collect()
}

/// Every path of a real tree.
pub fn read_tree(at: &Path) -> BTreeMap<RelPath, EntryState> {
    let root = TreeRoot::open(at).unwrap();
    let mut found = BTreeMap::new();
    let mut pending = vec![RelPath::root()];
    while let Some(directory) = pending.pop() {
        for (name, kind) in root.list(&directory).unwrap() {
            let path = directory.join(&name).unwrap();
            if kind == FileType::Directory {
                pending.push(path.clone());
            }
            found.insert(path.clone(), root.state(&path).unwrap());
        }
    }
    found
}
