//! Files that have no name any more and take up room all the same: open, mapped into memory, or under way
//! between two sockets. No walk of a tree finds them.

use super::under_way::{self, Holder, Sockets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, statat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use skep_confine::usage::state_of;
use skep_sys::process::{Child, Namespaces, clone_with, close_all_but, send_signal, wait_for};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `statfs` type of overlayfs.
const OVERLAY: i64 = 0x794c_7630;

/// Of which device, and which number there.
type Inode = (u64, u64);

/// How far a search goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// What is in tables and mappings, while those inside go on.
    Tables,
    /// What is under way between sockets too. Nobody may move.
    UnderWay,
}

/// A process that searches all descriptors there are, however long that takes.
#[derive(Debug)]
pub(super) struct Searcher {
    child: Child,
    answer: OwnedFd,
}

impl Searcher {
    /// Starts it; it ends with the keeper, or when this is dropped.
    pub(super) fn start(
        pids: &[Pid],
        kind: i64,
        patience: Option<Duration>,
        depth: Depth,
    ) -> io::Result<Self> {
        let (answer, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let child = clone_with(Namespaces::NONE, move || {
            let ends = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            if ends.is_err() || close_all_but(&[write.as_fd()]).is_err() {
                return 1;
            }
            let found = search(pids, kind, patience, depth);
            i32::from(rustix::io::write(&write, &found.to_bytes()).is_err())
        })?;
        Ok(Self { child, answer })
    }

    /// What it has found; one that died has found nothing.
    pub(super) fn answer(&self) -> Option<Found> {
        let mut bytes = [0; Found::LENGTH];
        match rustix::io::read(&self.answer, &mut bytes) {
            Ok(Found::LENGTH) => Some(Found::from_bytes(bytes)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Ok(_) | Err(_) => Some(Found::default()),
        }
    }
}

impl Drop for Searcher {
    fn drop(&mut self) {
        let _ = send_signal(&self.child.pidfd, Signal::KILL);
        let _ = wait_for(&self.child);
    }
}

/// Everything, while nobody moves. By a process of its own: duplicates of what is under way come into its
/// table, and go with it.
pub(super) fn search_held(pids: &[Pid], kind: i64, patience: Duration) -> Found {
    let Ok(searcher) = Searcher::start(pids, kind, Some(patience), Depth::UnderWay) else {
        return Found::default();
    };
    // It looks at its own clock between two steps, and one step may take a while.
    let patience = Timespec::try_from(patience + Duration::from_millis(500)).ok();
    let mut watched = [PollFd::new(&searcher.answer, PollFlags::IN)];
    let _ = poll(&mut watched, patience.as_ref());
    searcher.answer().unwrap_or_default()
}

/// What a search has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Bytes of deleted files.
    pub bytes: u64,
    /// How many they are.
    pub inodes: u64,
    /// Whether all that can be seen was looked at in the time given.
    pub all: bool,
    /// Whether somebody may have files that cannot be seen: it runs a program that may not be read, has
    /// mapped a part of a file whose size only root may ask for, or descriptors are under way to a socket
    /// and were not all looked at.
    pub hides: bool,
}

impl Found {
    const LENGTH: usize = 18;

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inodes.to_le_bytes());
        (bytes[16], bytes[17]) = (self.all.into(), self.hides.into());
        bytes
    }

    fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let number = |at: usize| {
            let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
            u64::from_le_bytes(part.unwrap_or_default())
        };
        let (all, hides) = (bytes[16] != 0, bytes[17] != 0);
        Self { bytes: number(0), inodes: number(8), all, hides }
    }
}

/// Files that have no name any more but a descriptor or a mapping, on the overlay or, for a copied
/// workspace, on the filesystem of this kind. The first process is ours and hides nothing.
pub(super) fn search(pids: &[Pid], kind: i64, patience: Option<Duration>, depth: Depth) -> Found {
    let until = patience.map(|patience| Instant::now() + patience);
    let mut search = Search {
        kind,
        depth,
        until,
        files: HashSet::new(),
        sockets: Sockets::new(),
        found: Found { all: true, ..Found::default() },
    };
    for (index, pid) in pids.iter().enumerate() {
        match search.look_at(*pid, index == 0) {
            Ok(()) => {}
            Err(TimeIsUp) => {
                search.found.all = false;
                break;
            }
        }
    }
    search.found
}

/// A search under way.
struct Search {
    kind: i64,
    depth: Depth,
    until: Option<Instant>,
    /// Files that were counted.
    files: HashSet<Inode>,
    /// Sockets that were looked at.
    sockets: Sockets,
    found: Found,
}

/// There are more descriptors than can be looked at in the time given.
struct TimeIsUp;

impl Search {
    fn look_at(&mut self, pid: Pid, ours: bool) -> Result<(), TimeIsUp> {
        let place = format!("/proc/{}", pid.as_raw_nonzero());
        let mut shows_some = self.look_at_table(&place, Holder::Process(pid), ours)?;
        let mut place = PathBuf::from(place);
        if !shows_some && !ours && is_headless(pid) {
            // Any other thread has the same table: the filter refuses one of its own.
            for (thread, below) in threads_of(pid) {
                let table = below.to_string_lossy().into_owned();
                if self.look_at_table(&table, Holder::Thread(thread), ours)? {
                    (place, shows_some) = (below, true);
                    break;
                }
            }
            self.found.hides |= !shows_some && is_headless(pid);
        }
        // A program that runs and was deleted takes up room without being mapped, if it wants.
        let program = place.join("exe");
        if let Ok(stat) = rustix::fs::stat(&program).as_ref() {
            let on = || rustix::fs::statfs(&program).map_or(0, |stat| stat.f_type);
            self.found.add(stat, self.kind, &mut self.files, on);
        }
        let (bytes, all) = mapped(&place, self.kind, &mut self.files);
        self.found.bytes = self.found.bytes.saturating_add(bytes);
        self.found.hides |= !ours && !all;
        Ok(())
    }

    /// Says whether there was anything in it.
    fn look_at_table(&mut self, place: &str, holder: Holder, ours: bool) -> Result<bool, TimeIsUp> {
        let table = format!("{place}/fd");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(table.as_str(), flags, Mode::empty()) {
            Ok(opened) => opened,
            // What a first thread that has ended shows is nobody's; another one has the table.
            Err(Errno::ACCESS | Errno::PERM) if matches!(holder, Holder::Process(id) if is_headless(id)) =>
            {
                return Ok(false);
            }
            Err(Errno::ACCESS | Errno::PERM) => {
                let shut = !ours && lives(holder.id()) && !self.look_at_copies(holder)?;
                self.found.hides |= shut;
                return Ok(true);
            }
            // Gone meanwhile.
            Err(_) => return Ok(false),
        };
        let Ok(entries) = Dir::read_from(&opened) else { return Ok(false) };
        let mut shows_some = false;
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_bytes().starts_with(b".") {
                continue;
            }
            shows_some = true;
            if self.until.is_some_and(|until| Instant::now() > until) {
                return Err(TimeIsUp);
            }
            // One step from the table: half of the time that a path from the root takes.
            let Ok(stat) = statat(&opened, name, AtFlags::empty()) else { continue };
            let name = name.to_string_lossy();
            if FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
                self.look_at_socket(place, holder, &name);
            }
            let on = || rustix::fs::statfs(format!("{table}/{name}")).map_or(0, |stat| stat.f_type);
            self.found.add(&stat, self.kind, &mut self.files, on);
        }
        Ok(shows_some)
    }

    /// A table that only root may list: who keeps secrets, as an agent for keys does, has it shut
    /// (`PR_SET_DUMPABLE`). Its descriptors can be copied one by one all the same, by whoever may trace it. Says
    /// whether they could: a program that may not be read is nobody's to trace.
    fn look_at_copies(&mut self, holder: Holder) -> Result<bool, TimeIsUp> {
        if self.depth != Depth::UnderWay {
            return Ok(false);
        }
        let (Ok(handle), Some(size)) = (holder.open(), table_size(holder.id())) else {
            return Ok(false);
        };
        for number in 0..size {
            if self.until.is_some_and(|until| Instant::now() > until) {
                return Err(TimeIsUp);
            }
            let copy = match under_way::copy_of(&handle, number) {
                Ok(copy) => copy,
                Err(Errno::BADF) => continue,
                Err(_) => return Ok(false),
            };
            let Ok(stat) = rustix::fs::fstat(&copy) else { continue };
            let Self { kind, files, sockets, found, .. } = self;
            let mut show = |file: &OwnedFd, stat: &Stat| {
                let on = || rustix::fs::fstatfs(file).map_or(0, |stat| stat.f_type);
                found.add(stat, *kind, files, on);
            };
            show(&copy, &stat);
            let socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
            if socket && !under_way::look_at_own(&copy, sockets, &mut show) {
                found.hides = true;
            }
        }
        Ok(true)
    }

    fn look_at_socket(&mut self, place: &str, holder: Holder, name: &str) {
        let waiting = under_way::count(place, name);
        if waiting == 0 {
            return;
        }
        let Self { kind, files, sockets, found, .. } = self;
        let mut show = |file: &OwnedFd, stat: &Stat| {
            let on = || rustix::fs::fstatfs(file).map_or(0, |stat| stat.f_type);
            found.add(stat, *kind, files, on);
        };
        let all = match self.depth {
            Depth::Tables => false,
            Depth::UnderWay => under_way::look(holder, name, waiting, sockets, &mut show),
        };
        self.found.hides |= !all;
    }
}

impl Found {
    /// Counts a file, a directory or a link, if it is a deleted one that was not counted yet. `on` is the kind
    /// of its filesystem.
    fn add(&mut self, stat: &Stat, kind: i64, files: &mut HashSet<Inode>, on: impl Fn() -> i64) {
        let stored = [FileType::RegularFile, FileType::Directory, FileType::Symlink];
        if stat.st_nlink > 0 || !stored.contains(&FileType::from_raw_mode(stat.st_mode)) {
            return;
        }
        if !files.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
        let on = on();
        if on == OVERLAY || on == kind {
            self.bytes = self.bytes.saturating_add(stat.st_blocks as u64 * 512);
            self.inodes += 1;
        }
    }
}

/// Who has ended shows nothing of itself either.
fn lives(process: Pid) -> bool {
    state_of(process).is_some_and(|(state, _)| !matches!(state, b'Z' | b'X'))
        || is_headless(process)
}

/// Whether its first thread has ended and others have not: it shows nothing of what they have.
fn is_headless(process: Pid) -> bool {
    state_of(process).is_some_and(|(state, threads)| state == b'Z' && threads > 1)
}

/// Numbers of descriptors are below this.
fn table_size(process: Pid) -> Option<i32> {
    let status = std::fs::read(format!("/proc/{}/status", process.as_raw_nonzero())).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("FDSize:"))?.trim().parse().ok()
}

/// The other threads of a process, and where each shows itself.
fn threads_of(process: Pid) -> Vec<(Pid, PathBuf)> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let thread = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(number)?, entry.path()))
    };
    let all = threads.into_iter().flatten().flatten().filter_map(thread);
    all.filter(|(thread, _)| *thread != process).collect()
}

/// What a process has mapped and closed, and whether that is all. Root can look at the file behind a
/// mapping; others know how much of it is mapped, and on which device it lies.
fn mapped(directory: &Path, kind: i64, seen: &mut HashSet<Inode>) -> (u64, bool) {
    let maps = match std::fs::read(directory.join("maps")) {
        Ok(maps) => maps,
        // Gone meanwhile. Who may not be read is known by its descriptors already.
        Err(_) => return (0, true),
    };
    // Names of files are any bytes.
    let maps = String::from_utf8_lossy(&maps);
    let mut all = true;
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
        let overlays = overlays.get_or_insert_with(|| overlays_of(directory));
        if overlays.contains(&mapping.inode.0) {
            let size = sizes.entry(mapping.inode).or_default();
            *size = mapping.reach.max(*size);
            all = false;
        }
    }
    seen.extend(sizes.keys());
    (sizes.into_values().fold(0, u64::saturating_add), all)
}

/// A line of `/proc/PID/maps` about a deleted file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    /// As `map_files` calls it: without the zeros in front that `maps` has.
    range: String,
    /// How much of the file there is at least.
    reach: u64,
    inode: Inode,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let line = line.strip_suffix(" (deleted)")?;
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let (range, length) = (format!("{start:x}-{end:x}"), end.checked_sub(start)?);
        let reach = number(words.nth(1)?)?.saturating_add(length);
        let device = device(words.next()?, 16)?;
        let inode = words.next()?.parse().ok()?;
        Some(Self { range, reach, inode: (device, inode) })
    }
}

/// Devices of overlays that a process sees.
fn overlays_of(process: &Path) -> HashSet<u64> {
    let mounts = std::fs::read(process.join("mountinfo")).unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
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
        let line =
            "00007f00-00009f00 rw-s 00001000 00:2f 1234                       /p/a file (deleted)";
        let found = Mapping::parse(line).unwrap();
        assert_eq!((found.range.as_str(), found.reach), ("7f00-9f00", 0x3000));
        assert_eq!(found.inode, (rustix::fs::makedev(0, 0x2f), 1234));
        assert_eq!(Mapping::parse("7f00-9f00 rw-s 00000000 00:2f 1234 /p/a file"), None);
        assert_eq!(Mapping::parse(""), None);
    }
}
