//! The workspace belongs to the ids inside.

use crate::failure::{Failure, Step};
use crate::identity::{IdMap, RANGE_START};
use crate::owner::Owner;
use skep_provider::RunSpec;
use skep_types::WorkspaceDriver;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

/// Started by root, the upper and its work directory must belong to the ids inside; the upper's
/// own owner is what the project's root appears to have. The same goes for the mask's directories,
/// which lend theirs to the merged ones.
///
/// Where no ids are mapped (a container of an engine's, ordinary processes), they are the project's
/// own.
pub fn give_upper_to_inside(spec: &RunSpec, map: IdMap) -> Result<(), Failure> {
    let step = || "give the workspace to the user inside".to_owned();
    let root = |path: &Path| rustix::fs::lstat(path).step(step);
    match map {
        IdMap::Range => {
            let owner = Owner::of(&root(&spec.project)?);
            // To be walked through, not listed; the state directory above stays closed to everybody.
            let through = std::fs::Permissions::from_mode(0o711);
            std::fs::set_permissions(&spec.directory, through).step(step)?;
            if spec.driver == WorkspaceDriver::Copy {
                give_tree(&spec.directory.join("upper"), owner).step(step)?;
            }
            give_directories(spec, &|uid, gid| owner.outside(uid, gid)).step(step)
        }
        IdMap::Host if rustix::process::geteuid().is_root() => {
            match Owner::of(&root(&spec.project)?) {
                Owner::ROOT => Ok(()),
                _ => give_directories(spec, &|uid, gid| (uid, gid)).step(step),
            }
        }
        IdMap::Own { .. } | IdMap::Host => Ok(()),
    }
}

/// The directories that lend their owner to the merged ones, and overlayfs's own.
fn give_directories(spec: &RunSpec, given: &dyn Fn(u32, u32) -> (u32, u32)) -> io::Result<()> {
    let owner = |path: &Path| -> io::Result<(u32, u32)> {
        let stat = rustix::fs::lstat(path)?;
        Ok(given(stat.st_uid, stat.st_gid))
    };
    let (uid, gid) = owner(&spec.project)?;
    // A copy has no mask: it was made without what is hidden.
    let hidden = if spec.driver == WorkspaceDriver::Copy { &[][..] } else { &spec.hidden };
    let mask = (!hidden.is_empty()).then_some("mask");
    for name in ["upper", "work"].into_iter().chain(mask) {
        lchown(spec.directory.join(name), Some(uid), Some(gid))?;
    }
    for hidden in hidden {
        for parent in hidden.ancestors().filter(|parent| !parent.is_root()) {
            let (uid, gid) = owner(&spec.project.join(parent.as_path()))?;
            lchown(spec.directory.join("mask").join(parent.as_path()), Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

/// The owners in a copy are those of the project; here they become what the overlay would show.
/// What is already so (all that was made inside) stays.
fn give_tree(root: &Path, owner: Owner) -> io::Result<()> {
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let (uid, gid) = owner.outside(metadata.uid(), metadata.gid());
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
