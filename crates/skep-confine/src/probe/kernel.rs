//! Probes of the kernel: namespaces, overlay, idmapped mounts, seccomp, Landlock, FUSE.

use super::{Probe, ProbeContext, in_child, programs};
use crate::landlock::{Fence, FenceAccess, FenceRule, FenceScope};
use crate::seccomp::{self, SeccompVariant};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, openat, statat, unlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change,
    open_tree,
};
use skep_sys::process::{Namespaces, clone_with, wait_for};
use skep_sys::raw::{CallEnd, Convention, call_in_child};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Puts the operation in front of what the kernel said.
fn to<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| format!("cannot {what}: {error}"))
}

/// Maps the caller to root inside, from inside.
fn map_self(user: u32, group: u32) -> Result<(), String> {
    // Needed by those without privilege before a group map, and absent on old kernels.
    let _ = fs::write("/proc/self/setgroups", "deny");
    to("write the user map", fs::write("/proc/self/uid_map", format!("0 {user} 1")))?;
    to("write the group map", fs::write("/proc/self/gid_map", format!("0 {group} 1")))
}

fn in_user_namespace(
    others: Namespaces,
    body: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    in_child(Namespaces::USER.with(others), || {
        map_self(user, group)?;
        body()
    })
}

fn new_filesystem(
    kind: &str,
    settings: &[(&str, &str)],
    flags: &[&str],
) -> Result<OwnedFd, String> {
    let context = to(&format!("open a new {kind}"), fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC))?;
    for (key, value) in settings {
        to(&format!("set `{key}`"), fsconfig_set_string(&context, *key, *value))?;
    }
    for flag in flags {
        to(&format!("set `{flag}`"), fsconfig_set_flag(&context, *flag))?;
    }
    to(&format!("make a new {kind}"), fsconfig_create(&context))?;
    let attributes = MountAttrFlags::empty();
    to(&format!("mount a new {kind}"), fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes))
}

const NAMESPACE_REMEDY: &str = "allow user namespaces: `sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000`, or see `apparmor`; in a container, run it with user namespaces allowed";

/// A user namespace, and the right to mount in it: a security module may give the one without
/// the other.
pub(super) fn user_namespace() -> Probe {
    let result =
        in_user_namespace(Namespaces::MOUNT, || new_filesystem("tmpfs", &[], &[]).map(drop));
    Probe::of(
        "user namespace",
        "made one and mounted a tmpfs in it",
        result.map(|()| String::new()),
    )
    .or_else(NAMESPACE_REMEDY)
}

/// A `/proc` of its own: refused where parts of the outer one are hidden, as in most containers.
pub(super) fn own_proc() -> Probe {
    let others = Namespaces::MOUNT.with(Namespaces::PID);
    let result = in_user_namespace(others, || new_filesystem("proc", &[], &[]).map(drop));
    Probe::of("own /proc", "mounted one in a new pid namespace", result.map(|()| String::new()))
        .or_else("in a container, run it with an unmasked /proc (`--security-opt systempaths=unconfined`)")
}

/// A directory that is taken away again.
struct Scratch(PathBuf);

impl Scratch {
    fn make(context: &ProbeContext, parts: &[&str]) -> Result<Self, String> {
        let name = format!("probe-{}", rustix::process::getpid().as_raw_nonzero());
        let scratch = Self(context.scratch.join(name));
        to("make the scratch directory", fs::create_dir(&scratch.0))?;
        for part in parts {
            to("make the scratch directory", fs::create_dir(scratch.0.join(part)))?;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The kernel leaves `work/work` with no rights in it; root or owner can still remove it
        // once it is readable.
        let inner = self.0.join("work/work");
        if inner.exists() {
            let _ = rustix::fs::chmod(&inner, Mode::RWXU);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Overlay in a user namespace: removes, replaces and adds through it, and looks at the upper.
pub(super) fn overlay(context: &ProbeContext) -> Probe {
    let result = Scratch::make(context, &["lower", "upper", "work"]).and_then(|scratch| {
        to("write the lower", fs::write(scratch.0.join("lower/old"), "old"))?;
        in_user_namespace(Namespaces::MOUNT, || use_overlay(&scratch.0))?;
        let added = to("read the upper", fs::read(scratch.0.join("upper/new")))?;
        let removed = fs::symlink_metadata(scratch.0.join("upper/old"));
        let kept = to("read the lower", fs::read(scratch.0.join("lower/old")))?;
        if added == b"new" && kept == b"old" && removed.is_ok() {
            return Ok(());
        }
        Err("changes made through the overlay are not in its upper".to_owned())
    });
    Probe::of("overlay", "mounted one with `userxattr` in a user namespace", result.map(|()| String::new()))
        .or_else("load the module (`modprobe overlay`), use Linux 5.11 or newer and a state directory on ext4, xfs or btrfs; `fuse-overlayfs` or copying stand in")
}

fn use_overlay(scratch: &Path) -> Result<(), String> {
    // Names relative to the working directory need no quoting and have no length to be cut at.
    to("enter the scratch directory", std::env::set_current_dir(scratch))?;
    let layers = [("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work")];
    let merged = new_filesystem("overlay", &layers, &["userxattr"])?;
    to("remove through the overlay", unlinkat(&merged, "old", AtFlags::empty()))?;
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = to("create through the overlay", openat(&merged, "new", create, Mode::RUSR))?;
    to("write through the overlay", rustix::io::write(&file, b"new")).map(drop)
}

/// A mount whose owners appear shifted: needs root.
pub(super) fn idmapped_mounts(context: &ProbeContext) -> Probe {
    const NAME: &str = "idmapped mounts";
    if !rustix::process::geteuid().is_root() {
        return Probe::untried(NAME, "only root can make them; not needed otherwise");
    }
    let result = Scratch::make(context, &[]).and_then(|scratch| {
        let namespace = mapped_namespace(0, 65_534)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = to("clone a mount", open_tree(rustix::fs::CWD, &scratch.0, flags))?;
        to("shift the owners of a mount", skep_sys::mount::mount_idmap(&tree, &namespace))?;
        let seen = to("look at the owner", statat(&tree, ".", AtFlags::empty()))?.st_uid;
        if seen == 65_534 { Ok(()) } else { Err(format!("the owner appears as {seen}")) }
    });
    Probe::of(NAME, "shifted the owner of a directory", result.map(|()| String::new()))
        .or_else("use Linux 5.12 or newer and a filesystem that supports them (ext4, xfs, btrfs)")
}

/// A user namespace in which `inside` stands for `outside`, held by a process that is gone again.
fn mapped_namespace(inside: u32, outside: u32) -> Result<OwnedFd, String> {
    let (reader, writer) = to("make a pipe", rustix::pipe::pipe())?;
    let holder = clone_with(Namespaces::USER, || {
        // Ends when the other side is closed.
        i32::from(rustix::io::read(&reader, &mut [0u8; 1]).is_err())
    });
    let holder = to("make a user namespace", holder)?;
    let entry = format!("/proc/{}", holder.pid.as_raw_nonzero());
    let opened = ["uid_map", "gid_map"]
        .iter()
        .try_for_each(|map| fs::write(format!("{entry}/{map}"), format!("{inside} {outside} 1")))
        .and_then(|()| fs::File::open(format!("{entry}/ns/user")));
    let _ = rustix::io::write(&writer, b"x");
    let _ = wait_for(&holder);
    to("map a user namespace", opened).map(OwnedFd::from)
}

/// The filter, put on, and a call it must refuse.
pub(super) fn seccomp_filter() -> Probe {
    const IO_URING_SETUP: i64 = 425;
    const ENOSYS: i32 = 38;
    let prepare = || {
        rustix::thread::set_no_new_privs(true)?;
        seccomp::install(SeccompVariant::Default)?;
        let status = fs::read_to_string("/proc/self/status")?;
        let on = status.lines().any(|line| line.trim_end() == "Seccomp:\t2");
        if on { Ok(()) } else { Err(std::io::Error::other("it is not on")) }
    };
    let result = match call_in_child(prepare, Convention::Native, IO_URING_SETUP, [0; 6]) {
        Ok(CallEnd::Failed(ENOSYS)) => Ok(String::new()),
        Ok(other) => Err(format!("a refused call answered {other:?}")),
        Err(error) => Err(error.to_string()),
    };
    Probe::of("seccomp", "put the filter on and made a call it refuses", result)
        .or_else("use a kernel with CONFIG_SECCOMP_FILTER")
}

/// A fence around the scratch directory, and a look past it.
pub(super) fn landlock_fence(context: &ProbeContext) -> Probe {
    let rules = [FenceRule::new(&context.scratch, FenceAccess::ReadWrite)];
    let result = Fence::prepare(&rules, FenceScope::FilesSignalsSockets)
        .map_err(|error| skep_types::chain(&error))
        .and_then(|fence| {
            in_child(Namespaces::NONE, || {
                fence.restrict_self().map_err(|error| skep_types::chain(&error))?;
                match fs::read_dir("/") {
                    Err(_) => Ok(()),
                    Ok(_) => Err("a directory outside the fence can be read".to_owned()),
                }
            })?;
            Ok(fence.describe())
        });
    Probe::of("landlock", "put a fence on and looked past it", result)
        .or_else("boot with `lsm=landlock,…` in the kernel command line; needs Linux 5.19 or newer")
}

/// A network of its own.
pub(super) fn network_namespace() -> Probe {
    let result = in_user_namespace(Namespaces::NETWORK, || {
        let routes = to("read the routes", fs::read_to_string("/proc/net/route"))?;
        // The first line is the heading.
        if routes.lines().count() <= 1 { Ok(()) } else { Err("it has routes".to_owned()) }
    });
    Probe::of(
        "network namespace",
        "made one and found no route in it",
        result.map(|()| String::new()),
    )
    .or_else(NAMESPACE_REMEDY)
}

/// fuse-overlayfs, mounted in namespaces that end with the look: removes and adds through it.
pub(super) fn fuse_overlay(context: &ProbeContext) -> Probe {
    const NAME: &str = "fuse-overlayfs";
    let Some(program) = programs::find(context, NAME) else {
        return Probe::missing(NAME, "looked for the program", "not installed")
            .or_else("install fuse-overlayfs, for hosts where overlay cannot be mounted");
    };
    const REMEDY: &str = "load the fuse module and let this user open /dev/fuse (mode 0666)";
    let rights = Access::READ_OK | Access::WRITE_OK;
    if let Err(error) = accessat(CWD, "/dev/fuse", rights, AtFlags::EACCESS) {
        let reason = format!("/dev/fuse: {error}");
        return Probe::missing(NAME, "asked for the right to open /dev/fuse", reason)
            .or_else(REMEDY);
    }
    let parts = ["lower", "upper", "work", "merged"];
    let result = Scratch::make(context, &parts).and_then(|scratch| {
        to("write the lower", fs::write(scratch.0.join("lower/old"), "old"))?;
        // The program goes on in the background: with its pid namespace it ends, too.
        let others = Namespaces::MOUNT.with(Namespaces::PID);
        in_user_namespace(others, || use_fuse_overlay(&program, &scratch.0))?;
        let added = to("read the upper", fs::read(scratch.0.join("upper/new")))?;
        let kept = to("read the lower", fs::read(scratch.0.join("lower/old")))?;
        if added == b"new" && kept == b"old" {
            return Ok(());
        }
        Err("changes made through it are not in its upper".to_owned())
    });
    Probe::of(NAME, "mounted one in a user namespace", result.map(|()| String::new()))
        .or_else(REMEDY)
}

fn use_fuse_overlay(program: &Path, scratch: &Path) -> Result<(), String> {
    // What it mounts must not be seen by anybody else.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    to("keep the mount to ourselves", mount_change("/", private))?;
    to("enter the scratch directory", std::env::set_current_dir(scratch))?;
    let output = std::process::Command::new(program)
        .args(["-o", "lowerdir=lower,upperdir=upper,workdir=work", "merged"])
        .env_clear()
        .output();
    let output = to("run fuse-overlayfs", output)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("it refused: {}", said.lines().next_back().unwrap_or_default()));
    }
    to("remove through it", fs::remove_file("merged/old"))?;
    to("create through it", fs::write("merged/new", "new"))
}
