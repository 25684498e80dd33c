//! Files that have no name any more and take up room all the same: open, or mapped into memory. No
//! walk of a tree finds them.

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, statat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use skep_sys::process::{Child, Namespaces, clone_with, close_all_but, send_signal, wait_for};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `statfs` type of overlayfs.
const OVERLAY: i64 = 0x794c_7630;

/// Of which device, and which number there.
type Inode = (u64, u64);

/// A process that searches all descriptors there are, however long that takes.
#[derive(Debug)]
pub(super) struct Searcher {
    child: Child,
    answer: OwnedFd,
}

impl Searcher {
    /// Starts it; it ends with the keeper, or when this is dropped.
    pub(super) fn start(pids: &[Pid], kind: i64) -> io::Result<Self> {
        let (answer, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let child = clone_with(Namespaces::NONE, move || {
            let ends = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            if ends.is_err() || close_all_but(&[write.as_fd()]).is_err() {
                return 1;
            }
            let found = search(pids, kind, None).bytes;
            i32::from(rustix::io::write(&write, &found.to_le_bytes()).is_err())
        })?;
        Ok(Self { child, answer })
    }

    /// What it has found; one that died has found nothing.
    pub(super) fn answer(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        match rustix::io::read(&self.answer, &mut bytes) {
            Ok(8) => Some(u64::from_le_bytes(bytes)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Ok(_) | Err(_) => Some(0),
        }
    }
}

impl Drop for Searcher {
    fn drop(&mut self) {
        let _ = send_signal(&self.child.pidfd, Signal::KILL);
        let _ = wait_for(&self.child);
    }
}

/// What a search has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Bytes of deleted files.
    pub bytes: u64,
    /// Whether all that can be seen was looked at in the time given.
    pub all: bool,
    /// Whether somebody may have files that cannot be seen: it shows nothing of itself, because it runs
    /// a program that may not be read, or has lost its first thread; or descriptors are under way to a
    /// socket of its.
    pub hides: bool,
}

/// Files that have no name any more but a descriptor or a mapping, on the overlay or, for a copied
/// workspace, on the filesystem of this kind. The first process is ours and hides nothing.
pub(super) fn search(pids: &[Pid], kind: i64, patience: Option<Duration>) -> Found {
    let start = Instant::now();
    let mut seen = HashSet::new();
    let mut total: u64 = 0;
    let mut hides = false;
    for (index, pid) in pids.iter().enumerate() {
        let table = format!("/proc/{}/fd", pid.as_raw_nonzero());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(table.as_str(), flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::ACCESS | Errno::PERM) => {
                hides |= index > 0 && lives(*pid);
                continue;
            }
            // Gone meanwhile.
            Err(_) => continue,
        };
        let Ok(entries) = Dir::read_from(&opened) else { continue };
        let mut shows_some = false;
        for entry in entries.flatten() {
            shows_some |= !entry.file_name().to_bytes().starts_with(b".");
            if patience.is_some_and(|patience| start.elapsed() > patience) {
                return Found { bytes: total, all: false, hides };
            }
            // One step from the table: half of the time that a path from the root takes.
            let name = entry.file_name();
            let Ok(stat) = statat(&opened, name, AtFlags::empty()) else { continue };
            let kind_of_file = FileType::from_raw_mode(stat.st_mode);
            hides |= kind_of_file == FileType::Socket && has_some_under_way(*pid, name);
            let file = kind_of_file == FileType::RegularFile;
            if stat.st_nlink > 0 || !file || stat.st_blocks == 0 {
                continue;
            }
            if !seen.insert((stat.st_dev, stat.st_ino)) {
                continue;
            }
            let path = format!("{table}/{}", name.to_string_lossy());
            let on = rustix::fs::statfs(path.as_str()).map_or(0, |stat| stat.f_type);
            if on == OVERLAY || on == kind {
                total = total.saturating_add(stat.st_blocks as u64 * 512);
            }
        }
        hides |= !shows_some && index > 0 && is_headless(*pid);
        total = total.saturating_add(mapped(*pid, kind, &mut seen));
    }
    Found { bytes: total, all: true, hides }
}

/// Who has ended shows nothing of itself either.
fn lives(process: Pid) -> bool {
    state(process).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X')) || is_headless(process)
}

/// Whether its first thread has ended and others have not: it shows nothing of what they have.
fn is_headless(process: Pid) -> bool {
    state(process).is_some_and(|(state, threads)| state == 'Z' && threads > 1)
}

/// The state of a process, and its threads.
fn state(process: Pid) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    let mut words = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
    Some((words.next()?.chars().next()?, words.nth(16)?.parse().ok()?))
}

/// Whether descriptors wait at a socket to be received.
fn has_some_under_way(process: Pid, descriptor: &std::ffi::CStr) -> bool {
    let number = descriptor.to_string_lossy();
    let path = format!("/proc/{}/fdinfo/{number}", process.as_raw_nonzero());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.is_some_and(|count| count.trim() != "0")
}

/// What a process has mapped and closed. Root can look at the file behind a mapping; others know how
/// much of it is mapped, and on which device it lies.
fn mapped(process: Pid, kind: i64, seen: &mut HashSet<Inode>) -> u64 {
    let directory = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
    let Ok(maps) = std::fs::read_to_string(directory.join("maps")) else { return 0 };
    let mut overlays = None;
    let mut sizes: HashMap<Inode, u64> = HashMap::new();
    for mapping in maps.lines().filter_map(Mapping::parse) {
        if seen.contains(&mapping.inode) {
            continue;
        }
        let file = directory.join("map_files").join(mapping.range);
        if let Ok(stat) = rustix::fs::stat(&file) {
            let on = rustix::fs::statfs(&file).map_or(0, |stat| stat.f_type);
            if on == OVERLAY || on == kind {
                sizes.insert(mapping.inode, stat.st_blocks as u64 * 512);
            }
            continue;
        }
        let overlays = overlays.get_or_insert_with(|| overlays_of(&directory));
        if overlays.contains(&mapping.inode.0) {
            let size = sizes.entry(mapping.inode).or_default();
            *size = size.saturating_add(mapping.length);
        }
    }
    seen.extend(sizes.keys());
    sizes.into_values().fold(0, u64::saturating_add)
}

/// A line of `/proc/PID/maps` about a deleted file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    range: &'a str,
    length: u64,
    inode: Inode,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let line = line.strip_suffix(" (deleted)")?;
        let mut words = line.split_ascii_whitespace();
        let range = words.next()?;
        let (start, end) = range.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let length = number(end)?.checked_sub(number(start)?)?;
        let device = device(words.nth(2)?, 16)?;
        let inode = words.next()?.parse().ok()?;
        Some(Self { range, length, inode: (device, inode) })
    }
}

/// Devices of overlays that a process sees.
fn overlays_of(process: &Path) -> HashSet<u64> {
    let mounts = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let overlay = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        filesystem.starts_with("overlay ").then_some(())?;
        device(mount.split_ascii_whitespace().nth(2)?, 10)
    };
    mounts.lines().filter_map(overlay).collect()
}

fn device(text: &str, radix: u32) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    let number = |text| u32::from_str_radix(text, radix).ok();
    Some(rustix::fs::makedev(number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_of_a_deleted_file_is_read_and_others_are_not() {
        let line = "7f00-9f00 rw-s 00000000 00:2f 1234                       /p/a file (deleted)";
        let found = Mapping::parse(line).unwrap();
        assert_eq!((found.range, found.length), ("7f00-9f00", 0x2000));
        assert_eq!(found.inode, (rustix::fs::makedev(0, 0x2f), 1234));
        assert_eq!(Mapping::parse("7f00-9f00 rw-s 00000000 00:2f 1234 /p/a file"), None);
        assert_eq!(Mapping::parse(""), None);
    }
}
