//! Whether the database is as it was when somebody last looked at all of it.
//!
//! Whoever has had the store open, settled everything and found nothing amiss notes, when it lets go of it, how its files
//! look: which they are, how long, and when they were last changed, and since which start of the machine. Whoever finds them so need not open
//! them to know that there is nothing new: no other state, no change half made, no damage, no newer
//! schema, no missing log. Anything that was written to them since, by whomever, looks different.
//!
//! Nobody vouches for what others have done since it looked: they may be at it still, or have died over it. SQLite
//! tells whether another connection has changed something; the file itself, beside the log, is changed by
//! nobody but whoever folds the log; and who is at something that takes several steps says so ([`super::work`]).

use super::open::beside;
use super::{SqliteStore, migrate, work};
use crate::{Result, StoreError};
use rusqlite::Transaction;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Behind the name of the database.
const SUFFIX: &str = "-vouched";

/// What was there when everything was settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settled {
    /// How the file looked.
    file: String,
    /// A number that is another one when somebody else has changed something.
    version: i64,
    /// How often somebody else has begun something.
    begun: u64,
}

/// How the files of a database look; `None` where one of them is missing or shut.
fn looks(path: &Path) -> Option<String> {
    // After a restart there is something to settle.
    let boot = skep_sys::process::boot_id().ok()?;
    let schema = migrate::MIGRATIONS.len();
    let (file, log) = (look(path)?, look(&beside(path, "-wal"))?);
    let begun = work::count(path).ok()?;
    Some(format!("schema {schema}, boot {boot}\n{file}\n{log}\n{begun} begun\n"))
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

    /// Looks who is at what, before everything is settled. The count first: whoever began before it has the
    /// lock, or has ended.
    pub(super) fn note_others(&self) {
        let begun = self.begun_by_others().filter(|_| work::is_none(self.path()));
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = begun;
    }

    /// What is there now that everything is settled; `None` if somebody was at something when that began, or
    /// has begun something since.
    pub(super) fn settled_now(&self) -> Option<Settled> {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.present().filter(|now| looked == Some(now.begun))
    }

    /// How often somebody began something who does not have this handle.
    fn begun_by_others(&self) -> Option<u64> {
        let own = self.begun.load(Ordering::Relaxed);
        work::count(self.path()).ok()?.checked_sub(own)
    }

    /// Says that something is begun. Where that cannot be said, nobody vouches for anything.
    pub(super) fn take_work(&self) -> Option<fs::File> {
        let begun = work::begin(self.path());
        match &begun {
            Ok(_) => drop(self.begun.fetch_add(1, Ordering::Relaxed)),
            Err(_) => {
                self.remove_note();
                *self.settled.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        }
        begun.ok()
    }

    /// What is there now.
    pub(super) fn present(&self) -> Option<Settled> {
        let file = look(self.path())?;
        let read = |tx: &Transaction<'_>| {
            Ok(tx.pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0))?)
        };
        let begun = self.begun_by_others()?;
        Some(Settled { file, version: self.read("look who has changed", read).ok()?, begun })
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
        let settle = |store: &SqliteStore| {
            store.look_around();
            store.note_settled();
        };
        mine.vouch();
        assert!(!is_vouched_for(&path), "nothing was settled");
        settle(&mine);
        mine.set_meta("a", "b").unwrap();
        mine.vouch();
        assert!(is_vouched_for(&path), "what one did oneself");
        other.set_meta("c", "d").unwrap();
        mine.vouch();
        assert!(!is_vouched_for(&path), "what somebody else did");
        mine.set_meta("e", "f").unwrap();
        mine.vouch();
        assert!(!is_vouched_for(&path), "what both did");
        settle(&other);
        other.vouch();
        assert!(is_vouched_for(&path));
        // A byte in the file is nobody's commit.
        settle(&other);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"\0", 4090).unwrap();
        other.set_meta("g", "h").unwrap();
        other.vouch();
        assert!(!is_vouched_for(&path));
    }

    /// Each beginning and end of somebody's work, between each two steps of whoever settles and vouches.
    #[test]
    fn nobody_vouches_while_somebody_is_at_something() {
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let steps: [fn(&SqliteStore); 3] =
            [|store| store.look_around(), |store| store.note_settled(), |store| store.vouch()];
        for begins in 0..=steps.len() {
            for ends in begins..=steps.len() + 1 {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("skep.db");
                let open = || SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
                let (mine, other) = (open(), open());
                let mut work = None;
                for (number, step) in steps.iter().enumerate() {
                    if number == begins {
                        work = Some(other.begin_work());
                    }
                    if number == ends {
                        work = None;
                    }
                    step(&mine);
                }
                if begins == steps.len() {
                    assert!(is_vouched_for(&path), "the control: nobody was at anything");
                    work = Some(other.begin_work());
                }
                // It ended before anybody looked, or it is not vouched for, also if it dies.
                let is_early = begins == 0 && ends == 0;
                assert_eq!(is_vouched_for(&path), is_early, "from {begins} to {ends}");
                drop(work);
                assert_eq!(is_vouched_for(&path), is_early, "from {begins} to {ends}, died");
            }
        }
    }

    #[test]
    fn what_one_has_begun_oneself_is_vouched_for_when_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let store = SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
        store.look_around();
        drop(store.begin_work());
        store.note_settled();
        drop(store.begin_work());
        store.vouch();
        assert!(is_vouched_for(&path));
        drop(store.begin_work());
        assert!(!is_vouched_for(&path), "who dies over it");
        store.vouch();
        assert!(is_vouched_for(&path));
    }

    #[test]
    fn whatever_is_done_to_the_files_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.db");
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let open = || SqliteStore::open(&path, Access::ReadWrite, &first).unwrap();
        let vouch = || {
            let store = open();
            store.look_around();
            store.note_settled();
            store.vouch();
        };
        assert!(!is_vouched_for(&path));
        vouch();
        assert!(is_vouched_for(&path));
        let log = beside(&path, "-wal");
        let note = beside(&path, SUFFIX);
        let acts: [(&str, &dyn Fn()); 9] = [
            ("a commit", &|| open().set_meta("a", "b").unwrap()),
            ("something that was begun", &|| drop(open().begin_work())),
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
