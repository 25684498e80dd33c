//! A cgroup per exec inside the guest: what counts, stops and ends all of its processes.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::mount::MountFlags;
use std::fs::File;
use std::io::{self, Read, Write};

const PLACE: &str = "/control";

/// The guest's cgroup tree, held open: its mount is not part of the view.
pub(super) struct Groups(Option<OwnedFd>);

/// The cgroup of one exec.
#[derive(Debug)]
pub(super) struct Group {
    name: String,
    directory: OwnedFd,
}

impl Groups {
    /// A guest kernel without cgroup v2 is no reason to stop: the machine itself is the limit.
    pub(super) fn mount() -> Self {
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
        if rustix::mount::mount("cgroup2", PLACE, "cgroup2", flags, None::<&std::ffi::CStr>)
            .is_err()
        {
            return Self(None);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(root) = rustix::fs::open(PLACE, flags, Mode::empty()) else { return Self(None) };
        for controller in ["+pids", "+memory"] {
            // Without the controller there is no limit of its own, only the machine's.
            let _ = write(&root, "cgroup.subtree_control", controller);
        }
        Self(Some(root))
    }

    pub(super) fn create(&self, line: u32, processes: Option<u64>) -> Option<Group> {
        let root = self.0.as_ref()?;
        let name = line.to_string();
        mkdirat(root, &name, Mode::from_raw_mode(0o755)).ok()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(root, &name, flags, Mode::empty()).ok()?;
        if let Some(limit) = processes {
            let _ = write(&directory, "pids.max", &limit.to_string());
        }
        Some(Group { name, directory })
    }

    /// Takes an empty group away.
    pub(super) fn remove(&self, group: &Group) {
        if let Some(root) = &self.0 {
            // The dead leave a group a moment after they are gone; an empty directory costs nothing.
            let _ = unlinkat(root, &group.name, AtFlags::REMOVEDIR);
        }
    }
}

impl Group {
    pub(super) fn join(&self) -> io::Result<()> {
        write(&self.directory, "cgroup.procs", "0")
    }

    pub(super) fn kill(&self) {
        let _ = write(&self.directory, "cgroup.kill", "1");
    }

    pub(super) fn freeze(&self, freeze: bool) {
        let _ = write(&self.directory, "cgroup.freeze", if freeze { "1" } else { "0" });
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.counter("cgroup.events", "frozen") == Some(1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counter("cgroup.events", "populated") == Some(0)
    }

    /// Whether the kernel ended one of its processes for want of memory.
    pub(super) fn starved(&self) -> bool {
        self.counter("memory.events", "oom_kill").is_some_and(|count| count > 0)
    }

    /// Whether a fork was refused.
    pub(super) fn crowded(&self) -> bool {
        self.counter("pids.events", "max").is_some_and(|count| count > 0)
    }

    pub(super) fn memory_peak(&self) -> Option<u64> {
        read(&self.directory, "memory.peak").ok()?.trim().parse().ok()
    }

    fn counter(&self, file: &str, key: &str) -> Option<u64> {
        let text = read(&self.directory, file).ok()?;
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(name, _)| *name == key)?.1.parse().ok()
    }
}

fn write(directory: &OwnedFd, file: &str, text: &str) -> io::Result<()> {
    let file = openat(directory, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(file).write_all(text.as_bytes())
}

fn read(directory: &OwnedFd, file: &str) -> io::Result<String> {
    let file = openat(directory, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    Ok(text)
}
