//! Who is at something that takes more than one step.
//!
//! A rejection, a freeze, a removal: between two of its steps the database says nothing of it, and whoever dies
//! there leaves something to settle. So nobody may vouch for the store ([`super::vouch`]) meanwhile. Whoever begins
//! takes the lock of `skep.db-work`, shared with others, and then makes it one byte longer; its end, and its death, let
//! go of the lock. Whoever is about to settle everything looks at the length, and then whether anybody has the lock.
//! So one who began before that look is seen by the lock, or has ended or died and is settled like anything
//! else; and one who began after it by the length. The length is part of what is vouched for, so that a note
//! does not fit while somebody is at work, nor after whoever died over it.

use super::open::beside;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Behind the name of the database.
const SUFFIX: &str = "-work";
/// Whoever looks has the lock for a moment; one that was stopped over it vouches for nothing any more.
const A_MOMENT: Duration = Duration::from_millis(200);
/// The bytes mean nothing, and are given back when there are so many.
const MANY: u64 = 1 << 16;

/// How often something was begun.
pub(super) fn count(database: &Path) -> io::Result<u64> {
    match fs::metadata(beside(database, SUFFIX)) {
        Ok(found) => Ok(found.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Begins something, which ends when the file is closed.
pub(super) fn begin(database: &Path) -> io::Result<File> {
    let path = beside(database, SUFFIX);
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let deadline = Instant::now() + A_MOMENT;
    while let Err(error) = file.try_lock_shared() {
        match error {
            TryLockError::WouldBlock if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Its look is from before the byte, and counts for nothing.
            TryLockError::WouldBlock => break,
            TryLockError::Error(error) => return Err(error),
        }
    }
    file.write_all(b".")?;
    give_back(&file);
    Ok(file)
}

/// Whether nobody is at anything.
pub(super) fn is_none(database: &Path) -> bool {
    match File::open(beside(database, SUFFIX)) {
        // Closed at once, and with it the lock.
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The length counts, the bytes do not. Where a filesystem cannot give them back they stay.
fn give_back(file: &File) {
    use rustix::fs::FallocateFlags as Flags;
    let length = file.metadata().map_or(0, |found| found.len());
    if length > 0 && length.is_multiple_of(MANY) {
        let _ = rustix::fs::fallocate(file, Flags::PUNCH_HOLE | Flags::KEEP_SIZE, 0, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn whoever_is_at_work_is_seen_by_the_lock_and_whoever_was_by_the_count() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("skep.db");
        assert!(is_none(&database) && count(&database).unwrap() == 0);
        let (one, other) = (begin(&database).unwrap(), begin(&database).unwrap());
        assert_eq!(count(&database).unwrap(), 2);
        assert!(!is_none(&database));
        drop(one);
        assert!(!is_none(&database), "the other is at it still");
        drop(other);
        assert!(is_none(&database));
        assert_eq!(count(&database).unwrap(), 2);
    }

    #[test]
    fn a_count_takes_no_room() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("skep.db");
        let path = beside(&database, SUFFIX);
        fs::write(&path, vec![b'.'; 3 * MANY as usize - 1]).unwrap();
        let before = fs::metadata(&path).unwrap().blocks();
        begin(&database).unwrap();
        assert_eq!(count(&database).unwrap(), 3 * MANY);
        let after = fs::metadata(&path).unwrap().blocks();
        // A filesystem that cannot give back keeps what it has.
        assert!(after < before.max(1) || after == before, "{before} {after}");
        begin(&database).unwrap();
        assert_eq!(count(&database).unwrap(), 3 * MANY + 1);
    }
}
