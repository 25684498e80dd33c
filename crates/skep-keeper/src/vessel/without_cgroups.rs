//! A root for a runtime that makes cgroups wherever it sees some.
//!
//! In the user namespace around it no cgroup can be written, so it would only fail. What it sees is in the
//! table of mounts, which lists also what is covered, but nothing outside the reader's root. So it gets a root of
//! its own: everything the host's has but `/sys`, where an empty directory stands in for a hierarchy without
//! controllers; and of `/run` what is on the stage.

use super::{BUNDLE, ROOT, RUNTIME_STATE};
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_move, unmount,
};
use rustix::process::pivot_root;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where it is put together.
const PLACE: &str = "/run/around";

/// Entries of the host's root that are not shown.
const LEFT_OUT: [&str; 2] = ["sys", "run"];

/// Makes it, and makes it the root of this mount namespace, which is the stage's. The view moves there.
pub(super) fn enter() -> io::Result<()> {
    fs::create_dir(PLACE)?;
    mount(
        "none",
        PLACE,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(c"mode=755,size=1m"),
    )?;
    for entry in fs::read_dir("/")? {
        let entry = entry?;
        if !LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
            show(&entry)?;
        }
    }
    fs::create_dir_all(inside("/sys/fs/cgroup"))?;
    for directory in [BUNDLE, RUNTIME_STATE, ROOT] {
        fs::create_dir_all(inside(directory))?;
    }
    for directory in [BUNDLE, RUNTIME_STATE] {
        mount_bind(directory, inside(directory))?;
    }
    mount_move(ROOT, inside(ROOT))?;
    // Not by chroot(2), in which nobody may make a user namespace: init does. The old root is stacked on the
    // new one, and detached from there.
    rustix::process::chdir(PLACE)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

fn inside(path: &str) -> PathBuf {
    Path::new(PLACE).join(path.trim_start_matches('/'))
}

/// An entry as it is, with everything that is mounted below it: the kernel lets nobody look under mounts of
/// another user namespace.
fn show(entry: &fs::DirEntry) -> io::Result<()> {
    let at = Path::new(PLACE).join(entry.file_name());
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(entry.path())?, at);
    }
    if kind.is_dir() {
        fs::create_dir(&at)?;
        mount_bind_recursive(entry.path(), &at)?;
    }
    Ok(())
}
