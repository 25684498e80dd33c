//! A pinned directory tree: every path below it is resolved from one descriptor, never by text.
//!
//! The project and the agent-written uppers are trees that somebody else may rearrange while we
//! look. Each resolution therefore goes through `openat2` with `BENEATH`, `NO_SYMLINKS`,
//! `NO_MAGICLINKS` and `NO_XDEV`: a parent that was swapped for a symlink, or a mount that appeared
//! below the root, makes the operation fail instead of leading it elsewhere. Errors are plain
//! [`io::Error`]s; the caller knows the path and says it.

use rustix::fs::{
    AtFlags, Dir, DirEntry, FileType, Mode, OFlags, ResolveFlags, Stat, Statx, StatxFlags,
};
use rustix::io::Errno;
use skep_types::{ByteString, ContentHash, EntryState, RelPath, SpecialKind};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// How often a resolution is tried again when the kernel says that a rename went on beside it.
const RESOLVE_ATTEMPTS: usize = 128;

/// The names in a directory, with their types.
pub type Names = Vec<(Vec<u8>, FileType)>;

/// A directory held open; see the module's text.
#[derive(Debug)]
pub struct TreeRoot {
    fd: OwnedFd,
}

impl TreeRoot {
    /// Pins the directory at `path`. The path itself may lead over symlinks: it is the caller's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Takes a directory that is open already.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// The descriptor. It may be an `O_PATH` one: good for `*at` calls, not for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Device and inode of the root.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Opens `path` below the root, creating nothing, with the fence of the module's text.
    pub fn open_beneath(&self, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
        open_fenced(self.fd.as_fd(), path.as_path_or_dot(), flags)
    }

    /// What `lstat` says of `path`; `None` when nothing is there, or when a parent is absent, a
    /// symlink or no directory (then nothing *of this tree* is there).
    pub fn stat(&self, path: &RelPath) -> io::Result<Option<Stat>> {
        Ok(self.handle(path)?.map(|(_, stat)| stat))
    }

    /// A handle on the entry itself (`O_PATH`, a symlink is not followed) and its `lstat`.
    fn handle(&self, path: &RelPath) -> io::Result<Option<(OwnedFd, Stat)>> {
        match self.open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd)?;
                Ok(Some((fd, stat)))
            }
            Err(error) if means_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A handle on a directory, for `*at` calls (`O_PATH`).
    pub fn open_dir(&self, path: &RelPath) -> io::Result<OwnedFd> {
        self.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW)
    }

    /// Opens a regular file for reading. Anything else is refused without being opened: opening a
    /// FIFO or a device can block, or do something.
    pub fn open_file(&self, path: &RelPath) -> io::Result<(File, Stat)> {
        let before = self.stat(path)?.ok_or(Errno::NOENT)?;
        require_regular(before.st_mode)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(self.open_beneath(path, flags)?);
        let stat = rustix::fs::fstat(&file)?;
        require_regular(stat.st_mode)?;
        Ok((file, stat))
    }

    /// Where the symlink at `path` points.
    pub fn read_link(&self, path: &RelPath) -> io::Result<ByteString> {
        let (fd, _) = self.handle(path)?.ok_or(Errno::NOENT)?;
        link_target(&fd)
    }

    /// The names in a directory with their types, sorted by bytes; `.` and `..` left out.
    pub fn list(&self, path: &RelPath) -> io::Result<Names> {
        let fd = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
        list_dir(fd)
    }

    /// As [`TreeRoot::list`], in no order; `None` when there are more than `most`.
    pub fn list_some(&self, path: &RelPath, most: usize) -> io::Result<Option<Names>> {
        let fd = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
        let mut names = Vec::new();
        let mut entries = Dir::new(fd)?;
        while let Some(entry) = entries.next().transpose()? {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == most {
                return Ok(None);
            }
            names.extend(kind_of(entries.fd()?, &entry)?.map(|kind| (name.to_vec(), kind)));
        }
        Ok(Some(names))
    }

    /// What stands at `path`, with the hash of its bytes when it is a file.
    pub fn state(&self, path: &RelPath) -> io::Result<EntryState> {
        Ok(self.state_and_stat(path)?.0)
    }

    /// As [`TreeRoot::state`], with the `lstat` taken *before* the bytes were read: a write that
    /// comes later shows as a difference to it.
    pub fn state_and_stat(&self, path: &RelPath) -> io::Result<(EntryState, Option<Stat>)> {
        let Some((fd, stat)) = self.handle(path)? else {
            return Ok((EntryState::Absent, None));
        };
        let mode = permission_bits(&stat);
        let state = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return self.file_state(path),
            FileType::Directory => EntryState::Dir { mode },
            FileType::Symlink => EntryState::Symlink { target: link_target(&fd)? },
            FileType::Fifo => EntryState::Special { what: SpecialKind::Fifo },
            FileType::Socket => EntryState::Special { what: SpecialKind::Socket },
            FileType::CharacterDevice => EntryState::Special { what: SpecialKind::CharDevice },
            FileType::BlockDevice => EntryState::Special { what: SpecialKind::BlockDevice },
            FileType::Unknown => return Err(Errno::OPNOTSUPP.into()),
        };
        Ok((state, Some(stat)))
    }

    fn file_state(&self, path: &RelPath) -> io::Result<(EntryState, Option<Stat>)> {
        let (file, stat) = self.open_file(path)?;
        let (hash, size) = crate::holes::hash_file(&file, stat.st_size as u64)?;
        Ok((EntryState::File { hash, size, mode: permission_bits(&stat) }, Some(stat)))
    }

    /// The bytes of the file at `path`; more than `limit` of them is an error
    /// ([`io::ErrorKind::FileTooLarge`]).
    pub fn read(&self, path: &RelPath, limit: u64) -> io::Result<Vec<u8>> {
        let (file, stat) = self.open_file(path)?;
        let expected = (stat.st_size as u64).min(limit);
        let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit { Err(Errno::FBIG.into()) } else { Ok(bytes) }
    }
}

/// Opens a way below a directory, creating nothing, with the fence of the module's text.
pub(crate) fn open_fenced(
    directory: BorrowedFd<'_>,
    way: &Path,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC;
    let mut attempts = 0;
    loop {
        match rustix::fs::openat2(directory, way, flags, Mode::empty(), resolve) {
            // openat2(2): EAGAIN means that a rename raced with the walk; it asks to retry.
            Err(Errno::AGAIN | Errno::INTR) if attempts < RESOLVE_ATTEMPTS => attempts += 1,
            result => return Ok(result?),
        }
    }
}

/// What `lstat` says of an entry, as far as a review asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// The filesystem it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Its names.
    pub links: u64,
    /// Which device it stands for.
    pub stands_for: u64,
    /// Change time: seconds and nanoseconds.
    pub changed: (i64, i64),
    /// When its bytes were last written, as far as programs let it be.
    pub written: (i64, i64),
    /// When it was made, where the filesystem says so and it was asked. Unlike the other times of
    /// an entry a program cannot move it.
    pub made_ns: Option<i128>,
}

impl Meta {
    /// Of a `stat`, which does not tell when the entry was made.
    #[allow(clippy::unnecessary_cast, reason = "the number of links has 32 bits on aarch64")]
    pub fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            mode: stat.st_mode,
            size: stat.st_size as u64,
            links: stat.st_nlink as u64,
            stands_for: stat.st_rdev,
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
            written: (stat.st_mtime, stat.st_mtime_nsec as i64),
            made_ns: None,
        }
    }

    /// Of a `statx`.
    pub(crate) fn of_statx(found: &Statx) -> Self {
        let known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let made = found.stx_btime;
        Self {
            device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            mode: u32::from(found.stx_mode),
            size: found.stx_size,
            links: u64::from(found.stx_nlink),
            stands_for: rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor),
            changed: (found.stx_ctime.tv_sec, i64::from(found.stx_ctime.tv_nsec)),
            written: (found.stx_mtime.tv_sec, i64::from(found.stx_mtime.tv_nsec)),
            made_ns: known
                .then(|| i128::from(made.tv_sec) * 1_000_000_000 + i128::from(made.tv_nsec)),
        }
    }

    /// Of an open entry.
    pub(crate) fn of_open(entry: impl AsFd) -> io::Result<Self> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        Ok(Self::of_statx(&rustix::fs::statx(entry, "", AtFlags::EMPTY_PATH, mask)?))
    }

    /// What it is.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// The permission bits with set-uid, set-gid and sticky (`0o7777`).
    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// Whether an error of a resolution says that nothing of this tree is at the path.
pub(crate) fn means_absent(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NOTDIR, Errno::LOOP]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// The permission bits with set-uid, set-gid and sticky (`0o7777`).
pub(crate) fn permission_bits(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

/// The names in an open directory (not an `O_PATH` one), sorted by bytes.
pub(crate) fn list_dir(fd: OwnedFd) -> io::Result<Vec<(Vec<u8>, FileType)>> {
    let mut names = Vec::new();
    let mut entries = Dir::new(fd)?;
    while let Some(entry) = entries.next().transpose()? {
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.extend(kind_of(entries.fd()?, &entry)?.map(|kind| (name.to_vec(), kind)));
        }
    }
    names.sort_by(|one, two| one.0.cmp(&two.0));
    Ok(names)
}

/// What an entry of the open directory `parent` is; `None` when it has gone meanwhile.
///
/// Not every filesystem says it in its directories (ext4 without `filetype`, XFS with `ftype=0`, many
/// in user space): an unknown entry is asked, because it may be a directory with things in it.
pub fn kind_of(parent: BorrowedFd<'_>, entry: &DirEntry) -> io::Result<Option<FileType>> {
    match entry.file_type() {
        FileType::Unknown => Ok(stat_name(parent, entry.file_name().to_bytes())?
            .map(|stat| FileType::from_raw_mode(stat.st_mode))),
        known => Ok(Some(known)),
    }
}

/// Hash and length of everything a reader gives. `expected` only sizes the buffer.
pub(crate) fn hash_reader(mut reader: impl Read, expected: u64) -> io::Result<(ContentHash, u64)> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; expected.clamp(512, 256 << 10) as usize + 1];
    let mut size = 0;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(&buffer[..count]);
                size += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((ContentHash::from_bytes(*hasher.finalize().as_bytes()), size))
}

/// The target of a symlink that is held by an `O_PATH` descriptor.
fn link_target(fd: &OwnedFd) -> io::Result<ByteString> {
    let target = rustix::fs::readlinkat(fd, "", Vec::new())?;
    Ok(target.into_bytes().into())
}

pub(crate) fn require_regular(mode: u32) -> io::Result<()> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR.into()),
        FileType::Symlink => Err(Errno::LOOP.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
}

/// `lstat` of one name in an open directory; `None` when it is absent.
pub(crate) fn stat_name(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn symlinks_are_entries_and_never_ways() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::fs::write(dir.path().join("real/file"), "bytes").unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        symlink("/etc/passwd", dir.path().join("out")).unwrap();
        let root = TreeRoot::open(dir.path()).unwrap();
        assert!(root.stat(&path("real/file")).unwrap().is_some());
        assert!(root.stat(&path("link/file")).unwrap().is_none());
        assert!(root.stat(&path("real/file/below")).unwrap().is_none());
        assert!(root.stat(&path("none/below")).unwrap().is_none());
        assert_eq!(root.state(&path("link/file")).unwrap(), EntryState::Absent);
        let link = EntryState::Symlink { target: "/etc/passwd".into() };
        assert_eq!(root.state(&path("out")).unwrap(), link);
        assert_eq!(root.read_link(&path("out")).unwrap(), "/etc/passwd".into());
        assert!(root.open_file(&path("out")).is_err());
        assert!(root.open_dir(&path("link")).is_err());
        assert!(root.list(&path("link")).is_err());
    }

    #[test]
    fn files_are_read_up_to_a_limit_and_listed_by_bytes() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a", "B"] {
            std::fs::write(dir.path().join(name), "12345").unwrap();
        }
        let root = TreeRoot::open(dir.path()).unwrap();
        let names: Vec<_> =
            root.list(&RelPath::root()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [b"B", b"a", b"b"]);
        assert_eq!(root.read(&path("a"), 5).unwrap(), b"12345");
        let error = root.read(&path("a"), 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let EntryState::File { hash, size, .. } = root.state(&path("a")).unwrap() else {
            panic!("not a file")
        };
        assert_eq!((hash, size), (ContentHash::of(b"12345"), 5));
    }

    #[test]
    fn special_files_are_named_and_not_opened() {
        use rustix::fs::{CWD, mknodat};
        let dir = tempfile::tempdir().unwrap();
        mknodat(CWD, dir.path().join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let root = TreeRoot::open(dir.path()).unwrap();
        let state = root.state(&path("fifo")).unwrap();
        assert_eq!(state, EntryState::Special { what: SpecialKind::Fifo });
        // Opening it for reading would wait for a writer for ever.
        assert!(root.open_file(&path("fifo")).is_err());
    }
}
