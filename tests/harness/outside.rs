//! What the kernel says is there, asked without skep.

use super::canary::contains;
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// A process seen in `/proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) command: String,
}

/// Processes that have to do with a directory: started from a program in it, naming it in their
/// arguments, or living in a mount namespace that holds something of it. Our own ancestors name it
/// too when a test is run by hand; they share our mount namespace and run none of its programs.
pub(crate) fn processes_of(directory: &Path) -> Vec<Process> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    // A namespace with thousands of processes has one mount table.
    let known: RefCell<BTreeMap<PathBuf, bool>> = RefCell::default();
    processes(|at| {
        // The lab's own server is no leftover; that it ends is asserted where it is ended.
        let line = || fs::read(at.join("cmdline")).unwrap_or_default();
        if super::hosted::wanted() && super::hosted::serves(&line()) {
            return false;
        }
        let exe = fs::read_link(at.join("exe")).unwrap_or_default();
        if exe.starts_with(directory) {
            return true;
        }
        let Ok(namespace) = fs::read_link(at.join("ns/mnt")) else { return false };
        if Some(&namespace) == own.as_ref() {
            return false;
        }
        if let Some(known) = known.borrow().get(&namespace) {
            return *known;
        }
        // Of one that is ending it is empty, and tells nothing of the others there.
        let mounts = fs::read(at.join("mountinfo")).unwrap_or_default();
        let holds = contains(&mounts, directory.as_os_str().as_bytes());
        if !mounts.is_empty() {
            known.borrow_mut().insert(namespace, holds);
        }
        holds
    })
}

/// Processes with a string in their arguments.
pub(crate) fn processes_with(marker: &str) -> Vec<Process> {
    let own = std::process::id().to_string();
    processes(|at| {
        let arguments = fs::read(at.join("cmdline")).unwrap_or_default();
        at.file_name() != Some(OsStr::new(&own)) && contains(&arguments, marker.as_bytes())
    })
}

fn processes(wanted: impl Fn(&Path) -> bool) -> Vec<Process> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let at = entry.path();
        if wanted(&at) && !is_zombie(&at) {
            let arguments = fs::read(at.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&arguments).replace('\0', " ");
            found.push(Process { pid, command });
        }
    }
    found
}

/// A dead process whose parent has not looked yet holds nothing.
fn is_zombie(at: &Path) -> bool {
    let Ok(stat) = fs::read_to_string(at.join("stat")) else { return true };
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Lines of the host's mount table that name a directory.
pub(crate) fn mounts_of(directory: &Path) -> Vec<String> {
    let table =
        fs::read("/proc/1/mountinfo").or_else(|_| fs::read("/proc/self/mountinfo")).unwrap();
    let name = directory.as_os_str().as_bytes();
    let lines = table.split(|byte| *byte == b'\n').filter(|line| contains(line, name));
    lines.map(|line| String::from_utf8_lossy(line).into_owned()).collect()
}

/// cgroup directories whose name is or contains a string.
pub(crate) fn cgroups_named(name: &str) -> Vec<PathBuf> {
    cgroups(|found| found.contains(name))
}

/// cgroup directories called by one of these names.
pub(crate) fn cgroups_of(names: &BTreeSet<String>) -> Vec<PathBuf> {
    cgroups(|found| names.contains(found))
}

fn cgroups(wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if wanted(&entry.file_name().to_string_lossy()) {
                    found.push(entry.path());
                }
                open.push(entry.path());
            }
        }
    }
    found
}

/// Named network namespaces and links of the host's own.
pub(crate) fn network() -> Vec<String> {
    let names = |path: &str| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| format!("{path}/{}", entry.file_name().display())).collect();
        names.sort();
        names
    };
    [names("/run/netns"), names("/sys/class/net")].concat()
}

/// Kills every process of a directory, and waits until they are gone. For cleaning up.
pub(crate) fn kill_all(directory: &Path) {
    for _ in 0..200 {
        let left = processes_of(directory);
        if left.is_empty() {
            return;
        }
        for process in left {
            kill(process.pid);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Sends `SIGKILL`. Only to be used on what a test started.
pub(crate) fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// What a process is doing: `R`, `S`, `T` for one that stands still, `Z` for one that has ended.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Signals one process of ours.
pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}
