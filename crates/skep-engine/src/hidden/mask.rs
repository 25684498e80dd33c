//! The mask: a layer of whiteouts between the project and what is written, one for each hidden path.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use skep_types::RelPath;
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Makes the mask, or adds to it.
///
/// A whiteout is a character device 0:0. Anyone may make one; it cannot be opened. A directory of
/// the mask lends the merged directory its mode and owner: they must be those of the project's.
/// They are given last, because a directory may be one that its owner cannot write in either.
pub fn make_mask(mask: &Path, project: &Path, hidden: &[RelPath]) -> io::Result<()> {
    if hidden.is_empty() {
        return Ok(());
    }
    let directories: BTreeSet<RelPath> = hidden.iter().flat_map(RelPath::ancestors).collect();
    for directory in &directories {
        make_directory(&mask.join(directory.as_path()))?;
    }
    for path in hidden {
        let place = mask.join(path.as_path());
        // Something below it was hidden before; now all of it is.
        let _ = std::fs::remove_dir_all(&place);
        mknodat(CWD, place, FileType::CharacterDevice, Mode::empty(), 0)?;
    }
    for directory in directories.iter().rev() {
        let like = std::fs::symlink_metadata(project.join(directory.as_path()))?;
        let mode = Permissions::from_mode(like.mode() & 0o7777);
        std::fs::set_permissions(mask.join(directory.as_path()), mode)?;
    }
    Ok(())
}

/// A directory that can be written in for now.
fn make_directory(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::set_permissions(directory, Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn the_mask_has_the_projects_modes_and_grows_where_nobody_may_write() {
        let root = tempfile::tempdir().unwrap();
        let (project, mask) = (root.path().join("project"), root.path().join("mask"));
        std::fs::create_dir_all(project.join("shut/below")).unwrap();
        let set = |path: &str, mode| {
            std::fs::set_permissions(project.join(path), Permissions::from_mode(mode)).unwrap();
        };
        set("shut/below", 0o750);
        set("shut", 0o555);
        set("", 0o2755);
        let paths = |texts: &[&str]| -> Vec<RelPath> {
            texts.iter().map(|text| RelPath::parse(text.as_bytes()).unwrap()).collect()
        };
        make_mask(&mask, &project, &paths(&["shut/.env", "shut/below/a.pem"])).unwrap();
        make_mask(&mask, &project, &paths(&["shut/below/b.pem", "shut/later.pem"])).unwrap();
        assert_eq!((mode(&mask), mode(&mask.join("shut"))), (0o2755, 0o555));
        assert_eq!(mode(&mask.join("shut/below")), 0o750);
        for name in ["shut/.env", "shut/later.pem", "shut/below/a.pem", "shut/below/b.pem"] {
            let meta = mask.join(name).symlink_metadata().unwrap();
            assert_eq!((meta.mode() & 0o170_000, meta.rdev()), (0o020_000, 0), "{name}");
        }
        set("shut", 0o755);
        std::fs::set_permissions(mask.join("shut"), Permissions::from_mode(0o755)).unwrap();
    }
}
