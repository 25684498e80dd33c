//! Whether what stands at the project's path inside is the workspace, where somebody else has mounted it.
//!
//! An engine may have left the mount out, or have mounted something else: then commands would work in a directory
//! that no review looks at. What is written there has to arrive in the upper, and that is tried: a nonce is
//! written through the mount, where it is an attribute of the directory itself and no entry in it, and read from
//! the upper. A copy is mounted as it is, and is known by its inode.

use crate::failure::Failure;
use crate::machine::nonce;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::XattrFlags;
use skep_provider::RunSpec;
use skep_types::WorkspaceDriver;
use std::io;
use std::path::Path;

/// The attribute.
const NONCE: &str = "user.skep.nonce";

/// Refuses anything else than the workspace.
pub fn check(run: &RunSpec, seen: &OwnedFd) -> Result<(), Failure> {
    let upper = run.directory.join("upper");
    let found = match run.driver {
        WorkspaceDriver::Copy => is_same(&upper, seen),
        WorkspaceDriver::OverlayUserns
        | WorkspaceDriver::OverlayRoot
        | WorkspaceDriver::FuseOverlayfs => arrives_in(&upper, seen),
    };
    let why = match found {
        Ok(true) => return Ok(()),
        Ok(false) => "it is another directory".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::missing(
        format!("the provider `{}`", run.provider),
        format!(
            "what it shows at the project's path is not the workspace, and nothing is run in it: {why}"
        ),
        "use `--provider namespace`, or another engine",
    ))
}

fn is_same(upper: &Path, seen: &OwnedFd) -> io::Result<bool> {
    let (ours, theirs) = (rustix::fs::lstat(upper)?, rustix::fs::fstat(seen)?);
    Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino))
}

fn arrives_in(upper: &Path, seen: &OwnedFd) -> io::Result<bool> {
    let (nonce, through) = (nonce()?, format!("/proc/self/fd/{}", seen.as_raw_fd()));
    rustix::fs::setxattr(&through, NONCE, nonce.as_bytes(), XattrFlags::empty())?;
    let mut arrived = vec![0; nonce.len()];
    let length = rustix::fs::getxattr(upper, NONCE, &mut arrived);
    let _ = rustix::fs::removexattr(&through, NONCE);
    match length {
        Ok(length) => Ok(arrived[..length] == *nonce.as_bytes()),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::RANGE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    fn opened(path: &Path) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).unwrap()
    }

    #[test]
    fn clean_8_a_nonce_is_read_back_from_this_directory_alone() {
        // Not in `/tmp`, which may be a filesystem without such attributes.
        let place = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (upper, other) = (place.path().join("upper"), place.path().join("other"));
        std::fs::create_dir(&upper).unwrap();
        std::fs::create_dir(&other).unwrap();
        for read_back in [is_same, arrives_in] {
            assert!(read_back(&upper, &opened(&upper)).unwrap());
            assert!(!read_back(&upper, &opened(&other)).unwrap());
        }
        // An attribute that somebody left is not taken for the nonce, and none is left.
        rustix::fs::setxattr(&upper, NONCE, b"old", XattrFlags::empty()).unwrap();
        assert!(!arrives_in(&upper, &opened(&other)).unwrap());
        assert!(arrives_in(&upper, &opened(&upper)).unwrap());
        let mut value = [0; 64];
        assert!(rustix::fs::getxattr(&upper, NONCE, &mut value[..]).is_err());
    }
}
