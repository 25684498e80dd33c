//! How much captures may take up.
//!
//! One `rm` inside makes a capture of every file that it removed, and no limit of the sandbox counts
//! that. So captures have a sum of their own, and end before the room does that is kept for the host:
//! a path without a capture is at worst a conflict with an unknown base, a full disk is nobody's
//! remedy.

use std::path::PathBuf;

/// Twice what the disk guard keeps free for the host: captures give way before a writer has to.
const RESERVE: u64 = 512 << 20;
/// Or this part of a small filesystem.
const SHARE: u64 = 10;
/// What the smallest file takes up.
const BLOCK: u64 = 4096;
/// After so much the filesystem is asked again: others write to it, too.
const STEP: u64 = 16 << 20;

/// What a file of this size takes up.
pub(super) fn taken_by(size: u64) -> u64 {
    size.max(1).div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// What is left for captures.
#[derive(Debug)]
pub(super) struct Room {
    /// A directory on the filesystem that they are kept on.
    place: PathBuf,
    /// Of what the sandbox may keep in all.
    own: u64,
    /// Of the filesystem, before it is asked again.
    spare: u64,
    is_full: bool,
}

impl Room {
    /// For at most `own` bytes, on the filesystem of `place`, which is not asked yet.
    pub(super) fn new(place: PathBuf, own: u64) -> Self {
        Self { place, own, spare: 0, is_full: false }
    }

    /// Takes room for a file of this size, if there is some.
    pub(super) fn for_file(&mut self, size: u64) -> bool {
        let taken = taken_by(size);
        let Some(own) = self.own.checked_sub(taken) else { return false };
        let fits = self.on_the_filesystem(taken);
        if fits {
            self.own = own;
        }
        fits
    }

    /// Takes room for notes. The sandbox's own sum is for bytes of files: without notes of what it
    /// changed nothing of it could be told.
    pub(super) fn for_notes(&mut self, size: u64) -> bool {
        self.on_the_filesystem(taken_by(size))
    }

    fn on_the_filesystem(&mut self, taken: u64) -> bool {
        if taken > self.spare && !self.is_full {
            self.spare = self.ask().min(STEP.max(taken));
        }
        match self.spare.checked_sub(taken) {
            Some(left) => self.spare = left,
            None => self.is_full = true,
        }
        !self.is_full
    }

    /// What can be taken before the reserve begins; nothing where that cannot be told.
    fn ask(&self) -> u64 {
        let Ok(found) = rustix::fs::statfs(&self.place) else { return 0 };
        let block = found.f_bsize as u64;
        let (total, left) = (found.f_blocks.saturating_mul(block), found.f_bavail);
        let reserve = RESERVE.min(total / SHARE);
        // Each blob is an inode; some filesystems do not count them and say zero.
        let few = found.f_files > 0 && found.f_ffree < found.f_files / SHARE;
        if few { 0 } else { left.saturating_mul(block).saturating_sub(reserve) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_kept_and_a_filesystem_that_cannot_be_asked_has_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let mut room = Room::new(dir.path().to_owned(), 3 * BLOCK);
        assert!(room.for_file(1) && room.for_file(BLOCK + 1));
        assert!(!room.for_file(0), "an empty file has an inode");
        assert!(room.for_notes(1 << 20), "notes are not of the sum");
        let mut nowhere = Room::new(dir.path().join("none"), u64::MAX);
        assert!(!nowhere.for_file(1) && !nowhere.for_notes(1));
    }
}
