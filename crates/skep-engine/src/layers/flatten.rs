//! Merging layers into one: the kernel stacks five hundred at most.
//!
//! The merged layer means to what lies below it what the merged ones meant together: whiteouts stay
//! whiteouts, and a directory is opaque as soon as one of its levels cut off what was below.
//! Files are linked, not copied: layers never change, and their birth times are part of the proof
//! of what stood where.

use super::copy::{self, Bytes};
use rustix::fs::{FileType, OFlags, XattrFlags};
use rustix::io::Errno;
use skep_types::{RelPath, WorkspaceDriver};
use skep_workspace::tree::TreeRoot;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A directory of the merged layer, and the levels that take part in it, topmost first.
struct Directory {
    path: RelPath,
    levels: Vec<usize>,
    /// Whether what lies below the merged layer is cut off here.
    opaque: bool,
}

/// Merges `layers` (topmost first) into a new directory `to`.
pub(super) fn merge(layers: &[PathBuf], to: &Path, driver: WorkspaceDriver) -> io::Result<()> {
    let mark = match driver {
        WorkspaceDriver::OverlayUserns => "user.overlay.opaque",
        WorkspaceDriver::OverlayRoot => "trusted.overlay.opaque",
        other => {
            let reason = format!("layers of the driver `{}` cannot be merged", other.as_str());
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
    };
    let levels: Vec<TreeRoot> =
        layers.iter().map(|path| TreeRoot::open(path)).collect::<io::Result<_>>()?;
    std::fs::create_dir(to)?;
    let target = TreeRoot::open(to)?;
    let all = (0..levels.len()).collect();
    let mut directories = vec![cut(&levels, RelPath::root(), all, mark)?];
    let mut next = 0;
    while next < directories.len() {
        let below = merge_directory(&levels, &directories[next], &target, mark)?;
        directories.extend(below);
        next += 1;
    }
    for directory in directories.iter().rev() {
        let top = directory.levels.first().map_or(&levels[0], |top| &levels[*top]);
        copy::finish_directory(top, &directory.path, &target)?;
        if directory.opaque && !directory.path.is_root() {
            set_opaque(&target, &directory.path, mark)?;
        }
    }
    Ok(())
}

/// Makes the entries of one directory; returns the directories among them.
fn merge_directory(
    levels: &[TreeRoot],
    directory: &Directory,
    target: &TreeRoot,
    mark: &str,
) -> io::Result<Vec<Directory>> {
    let mut names: BTreeMap<Vec<u8>, Vec<(usize, FileType)>> = BTreeMap::new();
    for index in &directory.levels {
        for (name, kind) in levels[*index].list(&directory.path)? {
            names.entry(name).or_default().push((*index, kind));
        }
    }
    let mut below = Vec::new();
    for (name, says) in names {
        let path = directory.path.join(&name).map_err(io::Error::other)?;
        let Some((top, _)) = says.first() else { continue };
        if copy::entry(&levels[*top], &path, target, Bytes::Linked)? != FileType::Directory {
            continue;
        }
        let stacked: Vec<usize> = says
            .iter()
            .take_while(|(_, kind)| *kind == FileType::Directory)
            .map(|(index, _)| *index)
            .collect();
        let replaced = stacked.len() < says.len();
        let mut merged = cut(levels, path, stacked, mark)?;
        merged.opaque |= replaced;
        below.push(merged);
    }
    Ok(below)
}

/// Leaves out the levels below the first opaque one.
fn cut(
    levels: &[TreeRoot],
    path: RelPath,
    mut stacked: Vec<usize>,
    mark: &str,
) -> io::Result<Directory> {
    for (position, index) in stacked.iter().enumerate() {
        match opacity(&levels[*index], &path, mark)? {
            Some(b'y') => {
                stacked.truncate(position + 1);
                return Ok(Directory { path, levels: stacked, opaque: true });
            }
            None => {}
            Some(_) => {
                let reason = format!("`{path}` has marks that this skep does not make");
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
        }
    }
    Ok(Directory { path, levels: stacked, opaque: false })
}

fn opacity(level: &TreeRoot, path: &RelPath, mark: &str) -> io::Result<Option<u8>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let directory = level.open_beneath(path, flags)?;
    let mut value = [0; 16];
    match rustix::fs::fgetxattr(&directory, mark, &mut value[..]) {
        Ok(length) => Ok(value[..length].first().copied()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn set_opaque(target: &TreeRoot, path: &RelPath, mark: &str) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let directory = target.open_beneath(path, flags)?;
    Ok(rustix::fs::fsetxattr(&directory, mark, b"y", XattrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mknodat};
    use std::fs::File;

    fn whiteout(path: &Path) {
        mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    fn is_opaque(path: &Path) -> bool {
        let mut value = [0; 4];
        rustix::fs::fgetxattr(File::open(path).unwrap(), "user.overlay.opaque", &mut value[..])
            .is_ok_and(|length| &value[..length] == b"y")
    }

    #[test]
    fn the_merged_layer_hides_what_the_single_ones_hid() {
        let base = tempfile::tempdir().unwrap();
        let [top, middle, low] = ["top", "middle", "low"].map(|name| base.path().join(name));
        for layer in [&top, &middle, &low] {
            std::fs::create_dir(layer).unwrap();
        }
        // A directory anew over a whiteout; one over a file; one that shows through.
        std::fs::create_dir(top.join("anew")).unwrap();
        std::fs::write(top.join("anew/new"), "new").unwrap();
        whiteout(&middle.join("anew"));
        std::fs::create_dir(low.join("anew")).unwrap();
        std::fs::write(low.join("anew/old"), "old").unwrap();
        std::fs::create_dir(top.join("was-file")).unwrap();
        std::fs::write(low.join("was-file"), "file").unwrap();
        std::fs::create_dir(top.join("through")).unwrap();
        std::fs::write(top.join("through/a"), "top").unwrap();
        std::fs::create_dir(low.join("through")).unwrap();
        std::fs::write(low.join("through/a"), "low").unwrap();
        std::fs::write(low.join("through/b"), "low").unwrap();
        // An opaque one in the middle.
        std::fs::create_dir(middle.join("opaque")).unwrap();
        let directory = File::open(middle.join("opaque")).unwrap();
        if rustix::fs::fsetxattr(&directory, "user.overlay.opaque", b"y", XattrFlags::empty())
            .is_err()
        {
            return;
        }
        std::fs::create_dir(low.join("opaque")).unwrap();
        std::fs::write(low.join("opaque/hidden"), "x").unwrap();
        std::fs::create_dir(top.join("opaque")).unwrap();
        std::fs::write(low.join("later-gone"), "x").unwrap();
        whiteout(&top.join("later-gone"));

        let merged = base.path().join("merged");
        merge(&[top, middle, low.clone()], &merged, WorkspaceDriver::OverlayUserns).unwrap();

        let names = |path: &Path| {
            let mut names: Vec<_> = std::fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(&merged), ["anew", "later-gone", "opaque", "through", "was-file"]);
        assert_eq!(names(&merged.join("anew")), ["new"]);
        assert!(is_opaque(&merged.join("anew")));
        assert!(is_opaque(&merged.join("was-file")));
        assert!(is_opaque(&merged.join("opaque")) && names(&merged.join("opaque")).is_empty());
        assert!(!is_opaque(&merged.join("through")));
        assert_eq!(std::fs::read(merged.join("through/a")).unwrap(), b"top");
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
        assert_eq!(inode(&merged.join("through/b")), inode(&low.join("through/b")), "linked");
        use std::os::unix::fs::FileTypeExt;
        let gone = std::fs::symlink_metadata(merged.join("later-gone")).unwrap();
        assert!(gone.file_type().is_char_device());
    }
}
