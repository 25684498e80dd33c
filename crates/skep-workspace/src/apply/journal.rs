//! The files of one approval: intent, journal and outcome, each with a checksum, each written whole.
//!
//! - `intent.json` is written before the first effect: it says where the staging directory will be,
//!   so that it can be found and removed whatever happens next.
//! - `journal.json` is written when everything is staged and synced. It never changes afterwards.
//! - `outcome.json` says that publishing, or taking it back, is complete and synced.

use super::ApplyError;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use skep_types::{ApprovalId, ByteString, EntryState, RelPath};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub(super) const INTENT: &str = "intent.json";
pub(super) const JOURNAL: &str = "journal.json";
pub(super) const OUTCOME: &str = "outcome.json";
pub(super) const BACKUPS: &str = "backups";

/// Which staging directory it is: beside the project, or in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    /// In the directory that holds the project: invisible to sandboxes and to watchers of it.
    Beside,
    /// In the project's root, where the directory above is another mount or not ours to write.
    Inside,
}

/// What is about to be staged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Intent {
    pub id: ApprovalId,
    pub project: ByteString,
    pub root: (u64, u64),
    pub place: Place,
    pub note: serde_json::Value,
}

/// Enough of an inode's `stat` to see whether it is the same one, unwritten since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub ino: u64,
    pub size: u64,
    pub mtime: (i64, u64),
    pub ctime: (i64, u64),
}

impl Mark {
    pub fn of(stat: &Stat) -> Self {
        Self {
            ino: stat.st_ino,
            size: stat.st_size as u64,
            mtime: (stat.st_mtime, stat.st_mtime_nsec),
            ctime: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Whether the bytes are the same ones. Moving an inode sets its ctime, so that is left out.
    pub fn same_bytes(&self, other: &Self) -> bool {
        (self.ino, self.size, self.mtime) == (other.ino, other.size, other.mtime)
    }
}

/// One changed path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Names its entry in the staging directory, and its backup.
    pub slot: u32,
    pub path: RelPath,
    pub before: EntryState,
    /// As it will stand in the project: without the bits that are dropped.
    pub after: EntryState,
    /// What was found in the project.
    pub found: Option<Mark>,
    /// What was put into the slot.
    pub staged: Option<Mark>,
}

impl Record {
    pub fn slot_name(&self) -> String {
        self.slot.to_string()
    }
}

/// Everything recovery needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Journal {
    pub intent: Intent,
    /// Inode of the staging directory.
    pub staging: u64,
    /// A clock reading from before the verification (the ctime of the intent file).
    pub verified_from: (i64, u64),
    pub records: Vec<Record>,
    pub stripped: Vec<RelPath>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Published,
    RolledBack,
}

/// What reading one of the files gave.
#[derive(Debug)]
pub(super) enum Found<T> {
    Absent,
    /// Half-written, or damaged.
    Damaged,
    Good(T),
}

/// The directory that holds them.
#[derive(Debug)]
pub(super) struct JournalDir {
    path: PathBuf,
    fd: OwnedFd,
}

impl JournalDir {
    pub fn open(path: &Path) -> Result<Self, ApplyError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| ApplyError::Own {
            operation: "open the journal directory",
            path: path.to_owned(),
            source: errno.into(),
        })?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// As [`JournalDir::open`]; `None` only where there surely is no such directory. One that cannot
    /// be looked at now is not gone: what it says of a project would be thrown away.
    pub fn open_if_there(path: &Path) -> Result<Option<Self>, ApplyError> {
        match Self::open(path) {
            Ok(dir) => Ok(Some(dir)),
            Err(ApplyError::Own { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file whole: under another name, synced, renamed, directory synced.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), ApplyError> {
        self.try_write(name, value).map_err(|source| ApplyError::Own {
            operation: "write",
            path: self.path_of(name),
            source,
        })
    }

    fn try_write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        let mut text = serde_json::to_vec(value)?;
        let checksum = blake3::hash(&text).to_hex();
        text.push(b'\n');
        text.extend_from_slice(checksum.as_bytes());
        text.push(b'\n');
        let temporary = format!("{name}.new");
        self.remove_name(&temporary)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(rustix::fs::openat(&self.fd, &temporary, flags, mode)?);
        file.write_all(&text)?;
        skep_sys::failpoint::hit("apply.journal_unsynced")?;
        file.sync_all()?;
        skep_sys::failpoint::hit("apply.journal_synced")?;
        rustix::fs::renameat(&self.fd, &temporary, &self.fd, name)?;
        self.sync()
    }

    /// The ctime of one of the files: the kernel's clock when it was written.
    pub fn written_at(&self, name: &str) -> Result<(i64, u64), ApplyError> {
        let stat = crate::tree::stat_name(self.fd(), name.as_bytes());
        let stat = stat.and_then(|stat| Ok(stat.ok_or(Errno::NOENT)?));
        let stat = stat.map_err(|source| ApplyError::Own {
            operation: "look at",
            path: self.path_of(name),
            source,
        })?;
        Ok(Mark::of(&stat).ctime)
    }

    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Found<T>, ApplyError> {
        self.try_read(name).map_err(|source| ApplyError::Own {
            operation: "read",
            path: self.path_of(name),
            source,
        })
    }

    fn try_read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Found<T>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut text = Vec::new();
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd).read_to_end(&mut text)?,
            Err(Errno::NOENT) => return Ok(Found::Absent),
            Err(errno) => return Err(errno.into()),
        };
        Ok(parse_checked(&text).map_or(Found::Damaged, Found::Good))
    }

    /// Removes one file; succeeds if it is gone already.
    pub fn remove(&self, name: &str) -> Result<(), ApplyError> {
        self.remove_name(name).map_err(|source| ApplyError::Own {
            operation: "remove",
            path: self.path_of(name),
            source,
        })
    }

    fn remove_name(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The journal, or the reason why it is of no use.
    pub fn journal(&self) -> Result<Journal, ApplyError> {
        let reason = match self.read(JOURNAL)? {
            Found::Good(journal) => return Ok(journal),
            Found::Absent => "it does not exist",
            Found::Damaged => "its checksum is wrong",
        };
        Err(ApplyError::Journal { path: self.path_of(JOURNAL), reason: reason.to_owned() })
    }
}

/// One line of JSON, one line with its checksum.
/// Reads a journal from bytes and plans its steps, for the fuzzer: whatever the bytes are, they are
/// refused or understood. Gives the number of steps.
#[doc(hidden)]
pub fn steps_of(text: &[u8]) -> Option<usize> {
    let journal: Journal = parse_checked(text)?;
    Some(super::plan::plan(&journal.records).len())
}

fn parse_checked<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    let rest = text.strip_suffix(b"\n")?;
    let cut = rest.iter().rposition(|byte| *byte == b'\n')?;
    let (body, checksum) = (&rest[..cut], &rest[cut + 1..]);
    if blake3::hash(body).to_hex().as_bytes() != checksum {
        return None;
    }
    serde_json::from_slice(body).ok()
}
