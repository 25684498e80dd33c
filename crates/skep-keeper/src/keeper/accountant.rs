//! The accountant: a process beside the keeper that counts what lies in the uppers.
//!
//! A process of its own because counting a million files takes seconds, in which the keeper must
//! go on meeting deadlines, and because of directories the sandbox has closed to its own user: root
//! of a user namespace that maps just that user may read them all the same. It walks by descriptors,
//! so that no nesting makes a path too long to be followed.

use crate::identity::{IdMap, LentIds};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use skep_sys::process::{Child, Namespaces, clone_with};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

/// Directories inside each other, more than which nobody makes for a good reason: each takes a
/// descriptor while it is counted.
const DEEPEST: usize = 800;

/// What lies in a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Allocated bytes.
    pub bytes: u64,
    /// Entries.
    pub inodes: u64,
}

/// A tree nested too deeply to be counted, which no limit allows.
const UNCOUNTABLE: Usage = Usage { bytes: u64::MAX, inodes: u64::MAX };

/// The process, and the two pipes to it.
#[derive(Debug)]
pub struct Accountant {
    child: Child,
    question: OwnedFd,
    answer: OwnedFd,
}

impl Accountant {
    /// Starts it. It ends with the keeper, or when this is dropped.
    pub fn start(uppers: &[PathBuf], lent: Option<LentIds>) -> io::Result<Self> {
        let (read_question, question) = pipe_with(PipeFlags::CLOEXEC)?;
        let (answer, write_answer) = pipe_with(PipeFlags::CLOEXEC)?;
        let ids = (rustix::process::geteuid(), rustix::process::getegid());
        let map = IdMap::Own {
            user: (ids.0.as_raw(), ids.0.as_raw()),
            group: (ids.1.as_raw(), ids.1.as_raw()),
            lent,
        };
        let body = |map: Option<IdMap>| {
            let (question, answer) = (read_question.as_fd(), write_answer.as_fd());
            i32::from(serve(uppers, map, question, answer).is_err())
        };
        // Root reads everything as it is. A user who may make no user namespace counts what its
        // own modes let it read.
        let own = (!ids.0.is_root()).then(|| clone_with(Namespaces::USER, || body(Some(map))));
        let child = match own {
            Some(Ok(child)) => child,
            _ => clone_with(Namespaces::NONE, || body(None))?,
        };
        let accountant = Self { child, question, answer };
        // It waits for the first question.
        let pid = accountant.child.pid.as_raw_nonzero().get();
        map.write_for(pid).map_err(|_| io::Error::from(io::ErrorKind::PermissionDenied))?;
        Ok(accountant)
    }

    /// Asks for a count. The answer comes on [`Accountant::as_fd`].
    pub fn ask(&self) -> io::Result<()> {
        rustix::io::write(&self.question, &[1]).map(drop).map_err(Into::into)
    }

    /// Takes the answer, which must be there.
    pub fn answer(&self) -> io::Result<Usage> {
        let mut bytes = [0; 16];
        // Written in one piece, and smaller than what a pipe takes in one piece.
        if rustix::io::read(&self.answer, &mut bytes)? != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let [number, inodes] = [&bytes[..8], &bytes[8..]]
            .map(|half| half.iter().rev().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte)));
        Ok(Usage { bytes: number, inodes })
    }
}

impl AsFd for Accountant {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }
}

impl Drop for Accountant {
    fn drop(&mut self) {
        let _ = skep_sys::process::send_signal(&self.child.pidfd, Signal::KILL);
        let _ = skep_sys::process::wait_for(&self.child);
    }
}

/// The life of the accountant: one count for each byte that comes.
fn serve(
    uppers: &[PathBuf],
    map: Option<IdMap>,
    question: BorrowedFd<'_>,
    answer: BorrowedFd<'_>,
) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    skep_sys::process::close_all_but(&[question, answer])?;
    // It comes at its own time and stays: who looks at the processes of the host is told what it is.
    let _ = skep_sys::memory::set_command_line("skep: count");
    if let Some(map) = map {
        map.write_own().map_err(|_| io::Error::from(io::ErrorKind::PermissionDenied))?;
    }
    loop {
        match rustix::io::read(question, &mut [0; 1]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let usage = sum(uppers)?;
        let bytes = [usage.bytes.to_le_bytes(), usage.inodes.to_le_bytes()].concat();
        rustix::io::write(answer, &bytes)?;
    }
}

/// Sums up several trees.
pub fn sum(roots: &[PathBuf]) -> io::Result<Usage> {
    roots.iter().try_fold(Usage::default(), |total, root| {
        let more = usage(root)?;
        Ok(Usage {
            bytes: total.bytes.saturating_add(more.bytes),
            inodes: total.inodes.saturating_add(more.inodes),
        })
    })
}

/// Sums up a tree without following links. Entries that vanish meanwhile are nothing; the bytes of a
/// file of several names count once, its names each: they take room in their directory, and time here.
pub fn usage(root: &Path) -> io::Result<Usage> {
    let directory = |at: BorrowedFd<'_>, name: &std::ffi::CStr| -> rustix::io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Dir::new(openat(at, name, flags, Mode::empty())?)
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut open = vec![Dir::new(openat(CWD, root, flags, Mode::empty())?)?];
    let mut total = Usage::default();
    let mut linked = HashSet::new();
    while let Some(current) = open.last_mut() {
        let Some(Ok(entry)) = current.read() else {
            open.pop();
            continue;
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(at) = current.fd() else { continue };
        let Ok(stat) = statat(at, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        total.inodes += 1;
        if !is_directory && stat.st_nlink > 1 && !linked.insert((stat.st_dev, stat.st_ino)) {
            continue;
        }
        total.bytes += stat.st_blocks as u64 * 512;
        if is_directory && let Ok(below) = directory(at, name) {
            open.push(below);
        }
        if open.len() > DEEPEST {
            return Ok(UNCOUNTABLE);
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_there_and_the_bytes_of_a_second_name_not_again() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("d")).unwrap();
        std::fs::write(place.path().join("d/f"), vec![1; 100_000]).unwrap();
        let before = usage(place.path()).unwrap();
        assert!(before.inodes == 2 && before.bytes >= 100_000, "{before:?}");
        std::fs::hard_link(place.path().join("d/f"), place.path().join("g")).unwrap();
        let with = usage(place.path()).unwrap();
        assert_eq!((with.bytes, with.inodes), (before.bytes, before.inodes + 1));
    }

    #[test]
    fn res_5_a_path_longer_than_the_kernel_follows_is_counted() {
        let place = tempfile::tempdir().unwrap();
        let name = "d".repeat(250);
        let mut at = openat(CWD, place.path(), OFlags::PATH, Mode::empty()).unwrap();
        for _ in 0..20 {
            rustix::fs::mkdirat(&at, name.as_str(), Mode::from_raw_mode(0o700)).unwrap();
            at = openat(&at, name.as_str(), OFlags::PATH, Mode::empty()).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&at, "f", flags, Mode::from_raw_mode(0o600)).unwrap();
        rustix::io::write(&file, &vec![1; 1 << 20]).unwrap();
        let found = usage(place.path()).unwrap();
        assert!(found.inodes == 21 && found.bytes >= 1 << 20, "{found:?}");
    }

    #[test]
    fn res_5_a_tree_too_deep_to_be_counted_is_over_every_limit() {
        let place = tempfile::tempdir().unwrap();
        let mut at = openat(CWD, place.path(), OFlags::PATH, Mode::empty()).unwrap();
        for _ in 0..=DEEPEST {
            rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            at = openat(&at, "d", OFlags::PATH, Mode::empty()).unwrap();
        }
        assert_eq!(usage(place.path()).unwrap(), UNCOUNTABLE);
    }
}
