//! How much lies in an upper, and copying a whole project where nothing better can be had.

use rustix::fs::{FileType, Mode};
use skep_types::RelPath;
use skep_workspace::tree::TreeRoot;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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

/// Copies a tree, without what is hidden and without special files; links stay links.
pub fn copy_tree(from: &Path, to: &Path, hidden: &[RelPath]) -> io::Result<()> {
    let source = TreeRoot::open(from)?;
    let mut directories = vec![RelPath::root()];
    while let Some(directory) = directories.pop() {
        for (name, kind) in source.list(&directory)? {
            let Ok(path) = directory.join(&name) else { continue };
            if hidden.contains(&path) {
                continue;
            }
            let target = to.join(path.as_path());
            if kind == FileType::Directory {
                std::fs::create_dir(&target)?;
                let mode = source.stat(&path)?.map_or(0o755, |stat| stat.st_mode & 0o7777);
                std::fs::set_permissions(&target, PermissionsExt::from_mode(mode))?;
                directories.push(path);
            } else if kind == FileType::Symlink {
                let points_to = source.read_link(&path)?;
                std::os::unix::fs::symlink(std::ffi::OsStr::new(points_to.as_os_str()), &target)?;
            } else if kind == FileType::RegularFile {
                copy_file(&source, &path, &target)?;
            }
        }
    }
    Ok(())
}

fn copy_file(source: &TreeRoot, path: &RelPath, target: &Path) -> io::Result<()> {
    let (mut from, _) = source.open_file(path)?;
    let mut to = File::options().write(true).create_new(true).open(target)?;
    if rustix::fs::ioctl_ficlone(&to, &from).is_err() {
        io::copy(&mut from, &mut to)?;
    }
    let mode = from.metadata()?.mode() & 0o7777;
    rustix::fs::fchmod(&to, Mode::from_raw_mode(mode))?;
    Ok(())
}
