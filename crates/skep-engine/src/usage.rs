//! How much lies in an upper, and copying a whole project where nothing better can be had.

use crate::layers::{Bytes, copy_entry, finish_directory};
use rustix::fs::FileType;
use skep_types::RelPath;
use skep_workspace::tree::TreeRoot;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many of the largest entries are named.
const LARGEST: usize = 5;

/// What lies in a tree.
#[derive(Debug, Default)]
pub struct Usage {
    /// Allocated bytes.
    pub bytes: u64,
    /// Entries.
    pub inodes: u64,
    /// The largest top-level parts (two levels deep), largest first.
    pub largest: Vec<(RelPath, u64)>,
}

/// Sums up a tree without following links.
pub fn of(root: &Path) -> io::Result<Usage> {
    let mut usage = Usage::default();
    let mut parts: Vec<(RelPath, u64)> = Vec::new();
    let mut stack: Vec<(PathBuf, RelPath, Option<usize>)> =
        vec![(root.to_owned(), RelPath::root(), None)];
    while let Some((directory, relative, part)) = stack.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == root => return Err(error),
            // Locked by its mode; its own entry was counted.
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name();
            let Ok(path) = relative.join(std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str()))
            else {
                continue;
            };
            let size = metadata.blocks() * 512;
            usage.inodes += 1;
            usage.bytes += size;
            let part = part.unwrap_or_else(|| {
                parts.push((path.clone(), 0));
                parts.len() - 1
            });
            parts[part].1 += size;
            if metadata.is_dir() {
                let next = (path.depth() >= 2 || !metadata.is_dir()).then_some(part);
                stack.push((entry.path(), path, next.or(Some(part))));
            }
        }
    }
    parts.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    parts.truncate(LARGEST);
    parts.retain(|(_, size)| *size > 0);
    usage.largest = parts;
    Ok(usage)
}

/// Bytes that were written to a copy of the system: each of its directories has an upper of its own.
pub fn of_system(place: &Path) -> u64 {
    let directories = std::fs::read_dir(place).into_iter().flatten().flatten();
    let upper = |entry: std::fs::DirEntry| of(&entry.path().join("upper")).unwrap_or_default();
    directories.map(|entry| upper(entry).bytes).sum()
}

/// Copies a project with its modes, times and (as root) owners into a directory that is there,
/// without what is hidden and without devices; links stay links.
pub fn copy_tree(from: &Path, to: &Path, hidden: &[RelPath]) -> io::Result<()> {
    let (source, target) = (TreeRoot::open(from)?, TreeRoot::open(to)?);
    // A socket's name leads nowhere in a copy, and a device is not for everybody to make.
    let copied = [
        FileType::Directory,
        FileType::Symlink,
        FileType::RegularFile,
        FileType::Fifo,
        FileType::Socket,
    ];
    let mut directories = vec![RelPath::root()];
    let mut next = 0;
    while next < directories.len() {
        let directory = directories[next].clone();
        next += 1;
        for (name, kind) in source.list(&directory)? {
            let path = directory.join(&name).map_err(io::Error::other)?;
            if hidden.contains(&path) || !copied.contains(&kind) {
                continue;
            }
            if copy_entry(&source, &path, &target, Bytes::Copied)? == FileType::Directory {
                directories.push(path);
            }
        }
    }
    // Deepest first: a directory may lose the bits that working in it needs.
    directories.iter().rev().try_for_each(|path| finish_directory(&source, path, &target))
}
