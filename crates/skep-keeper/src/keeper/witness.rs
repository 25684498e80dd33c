//! The clock that files are stamped with, read from a file.
//!
//! It moves in ticks of some milliseconds, in which several quick commands have room. Kernels since 6.13
//! stamp finely what is changed again in the same tick after somebody has looked at it, and everything
//! else no earlier than that (Documentation/filesystems/multigrain-ts.rst). With older ones the stamp is
//! that of the tick: still nothing that is written later has an earlier one.

use rustix::fs::{MemfdFlags, Timespec, Timestamps, UTIME_NOW};
use std::cell::OnceCell;
use std::os::fd::OwnedFd;

/// A file in memory that is touched to be stamped.
#[derive(Debug, Default)]
pub(super) struct Witness(OnceCell<Option<OwnedFd>>);

impl Witness {
    /// Nothing that is changed from now on has an earlier stamp, and all that was has no later one:
    /// nanoseconds since the epoch.
    pub(super) fn stamp(&self) -> Option<i64> {
        let make = || rustix::fs::memfd_create("skep-stamp", MemfdFlags::CLOEXEC).ok();
        let file = self.0.get_or_init(make).as_ref()?;
        // The first stamp may be that of the tick. The second is a fine one, or of a tick that has just begun.
        touched(file)?;
        touched(file)
    }
}

fn touched(file: &OwnedFd) -> Option<i64> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    rustix::fs::futimens(file, &Timestamps { last_access: now, last_modification: now }).ok()?;
    let found = rustix::fs::fstat(file).ok()?;
    let nanoseconds = i64::try_from(found.st_ctime_nsec).ok()?;
    found.st_ctime.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn what_is_written_later_has_no_earlier_stamp() {
        let directory = tempfile::tempdir().unwrap();
        let witness = Witness::default();
        for number in 0..50 {
            let before = witness.stamp().unwrap();
            let path = directory.path().join(number.to_string());
            std::fs::write(&path, "x").unwrap();
            let found = std::fs::metadata(&path).unwrap();
            let written = found.ctime() * 1_000_000_000 + found.ctime_nsec();
            assert!(before <= written && written <= witness.stamp().unwrap());
        }
    }
}
