//! Keeping what came out of the project until the undo retention ends.

use super::Applied;
use super::attributes::carry_whole;
use super::copy::Copier;
use super::journal::{BACKUPS, Journal, JournalDir, Record};
use super::publish::{applied_paths, late_writes};
use super::staging::{Staging, remove_tree, slot_path};
use crate::tree::{TreeRoot, permission_bits, stat_name};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use skep_sys::failpoint;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Where copies are gathered before they count.
const GATHERING: &str = "backups.new";

/// Moves the backups to the journal and reports the apply.
///
/// The apply is complete and durable already, so nothing here makes it fail: when the backups
/// cannot be moved (no space in the state directory, say), they stay in the staging directory,
/// where an undo finds them as well.
pub(super) fn keep_backups(dir: &JournalDir, staging: Staging, journal: &Journal) -> Applied {
    let late_writes = late_writes(&staging, journal);
    let stay = staging.path().to_owned();
    let backups = match move_backups(dir, staging, journal) {
        Ok(()) => dir.path_of(BACKUPS),
        Err(_) => stay,
    };
    Applied {
        paths: applied_paths(journal),
        stripped: journal.stripped.clone(),
        late_writes,
        backups,
    }
}

/// Moves the staging directory as a whole, or copies what is in it and removes it.
pub(super) fn move_backups(
    dir: &JournalDir,
    staging: Staging,
    journal: &Journal,
) -> io::Result<()> {
    failpoint::hit("apply.backups")?;
    // Empty when nothing was replaced or removed.
    if staging.remove_staged(&[])? {
        return Ok(());
    }
    let have_copies = stat_name(dir.fd(), BACKUPS.as_bytes())?.is_some();
    if !have_copies && staging.rename_to(dir.fd(), BACKUPS).is_ok() {
        return Ok(());
    }
    // A finished copy with the staging directory still there: the end of it was interrupted.
    if !have_copies {
        copy_backups(dir, &staging, journal)?;
    }
    failpoint::hit("apply.backups_copied")?;
    staging.remove()
}

fn copy_backups(dir: &JournalDir, staging: &Staging, journal: &Journal) -> io::Result<()> {
    remove_tree(dir.fd(), GATHERING.as_bytes())?;
    rustix::fs::mkdirat(dir.fd(), GATHERING, Mode::RWXU)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = rustix::fs::openat(dir.fd(), GATHERING, flags, Mode::empty())?;
    let source = TreeRoot::from_fd(staging.fd().try_clone_to_owned()?);
    let mut copier = Copier::new();
    for record in &journal.records {
        copy_backup(&source, &target, record, &mut copier)?;
    }
    rustix::fs::syncfs(&target)?;
    rustix::fs::renameat(dir.fd(), GATHERING, dir.fd(), BACKUPS)?;
    dir.sync()
}

fn copy_backup(
    source: &TreeRoot,
    target: &OwnedFd,
    record: &Record,
    copier: &mut Copier,
) -> io::Result<()> {
    let path = slot_path(record)?;
    let Some(stat) = source.stat(&path)? else { return Ok(()) };
    let name = record.slot_name();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let (mut from, stat) = source.open_file(&path)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(target, &name, flags, Mode::RUSR | Mode::WUSR)?;
            let mut to = File::from(fd);
            copier.copy(&mut from, &stat, &mut to, u64::MAX - 1)?;
            copy_attributes(&from, &to, &stat)
        }
        FileType::Symlink => {
            let points_to = source.read_link(&path)?;
            rustix::fs::symlinkat(points_to.as_bytes(), target, &name)?;
            if rustix::process::geteuid().is_root() {
                let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(target, &name, Some(uid), Some(gid), flags)?;
            }
            Ok(())
        }
        FileType::Directory if source.list(&path)?.is_empty() => {
            rustix::fs::mkdirat(target, &name, Mode::RWXU)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let to = rustix::fs::openat(target, &name, flags, Mode::empty())?;
            copy_attributes(source.open_dir(&path)?, to, &stat)
        }
        // Only a person's decision brings such a thing here. It stays where it is.
        _ => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Owner, attributes, mode and times: an undo restores all but the last, by which it sees late writes.
fn copy_attributes(from: impl AsFd, to: impl AsFd, stat: &Stat) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::fchown(&to, Some(uid), Some(gid))?;
    }
    carry_whole(from, &to)?;
    rustix::fs::fchmod(&to, Mode::from_raw_mode(permission_bits(stat)))?;
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(stat.st_atime as _, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime as _, stat.st_mtime_nsec as _),
    };
    Ok(rustix::fs::futimens(&to, &times)?)
}
