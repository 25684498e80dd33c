//! Whether the database is as it was when somebody last looked at all of it.
//!
//! Whoever has had the store open, settled everything and found nothing amiss notes, when it lets go of it, how its files
//! look: which they are, how long, and when they were last changed, and since which start of the machine. Whoever finds them so need not open
//! them to know that there is nothing new: no other state, no change half made, no damage, no newer
//! schema, no missing log. Anything that was written to them since, by whomever, looks different.
//!
//! Nobody vouches for what others have done since it looked: they may be at it still, or have died over it. SQLite
//! tells whether another connection has changed something; and the file itself, beside the log, is changed by
//! nobody but whoever folds the log.

use super::open::beside;
use super::{SqliteStore, migrate};
use crate::{Result, StoreError};
use rusqlite::Transaction;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Behind the name of the database.
const SUFFIX: &str = "-vouched";

/// What was there when everything was settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settled {
    /// How the file looked.
    file: String,
    /// A number that is another one when somebody else has changed something.
    version: i64,
}

/// How the files of a database look; `None` where one of them is missing or shut.
fn looks(path: &Path) -> Option<String> {
    // After a restart there is something to settle.
    let boot = skep_sys::process::boot_id().ok()?;
    let schema = migrate::MIGRATIONS.len();
    let (file, log) = (look(path)?, look(&beside(path, "-wal"))?);
    Some(format!("schema {schema}, boot {boot}\n{file}\n{log}\n"))
}

fn look(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    if found.mode() & 0o7777 != super::OWNERS {
        return None;
    }
    let (device, inode, size) = (found.dev(), found.ino(), found.len());
    let changed = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
    Some(format!("{device} {inode} {size} {changed:?}"))
}

/// Whether a database is as it was when it was last vouched for.
pub(crate) fn is_vouched_for(path: &Path) -> bool {
    let Some(now) = looks(path) else { return false };
    fs::read(beside(path, SUFFIX)).is_ok_and(|noted| noted == now.as_bytes())
}

impl SqliteStore {
    /// Nobody has vouched for anything any more.
    pub(super) fn remove_note(&self) {
        // Not there is as good.
        let _ = fs::remove_file(beside(self.path(), SUFFIX));
    }

    /// What is there now.
    pub(super) fn present(&self) -> Option<Settled> {
        let file = look(self.path())?;
        let read = |tx: &Transaction<'_>| {
            Ok(tx.pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0))?)
        };
        Some(Settled { file, version: self.read("look who has changed", read).ok()? })
    }

    /// Notes how the files look, if nobody else has changed anything since everything was settled. Half a note,
    /// or an old one, is like none.
    pub(super) fn note_looks(&self, settled: &Settled) -> Result<()> {
        // First how they look: what is changed after that looks different again.
        let Some(now) = looks(self.path()) else { return Ok(()) };
        if self.present().as_ref() != Some(settled) {
            return Ok(());
        }
        let note = beside(self.path(), SUFFIX);
        if fs::read(&note).is_ok_and(|noted| noted == now.as_bytes()) {
            return Ok(());
        }
        let options =
            || OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&note);
        let written = options().and_then(|file| {
            file.write_all_at(now.as_bytes(), 0)?;
            file.set_len(now.len() as u64)
        });
        written.map_err(|source| StoreError::Io { operation: "write", path: note, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Housekeeping as _, LedgerStore as _, NewInstance};

    #[test]
    fn nobody_vouches_for_what_others_did() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let open = || SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
        let (mine, other) = (open(), open());
        mine.vouch();
        assert!(!is_vouched_for(&path), "nothing was settled");
        mine.note_settled();
        mine.set_meta("a", "b").unwrap();
        mine.vouch();
        assert!(is_vouched_for(&path), "what one did oneself");
        other.set_meta("c", "d").unwrap();
        mine.vouch();
        assert!(!is_vouched_for(&path), "what somebody else did");
        mine.revoke();
        mine.set_meta("e", "f").unwrap();
        mine.vouch();
        assert!(!is_vouched_for(&path), "what both did");
        other.note_settled();
        other.vouch();
        assert!(is_vouched_for(&path));
        other.revoke();
        assert!(!is_vouched_for(&path), "it was taken back");
        // A byte in the file is nobody's commit.
        other.note_settled();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"\0", 4090).unwrap();
        other.set_meta("g", "h").unwrap();
        other.vouch();
        assert!(!is_vouched_for(&path));
    }

    #[test]
    fn whatever_is_done_to_the_files_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let open = || SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
        let vouch = || {
            let store = open();
            store.note_settled();
            store.vouch();
        };
        assert!(!is_vouched_for(&path));
        vouch();
        assert!(is_vouched_for(&path));
        let log = beside(&path, "-wal");
        let note = beside(&path, SUFFIX);
        let acts: [(&str, &dyn Fn()); 8] = [
            ("a commit", &|| open().set_meta("a", "b").unwrap()),
            ("a flipped bit", &|| {
                let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, 4000).unwrap();
                file.write_all_at(&byte, 4000).unwrap();
            }),
            ("another mode", &|| {
                fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o400))
                    .unwrap();
            }),
            ("another file", &|| {
                fs::remove_file(beside(&path, ".copy")).unwrap_or_default();
                fs::copy(&path, beside(&path, ".copy")).unwrap();
                fs::rename(beside(&path, ".copy"), &path).unwrap();
            }),
            ("a log that was cut", &|| {
                let log = OpenOptions::new().write(true).open(&log).unwrap();
                log.set_len(log.metadata().unwrap().len() - 1).unwrap();
            }),
            ("a log that is gone", &|| {
                fs::rename(&log, beside(&log, ".away")).unwrap();
            }),
            ("a note that was cut", &|| {
                OpenOptions::new().write(true).open(&note).unwrap().set_len(9).unwrap();
            }),
            ("no note", &|| fs::remove_file(&note).unwrap()),
        ];
        for (what, act) in acts {
            act();
            assert!(!is_vouched_for(&path), "{what}");
            let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(&path, owner).unwrap();
            if !log.exists() {
                fs::rename(beside(&log, ".away"), &log).unwrap();
            }
            vouch();
            assert!(is_vouched_for(&path), "after {what}");
        }
    }
}
