//! Tests of apply: a model of a tree, and a project to try it on.

mod conflicts;
mod crash;
mod property;
mod refusals;
mod transitions;
mod unprivileged;

use super::*;
use crate::tree::TreeRoot;
use skep_types::{ByteString, ContentHash};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

/// One entry of a model tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    File(Vec<u8>, u32),
    Link(Vec<u8>),
    Dir(u32),
}

/// A model tree; the root is left out.
pub(super) type Model = BTreeMap<RelPath, Node>;

pub(super) fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

pub(super) fn file(text: &str) -> Node {
    Node::File(text.as_bytes().to_vec(), 0o644)
}

pub(super) fn state_of(node: Option<&Node>) -> EntryState {
    match node {
        None => EntryState::Absent,
        Some(Node::File(bytes, mode)) => {
            EntryState::File { hash: ContentHash::of(bytes), size: bytes.len() as u64, mode: *mode }
        }
        Some(Node::Link(target)) => {
            EntryState::Symlink { target: ByteString::from(target.as_slice()) }
        }
        Some(Node::Dir(mode)) => EntryState::Dir { mode: *mode },
    }
}

/// The targets that lead from one model to another.
pub(super) fn targets_between(before: &Model, after: &Model) -> Vec<Target> {
    let mut paths: Vec<_> = before.keys().chain(after.keys()).cloned().collect();
    paths.sort();
    paths.dedup();
    let target = |path: RelPath| {
        let (old, new) = (before.get(&path), after.get(&path));
        let source = match new {
            Some(Node::File(bytes, _)) => Source::Bytes(bytes.clone()),
            _ => Source::None,
        };
        (old != new).then(|| Target {
            path,
            before: state_of(old),
            after: state_of(new),
            source,
            like: None,
        })
    };
    paths.into_iter().filter_map(target).collect()
}

/// A project, and a place for journals, in a directory that goes away.
pub(super) struct Fixture {
    pub dir: tempfile::TempDir,
    pub project: PathBuf,
}

impl Fixture {
    pub fn new(model: &Model) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("project");
        fs::create_dir(&project).unwrap();
        let fixture = Self { dir, project };
        fixture.write(model);
        fixture
    }

    /// Makes the entries of a model (parents sort before their children).
    pub fn write(&self, model: &Model) {
        for (path, node) in model {
            let full = self.project.join(path.as_path());
            match node {
                Node::File(bytes, mode) => {
                    fs::write(&full, bytes).unwrap();
                    fs::set_permissions(&full, fs::Permissions::from_mode(*mode)).unwrap();
                }
                Node::Link(target) => {
                    let target = std::ffi::OsStr::from_bytes(target);
                    std::os::unix::fs::symlink(target, &full).unwrap();
                }
                Node::Dir(_) => fs::create_dir(&full).unwrap(),
            }
        }
        for (path, node) in model.iter().rev() {
            if let Node::Dir(mode) = node {
                let full = self.project.join(path.as_path());
                fs::set_permissions(&full, fs::Permissions::from_mode(*mode)).unwrap();
            }
        }
    }

    pub fn snapshot(&self) -> Model {
        let mut model = Model::new();
        let root = TreeRoot::open(&self.project).unwrap();
        snapshot_into(&root, &RelPath::root(), &mut model);
        model
    }

    /// The journal directory of the approval with this number.
    pub fn journal_dir(&self, number: u8) -> PathBuf {
        let dir = self.dir.path().join(format!("approval-{number}"));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    pub fn stage(&self, number: u8, targets: Vec<Target>) -> Result<Staged, ApplyError> {
        stage_in(&self.project, &self.journal_dir(number), number, targets)
    }

    pub fn apply(&self, number: u8, targets: Vec<Target>) -> Result<Applied, ApplyError> {
        self.stage(number, targets)?.publish()
    }

    /// Undoes approval `number` as approval `number + 1`.
    pub fn undo(&self, number: u8) -> Result<Applied, ApplyError> {
        let targets = undo_targets(&self.journal_dir(number))?;
        self.apply(number + 1, targets)
    }

    /// No staging directory, neither beside the project nor in it.
    pub fn assert_no_leftovers(&self) {
        for dir in [self.dir.path(), &self.project] {
            for entry in fs::read_dir(dir).unwrap() {
                let name = entry.unwrap().file_name();
                assert!(!name.as_bytes().starts_with(b".skep-"), "{name:?} is left in {dir:?}");
            }
        }
    }

    pub fn full(&self, relative: &str) -> PathBuf {
        self.project.join(relative)
    }
}

/// Directories may have been closed to their owner.
impl Drop for Fixture {
    fn drop(&mut self) {
        for (path, node) in self.snapshot() {
            if let Node::Dir(_) = node {
                let full = self.project.join(path.as_path());
                let _ = fs::set_permissions(full, fs::Permissions::from_mode(0o700));
            }
        }
    }
}

pub(super) fn approval_id(number: u8) -> ApprovalId {
    ApprovalId::from_random([number; 10])
}

pub(super) fn stage_in(
    project: &Path,
    journal_dir: &Path,
    number: u8,
    targets: Vec<Target>,
) -> Result<Staged, ApplyError> {
    stage(ApplyRequest {
        id: &approval_id(number),
        project,
        root_identity: TreeRoot::open(project).unwrap().identity().unwrap(),
        journal_dir,
        targets,
        note: note(),
        progress: &mut |_| {},
    })
}

pub(super) fn note() -> serde_json::Value {
    serde_json::json!({"for": "the caller"})
}

fn snapshot_into(root: &TreeRoot, dir: &RelPath, model: &mut Model) {
    let Ok(names) = root.list(dir) else { return };
    for (name, _) in names {
        let path = dir.join(&name).unwrap();
        let node = match root.state(&path).unwrap() {
            EntryState::File { mode, .. } => Node::File(root.read(&path, u64::MAX).unwrap(), mode),
            EntryState::Symlink { target } => Node::Link(target.into_bytes()),
            EntryState::Dir { mode } => {
                model.insert(path.clone(), Node::Dir(mode));
                snapshot_into(root, &path, model);
                continue;
            }
            other => panic!("unexpected {other:?} at {path:?}"),
        };
        model.insert(path, node);
    }
}
