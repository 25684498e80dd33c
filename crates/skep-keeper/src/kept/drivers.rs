//! Which copy-on-write drivers can serve a project on this host.

use rustix::io::Errno;
use skep_provider::DriverChoice;
use skep_types::WorkspaceDriver;
use std::io;
use std::path::Path;

/// `statfs` type of overlayfs.
const OVERLAY_MAGIC: i64 = 0x794c_7630;
/// From the best to the last resort.
const ORDER: [WorkspaceDriver; 4] = [
    WorkspaceDriver::OverlayUserns,
    WorkspaceDriver::OverlayRoot,
    WorkspaceDriver::FuseOverlayfs,
    WorkspaceDriver::Copy,
];

/// Looks at the project and at the directory that will hold the upper. Whatever mounting alone can
/// tell is left to mounting.
pub fn find(project: &Path, directory: &Path) -> io::Result<DriverChoice> {
    let filesystem = rustix::fs::statfs(directory)?;
    let mut choice = DriverChoice::default();
    for driver in ORDER {
        let refused = match driver {
            WorkspaceDriver::Copy => None,
            // An overlay cannot be the upper of another one: inside a container, a copy has to do.
            _ if filesystem.f_type == OVERLAY_MAGIC => {
                Some("the state directory is itself on an overlay".to_owned())
            }
            WorkspaceDriver::OverlayUserns => refuse_userns(project, directory),
            WorkspaceDriver::OverlayRoot => {
                (!is_root()).then(|| "only root can mount it".to_owned())
            }
            WorkspaceDriver::FuseOverlayfs => {
                crate::fuse_overlayfs_unavailable().map(|(reason, _)| reason)
            }
        };
        match refused {
            None => choice.drivers.push(driver),
            Some(reason) => choice.passed_over.push(format!("{}: {reason}", driver.as_str())),
        }
    }
    Ok(choice)
}

/// The reasons that concern drivers better than the one in use.
pub fn why_not_better(used: WorkspaceDriver, choice: &DriverChoice) -> Option<String> {
    let better = ORDER.iter().take_while(|driver| **driver != used);
    let about = |driver: &WorkspaceDriver| {
        let start = format!("{}: ", driver.as_str());
        choice.passed_over.iter().find(move |reason| reason.starts_with(&start)).cloned()
    };
    let reasons: Vec<String> = better.filter_map(about).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn refuse_userns(project: &Path, directory: &Path) -> Option<String> {
    if has_foreign_group(project) {
        return Some("the project belongs to a group that is not the caller's own".into());
    }
    (!has_user_attributes(directory))
        .then(|| "the state directory's filesystem has no `user.*` attributes".into())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether an ordinary user's project belongs to a group that is not the user's own.
///
/// An overlay gives a copied-up file the group of the original, and a user namespace made without
/// privilege knows one group only: every write would end in `EOVERFLOW`. The project's root is
/// asked for all of it, because asking every file would be a walk.
fn has_foreign_group(project: &Path) -> bool {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    !uid.is_root()
        && rustix::fs::stat(project)
            .is_ok_and(|stat| stat.st_uid == uid.as_raw() && stat.st_gid != gid.as_raw())
}

/// An overlay is mounted without them too, but cannot mark a directory that replaces another.
fn has_user_attributes(directory: &Path) -> bool {
    let mut value = [0_u8; 8];
    let answer = rustix::fs::getxattr(directory, "user.skep.none", &mut value);
    !matches!(answer, Err(Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_better_drivers_need_an_excuse() {
        let choice = DriverChoice {
            drivers: vec![WorkspaceDriver::FuseOverlayfs, WorkspaceDriver::Copy],
            passed_over: vec!["overlay-userns: one".into(), "overlay-root: two".into()],
        };
        let why = |used| why_not_better(used, &choice);
        assert_eq!(why(WorkspaceDriver::OverlayUserns), None);
        assert_eq!(why(WorkspaceDriver::OverlayRoot).unwrap(), "overlay-userns: one");
        let both = "overlay-userns: one; overlay-root: two";
        assert_eq!(why(WorkspaceDriver::Copy).unwrap(), both);
    }
}
