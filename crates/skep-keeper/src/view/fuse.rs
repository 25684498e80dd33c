//! An overlay served by fuse-overlayfs instead of the kernel.
//!
//! The program runs as a child of the keeper, in init's user namespace but not in its pid namespace:
//! nothing inside can see, signal or trace it, freezing the sandbox does not freeze the filesystem
//! under its feet, and the parent-death signal takes it away with the keeper. It answers requests
//! that hostile code makes, so it is locked up itself: a root of its own with system programs and
//! the directories it serves, no network, the system call filter, rights over files and no others.
//!
//! The mount is made here, by descriptor, and only then handed to the program: so skep decides its
//! flags (no set-user-id, no devices), and no mount point has to be parsed.

use super::workspace::ASIDE;
use super::{apply, plan, sources};
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use crate::identity::IdMap;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, open_tree,
};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType};
use serde::{Deserialize, Serialize};
use skep_confine::seccomp::{self, SeccompVariant};
use skep_sys::process::{Child, Namespaces, clone_with};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

/// Where the program may be: never looked for in `PATH`, never in a project.
const PROGRAMS: &[&str] = &["/usr/bin/fuse-overlayfs", "/bin/fuse-overlayfs"];
/// The kernel's side of it.
const DEVICE: &str = "/dev/fuse";
/// Rights over files of the sandbox's own ids, whatever their modes say. They hold in the
/// sandbox's user namespace only.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// What init asks the keeper to have served. The paths are init's, made of plain letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FuseOrder {
    /// For messages: `workspace overlay`.
    pub what: String,
    /// Where init has put the directories below.
    pub parts: String,
    /// Topmost first.
    pub lowers: Vec<String>,
    /// Where changes go.
    pub upper: String,
    /// Scratch space.
    pub work: String,
    /// What becomes of the owners on disk.
    pub owners: SeenOwners,
}

/// Whose files they seem to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeenOwners {
    /// Those on disk.
    AsStored,
    /// The user inside, all of them: what belongs to foreign ids could not be copied up.
    Inside,
}

/// The program, if it is installed.
pub fn program() -> Option<&'static str> {
    PROGRAMS.iter().copied().find(|path| Path::new(path).is_file())
}

/// Why fuse-overlayfs cannot be used by this process, if so: the reason and the remedy.
pub fn unavailable() -> Option<(String, &'static str)> {
    if program().is_none() {
        return Some(("it is not installed".into(), "install the package `fuse-overlayfs`"));
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let error = rustix::fs::open(DEVICE, flags, Mode::empty()).err()?;
    let remedy =
        "load the kernel module `fuse` and let users open the device: `chmod 666 /dev/fuse`";
    Some((format!("cannot open `{DEVICE}`: {}", io::Error::from(error)), remedy))
}

/// A served filesystem.
#[derive(Debug)]
pub struct Served {
    /// Its mount, detached.
    pub mount: OwnedFd,
    /// What the program says.
    pub errors: OwnedFd,
    /// The program.
    pub server: Server,
}

/// The running program. Dropping it ends it: nothing uses what it serves any more.
#[derive(Debug)]
pub struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = skep_sys::process::send_signal(&self.0.pidfd, Signal::KILL);
        let _ = skep_sys::process::wait_for(&self.0);
    }
}

impl Served {
    /// What the program has said so far, on one line.
    pub fn said(&self) -> String {
        let mut bytes = Vec::new();
        let read = self.errors.try_clone().map(File::from).and_then(|mut file| {
            file.rewind()?;
            file.take(4096).read_to_end(&mut bytes)
        });
        drop(read);
        String::from_utf8_lossy(&bytes).trim().replace('\n', "; ")
    }
}

/// Starts the program. `namespaces` are init's: user, then mount.
pub fn serve(order: &FuseOrder, map: IdMap, namespaces: &[OwnedFd]) -> Result<Served, Failure> {
    let step = || format!("mount the {} by fuse-overlayfs", order.what);
    let Some(program) = program() else {
        return Err(Failure::missing(
            "fuse-overlayfs",
            "it is not installed",
            "install the package `fuse-overlayfs`",
        ));
    };
    let errors = rustix::fs::memfd_create("skep-fuse", MemfdFlags::CLOEXEC).step(step)?;
    let (ours, theirs) = Channel::pair().step(step)?;
    let keeper = rustix::process::getpid();
    let server = clone_with(Namespaces::NONE, || {
        let failure = match become_server(order, program, map, namespaces, &errors, &theirs, keeper)
        {
            Ok(never) => match never {},
            Err(failure) => failure,
        };
        // Not heard if the mount was already passed on; it is dead then, which is heard.
        let _ = theirs.send(&Err::<(), Failure>(failure), &[]);
        1
    });
    let server = Server(server.step(step)?);
    drop(theirs);
    let (answer, mut mount) = ours.receive::<Result<(), Failure>>().step(step)?;
    answer?;
    let mount =
        mount.pop().ok_or_else(|| Failure::invalid("fuse-overlayfs came without a mount"))?;
    Ok(Served { mount, errors, server })
}

/// 1. Enter init's namespaces, with all rights in them.
/// 2. Open the device: still with the caller's own right to do so.
/// 3. Mount, and pass the mount on.
/// 4. Become the user inside, and leave the host's tree for a root with next to nothing.
/// 5. Keep rights over files only, with nothing to gain.
/// 6. Die with the keeper; filter system calls; become the program.
fn become_server(
    order: &FuseOrder,
    program: &str,
    map: IdMap,
    namespaces: &[OwnedFd],
    errors: &OwnedFd,
    channel: &Channel,
    keeper: rustix::process::Pid,
) -> Result<std::convert::Infallible, Failure> {
    let step = || format!("mount the {} by fuse-overlayfs", order.what);
    let kinds = [LinkNameSpaceType::User, LinkNameSpaceType::Mount];
    for (namespace, kind) in namespaces.iter().zip(kinds) {
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))
            .step(|| "enter the sandbox's namespaces".into())?;
    }
    let device = rustix::fs::open(DEVICE, OFlags::RDWR, Mode::empty())
        .step(|| format!("open `{DEVICE}` for the {}", order.what))?;
    let mount = mount(&device, map).step(step)?;
    channel.send(&Ok::<(), Failure>(()), &[mount.as_fd()]).step(step)?;
    drop(mount);
    if map == IdMap::Range {
        crate::identity::become_inside_root()?;
    }
    enter_own_root(order)?;
    keep_file_rights().step(|| "give up privileges for fuse-overlayfs".into())?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step(step)?;
    if rustix::process::getppid() != Some(keeper) {
        return Err(Failure::invalid("the keeper is gone"));
    }
    rustix::stdio::dup2_stdout(errors).step(step)?;
    rustix::stdio::dup2_stderr(errors).step(step)?;
    skep_sys::process::close_all_but(&[device.as_fd()]).step(step)?;
    let arguments = arguments(order, program, map, device.as_raw_fd());
    let program = CString::new(program).map_err(io::Error::from).step(step)?;
    seccomp::install(SeccompVariant::Default).step(step)?;
    Err(skep_sys::process::execve(&program, &arguments, &[])).step(step)
}

/// The parts are still in init's root, which this namespace is a copy of.
fn enter_own_root(order: &FuseOrder) -> Result<(), Failure> {
    let step = || "make a root for fuse-overlayfs".to_owned();
    let own = Namespaces::MOUNT.with(Namespaces::NETWORK).with(Namespaces::IPC);
    skep_sys::process::unshare(own.with(Namespaces::UTS)).step(step)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let parts = open_tree(CWD, order.parts.as_str(), flags).step(step)?;
    let ops = plan::server(&sources::system_entries(), Path::new(ASIDE));
    apply::build_plain(&ops, vec![parts])
}

fn mount(device: &OwnedFd, map: IdMap) -> io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let (uid, gid) = map.inside();
    fsconfig_set_string(&context, "source", "skep")?;
    for (key, value) in [
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", uid.to_string()),
        ("group_id", gid.to_string()),
    ] {
        fsconfig_set_string(&context, key, value.as_str())?;
    }
    // The kernel checks modes; and everyone inside may use it, not the mounting user alone.
    fsconfig_set_flag(&context, "default_permissions")?;
    fsconfig_set_flag(&context, "allow_other")?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// An exec keeps capabilities of a user other than 0 only where they are ambient.
fn keep_file_rights() -> io::Result<()> {
    skep_confine::privileges::drop_all_but(KEPT).map_err(io::Error::other)?;
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: KEPT };
    rustix::thread::set_capabilities(None, sets)?;
    for capability in KEPT {
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// `writeback=0`: a write that has returned is in the upper, where the review looks.
fn arguments(order: &FuseOrder, program: &str, map: IdMap, device: i32) -> Vec<CString> {
    let mut options = format!(
        "lowerdir={},upperdir={},workdir={},writeback=0",
        order.lowers.join(":"),
        order.upper,
        order.work
    );
    if order.owners == SeenOwners::Inside {
        let (uid, gid) = map.inside();
        options.push_str(&format!(",squash_to_uid={uid},squash_to_gid={gid}"));
    }
    let words = [program, "-f", "-o", &options, &format!("/dev/fd/{device}")];
    words.iter().filter_map(|word| CString::new(*word).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_owners_are_squashed_to_the_user_inside() {
        let order = FuseOrder {
            what: "workspace overlay".into(),
            parts: "/tmp/.skep".into(),
            lowers: vec!["/.skep/3".into(), "/.skep/0".into()],
            upper: "/.skep/1/upper".into(),
            work: "/.skep/1/work".into(),
            owners: SeenOwners::Inside,
        };
        let map = IdMap::Own { user: (1000, 1000), group: (100, 100), lent: None };
        let words = arguments(&order, "/usr/bin/fuse-overlayfs", map, 7);
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            words,
            [
                "/usr/bin/fuse-overlayfs",
                "-f",
                "-o",
                "lowerdir=/.skep/3:/.skep/0,upperdir=/.skep/1/upper,\
                 workdir=/.skep/1/work,writeback=0,squash_to_uid=1000,squash_to_gid=100",
                "/dev/fd/7",
            ]
        );
    }
}
