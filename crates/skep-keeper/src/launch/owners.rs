//! The workspace belongs to the ids inside.

use crate::failure::{Failure, Step};
use crate::identity::{IdMap, RANGE_START};
use skep_provider::RunSpec;
use skep_types::WorkspaceDriver;
use std::io;

/// Started by root, the upper and its work directory must belong to the ids inside; the upper's
/// own owner is what the project's root appears to have. The same goes for the mask's directories,
/// which lend theirs to the merged ones.
pub fn give_upper_to_inside(spec: &RunSpec, map: IdMap) -> Result<(), Failure> {
    use std::os::unix::fs::{PermissionsExt, lchown};
    if map != IdMap::Range {
        return Ok(());
    }
    let step = || "give the workspace to the user inside".to_owned();
    // To be walked through, not listed; the state directory above stays closed to everybody.
    let through = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(&spec.directory, through).step(step)?;
    let owner = |path: &std::path::Path| -> io::Result<(u32, u32)> {
        let stat = rustix::fs::lstat(path)?;
        Ok(map.outside(stat.st_uid, stat.st_gid))
    };
    if spec.driver == WorkspaceDriver::Copy {
        give_tree(&spec.directory.join("upper"), map).step(step)?;
    }
    let (uid, gid) = owner(&spec.project).step(step)?;
    let mask = (!spec.hidden.is_empty()).then_some("mask");
    for name in ["upper", "work"].into_iter().chain(mask) {
        lchown(spec.directory.join(name), Some(uid), Some(gid)).step(step)?;
    }
    for hidden in &spec.hidden {
        for parent in hidden.ancestors().filter(|parent| !parent.is_root()) {
            let (uid, gid) = owner(&spec.project.join(parent.as_path())).step(step)?;
            lchown(spec.directory.join("mask").join(parent.as_path()), Some(uid), Some(gid))
                .step(step)?;
        }
    }
    Ok(())
}

/// The owners in a copy are those of the project; here they become what the overlay would show.
/// What is already so (all that was made inside) stays.
fn give_tree(root: &std::path::Path, map: IdMap) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, lchown};
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let (uid, gid) = map.outside(metadata.uid(), metadata.gid());
            if metadata.uid() < RANGE_START {
                lchown(entry.path(), Some(uid), Some(gid))?;
            }
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(())
}
