//! A directory read by plain means.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Link,
    Fifo,
    Socket,
    Device,
}

/// One entry: everything that a person would call its content.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Permission bits; 0 for links, which have none.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The bytes of a file, the target of a link.
    pub(crate) bytes: Vec<u8>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = &self.bytes[..self.bytes.len().min(60)];
        let (kind, length) = (self.kind, self.bytes.len());
        write!(f, "{kind:?} {:o} {}:{} {length} bytes", self.mode, self.uid, self.gid)?;
        write!(f, " `{}`", start.escape_ascii())
    }
}

/// All entries below a directory, by relative path; the directory itself is the empty path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: BTreeMap<PathBuf, Node>,
}

impl Tree {
    /// Reads a directory. Links are not followed, nothing special is opened.
    pub(crate) fn read(root: &Path) -> Self {
        let mut nodes = BTreeMap::new();
        let mut open = vec![PathBuf::new()];
        while let Some(relative) = open.pop() {
            let path = root.join(&relative);
            let node = read_node(&path);
            if node.kind == Kind::Directory {
                let entries = fs::read_dir(&path).unwrap();
                open.extend(entries.map(|entry| relative.join(entry.unwrap().file_name())));
            }
            nodes.insert(relative, node);
        }
        Self { nodes }
    }

    /// Without what is below `path`.
    pub(crate) fn without(mut self, path: impl AsRef<Path>) -> Self {
        self.nodes.retain(|at, _| !at.starts_with(path.as_ref()));
        self
    }

    /// One entry.
    pub(crate) fn get(&self, path: impl AsRef<Path>) -> Option<&Node> {
        self.nodes.get(path.as_ref())
    }

    /// What differs, one line each; empty if nothing does.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut paths: Vec<&PathBuf> = self.nodes.keys().chain(other.nodes.keys()).collect();
        paths.sort();
        paths.dedup();
        let differ = |path: &&PathBuf| self.nodes.get(*path) != other.nodes.get(*path);
        let line = |path: &PathBuf| {
            let name = OsStr::as_bytes(path.as_os_str()).escape_ascii().to_string();
            format!("{name}: {:?} / {:?}", self.nodes.get(path), other.nodes.get(path))
        };
        paths.into_iter().filter(differ).map(line).collect()
    }

    /// Asserts that two trees are equal, showing only what differs.
    #[track_caller]
    pub(crate) fn assert_equals(&self, other: &Self, what: &str) {
        let differences = self.differences(other);
        assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
    }
}

fn read_node(path: &Path) -> Node {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let file_type = meta.file_type();
    let (kind, bytes) = if file_type.is_dir() {
        (Kind::Directory, Vec::new())
    } else if file_type.is_symlink() {
        (Kind::Link, fs::read_link(path).unwrap().into_os_string().into_encoded_bytes())
    } else if file_type.is_file() {
        (Kind::File, fs::read(path).unwrap())
    } else if file_type.is_fifo() {
        (Kind::Fifo, Vec::new())
    } else if file_type.is_socket() {
        (Kind::Socket, Vec::new())
    } else {
        (Kind::Device, meta.rdev().to_le_bytes().to_vec())
    };
    let mode = if kind == Kind::Link { 0 } else { meta.mode() & 0o7777 };
    Node { kind, mode, uid: meta.uid(), gid: meta.gid(), bytes }
}
