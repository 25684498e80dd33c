//! The guest's own mounts and devices, and the view that commands see.

use super::NONCE;
use crate::qemu::{PORT, SHARE};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, symlinkat};
use rustix::mount::{MountFlags, mount, mount_move};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const VIEW: &str = "/view";

fn named(what: String) -> impl FnOnce(rustix::io::Errno) -> io::Error {
    move |errno| {
        let error: io::Error = errno.into();
        io::Error::new(error.kind(), format!("cannot {what}: {error}"))
    }
}

fn mounted(kind: &str, place: &str, flags: MountFlags, options: &str) -> io::Result<()> {
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    mount(kind, place, kind, flags, options.as_c_str())
        .map_err(named(format!("mount {kind} at {place}")))
}

/// What init itself needs.
pub(super) fn mount_own() -> io::Result<()> {
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    mounted("proc", "/proc", plain | MountFlags::NODEV, "")?;
    mounted("sysfs", "/sys", plain | MountFlags::NODEV, "")?;
    mounted("devtmpfs", "/dev", plain, "")
}

/// In the order of their names. Which needs which has changed between versions of a kernel: one that misses
/// something of another's is tried again when others are there.
pub(super) fn load_modules(directory: &str) -> io::Result<()> {
    let mut modules: Vec<_> = std::fs::read_dir(directory)?.flatten().map(|e| e.path()).collect();
    modules.sort();
    load_all(modules, |module| {
        let file = std::fs::File::open(module)?;
        rustix::system::finit_module(&file, c"", 0).or_else(|error| match error {
            rustix::io::Errno::EXIST => Ok(()),
            other => Err(named(format!("load `{}`", module.display()))(other)),
        })
    })
}

/// Loads all, round after round, as long as each round gets further. The kernel says that there is no such
/// thing where a module needs something that is not there yet.
fn load_all<T>(mut left: Vec<T>, mut load: impl FnMut(&T) -> io::Result<()>) -> io::Result<()> {
    while !left.is_empty() {
        let before = left.len();
        let mut missed = None;
        let mut again = Vec::new();
        for module in left {
            match load(&module) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    missed.get_or_insert(error);
                    again.push(module);
                }
                Err(error) => return Err(error),
            }
        }
        left = again;
        if let Some(error) = missed.filter(|_| left.len() == before) {
            return Err(error);
        }
    }
    Ok(())
}

/// Runs a program of the view's with `input`, and says what it said if it fails.
pub(super) fn feed(words: &[&str], input: &str) -> io::Result<()> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let [program, arguments @ ..] = words else { return Ok(()) };
    let named = |error: io::Error| io::Error::other(format!("cannot run `{program}`: {error}"));
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(named)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(named)?;
    }
    let done = child.wait_with_output().map_err(named)?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    Err(io::Error::other(format!("`{program}`: {}", line.trim())))
}

/// The port by its name; the device appears a moment after its driver.
pub(super) fn open_serial() -> io::Result<OwnedFd> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        for entry in std::fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == PORT {
                let device = Path::new("/dev").join(entry.file_name());
                let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
                return rustix::fs::open(&device, flags, Mode::empty())
                    .map_err(named(format!("open `{}`", device.display())));
            }
        }
        if Instant::now() > deadline {
            return Err(io::Error::other("there is no serial port of ours"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What was found in the share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// What the host wrote there a moment ago.
    pub(super) nonce: String,
    /// The inode of the project's root.
    pub(super) project: u64,
}

/// Mounts the share, puts the guest's own `/proc`, `/sys` and `/dev` into it, and makes it the
/// root.
pub(super) fn mount_view(project: &Path) -> io::Result<Shared> {
    mount(SHARE, VIEW, "virtiofs", MountFlags::NOSUID | MountFlags::NODEV, None::<&std::ffi::CStr>)
        .map_err(named("mount the share".into()))?;
    let nonce = std::fs::read_to_string(Path::new(VIEW).join(NONCE))
        .map_err(|error| io::Error::other(format!("cannot read the nonce: {error}")))?;
    let within = Path::new(VIEW).join(project.strip_prefix("/").unwrap_or(project));
    let seen = std::fs::symlink_metadata(&within).ok().filter(Metadata::is_dir);
    let seen = seen.ok_or_else(|| io::Error::other("the project is not in the share"))?;
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    mounted("proc", "/view/proc", plain | MountFlags::NODEV, "")?;
    // There may be no /sys in the view; then there is none in the guest either.
    if Path::new("/view/sys").is_dir() {
        mounted("sysfs", "/view/sys", plain | MountFlags::NODEV | MountFlags::RDONLY, "")?;
    }
    make_devices("/view/dev")?;
    skep_sys::network::loopback_up()?;
    rustix::process::chdir(VIEW)?;
    mount_move(".", "/").map_err(named("make the view the root".into()))?;
    rustix::process::chroot(".").map_err(named("make the view the root".into()))?;
    rustix::process::chdir("/")?;
    Ok(Shared { nonce, project: seen.ino() })
}

/// The few devices that programs expect, and none of the machine's.
fn make_devices(place: &str) -> io::Result<()> {
    mounted("tmpfs", place, MountFlags::NOSUID | MountFlags::NOEXEC, "mode=755,size=64k")?;
    let at = |name: &str| format!("{place}/{name}");
    let nodes = [
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ];
    for (name, major, minor) in nodes {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, at(name), FileType::CharacterDevice, mode, makedev(major, minor))
            .map_err(named(format!("make /dev/{name}")))?;
        // The mask of init takes bits away.
        rustix::fs::chmod(at(name), mode)?;
    }
    let links = [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ];
    for (target, name) in links {
        symlinkat(target, CWD, at(name)).map_err(named(format!("make /dev/{name}")))?;
    }
    for directory in ["pts", "shm"] {
        rustix::fs::mkdirat(CWD, at(directory), Mode::from_raw_mode(0o755))
            .map_err(named(format!("make /dev/{directory}")))?;
    }
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    mounted("devpts", &at("pts"), plain, "newinstance,ptmxmode=0666,mode=620")?;
    mounted("tmpfs", &at("shm"), plain | MountFlags::NODEV, "mode=1777")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn modules_are_loaded_whatever_needs_what() {
        let needs = [("a", "b"), ("b", "c"), ("c", ""), ("d", "a")];
        let mut loaded = HashSet::from([""]);
        let all = needs.to_vec();
        let mut load = |(name, needed): &(&'static str, &'static str)| match loaded.contains(needed)
        {
            true => {
                loaded.insert(name);
                Ok(())
            }
            false => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        load_all(all, &mut load).unwrap();
        let error = load_all(vec![("e", "f")], &mut load).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(loaded.len(), 5);
    }
}
