//! A limit of the disk that the filesystem itself keeps, where it can.
//!
//! The guard in the keeper counts what was written and ends who wrote too much, a moment late. A
//! project quota is never late: the write fails. It needs a filesystem mounted with `prjquota`,
//! root of the host, and a sandbox with a user namespace of its own; without any of them the guard
//! stands alone, and the report says why.
//!
//! The project's number is derived from the inode of the upper, so nobody has to hand numbers
//! out. A snapshot makes a new upper, which counts from nothing.

use crate::identity::IdMap;
use crate::keeper::areas;
use rustix::fs::{Mode, OFlags};
use skep_provider::RunSpec;
use skep_types::{Limits, WorkspaceDriver};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Our numbers: few others will use any this high.
const FIRST: u32 = 0x5000_0000;
const NUMBERS: u64 = 0x1000_0000;

/// A quota that holds. The limit ends with this value; the numbers stay on the files.
#[derive(Debug)]
pub struct Quota {
    upper: PathBuf,
    project: u32,
}

/// Puts all that the sandbox can write to disk under one quota. The error says why there is none.
pub fn hold(spec: &RunSpec, map: IdMap) -> Result<Quota, String> {
    let limits = &spec.policy.limits;
    if limits.disk.is_none() && limits.inodes.is_none() {
        return Err("no limit".into());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("only root may set one".into());
    }
    // The kernel lets the owner of a file change its number, but in a user namespace. A filter of
    // that call would not do: `subprocess` has none.
    if map == IdMap::Host {
        return Err("processes inside are of the host's user namespace and could leave it".into());
    }
    if spec.driver == WorkspaceDriver::Copy {
        return Err("the workspace is a copy".into());
    }
    let upper = spec.directory.join("upper");
    let place = open(&upper).map_err(|error| error.to_string())?;
    match skep_sys::quota::is_enforced(&place) {
        Ok(true) => settle(spec, &place, limits),
        Ok(false) => Err("the filesystem is not mounted with `prjquota`".into()),
        Err(_) => Err("the filesystem keeps none".into()),
    }
}

fn settle(spec: &RunSpec, place: &File, limits: &Limits) -> Result<Quota, String> {
    let said = |error: io::Error| error.to_string();
    let upper = spec.directory.join("upper");
    let project = FIRST + (place.metadata().map_err(said)?.ino() % NUMBERS) as u32;
    if skep_sys::quota::project_of(place).map_err(said)? != project {
        // An upper that was filled before would not be counted, and a number in use is somebody's.
        if std::fs::read_dir(&upper).map_err(said)?.next().is_some() {
            return Err("the upper is older than the quota".into());
        }
        // A number that nobody has ever used has no record.
        if skep_sys::quota::usage(place, project).is_ok_and(|used| used.inodes > 0) {
            return Err(format!("the project number {project} is in use"));
        }
    }
    for area in areas(spec) {
        for name in ["upper", "work"] {
            let directory = open(&area.join(name)).map_err(said)?;
            skep_sys::quota::give_to_project(&directory, project).map_err(said)?;
        }
    }
    let bytes = limits.disk.map(|size| size.0);
    skep_sys::quota::limit(place, project, bytes, limits.inodes).map_err(said)?;
    Ok(Quota { upper, project })
}

fn open(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?.into())
}

impl Drop for Quota {
    fn drop(&mut self) {
        // Left behind by a kill, it limits files that nobody writes to any more.
        if let Ok(place) = open(&self.upper) {
            let _ = skep_sys::quota::limit(&place, self.project, None, None);
        }
    }
}
